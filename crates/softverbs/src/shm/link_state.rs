//! The faults in effect on a device's link, as one word that every work request reads: flags, and
//! above them the number of removals of the device.

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use super::layout::{LABEL, LinkSlot};

/// The link is down.
pub(crate) const DOWN: u32 = 1;
/// Packets to the device are swallowed.
pub(crate) const SILENT_IN: u32 = 1 << 1;
/// Packets from the device are swallowed.
pub(crate) const SILENT_OUT: u32 = 1 << 2;
/// The device is removed.
pub(crate) const REMOVED: u32 = 1 << 3;
/// One removal. Objects of an earlier life of the device do not work any more.
pub(crate) const LIFE: u32 = 1 << 8;

const FLAGS: u32 = LIFE - 1;

impl LinkSlot {
    /// Returns the flags in effect.
    pub(crate) fn flags(&self) -> u32 {
        self.state.load(Acquire) & FLAGS
    }

    /// Returns the number of removals, shifted as in the word.
    pub(crate) fn life(&self) -> u32 {
        self.state.load(Acquire) & !FLAGS
    }

    /// Sets flags. Returns those that were not set before.
    pub(crate) fn set(&self, flags: u32) -> u32 {
        flags & !self.state.fetch_or(flags, AcqRel)
    }

    /// Clears flags. Returns those that were set before.
    pub(crate) fn clear(&self, flags: u32) -> u32 {
        flags & self.state.fetch_and(!flags, AcqRel)
    }

    /// Clears all flags. Returns those that were set before.
    pub(crate) fn clear_all(&self) -> u32 {
        self.clear(FLAGS)
    }

    /// Removes the device: its present objects never work again. Returns `false` if it is removed
    /// already.
    pub(crate) fn remove(&self) -> bool {
        let next = |state: u32| (state & REMOVED == 0).then(|| (state | REMOVED).wrapping_add(LIFE));
        self.state.fetch_update(AcqRel, Acquire, next).is_ok()
    }

    /// Stores the label of a new slot.
    pub(crate) fn set_label(&self, label: &str) {
        let bytes = label.bytes().chain(std::iter::repeat(0));
        for (to, from) in self.label.iter().zip(bytes) {
            to.store(from, Relaxed);
        }
    }

    /// Returns the label: name and first address of the device.
    pub(crate) fn label(&self) -> String {
        let bytes: [u8; LABEL] = std::array::from_fn(|i| self.label[i].load(Relaxed));
        let len = bytes.iter().position(|byte| *byte == 0).unwrap_or(LABEL);
        String::from_utf8_lossy(&bytes[..len]).into_owned()
    }
}
