//! Faults on command.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::abi::border::Errno;
use crate::api::device::{self, Device};
use crate::api::events::{self, PORT_ACTIVE, PORT_ERR};
use crate::config::Error;
use crate::process;
use crate::shm::fabric::Place;
use crate::shm::layout::LinkSlot;

/// The link of a device of ours, and its index.
fn link_of(device: &Device) -> Option<(&'static LinkSlot, u32)> {
    let process = process::get().ok()?;
    let index = process.own.header().devices.get(device.index)?.link.load(Relaxed);
    Some((process.fabric.link(index)?, index))
}

/// Whether it carries anything.
pub(crate) fn link_is_up(device: &Device) -> bool {
    link_of(device).is_none_or(|(link, _)| link.down.load(Acquire) == 0)
}

/// Takes the link of the device with this name down or up, for every process of the fabric that has the device. While it is
/// down its port's state is DOWN, and work requests from and to it get no answer: they end with
/// `IBV_WC_RETRY_EXC_ERR` when their retries are over, or go on if the link comes back before. Each context on the device
/// gets `IBV_EVENT_PORT_ERR` or `IBV_EVENT_PORT_ACTIVE`. Nothing happens if it is so already.
///
/// # Errors
/// There is no such device, or the fabric cannot be joined.
pub fn set_link(device: &str, up: bool) -> Result<(), Error> {
    let (_, link, index) = named(device)?;
    if link.down.swap(u32::from(!up), AcqRel) == u32::from(!up) {
        return Ok(());
    }
    tell_all(if up { PORT_ACTIVE } else { PORT_ERR }, index);
    Ok(())
}

/// The device of that name, and its link.
pub(crate) fn named(name: &str) -> Result<(&'static Device, &'static LinkSlot, u32), Error> {
    let device = device::all().iter().find(|d| d.spec.name == name);
    let device = device.ok_or_else(|| Error(format!("there is no device {name:?}")))?;
    let link = link_of(device);
    let (link, index) = link.ok_or_else(|| Error(String::from("the fabric cannot be joined")))?;
    Ok((device, link, index))
}

/// Raises an event of the port in every process of the fabric that has a device on this link.
pub(crate) fn tell_all(kind: u32, link: u32) {
    let Ok(process) = process::get() else { return };
    for (slot, nonce) in process.fabric.processes() {
        // Whoever has ended meanwhile need not be told.
        if let Ok(peer) = process.peer(Place { process: slot, nonce, index: 0 }) {
            events::raise(&peer, kind, link, 0);
        }
    }
}

/// Calls that are to fail.
struct Fault {
    /// `None`: of every device.
    device: Option<String>,
    errno: c_int,
    /// How many are left.
    times: u32,
}

impl Fault {
    const NONE: Self = Self { device: None, errno: 0, times: 0 };

    /// Whether a call on this device is to fail now.
    fn take(&mut self, device: &str) -> Result<(), Errno> {
        if self.times == 0 || self.device.as_deref().is_some_and(|name| name != device) {
            return Ok(());
        }
        self.times -= 1;
        Err(Errno(self.errno))
    }
}

/// Changes of queue pairs that fail.
struct Modify {
    fault: Fault,
    /// The state that is asked for.
    state: u32,
    /// How long each takes.
    takes: Duration,
}

static MODIFY: Mutex<Modify> = Mutex::new(Modify { fault: Fault::NONE, state: 0, takes: Duration::ZERO });

fn set_modify(modify: Modify) {
    *MODIFY.lock().unwrap_or_else(PoisonError::into_inner) = modify;
}

/// Lets the next `times` calls of `ibv_modify_qp` of this process that ask for `state` (`enum ibv_qp_state`) fail with `errno`,
/// and change nothing. As when the kernel cannot resolve the peer's address: RTR and `ETIMEDOUT`.
pub fn fail_modify_qp(state: u32, errno: c_int, times: u32) {
    set_modify(Modify { fault: Fault { device: None, errno, times }, state, takes: Duration::ZERO });
}

/// As [`fail_modify_qp`], of the queue pairs of one device, and each such call takes so long: the kernel waits while it
/// resolves an address.
pub fn fail_modify_qp_of(device: &str, state: u32, errno: c_int, times: u32, takes: Duration) {
    set_modify(Modify { fault: Fault { device: Some(device.to_owned()), errno, times }, state, takes });
}

/// Fails where it was commanded.
pub(crate) fn modify(device: &str, to: u32) -> Result<(), Errno> {
    let mut next = MODIFY.lock().unwrap_or_else(PoisonError::into_inner);
    if next.state != to {
        return Ok(());
    }
    let (result, takes) = (next.fault.take(device), next.takes);
    drop(next);
    if result.is_err() {
        std::thread::sleep(takes);
    }
    result
}

static REGISTER: Mutex<Fault> = Mutex::new(Fault::NONE);

/// Lets the next `times` registrations of memory of this process on the device of this name fail with `errno`.
pub fn fail_registration(device: &str, errno: c_int, times: u32) {
    let fault = Fault { device: Some(device.to_owned()), errno, times };
    *REGISTER.lock().unwrap_or_else(PoisonError::into_inner) = fault;
}

/// Fails where it was commanded.
pub(crate) fn registration(on: &str) -> Result<(), Errno> {
    REGISTER.lock().unwrap_or_else(PoisonError::into_inner).take(on)
}

/// What [`raise_event`] lets something happen to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EventTarget<'a> {
    /// The device of this name, or its port, in every process of the fabric that has it: 8 to 13, 17 and 18.
    Device(&'a str),
    /// The queue pair of this process with this number: 1 to 7 and 16; its send completion queue: 0; its shared receive
    /// queue: 14 and 15.
    Qp(u32),
}

/// Raises an asynchronous event, by its number in `enum ibv_event_type`. Nothing else happens: the queue pair goes on.
///
/// # Errors
/// There is no such device, queue pair or shared receive queue, or the event is not of that kind of thing.
pub fn raise_event(kind: u32, about: EventTarget<'_>) -> Result<(), Error> {
    let no = |what: &str| Error(format!("event {kind}: {what}"));
    let qpn = match about {
        EventTarget::Device(name) if events::of_the_port(kind) => {
            let (_, _, index) = named(name)?;
            tell_all(kind, index);
            return Ok(());
        }
        EventTarget::Device(_) => return Err(no("it is of no device")),
        EventTarget::Qp(qpn) => qpn,
    };
    let process = process::get().map_err(|_| no("the fabric cannot be joined"))?;
    let all = process.qps.all();
    let qp = all.iter().find(|qp| qp.qpn == qpn).ok_or_else(|| no("there is no such queue pair"))?;
    let (index, id) = match kind {
        events::CQ_ERR => (qp.send_cq.index, qp.send_cq.id),
        events::SRQ_ERR | events::SRQ_LIMIT_REACHED => {
            let srq = qp.srq.as_ref().ok_or_else(|| no("the queue pair has no shared receive queue"))?;
            (srq.index, srq.id)
        }
        1..=7 | events::LAST_WQE_REACHED => (qp.index, qp.qpn),
        _ => return Err(no("it is of no queue")),
    };
    events::raise(&process.own, kind, index, id);
    Ok(())
}
