//! Closes what processes have passed without waiting for them.
//!
//! To close a file can take as long as somebody likes: it may be a socket that lingers, or lie in a file
//! system that a process serves. The same goes for a socket in which such a descriptor was not read.
//! The threads that close are made at the start: later there may be none.

use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;
use std::thread;

use mpib_host_view::Owner;
use nix::sys::signal::{SigSet, SigmaskHow};
use nix::sys::socket::{MsgFlags, Shutdown, recv, shutdown};
use parking_lot::{Condvar, Mutex};

use crate::quota::Quota;

/// Number of threads. One owner has one at a time, so as many can have one that waits.
const THREADS: usize = 32;
/// Bytes of a thread's stack.
const STACK: usize = 64 << 10;
/// Most descriptors of all owners that are not closed yet.
const WHOLE: usize = 8192;
/// From so many on, an owner gets no further connection.
const OF_OWNER: usize = 1024;

/// Closes descriptors, until it is dropped.
#[derive(Debug)]
pub(crate) struct Closer {
    shared: Arc<Shared>,
    whole: usize,
    of_owner: usize,
}

#[derive(Debug, Default)]
struct Shared {
    work: Mutex<Work>,
    /// Work has come, or the end.
    wake: Condvar,
}

/// What is to be closed.
#[derive(Debug, Default)]
struct Work {
    /// Descriptors that are not closed yet.
    pending: Quota,
    /// Those that no thread has taken. An owner with an entry has a thread or waits for one.
    queues: BTreeMap<Owner, Vec<OwnedFd>>,
    /// The owners who wait for a thread.
    waiting: VecDeque<Owner>,
    ends: bool,
}

impl Closer {
    /// Makes the threads.
    ///
    /// # Errors
    /// The system's.
    pub(crate) fn start() -> io::Result<Self> {
        Self::with_limits(WHOLE, OF_OWNER)
    }

    fn with_limits(whole: usize, of_owner: usize) -> io::Result<Self> {
        let closer = Self { shared: Arc::default(), whole, of_owner };
        // They begin with this mask: signals are for the thread that takes them.
        let mask = SigSet::all().thread_swap_mask(SigmaskHow::SIG_BLOCK)?;
        for _ in 0..THREADS {
            let shared = Arc::clone(&closer.shared);
            let thread = thread::Builder::new().name("close".into()).stack_size(STACK);
            thread.spawn(move || shared.close_all())?;
        }
        mask.thread_set_mask()?;
        Ok(closer)
    }

    /// Returns how many descriptors of an owner are not closed yet, if that is too many for a further
    /// connection.
    pub(crate) fn too_many(&self, owner: &Owner) -> Option<usize> {
        let held = self.shared.work.lock().pending.held(owner);
        (held >= self.of_owner).then_some(held)
    }

    /// Returns whether there is room for the socket of somebody who is refused: descriptors may have come
    /// with it.
    pub(crate) fn has_room(&self) -> bool {
        self.shared.work.lock().pending.all() < self.whole
    }

    /// Closes descriptors of an owner, soon. Nobody waits for that.
    pub(crate) fn close(&self, owner: &Owner, descriptors: Vec<OwnedFd>) {
        if descriptors.is_empty() {
            return;
        }
        let mut work = self.shared.work.lock();
        work.pending.add(owner, descriptors.len());
        if let Some(queue) = work.queues.get_mut(owner) {
            return queue.extend(descriptors);
        }
        work.queues.insert(owner.clone(), descriptors);
        work.waiting.push_back(owner.clone());
        self.shared.wake.notify_one();
    }

    /// Ends the connection of an owner.
    pub(crate) fn end(&self, owner: &Owner, socket: OwnedFd) {
        // Nothing comes after that. What has come before may have descriptors with it.
        let _ = shutdown(socket.as_raw_fd(), Shutdown::Both);
        let flags = MsgFlags::MSG_PEEK | MsgFlags::MSG_DONTWAIT;
        if recv(socket.as_raw_fd(), &mut [0], flags) != Ok(0) {
            self.close(owner, vec![socket]);
        }
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.shared.work.lock().ends = true;
        self.shared.wake.notify_all();
    }
}

impl Shared {
    /// Closes one descriptor after the other, of one owner after the other.
    fn close_all(&self) {
        let mut work = self.work.lock();
        while !work.ends {
            let Some(owner) = work.waiting.pop_front() else {
                self.wake.wait(&mut work);
                continue;
            };
            let Some(descriptor) = work.queues.get_mut(&owner).and_then(Vec::pop) else {
                work.queues.remove(&owner);
                continue;
            };
            drop(work);
            drop(descriptor);
            work = self.work.lock();
            work.pending.remove(&owner, 1);
            work.waiting.push_back(owner);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
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

    /// Has a pipe closed, and returns its end, which then has the end of the file.
    fn pipe(closer: &Closer, uid: u32) -> io::PipeReader {
        let (read, write) = io::pipe().unwrap();
        closer.close(&Owner::User(uid), vec![write.into()]);
        read
    }

    #[test]
    fn users_beyond_those_with_a_thread_hold_nobody_up_either() {
        let closer = Closer::start().unwrap();
        let users = 0..THREADS as u32 - 1;
        let stuck: Vec<TcpStream> = users
            .map(|uid| {
                let (socket, other) = lingering();
                // Two of each user: they have one thread.
                closer.close(&Owner::User(uid), vec![lingering().0, socket]);
                other
            })
            .collect();
        assert_eq!(pipe(&closer, 5000).read(&mut [0]).unwrap(), 0, "one thread is left");
        let (socket, other) = lingering();
        closer.close(&Owner::User(5001), vec![socket]);
        let mut waits = pipe(&closer, 5002);
        drop(other);
        assert_eq!(waits.read(&mut [0]).unwrap(), 0, "the thread is free again");
        drop(stuck);
    }

    //= agent-interface.md: who has too many descriptors that are not closed gets no further connection
    #[test]
    fn what_is_not_closed_counts_for_its_user() {
        let closer = Closer::with_limits(4, 2).unwrap();
        let (socket, other) = lingering();
        closer.close(&Owner::User(1), vec![socket]);
        assert_eq!(closer.too_many(&Owner::User(1)), None);
        let (read, _write) = io::pipe().unwrap();
        let pass = |count| {
            closer.close(&Owner::User(1), (0..count).map(|_| read.try_clone().unwrap().into()).collect())
        };
        pass(1);
        assert_eq!((closer.too_many(&Owner::User(1)), closer.too_many(&Owner::User(2))), (Some(2), None));
        assert!(closer.has_room());
        pass(2);
        assert!(!closer.has_room() && closer.too_many(&Owner::User(2)).is_none());
        drop(other);
        while closer.shared.work.lock().pending.all() > 0 {
            thread::yield_now();
        }
        assert!(closer.has_room() && closer.too_many(&Owner::User(1)).is_none());
    }

    #[test]
    fn what_was_passed_is_closed() {
        let closer = Closer::start().unwrap();
        assert_eq!(pipe(&closer, 1).read(&mut [0]).unwrap(), 0);
        for unread in [&b""[..], b"unread"] {
            let (one, mut other) = UnixStream::pair().unwrap();
            other.write_all(unread).unwrap();
            closer.end(&Owner::User(1), one.into());
            // What is not read resets the connection.
            assert!(other.read(&mut [0]).is_ok_and(|n| n == 0) || !unread.is_empty());
        }
    }
}
