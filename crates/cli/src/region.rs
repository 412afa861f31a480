//! Memory that a plugin moves data into and out of, cut into one slot for each message.

use std::{io, ptr::NonNull};

use crate::failure::{Context, Failure};

/// The region begins so far into its first page: NCCL's buffers are not page-aligned either.
const OFFSET: usize = 64;
/// Room behind each message that nobody may write to.
const GUARD: usize = 64;
/// What the guard holds.
const GUARD_BYTE: u8 = 0xa5;

/// How a region is cut: `slots` messages of up to `size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Most bytes of a message.
    pub size: usize,
    /// Messages.
    pub slots: usize,
}

impl Layout {
    const fn stride(self) -> usize {
        self.size.next_multiple_of(GUARD) + GUARD
    }

    /// Bytes that are registered.
    #[allow(clippy::len_without_is_empty, reason = "there is always a guard")]
    pub const fn len(self) -> usize {
        self.stride() * self.slots
    }
}

/// An anonymous mapping.
#[derive(Debug)]
pub struct Region {
    mapping: NonNull<u8>,
    layout: Layout,
}

impl Region {
    /// Maps memory; guards are written, the rest is zero.
    pub fn new(layout: Layout) -> Result<Self, Failure> {
        let len = layout.len() + OFFSET;
        // SAFETY: a new private mapping; no address is asked for.
        let addr = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_PRIVATE | libc::MAP_ANONYMOUS,
                -1,
                0,
            )
        };
        let mapping = match NonNull::new(addr.cast::<u8>()) {
            Some(mapping) if addr != libc::MAP_FAILED => mapping,
            _ => {
                return Err(io::Error::last_os_error())
                    .tool(format!("get {len} bytes of memory for messages"));
            }
        };
        // Large pages, as buffers registered for RDMA commonly have; with small ones a copy by the processor, which is
        // what softverbs does, takes twice the time. Where there are none, small ones do.
        // SAFETY: a hint about the mapping just made.
        unsafe { libc::madvise(addr, len, libc::MADV_HUGEPAGE) };
        let mut region = Self { mapping, layout };
        for slot in 0..layout.slots {
            region.guard(slot).fill(GUARD_BYTE);
        }
        Ok(region)
    }

    /// Where the registered part begins.
    pub fn addr(&self) -> *mut u8 {
        // SAFETY: within the mapping, which is OFFSET longer than the rest.
        unsafe { self.mapping.as_ptr().add(OFFSET) }
    }

    /// Returns how far behind [`addr`](Self::addr) a slot's message begins.
    pub fn slot_offset(&self, slot: usize) -> usize {
        assert!(slot < self.layout.slots, "slot {slot} of {}", self.layout.slots);
        slot * self.layout.stride()
    }

    fn slot_addr(&self, slot: usize) -> *mut u8 {
        // SAFETY: the slot is within the mapping.
        unsafe { self.addr().add(self.slot_offset(slot)) }
    }

    /// A slot's memory. Only while no request that uses it is under way: the plugin, its device or the peer would
    /// write at the same time.
    pub fn slot(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: `size` bytes of the mapping, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.slot_addr(slot), self.layout.size) }
    }

    fn guard(&mut self, slot: usize) -> &mut [u8] {
        let len = self.layout.stride() - self.layout.size;
        // SAFETY: what is left of the slot's stride after the message.
        unsafe { std::slice::from_raw_parts_mut(self.slot_addr(slot).add(self.layout.size), len) }
    }

    /// How far behind the message something was written, if it was. The guard is as new afterwards.
    pub fn overrun(&mut self, slot: usize) -> Option<usize> {
        let guard = self.guard(slot);
        let at = guard.iter().position(|b| *b != GUARD_BYTE)?;
        guard.fill(GUARD_BYTE);
        Some(at)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: our own mapping. Whoever drops a region has deregistered it, or ends the process.
        unsafe { libc::munmap(self.mapping.as_ptr().cast(), self.layout.len() + OFFSET) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_behind_a_message_is_seen_in_its_slot_alone() {
        let mut region = Region::new(Layout { size: 100, slots: 3 }).unwrap();
        region.slot(1).fill(1);
        assert_eq!([0, 1, 2].map(|s| region.overrun(s)), [None; 3]);
        // SAFETY: the byte is in the guard of slot 1.
        unsafe { region.slot_addr(1).add(102).write(0) };
        assert_eq!([0, 1, 2].map(|s| region.overrun(s)), [None, Some(2), None]);
        assert_eq!(region.overrun(1), None);
    }
}
