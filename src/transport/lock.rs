//! The state of a comm, for one call at a time.

use std::fmt;

use parking_lot::{Mutex, MutexGuard};

use crate::error::{Error, Fast};

/// State that calls take in turn. After a panic inside of it nobody gets it any more, as it is not to be trusted.
///
/// As the standard library's mutex, but that it does not ask at each end of each call whether the thread is panicking: there are more
/// than two such calls for a message, and that question is a tenth of what a small message costs.
pub(crate) struct StateLock<T>(Mutex<Guarded<T>>);

struct Guarded<T> {
    /// Somebody is in it, or has left it by a panic.
    entered: bool,
    state: T,
}

impl<T> StateLock<T> {
    pub(crate) fn new(state: T) -> Self {
        Self(Mutex::new(Guarded { entered: false, state }))
    }

    /// What `f` makes of the state.
    ///
    /// # Errors
    /// Those of `f`; and [`Error::Internal`] after a panic in an earlier one.
    #[inline(always)]
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut T) -> Fast<R>) -> Fast<R> {
        enter(self.0.lock(), f)
    }

    /// As [`with`](Self::with), without waiting: `None` where somebody is in it.
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
