//! isend, irecv, iflush, test: the data path, which neither allocates nor locks.

use core::ffi::{c_int, c_void};
use core::mem::MaybeUninit;
use core::{ptr, slice};

use nccl_net_abi as abi;

use super::connection::{Receiver, Sender};
use super::memory::Registration;
use super::{Length, Out, buffer};
use crate::guard::{Fault, Outcome};
use crate::handle::{self, HandleType};
use crate::tagged::{Kind, Tagged};
use crate::{Buffer, MAX_RECVS, NetPlugin, ProfilerHandle, RecvBuffer, Refusal, Sizes};

/// A request, as C holds it. It is in a [`Tagged`] of the implementation's.
#[repr(transparent)]
struct Pending<P: NetPlugin>(P::Request);

impl<P: NetPlugin> HandleType for Pending<P> {
    const KIND: Kind = Kind::Request;
    type Front = ();
}

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
pub(super) fn raw<T>(request: &Tagged<T>) -> *mut c_void {
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
    let mr: &Registration<P> = unsafe { handle::borrow_tagged("mhandle", mhandle) }?;
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

/// A call of `isend` on a live comm, and where to store its request.
pub(crate) struct DueSend<'a, P: NetPlugin> {
    pub(crate) comm: &'a Sender<P>,
    pub(crate) request: Out<*mut c_void>,
}

impl<P: NetPlugin> DueSend<'_, P> {
    /// Starts the send.
    ///
    /// # Safety
    /// `mhandle` is NULL, or a registration that is not closed meanwhile.
    #[inline(always)]
    pub(crate) unsafe fn run<S: Length>(
        self,
        data: *mut c_void,
        size: S,
        tag: c_int,
        mhandle: *mut c_void,
        phandle: *mut c_void,
    ) -> Outcome {
        // SAFETY: as the caller promises.
        let mr = unsafe { registration::<P>(mhandle) }?;
        let buffer = buffer(data, message_size(size)?)?;
        if let Some(posted) = P::isend(&self.comm.0, buffer, tag, mr, ProfilerHandle::new(phandle))? {
            self.request.put(raw(posted));
        }
        Ok(())
    }
}

/// Begins `isend`. Most calls come before the receive: for them it returns `Some(None)`, and the
/// call has done all. The other arguments matter to a send. `None` if an argument is wrong. Panics
/// nowhere, so it needs no guard.
#[inline(always)]
pub(crate) unsafe fn due<'a, P: NetPlugin>(
    comm: *mut c_void,
    request: *mut *mut c_void,
) -> Option<Option<DueSend<'a, P>>> {
    // SAFETY: the comm is not closed meanwhile.
    let comm: &Sender<P> = unsafe { handle::tagged(comm) }?;
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }.ok()?;
    Some(P::may_send(&comm.0).then_some(DueSend { comm, request }))
}

/// `isend` after [`due`] has found a wrong argument.
#[cold]
pub(crate) unsafe fn isend<P: NetPlugin>(comm: *mut c_void, request: *mut *mut c_void) -> Outcome {
    // SAFETY: NULL or writable.
    let _ = unsafe { Out::null("request", request) }?;
    // SAFETY: the comm is not closed meanwhile.
    let _: &Sender<P> = unsafe { handle::borrow_tagged("sendComm", comm) }?;
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
    let comm: &Receiver<P> = unsafe { handle::borrow_tagged("recvComm", comm) }?;
    let n = group_size(n)?;
    // SAFETY: each is NULL or has `n` entries.
    let (data, sizes, tags) =
        unsafe { (Array::new("data", data)?, Array::new("sizes", sizes)?, Array::new("tags", tags)?) };

    let optional = hint == abi::NCCL_NET_OPTIONAL_RECV_COMPLETION;
    let posted = match n {
        // Almost every group has one receive.
        1 => {
            // SAFETY: the arrays have one entry, and no registration is closed meanwhile.
            let one = unsafe { Receives { data, sizes, tags, mhandles, phandles }.at::<P>(0) }?;
            P::irecv(&comm.0, slice::from_ref(&one), optional)?
        }
        // SAFETY: the arrays have `n` entries, and no registration is closed meanwhile.
        _ => unsafe { Receives { data, sizes, tags, mhandles, phandles }.post::<P>(comm, n, optional) }?,
    };
    if let Some(posted) = posted {
        request.put(raw(posted));
    }
    Ok(())
}

/// The array arguments of `irecv`. The last two are optional.
struct Receives<S> {
    data: Array<*mut c_void>,
    sizes: Array<S>,
    tags: Array<c_int>,
    mhandles: *const *mut c_void,
    phandles: *const *mut c_void,
}

impl<S: Length> Receives<S> {
    /// Returns receive `i`.
    ///
    /// # Safety
    /// Each array has more than `i` entries, and no registration is closed during `'a`.
    #[inline(always)]
    unsafe fn at<'a, P: NetPlugin>(&self, i: usize) -> Result<RecvBuffer<'a, P>, Refusal> {
        // SAFETY: as the caller promises.
        unsafe {
            Ok(RecvBuffer {
                buffer: buffer(self.data.at(i), message_size(self.sizes.at(i))?)?,
                tag: self.tags.at(i),
                mr: registration::<P>(Array::pointer(self.mhandles, i))?,
                profiler: ProfilerHandle::new(Array::pointer(self.phandles, i)),
            })
        }
    }

    /// Posts a group of `n` receives, at most [`MAX_RECVS`].
    ///
    /// # Safety
    /// Each array has `n` entries, and no registration is closed meanwhile.
    #[inline(never)]
    unsafe fn post<'c, P: NetPlugin>(
        &self,
        comm: &'c Receiver<P>,
        n: usize,
        optional: bool,
    ) -> Result<Option<&'c Tagged<P::Request>>, Fault> {
        let mut buffers = [const { MaybeUninit::<RecvBuffer<'_, P>>::uninit() }; MAX_RECVS];
        for (i, slot) in buffers.iter_mut().enumerate().take(n) {
            // SAFETY: `i` is below `n`; the rest as the caller promises.
            slot.write(unsafe { self.at::<P>(i) }?);
        }
        // SAFETY: the loop wrote the first `n` entries.
        let buffers = unsafe { slice::from_raw_parts(buffers.as_ptr().cast::<RecvBuffer<'_, P>>(), n) };
        Ok(P::irecv(&comm.0, buffers, optional)?)
    }
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
    let comm: &Receiver<P> = unsafe { handle::borrow_tagged("recvComm", comm) }?;
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

/// A request that `test` found to be valid, and where to store its results.
pub(crate) struct PendingTest<'a, P: NetPlugin> {
    pub(crate) request: &'a P::Request,
    pub(crate) done: Out<c_int>,
    pub(crate) sizes: Sizes,
}

impl<P: NetPlugin> PendingTest<'_, P> {
    /// Makes progress.
    #[inline(always)]
    pub(crate) fn run(mut self) -> Outcome {
        if P::test(self.request, &mut self.sizes)? {
            self.done.put(1);
        }
        Ok(())
    }
}

/// Collects a request of one message that is already completed. Returns `Some(None)` if it was one,
/// and `Some` of the rest if the request needs more; `None` if an argument is wrong. Panics nowhere,
/// so it needs no guard.
#[inline(always)]
pub(crate) unsafe fn collect<'a, P: NetPlugin>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Option<Option<PendingTest<'a, P>>> {
    // SAFETY: a request lives as long as its comm, and the comm is not closed meanwhile.
    let Pending::<P>(request) = unsafe { handle::tagged(request) }?;
    // SAFETY: NULL or writable.
    let done = unsafe { Out::new("done", done) }.ok()?;
    let Some(bytes) = P::collect(request) else {
        done.put(0);
        // SAFETY: NULL, or room for one size per receive of the group.
        return Some(Some(PendingTest { request, done, sizes: unsafe { Sizes::new(sizes) } }));
    };
    done.put(1);
    if !sizes.is_null() {
        // SAFETY: not NULL, so there is room for one size.
        unsafe { sizes.write(bytes) };
    }
    Some(None)
}

/// `test` after [`collect`] has found a wrong argument.
#[cold]
pub(crate) unsafe fn test<P: NetPlugin>(
    request: *mut c_void,
    done: *mut c_int,
    sizes: *mut c_int,
) -> Outcome {
    // SAFETY: NULL or writable.
    let done = unsafe { Out::holding("done", done, 0) }?;
    // SAFETY: a request lives as long as its comm, and the comm is not closed meanwhile.
    let Pending::<P>(request) = unsafe { handle::borrow_tagged("request", request) }?;
    // SAFETY: NULL, or room for one size per receive of the group.
    PendingTest::<P> { request, done, sizes: unsafe { Sizes::new(sizes) } }.run()
}
