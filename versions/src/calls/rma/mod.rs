//! The calls of one-sided transfers, with the arguments of v16.

mod data;

pub(crate) use data::{GetArgs, PutArgs, RawPlace, SignalArgs, iflush, iget, iput, progress, test};

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use core::slice;

use nccl_net_abi::{self as abi, rma_v16};

use super::connection::handle_buf;
use super::memory::{dma_buf, mem_kind};
use super::setup::take_logger;
use super::{Out, buffer, index};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::tagged::Kind;
use crate::{Failure, HandleBuf, MrFlags, Properties, Refusal, RmaConfig, RmaInit, RmaPlugin};

/// Declares the types that C holds.
macro_rules! handles {
    ($($(#[$meta:meta])+ $name:ident($value:ident): $kind:ident;)+) => {$(
        $(#[$meta])+
        #[repr(transparent)]
        struct $name<P: RmaPlugin>(P::$value);

        impl<P: RmaPlugin> HandleType for $name<P> {
            const KIND: Kind = Kind::$kind;
            type Front = ();
        }
    )+};
}

handles! {
    /// A context, as C holds it. Nobody but this table receives it, so it has no front.
    Owner(Context): RmaContext;
    /// A listening comm, as C holds it.
    Listener(Listen): RmaListen;
    /// A group, as C holds it.
    Group(Coll): RmaColl;
    /// Contexts for transfers, as C holds them.
    Contexts(RmaContext): RmaCtx;
    /// A registration, as C holds it.
    Registration(Mr): RmaMr;
}

pub(crate) unsafe fn init<P: RmaPlugin>(
    version: u32,
    ctx: *mut *mut c_void,
    comm_id: u64,
    logger: abi::ncclDebugLogger_t,
) -> Outcome {
    take_logger::<P>(logger);
    // SAFETY: NULL or writable.
    let ctx = unsafe { Out::null("ctx", ctx) }?;
    ctx.put(handle::into_raw::<P, _>(Owner::<P>(P::init(&RmaInit { version, comm_id })?)));
    Ok(())
}

/// Accepts NULL, which a failed `init` leaves.
pub(crate) unsafe fn finalize<P: RmaPlugin>(ctx: *mut c_void) -> Outcome {
    if ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the context.
    P::finalize(unsafe { handle::from_raw::<P, Owner<P>>("ctx", ctx) }?.0)?;
    Ok(())
}

/// Returns the properties of a device. NCCL takes no other type of device from these tables.
pub(crate) fn properties<P: RmaPlugin>(dev: usize) -> Result<Properties, Failure> {
    Ok(Properties { device_type: abi::NCCL_NET_DEVICE_GIN_PROXY.0, ..P::properties(dev)? })
}

pub(crate) unsafe fn coll_properties<P: RmaPlugin>(
    coll: *mut c_void,
    props: *mut rma_v16::Properties,
) -> Outcome {
    // SAFETY: NULL or writable. The memory is uninitialised and not read.
    let props = unsafe { Out::new("props", props) }?;
    // SAFETY: the group is not closed meanwhile.
    let coll = unsafe { handle::borrow::<P, Group<P>>("collComm", coll) }?;
    let found = P::coll_properties(&coll.0)?;
    props.put(rma_v16::Properties { flushesAllPutsOnAnySignal: found.flushes_all_puts_on_any_signal });
    Ok(())
}

/// NCCL passes what `createContext` has made, not the context of `init` (`ncclGinQueryLastError`,
/// src/gin/gin_host.cc).
pub(crate) unsafe fn has_error<P: RmaPlugin>(ctx: *mut c_void, has_error: *mut bool) -> Outcome {
    // SAFETY: NULL or writable.
    let has_error = unsafe { Out::holding("hasError", has_error, false) }?;
    // SAFETY: the contexts are not destroyed meanwhile.
    has_error.put(P::has_error(&unsafe { handle::borrow::<P, Contexts<P>>("rmaCtx", ctx) }?.0)?);
    Ok(())
}

pub(crate) unsafe fn listen<P: RmaPlugin>(
    ctx: *mut c_void,
    dev: c_int,
    handle: *mut c_void,
    listen_comm: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let listen_comm = unsafe { Out::null("listenComm", listen_comm) }?;
    // SAFETY: NULL, or NCCL's buffer for the handle.
    let handle = unsafe { handle_buf(handle) }?;
    // The other ranks receive the whole buffer, so no byte of NCCL's memory may remain in it.
    handle.fill(0);
    // SAFETY: the context is not finalized meanwhile.
    let ctx = unsafe { handle::borrow::<P, Owner<P>>("ctx", ctx) }?;
    let listener = P::listen(&ctx.0, index("dev", dev)?, handle)?;
    listen_comm.put(handle::into_raw::<P, _>(Listener::<P>(listener)));
    Ok(())
}

/// Has no context: NCCL passes one of this table for GIN, and the network plugin's for
/// `ncclPutSignal` (`connect(comm->netContext, …)`, src/rma/rma_proxy.cc).
pub(crate) unsafe fn connect<P: RmaPlugin>(
    handles: *const *mut c_void,
    nranks: c_int,
    rank: c_int,
    listen_comm: *mut c_void,
    coll: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let coll = unsafe { Out::null("collComm", coll) }?;
    let (nranks, rank) = (index("nranks", nranks)?, index("rank", rank)?);
    let handles = NonNull::new(handles.cast_mut()).ok_or(Refusal::Null("handles"))?;
    // SAFETY: not NULL, and has an entry per rank.
    let handles = unsafe { slice::from_raw_parts(handles.as_ptr(), nranks) };
    // SAFETY: each entry is NULL, or a handle of a rank that nobody writes meanwhile.
    let handles = handles.iter().map(|&handle| unsafe { shared_handle_buf(handle) });
    let handles = handles.collect::<Result<Vec<_>, _>>()?;
    // SAFETY: the listener is not closed meanwhile.
    let listener = unsafe { handle::borrow::<P, Listener<P>>("listenComm", listen_comm) }?;
    let group = P::connect(&listener.0, &handles, rank)?;
    coll.put(handle::into_raw::<P, _>(Group::<P>(group)));
    Ok(())
}

/// # Safety
/// `handle` is NULL, or points to the bytes of a handle that nobody writes during `'a`.
unsafe fn shared_handle_buf<'a>(handle: *mut c_void) -> Result<&'a HandleBuf, Refusal> {
    // SAFETY: NULL or valid, as the caller promises. Bytes need no alignment.
    unsafe { handle.cast::<HandleBuf>().as_ref() }.ok_or(Refusal::Null("handle"))
}

/// Settings of a context that every version has.
pub(crate) struct ConfigArgs {
    pub(crate) contexts: c_int,
    pub(crate) class: c_int,
    pub(crate) rank_stride: c_int,
}

impl ConfigArgs {
    fn read(&self) -> Result<RmaConfig, Refusal> {
        let undefined = [abi::NCCL_RMA_TRAFFIC_CLASS_UNDEF, abi::NCCL_NET_TRAFFIC_CLASS_UNDEF];
        Ok(RmaConfig {
            contexts: index("nContexts", self.contexts)?,
            traffic_class: Some(self.class).filter(|class| !undefined.contains(class)),
            rank_stride: index("rankStride", self.rank_stride)?,
        })
    }
}

/// `config` is `None` if the caller passed NULL.
pub(crate) unsafe fn create_context<P: RmaPlugin>(
    coll: *mut c_void,
    config: Option<ConfigArgs>,
    ctx: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let ctx = unsafe { Out::null("rmaCtx", ctx) }?;
    // SAFETY: the group is not closed meanwhile.
    let coll = unsafe { handle::borrow::<P, Group<P>>("collComm", coll) }?;
    let config = config.ok_or(Refusal::Null("config"))?.read()?;
    let contexts = P::create_context(&coll.0, &config)?;
    ctx.put(handle::into_raw::<P, _>(Contexts::<P>(contexts)));
    Ok(())
}

/// Accepts NULL: NCCL 2.32.3 calls it after a `createContext` that failed.
pub(crate) unsafe fn destroy_context<P: RmaPlugin>(ctx: *mut c_void) -> Outcome {
    if ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the contexts.
    P::destroy_context(unsafe { handle::from_raw::<P, Contexts<P>>("rmaCtx", ctx) }?.0)?;
    Ok(())
}

/// Memory as C passes it.
pub(crate) struct MemoryArgs {
    pub(crate) data: *mut c_void,
    pub(crate) size: usize,
    pub(crate) mem: c_int,
    /// Offset and file descriptor.
    pub(crate) dma_buf: Option<(u64, c_int)>,
    pub(crate) flags: u64,
}

pub(crate) unsafe fn reg_mr<P: RmaPlugin>(
    coll: *mut c_void,
    memory: MemoryArgs,
    mhandle: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let mhandle = unsafe { Out::null("mhandle", mhandle) }?;
    let buffer = buffer(memory.data, memory.size)?;
    let dma_buf = memory.dma_buf.map(|(offset, fd)| dma_buf(offset, fd)).transpose()?;
    let mem = mem_kind(memory.mem)?;
    let flags = MrFlags {
        strong_order: memory.flags & abi::NCCL_NET_MR_FLAG_FORCE_SO != 0,
        never_reset: memory.flags & abi::NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET != 0,
    };
    // SAFETY: the group is not closed meanwhile.
    let coll = unsafe { handle::borrow::<P, Group<P>>("collComm", coll) }?;
    let mr = P::reg_mr(&coll.0, buffer, mem, dma_buf, flags)?;
    mhandle.put(handle::into_raw::<P, _>(Registration::<P>(mr)));
    Ok(())
}

/// NULL is no registration and no error, as for networks.
pub(crate) unsafe fn dereg_mr<P: RmaPlugin>(coll: *mut c_void, mhandle: *mut c_void) -> Outcome {
    // SAFETY: the group is not closed meanwhile.
    let coll = unsafe { handle::borrow::<P, Group<P>>("collComm", coll) }?;
    if mhandle.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the registration.
    P::dereg_mr(&coll.0, unsafe { handle::from_raw::<P, Registration<P>>("mhandle", mhandle) }?.0)?;
    Ok(())
}

/// Closes the handle even if the implementation fails.
pub(crate) unsafe fn close_coll<P: RmaPlugin>(coll: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the group.
    P::close_coll(unsafe { handle::from_raw::<P, Group<P>>("collComm", coll) }?.0)?;
    Ok(())
}

/// Like [`close_coll`].
pub(crate) unsafe fn close_listen<P: RmaPlugin>(comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the listener.
    P::close_listen(unsafe { handle::from_raw::<P, Listener<P>>("listenComm", comm) }?.0)?;
    Ok(())
}

/// Writes NULL to a place for what only devices that serve the GPU directly have. The place itself
/// may be NULL.
pub(crate) unsafe fn write_null<T>(place: *mut *mut T) {
    if let Some(place) = NonNull::new(place) {
        // SAFETY: not NULL, so writable.
        unsafe { place.write(ptr::null_mut()) };
    }
}
