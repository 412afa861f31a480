//! Files in the role of DMA-BUFs, which this process maps while they are registered. Any file works
//! that can be mapped shared and writable: a memfd, or a DMA-BUF whose exporter supports it
//! (udmabuf does, GPU drivers do not).

use std::ffi::c_int;
use std::fs::File;
use std::io::Seek;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use crate::abi::border::{Errno, last_errno};
use crate::log::fault;

/// Mapped pages of a file.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
    /// Offset of the registered range in the first page.
    offset: usize,
}

// SAFETY: an address and a length; only the kernel accesses the memory.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Returns the start of the registered range in this process.
    pub(crate) fn addr(&self) -> usize {
        self.start.expose_provenance() + self.offset
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and owned by `self`.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// Maps `len` bytes of the file, starting at `offset` from the file's position: a descriptor whose
/// position was moved stands for the rest of the file. As in the kernel, `iova` and `offset` must
/// be equal modulo the page size, and the file must be long enough. The file may be closed
/// afterwards.
pub(crate) fn map(fd: c_int, offset: u64, len: usize, iova: u64) -> Result<Mapping, Errno> {
    let reject = |why: String, errno| {
        fault!("ibv_reg_dmabuf_mr: {len} bytes at offset {offset} of file {fd}: {why}");
        Err(Errno(errno))
    };
    // SAFETY: takes an integer.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    if offset % page != iova % page {
        return reject(
            format!("iova {iova:#x} and the offset differ modulo the page size ({page})"),
            libc::EINVAL,
        );
    }
    if fd < 0 {
        return reject("no such file".to_owned(), libc::EBADF);
    }
    // SAFETY: the descriptor of the caller, which is not closed here. An invalid one only causes
    // errors.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    // A DMA-BUF has no position that can be read, and begins at its first byte.
    let start = (&*file).stream_position().unwrap_or(0);
    let Some(offset) = offset.checked_add(start) else {
        return reject("the offset is too large".to_owned(), libc::EINVAL);
    };
    let size = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(e) => return reject(e.to_string(), e.raw_os_error().unwrap_or(libc::EBADF)),
    };
    // A DMA-BUF has whole pages.
    let size = size.next_multiple_of(page);
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return reject(format!("the file has {size} bytes"), libc::EINVAL);
    }
    let inside = offset % page;
    let (first, bytes) = (offset - inside, len + inside as usize);
    let Ok(first) = libc::off_t::try_from(first) else {
        return reject("the offset is too large".to_owned(), libc::EINVAL);
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at an address that the kernel chooses.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, first) };
    if start == libc::MAP_FAILED {
        let errno = last_errno();
        return reject("the file cannot be mapped".to_owned(), errno.0);
    }
    Ok(Mapping { start, bytes, offset: inside as usize })
}
