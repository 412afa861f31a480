//! Connecting to an agent that may be trusted.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, SockFlag, SockType, UnixAddr, connect as connect_fd, getsockopt, socket,
    sockopt::PeerCredentials,
};

use super::paths::{Refusal, Trust, check_socket};

/// Why there is no connection to an agent.
#[derive(Debug, thiserror::Error)]
pub enum NoAgent {
    /// No process listens at the path, or it accepts no more connections now.
    #[error("nobody listens there: {0}")]
    Nobody(io::Error),
    /// What is at the path, or the process behind it, is not to be trusted.
    #[error("{0}")]
    Unsafe(String),
    /// A system call has failed.
    #[error("{0}: {1}")]
    System(&'static str, io::Error),
}

/// Connects to the agent at `path`, if the [path](check_socket) and the user of the process that
/// listens are trusted. Never waits: on one host that succeeds or fails at once. The socket does not
/// block.
///
/// # Errors
/// [`NoAgent`].
pub fn connect(path: &Path, trust: &Trust) -> Result<UnixStream, NoAgent> {
    check_socket(path, trust).map_err(|refusal| match refusal {
        Refusal::Missing => NoAgent::Nobody(Errno::ENOENT.into()),
        refusal => NoAgent::Unsafe(refusal.to_string()),
    })?;
    let system = |what: &'static str| move |e: Errno| NoAgent::System(what, e.into());
    let address = UnixAddr::new(path).map_err(system("no name for a Unix socket"))?;
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let fd: OwnedFd = socket(AddressFamily::Unix, SockType::Stream, flags, None).map_err(system("socket"))?;
    connect_fd(fd.as_raw_fd(), &address).map_err(|e| NoAgent::Nobody(e.into()))?;
    let uid = getsockopt(&fd, PeerCredentials).map_err(system("its user"))?.uid();
    if trust.trusts(uid) { Ok(fd.into()) } else { Err(NoAgent::Unsafe(trust.distrust(uid))) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn a_socket_is_connected_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("agent.sock");
        let trust = Trust::new(None);
        let missing = connect(&path, &trust).unwrap_err().to_string();
        assert!(missing.starts_with("nobody listens there: No such file"), "{missing}");
        let listener = UnixListener::bind(&path).unwrap();
        let connected: Vec<_> = std::iter::from_fn(|| connect(&path, &trust).ok()).take(10_000).collect();
        assert!(!connected.is_empty());
        if connected.len() < 10_000 {
            // The queue of the listener is full: a connect that blocks would wait here.
            let full = connect(&path, &trust).unwrap_err().to_string();
            assert!(full.contains("Resource temporarily unavailable"), "{full}");
        }
        drop((listener, connected));
        let refused = connect(&path, &trust).unwrap_err().to_string();
        assert!(refused.starts_with("nobody listens there: Connection refused"), "{refused}");
        std::fs::remove_file(&path).unwrap();
        std::fs::write(&path, "").unwrap();
        assert_eq!(connect(&path, &trust).unwrap_err().to_string(), "is not a socket");
    }
}
