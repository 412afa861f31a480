//! A lock in shared memory that survives the death of its holder.

use std::cell::UnsafeCell;
use std::marker::PhantomData;

use crate::log::fault;

/// `pthread_mutex_t`, process-shared and robust. Zeroed memory must be initialised with
/// [`RobustMutex::init`].
#[repr(transparent)]
pub(crate) struct RobustMutex(UnsafeCell<libc::pthread_mutex_t>);

// SAFETY: threads may use a pthread mutex concurrently; processes too, if it is process-shared.
unsafe impl Sync for RobustMutex {}
// SAFETY: it is not tied to the thread that made it.
unsafe impl Send for RobustMutex {}

/// A held lock. Dropping it unlocks.
pub(crate) struct Guard<'a> {
    mutex: &'a RobustMutex,
    held: bool,
    /// Makes the guard `!Send`: only the locking thread may unlock.
    _thread: PhantomData<*mut ()>,
    /// Whether the previous holder died: the caller must repair the protected data.
    pub(crate) died: bool,
}

impl RobustMutex {
    /// Initialises the lock.
    ///
    /// # Safety
    /// Nothing else uses it yet.
    pub(crate) unsafe fn init(&self) {
        let mut attr = std::mem::MaybeUninit::<libc::pthread_mutexattr_t>::uninit();
        let attr = attr.as_mut_ptr();
        // SAFETY: `attr` is writable; init makes it valid for the two calls that follow.
        unsafe {
            libc::pthread_mutexattr_init(attr);
            libc::pthread_mutexattr_setpshared(attr, libc::PTHREAD_PROCESS_SHARED);
            libc::pthread_mutexattr_setrobust(attr, libc::PTHREAD_MUTEX_ROBUST);
        }
        // SAFETY: the caller guarantees that nothing else uses it; `attr` is initialised.
        unsafe {
            libc::pthread_mutex_init(self.0.get(), attr);
            libc::pthread_mutexattr_destroy(attr);
        }
    }

    /// Waits for the lock. Users publish changes with single stores, which keeps the data
    /// consistent even if a holder dies. [`Guard::died`] reports that derived data must be
    /// repaired.
    pub(crate) fn lock(&self) -> Guard<'_> {
        // SAFETY: initialised when its table entry was first used.
        self.guard(unsafe { libc::pthread_mutex_lock(self.0.get()) })
    }

    /// Like [`RobustMutex::lock`], and calls `meanwhile` every 2 ms while waiting.
    pub(crate) fn lock_and(&self, meanwhile: impl Fn()) -> Guard<'_> {
        // SAFETY: as in `lock`.
        let mut rc = unsafe { libc::pthread_mutex_trylock(self.0.get()) };
        while matches!(rc, libc::EBUSY | libc::ETIMEDOUT) {
            meanwhile();
            let mut until = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            // SAFETY: a writable timespec; the lock is as in `lock`. The call uses CLOCK_REALTIME.
            rc = unsafe {
                libc::clock_gettime(libc::CLOCK_REALTIME, &raw mut until);
                until.tv_nsec += 2_000_000;
                until.tv_sec += until.tv_nsec / 1_000_000_000;
                until.tv_nsec %= 1_000_000_000;
                libc::pthread_mutex_timedlock(self.0.get(), &raw const until)
            };
        }
        self.guard(rc)
    }

    /// Interprets the result of locking.
    fn guard(&self, rc: i32) -> Guard<'_> {
        match rc {
            0 => self.held(true, false),
            libc::EOWNERDEAD => {
                // SAFETY: this thread holds it, and the previous holder died.
                unsafe { libc::pthread_mutex_consistent(self.0.get()) };
                self.held(true, true)
            }
            rc => {
                fault!(
                    "a lock in shared memory is damaged (pthread_mutex_lock: error {rc}); continuing without it"
                );
                self.held(false, false)
            }
        }
    }

    fn held(&self, held: bool, died: bool) -> Guard<'_> {
        Guard { mutex: self, held, _thread: PhantomData, died }
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if self.held {
            // SAFETY: locked by this thread, because a guard is not `Send`.
            unsafe { libc::pthread_mutex_unlock(self.mutex.0.get()) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_death_of_a_holder_is_reported_once_and_the_lock_still_works() {
        let len = size_of::<RobustMutex>();
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
        // SAFETY: fresh memory of the size of a lock, shared with the child and never unmapped.
        let lock = unsafe {
            let memory = libc::mmap(std::ptr::null_mut(), len, protection, flags, -1, 0);
            assert_ne!(memory, libc::MAP_FAILED);
            let lock = &*memory.cast::<RobustMutex>();
            lock.init();
            lock
        };
        // SAFETY: the child only locks and exits.
        unsafe {
            match libc::fork() {
                0 => {
                    std::mem::forget(lock.lock());
                    libc::_exit(0);
                }
                child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
            }
        }
        assert!(lock.lock().died);
        assert!(!lock.lock().died);
    }
}
