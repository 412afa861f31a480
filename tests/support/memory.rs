//! Memory for tests: private pages, and files that stand in for a GPU's memory.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::fs::FileExt;
use std::sync::atomic::AtomicU8;
use std::sync::atomic::Ordering::Acquire;

/// A multiple of every page size.
pub const PAGE: usize = 1 << 16;

/// Bytes of a page of this system.
pub fn page() -> usize {
    // SAFETY: takes a name.
    unsafe { libc::sysconf(libc::_SC_PAGESIZE) as usize }
}

/// An address where nothing is mapped, like GPU memory, which has no address of the host.
pub const AT: usize = 0x7_0000_0000;

/// Newly mapped pages, zeroed.
pub struct Pages {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: an address; the bytes are reached by one thread at a time.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub fn new(len: usize) -> Self {
        let (access, flags) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: fresh memory at a place of the kernel's choice.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), len, access, flags, -1, 0) };
        assert_ne!(start, libc::MAP_FAILED);
        Self { start, len }
    }

    pub fn addr(&self) -> usize {
        self.start.expose_provenance()
    }

    /// What is there now.
    pub fn read(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: inside of the mapping.
        unsafe { std::slice::from_raw_parts(self.start.cast::<u8>().add(at), len).to_vec() }
    }

    /// Like [`read`](Self::read), while a NIC may write there.
    pub fn poll(&self, at: usize, len: usize) -> Vec<u8> {
        assert!(at + len <= self.len);
        // SAFETY: inside of the mapping.
        let bytes = unsafe { std::slice::from_raw_parts(self.start.cast::<AtomicU8>().add(at), len) };
        bytes.iter().map(|byte| byte.load(Acquire)).collect()
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len);
        // SAFETY: inside of the mapping, and other memory than it.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.start.cast::<u8>().add(at), bytes.len())
        };
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// A file in memory, in the place of a DMA-BUF.
#[derive(Debug)]
pub struct Memfd(File);

impl Memfd {
    pub fn new(len: usize) -> Self {
        // SAFETY: a C string.
        let fd = unsafe { libc::memfd_create(c"dmabuf".as_ptr(), libc::MFD_CLOEXEC) };
        assert!(fd >= 0);
        // SAFETY: just made, and nobody else's.
        let file = unsafe { File::from_raw_fd(fd) };
        file.set_len(len as u64).unwrap();
        Self(file)
    }

    pub fn fd(&self) -> i32 {
        self.0.as_raw_fd()
    }

    /// Another descriptor of the file, for NCCL to close.
    pub fn again(&self) -> Self {
        Self(self.0.try_clone().unwrap())
    }

    pub fn read(&self, at: u64, len: usize) -> Vec<u8> {
        softverbs::land_due();
        let mut bytes = vec![0; len];
        self.0.read_exact_at(&mut bytes, at).unwrap();
        bytes
    }

    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.0.write_all_at(bytes, at).unwrap();
    }
}

/// Registrations that there are.
pub fn mrs() -> usize {
    softverbs::objects().unwrap().mrs
}

/// Registrations made while `f` runs, with those that were removed since.
pub fn registered<T>(f: impl FnOnce() -> T) -> (u64, T) {
    let before = softverbs::registrations_made();
    let result = f();
    (softverbs::registrations_made() - before, result)
}
