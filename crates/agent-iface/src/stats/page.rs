//! Memory that a process shares with whoever reads its statistics: the one file here that has unsafe code.

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::os::fd::{IntoRawFd, OwnedFd};
use std::ptr;
use std::sync::Once;
use std::sync::atomic::{AtomicI32, AtomicPtr, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::resource::{Resource, getrlimit};

use super::layout::Page;
use super::{BadPage, MEMFD_NAME, STATS_SIZE};

/// The mapping of the page that this process writes, which a process forked from it must not write.
static OURS: AtomicPtr<c_void> = AtomicPtr::new(ptr::null_mut());
static OURS_FD: AtomicI32 = AtomicI32::new(-1);

/// An empty page of this process, which stays as long as the process, and its descriptor.
pub(super) fn create() -> io::Result<&'static Page> {
    // To exceed it would not only fail but raise SIGXFSZ, which ends a process.
    let (limit, _) = getrlimit(Resource::RLIMIT_FSIZE)?;
    if limit < STATS_SIZE as u64 {
        return Err(io::Error::other(format!(
            "{STATS_SIZE} bytes are needed, and the limit on the size of files (ulimit -f) is {limit}"
        )));
    }
    let file = File::from(memfd_create(MEMFD_NAME, MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING)?);
    file.set_len(STATS_SIZE as u64)?;
    let map = MmapOptions::new().len(STATS_SIZE).map_raw(&file)?;
    let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
    // Nobody but this mapping writes; kernels before 5.1 cannot promise it.
    if fcntl(&file, FcntlArg::F_ADD_SEALS(size | SealFlag::F_SEAL_FUTURE_WRITE)).is_err() {
        fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
    }
    handle_forks()?;
    OURS.store(map.as_mut_ptr().cast(), Ordering::Relaxed);
    // Readers come by the descriptor, so it stays open.
    OURS_FD.store(OwnedFd::from(file).into_raw_fd(), Ordering::Relaxed);
    let map = Box::leak(Box::new(map));
    // SAFETY: as in `view`, and a leaked mapping stays for good.
    Ok(unsafe { &*map.as_ptr().cast::<Page>() })
}

/// A page of another process, mapped.
#[derive(Debug)]
pub(super) struct Mapped(MmapRaw);

impl Mapped {
    /// Maps a file that cannot become smaller; any other could kill its reader (SIGBUS).
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
        // SAFETY: the mapping has STATS_SIZE bytes, the size of `Page`, starts on a page of memory, and is as long as `self`; the
        // seal on its file keeps the bytes there. `Page` is atomics only: valid for any bytes, and other processes may write.
        // Nobody stores through a view of a read-only mapping: the reader's code only loads.
        unsafe { &*self.0.as_ptr().cast::<Page>() }
    }
}

/// Has each process that is forked from now on write to memory of its own where its parent's page was.
fn handle_forks() -> io::Result<()> {
    static ONCE: Once = Once::new();
    let mut code = 0;
    // SAFETY: `leave_page` may run in a forked child, as it says, and the code of this library is never unmapped while
    // connections can be made: the plugin's file is linked with nodelete.
    ONCE.call_once(|| code = unsafe { libc::pthread_atfork(None, None, Some(leave_page)) });
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code)) }
}

/// In the child after a fork: system calls only, no lock, no allocation.
extern "C" fn leave_page() {
    let at = OURS.load(Ordering::Relaxed);
    if at.is_null() {
        return;
    }
    let (access, how) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED);
    // SAFETY: replaces exactly the mapping that `create` leaked, which nothing else may have taken. Atomics that are zero
    // are as valid as those before. A failure leaves the old mapping, which is no worse than without.
    unsafe { libc::mmap(at, STATS_SIZE, access, how, -1, 0) };
    let fd = OURS_FD.swap(-1, Ordering::Relaxed);
    if fd >= 0 {
        // SAFETY: the descriptor that `create` kept for the page, in this process a copy that nobody uses.
        unsafe { libc::close(fd) };
    }
}
