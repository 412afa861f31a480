//! `ibv_query_port(3)`: state, MTU, and the speed for the configured rate.

use core::ffi::c_int;
use core::mem::{MaybeUninit, offset_of};

use rdma_sys as sys;

use super::{port_of, write_prefix};
use crate::abi::border::{self, Errno};
use crate::api::device::Device;
use crate::config::call::Call;
use crate::config::{Capability, LinkLayer};
use crate::process::port;

/// `IBV_LINK_LAYER_INFINIBAND`
const LINK_INFINIBAND: u8 = 1;
/// `IBV_LINK_LAYER_ETHERNET`
const LINK_ETHERNET: u8 = 2;
/// `IBV_QPF_GRH_REQUIRED`. RoCE addresses are always GIDs.
const GRH_REQUIRED: u8 = 1;
/// `Polling`: the port searches for a link partner.
const PHYS_POLLING: u8 = 2;
/// `LinkUp`
const PHYS_LINK_UP: u8 = 5;
/// `IBV_PORT_SYS_IMAGE_GUID_SUP | IBV_PORT_EXTENDED_SPEEDS_SUP | IBV_PORT_CM_SUP`
const CAPS_INFINIBAND: u32 = 1 << 11 | 1 << 14 | 1 << 16;
/// Exponent of the subnet timeout, about 1 s, as subnet managers set it.
const SUBNET_TIMEOUT: u8 = 18;

/// `active_speed` and, above 128, `active_speed_ex` codes and their Mb/s on one lane.
const SPEEDS: [(u32, u64); 9] = [
    (1, 2_500),
    (2, 5_000),
    (4, 10_000),
    (8, 10_000),
    (16, 14_000),
    (32, 25_000),
    (64, 50_000),
    (128, 100_000),
    (256, 200_000),
];
/// The largest code that fits into `active_speed`.
const FASTEST_OLD: u8 = 128;
/// Offset of `active_speed_ex`, which rdma-sys does not define.
const ACTIVE_SPEED_EX: usize = 52;
/// `struct ibv_port_attr` including `active_speed_ex`.
type PortAttr = [u8; ACTIVE_SPEED_EX + 4];
/// `active_width` codes and their lanes. Four lanes are first, because most ports have four.
const WIDTHS: [(u8, u64); 5] = [(2, 4), (1, 1), (16, 2), (4, 8), (8, 12)];
/// Reported by a port without a rate: 4 lanes of 25 Gb/s, which is about the speed of memory
/// copies.
const UNLIMITED: (u32, u8) = (32, 2);

/// Returns the fastest speed and width that do not exceed `rate` (bytes per second), or the slowest
/// pair if all exceed it.
fn speed_and_width(rate: Option<u64>) -> (u32, u8) {
    let Some(rate) = rate else { return UNLIMITED };
    let mbps = rate / 125_000;
    let mut best = (1, 1);
    let mut best_mbps = 0;
    for (width, lanes) in WIDTHS {
        for (speed, lane_mbps) in SPEEDS {
            let total = lanes * lane_mbps;
            if total <= mbps && total > best_mbps {
                (best, best_mbps) = ((speed, width), total);
            }
        }
    }
    best
}

/// `enum ibv_mtu` of a size in bytes.
fn mtu_code(bytes: u32) -> sys::ibv_mtu::Type {
    match bytes {
        4096.. => sys::ibv_mtu::IBV_MTU_4096,
        2048.. => sys::ibv_mtu::IBV_MTU_2048,
        1024.. => sys::ibv_mtu::IBV_MTU_1024,
        512.. => sys::ibv_mtu::IBV_MTU_512,
        _ => sys::ibv_mtu::IBV_MTU_256,
    }
}

fn attributes(device: &Device) -> PortAttr {
    // SAFETY: integers may all be zero.
    let mut attr: sys::ibv_port_attr = unsafe { MaybeUninit::zeroed().assume_init() };
    (attr.state, attr.phys_state) = match port::link_is_up(device) {
        true => (sys::ibv_port_state::IBV_PORT_ACTIVE, PHYS_LINK_UP),
        false => (sys::ibv_port_state::IBV_PORT_DOWN, PHYS_POLLING),
    };
    attr.max_mtu = sys::ibv_mtu::IBV_MTU_4096;
    attr.active_mtu = mtu_code(device.spec.mtu);
    attr.gid_tbl_len = c_int::try_from(device.profile.gids).unwrap_or(c_int::MAX);
    attr.pkey_tbl_len = u16::try_from(device.spec.pkeys.len()).unwrap_or(u16::MAX);
    attr.max_msg_sz = device.spec.max_msg;
    attr.max_vl_num = 1;
    attr.lid = device.lid;
    attr.lmc = device.spec.lmc;
    let measured = || speed_and_width(port::rate(device));
    let (speed, width) = device.profile.fixed_speed.unwrap_or_else(measured);
    // As in the kernel: the older field is capped at NDR.
    attr.active_speed = u8::try_from(speed).unwrap_or(FASTEST_OLD);
    attr.active_width = width;
    let speed_ex = if speed > FASTEST_OLD.into() { speed } else { 0 };
    match device.spec.link_layer {
        LinkLayer::Ethernet => {
            attr.link_layer = LINK_ETHERNET;
            attr.port_cap_flags = device.profile.roce_cap_flags;
            attr.lid = device.profile.roce_lid;
            attr.flags = GRH_REQUIRED;
        }
        LinkLayer::InfiniBand => {
            attr.link_layer = LINK_INFINIBAND;
            attr.port_cap_flags = CAPS_INFINIBAND;
            attr.flags = if device.spec.grh_required { GRH_REQUIRED } else { 0 };
            attr.sm_lid = 1;
            attr.subnet_timeout = SUBNET_TIMEOUT;
        }
    }
    for capability in &device.spec.without {
        match capability {
            Capability::LinkLayer => attr.link_layer = 0,
            Capability::ActiveMtu => attr.active_mtu = 0,
            Capability::IbTransport | Capability::Srq | Capability::SrqCalls | Capability::Retries => {}
        }
    }
    let mut full: PortAttr = [0; size_of::<PortAttr>()];
    // Without the padding after the last field.
    let fields = offset_of!(sys::ibv_port_attr, port_cap_flags2) + size_of::<u16>();
    // SAFETY: both have `fields` bytes, initialised in `attr`, and they do not overlap.
    unsafe { std::ptr::copy_nonoverlapping((&raw const attr).cast::<u8>(), full.as_mut_ptr(), fields) };
    full[ACTIVE_SPEED_EX..].copy_from_slice(&speed_ex.to_ne_bytes());
    full
}

const _: () = assert!(size_of::<sys::ibv_port_attr>() >= ACTIVE_SPEED_EX);

/// The operation of the context, which the header's `ibv_query_port` calls. Fills `size` bytes.
///
/// # Safety
/// `context` is open, `attr` writable for `size` bytes.
pub(super) unsafe extern "C" fn query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
    size: usize,
) -> c_int {
    border::code("ibv_query_port", || {
        // SAFETY: guaranteed by the caller.
        let device = unsafe { port_of(context, Call::QueryPort, port) }?;
        if attr.is_null() {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: `attr` has `size` bytes, as the caller guarantees.
        unsafe { write_prefix(attr.cast(), size, &attributes(device)) };
        Ok(())
    })
}

/// `ibv_query_port(3)` as a symbol. Its struct is older than `port_cap_flags2`.
///
/// # Safety
/// `context` is open, `attr` writable up to `flags` of `ibv_port_attr`.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_port(
    context: *mut sys::ibv_context,
    port: u8,
    attr: *mut sys::ibv_port_attr,
) -> c_int {
    // SAFETY: guaranteed by the caller, for the size of the old struct.
    unsafe { query_port(context, port, attr, offset_of!(sys::ibv_port_attr, port_cap_flags2)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the Mb/s of a pair of codes.
    fn mbps((speed, width): (u32, u8)) -> u64 {
        let lane = SPEEDS.iter().find(|s| s.0 == speed).unwrap().1;
        lane * WIDTHS.iter().find(|w| w.0 == width).unwrap().1
    }

    #[test]
    fn a_rate_is_shown_as_the_nearest_speed_from_below() {
        for (gbps, shown) in
            [(100, 100_000), (25, 25_000), (10, 10_000), (56, 56_000), (200, 200_000), (400, 400_000)]
        {
            assert_eq!(mbps(speed_and_width(Some(gbps * 125_000_000))), shown);
        }
        // 4 GB/s are 32 Gb/s, and 12 lanes of 2.5 Gb/s are 30 Gb/s.
        assert_eq!(mbps(speed_and_width(Some(4_000_000_000))), 30_000);
        assert_eq!(mbps(speed_and_width(Some(1))), 2_500);
        assert_eq!(mbps(speed_and_width(Some(u64::MAX))), 2_400_000);
        assert_eq!(speed_and_width(Some(100_000_000_000)), (256, 2));
        // Four lanes are preferred.
        assert_eq!(speed_and_width(Some(12_500_000_000)), (32, 2));
    }

    #[test]
    fn no_other_pair_is_nearer() {
        for rate in (1..2000_u64).map(|i| i * 99_999_999) {
            let shown = mbps(speed_and_width(Some(rate)));
            let all = SPEEDS.iter().flat_map(|s| WIDTHS.iter().map(|w| s.1 * w.1));
            let nearest = all.filter(|m| *m <= rate / 125_000).max().unwrap_or(2_500);
            assert_eq!(shown, nearest, "{rate}");
        }
    }

    #[test]
    fn mtu_codes() {
        assert_eq!([256, 512, 1024, 2048, 4096].map(mtu_code), [1, 2, 3, 4, 5]);
    }
}
