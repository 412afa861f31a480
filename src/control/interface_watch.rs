//! The addresses of this host, read anew only after they have changed.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, MsgFlags, NetlinkAddr, SockFlag, SockProtocol, SockType, bind, recv, socket,
};
use parking_lot::Mutex;

use super::interfaces::{Interface, interfaces};
use crate::error::Result;

/// The groups of rtnetlink(7) that announce changes of interfaces and of their addresses.
const GROUPS: i32 = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;

/// The addresses of this host's interfaces.
///
/// The kernel queues the announcement of a change on the socket before the change is visible to the
/// process that made it. A look at the socket is therefore enough, and no thread is needed.
#[derive(Debug, Default)]
pub(super) struct Interfaces(Mutex<Option<Known>>);

#[derive(Debug)]
struct Known {
    socket: OwnedFd,
    all: Arc<[Interface]>,
}

impl Interfaces {
    /// Returns the addresses of all interfaces that are up and running, loopback included.
    pub(super) fn now(&self) -> Result<Arc<[Interface]>> {
        let mut known = self.0.lock();
        if let Some(current) = &*known {
            if !current.changed() {
                return Ok(Arc::clone(&current.all));
            }
            // The announcements are read: a failure below must not leave the old addresses.
            *known = None;
        }
        // The socket is first: a change during the reading is announced on it.
        let socket = subscribe();
        let all: Arc<[Interface]> = interfaces()?.into();
        match socket {
            Ok(socket) => *known = Some(Known { socket, all: Arc::clone(&all) }),
            // Without announcements, as in some sandboxes, the addresses are read each time.
            Err(e) => tracing::debug!(target: "net", "no netlink socket, interfaces are read each time: {e}"),
        }
        Ok(all)
    }
}

fn subscribe() -> io::Result<OwnedFd> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Netlink, SockType::Raw, flags, SockProtocol::NetlinkRoute)?;
    bind(socket.as_raw_fd(), &NetlinkAddr::new(0, GROUPS as u32))?;
    Ok(socket)
}

impl Known {
    /// Reads the announcements. Returns whether there were any, or some are lost.
    fn changed(&self) -> bool {
        let (mut changed, mut buffer) = (false, [0; 4096]);
        loop {
            match recv(self.socket.as_raw_fd(), &mut buffer, MsgFlags::empty()) {
                Err(Errno::EAGAIN) => return changed,
                // ENOBUFS: the socket had no room for an announcement. It clears the error.
                Ok(_) | Err(Errno::EINTR | Errno::ENOBUFS) => changed = true,
                Err(_) => return true,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_change_nothing_is_read_again() {
        let interfaces = Interfaces::default();
        let first = interfaces.now().unwrap();
        assert!(first.iter().any(|i| i.addr.ip().is_loopback()));
        // Another process may change an address meanwhile.
        let same = (0..100).any(|_| Arc::ptr_eq(&interfaces.now().unwrap(), &interfaces.now().unwrap()));
        assert!(same);
    }
}
