//! A mapped file in memory.

use std::{
    ffi::CStr,
    fs::OpenOptions,
    io::{self, Seek, SeekFrom},
    os::fd::{AsRawFd, FromRawFd, OwnedFd},
    ptr,
};

const NAME: &CStr = c"softcuda";

/// Makes a file in memory of this length, filled with zeros.
pub(super) fn memfd(len: usize) -> io::Result<OwnedFd> {
    // SAFETY: a C string and a flag; the result is checked.
    let fd = unsafe { libc::memfd_create(NAME.as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a descriptor that was just opened and has no other owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    let len = libc::off_t::try_from(len).map_err(io::Error::other)?;
    // SAFETY: a valid descriptor.
    if unsafe { libc::ftruncate(fd.as_raw_fd(), len) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(fd)
}

/// A file in memory and its mapping, which is removed when it is dropped.
#[derive(Debug)]
pub(super) struct Mapping {
    base: usize,
    len: usize,
    file: OwnedFd,
}

impl Mapping {
    /// Maps a new file.
    pub(super) fn anonymous(len: usize) -> io::Result<Self> {
        Self::of(memfd(len)?, len)
    }

    /// Maps the first `len` bytes of a file.
    pub(super) fn of(file: OwnedFd, len: usize) -> io::Result<Self> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: the kernel chooses an address that nothing uses.
        let base =
            unsafe { libc::mmap(ptr::null_mut(), len, protection, libc::MAP_SHARED, file.as_raw_fd(), 0) };
        if base == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Self { base: base.expose_provenance(), len, file })
    }

    pub(super) fn base(&self) -> usize {
        self.base
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: mapped by `of` and owned by `self`. The program has freed the memory.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(self.base), self.len) };
    }
}

/// Opens a file again. The position of the new descriptor is the first byte of the part that it
/// stands for: softverbs takes the position of a file as the start of a DMA-BUF.
pub(super) fn window(file: &OwnedFd, start: usize) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let mut file = OpenOptions::new().read(true).write(true).open(path)?;
    file.seek(SeekFrom::Start(start as u64))?;
    Ok(file.into())
}
