//! GID tables as they are now: those of the configuration, until a program changes one.

use std::net::IpAddr;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::api::device::Device;
use crate::api::events::GID_CHANGE;
use crate::config::gid::{self, Gid, GidKind};
use crate::config::{self, Error, LinkLayer, MAX_ADDRS};
use crate::control::faults;
use crate::process::{self, halves};
use crate::shm::fabric::Fabric;
use crate::shm::layout::{DeviceShared, GidShared};

/// The table of a device of any process; `None` is an empty place.
pub(crate) fn of(fabric: &Fabric, device: &DeviceShared) -> Vec<Option<Gid>> {
    let changed = fabric.link(device.link.load(Relaxed)).filter(|link| link.gid_count.load(Acquire) > 0);
    match changed {
        Some(link) => {
            let _guard = fabric.lock();
            link.gids.iter().take(link.gid_count.load(Relaxed) as usize).map(read).collect()
        }
        None => device.gids.iter().take(device.gid_count.load(Acquire) as usize).map(read).collect(),
    }
}

/// The table of a device of ours; the configured one where there is no fabric.
pub(crate) fn of_ours(device: &Device) -> Vec<Option<Gid>> {
    let shared = process::get().ok().and_then(|p| Some((p, p.own.header().devices.get(device.index)?)));
    match shared {
        Some((process, shared)) => of(&process.fabric, shared),
        None => device.gids.iter().copied().map(Some).collect(),
    }
}

/// Fills an entry.
pub(crate) fn write(slot: &GidShared, gid: Option<Gid>) {
    let ([high, low], prefix, kind) =
        gid.map_or(([0, 0], 0, GidKind::InfiniBand), |gid| (halves(gid.raw), gid.prefix, gid.kind));
    slot.high.store(high, Relaxed);
    slot.low.store(low, Relaxed);
    slot.prefix.store(prefix.into(), Relaxed);
    slot.kind.store(kind as u64, Relaxed);
}

fn read(slot: &GidShared) -> Option<Gid> {
    let bits = u128::from(slot.high.load(Relaxed)) << 64 | u128::from(slot.low.load(Relaxed));
    let kind = match slot.kind.load(Relaxed) {
        1 => GidKind::RoceV1,
        2 => GidKind::RoceV2,
        _ => GidKind::InfiniBand,
    };
    let prefix = u8::try_from(slot.prefix.load(Relaxed)).unwrap_or(128);
    (bits != 0).then(|| Gid { raw: bits.to_be_bytes(), prefix, kind })
}

/// Gives the RoCE device with this name other addresses, for every process of the fabric that has the device, and for those
/// that join later. Behind the link-local GID, each address has two places of the table, as version 1 and version 2, in
/// this order; `None` leaves them empty, as an address that was taken away does. Each context on the device
/// gets `IBV_EVENT_GID_CHANGE`. The device stays known by the address that it was configured with.
///
/// # Errors
/// There is no such device, it is InfiniBand, an address cannot be one, or the fabric cannot be joined.
pub fn set_addrs(device: &str, addrs: &[Option<(IpAddr, u8)>]) -> Result<(), Error> {
    let (found, link, index) = faults::named(device)?;
    if found.spec.link_layer == LinkLayer::InfiniBand {
        return Err(Error(format!("device {device:?}: only link=roce has addresses")));
    }
    if addrs.len() > MAX_ADDRS {
        let n = addrs.len();
        return Err(Error(format!("device {device:?}: found {n} places, at most {MAX_ADDRS} are possible")));
    }
    let given: Vec<_> = addrs.iter().copied().flatten().collect();
    config::check_addrs(&given).map_err(|e| Error(format!("device {device:?}: {e}")))?;
    let table = gid::table_of(found.spec, addrs);
    let process = process::get().map_err(|_| Error(String::from("the fabric cannot be joined")))?;
    {
        let _guard = process.fabric.lock();
        for (slot, gid) in link.gids.iter().zip(&table) {
            write(slot, *gid);
        }
        link.gid_count.store(u32::try_from(table.len()).unwrap_or(0), Release);
    }
    faults::tell_all(GID_CHANGE, index);
    Ok(())
}
