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

/// Most users whose descriptors are being closed by a thread for each.
const THREADS: usize = 64;
/// Stands for all users beyond those, who share a thread. No user has this number.
const OTHERS: u32 = u32::MAX;

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
        let uid = if queues.contains_key(&uid) || queues.len() < THREADS { uid } else { OTHERS };
        if let Some(queue) = queues.get_mut(&uid) {
            return queue.extend(descriptors);
        }
        queues.insert(uid, descriptors);
        drop(queues);
        let shared = Arc::clone(&self.0);
        if thread::Builder::new().name("close".into()).spawn(move || close_all(&shared, uid)).is_err() {
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
    use std::io::{self, Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use nix::sys::socket::{setsockopt, sockopt::Linger};

    use super::*;

    /// The close of such a socket takes an hour, unless the other end reads.
    fn lingering() -> (OwnedFd, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (theirs, _) = listener.accept().unwrap();
        ours.set_nonblocking(true).unwrap();
        while ours.write(&[0; 65536]).is_ok() {}
        ours.set_nonblocking(false).unwrap();
        setsockopt(&ours, Linger, &libc::linger { l_onoff: 1, l_linger: 3600 }).unwrap();
        (ours.into(), theirs)
    }

    #[test]
    fn users_beyond_those_with_a_thread_hold_nobody_up_either() {
        let closer = Closer::default();
        // As many users whose descriptors are being closed.
        closer.0.lock().extend((0..THREADS as u32).map(|uid| (uid, Vec::new())));
        let ends = [5000, 5001].map(|uid| {
            let (socket, other) = lingering();
            closer.close(uid, vec![socket]);
            other
        });
        for mut other in ends {
            other.read_to_end(&mut Vec::new()).unwrap();
        }
    }

    #[test]
    fn what_was_passed_is_closed() {
        let closer = Closer::default();
        let (mut read, write) = io::pipe().unwrap();
        closer.close(1, vec![write.into()]);
        assert_eq!(read.read(&mut [0]).unwrap(), 0);
        for unread in [&b""[..], b"unread"] {
            let (one, mut other) = UnixStream::pair().unwrap();
            other.write_all(unread).unwrap();
            closer.end(1, one.into());
            // What is not read resets the connection.
            assert!(other.read(&mut [0]).is_ok_and(|n| n == 0) || !unread.is_empty());
        }
    }
}
