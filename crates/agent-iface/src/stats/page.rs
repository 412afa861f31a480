//! Maps the page. This is the only file of the module with unsafe code.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};
use nix::sys::resource::{Resource, getrlimit};

use super::layout::Page;
use super::{BadPage, MEMFD_NAME, STATS_SIZE};
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
    // SAFETY: as in `Mapped::view`; the mapping was forgotten, so it is never unmapped.
    Ok(unsafe { &*page })
}

/// The mapped page of another process.
#[derive(Debug)]
pub(super) struct Mapped(MmapRaw);

impl Mapped {
    /// Maps a file that is sealed against shrinking. If a mapped file shrinks, SIGBUS kills its
    /// reader.
    pub(super) fn new(file: &File) -> Result<Self, BadPage> {
        let seals = fcntl(file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(SealFlag::F_SEAL_SHRINK)) {
            return Err(BadPage::Unsealed);
        }
        let found = file.metadata()?.len();
        if found != STATS_SIZE as u64 {
            return Err(BadPage::Size(found));
        }
        Ok(Self(MmapOptions::new().len(STATS_SIZE).map_raw_read_only(file)?))
    }

    pub(super) fn view(&self) -> &Page {
        // SAFETY: the mapping has STATS_SIZE bytes, which is the size of `Page`, is page-aligned,
        // and lives as long as `self`; the seal keeps the file from shrinking. `Page` consists of
        // atomics, which are valid for any bytes and for concurrent writes of other processes. The
        // mapping is read-only, and the reader's code only loads.
        unsafe { &*self.0.as_ptr().cast::<Page>() }
    }
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
