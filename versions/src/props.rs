//! Conversions of device properties and virtual devices into each version's structures.

use core::ffi::{CStr, c_char, c_int};

use nccl_net_abi::{self as abi, ncclNetDeviceType, v9, v12};

use crate::{MAX_RECVS, Properties, Refusal, VDevs};

/// The largest message size reported to NCCL: `test` returns sizes as `int`, and NCCL splits by
/// powers of two.
const MAX_MESSAGE: usize = 1 << 30;

/// A version's `ncclNetProperties`.
pub(crate) trait FromProperties {
    /// Converts every field that the version has.
    fn from_properties(p: &Properties) -> Self;
}

/// Brings the properties of device `dev` into the ranges that NCCL relies on.
pub(crate) fn in_range(mut p: Properties, dev: c_int) -> Properties {
    p.max_recvs = p.max_recvs.clamp(1, MAX_RECVS as c_int);
    p.max_p2p_bytes = p.max_p2p_bytes.clamp(1, MAX_MESSAGE);
    p.max_coll_bytes = p.max_coll_bytes.clamp(1, MAX_MESSAGE);
    if p.vdevs.as_slice().is_empty() {
        p.vdevs = VDevs::new(&[dev]).unwrap_or_default();
    }
    p
}

/// `ncclNetVDeviceProps` of a version.
pub(crate) trait VirtualDevice: Copy {
    /// Copies as many devices as the version has room for.
    fn of(devs: &VDevs) -> Self;
    /// Checks and returns the devices.
    fn devices(&self) -> Result<VDevs, Refusal>;
}

macro_rules! virtual_device {
    ($($ty:ty: $max:expr),+) => {$(
        impl VirtualDevice for $ty {
            fn of(devs: &VDevs) -> Self {
                const MAX: usize = $max as usize;
                let devs = &devs.as_slice()[..devs.as_slice().len().min(MAX)];
                let mut out = Self { ndevs: devs.len() as c_int, devs: [0; MAX] };
                out.devs[..devs.len()].copy_from_slice(devs);
                out
            }

            fn devices(&self) -> Result<VDevs, Refusal> {
                let refusal = Refusal::Devices { found: self.ndevs, max: self.devs.len() };
                let n = usize::try_from(self.ndevs).ok().filter(|&n| n > 0).ok_or(refusal)?;
                let devs = self.devs.get(..n).ok_or(refusal)?;
                if let Some(&dev) = devs.iter().find(|&&dev| dev < 0) {
                    return Err(Refusal::Negative { what: "devs", value: dev });
                }
                VDevs::new(devs).ok_or(refusal)
            }
        }
    )+};
}

virtual_device! {
    v9::VDeviceProps: abi::NCCL_NET_MAX_DEVS_PER_NIC_V9,
    v12::VDeviceProps: abi::NCCL_NET_MAX_DEVS_PER_NIC_V12
}

/// Returns a string for NCCL, which keeps it and never writes to it although its type is `char*`.
pub(crate) const fn string(text: &'static CStr) -> *mut c_char {
    text.as_ptr().cast_mut()
}

/// The fields that only some versions have, under their C names.
#[allow(non_snake_case)]
pub(crate) mod field {
    use super::*;

    macro_rules! fields {
        ($($name:ident: $ty:ty = |$p:ident| $value:expr;)+) => {
            $(pub(crate) fn $name($p: &Properties) -> $ty { $value })+
        };
    }

    fields! {
        regIsGlobal: c_int = |p| c_int::from(p.reg_is_global);
        forceFlush: c_int = |p| c_int::from(p.force_flush);
        netDeviceType: ncclNetDeviceType = |p| ncclNetDeviceType(p.device_type);
        netDeviceVersion: c_int = |p| p.device_version;
        maxP2pBytes: usize = |p| p.max_p2p_bytes;
        maxCollBytes: usize = |p| p.max_coll_bytes;
        maxMultiRequestSize: c_int = |p| p.max_multi_request_size;
        railId: i16 = |p| p.rail_id;
        planeId: i16 = |p| p.plane_id;
    }

    pub(crate) fn vProps<V: VirtualDevice>(p: &Properties) -> V {
        V::of(&p.vdevs)
    }
}

/// Implements the conversion into `Props`: the fields of all versions and the listed ones.
macro_rules! properties {
    ($($field:ident),* $(,)?) => {
        impl $crate::props::FromProperties for Props {
            fn from_properties(p: &$crate::Properties) -> Self {
                Self {
                    name: $crate::props::string(p.name),
                    pciPath: p.pci_path.map_or(core::ptr::null_mut(), $crate::props::string),
                    guid: p.guid,
                    ptrSupport: p.ptr_support,
                    speed: p.speed,
                    port: p.port,
                    latency: p.latency,
                    maxComms: p.max_comms,
                    maxRecvs: p.max_recvs,
                    $($field: $crate::props::field::$field(p),)*
                }
            }
        }
    };
}
