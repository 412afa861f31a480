//! Faults on command: what a test can break, and when.
//!
//! Functions that name a device affect every process of the fabric that has this device. Functions
//! that fail verbs calls affect this process only.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Once;
use std::sync::atomic::Ordering::Relaxed;

use crate::api::device;
use crate::api::events;
use crate::api::sysfs;
use crate::error::Error;
use crate::fault::failure::Failure;
use crate::fault::script::{self, Action, Flap, Seen, Statement};
use crate::fault::site::Site;
use crate::fault::{self, Fault, Only};
use crate::log::write_always;
use crate::process;
use crate::process::hw_counters::{self, HwCounters};
use crate::shm::layout::DeviceShared;

/// Name of the environment variable with a script of faults.
pub const FAULTS_VAR: &str = "SOFTVERBS_FAULTS";

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
    named(device)?.strike(if up { Fault::LinkUp } else { Fault::LinkDown });
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
    if rate == 0 {
        return Err(Error(format!("device {device:?}: found a rate of 0, expected a rate above it")));
    }
    run(device, &Action::Rate(rate, Seen::Event))
}

/// Replaces the addresses of RoCE device `device`, for every process of the fabric that has the
/// device, including processes that join later.
///
/// `addrs` are addresses with prefix lengths, at most [`MAX_ADDRS`](crate::MAX_ADDRS). The GID table then contains
/// the link-local GID, followed by two entries for each item (RoCE v1, RoCE v2) in this order.
/// `None` leaves both entries empty, as the removal of an address does. Each context of the device
/// gets `IBV_EVENT_GID_CHANGE`. The GUID of the device does not change. Connected QPs stay
/// connected, but a peer whose `sgid_index` now has another GID gets no answer, as with a NIC.
///
/// # Errors
/// There is no such device, it is an InfiniBand device, the addresses are invalid, or the process
/// cannot join the fabric.
pub fn set_addrs(device: &str, addrs: &[Option<(IpAddr, u8)>]) -> Result<(), Error> {
    named(device)?.set_addrs(addrs).map_err(|e| of_device(device, &e))
}

/// Injects a fault into device `device`, see [`Fault`]. A fault that strikes a work request waits for
/// the next one of this process.
///
/// ```no_run
/// use softverbs::{Direction, Fault};
///
/// softverbs::inject("soft0", Fault::Silence(Direction::Both))?;
/// // Work requests from and to soft0 get no answer.
/// softverbs::heal("soft0")?;
/// # Ok::<(), softverbs::Error>(())
/// ```
///
/// # Errors
/// There is no such device, too many faults wait, or the process cannot join the fabric.
pub fn inject(device: &str, fault: Fault) -> Result<(), Error> {
    run(device, &Action::Inject(fault, None, Only::ALL))
}

/// Injects a fault when the `at`-th work request from now on, of those that count, begins. This
/// process posts it to a send queue of device `device`. The fault takes effect once. If the work
/// request is flushed before it begins, the fault is lost.
///
/// Only WRITEs count for the faults that strike a WRITE.
///
/// # Errors
/// As for [`inject`].
pub fn inject_at(device: &str, fault: Fault, at: u64, only: Only) -> Result<(), Error> {
    run(device, &Action::Inject(fault, Some(at), only))
}

/// Lets the link of device `device` go down and up by itself until [`heal`]. It starts with the link
/// up.
///
/// The processes that have the device do this in their service threads, which run as soon as a queue
/// pair was made.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn flap(device: &str, flap: Flap) -> Result<(), Error> {
    run(device, &Action::Flap(flap))
}

/// Ends all faults of device `device`, for every process of the fabric that has the device: its link
/// comes up, it swallows nothing, it is listed again, and faults that wait for a work request are
/// disarmed. Its addresses and its rate stay.
///
/// Queue pairs and completion queues that have failed stay failed, as do contexts of a removed device.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn heal(device: &str) -> Result<(), Error> {
    run(device, &Action::Heal)
}

/// Runs a script in the syntax of `SOFTVERBS_FAULTS`.
///
/// ```no_run
/// softverbs::run_faults("soft0:lost_ack,at=3,only=imm,then=down; soft1:silence=in")?;
/// # Ok::<(), softverbs::Error>(())
/// ```
///
/// # Errors
/// The script is malformed, which has no effect, or a statement fails; then the earlier statements
/// have taken effect.
pub fn run_faults(script: &str) -> Result<(), Error> {
    for Statement { device, action } in script::parse(script)? {
        run(&device, &action)?;
    }
    Ok(())
}

/// Returns how many work requests this process has posted to the send queues of device `device` so
/// far. A test can so enumerate the points at which a fault can strike.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn posted(device: &str, only: Only) -> Result<u64, Error> {
    Ok(fault::posted(shared(device)?, only))
}

/// Returns how many faults have struck a work request or a call of this process on device `device`, of
/// those that waited for one.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn faults_struck(device: &str) -> Result<u64, Error> {
    Ok(shared(device)?.struck.load(Relaxed))
}

/// Returns the hardware counters of device `device`, which all processes of the fabric share.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn hw_counters(device: &str) -> Result<HwCounters, Error> {
    Ok(hw_counters::of(named(device)?.link()))
}

/// Runs `SOFTVERBS_FAULTS`, once. The value is checked as a whole before.
pub(crate) fn from_environment() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Some(text) = std::env::var_os(FAULTS_VAR) else { return };
        let text = text.to_string_lossy();
        let outcome = script::parse(&text).and_then(|statements| {
            statements.iter().try_for_each(|statement| shared(&statement.device).map(drop))?;
            statements.iter().try_for_each(|Statement { device, action }| run(device, action))
        });
        if let Err(e) = outcome {
            write_always(format_args!("{FAULTS_VAR}={text:?}: {e} (expected form: {})", script::FORM));
        }
    });
}

/// Fails calls of this process on device `device`, or lets them take time: the next one, or as the
/// [`Failure`] says. A call that fails has no effect. Each call of this function replaces the previous
/// failure of the same call of libibverbs; [`heal`] leaves it.
///
/// ```no_run
/// use softverbs::Call;
///
/// // What a kernel returns that cannot resolve the address of the peer.
/// softverbs::fail("soft0", Call::ModifyRtr.fails(libc::ETIMEDOUT).times(5))?;
/// // What ionic_post_recv returns while the adapter owns the entry of the ring.
/// softverbs::fail("soft0", Call::PostRecv.fails(libc::EAGAIN).after(7))?;
/// # Ok::<(), softverbs::Error>(())
/// ```
///
/// A post that fails leaves the rest of its list, too. For a retry of the rest the count goes on.
///
/// # Errors
/// There is no such device, or the process cannot join the fabric.
pub fn fail(device: &str, failure: Failure) -> Result<(), Error> {
    run(device, &Action::Fail(vec![failure]))
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
    /// The QP of this process with this number on the device with this name. Events 1 to 7 and 16
    /// concern the QP itself, event 0 its send CQ, events 14 and 15 its SRQ.
    Qp(&'a str, u32),
}

/// Raises the asynchronous event with number `kind` (`enum ibv_event_type`). It has no other
/// effect: the QP keeps working.
///
/// # Errors
/// There is no such device, QP or SRQ, or the event does not apply to `target`.
pub fn raise_event(kind: u32, target: EventTarget<'_>) -> Result<(), Error> {
    let error = |what: &str| Error(format!("event {kind}: {what}"));
    let (device, qpn) = match target {
        EventTarget::Device(name) if events::of_the_port(kind) => {
            named(name)?.raise(kind);
            return Ok(());
        }
        EventTarget::Device(_) => return Err(error("not an event of a device")),
        EventTarget::Qp(device, qpn) => (device, qpn),
    };
    let process = process::get().map_err(|_| error(NO_FABRIC))?;
    let all = process.qps.all();
    let qp = all
        .iter()
        .find(|qp| (qp.port().spec.name.as_str(), qp.qpn) == (device, qpn))
        .ok_or_else(|| error("there is no such queue pair"))?;
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

fn of_device(name: &str, error: &Error) -> Error {
    Error(format!("device {name:?}: {error}"))
}

/// Returns the device with this name in the segment of this process.
fn shared(name: &str) -> Result<&'static DeviceShared, Error> {
    let device = device::all().iter().find(|d| d.spec.name == name);
    let device = device.ok_or_else(|| Error(format!("there is no device {name:?}")))?;
    let process = process::get().map_err(|_| Error(String::from(NO_FABRIC)))?;
    process.own.header().devices.get(device.index).ok_or_else(|| Error(String::from(NO_FABRIC)))
}

/// Returns the device with this name, as faults act on it.
fn named(name: &str) -> Result<Site<'static>, Error> {
    let index = shared(name)?.link.load(Relaxed);
    let process = process::get().map_err(|_| Error(String::from(NO_FABRIC)))?;
    let site = Site::new(&process.fabric, index, process.all_peers());
    site.ok_or_else(|| Error(String::from(NO_FABRIC)))
}

/// Runs an action. A fault that waits for a work request waits for one of this process.
fn run(device: &str, action: &Action) -> Result<(), Error> {
    named(device)?.run(action, |peer| peer.own).map_err(|e| of_device(device, &e))
}
