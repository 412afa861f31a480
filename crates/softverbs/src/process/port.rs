//! The ports of this process's devices, as the fabric has them now.

use std::sync::atomic::Ordering::Relaxed;

use crate::api::device::Device;
use crate::config::gid::Gid;
use crate::process;
use crate::shm::dir;
use crate::shm::fabric::Fabric;
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

/// Returns whether a device is removed. A process that is not in the fabric yet does not join it.
pub(crate) fn is_removed(device: &Device) -> bool {
    if let Some(joined) = process::joined() {
        let shared = joined.own.header().devices.get(device.index);
        let link = shared.and_then(|shared| joined.fabric.link(shared.link.load(Relaxed)));
        return link.is_some_and(|link| link.flags() & REMOVED != 0);
    }
    let dir = dir::fabric_name().and_then(|name| dir::existing(&name)).ok().flatten();
    let fabric = dir.and_then(|dir| Fabric::open_existing(&dir).ok().flatten());
    let key = process::device_key(device);
    let is_it = |link: &LinkSlot| [link.high.load(Relaxed), link.low.load(Relaxed)] == key;
    fabric.is_some_and(|fabric| fabric.links().any(|(_, link)| is_it(link) && link.flags() & REMOVED != 0))
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
