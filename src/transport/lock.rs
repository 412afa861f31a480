//! The lock around a comm's state.

use std::fmt;

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Fast};

/// A mutex that refuses its state after a panic inside it, because nobody can trust that state any
/// more.
///
/// The standard library's mutex does the same, but asks at both ends of each call whether the
/// thread is panicking. A message needs more than two calls, and that question is a tenth of the
/// cost of a small message.
pub(crate) struct StateLock<T>(Mutex<Guarded<T>>);

struct Guarded<T> {
    /// Set while a call is inside. It stays set if the call panics.
    entered: bool,
    state: T,
}

impl<T> StateLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Mutex::new(Guarded { entered: false, state }))
    }

    /// Runs `f` on the state and returns its result.
    ///
    /// # Errors
    /// The errors of `f`, and [`Error::Internal`] after a panic in an earlier call.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> Fast<R>) -> Fast<R> {
        enter(self.0.lock(), f)
    }

    /// Like [`with`](Self::with), but returns `None` instead of waiting for another call.
    pub(crate) fn try_with<R>(&self, f: impl FnOnce(&mut T) -> Fast<R>) -> Option<Fast<R>> {
        Some(enter(self.0.try_lock()?, f))
    }
}

#[inline(always)]
fn enter<T, R>(mut inner: MutexGuard<'_, Guarded<T>>, f: impl FnOnce(&mut T) -> Fast<R>) -> Fast<R> {
    if inner.entered {
        return Err(left_by_a_panic());
    }
    inner.entered = true;
    let result = f(&mut inner.state);
    inner.entered = false;
    result
}

impl<T> fmt::Debug for StateLock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StateLock")
    }
}

#[cold]
fn left_by_a_panic() -> Box<Error> {
    Error::Internal("the connection's state was left by a panic".into()).into()
}

#[cfg(test)]
mod tests {
    use super::*;

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
