//! Memory of the values that C holds by their address. It never returns to the allocator.
//!
//! A caller that uses a handle after its end reads the tag in front of the value. In memory of the
//! allocator that would be any bytes of a later owner, or no memory. So memory that has had tags
//! has tags for as long as the process lives: that of values that have ended says so, and waits for
//! values of the same size. The one that has waited longest is used first.
//!
//! A handle whose memory has a new value of its kind cannot be distinguished from the new handle.

use core::alloc::Layout;
use core::fmt;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::ops::Deref;
use core::ptr::{self, NonNull};
use core::sync::atomic::AtomicU64;
use std::alloc::{alloc, handle_alloc_error};
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::tagged::{CLOSED, Kind, Tagged};

/// Size and alignment of a tagged value, the place of its tag, and the number of values.
type Shape = (usize, usize, usize, usize);

/// Memory without values. All its tags say so.
struct Block(NonNull<u8>);

// SAFETY: the memory has no values, so it belongs to no thread.
unsafe impl Send for Block {}

static FREE: Mutex<BTreeMap<Shape, VecDeque<Block>>> = Mutex::new(BTreeMap::new());

fn free() -> MutexGuard<'static, BTreeMap<Shape, VecDeque<Block>>> {
    // The map is consistent after a panic: no code that may panic runs under the lock.
    FREE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn shape<T, F>(len: usize) -> Shape {
    (size_of::<Tagged<T, F>>(), align_of::<Tagged<T, F>>(), offset_of!(Tagged<T, F>, tag), len)
}

/// Returns memory for `len` values, whose tags say that there are none.
fn block<T, F>(len: usize) -> NonNull<Tagged<T, F>> {
    if len == 0 {
        return NonNull::dangling();
    }
    if let Some(block) = free().get_mut(&shape::<T, F>(len)).and_then(VecDeque::pop_front) {
        return block.0.cast();
    }
    // Of more than there are addresses not even the first one is there.
    let layout = Layout::array::<Tagged<T, F>>(len)
        .unwrap_or_else(|_| handle_alloc_error(Layout::new::<Tagged<T, F>>()));
    // SAFETY: the layout is not empty: there is a value, and a tag in front of it.
    let Some(first) = NonNull::new(unsafe { alloc(layout) }.cast::<Tagged<T, F>>()) else {
        handle_alloc_error(layout)
    };
    for index in 0..len {
        // SAFETY: the value at `index` lies in the memory, which is fresh.
        unsafe { (&raw mut (*first.as_ptr().add(index)).tag).write(AtomicU64::new(CLOSED)) };
    }
    first
}

/// Gives the memory of `len` values back.
///
/// # Safety
/// It is of [`block`], its tags say that there are no values, and nobody else has it.
unsafe fn give_back<T, F>(first: NonNull<Tagged<T, F>>, len: usize) {
    if len > 0 {
        free().entry(shape::<T, F>(len)).or_default().push_back(Block(first.cast()));
    }
}

/// Puts a value behind a tag, and that behind a front.
///
/// # Safety
/// `place` is of [`block`], has no value, and nobody else has it.
unsafe fn put<T, F>(place: NonNull<Tagged<T, F>>, kind: Kind, front: F, value: T) {
    // SAFETY: the place is writable as the caller promises. The tag exists, so it may be read: a
    // faulty caller may do so meanwhile.
    unsafe {
        (&raw mut (*place.as_ptr()).front).write(front);
        (&raw mut (*place.as_ptr()).value).write(value);
        (*place.as_ptr()).mark(kind.tag());
    }
}

/// Moves a value into memory for C.
pub(crate) fn keep<T, F>(kind: Kind, front: F, value: T) -> NonNull<Tagged<T, F>> {
    let place = block::<T, F>(1);
    // SAFETY: the block is this function's alone.
    unsafe { put(place, kind, front, value) };
    place
}

/// Moves a value out of the memory for C.
///
/// # Safety
/// The place is of [`keep`] and has its value, which nobody uses.
pub(crate) unsafe fn end<T, F>(place: NonNull<Tagged<T, F>>) -> T {
    // SAFETY: the value is there, and is not used, as the caller promises. After the tag has changed
    // the value is no longer one, so it may move.
    unsafe {
        (*place.as_ptr()).mark(CLOSED);
        let value = (&raw const (*place.as_ptr()).value).read();
        give_back(place, 1);
        value
    }
}

/// The requests of a comm, for the comm to own: at addresses that stay valid as long as the comm,
/// and that are known as those of closed requests when the comm has ended. `A` is a slice or an
/// array.
///
/// ```
/// use nccl_net_versions::{Slab, Tagged};
///
/// struct Comm { requests: Slab<usize, [Tagged<usize>; 32]> }
///
/// let comm = Comm { requests: Slab::array(|index| index) };
/// assert_eq!(*comm.requests[7], 7);
/// ```
pub struct Slab<T, A: ?Sized + AsRef<[Tagged<T>]> = [Tagged<T>]>(NonNull<A>, PhantomData<T>);

// SAFETY: the slab owns its requests.
unsafe impl<T: Send, A: ?Sized + AsRef<[Tagged<T>]>> Send for Slab<T, A> {}
// SAFETY: it gives out references only.
unsafe impl<T: Sync, A: ?Sized + AsRef<[Tagged<T>]>> Sync for Slab<T, A> {}

/// Makes the requests in a block.
fn requests<T>(kind: Kind, len: usize, mut value: impl FnMut(usize) -> T) -> NonNull<Tagged<T>> {
    let first = block::<T, ()>(len);
    for index in 0..len {
        // A panic here leaves the block and the earlier values to nobody.
        let value = value(index);
        // SAFETY: the block has `len` values and is this function's alone.
        unsafe { put(first.add(index), kind, (), value) };
    }
    first
}

impl<T> Slab<T> {
    /// Makes `len` requests. `value` makes the content of each one from its index.
    pub fn new(len: usize, value: impl FnMut(usize) -> T) -> Self {
        Self::of(Kind::Request, len, value)
    }

    /// Like [`Slab::new`], for [`RmaPlugin`](crate::RmaPlugin): the tables of networks do not take
    /// these requests, and those for RMA take no others.
    pub fn rma(len: usize, value: impl FnMut(usize) -> T) -> Self {
        Self::of(Kind::RmaRequest, len, value)
    }

    fn of(kind: Kind, len: usize, value: impl FnMut(usize) -> T) -> Self {
        Self(NonNull::slice_from_raw_parts(requests(kind, len, value), len), PhantomData)
    }
}

impl<T, const N: usize> Slab<T, [Tagged<T>; N]> {
    /// Makes `N` requests. `value` makes the content of each one from its index.
    pub fn array(value: impl FnMut(usize) -> T) -> Self {
        Self(requests(Kind::Request, N, value).cast(), PhantomData)
    }
}

impl<T, A: ?Sized + AsRef<[Tagged<T>]>> Deref for Slab<T, A> {
    type Target = A;

    #[inline(always)]
    fn deref(&self) -> &A {
        // SAFETY: the block has as many requests as the slice or the array, and they live as long
        // as the slab.
        unsafe { self.0.as_ref() }
    }
}

impl<T, A: ?Sized + AsRef<[Tagged<T>]>> Drop for Slab<T, A> {
    fn drop(&mut self) {
        let (first, len) = (self.0.cast::<Tagged<T>>(), (**self).as_ref().len());
        // No new call finds a request while the first ones are dropped.
        (**self).as_ref().iter().for_each(|request| request.mark(CLOSED));
        for index in 0..len {
            // SAFETY: the value exists and is dropped once. Its tag remains.
            unsafe { ptr::drop_in_place(&raw mut (*first.as_ptr().add(index)).value) };
        }
        // SAFETY: the block is that of `new` or `array`, and the slab ends here.
        unsafe { give_back(first, len) };
    }
}

impl<T: fmt::Debug, A: ?Sized + AsRef<[Tagged<T>]>> fmt::Debug for Slab<T, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries((**self).as_ref()).finish()
    }
}
