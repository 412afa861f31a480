//! The GID tables in shared memory: the configured one, until a program changes it.

use std::sync::atomic::Ordering::{Acquire, Relaxed};

use super::fabric::Fabric;
use super::layout::{DeviceShared, GidShared};
use crate::config::gid::{Gid, GidKind};

/// Returns the GID table of a device of any process. `None` is an empty entry.
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

/// Returns the two halves of a GID.
pub(crate) fn halves(raw: [u8; 16]) -> [u64; 2] {
    let bits = u128::from_be_bytes(raw);
    // The upper and the lower 64 bits.
    [(bits >> 64) as u64, bits as u64]
}

/// Returns the GID with these two halves.
pub(crate) fn joined([high, low]: [u64; 2]) -> [u8; 16] {
    (u128::from(high) << 64 | u128::from(low)).to_be_bytes()
}

/// Writes an entry.
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
