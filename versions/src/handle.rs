//! Conversions between Rust values and the `void*` that C holds.
//!
//! Calls off the data path look a handle up in the list of live handles before they read through
//! it, so a foreign or closed handle is an error. Calls on the data path check only the tag of the
//! handle, which costs one load: it catches NULL, a handle of another kind, and a closed handle
//! whose memory has no new value of its kind.

use core::any::TypeId;
use core::ffi::c_void;
use core::ptr::NonNull;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tagged::{Kind, Tagged};
use crate::{Plugin, Refusal, slab};

/// The address of every handle that C holds, except requests, with its plugin and kind.
static LIVE: Mutex<BTreeMap<usize, (TypeId, Kind)>> = Mutex::new(BTreeMap::new());

fn live() -> MutexGuard<'static, BTreeMap<usize, (TypeId, Kind)>> {
    // The map is consistent after a panic: no code that may panic runs under the lock.
    LIVE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A type that C holds by a handle of one kind.
pub(crate) trait HandleType: Sized {
    /// The kind.
    const KIND: Kind;
    /// What others than the adapters may read and write at the handle's address: `()`, or
    /// [`SharedConfig`](crate::tagged::SharedConfig) if NCCL passes the handle to them.
    type Front;
}

/// Moves `value` into a handle for C.
pub(crate) fn into_raw<P: Plugin, T: HandleType<Front = ()>>(value: T) -> *mut c_void {
    into_raw_behind::<P, T>((), value)
}

/// Moves `value` into a handle for C that begins with `front`.
pub(crate) fn into_raw_behind<P: Plugin, T: HandleType>(front: T::Front, value: T) -> *mut c_void {
    let handle = slab::keep(T::KIND, front, value).as_ptr();
    live().insert(handle.addr(), (TypeId::of::<P>(), T::KIND));
    handle.cast()
}

/// Returns the kind of a live handle of this plugin, without reading through it.
pub(crate) fn kind<P: Plugin>(handle: *mut c_void) -> Option<Kind> {
    live().get(&handle.addr()).filter(|entry| entry.0 == TypeId::of::<P>()).map(|entry| entry.1)
}

/// Borrows the value of a live handle.
///
/// # Safety
/// No other thread closes the handle during `'a`.
pub(crate) unsafe fn borrow<'a, P: Plugin, T: HandleType>(
    what: &'static str,
    handle: *mut c_void,
) -> Result<&'a T, Refusal> {
    if handle.is_null() {
        return Err(Refusal::Null(what));
    }
    if kind::<P>(handle) != Some(T::KIND) {
        return Err(wrong::<T>(what));
    }
    // SAFETY: the list contains the handle with this kind, so `into_raw` made it from a
    // `Tagged` of this type. No other thread closes it during `'a`, as the caller promises.
    Ok(unsafe { &*handle.cast::<Tagged<T, T::Front>>() })
}

/// Moves the value out of a live handle and invalidates the handle. Of several attempts one
/// succeeds.
///
/// # Safety
/// No other thread uses the handle.
pub(crate) unsafe fn from_raw<P: Plugin, T: HandleType>(
    what: &'static str,
    handle: *mut c_void,
) -> Result<T, Refusal> {
    let Some(place) = NonNull::new(handle.cast::<Tagged<T, T::Front>>()) else {
        return Err(Refusal::Null(what));
    };
    {
        let mut live = live();
        if live.get(&handle.addr()) != Some(&(TypeId::of::<P>(), T::KIND)) {
            return Err(wrong::<T>(what));
        }
        live.remove(&handle.addr());
    }
    // SAFETY: the list contained the handle with this kind, so `into_raw` made it, and only one call
    // removes it from the list. No other thread uses it, as the caller promises.
    Ok(unsafe { slab::end(place) })
}

/// Borrows the value of a handle after checking only its tag, for the data path.
///
/// # Safety
/// `handle` is NULL, unaligned, or readable up to the end of its tag, as a closed handle is. If the
/// tag there is that of the kind, it is a live handle of `T` that no other thread closes during `'a`.
#[inline(always)]
pub(crate) unsafe fn borrow_tagged<'a, T: HandleType>(
    what: &'static str,
    handle: *mut c_void,
) -> Result<&'a T, Refusal> {
    // SAFETY: as the caller promises.
    match unsafe { tagged(handle) } {
        Some(value) => Ok(value),
        None => Err(not_tagged(T::KIND, what, handle)),
    }
}

/// Like [`borrow_tagged`], but returns `None` for every handle that is wrong.
///
/// # Safety
/// As for [`borrow_tagged`].
#[inline(always)]
pub(crate) unsafe fn tagged<'a, T: HandleType>(handle: *mut c_void) -> Option<&'a T> {
    let value = handle.cast::<Tagged<T, T::Front>>();
    // Two branches that are never taken are cheaper than one on both conditions.
    if handle.is_null() {
        return wrong_handle();
    }
    if !value.is_aligned() {
        return wrong_handle();
    }
    // SAFETY: the handle is not NULL, aligned, and readable as the caller promises.
    if !unsafe { Tagged::has_tag(value, T::KIND) } {
        return None;
    }
    // SAFETY: the tag is right, so the handle is a live one of `T`, as the caller promises.
    Some(unsafe { &*value })
}

/// Marks a branch as one that is not expected.
#[cold]
fn wrong_handle<T>() -> Option<T> {
    None
}

// Out of line: the checks of the data path then move no error text.
#[cold]
#[inline(never)]
fn not_tagged(kind: Kind, what: &'static str, handle: *mut c_void) -> Refusal {
    match handle.is_null() {
        true => Refusal::Null(what),
        false => Refusal::WrongHandle { what, expected: kind.name() },
    }
}

#[cold]
fn wrong<T: HandleType>(what: &'static str) -> Refusal {
    Refusal::WrongHandle { what, expected: T::KIND.name() }
}
