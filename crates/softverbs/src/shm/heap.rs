//! The heap of a segment, for queues: power-of-two blocks. Only the owner allocates.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::AsRawFd;

use super::layout::{HEAP, SEGMENT};
use crate::abi::border::Errno;

/// The free space of a segment.
#[derive(Debug)]
pub(crate) struct Heap {
    next: usize,
    free: HashMap<usize, Vec<usize>>,
}

/// Allocates the pages of a range. If /dev/shm is full, this fails here instead of raising SIGBUS
/// later.
pub(crate) fn back(file: &File, offset: usize, len: usize) -> Result<(), Errno> {
    let too_big = |_| Errno(libc::ENOMEM);
    let offset = libc::off_t::try_from(offset).map_err(too_big)?;
    let len = libc::off_t::try_from(len).map_err(too_big)?;
    // SAFETY: an open file and a range; the call accesses no memory of this process.
    match unsafe { libc::posix_fallocate(file.as_raw_fd(), offset, len) } {
        0 => Ok(()),
        libc::EINTR => back(file, usize::try_from(offset).unwrap_or(0), usize::try_from(len).unwrap_or(0)),
        errno => {
            crate::log::fault!(
                "no room for {len} bytes in /dev/shm: {}; make it larger (mount -o remount,size=...) or free some",
                std::io::Error::from_raw_os_error(errno)
            );
            Err(Errno(libc::ENOMEM))
        }
    }
}

impl Heap {
    /// Creates an empty heap.
    pub(crate) fn new() -> Self {
        Self { next: HEAP, free: HashMap::new() }
    }

    fn class(len: usize) -> usize {
        len.max(4096).next_power_of_two()
    }

    /// Allocates `len` bytes (not zeroed) on a page boundary. Returns the offset.
    pub(crate) fn alloc(&mut self, file: &File, len: usize) -> Result<usize, Errno> {
        let class = Self::class(len);
        if let Some(offset) = self.free.get_mut(&class).and_then(Vec::pop) {
            return Ok(offset);
        }
        if class > SEGMENT - self.next {
            crate::log::fault!(
                "the queues of this process exceed {} MiB; make them smaller",
                (SEGMENT - HEAP) >> 20
            );
            return Err(Errno(libc::ENOMEM));
        }
        back(file, self.next, class)?;
        self.next += class;
        Ok(self.next - class)
    }

    /// Frees a block that `alloc` returned for `len`.
    pub(crate) fn free(&mut self, offset: usize, len: usize) {
        self.free.entry(Self::class(len)).or_default().push(offset);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_do_not_overlap_and_come_back() {
        let file = tempfile::tempfile().expect("a file");
        let mut heap = Heap::new();
        let a = heap.alloc(&file, 5000).expect("room");
        let b = heap.alloc(&file, 1).expect("room");
        assert_eq!((a, b), (HEAP, HEAP + 8192));
        heap.free(a, 5000);
        assert_eq!(heap.alloc(&file, 8192).expect("room"), a);
        assert_eq!(heap.alloc(&file, SEGMENT), Err(Errno(libc::ENOMEM)));
    }
}
