//! What the client and a connection share: the addresses to register, and the latest hint.

use std::cell::{Cell, RefCell};
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, Ordering};

use nccl_net_mpib_agent_iface::agent::Hint;
use nccl_net_mpib_agent_iface::agent::memory::Memory;
use parking_lot::Mutex;

/// Attempts to read an entry of a memory file that is being written.
const TRIES: usize = 4;

/// The addresses of a connection, as REGISTER has them. The source is this end, whichever way the
/// data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// This end on SOUT.
    pub sout_src: Ipv4Addr,
    /// The other end on SOUT.
    pub sout_dst: Ipv4Addr,
    /// This end on SUP.
    pub sup_src: Ipv4Addr,
    /// The other end on SUP.
    pub sup_dst: Ipv4Addr,
}

impl Addresses {
    /// Whether the hint is for the connection of these addresses.
    #[inline]
    pub(super) fn own(&self, hint: &Hint) -> bool {
        (hint.src, hint.dst) == (self.sout_src, self.sout_dst)
    }
}

/// The latest good hint of a connection. The client writes it, or points to where the send path
/// reads it.
#[derive(Debug, Default)]
pub(super) struct LatestHint {
    /// The last good share.
    pub(super) share: AtomicU16,
    /// There was a good hint, possibly 0.
    pub(super) hinted: AtomicBool,
    /// Incremented with each change of `flow`.
    changes: AtomicU32,
    flow: Mutex<Option<Flow>>,
}

/// An entry of a memory file, which the send path reads at each message. Without one the client
/// writes [`LatestHint::share`].
#[derive(Debug, Clone)]
pub(super) struct Flow {
    pub(super) memory: Arc<Memory>,
    pub(super) slot: u8,
    pub(super) addresses: Addresses,
}

impl LatestHint {
    /// Has the send path read this entry from now on.
    pub(super) fn point(&self, flow: Option<Flow>) {
        *self.flow.lock() = flow;
        self.changes.fetch_add(1, Ordering::Release);
    }

    /// Returns the last good hint, which is that of the entry if there is one.
    pub(super) fn now(&self) -> u16 {
        match &*self.flow.lock() {
            Some(flow) => flow.read(self),
            None => self.share.load(Ordering::Relaxed),
        }
    }

    /// Stores a good hint.
    #[inline]
    pub(super) fn store(&self, share: u16) {
        self.share.store(share, Ordering::Relaxed);
        self.hinted.store(true, Ordering::Relaxed);
    }
}

impl Flow {
    /// Returns the share of the entry, or the last good one while the entry is being written or has
    /// other addresses.
    #[inline]
    fn read(&self, latest: &LatestHint) -> u16 {
        let last = latest.share.load(Ordering::Relaxed);
        let entry = self.memory.flow(self.slot);
        match (0..TRIES).find_map(|_| entry.read()) {
            Some(hint) if self.addresses.own(&hint) => {
                let share = hint.share();
                if share != last || !latest.hinted.load(Ordering::Relaxed) {
                    latest.store(share);
                }
                share
            }
            _ => last,
        }
    }
}

/// The hint as the send path of one connection reads it. A copy of the pointer to the entry saves
/// the lock.
#[derive(Debug)]
pub(super) struct Reader {
    latest: Arc<LatestHint>,
    flow: RefCell<Option<Flow>>,
    /// [`LatestHint::changes`] when `flow` was copied.
    seen: Cell<u32>,
}

impl Reader {
    pub(super) fn new(latest: Arc<LatestHint>) -> Self {
        let seen = Cell::new(latest.changes.load(Ordering::Acquire).wrapping_sub(1));
        Self { latest, flow: RefCell::default(), seen }
    }

    /// Returns the share of this moment, `None` if there was no good hint yet.
    #[inline]
    pub(super) fn hint(&self) -> Option<u16> {
        let share = self.share();
        self.latest.hinted.load(Ordering::Relaxed).then_some(share)
    }

    /// Returns the share of this moment, or 0. Makes no system call and allocates nothing.
    #[inline]
    fn share(&self) -> u16 {
        let changes = self.latest.changes.load(Ordering::Acquire);
        if changes != self.seen.get() {
            self.copy(changes);
        }
        match &*self.flow.borrow() {
            Some(flow) => flow.read(&self.latest),
            None => self.latest.share.load(Ordering::Relaxed),
        }
    }

    /// Copies the pointer after a change, which is rare: a registration with another agent.
    #[cold]
    fn copy(&self, changes: u32) {
        // The client keeps a replaced file mapped until no connection has it any more, so nothing
        // is unmapped here.
        *self.flow.borrow_mut() = self.latest.flow.lock().clone();
        self.seen.set(changes);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nccl_net_mpib_agent_iface::agent::memory::MemoryWriter;

    use super::*;

    const ADDRESSES: Addresses = Addresses {
        sout_src: Ipv4Addr::new(10, 0, 0, 1),
        sout_dst: Ipv4Addr::new(10, 0, 0, 2),
        sup_src: Ipv4Addr::new(10, 1, 0, 1),
        sup_dst: Ipv4Addr::new(10, 1, 0, 2),
    };

    /// A memory file whose slot 3 is the connection's, and the slot.
    fn flow(share: u16) -> (MemoryWriter, Flow) {
        let mut writer = MemoryWriter::create().unwrap();
        writer.assign(3, ADDRESSES.sout_src, ADDRESSES.sout_dst, share);
        let file = writer.descriptor().as_fd().try_clone_to_owned().unwrap();
        (writer, Flow { memory: Arc::new(Memory::open(file).unwrap()), slot: 3, addresses: ADDRESSES })
    }

    //= agent-interface.md: a slot with other addresses gives no hint
    #[test]
    fn the_send_path_reads_the_entry_of_now_and_keeps_the_last_good_share() {
        let latest = Arc::new(LatestHint::default());
        let reader = Reader::new(Arc::clone(&latest));
        assert_eq!((reader.share(), latest.hinted.load(Ordering::Relaxed)), (0, false));
        // Of a hint file, which the client reads.
        latest.store(7);
        assert_eq!((reader.share(), latest.now()), (7, 7));
        let (mut writer, first) = flow(341);
        latest.point(Some(first));
        assert_eq!(reader.share(), 341);
        writer.set(3, 512);
        assert_eq!((reader.share(), latest.now()), (512, 512));
        writer.assign(3, [9, 9, 9, 9].into(), ADDRESSES.sout_dst, 100);
        assert_eq!(reader.share(), 512, "of another flow");
        writer.free(3);
        assert_eq!(reader.share(), 512);
        // Another agent, with another file, then one with a hint file.
        let (mut next, second) = flow(0);
        latest.point(Some(second));
        assert_eq!(reader.share(), 0);
        next.set(3, 1024);
        assert_eq!(reader.share(), 1024);
        latest.point(None);
        assert_eq!(reader.share(), 1024, "the last good one");
        latest.store(5);
        assert_eq!(reader.share(), 5);
    }

    #[test]
    fn the_first_hint_counts_even_if_it_is_nothing() {
        let latest = LatestHint::default();
        latest.point(Some(flow(0).1));
        assert_eq!(latest.now(), 0);
        assert!(latest.hinted.load(Ordering::Relaxed));
    }
}
