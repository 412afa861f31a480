//! Files that stand for DMA-BUFs: mapped by this process as long as they are registered. Any file
//! serves that can be mapped shared and written to, a memfd as well as a real DMA-BUF whose
//! exporter allows that (udmabuf does, a GPU's driver does not).

use std::ffi::c_int;
use std::fs::File;
use std::mem::ManuallyDrop;
use std::os::fd::FromRawFd;

use crate::abi::border::{Errno, last_errno};
use crate::log::fault;

/// Whole pages of a file.
pub(crate) struct Mapping {
    start: *mut libc::c_void,
    bytes: usize,
    /// Of what is registered, in its first page.
    offset: usize,
}

// SAFETY: an address and a length; the memory is reached through the kernel only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Where what is registered begins in this process.
    pub(crate) fn addr(&self) -> usize {
        self.start.expose_provenance() + self.offset
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody else's.
        unsafe { libc::munmap(self.start, self.bytes) };
    }
}

/// `len` bytes from `offset` of the file on, by the kernel's rules: `iova` is at the same place of
/// a page, and the file has the bytes. The file may be closed after it.
pub(crate) fn map(fd: c_int, offset: u64, len: usize, iova: u64) -> Result<Mapping, Errno> {
    let refuse = |why: String, errno| {
        fault!("ibv_reg_dmabuf_mr: {len} bytes from offset {offset} of file {fd} on: {why}");
        Err(Errno(errno))
    };
    // SAFETY: takes a name.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    if offset % page != iova % page {
        return refuse(format!("iova {iova:#x} is not at the same place of a page"), libc::EINVAL);
    }
    if fd < 0 {
        return refuse("no such file".to_owned(), libc::EBADF);
    }
    // SAFETY: the caller's; not closed here, and one that does not exist only fails.
    let file = ManuallyDrop::new(unsafe { File::from_raw_fd(fd) });
    let size = match file.metadata() {
        Ok(metadata) => metadata.len(),
        Err(e) => return refuse(e.to_string(), e.raw_os_error().unwrap_or(libc::EBADF)),
    };
    // A DMA-BUF has whole pages.
    let size = size.next_multiple_of(page);
    if offset.checked_add(len as u64).is_none_or(|end| end > size) {
        return refuse(format!("it has {size}"), libc::EINVAL);
    }
    let inside = offset % page;
    let (first, bytes) = (offset - inside, len + inside as usize);
    let Ok(first) = libc::off_t::try_from(first) else {
        return refuse("the offset is too large".to_owned(), libc::EINVAL);
    };
    let access = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a new mapping at a place of the kernel's choice.
    let start = unsafe { libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, first) };
    if start == libc::MAP_FAILED {
        let errno = last_errno();
        return refuse("it cannot be mapped".to_owned(), errno.0);
    }
    Ok(Mapping { start, bytes, offset: inside as usize })
}
