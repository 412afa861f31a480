//! Faults on command: what a test can break, and when.
//!
//! Functions that name a device affect every process of the fabric that has this device. Functions
//! that fail verbs calls affect this process only.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::atomic::Ordering::{AcqRel, Relaxed, Release};
use std::time::Duration;

use crate::api::device::{self, Device};
use crate::api::events::{self, DEVICE_SPEED_CHANGE, GID_CHANGE, PORT_ACTIVE, PORT_ERR};
use crate::api::sysfs;
use crate::config::{LinkLayer, MAX_ADDRS, check, gid};
use crate::error::Error;
use crate::process::{self, injected, port};
use crate::shm::fabric::Place;
use crate::shm::gids;
use crate::shm::layout::LinkSlot;

/// Takes the link of device `device` down (`up` = false) or up, for every process of the fabric
/// that has the device.
///
/// While the link is down, the port state is `IBV_PORT_DOWN` and work requests from and to the port
/// get no answer. They complete with `IBV_WC_RETRY_EXC_ERR` when timeout and retries of their QP
/// are exhausted, or normally if the link comes up before. Each context of the device gets
/// `IBV_EVENT_PORT_ERR` or `IBV_EVENT_PORT_ACTIVE`, in processes that have created a QP. Nothing
/// happens if the link is already in this state.
///
/// ```no_run
/// softverbs::set_link("soft0", false)?;
/// // Sends of soft0 now run into their retry timeout.
/// softverbs::set_link("soft0", true)?;
/// # Ok::<(), softverbs::Error>(())
/// ```
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn set_link(device: &str, up: bool) -> Result<(), Error> {
    let (_, link, index) = named(device)?;
    if link.down.swap(u32::from(!up), AcqRel) == u32::from(!up) {
        return Ok(());
    }
    raise_everywhere(if up { PORT_ACTIVE } else { PORT_ERR }, index);
    Ok(())
}

/// Changes the rate of device `device` to `rate` bytes per second in each direction, for every
/// process of the fabric that has the device, including processes that join later.
///
/// The port then shows the speed of this rate. Messages that are posted later take the time of this
/// rate. Each context of the device gets `IBV_EVENT_DEVICE_SPEED_CHANGE`. Nothing happens if the
/// device was set to this rate before.
///
/// # Errors
/// There is no such device, the rate is 0, or the process cannot join the fabric.
pub fn set_rate(device: &str, rate: u64) -> Result<(), Error> {
    let (_, link, index) = named(device)?;
    if rate == 0 {
        return Err(Error(format!("device {device:?}: found a rate of 0, expected a rate above it")));
    }
    if link.rate.swap(rate, Relaxed) != rate {
        raise_everywhere(DEVICE_SPEED_CHANGE, index);
    }
    Ok(())
}

/// Replaces the addresses of RoCE device `device`, for every process of the fabric that has the
/// device, including processes that join later.
///
/// `addrs` are addresses with prefix lengths, at most [`MAX_ADDRS`]. The GID table then contains
/// the link-local GID, followed by two entries for each item (RoCE v1, RoCE v2) in this order.
/// `None` leaves both entries empty, as the removal of an address does. Each context of the device
/// gets `IBV_EVENT_GID_CHANGE`. The GUID of the device does not change. Connected QPs stay
/// connected, but a peer whose `sgid_index` now has another GID gets no answer, as with a NIC.
///
/// # Errors
/// There is no such device, it is an InfiniBand device, the addresses are invalid, or the process
/// cannot join the fabric.
pub fn set_addrs(device: &str, addrs: &[Option<(IpAddr, u8)>]) -> Result<(), Error> {
    let (found, link, index) = named(device)?;
    if found.spec.link_layer == LinkLayer::InfiniBand {
        return Err(Error(format!("device {device:?}: only link=roce has addresses")));
    }
    if addrs.len() > MAX_ADDRS {
        let n = addrs.len();
        return Err(Error(format!("device {device:?}: found {n} addresses, expected at most {MAX_ADDRS}")));
    }
    let given: Vec<_> = addrs.iter().copied().flatten().collect();
    check::addrs(&given).map_err(|e| Error(format!("device {device:?}: {e}")))?;
    let table = gid::table_of(found.spec, addrs);
    let process = process::get().map_err(|_| Error(String::from(NO_FABRIC)))?;
    {
        let _guard = process.fabric.lock();
        for (slot, gid) in link.gids.iter().zip(&table) {
            gids::write(slot, *gid);
        }
        link.gid_count.store(u32::try_from(table.len()).unwrap_or(0), Release);
    }
    raise_everywhere(GID_CHANGE, index);
    Ok(())
}

/// Fails the next `times` calls of `ibv_modify_qp` in this process that request `state` (`enum
/// ibv_qp_state`). They return `errno` and change nothing. `times` = 0 cancels the fault; each call
/// of this function replaces the previous fault.
///
/// For example, RTR with `ETIMEDOUT` is what a kernel returns that cannot resolve the address of
/// the peer.
pub fn fail_modify_qp(state: u32, errno: c_int, times: u32) {
    injected::fail_modify_qp(None, state, errno, times, Duration::ZERO);
}

/// Like [`fail_modify_qp`], for the QPs of device `device` only. Each failing call takes
/// `duration`, as when the kernel waits for address resolution.
pub fn fail_modify_qp_of(device: &str, state: u32, errno: c_int, times: u32, duration: Duration) {
    injected::fail_modify_qp(Some(device), state, errno, times, duration);
}

/// Fails the next `times` calls of `ibv_modify_qp` in this process that connect a QP of device
/// `device` to itself. They return `errno` and change nothing. `times` = 0 cancels the fault; each
/// call of this function replaces the previous fault.
pub fn fail_loopback(device: &str, errno: c_int, times: u32) {
    injected::fail_loopback(device, errno, times);
}

/// Fails the next `times` memory registrations (`ibv_reg_mr` and its variants) of this process on
/// device `device` with `errno`. `times` = 0 cancels the fault; each call of this function replaces
/// the previous fault.
pub fn fail_registration(device: &str, errno: c_int, times: u32) {
    injected::fail_registration(device, errno, times);
}

/// Makes `ibv_fork_init` of this process return `errno` from now on; 0 cancels the fault.
///
/// Real causes are a kernel without support (`ENOSYS`) and memory that was registered before the
/// call (`EINVAL`).
pub fn fail_fork_init(errno: c_int) {
    sysfs::set_fork_init_error(errno);
}

/// The object of an asynchronous event, for [`raise_event`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTarget<'a> {
    /// The device with this name or its port, in every process of the fabric that has the device.
    /// Events 8 to 13, 17, 18 and 20.
    Device(&'a str),
    /// The QP of this process with this number. Events 1 to 7 and 16 concern the QP itself, event 0
    /// its send CQ, events 14 and 15 its SRQ.
    Qp(u32),
}

/// Raises the asynchronous event with number `kind` (`enum ibv_event_type`). It has no other
/// effect: the QP keeps working.
///
/// # Errors
/// There is no such device, QP or SRQ, or the event does not apply to `target`.
pub fn raise_event(kind: u32, target: EventTarget<'_>) -> Result<(), Error> {
    let error = |what: &str| Error(format!("event {kind}: {what}"));
    let qpn = match target {
        EventTarget::Device(name) if events::of_the_port(kind) => {
            let (_, _, index) = named(name)?;
            raise_everywhere(kind, index);
            return Ok(());
        }
        EventTarget::Device(_) => return Err(error("not an event of a device")),
        EventTarget::Qp(qpn) => qpn,
    };
    let process = process::get().map_err(|_| error(NO_FABRIC))?;
    let all = process.qps.all();
    let qp = all.iter().find(|qp| qp.qpn == qpn).ok_or_else(|| error("there is no such queue pair"))?;
    let (index, id) = match kind {
        events::CQ_ERR => (qp.send_cq.index, qp.send_cq.id),
        events::SRQ_ERR | events::SRQ_LIMIT_REACHED => {
            let srq = qp.srq.as_ref().ok_or_else(|| error("the queue pair has no shared receive queue"))?;
            (srq.index, srq.id)
        }
        1..=7 | events::LAST_WQE_REACHED => (qp.index, qp.qpn),
        _ => return Err(error("not an event of a queue")),
    };
    events::raise(&process.own, kind, index, id);
    Ok(())
}

const NO_FABRIC: &str = "the process cannot join the fabric";

/// Returns the device with this name, its link, and the index of the link.
fn named(name: &str) -> Result<(&'static Device, &'static LinkSlot, u32), Error> {
    let device = device::all().iter().find(|d| d.spec.name == name);
    let device = device.ok_or_else(|| Error(format!("there is no device {name:?}")))?;
    let (link, index) = port::link(device).ok_or_else(|| Error(String::from(NO_FABRIC)))?;
    Ok((device, link, index))
}

/// Raises a port event in every process of the fabric that has a device on this link.
fn raise_everywhere(kind: u32, link: u32) {
    let Ok(process) = process::get() else { return };
    for (slot, nonce) in process.fabric.processes() {
        // A process that has ended meanwhile needs no event.
        if let Ok(peer) = process.peer(Place { process: slot, nonce, index: 0 }) {
            events::raise(&peer, kind, link, 0);
        }
    }
}
