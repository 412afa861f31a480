//! Asynchronous events. Any process raises them in the segment of the object's owner; the owner
//! delivers them to its program.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::{Acks, Handle};
use crate::api::cq::Cq;
use crate::api::device::{self, Context};
use crate::api::qp::{ERR, Qp, RESET};
use crate::api::srq::Srq;
use crate::config::call::Call;
use crate::log::fault;
use crate::process::{self, Process, calls};
use crate::shm::layout::EVENTS;
use crate::shm::peer::Peer;

/// Values of `enum ibv_event_type`. They are integers: C may use values that a Rust enum does not
/// have.
pub(crate) const CQ_ERR: u32 = 0;
pub(crate) const QP_FATAL: u32 = 1;
pub(crate) const QP_REQ_ERR: u32 = 2;
pub(crate) const QP_ACCESS_ERR: u32 = 3;
pub(crate) const COMM_EST: u32 = 4;
pub(crate) const SQ_DRAINED: u32 = 5;
pub(crate) const DEVICE_FATAL: u32 = 8;
pub(crate) const PORT_ACTIVE: u32 = 9;
pub(crate) const PORT_ERR: u32 = 10;
pub(crate) const SRQ_ERR: u32 = 14;
pub(crate) const SRQ_LIMIT_REACHED: u32 = 15;
pub(crate) const LAST_WQE_REACHED: u32 = 16;
pub(crate) const GID_CHANGE: u32 = 18;
/// No event of C's: the kernel takes a device that has failed from its programs, which get
/// `DEVICE_FATAL` if they have not had it.
pub(crate) const REMOVED: u32 = u32::MAX;
pub(crate) const DEVICE_SPEED_CHANGE: u32 = 20;

/// The object of an event.
pub(crate) enum Target {
    /// A QP.
    Qp(Arc<Qp>),
    /// A CQ.
    Cq(Arc<Cq>),
    /// An SRQ.
    Srq(Arc<Srq>),
    /// A port of the device, for the context that has the event in its queue.
    Port(u8),
}

/// An undelivered event.
pub(crate) struct Event {
    kind: u32,
    target: Target,
}

impl Target {
    fn context(&self) -> Option<&Arc<Context>> {
        match self {
            Self::Qp(qp) => Some(&qp.context),
            Self::Cq(cq) => Some(&cq.context),
            Self::Srq(srq) => Some(&srq.context),
            Self::Port(_) => None,
        }
    }

    fn acks(&self) -> Option<&Acks> {
        match self {
            Self::Qp(qp) => Some(&qp.acks),
            Self::Cq(cq) => Some(&cq.async_acks),
            Self::Srq(srq) => Some(&srq.acks),
            Self::Port(_) => None,
        }
    }

    fn element(&self) -> *mut c_void {
        match self {
            Self::Qp(qp) => qp.as_c().cast(),
            Self::Cq(cq) => cq.as_c().cast(),
            Self::Srq(srq) => srq.as_c().cast(),
            Self::Port(_) => std::ptr::null_mut(),
        }
    }
}

/// Returns whether an event concerns the device or its port, and no other object.
pub(crate) fn of_the_port(kind: u32) -> bool {
    matches!(kind, DEVICE_FATAL..=13 | 17 | GID_CHANGE | DEVICE_SPEED_CHANGE | REMOVED)
}

/// Raises event `kind` for the object at `index` of the segment's table. `id` identifies the
/// object. For events of a port, `index` is the link.
pub(crate) fn raise(peer: &Peer, kind: u32, index: u32, id: u32) {
    let header = peer.header();
    {
        let _guard = header.event_lock.lock();
        let tail = header.event_tail.load(Relaxed);
        let Some(slot) = header.events.get(tail as usize % EVENTS) else { return };
        if tail.wrapping_sub(header.event_head.load(Relaxed)) as usize >= EVENTS {
            fault!("async event {kind} is lost: {EVENTS} others wait in process {}", peer.pid);
            return;
        }
        slot.kind.store(kind, Relaxed);
        slot.index.store(index, Relaxed);
        slot.id.store(id, Relaxed);
        header.event_tail.store(tail.wrapping_add(1), Release);
    }
    match peer.own.then(process::get) {
        Some(Ok(process)) => dispatch(process),
        _ => peer.kick(),
    }
}

/// Puts an event into the queue of its object's context, if the object still exists. The lock of
/// the table is held throughout: `finish`, which runs after the object was removed from the table,
/// sees all events.
fn deliver(process: &Process, kind: u32, index: u32, id: u32) {
    let push = |target: Target| {
        if let Some(context) = target.context().map(Arc::clone) {
            context.events.push(Event { kind, target });
        }
    };
    if of_the_port(kind) {
        let ports = device::all().iter().zip(&process.own.header().devices);
        let port = ports.into_iter().find(|(_, shared)| shared.link.load(Relaxed) == index);
        let Some((port, _)) = port else { return };
        for context in device::open_contexts() {
            if context.device.index != port.adapter().index {
                continue;
            }
            let raise = |kind| context.events.push(Event { kind, target: Target::Port(port.number) });
            match kind {
                REMOVED if context.is_dead() && context.report_removal() => raise(DEVICE_FATAL),
                // The context of a device that has failed gets no other event any more.
                _ if kind == REMOVED || context.is_dead() => {}
                DEVICE_FATAL => {
                    context.notice_failure();
                    if context.device.profile.fatal_by_queue_pair {
                        fail_queue_pairs(process, &context);
                    } else {
                        context.report_removal();
                        raise(kind);
                    }
                }
                _ => raise(kind),
            }
        }
        return;
    }
    match kind {
        CQ_ERR => process.cqs.with(index, |cq| {
            if cq.id == id {
                push(Target::Cq(Arc::clone(cq)));
            }
        }),
        SRQ_ERR | SRQ_LIMIT_REACHED => process.srqs.with(index, |srq| {
            if srq.id == id {
                push(Target::Srq(Arc::clone(srq)));
            }
        }),
        _ => process.qps.with(index, |qp| {
            if qp.qpn == id {
                let only = qp.context.device.profile.only_qp_event;
                let kind = only.filter(|_| matches!(kind, QP_FATAL..=QP_ACCESS_ERR)).unwrap_or(kind);
                qp.context.events.push(Event { kind, target: Target::Qp(Arc::clone(qp)) });
            }
        }),
    };
}

/// Puts `QP_FATAL` into the queue of a context for each of its queue pairs, but those that cannot fail
/// any more.
fn fail_queue_pairs(process: &Process, context: &Arc<Context>) {
    for qp in process.qps.all().iter().filter(|qp| Arc::ptr_eq(&qp.context, context)) {
        let state = process.own.qp(qp.index).map_or(ERR, |shared| shared.state.load(Relaxed));
        // Under the lock of the table, as in `deliver`.
        process.qps.with(qp.index, |current| {
            if Arc::ptr_eq(current, qp) && !matches!(state, RESET | ERR) {
                context.events.push(Event { kind: QP_FATAL, target: Target::Qp(Arc::clone(qp)) });
            }
        });
    }
}

/// Delivers all events that were raised for this process.
pub(crate) fn dispatch(process: &Process) {
    let header = process.own.header();
    loop {
        let (kind, index, id) = {
            let _guard = header.event_lock.lock();
            let head = header.event_head.load(Relaxed);
            if head == header.event_tail.load(Acquire) {
                return;
            }
            let Some(slot) = header.events.get(head as usize % EVENTS) else { return };
            header.event_head.store(head.wrapping_add(1), Relaxed);
            (slot.kind.load(Relaxed), slot.index.load(Relaxed), slot.id.load(Relaxed))
        };
        deliver(process, kind, index, id);
    }
}

/// Withdraws undelivered events of an object that the program destroys, and waits until delivered
/// ones are acknowledged.
pub(crate) fn finish(context: &Context, element: *mut c_void, acks: &Acks) {
    context.events.retain(|event| event.target.element() != element);
    acks.wait();
}

/// `ibv_get_async_event(3)`
///
/// # Safety
/// `context` is open and `event` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_get_async_event(
    context: *mut sys::ibv_context,
    event: *mut sys::ibv_async_event,
) -> c_int {
    border::minus_one("ibv_get_async_event", || {
        // With a reference: a thread may still wait here when the device is closed.
        // SAFETY: open, as the caller guarantees.
        let context = unsafe { Context::arc_from_ptr(context) }?;
        if context.events.is_ready() {
            calls::begin(context.device, Call::GetAsyncEvent)?;
        }
        let found = context.events.pop(|event| {
            if let Some(acks) = event.target.acks() {
                acks.delivered();
            }
        })?;
        let element = found.target.element();
        // SAFETY: writable, as the caller guarantees. The type is stored as an integer of the
        // enum's size.
        unsafe {
            (&raw mut (*event).element).cast::<*mut c_void>().write(element);
            if let Target::Port(number) = found.target {
                (&raw mut (*event).element).cast::<c_int>().write(number.into());
            }
            (&raw mut (*event).event_type).cast::<u32>().write(found.kind);
        }
        Ok(())
    })
}

/// `ibv_ack_async_event(3)`
///
/// # Safety
/// `event` came from [`ibv_get_async_event`] and its object is alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_ack_async_event(event: *mut sys::ibv_async_event) {
    // SAFETY: readable, as the caller guarantees; the type is read as an integer.
    let (kind, element) = unsafe {
        (
            (&raw const (*event).event_type).cast::<u32>().read(),
            (&raw const (*event).element).cast::<*mut c_void>().read(),
        )
    };
    // SAFETY: the event type determines the type of the element, which is alive as the caller
    // guarantees.
    let acks: Result<&Acks, Errno> = unsafe {
        match kind {
            _ if of_the_port(kind) => return,
            CQ_ERR => Cq::from_c(element.cast()).map(|cq| &cq.async_acks),
            SRQ_ERR | SRQ_LIMIT_REACHED => Srq::from_c(element.cast()).map(|srq| &srq.acks),
            _ => Qp::from_c(element.cast()).map(|qp| &qp.acks),
        }
    };
    if let Ok(acks) = acks {
        acks.acked(1);
    }
}
