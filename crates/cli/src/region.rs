//! Memory for messages, with one slot per message.

use std::{io, ptr::NonNull};

use crate::failure::{Context, Failure};

/// Where the region begins in its first page: NCCL's buffers are not page-aligned either.
const OFFSET: usize = 64;
/// Room behind each message, which must stay unchanged.
const GUARD: usize = 64;
/// The smallest page of Linux.
const PAGE: usize = 4096;
/// Content of the guard.
const GUARD_BYTE: u8 = 0xa5;

/// The layout of a region: `slots` messages of up to `size` bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Largest message in bytes.
    pub size: usize,
    /// Number of messages.
    pub slots: usize,
}

impl Layout {
    const fn stride(self) -> usize {
        self.size.next_multiple_of(GUARD) + GUARD
    }

    /// Returns the number of bytes to register.
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
    /// Maps memory. Guards are filled, the rest is zero.
    pub fn new(layout: Layout) -> Result<Self, Failure> {
        let len = layout.len() + OFFSET;
        // SAFETY: a new private mapping at an address of the kernel's choice.
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
        // Large pages, as buffers registered for RDMA usually have. With small pages, softverbs'
        // copies take twice the time. If there are no large pages, small ones are used.
        // SAFETY: a hint about the mapping just made.
        unsafe { libc::madvise(addr, len, libc::MADV_HUGEPAGE) };
        // All pages are there before anything is timed, as in memory that an adapter has pinned.
        for page in (0..len).step_by(PAGE) {
            // SAFETY: within the mapping, which has no other user yet.
            unsafe { mapping.as_ptr().add(page).write_volatile(0) };
        }
        let mut region = Self { mapping, layout };
        for slot in 0..layout.slots {
            region.guard(slot).fill(GUARD_BYTE);
        }
        Ok(region)
    }

    /// Returns where the registered part begins.
    pub fn addr(&self) -> *mut u8 {
        // SAFETY: within the mapping, which is OFFSET longer than the rest.
        unsafe { self.mapping.as_ptr().add(OFFSET) }
    }

    /// Returns the offset of a slot's message from [`addr`](Self::addr).
    pub fn slot_offset(&self, slot: usize) -> usize {
        assert!(slot < self.layout.slots, "slot {slot} of {}", self.layout.slots);
        slot * self.layout.stride()
    }

    fn slot_addr(&self, slot: usize) -> *mut u8 {
        // SAFETY: the slot is within the mapping.
        unsafe { self.addr().add(self.slot_offset(slot)) }
    }

    /// Returns a slot's memory. No request that uses the slot may be in flight: the plugin, its
    /// device or the peer would access it at the same time.
    pub fn slot(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: `size` bytes of the mapping, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.slot_addr(slot), self.layout.size) }
    }

    /// Returns a slot's memory and the bytes behind it, under the conditions of [`Region::slot`].
    pub fn guarded(&mut self, slot: usize) -> &mut [u8] {
        // SAFETY: the slot's stride, which is within the mapping, borrowed with `self`.
        unsafe { std::slice::from_raw_parts_mut(self.slot_addr(slot), self.layout.stride()) }
    }

    fn guard(&mut self, slot: usize) -> &mut [u8] {
        let len = self.layout.stride() - self.layout.size;
        // SAFETY: the rest of the slot's stride behind the message.
        unsafe { std::slice::from_raw_parts_mut(self.slot_addr(slot).add(self.layout.size), len) }
    }

    /// Returns the first changed byte behind a message, if there is one, as the distance from the
    /// message's end. Restores the guard.
    pub fn overrun(&mut self, slot: usize) -> Option<usize> {
        let guard = self.guard(slot);
        let at = guard.iter().position(|b| *b != GUARD_BYTE)?;
        guard.fill(GUARD_BYTE);
        Some(at)
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: `new` made the mapping. The owner of a registered region deregisters it before
        // dropping it.
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
