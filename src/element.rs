//! One element of a shared slice, found without the slice's length and the element's index.

use std::fmt;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;

/// One element of a shared slice, which lives as long as this value.
///
/// A request holds its state by this type: reading the state costs one load, where an `Arc` and an
/// index cost a bounds check and a multiplication more.
pub(crate) struct Element<T> {
    element: NonNull<T>,
    /// Keeps the element alive.
    _slice: Arc<[T]>,
}

// SAFETY: the value is an `Arc` of the slice, and a reference to one of its elements.
unsafe impl<T: Send + Sync> Send for Element<T> {}
// SAFETY: as above.
unsafe impl<T: Send + Sync> Sync for Element<T> {}

impl<T> Element<T> {
    /// Returns the element at `index`, which is in the slice.
    pub(crate) fn of(slice: Arc<[T]>, index: usize) -> Self {
        Self { element: NonNull::from(&slice[index]), _slice: slice }
    }
}

impl<T> Deref for Element<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: the `Arc` keeps the slice alive and in place, and nobody borrows it mutably: that
        // takes an `Arc` without others, by reference, and no function here gives it away.
        unsafe { self.element.as_ref() }
    }
}

impl<T: fmt::Debug> fmt::Debug for Element<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        (**self).fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_element_outlives_all_other_owners_of_its_slice() {
        let slice: Arc<[_]> = ["a", "b", "c"].map(str::to_owned).into();
        let [a, b, c] = [0, 1, 2].map(|index| Element::of(Arc::clone(&slice), index));
        let observer = Arc::downgrade(&slice);
        drop((slice, a, c));
        assert_eq!(b.as_str(), "b");
        assert!(observer.upgrade().is_some());
        drop(b);
        assert!(observer.upgrade().is_none());
    }
}
