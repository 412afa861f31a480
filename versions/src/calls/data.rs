//! isend, irecv, iflush, test: the data path, which neither allocates nor locks.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::{ptr, slice};

use nccl_net_abi as abi;

use super::connection::{Receiver, Sender};
use super::memory::Registration;
use super::{Length, Out, buffer};
use crate::guard::Outcome;
use crate::handle;
use crate::tagged::{Kind, Tagged};
use crate::{Buffer, MAX_RECVS, NetPlugin, ProfilerHandle, RecvBuffer, Refusal, Sizes};

/// Checks the size of a message in bytes: `test` must be able to report it.
#[inline]
fn message_size<S: Length>(size: S) -> Result<usize, Refusal> {
    let bytes = size.bytes()?;
    if bytes > c_int::MAX as usize { Err(Refusal::TooLarge(bytes)) } else { Ok(bytes) }
}

/// Checks the number of receives in a group.
#[inline]
fn group_size(n: c_int) -> Result<usize, Refusal> {
    if n >= 1 && n <= MAX_RECVS as c_int { Ok(n as usize) } else { Err(Refusal::Group(n)) }
}

/// Returns the address of a request, which C holds.
#[inline]
fn raw<T>(request: &Tagged<T>) -> *mut c_void {
    ptr::from_ref(request).cast_mut().cast()
}

/// # Safety
/// `mhandle` is NULL, or a registration that is not closed during `'a`.
#[inline]
unsafe fn registration<'a, P: NetPlugin>(mhandle: *mut c_void) -> Result<Option<&'a P::Mr>, Refusal> {
    if mhandle.is_null() {
        return Ok(None);
    }
    // SAFETY: not closed meanwhile, as the caller promises.
    let mr: &Registration<P> = unsafe { handle::borrow_tagged(Kind::Mr, "mhandle", mhandle) }?;
    Ok(Some(&mr.0))
}

/// An array argument.
struct Array<T>(*const T);

impl<T: Copy> Array<T> {
    /// # Safety
    /// While this value lives, `place` is NULL or has as many entries as are read.
    #[inline]
    unsafe fn new(what: &'static str, place: *const T) -> Result<Self, Refusal> {
        if place.is_null() { Err(Refusal::Null(what)) } else { Ok(Self(place)) }
    }

    /// # Safety
    /// The array has more than `i` entries.
    #[inline]
    unsafe fn at(&self, i: usize) -> T {
        // SAFETY: entry `i` exists, as promised to this function and to `new`.
        unsafe { *self.0.add(i) }
    }
}

impl Array<*mut c_void> {
    /// Returns entry `i` of an optional array of pointers: NULL if there is no array.
    ///
    /// # Safety
    /// `place` is NULL or has more than `i` entries.
    #[inline]
    unsafe fn pointer(place: *const *mut c_void, i: usize) -> *mut c_void {
        if place.is_null() {
            return ptr::null_mut();
        }
        // SAFETY: entry `i` exists, as the caller promises.
        unsafe { *place.add(i) }
    }
}

#[inline(always)]
pub(crate) unsafe fn isend<P: NetPlugin, S: Length>(
    comm: *mut c_void,
    data: *mut c_void,
    size: S,
    tag: c_int,
    mhandle: *mut c_void,
    phandle: *mut c_void,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the comm is not closed meanwhile.
    let comm: &Sender<P> = unsafe { handle::borrow_tagged(Kind::Send, "sendComm", comm) }?;
    // SAFETY: the registration is not closed meanwhile.
    let mr = unsafe { registration::<P>(mhandle) }?;
    let buffer = buffer(data, message_size(size)?)?;
    if let Some(posted) = P::isend(&comm.0, buffer, tag, mr, ProfilerHandle::new(phandle))? {
        request.put(raw(posted));
    }
    Ok(())
}

#[inline(always)]
#[expect(clippy::too_many_arguments, reason = "the arguments of irecv")]
pub(crate) unsafe fn irecv<P: NetPlugin, S: Length>(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const S,
    tags: *const c_int,
    mhandles: *const *mut c_void,
    phandles: *const *mut c_void,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable, and readable if the version defines `*request` on entry.
    let (request, hint) = unsafe { Out::null_with_hint("request", request, S::RECV_HINT) }?;
    // SAFETY: the comm is not closed meanwhile.
    let comm: &Receiver<P> = unsafe { handle::borrow_tagged(Kind::Recv, "recvComm", comm) }?;
    let n = group_size(n)?;
    // SAFETY: each is NULL or has `n` entries.
    let (data, sizes, tags) =
        unsafe { (Array::new("data", data)?, Array::new("sizes", sizes)?, Array::new("tags", tags)?) };

    let mut buffers = [const { MaybeUninit::<RecvBuffer<'_, P>>::uninit() }; MAX_RECVS];
    for (i, slot) in buffers.iter_mut().enumerate().take(n) {
        // SAFETY: `i` is below `n`, the length of each array, and no registration is closed
        // meanwhile.
        let one = unsafe {
            RecvBuffer {
                buffer: buffer(data.at(i), message_size(sizes.at(i))?)?,
                tag: tags.at(i),
                mr: registration::<P>(Array::pointer(mhandles, i))?,
                profiler: ProfilerHandle::new(Array::pointer(phandles, i)),
            }
        };
        slot.write(one);
    }
    // SAFETY: the loop wrote the first `n` entries.
    let buffers = unsafe { slice::from_raw_parts(buffers.as_ptr().cast::<RecvBuffer<'_, P>>(), n) };

    let optional = hint == abi::NCCL_NET_OPTIONAL_RECV_COMPLETION;
    if let Some(posted) = P::irecv(&comm.0, buffers, optional)? {
        request.put(raw(posted));
    }
    Ok(())
}

#[inline]
pub(crate) unsafe fn iflush<P: NetPlugin>(
    comm: *mut c_void,
    n: c_int,
    data: *const *mut c_void,
    sizes: *const c_int,
    mhandles: *const *mut c_void,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the comm is not closed meanwhile.
    let comm: &Receiver<P> = unsafe { handle::borrow_tagged(Kind::Recv, "recvComm", comm) }?;
    let n = group_size(n)?;
    // SAFETY: each is NULL or has `n` entries.
    let (data, sizes) = unsafe { (Array::new("data", data)?, Array::new("sizes", sizes)?) };

    let mut buffers = [(Buffer { addr: 0, len: 0 }, None); MAX_RECVS];
    for (i, slot) in buffers.iter_mut().enumerate().take(n) {
        // SAFETY: `i` is below `n`, the length of each array, and no registration is closed
        // meanwhile.
        *slot = unsafe {
            (buffer(data.at(i), sizes.at(i).bytes()?)?, registration::<P>(Array::pointer(mhandles, i))?)
        };
    }
    if let Some(posted) = P::iflush(&comm.0, &buffers[..n])? {
        request.put(raw(posted));
    }
    Ok(())
}

#[inline(always)]
pub(crate) unsafe fn test<P: NetPlugin>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Outcome {
    // SAFETY: NULL or writable.
    let done = unsafe { Out::holding("done", done, 0) }?;
    // SAFETY: a request lives as long as its comm, and the comm is not closed meanwhile.
    let request: &P::Request = unsafe { handle::borrow_tagged(Kind::Request, "request", request) }?;
    // SAFETY: NULL, or room for one size per receive of the group.
    let mut sizes = unsafe { Sizes::new(sizes) };
    if P::test(request, &mut sizes)? {
        done.put(1);
    }
    Ok(())
}
