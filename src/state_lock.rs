//! The lock around a comm's state.

use std::cell::UnsafeCell;
use std::fmt;
use std::mem::forget;
use std::ops::{Deref, DerefMut};
use std::thread;

use nccl_net_versions::in_callback;

use crate::error::{Error, Fast};
use crate::sync::{AtomicU32, Ordering};

const FREE: u32 = 0;
const HELD: u32 = 1;
/// A call has panicked inside.
const POISONED: u32 = 2;

/// A mutex that refuses its state after a panic inside it, because nobody can trust that state any
/// more.
///
/// NCCL's progress thread takes it several times per message, and nobody else wants it but
/// housekeeping, which does not wait. So entering costs one locked instruction, leaving a plain
/// store, and there is no queue for those who wait: they yield.
pub(crate) struct StateLock<T> {
    word: AtomicU32,
    state: UnsafeCell<T>,
}

// SAFETY: one thread at a time accesses the state: the one that has changed the word from FREE to
// HELD.
unsafe impl<T: Send> Sync for StateLock<T> {}

/// The state, while a call is inside. A call must [`leave`](Self::leave): dropping this value, as a
/// panic does, poisons the lock.
pub(crate) struct Entered<'a, T>(&'a StateLock<T>);

impl<T> Deref for Entered<'_, T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: this call has entered, so nobody else accesses the state until it leaves.
        unsafe { &*self.0.state.get() }
    }
}

impl<T> DerefMut for Entered<'_, T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as above, and `self` is borrowed mutably.
        unsafe { &mut *self.0.state.get() }
    }
}

impl<T> Drop for Entered<'_, T> {
    #[cold]
    fn drop(&mut self) {
        self.0.word.store(POISONED, Ordering::Release);
    }
}

impl<T> Entered<'_, T> {
    /// Lets the next call enter, and returns the result of this one.
    #[inline(always)]
    pub(crate) fn leave<R>(self, result: R) -> R {
        self.0.word.store(FREE, Ordering::Release);
        forget(self);
        result
    }
}

impl<T> StateLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self { word: AtomicU32::new(FREE), state: UnsafeCell::new(state) }
    }

    /// Waits until no other call is inside, and enters.
    ///
    /// # Errors
    /// [`Error::Internal`] after a panic in an earlier call. [`Error::Usage`] from within NCCL's profiler,
    /// which a call inside may have called.
    #[inline(always)]
    pub(crate) fn enter(&self) -> Fast<Entered<'_, T>> {
        if self.try_enter().is_err() {
            self.wait()?;
        }
        Ok(Entered(self))
    }

    /// Runs `f` on the state and returns its result.
    ///
    /// # Errors
    /// The errors of `f`, and [`Error::Internal`] after a panic in an earlier call.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> Fast<R>) -> Fast<R> {
        let mut state = self.enter()?;
        let result = f(&mut state);
        state.leave(result)
    }

    /// Like [`with`](Self::with), but returns `None` instead of waiting for another call.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> Fast<R>) -> Option<Fast<R>> {
        match self.try_enter() {
            Ok(()) => {
                let mut state = Entered(self);
                let result = f(&mut state);
                Some(state.leave(result))
            }
            Err(POISONED) => Some(Err(left_by_a_panic())),
            Err(_) => None,
        }
    }

    /// Changes the word if nobody is inside. Otherwise returns the word.
    #[inline(always)]
    fn try_enter(&self) -> Result<(), u32> {
        self.word.compare_exchange(FREE, HELD, Ordering::Acquire, Ordering::Relaxed).map(drop)
    }

    #[cold]
    #[inline(never)]
    fn wait(&self) -> Fast<()> {
        loop {
            match self.try_enter() {
                Ok(()) => return Ok(()),
                Err(POISONED) => return Err(left_by_a_panic()),
                // This thread may be inside.
                Err(_) if in_callback() => return Err(called_back()),
                Err(_) => thread::yield_now(),
            }
        }
    }
}

impl<T> fmt::Debug for StateLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateLock")
    }
}

#[cold]
fn called_back() -> Box<Error> {
    Error::Usage("called from within a callback, NCCL's logger or profiler: it must return first".into())
        .into()
}

#[cold]
fn left_by_a_panic() -> Box<Error> {
    Error::Internal("the connection's state was left by a panic".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    //= faults.md: 72: a call panics: it returns an error, and its comm can only be closed
    #[test]
    fn nobody_gets_what_a_panic_left() {
        let lock = StateLock::new(1);
        let next = |n: &mut i32| {
            *n += 1;
            Ok(())
        };
        lock.with(next).unwrap();
        lock.with(|_| Err::<(), _>(Error::Internal("an error is no panic".into()).into())).unwrap_err();
        assert_eq!(lock.with(|n| Ok(*n)).unwrap(), 2);
        assert!(lock.with(|_| Ok(lock.try_with(|n| Ok(*n)).is_none())).unwrap(), "somebody is in it");
        assert_eq!(lock.try_with(|n| Ok(*n)).unwrap().unwrap(), 2);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            lock.with(|n| -> Fast<()> { panic!("on purpose, at {n}") })
        }));
        assert!(panicked.is_err());
        for _ in 0..2 {
            let e = lock.with(|n| Ok(*n)).unwrap_err();
            assert!(e.to_string().contains("left by a panic"), "{e}");
        }
    }
}
