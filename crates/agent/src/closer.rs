//! Closes what processes have passed without waiting for them.
//!
//! To close a file can take as long as somebody likes: it may be a socket that lingers, or lie in a file
//! system that a process serves. The same goes for a socket in which such a descriptor was not read.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use parking_lot::Mutex;

/// Most threads, one for each user whose descriptors are being closed.
const THREADS: usize = 64;

/// What is to be closed, by user. A user with an entry has a thread.
type Queues = Mutex<BTreeMap<u32, Vec<OwnedFd>>>;

/// Closes descriptors.
#[derive(Debug, Clone, Default)]
pub(crate) struct Closer(Arc<Queues>);

impl Closer {
    /// Closes descriptors of a user, soon. Others do not wait for that.
    pub(crate) fn close(&self, uid: u32, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        let mut queues = self.0.lock();
        if let Some(queue) = queues.get_mut(&uid) {
            return queue.extend(descriptors);
        }
        if queues.len() < THREADS {
            queues.insert(uid, descriptors);
            drop(queues);
            let shared = Arc::clone(&self.0);
            if thread::Builder::new().name("close".into()).spawn(move || close_all(&shared, uid)).is_ok() {
                return;
            }
            close_all(&self.0, uid);
        }
    }

    /// Ends the connection of a user.
    pub(crate) fn end(&self, uid: u32, socket: OwnedFd) {
        // Nothing comes after that. What has come before may have descriptors with it.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if recv(socket.as_raw_fd(), &mut [0], flags) != Ok(0) {
            self.close(uid, vec![socket]);
        }
    }
}

/// Closes what there is of a user, until nothing is left.
fn close_all(queues: &Queues, uid: u32) {
    loop {
        let mut all = queues.lock();
        match all.get_mut(&uid).map(std::mem::take) {
            Some(queue) if !queue.is_empty() => {
                drop(all);
                drop(queue);
            }
            _ => return drop(all.remove(&uid)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Read};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn what_was_passed_is_closed() {
        let closer = Closer::default();
        let (mut read, write) = io::pipe().unwrap();
        closer.close(1, vec![write.into()]);
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
        for unread in [&b""[..], b"unread"] {
            let (one, mut other) = UnixStream::pair().unwrap();
            io::Write::write_all(&mut other, unread).unwrap();
            closer.end(1, one.into());
            // What is not read resets the connection.
            assert!(other.read(&mut [0]).is_ok_and(|n| n == 0) || !unread.is_empty());
        }
    }
}
