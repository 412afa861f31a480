//! iput, iputSignal, iget, iflush, test, rmaProgress: the data path, which neither allocates nor
//! locks.

use core::ffi::{c_int, c_void};
use core::mem::size_of;

use nccl_net_abi as abi;

use super::super::data::raw;
use super::super::{Out, index};
use super::{Contexts, Group, Registration};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::tagged::Kind;
use crate::{Get, Place, Put, Refusal, RmaPlugin, Signal};

// Offsets and ranks of C fit.
const _: () = assert!(size_of::<usize>() == size_of::<u64>());

/// A request, as C holds it. It is in a [`Tagged`](crate::Tagged) of the implementation's.
#[repr(transparent)]
struct Pending<P: RmaPlugin>(P::Request);

impl<P: RmaPlugin> HandleType for Pending<P> {
    const KIND: Kind = Kind::RmaRequest;
    type Front = ();
}

/// A place as C passes it: an offset, and a registration.
pub(crate) struct RawPlace(pub(crate) u64, pub(crate) *mut c_void);

impl RawPlace {
    /// # Safety
    /// The registration is not closed during `'a`.
    #[inline]
    unsafe fn read<'a, P: RmaPlugin>(&self, what: &'static str) -> Result<Place<'a, P::Mr>, Refusal> {
        // SAFETY: not closed meanwhile, as the caller promises.
        let mr: &Registration<P> = unsafe { handle::borrow_tagged(what, self.1) }?;
        Ok(Place { mr: &mr.0, offset: self.0 as usize })
    }

    /// Like [`RawPlace::read`], but a place of no bytes may have no registration.
    ///
    /// # Safety
    /// As for [`RawPlace::read`].
    #[inline]
    unsafe fn read_sized<'a, P: RmaPlugin>(
        &self,
        what: &'static str,
        size: usize,
    ) -> Result<Option<Place<'a, P::Mr>>, Refusal> {
        if size == 0 && self.1.is_null() {
            return Ok(None);
        }
        // SAFETY: as the caller promises.
        unsafe { self.read::<P>(what) }.map(Some)
    }
}

/// A signal as C passes it.
pub(crate) struct SignalArgs {
    pub(crate) place: RawPlace,
    pub(crate) value: u64,
    pub(crate) op: u32,
    pub(crate) strong: bool,
}

impl SignalArgs {
    /// # Safety
    /// The registration is not closed during `'a`.
    #[inline]
    unsafe fn read<'a, P: RmaPlugin>(&self) -> Result<Signal<'a, P::Mr>, Refusal> {
        let value = match self.op {
            abi::NCCL_NET_SIGNAL_OP_INC => 1,
            abi::NCCL_NET_SIGNAL_OP_ADD => self.value,
            other => return Err(Refusal::SignalOp(other)),
        };
        // SAFETY: as the caller promises.
        let place = unsafe { self.place.read::<P>("signalMhandle") }?;
        Ok(Signal { place, value, strong: self.strong })
    }
}

/// A put as C passes it.
pub(crate) struct PutArgs {
    pub(crate) ctx: *mut c_void,
    pub(crate) context: c_int,
    pub(crate) src: RawPlace,
    pub(crate) size: usize,
    pub(crate) dst: RawPlace,
    pub(crate) rank: u32,
    pub(crate) signal: Option<SignalArgs>,
    pub(crate) flags: u32,
}

/// Whether another request follows. Other flags are hints that do not exist yet.
fn more(flags: u32) -> bool {
    flags & abi::ncclRmaOptFlagsAggregateRequests != 0
}

#[inline]
pub(crate) unsafe fn iput<P: RmaPlugin>(args: PutArgs, request: *mut *mut c_void) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not destroyed meanwhile.
    let ctx: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", args.ctx) }?;
    let signal = match &args.signal {
        // SAFETY: no registration is closed meanwhile.
        Some(signal) => Some(unsafe { signal.read::<P>() }?),
        None => None,
    };
    let put = Put {
        context: index("context", args.context)?,
        rank: args.rank as usize,
        size: args.size,
        // SAFETY: no registration is closed meanwhile.
        src: unsafe { args.src.read_sized::<P>("srcMhandle", args.size) }?,
        // SAFETY: as above.
        dst: unsafe { args.dst.read_sized::<P>("dstMhandle", args.size) }?,
        signal,
        more: more(args.flags),
    };
    request.put(raw(P::iput(&ctx.0, &put)?));
    Ok(())
}

/// A get as C passes it.
pub(crate) struct GetArgs {
    pub(crate) ctx: *mut c_void,
    pub(crate) context: c_int,
    pub(crate) remote: RawPlace,
    pub(crate) size: usize,
    pub(crate) local: RawPlace,
    pub(crate) rank: u32,
    pub(crate) flags: u32,
}

#[inline]
pub(crate) unsafe fn iget<P: RmaPlugin>(args: GetArgs, request: *mut *mut c_void) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not destroyed meanwhile.
    let ctx: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", args.ctx) }?;
    let get = Get {
        context: index("context", args.context)?,
        rank: args.rank as usize,
        size: args.size,
        // SAFETY: no registration is closed meanwhile.
        remote: unsafe { args.remote.read::<P>("remoteMhandle") }?,
        // SAFETY: as above.
        local: unsafe { args.local.read::<P>("localMhandle") }?,
        more: more(args.flags),
    };
    request.put(raw(P::iget(&ctx.0, &get)?));
    Ok(())
}

#[inline]
pub(crate) unsafe fn iflush<P: RmaPlugin>(
    ctx: *mut c_void,
    context: c_int,
    mhandle: *mut c_void,
    rank: u32,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not destroyed meanwhile.
    let ctx: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", ctx) }?;
    // SAFETY: the registration is not closed meanwhile.
    let mr: &Registration<P> = unsafe { handle::borrow_tagged("mhandle", mhandle) }?;
    if let Some(posted) = P::iflush(&ctx.0, index("context", context)?, &mr.0, rank as usize)? {
        request.put(raw(posted));
    }
    Ok(())
}

#[inline]
pub(crate) unsafe fn test<P: RmaPlugin>(
    coll: *mut c_void,
    request: *mut c_void,
    done: *mut c_int,
) -> Outcome {
    // SAFETY: NULL or writable.
    let done = unsafe { Out::holding("done", done, 0) }?;
    // SAFETY: the group is not closed meanwhile.
    let coll: &Group<P> = unsafe { handle::borrow_tagged("collComm", coll) }?;
    // SAFETY: a request lives as long as its contexts, and these are not destroyed meanwhile.
    let Pending::<P>(request) = unsafe { handle::borrow_tagged("request", request) }?;
    done.put(c_int::from(P::test(&coll.0, request)?));
    Ok(())
}

#[inline]
pub(crate) unsafe fn progress<P: RmaPlugin>(ctx: *mut c_void) -> Outcome {
    // SAFETY: the contexts are not destroyed meanwhile.
    let ctx: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", ctx) }?;
    P::progress(&ctx.0)?;
    Ok(())
}
