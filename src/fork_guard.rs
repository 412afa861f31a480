//! Children that a program forks from the process in which the plugin was initialised.
//!
//! A child has its parent's devices, sockets and queue pairs, and none of its threads. Closing them
//! in good order would break the parent, and a wait for a thread would never end: [`check`] refuses
//! all calls in a child. What the child inherits must not outlive the parent either: while a child
//! holds a socket, the kernel sends no FIN when the parent dies, and the peer would wait for a dead
//! process. The handler of `pthread_atfork` therefore closes the descriptors of [`NotInherited`] in
//! the child. `O_CLOEXEC` does that only for a child that executes another program.
//!
//! The marks are statics: `pthread_atfork` passes no argument to its handlers, and a fork concerns
//! the process, not one instance of the plugin.

use std::io;
use std::mem::ManuallyDrop;
use std::ops::{Deref, DerefMut};
use std::os::fd::AsRawFd;
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Once, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use crate::error::{Error, Result};

/// Id of the process that called [`watch`]; 0 if none has.
static OWNER: AtomicU32 = AtomicU32::new(0);
/// In a child of that process its parent's id; 0 in any other process.
static PARENT: AtomicU32 = AtomicU32::new(0);
/// Whether this process was forked after the handlers were registered.
static FORKED: AtomicBool = AtomicBool::new(false);

/// A page with a 1. The kernel clears the page in every child that has its own memory, also in one
/// that was made without the handlers, by the system call `clone`. Null before [`watch`].
static MARK: AtomicPtr<AtomicU32> = AtomicPtr::new(ptr::null_mut());

/// The highest descriptor that a child closes: the kernel's default of `fs.nr_open`, minus 1.
const FD_MAX: usize = (1 << 20) - 1;
/// Descriptors that a child closes, one bit each. Untouched pages cost no memory.
static CLOSED_BY_CHILD: [AtomicU64; FD_MAX / 64 + 1] = [const { AtomicU64::new(0) }; FD_MAX / 64 + 1];
/// Words of that list that have been used.
static WORDS: AtomicUsize = AtomicUsize::new(0);
/// Read-locked while a descriptor is made and entered in the list, and while it is closed.
/// Write-locked during a fork: a child inherits no descriptor that is not in the list.
static MAKING: RwLock<()> = RwLock::new(());

/// Marks the children of this process from now on.
pub(crate) fn watch() -> Result<()> {
    register().map_err(|e| Error::io("pthread_atfork", e))?;
    OWNER.store(std::process::id(), Ordering::Relaxed);
    static ONCE: Once = Once::new();
    ONCE.call_once(make_mark);
    Ok(())
}

/// Makes the page of [`MARK`]. Without it, as on Linux before 4.14, only the handlers notice a child.
fn make_mark() {
    let (access, how) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at any address, which nothing else uses; its size is rounded up to a page.
    let page = unsafe { libc::mmap(ptr::null_mut(), size_of::<AtomicU32>(), access, how, -1, 0) };
    if page == libc::MAP_FAILED {
        return;
    }
    // SAFETY: the mapping from above.
    if unsafe { libc::madvise(page, size_of::<AtomicU32>(), libc::MADV_WIPEONFORK) } != 0 {
        // SAFETY: as above; nothing has its address.
        unsafe { libc::munmap(page, size_of::<AtomicU32>()) };
        return;
    }
    let mark = page.cast::<AtomicU32>();
    // SAFETY: writable, page-aligned, and never unmapped; zeros are a valid atomic.
    unsafe { (*mark).store(1, Ordering::Relaxed) };
    MARK.store(mark, Ordering::Release);
}

/// Treats a child that was made without the handlers as they treat others.
fn notice_clone() {
    let mark = MARK.load(Ordering::Acquire);
    // SAFETY: null, or the page that `make_mark` has made, which is never unmapped.
    if unsafe { mark.as_ref() }.is_some_and(|mark| mark.load(Ordering::Relaxed) == 0) && !is_child() {
        in_child();
    }
}

/// Registers the handlers, once.
fn register() -> io::Result<()> {
    static RESULT: OnceLock<i32> = OnceLock::new();
    // SAFETY: the handlers take nothing, call only what may be called around a fork, and are in a
    // file that is never unloaded.
    let failed =
        RESULT.get_or_init(|| unsafe { libc::pthread_atfork(Some(before), Some(in_parent), Some(in_child)) });
    if *failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(*failed)) }
}

/// Waits until no thread is making or closing a descriptor.
extern "C" fn before() {
    // In a child the lock stays locked: a thread of the parent may have waited for it.
    if !FORKED.load(Ordering::Relaxed) {
        std::mem::forget(MAKING.write());
    }
}

extern "C" fn in_parent() {
    if !FORKED.load(Ordering::Relaxed) {
        // SAFETY: `before` has locked it in this thread and forgotten the guard.
        unsafe { MAKING.force_unlock_write() };
    }
}

/// Calls nothing but `close`: locks and the allocator may be in use by threads that do not exist
/// here.
extern "C" fn in_child() {
    PARENT.store(OWNER.load(Ordering::Relaxed), Ordering::Relaxed);
    if FORKED.swap(true, Ordering::Relaxed) {
        return;
    }
    let used = WORDS.load(Ordering::Relaxed).min(CLOSED_BY_CHILD.len());
    for (i, word) in CLOSED_BY_CHILD[..used].iter().enumerate() {
        let mut bits = word.load(Ordering::Relaxed);
        while bits != 0 {
            let fd = i * 64 + bits.trailing_zeros() as usize;
            bits &= bits - 1;
            // SAFETY: a descriptor of the parent, whose owner in this process never uses it:
            // `NotInherited` does not close it here, and `check` refuses all calls.
            unsafe { libc::close(fd as i32) };
        }
    }
}

/// Keeps forks waiting while the returned guard lives: a descriptor is made and entered in the list
/// of what a child closes, or removed and closed.
pub(crate) fn no_fork() -> RwLockReadGuard<'static, ()> {
    MAKING.read()
}

/// Enters `fd` in the list of what a child closes, or removes it. A negative number is none.
pub(crate) fn close_in_children(fd: i32, close: bool) {
    let Ok(fd) = usize::try_from(fd) else { return };
    let Some(word) = CLOSED_BY_CHILD.get(fd / 64) else { return };
    let bit = 1 << (fd % 64);
    if close {
        word.fetch_or(bit, Ordering::Relaxed);
        WORDS.fetch_max(fd / 64 + 1, Ordering::Relaxed);
    } else {
        word.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// An owner of a descriptor that forked children close at once.
#[derive(Debug)]
pub(crate) struct NotInherited<T: AsRawFd>(ManuallyDrop<T>);

impl<T: AsRawFd> NotInherited<T> {
    /// Calls `make`, which returns the owner of a new descriptor. No fork happens meanwhile.
    pub(crate) fn new(make: impl FnOnce() -> io::Result<T>) -> io::Result<Self> {
        register()?;
        if FORKED.load(Ordering::Relaxed) {
            return Err(io::Error::other("this process was forked from one that uses the plugin"));
        }
        let _guard = no_fork();
        let owner = make()?;
        close_in_children(owner.as_raw_fd(), true);
        Ok(Self(ManuallyDrop::new(owner)))
    }
}

impl<T: AsRawFd> Deref for NotInherited<T> {
    type Target = T;
    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: AsRawFd> DerefMut for NotInherited<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T: AsRawFd> Drop for NotInherited<T> {
    fn drop(&mut self) {
        // In a child the descriptor is closed, and its number may be that of another file.
        if FORKED.load(Ordering::Relaxed) {
            return;
        }
        let _guard = no_fork();
        close_in_children(self.0.as_raw_fd(), false);
        // SAFETY: dropped here only, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

/// Returns whether this process is a child of one that has called [`watch`]: one load.
#[inline(always)]
pub(crate) fn is_child() -> bool {
    PARENT.load(Ordering::Relaxed) != 0
}

/// Returns an error in a child of a process that has called [`watch`]. The data path has
/// [`is_child`], which does not notice a child that was made without the handlers.
#[inline]
pub(crate) fn check() -> Result<()> {
    notice_clone();
    if is_child() { Err(refusal(PARENT.load(Ordering::Relaxed))) } else { Ok(()) }
}

#[cold]
#[inline(never)]
fn refusal(parent: u32) -> Error {
    Error::Usage(format!(
        "this process was forked from process {parent} after NCCL was initialised there, and has neither the plugin's threads nor \
         a right to its parent's adapters: initialise NCCL after the fork, or start worker processes by spawn"
    ))
}
