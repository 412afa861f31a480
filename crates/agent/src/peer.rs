//! Who is at the other end of a Unix socket, by the kernel's word.

use std::fs;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use mpib_host_view::Owner;
use nix::errno::Errno;
use nix::sys::socket::getsockopt;
use nix::sys::socket::sockopt::{PeerCredentials, PeerPidfd};

/// The process that has connected. Another one may have the socket by now.
#[derive(Debug)]
pub(crate) struct PeerProcess {
    /// User id, as seen from the agent's user namespace.
    pub(crate) uid: u32,
    /// Process id, as seen from the agent's PID namespace; 0 if it has none there.
    pub(crate) pid: u32,
    /// Who is charged for what it has.
    pub(crate) owner: Owner,
    /// Its numbers in this namespace and in those below, down to its own one. Empty if it has none here
    /// or has ended.
    numbers: Vec<u32>,
    /// Readable once the process has ended. Kernels before 6.5 have none.
    pub(crate) end: Option<OwnedFd>,
}

impl PeerProcess {
    /// Asks the kernel.
    ///
    /// # Errors
    /// The system's error.
    pub(crate) fn of(socket: &impl AsFd) -> nix::Result<Self> {
        let credentials = getsockopt(socket, PeerCredentials)?;
        let (uid, pid) = (credentials.uid(), u32::try_from(credentials.pid()).unwrap_or(0));
        // First: if the process is alive afterwards, they are those of no other one.
        let cgroups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let (end, known) = match getsockopt(socket, PeerPidfd) {
            // Of this process, even if another one has its number by now.
            Ok(end) => {
                let known = fs::read_to_string(format!("/proc/self/fdinfo/{}", end.as_raw_fd()));
                (Some(end), known.unwrap_or_default())
            }
            Err(Errno::ENOPROTOOPT) => {
                let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
                (None, Some(status).filter(|status| is_of(status, uid)).unwrap_or_default())
            }
            // It has ended.
            Err(_) => (None, String::new()),
        };
        let numbers = numbers(&known);
        let owner = match Owner::of(uid, if numbers.is_empty() { "" } else { &cgroups }) {
            // Limits that spare root are not for root of any container.
            Owner::User(0) if numbers.len() != 1 => Owner::ContainerRoot,
            owner => owner,
        };
        Ok(Self { uid, pid, owner, numbers, end })
    }

    /// Returns what `getpid` returns in the process; `None` if the kernel does not show it.
    pub(crate) fn own_pid(&self) -> Option<u32> {
        self.numbers.last().copied()
    }

    /// Whether the process is known to be in the agent's PID namespace, and not in one below, as
    /// containers have them.
    pub(crate) fn shares_namespace(&self) -> bool {
        self.numbers.len() == 1
    }
}

/// Whether the process with this status acts as this user. Another one can have the number by now, but
/// none of somebody else.
fn is_of(status: &str, uid: u32) -> bool {
    let line = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|effective| effective.parse().ok()) == Some(uid)
}

/// Reads the numbers of a process from what `/proc` has of it.
fn numbers(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
    let numbers = line.split_whitespace().map_while(|number| number.parse().ok());
    // 0: it is in no namespace below this one. -1: it has ended.
    numbers.take_while(|number| *number > 0).collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_process_is_known_by_its_numbers() {
        let (one, _other) = UnixStream::pair().unwrap();
        let peer = PeerProcess::of(&one).unwrap();
        let own = std::process::id();
        assert_eq!((peer.pid, peer.own_pid(), peer.shares_namespace()), (own, Some(own), true));
        let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap();
        assert_eq!(peer.owner, Owner::of(peer.uid, &cgroups));
        let status = fs::read_to_string("/proc/self/status").unwrap();
        assert!(is_of(&status, peer.uid) && !is_of(&status, peer.uid + 1) && !is_of("", 0));
        assert_eq!(numbers("Pid:\t12\nNSpid:\t12\t7\t1\n"), [12, 7, 1]);
        for none in ["NSpid:\t0\n", "NSpid:\t-1\n", "Pid:\t12\n", ""] {
            assert!(numbers(none).is_empty(), "{none}");
        }
    }
}
