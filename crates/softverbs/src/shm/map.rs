//! A shared mapping of a file and typed, bounds-checked views of it.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::abi::border::{Errno, last_errno};

/// Types that may be looked at in shared memory: every bit pattern is valid, and every field is an
/// atomic or a lock, since other processes write to it.
///
/// # Safety
/// As said; `repr(C)`.
pub(crate) unsafe trait Shared {}

// SAFETY: an atomic integer.
unsafe impl Shared for std::sync::atomic::AtomicU64 {}
// SAFETY: an atomic integer.
unsafe impl Shared for std::sync::atomic::AtomicU8 {}

/// See the module.
pub(crate) struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: the memory is only reached through `Shared` types, which are `Sync` by their contract.
unsafe impl Sync for Mapping {}
// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`, which must have them.
    pub(crate) fn new(file: &File, len: usize) -> Result<Self, Errno> {
        let have = file.metadata().map_err(|_| last_errno())?.len();
        if have < len as u64 {
            return Err(Errno(libc::EPROTO));
        }
        // SAFETY: a fresh shared mapping at an address of the kernel's choice.
        let base = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                len,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_NORESERVE,
                file.as_raw_fd(),
                0,
            )
        };
        if base == libc::MAP_FAILED {
            return Err(last_errno());
        }
        let base = NonNull::new(base.cast()).ok_or(Errno(libc::ENOMEM))?;
        Ok(Self { base, len })
    }

    /// `n` values of `T` at `offset`; `None` if they are not wholly inside or not aligned.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, n: usize) -> Option<&[T]> {
        let end = n.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping (checked), aligned (the base is a page), and valid for any
        // bits and for writes by others (`Shared`).
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), n) })
    }

    /// One `T` at `offset`.
    pub(crate) fn at<T: Shared>(&self, offset: usize) -> Option<&T> {
        self.slice(offset, 1)?.first()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this length, and no reference outlives `self`.
        unsafe { libc::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
