//! Delivery between InfiniBand ports: by LID in a subnet, and by a router from one subnet of a wire
//! to another.

use std::sync::atomic::Ordering::Relaxed;

use super::{OTHER_DEVICE, Vector, has_gid};
use crate::shm::fabric::Fabric;
use crate::shm::gids;
use crate::shm::layout::{DeviceShared, QpShared};

/// Returns the first 64 bits of a port's first GID, which are the prefix of its subnet.
fn subnet(fabric: &Fabric, port: &DeviceShared) -> u64 {
    let first = gids::of(fabric, port).first().copied().flatten();
    first.map_or(0, |gid| gids::halves(gid.raw)[0])
}

/// Returns the FLID in a GID of a port; `None` if the GID has none.
fn flid(fabric: &Fabric, port: &DeviceShared, gid: [u8; 16]) -> Option<u32> {
    let table = gids::of(fabric, port);
    // Entry 0 never has one.
    let routable = table.iter().skip(1).flatten().any(|entry| entry.raw == gid);
    routable.then(|| u32::from(u16::from_be_bytes([gid[4], gid[5]])))
}

/// Returns an error with the reason if packets with this address vector do not arrive at the port.
/// A router forwards a packet to another subnet by the FLID alone.
pub(super) fn arrives(
    fabric: &Fabric,
    from: &DeviceShared,
    to: &DeviceShared,
    vector: &Vector,
) -> Result<(), &'static str> {
    if vector.global && !has_gid(fabric, to, vector.dgid) {
        return Err(OTHER_DEVICE);
    }
    if subnet(fabric, from) != subnet(fabric, to) {
        return match vector.global && flid(fabric, to, vector.dgid) == Some(vector.dlid) {
            true => Ok(()),
            false => Err("that QP is in another subnet, and no router has the destination LID as its FLID"),
        };
    }
    let lid = to.lid.load(Relaxed);
    if !(lid..lid + (1 << to.lmc.load(Relaxed))).contains(&vector.dlid) {
        return Err(OTHER_DEVICE);
    }
    if !vector.global && to.grh_required.load(Relaxed) == 1 {
        return Err("that QP's port drops packets without a GRH (IBV_QPF_GRH_REQUIRED)");
    }
    Ok(())
}

/// Returns an error with the reason if the answers of the responder do not arrive: it sends them by
/// its own address vector.
pub(super) fn answers(
    fabric: &Fabric,
    own: &DeviceShared,
    responder: &DeviceShared,
    qp: &QpShared,
) -> Result<(), &'static str> {
    let dgid = u128::from(qp.dgid_high.load(Relaxed)) << 64 | u128::from(qp.dgid_low.load(Relaxed));
    let vector = Vector {
        global: qp.global.load(Relaxed) == 1,
        dgid: dgid.to_be_bytes(),
        dlid: qp.dlid.load(Relaxed),
    };
    // A QP that is not connected yet answers nobody, which its state shows.
    if !vector.global && vector.dlid == 0 {
        return Ok(());
    }
    arrives(fabric, responder, own, &vector)
        .map_err(|_| "its answers do not arrive: its address vector is wrong, or lacks a GRH")
}
