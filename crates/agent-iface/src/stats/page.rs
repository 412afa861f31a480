//! Makes the page of this process and copies those of others. This is the only file of the module
//! with unsafe code.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::{ptr, slice};

use memmap2::MmapOptions;
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::resource::{Resource, getrlimit};

use super::layout::{Entry, Header, Page};
use super::operations::CommunicatorRecord;
use super::ports::PortRecord;
use super::{BadPage, MEMFD_NAME, STATS_SIZE, STATS_SIZE_WITHOUT_OPERATIONS};
use crate::memfd;

/// The mapping of this process's page. A forked child must not write to it.
static OURS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static OURS_FD: AtomicI32 = AtomicI32::new(-1);

/// Creates an empty page. The mapping and the descriptor stay until the process ends.
pub(super) fn create() -> io::Result<&'static Page> {
    // Exceeding the limit also raises SIGXFSZ, which kills the process.
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if limit < STATS_SIZE as u64 {
        return Err(io::Error::other(format!(
            "the page needs {STATS_SIZE} bytes, but the limit on the size of files (ulimit -f) is {limit}"
        )));
    }
    let file = memfd::sealable(MEMFD_NAME)?;
    // Takes the memory now. Without it, a write to the page when memory is short raises SIGBUS,
    // which kills the process.
    let size = i64::try_from(STATS_SIZE).map_err(io::Error::other)?;
    fallocate(&file, FallocateFlags::empty(), 0, size)
        .map_err(|e| io::Error::other(format!("there is no memory for its {STATS_SIZE} bytes: {e}")))?;
    let map = MmapOptions::new().len(STATS_SIZE).map_raw(&file)?;
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    // Forbids writes except through this mapping; kernels before 5.1 do not have this seal.
    if fcntl(&file, FcntlArg::F_ADD_SEALS(size | SealFlag::F_SEAL_FUTURE_WRITE)).is_err() {
        fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
    }
    handle_forks()?;
    OURS.store(map.as_mut_ptr().cast(), Ordering::Relaxed);
    // Readers find the page through the descriptor. It stays open.
    OURS_FD.store(OwnedFd::from(file).into_raw_fd(), Ordering::Relaxed);
    let page = map.as_ptr().cast::<Page>();
    std::mem::forget(map);
    // SAFETY: the mapping has STATS_SIZE bytes, which is the size of `Page`, and is page-aligned. It
    // was forgotten, so it is never unmapped; the seals keep its file from shrinking. `Page` consists
    // of atomics, which are valid for any bytes.
    Ok(unsafe { &*page })
}

/// The page of another process. It is copied by `pread` and never mapped: a reader of a file
/// that changes gets an error instead of a signal, and no memory is charged to it.
#[derive(Debug)]
pub(super) struct PageFile(File);

/// A part of the page that is copied at once.
///
/// # Safety
/// Every bit pattern is a valid value, as of a struct of atomics.
pub(super) unsafe trait Part: Sized {}

// SAFETY: they consist of atomics, at any depth.
unsafe impl Part for AtomicU64 {}
// SAFETY: as above.
unsafe impl Part for Header {}
// SAFETY: as above.
unsafe impl Part for PortRecord {}
// SAFETY: as above.
unsafe impl Part for Entry {}
// SAFETY: as above.
unsafe impl Part for CommunicatorRecord {}

impl PageFile {
    /// Checks the kind and the size of a file. The seal comes first: only files in memory have one,
    /// and no call on such a file waits for anybody.
    pub(super) fn new(file: &File) -> Result<Self, BadPage> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
            return Err(BadPage::Unsealed);
        }
        let found = file.metadata()?.len();
        if ![STATS_SIZE, STATS_SIZE_WITHOUT_OPERATIONS].contains(&usize::try_from(found).unwrap_or(0)) {
            return Err(BadPage::Size(found));
        }
        let page = Self(file.try_clone()?);
        // A descriptor that is not open for reading is no page, either.
        page.read(0, &mut [0; 4])?;
        Ok(page)
    }

    /// Copies a part of the page, its words in no defined order. A part that cannot be read, which
    /// takes a failure of the host's swap space, is zero.
    pub(super) fn copy<T: Part>(&self, at: usize) -> T {
        let mut part = MaybeUninit::<T>::zeroed();
        // SAFETY: the memory of `part`, which is initialised and has no other user meanwhile.
        let bytes = unsafe { slice::from_raw_parts_mut(part.as_mut_ptr().cast::<u8>(), size_of::<T>()) };
        if self.read(at, bytes).is_err() {
            bytes.fill(0);
        }
        // SAFETY: initialised, and any bytes are a valid `Part`.
        unsafe { part.assume_init() }
    }

    fn read(&self, at: usize, bytes: &mut [u8]) -> io::Result<()> {
        self.0.read_exact_at(bytes, at as u64)
    }

    /// Checks that the file has this size.
    pub(super) fn has_size(&self, size: usize) -> Result<(), BadPage> {
        let found = self.0.metadata()?.len();
        if found == size as u64 { Ok(()) } else { Err(BadPage::Size(found)) }
    }

    /// Returns who has made the file, and its number.
    pub(super) fn identity(&self) -> io::Result<(u32, u64)> {
        self.0.metadata().map(|file| (file.uid(), file.ino()))
    }
}

/// Returns the descriptor of this process's page, to be passed to a reader; `None` without a page.
pub(super) fn descriptor() -> Option<BorrowedFd<'static>> {
    let fd = OURS_FD.load(Ordering::Relaxed);
    // SAFETY: `create` has leaked it. It is closed in a forked child alone, where it is -1 from then on.
    (fd >= 0).then(|| unsafe { BorrowedFd::borrow_raw(fd) })
}

/// Installs a fork handler: a forked child gets private memory in place of its parent's page.
fn handle_forks() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut code = 0;
    // SAFETY: `replace_page` is async-signal-safe, as a fork handler of a threaded process must be.
    // Its code is never unmapped: the plugin is linked with nodelete.
    ONCE.call_once(|| code = unsafe { libc::pthread_atfork(None, None, Some(replace_page)) });
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// Runs in the child after a fork: only system calls, no lock, no allocation.
extern "C" fn replace_page() {
    let at = OURS.load(Ordering::Relaxed);
    if at.is_null() {
        return;
    }
    let (access, how) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: replaces exactly the mapping that `create` keeps for ever, which nothing else can have
    // replaced. Zeroed atomics are valid. If mmap fails, the old mapping stays.
    unsafe { libc::mmap(at, STATS_SIZE, access, how, -1, 0) };
    let fd = OURS_FD.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the child's copy of the descriptor that `create` leaked; nothing else uses it.
        unsafe { libc::close(fd) };
    }
}
