//! The listener that a service manager has passed (sd_listen_fds(3)).
//!
//! Plugins trust a socket by the user who listens. Where that is the service manager, the agent never
//! is root.

use std::env;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;

use nix::fcntl::{F_SETFD, FdFlag, fcntl};
use nix::sys::socket::{getsockopt, sockopt::AcceptConn};

/// The first descriptor that is passed.
const FIRST: i32 = 3;

/// Takes the listener at `path` that this process has got; `None` without one. Call it once, and before
/// another descriptor is made.
///
/// # Errors
/// A sentence: something else was passed.
pub fn passed_listener(path: &Path) -> Result<Option<UnixListener>, String> {
    let own = std::process::id().to_string();
    if !env::var("LISTEN_PID").is_ok_and(|pid| pid == own) {
        return Ok(None);
    }
    let count = env::var("LISTEN_FDS").unwrap_or_default();
    if count != "1" {
        return Err(format!("LISTEN_FDS is {count:?}: expected 1, the socket {}", path.display()));
    }
    // SAFETY: by the protocol the descriptor is this process's, and nothing else has it. If it is not open,
    // the first call fails.
    let socket = unsafe { OwnedFd::from_raw_fd(FIRST) };
    let failed = |e: nix::Error| format!("descriptor {FIRST} of LISTEN_FDS: {e}");
    fcntl(&socket, F_SETFD(FdFlag::FD_CLOEXEC)).map_err(failed)?;
    let listens = getsockopt(&socket, AcceptConn).map_err(failed)?;
    let listener = UnixListener::from(socket);
    let found = listener.local_addr().ok();
    match found.as_ref().and_then(|address| address.as_pathname()) {
        Some(found) if found == path && listens => Ok(Some(listener)),
        found => Err(format!(
            "descriptor {FIRST} of LISTEN_FDS is no listener at {}, but at {found:?}; ListenStream= of the \
             socket's unit must name it",
            path.display()
        )),
    }
}
