//! Finds the responder of a connection, and decides whether its device is reachable.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

mod infiniband;

use crate::api::qp::Qp;
use crate::config::gid::Gid;
use crate::process::Process;
use crate::shm::fabric::{Fabric, Place};
use crate::shm::gids;
use crate::shm::layout::DeviceShared;
use crate::shm::peer::Peer;
use crate::wire::send_queue::Connection;

/// The responder, cached from an earlier work request.
pub(crate) struct Reached {
    pub(crate) peer: Arc<Peer>,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// What an address vector has of the destination.
pub(crate) struct Vector {
    /// Whether packets carry a GRH.
    pub(crate) global: bool,
    pub(crate) dgid: [u8; 16],
    pub(crate) dlid: u32,
}

const NO_QP: &str = "there is no such QP (destroyed, or its process has ended)";
const OTHER_DEVICE: &str = "that QP is on another device than the destination address";

/// Returns whether a GID is in the table of a device.
fn has_gid(fabric: &Fabric, device: &DeviceShared, raw: [u8; 16]) -> bool {
    gids::of(fabric, device).iter().flatten().any(|gid| gid.raw == raw)
}

/// Returns the device of our QP as peers see it.
pub(crate) fn own_device<'a>(process: &'a Process, qp: &Qp) -> Option<&'a DeviceShared> {
    process.own.header().devices.get(qp.port().index)
}

/// Finds the responder, or returns the reason why there is none.
pub(crate) fn find(process: &Process, qp: &Qp, connection: &Connection) -> Result<Reached, &'static str> {
    let mut why = NO_QP;
    for place in process.fabric.places(connection.dest_qpn) {
        match reached(process, qp, connection, place) {
            Ok(reached) => return Ok(reached),
            // What stops the QP at the destination address says more than that others have its number.
            Err(OTHER_DEVICE | NO_QP) if why != NO_QP => {}
            Err(other) => why = other,
        }
    }
    Err(why)
}

/// Returns the QP at this place, if packets of the connection arrive there and its answers here.
fn reached(
    process: &Process,
    qp: &Qp,
    connection: &Connection,
    place: Place,
) -> Result<Reached, &'static str> {
    let peer = process.peer(place).map_err(|errno| match errno.0 {
        libc::ESRCH => NO_QP,
        libc::EMFILE | libc::ENFILE => "its segment cannot be opened: no file descriptor is left (ulimit -n)",
        libc::ENOMEM => "its segment cannot be mapped: no address space is left (ulimit -v)",
        libc::EXDEV => "its process is in a PID namespace that is not visible from this one",
        libc::EPROTO => "its process uses another version of softverbs",
        _ => "its segment cannot be opened",
    })?;
    let shared = peer.qp(place.index).ok_or(NO_QP)?;
    let device = peer.header().devices.get(shared.device.load(Relaxed) as usize).ok_or(NO_QP)?;
    let own = own_device(process, qp).ok_or("this process has no such device")?;
    let to = Vector { global: connection.global, dgid: connection.dgid, dlid: connection.dlid.into() };
    if own.lid.load(Relaxed) != 0 && device.lid.load(Relaxed) != 0 {
        infiniband::arrives(&process.fabric, own, device, &to)?;
        infiniband::answers(&process.fabric, own, device, shared)?;
    } else if !(to.global && has_gid(&process.fabric, device, to.dgid)) {
        return Err(OTHER_DEVICE);
    }
    if !same_link(&process.fabric, own, device) {
        return Err("the two devices are on different wires, or have no subnet in common");
    }
    if own.link.load(Relaxed) == device.link.load(Relaxed) && own.loopback.load(Relaxed) == 0 {
        return Err("the port drops packets to itself (loopback=off)");
    }
    let expected = [shared.dgid_high.load(Relaxed), shared.dgid_low.load(Relaxed)];
    if connection.global && expected != [0, 0] && expected != gids::halves(connection.sgid) {
        return Err("that QP is connected to another source address than that of our sgid_index");
    }
    let generation = shared.generation.load(Relaxed);
    Ok(Reached { peer, index: place.index, generation })
}

/// Returns whether two devices can reach each other: they are on one wire, and both are InfiniBand
/// or share a subnet. A subnet is shared if each device finds an address of the other in its own
/// subnet, or both have link-local addresses only.
fn same_link(fabric: &Fabric, a: &DeviceShared, b: &DeviceShared) -> bool {
    let gids = |d: &DeviceShared| -> Vec<_> {
        let bits = |g: Gid| (u128::from_be_bytes(g.raw), g.prefix);
        gids::of(fabric, d).into_iter().flatten().map(bits).collect()
    };
    if a.link.load(Relaxed) == b.link.load(Relaxed) || a.lid.load(Relaxed) != 0 && b.lid.load(Relaxed) != 0 {
        return a.wire.load(Relaxed) == b.wire.load(Relaxed);
    }
    if a.wire.load(Relaxed) != b.wire.load(Relaxed) {
        return false;
    }
    // Every device has a link-local address, which identifies its subnet only if there is no other.
    let link_local = |bits: u128| bits >> 118 == 0xfe80 >> 6;
    let [a, b] = [a, b]
        .map(|device| gids(device).into_iter().filter(|(bits, _)| !link_local(*bits)).collect::<Vec<_>>());
    if a.is_empty() && b.is_empty() {
        return true;
    }
    a.iter().any(|&(x, prefix)| {
        b.iter().any(|&(y, p)| {
            let mask = u128::MAX.checked_shl(128 - u32::from(prefix.max(p).min(128))).unwrap_or(0);
            x & mask == y & mask
        })
    })
}
