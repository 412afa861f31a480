//! Registered host memory, as the processor reads and writes it.

use std::marker::PhantomData;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// Memory of NCCL's that the processor reaches. Adapters, GPUs and other threads use it at the same
/// time.
#[derive(Debug, Clone, Copy)]
pub(super) struct HostMemory<'a> {
    start: *mut u8,
    len: usize,
    _lives: PhantomData<&'a ()>,
}

impl HostMemory<'_> {
    /// # Safety
    /// `len` bytes at `addr` are mapped, readable and writable for the lifetime of the value.
    pub(super) unsafe fn new(addr: usize, len: usize) -> Self {
        Self { start: ptr::with_exposed_provenance_mut(addr), len, _lives: PhantomData }
    }

    /// Returns the place of `len` bytes at `offset`; `None` outside of the memory.
    fn at(self, offset: usize, len: usize) -> Option<*mut u8> {
        let fits = offset <= self.len && len <= self.len - offset;
        // SAFETY: the offset is inside of the memory, or at its end.
        fits.then(|| unsafe { self.start.add(offset) })
    }

    /// Copies bytes into the memory. Returns `None` if they do not fit.
    pub(super) fn write(self, offset: usize, bytes: &[u8]) -> Option<()> {
        let place = self.at(offset, bytes.len())?;
        // SAFETY: the place has room for them, and no Rust reference to NCCL's memory exists.
        unsafe { ptr::copy(bytes.as_ptr(), place, bytes.len()) };
        Some(())
    }

    /// Copies bytes out of the memory. Returns `None` if it has fewer.
    pub(super) fn read(self, offset: usize, bytes: &mut [u8]) -> Option<()> {
        let place = self.at(offset, bytes.len())?;
        // SAFETY: the place has as many bytes, and no Rust reference to NCCL's memory exists.
        unsafe { ptr::copy(place, bytes.as_mut_ptr(), bytes.len()) };
        Some(())
    }

    /// Adds to a word. What was written before is visible to all who see the sum. Returns `None`
    /// if no aligned word is at the offset.
    pub(super) fn add(self, offset: usize, value: u64) -> Option<()> {
        let place = self.at(offset, 8)?.cast::<u64>();
        if !place.is_aligned() {
            return None;
        }
        // SAFETY: an aligned word of the memory. Others access it as a whole, too: it is a signal.
        unsafe { AtomicU64::from_ptr(place) }.fetch_add(value, Ordering::Release);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_reached_outside() {
        let mut memory = [0_u64; 3];
        // SAFETY: an array that lives longer than the value.
        let host = unsafe { HostMemory::new(memory.as_mut_ptr().expose_provenance(), 24) };
        assert_eq!(host.write(20, b"abcd"), Some(()));
        assert_eq!(host.write(21, b"abcd"), None);
        assert_eq!(host.write(usize::MAX, b"a"), None);
        let mut read = [0; 4];
        assert_eq!(host.read(20, &mut read), Some(()));
        assert_eq!(&read, b"abcd");
        assert_eq!(host.read(21, &mut read), None);
        assert_eq!(
            (host.add(8, 5), host.add(8, 2), host.add(12, 1), host.add(24, 1)),
            (Some(()), Some(()), None, None)
        );
        assert_eq!(memory[1], 7);
    }
}
