//! The trait that a plugin for one-sided transfers implements.

use crate::{
    Buffer, DmaBuf, Failure, Get, HandleBuf, MemKind, MrFlags, Plugin, Properties, Put, RmaConfig, RmaInit,
    RmaProperties, Tagged,
};

/// A plugin for one-sided transfers, in the shape of v16 and with Rust types.
///
/// NCCL uses it for windows: `ncclPutSignal`, and the collectives and kernels that use GIN where no
/// adapter serves the GPU directly. A type may implement [`NetPlugin`](crate::NetPlugin) beside it,
/// with other types of contexts, comms, registrations and requests.
///
/// 1. [`init`](Self::init) once or twice per communicator, then [`devices`](Self::devices) and
///    [`properties`](Self::properties). *Init thread.*
/// 2. Each rank of a group calls [`listen`](Self::listen), NCCL gathers the handles, and each rank
///    calls [`connect`](Self::connect) with all of them. Then [`create_context`](Self::create_context).
///    *The thread that registers the first window.*
/// 3. [`reg_mr`](Self::reg_mr): all ranks of a group register in the same order. A registration
///    stands for the memory of every rank. *The thread that registers a window.*
/// 4. [`iput`](Self::iput), [`iget`](Self::iget) and [`iflush`](Self::iflush) start a request,
///    [`test`](Self::test) polls it. *A progress thread per `RmaContext`.*
/// 5. [`dereg_mr`](Self::dereg_mr), [`destroy_context`](Self::destroy_context),
///    [`close_coll`](Self::close_coll), [`finalize`](Self::finalize). Releases up to 2.32 do not
///    finalize the context that GIN uses.
///
/// The adapters check pointers, handles, kinds of memory and negative numbers before a call. An
/// implementation must itself check device indices, ranks, indices of contexts, offsets and sizes,
/// the contents of a [`HandleBuf`], which another rank wrote, and in `test` that the request is in
/// flight.
///
/// It must accept at the same time: `reg_mr` and `dereg_mr` beside transfers on one group; all calls
/// on different contexts, also of one group. NCCL closes and deregisters nothing that a call uses.
///
/// Nobody reads a failure of a transfer for `ncclPutSignal`: the user sees a hang. A plugin logs its
/// failures, for example through [`warn`](crate::warn).
pub trait RmaPlugin: Plugin {
    /// The result of `init`.
    type Context: Send + Sync;
    /// A listening comm.
    type Listen: Send + Sync;
    /// A connected group of ranks: a `collComm`.
    type Coll: Send + Sync;
    /// The contexts of one `createContext`: an `rmaCtx`.
    type RmaContext: Send + Sync;
    /// A registration.
    type Mr: Send + Sync;
    /// A put, get or flush in flight. It lives in a pool of its context, made by
    /// [`RequestPool::rma`](crate::RequestPool::rma) or [`Slab::rma`](crate::Slab::rma).
    type Request: Send + Sync;

    /// `init`. NCCL may call `finalize` after a failure; the adapters absorb that call.
    fn init(args: &RmaInit) -> Result<Self::Context, Failure>;
    /// `finalize`. Drops the context by default.
    fn finalize(ctx: Self::Context) -> Result<(), Failure> {
        drop(ctx);
        Ok(())
    }
    /// `devices`: returns the number of devices.
    fn devices() -> Result<usize, Failure>;
    /// `getProperties`: returns the properties of device `dev`.
    ///
    /// The adapters set `device_type`. NCCL keeps up to 32 times `max_recvs` requests in flight per
    /// context and rank, and registers by DMA-BUF only if `ptr_support` has `NCCL_PTR_DMABUF`. A
    /// device of a network with the same name needs the same index there.
    fn properties(dev: usize) -> Result<Properties, Failure>;
    /// `getRmaProperties` (v16). Promises nothing by default.
    fn coll_properties(_: &Self::Coll) -> Result<RmaProperties, Failure> {
        Ok(RmaProperties::default())
    }

    /// `listen`: creates a listening comm and writes the handle that the ranks of the group connect
    /// to. The handle is all zeros on entry.
    fn listen(ctx: &Self::Context, dev: usize, handle: &mut HandleBuf) -> Result<Self::Listen, Failure>;
    /// `connect`: joins the group as rank `rank`. `handles` has a handle for each rank, that of
    /// `listen` at `rank`. May block: all ranks of the group call it.
    ///
    /// It has no context: NCCL 2.29.2 to 2.32 pass that of the network plugin here for
    /// `ncclPutSignal`. What a group needs of its context, `Listen` keeps.
    fn connect(listen: &Self::Listen, handles: &[&HandleBuf], rank: usize) -> Result<Self::Coll, Failure>;
    /// `createContext`: makes the contexts for transfers in a group. May block, as `connect`.
    fn create_context(coll: &Self::Coll, config: &RmaConfig) -> Result<Self::RmaContext, Failure>;

    /// `regMrSym` and `regMrSymDmaBuf`: registers the memory of this rank. May block, as `connect`.
    fn reg_mr(
        coll: &Self::Coll,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
        flags: MrFlags,
    ) -> Result<Self::Mr, Failure>;
    /// `deregMrSym`, unless the registration is NULL. Drops the registration by default.
    fn dereg_mr(_: &Self::Coll, mr: Self::Mr) -> Result<(), Failure> {
        drop(mr);
        Ok(())
    }

    /// `iput` and `iputSignal`: starts a put. It is complete when the data is in the memory of the
    /// target and the source may be written again. Never "call again": NCCL's limit of requests is
    /// that of [`properties`](Self::properties).
    fn iput<'a>(ctx: &'a Self::RmaContext, put: &Put<'_, Self>)
    -> Result<&'a Tagged<Self::Request>, Failure>;
    /// `iget`: starts a get. A GPU sees the data after a later `iflush` of the same context.
    fn iget<'a>(ctx: &'a Self::RmaContext, get: &Get<'_, Self>)
    -> Result<&'a Tagged<Self::Request>, Failure>;
    /// `iflush`: makes the data of earlier gets from `rank` into `mr` visible to the GPU. `None` means
    /// that it already is, which is the default. A plugin that reads into GPU memory must provide it.
    fn iflush<'a>(
        _ctx: &'a Self::RmaContext,
        _context: usize,
        _mr: &Self::Mr,
        _rank: usize,
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure> {
        Ok(None)
    }
    /// `test`: returns `true` once the request is complete. It is free from then on, and NCCL does
    /// not use it again.
    fn test(coll: &Self::Coll, request: &Self::Request) -> Result<bool, Failure>;
    /// `rmaProgress` (`ginProgress` in v13): called all the time by the thread of the context. Does
    /// nothing by default.
    fn progress(_: &Self::RmaContext) -> Result<(), Failure> {
        Ok(())
    }
    /// `queryLastError`: returns whether a transfer of the contexts has failed. Never, by default.
    fn has_error(_: &Self::RmaContext) -> Result<bool, Failure> {
        Ok(false)
    }

    /// `destroyContext`. Drops the contexts by default.
    fn destroy_context(ctx: Self::RmaContext) -> Result<(), Failure> {
        drop(ctx);
        Ok(())
    }
    /// `closeColl`. Drops the group by default.
    fn close_coll(coll: Self::Coll) -> Result<(), Failure> {
        drop(coll);
        Ok(())
    }
    /// `closeListen`. Drops the listening comm by default.
    fn close_listen(listen: Self::Listen) -> Result<(), Failure> {
        drop(listen);
        Ok(())
    }
}
