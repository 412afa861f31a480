//! The casts between Rust values and what C holds as `void*`.
//!
//! Calls off the data path look a handle up among the live ones before they touch it, so that a foreign or closed
//! one is an error. Calls on the data path trust the tag in front of the value: that catches NULL, a handle of
//! another kind and, very likely, one that was closed, at the price of one load.

use core::any::TypeId;
use core::ffi::c_void;
use core::sync::atomic::{AtomicU64, Ordering};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tagged::{Kind, Tagged};
use crate::{NetPlugin, Refusal};

/// Address of every handle that C holds, requests excepted: which plugin's, and what it is.
static LIVE: Mutex<BTreeMap<usize, (TypeId, Kind)>> = Mutex::new(BTreeMap::new());

fn live() -> MutexGuard<'static, BTreeMap<usize, (TypeId, Kind)>> {
    // No code that may panic runs under the lock, and the map is whole at every step.
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ties a kind to the type behind it, so that the two cannot disagree.
pub(crate) trait Held: Sized {
    /// The tag.
    const KIND: Kind;
}

/// Gives `value` to C.
pub(crate) fn give<P: NetPlugin, T: Held>(value: T) -> *mut c_void {
    let handle = Box::into_raw(Box::new(Tagged::of(T::KIND, value)));
    live().insert(handle.addr(), (TypeId::of::<P>(), T::KIND));
    handle.cast()
}

/// What a live handle of this plugin is; nothing is read through it.
pub(crate) fn kind<P: NetPlugin>(handle: *mut c_void) -> Option<Kind> {
    live().get(&handle.addr()).filter(|entry| entry.0 == TypeId::of::<P>()).map(|entry| entry.1)
}

/// Borrows a live handle.
///
/// # Safety
/// No other thread closes the handle during `'a`.
pub(crate) unsafe fn borrow<'a, P: NetPlugin, T: Held>(
    what: &'static str,
    handle: *mut c_void,
) -> Result<&'a T, Refusal> {
    if handle.is_null() {
        return Err(Refusal::Null(what));
    }
    if kind::<P>(handle) != Some(T::KIND) {
        return Err(wrong::<T>(what));
    }
    // SAFETY: the list says that `give` made it for this plugin and kind, so it is a `Tagged<T>`; it is closed by
    // nobody during `'a`, as the caller promises.
    Ok(unsafe { &*handle.cast::<Tagged<T>>() })
}

/// Takes a live handle back from C. Of several attempts one succeeds.
///
/// # Safety
/// No other thread uses the handle.
pub(crate) unsafe fn take<P: NetPlugin, T: Held>(
    what: &'static str,
    handle: *mut c_void,
) -> Result<T, Refusal> {
    if handle.is_null() {
        return Err(Refusal::Null(what));
    }
    {
        let mut live = live();
        if live.get(&handle.addr()) != Some(&(TypeId::of::<P>(), T::KIND)) {
            return Err(wrong::<T>(what));
        }
        live.remove(&handle.addr());
    }
    // SAFETY: it was in the list, so `give` made this box for this kind, and it is taken out of the list only
    // once; no other thread uses it, as the caller promises.
    let owned = unsafe { Box::from_raw(handle.cast::<Tagged<T>>()) };
    owned.retire();
    Ok(owned.into_value())
}

/// Borrows by the tag alone: for the data path.
///
/// # Safety
/// `handle` is NULL, or readable at its start where it is aligned; if the tag there is `kind`'s, it is a live
/// `Tagged<T>` that no other thread closes during `'a`.
#[inline]
pub(crate) unsafe fn tagged<'a, T>(
    kind: Kind,
    what: &'static str,
    handle: *mut c_void,
) -> Result<&'a T, Refusal> {
    if handle.is_null() {
        return Err(Refusal::Null(what));
    }
    let wrong = Refusal::WrongHandle { what, expected: kind.name() };
    let value = handle.cast::<Tagged<T>>();
    if !value.is_aligned() {
        return Err(wrong);
    }
    // SAFETY: not NULL, aligned, and readable as the caller promises; the tag lies first in every `Tagged`.
    let tag = unsafe { (*handle.cast::<AtomicU64>()).load(Ordering::Relaxed) };
    if tag != kind.tag() {
        return Err(wrong);
    }
    // SAFETY: the tag is right, so it is a live `Tagged<T>`, as the caller promises.
    Ok(unsafe { &*value })
}

#[cold]
fn wrong<T: Held>(what: &'static str) -> Refusal {
    Refusal::WrongHandle { what, expected: T::KIND.name() }
}
