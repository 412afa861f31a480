//! Device properties of any version.

use std::ffi::c_int;

use nccl_net_abi::{v6, v7, v8, v9, v10, v11, v12};

use crate::table::string;

/// A device as `getProperties` describes it. What the table's version does not have is `None`.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Properties {
    /// `name`; `None` if the plugin wrote NULL, which NCCL does not survive.
    pub name: Option<String>,
    /// `pciPath`; `None` if NULL.
    pub pci_path: Option<String>,
    /// `guid`
    pub guid: u64,
    /// Bits of `NCCL_PTR_*`.
    pub ptr_support: c_int,
    /// `speed` in Mb/s.
    pub speed: c_int,
    /// `port`
    pub port: c_int,
    /// `latency` in microseconds.
    pub latency: f32,
    /// `maxComms`
    pub max_comms: c_int,
    /// Most receives of an `irecv`.
    pub max_recvs: c_int,
    /// `netDeviceType`, from v7 on.
    pub device_type: Option<c_int>,
    /// `netDeviceVersion`, from v7 on.
    pub device_version: Option<c_int>,
    /// `regIsGlobal`, from v8 on.
    pub reg_is_global: Option<bool>,
    /// `forceFlush`, from v9 on.
    pub force_flush: Option<bool>,
    /// The physical devices (`vProps`), from v9 on. Never more than the structure has room for.
    pub vdevs: Option<Vec<c_int>>,
    /// `maxP2pBytes`, from v9 on.
    pub max_p2p_bytes: Option<usize>,
    /// `maxCollBytes`, from v9 on.
    pub max_coll_bytes: Option<usize>,
    /// `maxMultiRequestSize`, from v11 on.
    pub max_multi_request_size: Option<c_int>,
    /// `railId`, from v12 on.
    pub rail_id: Option<i16>,
    /// `planeId`, from v12 on.
    pub plane_id: Option<i16>,
}

impl Properties {
    /// Returns the largest message that NCCL sends: `maxP2pBytes`, or 1 GiB before v9 (NCCL's
    /// `MAX_NET_SIZE`).
    pub fn max_bytes(&self) -> usize {
        self.max_p2p_bytes.unwrap_or(1 << 30)
    }
}

/// A version's `ncclNetProperties`: integers and pointers, for which every bit pattern is valid.
pub(crate) trait FromProps {
    /// Copies everything.
    ///
    /// # Safety
    /// `name` and `pciPath` are NULL or C strings.
    unsafe fn read(&self) -> Properties;
}

fn devices(ndevs: c_int, devs: &[c_int]) -> Vec<c_int> {
    let count = usize::try_from(ndevs).unwrap_or(0).min(devs.len());
    devs[..count].to_vec()
}

/// The fields that came with a version, and those of the versions before it.
macro_rules! newer_fields {
    (v6 $out:ident $props:ident) => {};
    (v7 $out:ident $props:ident) => {
        $out.device_type = Some($props.netDeviceType.0);
        $out.device_version = Some($props.netDeviceVersion);
    };
    (v8 $out:ident $props:ident) => {
        newer_fields!(v7 $out $props);
        $out.reg_is_global = Some($props.regIsGlobal != 0);
    };
    (v9 $out:ident $props:ident) => {
        newer_fields!(v8 $out $props);
        $out.force_flush = Some($props.forceFlush != 0);
        $out.vdevs = Some(devices($props.vProps.ndevs, &$props.vProps.devs));
        $out.max_p2p_bytes = Some($props.maxP2pBytes);
        $out.max_coll_bytes = Some($props.maxCollBytes);
    };
    (v10 $out:ident $props:ident) => { newer_fields!(v9 $out $props) };
    (v11 $out:ident $props:ident) => {
        newer_fields!(v10 $out $props);
        $out.max_multi_request_size = Some($props.maxMultiRequestSize);
    };
    (v12 $out:ident $props:ident) => {
        newer_fields!(v11 $out $props);
        $out.rail_id = Some($props.railId);
        $out.plane_id = Some($props.planeId);
    };
}

macro_rules! properties {
    ($($module:ident)+) => {$(
        impl FromProps for $module::Props {
            unsafe fn read(&self) -> Properties {
                #[allow(unused_mut, reason = "v6 has no newer fields")]
                let mut out = Properties {
                    // SAFETY: NULL or a C string (the caller's promise).
                    name: unsafe { string(self.name) },
                    // SAFETY: as above.
                    pci_path: unsafe { string(self.pciPath) },
                    guid: self.guid,
                    ptr_support: self.ptrSupport,
                    speed: self.speed,
                    port: self.port,
                    latency: self.latency,
                    max_comms: self.maxComms,
                    max_recvs: self.maxRecvs,
                    device_type: None,
                    device_version: None,
                    reg_is_global: None,
                    force_flush: None,
                    vdevs: None,
                    max_p2p_bytes: None,
                    max_coll_bytes: None,
                    max_multi_request_size: None,
                    rail_id: None,
                    plane_id: None,
                };
                newer_fields!($module out self);
                out
            }
        }
    )+};
}

properties! { v6 v7 v8 v9 v10 v11 v12 }
