//! The mark of a comm and its condemned rails, as two threads share them.

use crate::sync::{AtomicU32, Ordering};

/// Whether a call on a comm must look closer, and the rails to give up.
#[derive(Debug)]
pub(crate) struct CommFlags {
    /// 1 if a look is due.
    marked: AtomicU32,
    /// The mask of the rails that the comm does not know of yet.
    condemned: AtomicU32,
    /// The mask of the late rails for which the comm is to ping.
    late: AtomicU32,
}

impl CommFlags {
    pub(crate) fn new() -> Self {
        Self { marked: AtomicU32::new(0), condemned: AtomicU32::new(0), late: AtomicU32::new(0) }
    }

    /// Returns whether a look is due: one load.
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.marked.load(Ordering::Acquire) != 0
    }

    /// Requests a look. The caller's writes from before are visible to the thread that clears the
    /// mark.
    pub(crate) fn mark(&self) {
        // A swap like the one that clears it: the later of the two reads the earlier one.
        self.marked.swap(1, Ordering::AcqRel);
    }

    /// Clears the mark, before the look.
    pub(crate) fn unmark(&self) {
        // A swap, not a store: it reads the mark that it removes, and with it what came before.
        self.marked.swap(0, Ordering::AcqRel);
    }

    /// Adds rails. The caller marks afterwards.
    pub(crate) fn condemn(&self, rails: u8) {
        self.condemned.fetch_or(rails.into(), Ordering::Release);
    }

    /// Removes rails that were made again.
    pub(crate) fn acquit(&self, rails: u8) {
        self.condemned.fetch_and(!u32::from(rails), Ordering::AcqRel);
    }

    /// Adds late rails. The caller marks afterwards.
    pub(crate) fn add_late(&self, rails: u8) {
        self.late.fetch_or(rails.into(), Ordering::Release);
    }

    /// Takes all late rails.
    pub(crate) fn take_late(&self) -> u8 {
        self.late.swap(0, Ordering::AcqRel) as u8
    }

    /// Takes all condemned rails.
    pub(crate) fn take_condemned(&self) -> u8 {
        self.condemned.swap(0, Ordering::AcqRel) as u8
    }
}
