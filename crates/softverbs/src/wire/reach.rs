//! Which QP of which process a connection leads to, and whether its device can be reached from ours.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::api::qp::Qp;
use crate::control::gid_table;
use crate::process::{Process, same_link};
use crate::shm::layout::DeviceShared;
use crate::shm::peer::Peer;
use crate::wire::send_queue::Connection;

/// The responder as found at an earlier work request.
pub(crate) struct Reached {
    pub(crate) peer: Arc<Peer>,
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

/// Our device as peers see it.
pub(crate) fn own_device<'a>(process: &'a Process, qp: &Qp) -> Option<&'a DeviceShared> {
    process.own.header().devices.get(qp.context.device.index)
}

/// Whether the device is the one that the address vector names.
fn has_address(process: &Process, device: &DeviceShared, connection: &Connection) -> bool {
    if !connection.global {
        return device.lid.load(Relaxed) == u32::from(connection.dlid);
    }
    gid_table::of(&process.fabric, device).iter().flatten().any(|gid| gid.raw == connection.dgid)
}

/// Finds the responder.
pub(crate) fn find(process: &Process, qp: &Qp, connection: &Connection) -> Result<Reached, &'static str> {
    const GONE: &str = "there is no such QP (destroyed, or its process has ended)";
    let place = process.fabric.find(connection.dest_qpn).ok_or(GONE)?;
    let peer = process.peer(place).map_err(|errno| match errno.0 {
        libc::ESRCH => GONE,
        libc::EMFILE | libc::ENFILE => "its segment cannot be opened: no file descriptor is left (ulimit -n)",
        libc::ENOMEM => "its segment cannot be mapped: no address space is left (ulimit -v)",
        libc::EXDEV => "its process is in a PID namespace that cannot be seen from this one",
        libc::EPROTO => "its segment is not one of this version of softverbs",
        _ => "its segment cannot be opened",
    })?;
    let shared = peer.qp(place.index).ok_or(GONE)?;
    let device = peer.header().devices.get(shared.device.load(Relaxed) as usize).ok_or(GONE)?;
    if !has_address(process, device, connection) {
        return Err("that QP is on another device than the one that the destination address names");
    }
    if !own_device(process, qp).is_some_and(|own| same_link(&process.fabric, own, device)) {
        return Err("the two devices are on different wires, or have no subnet in common");
    }
    let expected = [shared.dgid_high.load(Relaxed), shared.dgid_low.load(Relaxed)];
    if connection.global && expected != [0, 0] && expected != crate::process::halves(connection.sgid) {
        return Err("that QP expects another source address than that of our sgid_index");
    }
    let generation = shared.generation.load(Relaxed);
    Ok(Reached { peer, index: place.index, generation })
}
