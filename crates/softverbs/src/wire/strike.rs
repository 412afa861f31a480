//! Faults of work requests: counts what is posted, marks what a fault strikes, and decides what
//! happens to it when it becomes the head of its queue.

use std::sync::atomic::Ordering::Acquire;

use crate::api::events;
use crate::api::qp::Qp;
use crate::fault::site::Site;
use crate::fault::{self, Class, CompletionStatus, CqOf, Fault, Part, Then};
use crate::log::fault;
use crate::process::Process;
use crate::process::hw_counters::{self, Counter};
use crate::shm::fabric::Fabric;
use crate::shm::layout::DeviceShared;
use crate::wire::exec::Step;
use crate::wire::late::Late;
use crate::wire::link;
use crate::wire::reach::own_device;
use crate::wire::send_queue::{SendQueue, Wqe};

/// Reasons of `Step::NoAnswer`.
pub(crate) const NO_ACK: &str = "it has arrived, but the answer is lost (an injected fault)";
pub(crate) const CUT: &str = "only its first part has arrived (an injected fault)";
const SWALLOWED: &str = "it is swallowed (an injected fault)";

/// A posted work request that a fault strikes.
pub(crate) struct Struck {
    /// Running number in the send queue.
    pub(crate) number: u32,
    fault: Fault,
    /// `LinkSlot::heals` when the fault has taken effect; `None` before.
    since: Option<u32>,
    /// The copy of a WRITE that arrives late.
    late: Option<Late>,
}

/// The head of a send queue: it was executed, but its answer is lost.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Unacked {
    /// When it would have completed.
    pub(crate) ready_at: u64,
    /// `LinkSlot::heals` at that time, if a fault of this work request keeps the answer back.
    since: Option<u32>,
}

impl Unacked {
    /// Describes a work request whose answer a silent device swallows.
    pub(crate) const fn by_silence(ready_at: u64) -> Self {
        Self { ready_at, since: None }
    }

    /// Returns whether no fault of the work request keeps the answer back any more.
    pub(crate) fn passes(&self, fabric: &Fabric, device: &DeviceShared) -> bool {
        self.since.is_none_or(|since| link::heals(fabric, device) != since)
    }
}

/// What happens to the head of a send queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Course {
    /// No fault concerns it.
    Plain,
    /// It is not executed now.
    Stopped(Step),
    /// It is executed, and the answer is lost.
    NoAck,
    /// Only this many bytes of it arrive.
    Cut(u64),
    /// The receive that it consumes fails.
    BadReceive(CompletionStatus),
}

/// Counts a posted work request, and marks it if a fault strikes it. The send queue is locked.
pub(crate) fn count(process: &Process, qp: &Qp, sq: &mut SendQueue, number: u32, opcode: u32) {
    let Some(device) = own_device(process, qp) else { return };
    let class = Class::new(opcode, sq.connection.loopback);
    class.count(device);
    if device.armed.load(Acquire) == 0 {
        return;
    }
    let faults = {
        let _guard = process.fabric.lock();
        fault::triggered(device, class)
    };
    for fault in faults {
        let (name, wr_id) = (&qp.port().spec.name, sq.at(number).0.wr_id);
        fault!("QP {:#x}, wr_id {wr_id:#x}: device {name:?}: fault {fault:?} strikes", qp.qpn);
        let late = match fault {
            // Now: the program may write to its buffer again before it notices that the QP has failed.
            Fault::Late(after, _) => {
                let after = u64::try_from(after.as_nanos()).unwrap_or(u64::MAX);
                Late::copy(process, qp, sq, number, after)
            }
            _ => None,
        };
        sq.struck.push_back(Struck { number, fault, since: None, late });
    }
}

/// Returns the device of a QP, as faults act on it.
fn site<'a>(process: &'a Process, qp: &Qp) -> Option<Site<'a>> {
    let device = own_device(process, qp)?;
    Site::new(&process.fabric, device.link.load(Acquire), process.all_peers())
}

/// Returns how often the faults of a QP's device were ended.
fn heals(process: &Process, qp: &Qp) -> u32 {
    own_device(process, qp).map_or(0, |device| link::heals(&process.fabric, device))
}

/// Decides what happens to the head. Faults of the device take effect now. The send queue is locked.
pub(crate) fn begin(process: &Process, qp: &Qp, sq: &mut SendQueue) -> Course {
    let heals = heals(process, qp);
    while let Some(struck) = sq.struck.front_mut().filter(|struck| struck.number == sq.head) {
        match (struck.fault, struck.since) {
            (_, Some(since)) if since == heals => return Course::Stopped(Step::NoAnswer(SWALLOWED)),
            // The faults of the device have ended: the packets are sent again, and arrive.
            (_, Some(_)) => sq.swallowed.retain(|(number, _)| *number != sq.head),
            (Fault::Late(..), None) => {
                let late = struck.late.take();
                sq.swallowed.extend(late.map(|late| (sq.head, late)));
                takes_effect(process, qp, sq);
                return Course::Stopped(Step::NoAnswer(SWALLOWED));
            }
            (Fault::LostAck(_), None) => return Course::NoAck,
            (Fault::Partial(part, _), None) => return Course::Cut(bytes(part, &sq.first().0)),
            (Fault::Status(with), None) => return Course::Stopped(Step::Failed(with)),
            (Fault::RecvStatus(with), None) => return Course::BadReceive(with),
            (Fault::CqError(of), None) => {
                sq.struck.pop_front();
                match of {
                    CqOf::Send => &qp.send_cq,
                    CqOf::Recv => &qp.recv_cq,
                }
                .fail(process);
                // The QP is in ERR now.
                return Course::Stopped(Step::Moved);
            }
            (Fault::QpError, None) => {
                sq.struck.pop_front();
                let answer = qp.context.device.profile.answers.qp;
                qp.fail(process, Some(events::QP_FATAL), answer);
                return Course::Stopped(Step::Moved);
            }
            (Fault::SrqError, None) => {
                if let Some(srq) = &qp.srq {
                    srq.fail(process);
                }
            }
            (fault, None) => {
                if let Some(site) = site(process, qp) {
                    site.strike(fault);
                }
            }
        }
        sq.struck.pop_front();
    }
    Course::Plain
}

/// Returns how many bytes of a WRITE arrive. An adapter writes an aligned word at once: none arrives in
/// part.
fn bytes(part: Part, wqe: &Wqe) -> u64 {
    let Wqe { len, remote_addr, .. } = *wqe;
    let wanted = match part {
        Part::Bytes(n) => n,
        Part::Percent(n) => u64::try_from(u128::from(len) * u128::from(n) / 100).unwrap_or(len),
    };
    if wanted >= len {
        return len;
    }
    let end = remote_addr.saturating_add(wanted);
    wanted.saturating_sub(end % 8)
}

/// Records that the fault of the head has taken effect, and applies what follows it. Returns
/// `LinkSlot::heals`.
fn takes_effect(process: &Process, qp: &Qp, sq: &mut SendQueue) -> Option<u32> {
    let heals = heals(process, qp);
    let struck = sq.struck.front_mut().filter(|struck| struck.number == sq.head)?;
    struck.since = Some(heals);
    let then = match struck.fault {
        Fault::LostAck(then) | Fault::Late(_, then) | Fault::Partial(_, then) => then,
        _ => Then::Alive,
    };
    if let Some(site) = site(process, qp) {
        site.follow(then);
    }
    Some(heals)
}

/// Records that the head was executed, but its answer is lost.
pub(crate) fn lost_answer(process: &Process, qp: &Qp, sq: &mut SendQueue, ready_at: u64) -> Step {
    let since = takes_effect(process, qp, sq);
    // From now on `unacked` decides.
    sq.struck.retain(|struck| struck.number != sq.head);
    sq.unacked = Some(Unacked { ready_at, since });
    Step::NoAnswer(NO_ACK)
}

/// Records that only the first part of the head has arrived.
pub(crate) fn cut(process: &Process, qp: &Qp, sq: &mut SendQueue) -> Step {
    let alive = |struck: &Struck| matches!(struck.fault, Fault::Partial(_, Then::Alive));
    if sq.struck.front().is_some_and(alive) {
        // The packets behind the gap arrive.
        hw_counters::count(process, qp, Counter::PacketSequenceErrors);
    }
    takes_effect(process, qp, sq);
    Step::NoAnswer(CUT)
}
