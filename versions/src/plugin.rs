//! The traits that a network plugin implements.

use core::ffi::{CStr, c_int};

use crate::{
    Buffer, CommConfig, DmaBuf, Failure, HandleBuf, Init, Logger, MemKind, NetAttr, ProfilerHandle,
    Properties, RecvBuffer, Refusal, Sizes, Tagged, VDevs, state,
};

/// What plugins of each kind have: a name, and a place for reports.
///
/// The adapters keep the logger, and which refusals they have reported, per implementing type. One
/// that implements [`NetPlugin`] and [`RmaPlugin`](crate::RmaPlugin) has one logger. The names of calls
/// of the latter begin with `RMA`.
pub trait Plugin: Sized + 'static {
    /// The name in the tables, which NCCL logs. `NCCL_NET` selects a network by it.
    const NAME: &'static CStr;

    /// Reports a panic that the adapters caught in `call`. NCCL receives `ncclInternalError`. Logs
    /// one WARN line by default.
    fn on_panic(call: &'static str) {
        state::warn::<Self>(call, &"internal error: a panic was caught");
    }
    /// Reports that the adapters refused `call` before the implementation saw it. NCCL receives
    /// [`Refusal::failure`]. A wrong handle is reported once for each argument of a call, until the
    /// next `init`: NCCL goes on after the failure of some calls. So is a call from within NCCL's
    /// logger or profiler, but for those of the data path, which the implementation must refuse if they
    /// would wait for the call that calls back. Logs one WARN line by default, but not from within these.
    fn on_refused(call: &'static str, why: &Refusal) {
        state::warn::<Self>(call, why);
    }

    /// Runs at the end of each call, of those of the data path only if they fail, when nothing is
    /// locked any more: the place to pass lines to NCCL's logger, which may block.
    fn leaving() {}

    /// Receives the logger of an `init`, before [`NetPlugin::init`] or
    /// [`RmaPlugin::init`](crate::RmaPlugin::init), and on every later one. It replaces earlier loggers,
    /// which may belong to an unloaded library.
    fn logger(_: Logger) {}
}

/// A network plugin, in the shape of v11 and with Rust types.
///
/// The adapters check pointers, handles, tags, sizes and counts before a call. An implementation
/// must itself check:
///
/// - device indices that are too large (`dev` is any non-negative number);
/// - the contents of a [`HandleBuf`], which the peer wrote;
/// - in `test`, that the request is in flight.
///
/// It must accept these calls at the same time: `reg_mr_*` and `dereg_mr` (NCCL's service thread)
/// beside `isend`, `irecv`, `test` and `iflush` (its progress thread) on one comm; every call on
/// different comms; `properties` and `set_net_attr` from any thread. NCCL closes a comm only after
/// all other calls on it have returned.
///
/// The implementation logs its own failures, for example through [`warn`](crate::warn). A
/// [`Failure`] is only the code that NCCL receives.
pub trait NetPlugin: Plugin {
    /// Whether the tables have `makeVDevice` (v9 and later). If not, the slot is NULL and NCCL uses
    /// the physical devices.
    const VDEVICES: bool = false;
    /// Whether the tables have `regMrDmaBuf`. If not, the slot is NULL, the adapters remove
    /// `NCCL_PTR_DMABUF` from `ptr_support`, and NCCL registers GPU memory with `regMr`.
    const DMABUF: bool = false;
    /// Whether the tables have `setNetAttr` (v11 and later). If not, the slot is NULL and NCCL does
    /// not describe its traffic.
    const NET_ATTR: bool = false;

    /// The result of `init`: one per communicator from v11 on, one per process before. The latter
    /// is never finalized.
    type Context: Send + Sync;
    /// A listening comm.
    type Listen: Send + Sync;
    /// A sending comm.
    type Send: Send + Sync;
    /// A receiving comm.
    type Recv: Send + Sync;
    /// A registration.
    type Mr: Send + Sync;
    /// A send, receive or flush in flight. It lives in a pool of its comm: see
    /// [`RequestPool`](crate::RequestPool).
    type Request: Send + Sync;

    /// `init`. NCCL may call `finalize` after a failure; the adapters absorb that call.
    fn init(args: &Init) -> Result<Self::Context, Failure>;
    /// A further `init` of v6 to v10, after the process already has its context. The profiler
    /// callback replaces the earlier one, as the logger does.
    fn reinit(_: &Self::Context, _: &Init) -> Result<(), Failure> {
        Ok(())
    }
    /// `finalize` (v11 and later). All comms of the context are closed, except those that NCCL
    /// never finished connecting. Drops the context by default.
    fn finalize(ctx: Self::Context) -> Result<(), Failure> {
        drop(ctx);
        Ok(())
    }
    /// `devices`: returns the number of devices, virtual devices included.
    fn devices() -> Result<usize, Failure>;
    /// `getProperties`: returns the properties of device `dev`.
    fn properties(dev: usize) -> Result<Properties, Failure>;
    /// `makeVDevice` (v9 and later): merges devices and returns the index of the new one. Only
    /// called if [`NetPlugin::VDEVICES`] is set; the default fails with `ncclInternalError`.
    fn make_vdevice(_: &VDevs) -> Result<usize, Failure> {
        Err(Failure::Internal)
    }
    /// `setNetAttr` (v11 and later). Only called if [`NetPlugin::NET_ATTR`] is set; the default
    /// ignores the attributes, which are hints.
    fn set_net_attr(_: &Self::Context, _: &NetAttr) -> Result<(), Failure> {
        Ok(())
    }

    /// `listen`: creates a listening comm and writes the handle that peers connect to. The handle
    /// is all zeros on entry.
    fn listen(ctx: &Self::Context, dev: usize, handle: &mut HandleBuf) -> Result<Self::Listen, Failure>;
    /// `connect`: returns a comm, or `None` to be called again with the same buffer. The buffer may
    /// keep the state of the attempt. Must not block.
    fn connect(
        ctx: &Self::Context,
        dev: usize,
        config: &CommConfig,
        handle: &mut HandleBuf,
    ) -> Result<Option<Self::Send>, Failure>;
    /// `accept`: returns a comm, or `None` to be called again. Must not block.
    fn accept(listen: &Self::Listen) -> Result<Option<Self::Recv>, Failure>;

    /// `regMr` and `regMrDmaBuf` on a sending comm.
    fn reg_mr_send(
        comm: &Self::Send,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Self::Mr, Failure>;
    /// `regMr` and `regMrDmaBuf` on a receiving comm.
    fn reg_mr_recv(
        comm: &Self::Recv,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Self::Mr, Failure>;
    /// `deregMr`, on any comm of the device, unless the registration is NULL. Drops the registration
    /// by default.
    fn dereg_mr(mr: Self::Mr) -> Result<(), Failure> {
        drop(mr);
        Ok(())
    }

    /// Returns whether `isend` would find a receive. If not, the call ends before its other
    /// arguments are checked, and `isend` is not called. A plugin that cannot know returns `true`,
    /// the default. Must not panic.
    #[inline(always)]
    fn may_send(_: &Self::Send) -> bool {
        true
    }
    /// `isend`: starts a send, or returns `None` to be called again.
    fn isend<'a>(
        comm: &'a Self::Send,
        buffer: Buffer,
        tag: c_int,
        mr: Option<&Self::Mr>,
        profiler: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure>;
    /// `irecv`: starts a group of 1 to [`MAX_RECVS`](crate::MAX_RECVS) receives, or returns `None`
    /// to be called again. `optional_completion` is NCCL's hint (v9 and later) that it detects the
    /// data without the completion.
    fn irecv<'a>(
        comm: &'a Self::Recv,
        buffers: &[RecvBuffer<'_, Self>],
        optional_completion: bool,
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure>;
    /// `iflush`: makes received data visible to the GPU. `None` means that it already is, which is
    /// the default. A plugin that receives into GPU memory must provide it.
    fn iflush<'a>(
        _: &'a Self::Recv,
        _: &[(Buffer, Option<&Self::Mr>)],
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure> {
        Ok(None)
    }
    /// The short way of `test`: returns the size of a completed request of one message, which is
    /// free from then on. `None`, the default, if there is more to do: then `test` is called. Must
    /// not panic.
    #[inline(always)]
    fn collect(_: &Self::Request) -> Option<c_int> {
        None
    }
    /// `test`: returns `true` once the request is complete, after it has set its sizes. The request
    /// is free from then on, and NCCL does not use it again.
    fn test(request: &Self::Request, sizes: &mut Sizes) -> Result<bool, Failure>;

    /// `closeSend`. Drops the comm by default.
    fn close_send(comm: Self::Send) -> Result<(), Failure> {
        drop(comm);
        Ok(())
    }
    /// `closeRecv`. Drops the comm by default.
    fn close_recv(comm: Self::Recv) -> Result<(), Failure> {
        drop(comm);
        Ok(())
    }
    /// `closeListen`. Drops the listening comm by default.
    fn close_listen(listen: Self::Listen) -> Result<(), Failure> {
        drop(listen);
        Ok(())
    }
}
