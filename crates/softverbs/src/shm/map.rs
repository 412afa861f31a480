//! A shared mapping of a file, with typed and bounds-checked views.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::ptr::NonNull;

use crate::abi::border::{Errno, last_errno};

/// Types that may be accessed in shared memory.
///
/// # Safety
/// The type is `repr(C)`, every bit pattern is valid, and every field is an atomic or a lock,
/// because other processes write to it.
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

// SAFETY: the memory is only accessed through `Shared` types, which are `Sync` by their contract.
unsafe impl Sync for Mapping {}
// SAFETY: a mapping belongs to the process, not to a thread.
unsafe impl Send for Mapping {}

impl Mapping {
    /// Maps the first `len` bytes of `file`. Fails with EPROTO if the file is shorter.
    pub(crate) fn new(file: &File, len: usize) -> Result<Self, Errno> {
        let have = file.metadata().map_err(|_| last_errno())?.len();
        if have < len as u64 {
            return Err(Errno(libc::EPROTO));
        }
        // SAFETY: a new shared mapping at an address that the kernel chooses.
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

    /// Returns `n` values of `T` at `offset`, or `None` if they exceed the mapping or are not
    /// aligned.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, n: usize) -> Option<&[T]> {
        let end = n.checked_mul(size_of::<T>())?.checked_add(offset)?;
        if end > self.len || !offset.is_multiple_of(align_of::<T>()) {
            return None;
        }
        // SAFETY: inside the mapping and aligned (checked; the base is page-aligned), and valid for
        // any bits and for concurrent writes (`Shared`).
        Some(unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), n) })
    }

    /// Returns the `T` at `offset`.
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
