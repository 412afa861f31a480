//! The values that an implementation receives from the adapters and returns to them.

use core::ffi::{CStr, c_int};
use core::ptr::{self, NonNull};

use nccl_net_abi as abi;

use crate::{Failure, Logger, NetPlugin, Profiler, ProfilerHandle};

/// Maximum number of receives in one `irecv`. `maxRecvs` may be lower, never higher.
pub const MAX_RECVS: usize = 8;
/// Maximum number of physical devices in a virtual device (v12; older tables carry four).
pub const MAX_VDEVS: usize = 8;

/// Arguments of `init`, copied out of NCCL's memory.
#[derive(Debug, Clone, Copy)]
pub struct Init {
    /// Version of the table that NCCL selected, 6 to 12.
    pub version: u32,
    /// `commId` (v11 and later), else 0.
    pub comm_id: u64,
    /// Settings of the communicator (v11 and later), else undefined.
    pub config: CommConfig,
    /// NCCL's logger. Drops every line if the caller passed NULL.
    pub logger: Logger,
    /// The profiler callback (v10 and later), if a profiler is loaded.
    pub profiler: Option<Profiler>,
}

/// `ncclNetCommConfig`. NCCL passes it to `init` from v11 on, and to each `connect` in v10.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommConfig {
    /// Traffic class; `None` if NCCL left it undefined or the version has no such field.
    pub traffic_class: Option<c_int>,
}

/// One direction of [`NetAttr`] (v11 and later). -1 means undefined, as in C.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CommAttr {
    /// Maximum number of peers used at the same time.
    pub max_concurrent_peers: i32,
    /// Minimum number of peers used at the same time.
    pub min_concurrent_peers: i32,
    /// Maximum number of flows per peer.
    pub max_flows_per_peer: i32,
    /// Minimum number of flows per peer.
    pub min_flows_per_peer: i32,
}

/// `ncclNetAttr`: the traffic that NCCL expects on a context's connections (v11 and later).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NetAttr {
    /// The sending direction.
    pub send: CommAttr,
    /// The receiving direction.
    pub recv: CommAttr,
    /// Bit mask over `ncclFunc_t`; all ones if undefined.
    pub op: u32,
    /// Bit mask over algorithms; all ones if undefined.
    pub algo: u32,
    /// Bit mask over protocols; all ones if undefined.
    pub proto: u32,
}

/// Properties of a device: every field of the newest version.
///
/// The adapters drop the fields that an older version lacks. NCCL keeps the pointers of the two
/// strings, hence `'static`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Properties {
    /// Name, unique per device: NCCL keys its topology by it.
    pub name: &'static CStr,
    /// sysfs path of the PCI device; `None` for a virtual device.
    pub pci_path: Option<&'static CStr>,
    /// Hardware identity; equal for all ports of one adapter.
    pub guid: u64,
    /// `NCCL_PTR_HOST`, `NCCL_PTR_CUDA` and `NCCL_PTR_DMABUF`, or-ed.
    pub ptr_support: c_int,
    /// Whether a registration on one comm serves all comms of the device (v8 and later).
    pub reg_is_global: bool,
    /// Whether NCCL must flush after every receive into GPU memory (v9 and later).
    pub force_flush: bool,
    /// Link speed in Mb/s.
    pub speed: c_int,
    /// Port number, from 1.
    pub port: c_int,
    /// Network latency in microseconds.
    pub latency: f32,
    /// Maximum number of comms.
    pub max_comms: c_int,
    /// Maximum number of receives in one group, 1 to [`MAX_RECVS`].
    pub max_recvs: c_int,
    /// `ncclNetDeviceType` (v7 and later).
    pub device_type: c_int,
    /// `netDeviceVersion` (v7 and later).
    pub device_version: c_int,
    /// Physical devices behind the device (v9 and later); empty means the device itself. Versions
    /// up to v11 report the first four.
    pub vdevs: VDevs,
    /// Maximum size of a point-to-point message in bytes (v9 and later). The adapters report 1 to
    /// 1 GiB: `test` returns sizes as `int`.
    pub max_p2p_bytes: usize,
    /// Maximum size of a collective message in bytes (v9 and later), within the same bounds.
    pub max_coll_bytes: usize,
    /// Reserved (v11 and later).
    pub max_multi_request_size: c_int,
    /// Rail of the device (v12), from 0; -1 if undefined.
    pub rail_id: i16,
    /// Network plane of the device (v12), from 0; -1 if undefined.
    pub plane_id: i16,
}

impl Properties {
    /// Returns the properties of a plain device: host memory, one receive per group, messages of up
    /// to 1 GiB, 10 Gb/s, no PCI path, no rail.
    pub const fn new(name: &'static CStr) -> Self {
        Self {
            name,
            pci_path: None,
            guid: 0,
            ptr_support: abi::NCCL_PTR_HOST,
            reg_is_global: false,
            force_flush: false,
            speed: 10_000,
            port: 1,
            latency: 0.0,
            max_comms: 1 << 16,
            max_recvs: 1,
            device_type: abi::NCCL_NET_DEVICE_HOST.0,
            device_version: abi::NCCL_NET_DEVICE_INVALID_VERSION,
            vdevs: VDevs::NONE,
            max_p2p_bytes: 1 << 30,
            max_coll_bytes: 1 << 30,
            max_multi_request_size: 0,
            rail_id: abi::NCCL_NET_ID_UNDEF,
            plane_id: abi::NCCL_NET_ID_UNDEF,
        }
    }
}

/// `ncclNetVDeviceProps`: indices of the physical devices behind a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct VDevs {
    len: usize,
    devs: [c_int; MAX_VDEVS],
}

impl VDevs {
    /// No device.
    pub const NONE: Self = Self { len: 0, devs: [0; MAX_VDEVS] };

    /// Copies up to [`MAX_VDEVS`] device indices. Returns `None` if there are more.
    pub fn new(devs: &[c_int]) -> Option<Self> {
        let mut out = Self { len: devs.len(), ..Self::NONE };
        out.devs.get_mut(..devs.len())?.copy_from_slice(devs);
        Some(out)
    }

    /// Returns the indices.
    pub fn as_slice(&self) -> &[c_int] {
        &self.devs[..self.len]
    }
}

/// Memory that NCCL owns.
///
/// An address and a length, not a reference: a NIC and other threads access the memory at the same
/// time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Buffer {
    /// Host or device virtual address. 0 is possible if `len` is 0.
    pub addr: usize,
    /// Length in bytes.
    pub len: usize,
}

impl Buffer {
    /// Returns the address as a pointer, for host memory.
    ///
    /// NCCL keeps the memory valid until the request that uses it is complete.
    #[inline]
    pub fn as_ptr(&self) -> *mut u8 {
        ptr::with_exposed_provenance_mut(self.addr)
    }
}

/// `NCCL_PTR_*`: the kind of memory in a registration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemKind {
    /// `NCCL_PTR_HOST`: host memory.
    Host,
    /// `NCCL_PTR_CUDA`: GPU memory.
    Cuda,
    /// `NCCL_PTR_DMABUF`: GPU memory through a DMA-BUF.
    DmaBuf,
}

/// The DMA-BUF of a `regMrDmaBuf`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DmaBuf {
    /// Offset of the memory in the DMA-BUF, in bytes.
    pub offset: u64,
    /// File descriptor. NCCL closes it right after the call.
    pub fd: c_int,
}

/// One receive of a group.
#[derive(Debug)]
pub struct RecvBuffer<'a, P: NetPlugin> {
    /// Destination; `len` is the maximum size of the message.
    pub buffer: Buffer,
    /// Tag of the matching send.
    pub tag: c_int,
    /// Registration of `buffer`, if NCCL passed one.
    pub mr: Option<&'a P::Mr>,
    /// Profiler handle of this receive.
    pub profiler: ProfilerHandle,
}

/// The sizes that [`NetPlugin::test`] reports for a completed request.
///
/// One size for a send, one per receive of a group, none for a flush. They go directly into NCCL's
/// array.
#[derive(Debug)]
#[repr(transparent)]
pub struct Sizes(Option<NonNull<c_int>>);

impl Sizes {
    /// Discards all sizes.
    pub const IGNORED: Self = Self(None);

    /// # Safety
    /// While this value lives, `place` is NULL or has room for every size that the request reports.
    #[inline]
    pub(crate) const unsafe fn new(place: *mut c_int) -> Self {
        Self(NonNull::new(place))
    }

    /// Sets the size in bytes of message `index` of the request; a send has index 0.
    ///
    /// # Errors
    /// `Failure::Internal` if `index` is not below [`MAX_RECVS`] or `bytes` exceeds `INT_MAX`. Both
    /// are bugs of the implementation: the adapters refuse such sends and receives.
    #[inline]
    pub fn set(&mut self, index: usize, bytes: usize) -> Result<(), Failure> {
        if index >= MAX_RECVS || bytes > c_int::MAX as usize {
            return Err(Failure::Internal);
        }
        if let Some(place) = self.0 {
            // SAFETY: the array has room for each message of the request, as promised to `new`.
            unsafe { place.add(index).write(bytes as c_int) };
        }
        Ok(())
    }
}
