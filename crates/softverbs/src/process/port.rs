//! The ports of this process's devices, as the fabric has them now.

use std::sync::atomic::Ordering::Relaxed;

use crate::api::device::Device;
use crate::config::gid::Gid;
use crate::process;
use crate::shm::gids;
use crate::shm::layout::LinkSlot;
use crate::shm::link_state::{DOWN, REMOVED};

/// Returns the link of a device and the index of the link.
pub(crate) fn link(device: &Device) -> Option<(&'static LinkSlot, u32)> {
    let process = process::get().ok()?;
    let index = process.own.header().devices.get(device.index)?.link.load(Relaxed);
    Some((process.fabric.link(index)?, index))
}

/// Returns whether the link of a device is up.
pub(crate) fn link_is_up(device: &Device) -> bool {
    link(device).is_none_or(|(link, _)| link.flags() & (DOWN | REMOVED) == 0)
}

/// Returns the rate of a device in bytes per second, `None` for unlimited.
pub(crate) fn rate(device: &Device) -> Option<u64> {
    let set = link(device).map_or(0, |(link, _)| link.rate.load(Relaxed));
    if set == 0 { device.spec.rate } else { Some(set) }
}

/// Returns the GID table of a device. Without a fabric it is the configured one.
pub(crate) fn gids(device: &Device) -> Vec<Option<Gid>> {
    let shared = process::get().ok().and_then(|p| Some((p, p.own.header().devices.get(device.index)?)));
    match shared {
        Some((process, shared)) => gids::of(&process.fabric, shared),
        None => device.gids.iter().copied().map(Some).collect(),
    }
}
