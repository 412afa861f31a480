//! The one interface an implementation fills in: shaped like v11, in Rust types.

use core::ffi::{CStr, c_int};
use core::ptr::NonNull;

use crate::{Failure, HandleBuf, Logger, Profiler, ProfilerHandle, Refusal, Tagged};

/// Most receives that one `irecv` may group (`maxRecvs` may say less, never more).
pub const MAX_RECVS: usize = 8;
/// Most physical devices in a virtual one (v12; older tables carry four).
pub const MAX_VDEVS: usize = 8;

/// What `init` hands over. All of it is copied out of NCCL's memory before the call.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// The table version that NCCL picked, 6 to 12.
    pub version: u32,
    /// `commId` (v11 and later), else 0.
    pub comm_id: u64,
    /// The communicator's settings (v11 and later; undefined before).
    pub config: CommConfig,
    /// NCCL's logger. A caller that gives none gets one that drops every line.
    pub logger: Logger,
    /// The profiler's callback (v10 and later, where one is loaded).
    pub profiler: Option<Profiler>,
}

/// `ncclNetCommConfig`: from `init` in v11 and later, from each `connect` in v10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommConfig {
    /// Traffic class; `None` where NCCL says undefined or its version has no such field.
    pub traffic_class: Option<c_int>,
}

/// One connection's share of `ncclNetAttr` (v11 and later). -1 means undefined, as in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommAttr {
    /// `maxConcurrentPeers`
    pub max_concurrent_peers: i32,
    /// `minConcurrentPeers`
    pub min_concurrent_peers: i32,
    /// `maxFlowsPerPeer`
    pub max_flows_per_peer: i32,
    /// `minFlowsPerPeer`
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr` (v11 and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetAttr {
    /// Of the sending side.
    pub send: CommAttr,
    /// Of the receiving side.
    pub recv: CommAttr,
    /// Bit mask over `ncclFunc_t`, all ones where undefined.
    pub op: u32,
    /// Bit mask over algorithms, all ones where undefined.
    pub algo: u32,
    /// Bit mask over protocols, all ones where undefined.
    pub proto: u32,
}

/// A device's properties: every field of the newest version. The adapters leave out what an older
/// version has no place for. NCCL keeps the two strings, hence `'static`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Properties {
    /// Unique per device: NCCL keys its topology by it.
    pub name: &'static CStr,
    /// sysfs path of the PCI device; `None` for a virtual one without a single place.
    pub pci_path: Option<&'static CStr>,
    /// Hardware identity; equal for ports of one adapter.
    pub guid: u64,
    /// Bits of `NCCL_PTR_HOST`, `NCCL_PTR_CUDA`, `NCCL_PTR_DMABUF`.
    pub ptr_support: c_int,
    /// Whether a registration made on one comm serves all comms of the device (v8 and later).
    pub reg_is_global: bool,
    /// Whether NCCL must flush after GPUDirect receives whatever the GPU (v9 and later).
    pub force_flush: bool,
    /// Mb/s.
    pub speed: c_int,
    /// Port number, from 1.
    pub port: c_int,
    /// Microseconds.
    pub latency: f32,
    /// Most comms.
    pub max_comms: c_int,
    /// Most receives in one group, 1 to [`MAX_RECVS`].
    pub max_recvs: c_int,
    /// `ncclNetDeviceType` (v7 and later).
    pub device_type: c_int,
    /// `netDeviceVersion` (v7 and later).
    pub device_version: c_int,
    /// Physical devices behind this one (v9 and later); none means the device itself. Up to v11 NCCL is told
    /// the first four.
    pub vdevs: VDevs,
    /// Largest point-to-point message in bytes (v9 and later). NCCL is told at least 1 and at most 1 GiB: `test`
    /// gives sizes as `int`.
    pub max_p2p_bytes: usize,
    /// Largest collective message in bytes (v9 and later), within the same bounds.
    pub max_coll_bytes: usize,
    /// v11 and later.
    pub max_multi_request_size: c_int,
    /// v12; -1 undefined.
    pub rail_id: i16,
    /// v12; -1 undefined.
    pub plane_id: i16,
}

/// `ncclNetVDeviceProps`: the physical devices that a device consists of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VDevs {
    len: usize,
    devs: [c_int; MAX_VDEVS],
}

impl VDevs {
    /// Takes up to [`MAX_VDEVS`] device indices; `None` if there are more.
    pub fn new(devs: &[c_int]) -> Option<Self> {
        let mut out = Self { len: devs.len(), ..Self::default() };
        out.devs.get_mut(..devs.len())?.copy_from_slice(devs);
        Some(out)
    }

    /// The indices.
    pub fn as_slice(&self) -> &[c_int] {
        &self.devs[..self.len]
    }
}

/// Memory that NCCL owns: an address and a length, not a reference, since a NIC and other threads
/// use it at the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Buffer {
    /// Host or device virtual address.
    pub addr: usize,
    /// Bytes.
    pub len: usize,
}

/// `NCCL_PTR_*`: where registered memory lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemKind {
    /// `NCCL_PTR_HOST`
    Host,
    /// `NCCL_PTR_CUDA`
    Cuda,
    /// `NCCL_PTR_DMABUF`
    DmaBuf,
}

/// The file behind `regMrDmaBuf`. NCCL closes `fd` right after the call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaBuf {
    /// Offset into the DMA-BUF.
    pub offset: u64,
    /// Descriptor, valid during the call.
    pub fd: c_int,
}

/// One receive of a group.
#[derive(Debug)]
pub struct RecvBuffer<'a, P: NetPlugin> {
    /// Where the data goes; `len` is the most that may come.
    pub buffer: Buffer,
    /// Which sender's message is meant.
    pub tag: c_int,
    /// The registration of `buffer`, where NCCL gives one.
    pub mr: Option<&'a P::Mr>,
    /// The profiler's handle of this receive.
    pub profiler: ProfilerHandle,
}

/// Where [`NetPlugin::test`] tells the sizes of a finished request: one for a send, one per receive of a group, none for a
/// flush. NCCL's own array, if it gives one, so that nothing is moved.
#[derive(Debug)]
pub struct Sizes(Option<NonNull<c_int>>);

impl Sizes {
    /// Nobody wants to know.
    pub const UNWANTED: Self = Self(None);

    /// # Safety
    /// `place` is NULL, or has room for as many sizes as the request tells, while this value lives.
    #[inline]
    pub(crate) const unsafe fn new(place: *mut c_int) -> Self {
        Self(NonNull::new(place))
    }

    /// The size of message `index` of the request: 0 for a send.
    ///
    /// # Errors
    /// More than NCCL's `int` can tell, or no message of any group: a mistake of the plugin, since the adapters refuse such sends and
    /// receives.
    #[inline]
    pub fn tell(&mut self, index: usize, bytes: usize) -> Result<(), Failure> {
        if index >= MAX_RECVS || bytes > c_int::MAX as usize {
            return Err(Failure::Internal);
        }
        if let Some(place) = self.0 {
            // SAFETY: there is room for each message of the request, as the caller of `new` promised.
            unsafe { place.add(index).write(bytes as c_int) };
        }
        Ok(())
    }
}

/// A network plugin.
///
/// The adapters check pointers, tags, sizes and counts before a call, so an implementation sees valid
/// values of Rust types. It must be ready for these calls at the same time: `reg_mr` and `dereg_mr`
/// (NCCL's service thread) beside `isend`, `irecv`, `test` and `iflush` (its progress thread) on one
/// comm; everything on different comms; `properties` and `set_net_attr` from any thread.
///
/// Failures are reported (logged) by the implementation; a [`Failure`] is only the code for NCCL.
pub trait NetPlugin: Sized + 'static {
    /// The table's `name`: what `NCCL_NET` selects by.
    const NAME: &'static CStr;
    /// Whether the tables offer `makeVDevice` (v9 and later). If not, the slot is NULL.
    const VDEVICES: bool;
    /// Whether the tables offer `regMrDmaBuf`. If not, the slot is NULL.
    const DMABUF: bool;

    /// What `init` makes. One per communicator in v11 and later. Before, one for the process, which is
    /// never finalized.
    type Context: Send + Sync;
    /// A listening end.
    type Listen: Send + Sync;
    /// A sending comm.
    type Send: Send + Sync;
    /// A receiving comm.
    type Recv: Send + Sync;
    /// A registration.
    type Mr: Send + Sync;
    /// A send, receive or flush under way. It lives in its comm's pool.
    type Request: Send + Sync;

    /// Called when a panic was caught at the border of `call`.
    fn panicked(call: &'static str);
    /// Called when the adapters refused `call` before the implementation saw it. NCCL gets
    /// [`Refusal::failure`]. Unless overridden this is one WARN line to the logger of the latest `init`.
    fn refused(call: &'static str, why: &Refusal) {
        crate::state::warn::<Self>(call, why);
    }

    /// Each `init` of every version brings a logger, to be used from then on: an earlier one may belong to a library
    /// that is gone. Called before [`NetPlugin::init`], and alone where the process has its context (v6 to v10).
    fn logger(_: Logger) {}
    /// `init`. After a failure NCCL may still call `finalize`; the adapters absorb that.
    fn init(args: &Init) -> Result<Self::Context, Failure>;
    /// A later `init` of v6 to v10, for which the process has its context: what else it brings. A profiler's callback
    /// may belong to another library than the one before, as the logger.
    fn init_again(_: &Self::Context, _: &Init) -> Result<(), Failure> {
        Ok(())
    }
    /// `finalize` (v11 and later): the context's comms are closed, but for those that NCCL never finished to
    /// connect and therefore forgets.
    fn finalize(ctx: Self::Context) -> Result<(), Failure>;
    /// `devices`: how many, virtual ones included.
    fn devices() -> Result<usize, Failure>;
    /// `getProperties`; `dev` is any non-negative number.
    fn properties(dev: usize) -> Result<Properties, Failure>;
    /// `makeVDevice` (v9 and later): joins devices, gives the new one's index.
    fn make_vdevice(devs: &VDevs) -> Result<usize, Failure>;
    /// `setNetAttr` (v11 and later).
    fn set_net_attr(ctx: &Self::Context, attr: &NetAttr) -> Result<(), Failure>;

    /// `listen`: writes the handle that peers connect to; it is all zeros before. `dev` is any non-negative number.
    fn listen(ctx: &Self::Context, dev: usize, handle: &mut HandleBuf) -> Result<Self::Listen, Failure>;
    /// `connect`: called again with the same buffer until it gives a comm; state between the calls may be
    /// kept in the buffer. Must not block. `dev` is any non-negative number.
    fn connect(
        ctx: &Self::Context,
        dev: usize,
        config: &CommConfig,
        handle: &mut HandleBuf,
    ) -> Result<Option<Self::Send>, Failure>;
    /// `accept`: called again until it gives a comm. Must not block.
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
    /// `deregMr`, whichever comm it came from.
    fn dereg_mr(mr: Self::Mr) -> Result<(), Failure>;

    /// `isend`; `None` means "not now, call again".
    fn isend<'a>(
        comm: &'a Self::Send,
        buffer: Buffer,
        tag: c_int,
        mr: Option<&Self::Mr>,
        profiler: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure>;
    /// `irecv` of 1 to [`MAX_RECVS`] buffers. `optional_completion` is NCCL's hint (v9 and later) that the
    /// caller does not need the completion to know of the data.
    fn irecv<'a>(
        comm: &'a Self::Recv,
        buffers: &[RecvBuffer<'_, Self>],
        optional_completion: bool,
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure>;
    /// `iflush`; `None` means that there is nothing to wait for.
    fn iflush<'a>(
        comm: &'a Self::Recv,
        buffers: &[(Buffer, Option<&Self::Mr>)],
    ) -> Result<Option<&'a Tagged<Self::Request>>, Failure>;
    /// `test`: `true` once, when the request is done, and its sizes told; it goes back to its pool with that.
    fn test(request: &Self::Request, sizes: &mut Sizes) -> Result<bool, Failure>;

    /// `closeSend`
    fn close_send(comm: Self::Send) -> Result<(), Failure>;
    /// `closeRecv`
    fn close_recv(comm: Self::Recv) -> Result<(), Failure>;
    /// `closeListen`
    fn close_listen(listen: Self::Listen) -> Result<(), Failure>;
}
