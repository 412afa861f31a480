//! The calls of the RMA tables.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};
use core::slice;

use nccl_net_abi as abi;

use super::memory::kind;
use super::{Out, buffer, device};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::props::{FromProperties, in_range};
use crate::rma::{Get, Place, Put, RmaConfig, RmaInit, Signal, WindowFlags};
use crate::tagged::{Kind, Tagged};
use crate::{DmaBuf, HandleBuf, Logger, Refusal, RmaPlugin, state};

macro_rules! handles {
    ($($(#[$meta:meta])+ $name:ident($field:ident) = $kind:ident;)+) => {$(
        $(#[$meta])+
        #[repr(transparent)]
        pub(crate) struct $name<P: RmaPlugin>(P::$field);

        impl<P: RmaPlugin> HandleType for $name<P> {
            const KIND: Kind = Kind::$kind;
            type Front = ();
        }
    )+};
}

handles! {
    /// A context, as C holds it.
    Context(RmaContext) = RmaContext;
    /// A listening end, as C holds it.
    Listener(RmaListen) = RmaListen;
    /// A group, as C holds it.
    Group(Group) = Group;
    /// The contexts of a group, as C holds them.
    Contexts(Contexts) = Contexts;
    /// A window, as C holds it.
    Window(Window) = Window;
    /// A request, as C holds it. It is in a [`Tagged`] of the implementation's.
    Pending(RmaRequest) = RmaRequest;
}

pub(crate) unsafe fn init<P: RmaPlugin>(
    version: u32,
    ctx: *mut *mut c_void,
    comm_id: u64,
    logger: abi::ncclDebugLogger_t,
) -> Outcome {
    let logger = Logger::new(logger);
    state::set_logger::<P>(logger);
    P::logger(logger);
    // SAFETY: NULL or writable.
    let ctx = unsafe { Out::null("ctx", ctx) }?;
    let context = P::init_rma(&RmaInit { version, comm_id })?;
    ctx.put(handle::into_raw::<P, _>(Context::<P>(context)));
    Ok(())
}

/// Accepts NULL, as that of the network tables.
pub(crate) unsafe fn finalize<P: RmaPlugin>(ctx: *mut c_void) -> Outcome {
    if ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the context.
    P::finalize_rma(unsafe { handle::from_raw::<P, Context<P>>("ctx", ctx) }?.0)?;
    Ok(())
}

pub(crate) unsafe fn get_properties<P: RmaPlugin>(dev: c_int, props: *mut abi::v12::Props) -> Outcome {
    // SAFETY: NULL or writable. The memory is uninitialised and not read.
    let props = unsafe { Out::new("props", props) }?;
    let mut found = in_range::<P>(P::properties(device(dev)?)?, dev);
    // NCCL's GIN takes its type from here.
    found.device_type = abi::NCCL_NET_DEVICE_GIN_PROXY.0;
    props.put(abi::v12::Props::from_properties(&found));
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
    let handle = unsafe { super::connection::handle_buf(handle) }?;
    handle.fill(0);
    // SAFETY: the context is not finalized meanwhile.
    let context = unsafe { handle::borrow::<P, Context<P>>("ctx", ctx) }?;
    let listener = P::listen_rma(&context.0, device(dev)?, handle)?;
    listen_comm.put(handle::into_raw::<P, _>(Listener::<P>(listener)));
    Ok(())
}

pub(crate) unsafe fn close_listen<P: RmaPlugin>(listen_comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the listener.
    P::close_listen_rma(unsafe { handle::from_raw::<P, Listener<P>>("listenComm", listen_comm) }?.0)?;
    Ok(())
}

/// Does not look at the context: host RMA passes that of the network table
/// (`connect(comm->netContext, …)`, src/rma/rma_proxy.cc).
pub(crate) unsafe fn connect<P: RmaPlugin>(
    handles: *const *mut c_void,
    ranks: c_int,
    rank: c_int,
    listen_comm: *mut c_void,
    coll_comm: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let coll_comm = unsafe { Out::null("collComm", coll_comm) }?;
    // SAFETY: the listener is not closed meanwhile.
    let listener = unsafe { handle::borrow::<P, Listener<P>>("listenComm", listen_comm) }?;
    let rank = natural("rank", rank)?;
    let handles = NonNull::new(handles.cast_mut()).ok_or(Refusal::Null("handles"))?;
    // SAFETY: an array with a pointer for each rank.
    let handles = unsafe { slice::from_raw_parts(handles.as_ptr(), natural("nranks", ranks)?) };
    let each = handles.iter().map(|handle| {
        let handle = NonNull::new(handle.cast::<HandleBuf>()).ok_or(Refusal::Null("handles"))?;
        // SAFETY: a rank's handle, which nothing writes during the call. Bytes need no alignment.
        Ok(unsafe { handle.as_ref() })
    });
    let each = each.collect::<Result<Vec<&HandleBuf>, Refusal>>()?;
    let group = P::join(&listener.0, &each, rank)?;
    coll_comm.put(handle::into_raw::<P, _>(Group::<P>(group)));
    Ok(())
}

pub(crate) unsafe fn get_rma_properties<P: RmaPlugin>(
    coll_comm: *mut c_void,
    props: *mut abi::rma_v16::Properties,
) -> Outcome {
    // SAFETY: NULL or writable.
    let props = unsafe { Out::new("props", props) }?;
    // SAFETY: the group is not closed meanwhile.
    let group = unsafe { handle::borrow::<P, Group<P>>("collComm", coll_comm) }?;
    let found = P::group_properties(&group.0)?;
    props.put(abi::rma_v16::Properties { flushesAllPutsOnAnySignal: found.flushes_all_puts_on_any_signal });
    Ok(())
}

/// Closes the handle even if the implementation fails.
pub(crate) unsafe fn close_coll<P: RmaPlugin>(coll_comm: *mut c_void) -> Outcome {
    // SAFETY: no other call uses the group.
    P::close_group(unsafe { handle::from_raw::<P, Group<P>>("collComm", coll_comm) }?.0)?;
    Ok(())
}

pub(crate) unsafe fn create_context<P: RmaPlugin>(
    coll_comm: *mut c_void,
    config: Option<abi::rma_v14::Config>,
    rma_ctx: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let rma_ctx = unsafe { Out::null("rmaCtx", rma_ctx) }?;
    // SAFETY: the group is not closed meanwhile.
    let group = unsafe { handle::borrow::<P, Group<P>>("collComm", coll_comm) }?;
    let config = config.ok_or(Refusal::Null("config"))?;
    let config = RmaConfig {
        contexts: natural("nContexts", config.nContexts)?,
        traffic_class: Some(config.trafficClass).filter(|class| *class != abi::NCCL_NET_TRAFFIC_CLASS_UNDEF),
        rank_stride: natural("rankStride", config.rankStride)?,
    };
    let contexts = P::create_contexts(&group.0, &config)?;
    rma_ctx.put(handle::into_raw::<P, _>(Contexts::<P>(contexts)));
    Ok(())
}

/// Copies the settings of v13 into those of later versions.
///
/// # Safety
/// `config` is NULL or readable.
pub(crate) unsafe fn config_v13(config: *const abi::rma_v13::Config) -> Option<abi::rma_v14::Config> {
    // SAFETY: NULL or readable, as the caller promises.
    let config = unsafe { config.as_ref() }?;
    let (contexts, class) = (config.nContexts, config.trafficClass);
    Some(abi::rma_v14::Config { nContexts: contexts, trafficClass: class, rankStride: 1 })
}

/// Accepts NULL: NCCL calls it after a `createContext` that failed, which left NULL.
pub(crate) unsafe fn destroy_context<P: RmaPlugin>(rma_ctx: *mut c_void) -> Outcome {
    if rma_ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the contexts.
    P::destroy_contexts(unsafe { handle::from_raw::<P, Contexts<P>>("rmaCtx", rma_ctx) }?.0)?;
    Ok(())
}

/// `file` is the DMA-BUF, if the call has one: its offset in bytes and its descriptor.
pub(crate) unsafe fn reg_mr_sym<P: RmaPlugin>(
    coll_comm: *mut c_void,
    (data, size): (*mut c_void, usize),
    mem: c_int,
    file: Option<(u64, c_int)>,
    flags: u64,
    mhandle: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let mhandle = unsafe { Out::null("mhandle", mhandle) }?;
    // SAFETY: the group is not closed meanwhile.
    let group = unsafe { handle::borrow::<P, Group<P>>("collComm", coll_comm) }?;
    let dmabuf = match file {
        Some((_, fd)) if fd < 0 => return Err(Refusal::Negative { what: "fd", value: fd }.into()),
        file => file.map(|(offset, fd)| DmaBuf { offset, fd }),
    };
    let flags = WindowFlags {
        strong_order: flags & abi::NCCL_NET_MR_FLAG_FORCE_SO != 0,
        never_reset: flags & abi::NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET != 0,
    };
    let window = P::register(&group.0, buffer(data, size)?, kind(mem)?, dmabuf, flags)?;
    mhandle.put(handle::into_raw::<P, _>(Window::<P>(window)));
    Ok(())
}

/// NULL is no window and no error, as in `deregMr`.
pub(crate) unsafe fn dereg_mr_sym<P: RmaPlugin>(coll_comm: *mut c_void, mhandle: *mut c_void) -> Outcome {
    // SAFETY: the group is not closed meanwhile.
    let group = unsafe { handle::borrow::<P, Group<P>>("collComm", coll_comm) }?;
    if mhandle.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the window.
    P::deregister(&group.0, unsafe { handle::from_raw::<P, Window<P>>("mhandle", mhandle) }?.0)?;
    Ok(())
}

/// A place in a window, as C passes it: the handle, and the offset in bytes.
pub(crate) type RawPlace = (*mut c_void, u64);

/// # Safety
/// The handle is NULL, or a window that is not closed during `'a`.
#[inline]
unsafe fn place<'a, P: RmaPlugin>(
    what: &'static str,
    (mhandle, offset): RawPlace,
) -> Result<Place<'a, P::Window>, Refusal> {
    // SAFETY: as the caller promises.
    let window: &Window<P> = unsafe { handle::borrow_tagged(what, mhandle) }?;
    // An offset that no address reaches is outside of every window.
    Ok(Place { window: &window.0, offset: usize::try_from(offset).unwrap_or(usize::MAX) })
}

/// The signal of a put, as C passes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RawSignal {
    pub(crate) place: RawPlace,
    pub(crate) value: u64,
    pub(crate) operation: u32,
    pub(crate) strong: bool,
}

/// What puts and gets name, as C passes it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer {
    pub(crate) context: c_int,
    pub(crate) from: RawPlace,
    pub(crate) size: usize,
    pub(crate) to: RawPlace,
    pub(crate) rank: u32,
    pub(crate) flags: u32,
}

impl Transfer {
    fn has_more(&self) -> bool {
        self.flags & abi::ncclRmaOptFlagsAggregateRequests != 0
    }
}

#[inline]
pub(crate) unsafe fn put<P: RmaPlugin>(
    rma_ctx: *mut c_void,
    transfer: &Transfer,
    signal: Option<RawSignal>,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not closed meanwhile.
    let contexts: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", rma_ctx) }?;
    let data = match transfer.size {
        0 => None,
        // SAFETY: no window is closed meanwhile.
        _ => Some(unsafe {
            (place::<P>("srcMhandle", transfer.from)?, place::<P>("dstMhandle", transfer.to)?)
        }),
    };
    let signal = match signal {
        None => None,
        Some(RawSignal { place: at, value, operation, strong }) => {
            let value = match operation {
                abi::NCCL_NET_SIGNAL_OP_INC => 1,
                abi::NCCL_NET_SIGNAL_OP_ADD => value,
                other => return Err(Refusal::SignalOp(other).into()),
            };
            // SAFETY: as above.
            Some(Signal { place: unsafe { place::<P>("signalMhandle", at) }?, value, strong })
        }
    };
    let posted = P::put(
        &contexts.0,
        &Put {
            context: natural("context", transfer.context)?,
            rank: transfer.rank as usize,
            size: transfer.size,
            data,
            signal,
            more: transfer.has_more(),
        },
    )?;
    request.put(raw(posted));
    Ok(())
}

#[inline]
pub(crate) unsafe fn get<P: RmaPlugin>(
    rma_ctx: *mut c_void,
    transfer: &Transfer,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not closed meanwhile.
    let contexts: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", rma_ctx) }?;
    let posted = P::get(
        &contexts.0,
        &Get {
            context: natural("context", transfer.context)?,
            rank: transfer.rank as usize,
            size: transfer.size,
            // SAFETY: no window is closed meanwhile.
            remote: unsafe { place::<P>("remoteMhandle", transfer.from) }?,
            // SAFETY: as above.
            local: unsafe { place::<P>("localMhandle", transfer.to) }?,
            more: transfer.has_more(),
        },
    )?;
    request.put(raw(posted));
    Ok(())
}

pub(crate) unsafe fn flush<P: RmaPlugin>(
    rma_ctx: *mut c_void,
    context: c_int,
    mhandle: *mut c_void,
    rank: u32,
    request: *mut *mut c_void,
) -> Outcome {
    // SAFETY: NULL or writable.
    let request = unsafe { Out::null("request", request) }?;
    // SAFETY: the contexts are not closed meanwhile.
    let contexts: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", rma_ctx) }?;
    // SAFETY: no window is closed meanwhile.
    let window: &Window<P> = unsafe { handle::borrow_tagged("mhandle", mhandle) }?;
    if let Some(posted) = P::flush(&contexts.0, natural("context", context)?, &window.0, rank as usize)? {
        request.put(raw(posted));
    }
    Ok(())
}

#[inline]
pub(crate) unsafe fn test<P: RmaPlugin>(
    coll_comm: *mut c_void,
    request: *mut c_void,
    done: *mut c_int,
) -> Outcome {
    // SAFETY: NULL or writable.
    let done = unsafe { Out::holding("done", done, 0) }?;
    // SAFETY: the group is not closed meanwhile.
    let group: &Group<P> = unsafe { handle::borrow_tagged("collComm", coll_comm) }?;
    // SAFETY: a request lives as long as its group.
    let pending: &Pending<P> = unsafe { handle::borrow_tagged("request", request) }?;
    done.put(c_int::from(P::test_rma(&group.0, &pending.0)?));
    Ok(())
}

#[inline]
pub(crate) unsafe fn progress<P: RmaPlugin>(rma_ctx: *mut c_void) -> Outcome {
    // SAFETY: the contexts are not closed meanwhile.
    let contexts: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", rma_ctx) }?;
    P::progress(&contexts.0)?;
    Ok(())
}

/// NCCL passes what `createContext` has made (src/gin/gin_host_proxy.cc), not the context of `init`.
pub(crate) unsafe fn query_last_error<P: RmaPlugin>(rma_ctx: *mut c_void, has_error: *mut bool) -> Outcome {
    // SAFETY: NULL or writable.
    let has_error = unsafe { Out::holding("hasError", has_error, false) }?;
    // SAFETY: the contexts are not closed meanwhile.
    let contexts: &Contexts<P> = unsafe { handle::borrow_tagged("rmaCtx", rma_ctx) }?;
    has_error.put(P::has_error(&contexts.0)?);
    Ok(())
}

fn natural(what: &'static str, value: c_int) -> Result<usize, Refusal> {
    usize::try_from(value).map_err(|_| Refusal::Negative { what, value })
}

/// Returns the address of a request, which C holds.
fn raw<T>(request: &Tagged<T>) -> *mut c_void {
    ptr::from_ref(request).cast_mut().cast()
}
