//! Events for NCCL's profiler: one for each send or receive and rail. See
//! `docs/guide/profiler.md` for what a profiler records.
//!
//! An event belongs to the operation behind NCCL's handle. The handle is valid until `test` reports
//! the request as completed or the connection as failed, so all events of a request stop before
//! that.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_proto::{MAX_RECVS, Part, RailRole, RailSet, SLOTS, Split};
use nccl_net_versions::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

use crate::operations::Message;
use crate::transport::comm::Comm;
use crate::transport::rail::Rail;
use crate::transport::send::window::{Group, SendOp};
use crate::transport::send_queue::{SendQueue, Work};
use crate::verbs::{WRITE, WRITE_WITH_IMM};

/// Number of receives that can have events at the same time.
pub(crate) const RECEIVES: usize = SLOTS * MAX_RECVS;

/// The first operations of a comm are all reported. After them one in [`SAMPLE_INTERVAL`] is, until
/// a profiler of this process has accepted an event.
const ALWAYS_REPORTED: u32 = 64;
const SAMPLE_INTERVAL: u32 = 32;

/// The profiler events of one comm. Present if init brought a callback, which NCCL from v10 on does
/// with or without a profiler.
///
/// Dropping it stops all events: NCCL learns of the close afterwards.
#[derive(Debug)]
pub(crate) struct CommProfiler {
    profiler: Profiler,
    /// Set once a profiler of this process has accepted an event. NCCL passes handles even without
    /// a profiler.
    seen: Arc<AtomicBool>,
    /// Events in flight. Without a profiler it is 0, and the data path looks at nothing else.
    in_flight: usize,
    /// By operation, then by rail. Allocated once.
    events: Box<[ProfilerEvent]>,
    /// By rail: its place in the device.
    devices: Box<[c_int]>,
    /// By rail: the number of its port's record in the statistics page, from 1; 0 if it has none.
    ports: Box<[u32]>,
    /// Rails that may carry data.
    carriers: RailSet,
    /// Operations reported so far.
    reported: u32,
    /// Operations to skip before the next report.
    skip: u32,
}

/// A work request, as an event describes it.
struct Write {
    rail: usize,
    wr_id: u64,
    opcode: u32,
    len: usize,
    is_receive: bool,
}

impl Drop for CommProfiler {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl CommProfiler {
    /// Allocates the events of `operations` operations on rails with these roles. `carriers` are the
    /// rails that may carry data.
    pub(crate) fn new(
        profiler: Profiler,
        seen: &Arc<AtomicBool>,
        (roles, ports): (&[RailRole], Box<[u32]>),
        carriers: RailSet,
        operations: usize,
    ) -> Box<Self> {
        Box::new(Self {
            profiler,
            seen: Arc::clone(seen),
            in_flight: 0,
            events: (0..operations * roles.len()).map(|_| ProfilerEvent::NONE).collect(),
            devices: roles.iter().map(|role| role.index().into()).collect(),
            ports,
            carriers,
            reported: 0,
            skip: 0,
        })
    }

    /// Reports on these rails from now on.
    pub(crate) fn set_carriers(&mut self, carriers: RailSet) {
        self.carriers = carriers;
    }

    /// Returns the profiler if it has an event in flight.
    #[inline(always)]
    pub(crate) fn active(profiler: &mut Option<Box<Self>>) -> Option<&mut Self> {
        profiler.as_deref_mut().filter(|profiler| profiler.in_flight > 0)
    }

    /// Returns whether to report the operation with this handle.
    #[inline(always)]
    pub(crate) fn should_report(profiler: &mut Option<Box<Self>>, handle: ProfilerHandle) -> bool {
        if handle.is_none() {
            return false;
        }
        let Some(profiler) = profiler.as_deref_mut() else { return false };
        if profiler.skip > 0 {
            profiler.skip -= 1;
            return false;
        }
        profiler.reported = profiler.reported.saturating_add(1);
        let all = profiler.reported < ALWAYS_REPORTED || profiler.seen.load(Ordering::Relaxed);
        profiler.skip = if all { 0 } else { SAMPLE_INTERVAL - 1 };
        true
    }

    /// Returns `true`, and counts the operation, if it is not to be reported. Otherwise nothing is
    /// counted, and [`should_report`](Self::should_report) decides.
    #[inline(always)]
    pub(crate) fn skips(profiler: &mut Option<Box<Self>>, handle: ProfilerHandle) -> bool {
        let Some(profiler) = profiler.as_deref_mut() else { return true };
        if handle.is_none() {
            return true;
        }
        match profiler.skip.checked_sub(1) {
            None => false,
            Some(left) => {
                profiler.skip = left;
                true
            }
        }
    }

    /// Starts an event. Returns whether the profiler accepted it.
    #[inline(always)]
    fn start(&mut self, operation: usize, handle: ProfilerHandle, write: Write, queue: &SendQueue) -> bool {
        if handle.is_none() {
            return false;
        }
        let event = QpEvent {
            device: self.devices[write.rail],
            wr_id: write.wr_id,
            opcode: write.opcode as c_int,
            qp_num: queue.number() as c_int,
            length: write.len,
        };
        let place = &mut self.events[operation * self.devices.len() + write.rail];
        let message = match write.is_receive {
            true => Message::Received,
            false => Message::Sent { port: self.ports[write.rail], bytes: write.len as u64 },
        };
        message.reported(|| self.profiler.start(place, handle, &event));
        let taken = !place.is_none();
        self.in_flight += usize::from(taken);
        if taken {
            self.seen.store(true, Ordering::Relaxed);
            self.skip = 0;
        }
        taken
    }

    fn stop(&mut self, operation: usize, rail: usize) {
        let place = &mut self.events[operation * self.devices.len() + rail];
        if !place.is_none() {
            self.profiler.stop(place);
            self.in_flight -= 1;
        }
    }

    /// Stops all events in flight, before NCCL learns that the connection has failed or is closed.
    #[cold]
    pub(crate) fn stop_all(&mut self) {
        if self.in_flight > 0 {
            self.events.iter_mut().for_each(|event| self.profiler.stop(event));
            self.in_flight = 0;
        }
    }

    /// Starts the events of the parts of a group of one, before they are posted in this slot with
    /// their immediates, for this purpose. The send has this request and handle.
    #[cold]
    #[inline(never)]
    pub(crate) fn start_parts(
        profiler: &mut Option<Box<Self>>,
        (index, handle): (u8, ProfilerHandle),
        split: &Split,
        rails: &[Rail],
        (slot, work): (u8, Work),
    ) {
        let Some(profiler) = profiler else { return };
        for Part { rail, len, .. } in split.parts() {
            let queue = rails[rail].send_queue(slot);
            let wr_id = queue.signal(work, 1);
            let write = Write { rail, wr_id, opcode: WRITE_WITH_IMM, len, is_receive: false };
            profiler.start(index.into(), handle, write, queue);
        }
    }

    /// Starts the events of a group on one rail, before its writes are posted. They end with the
    /// completion of the write that carries the immediate, whose `wr_id` this is. It is the write
    /// with the data if it is `joined`. An empty send has no write; on the `first` rail the write
    /// with the immediate stands for it.
    pub(crate) fn start_group(
        &mut self,
        group: &Group,
        ops: &[SendOp],
        rail: usize,
        (first, joined): (bool, bool),
        wr_id: u64,
        queue: &SendQueue,
    ) {
        for (index, send) in group.members().zip(ops) {
            let opcode = match (send.buffer.len, send.split.bytes(rail)) {
                (0, _) if first => WRITE_WITH_IMM,
                (_, 0) => continue,
                _ if joined => WRITE_WITH_IMM,
                _ => WRITE,
            };
            let write = Write { rail, wr_id, opcode, len: send.split.bytes(rail), is_receive: false };
            self.start(index, send.profiler, write, queue);
        }
    }

    /// Stops the events of a group on one rail.
    #[cold]
    pub(crate) fn stop_group(&mut self, group: &Group, rail: usize) {
        group.members().for_each(|index| self.stop(index, rail));
    }

    /// Starts the events of receive `i` of a slot, before its CTS entry is written. The sender chooses
    /// the rails, so each rail that may carry data has an event.
    #[inline(never)]
    pub(crate) fn start_receive(comm: &mut Comm, slot: u8, i: usize, handle: ProfilerHandle) {
        let Comm { profiler: Some(profiler), rails: connected, .. } = comm else { return };
        for rail in profiler.carriers.iter() {
            // The length is known only on arrival. All receives of a rail are alike, so the work
            // request's id is the slot.
            let write = Write { rail, wr_id: slot.into(), opcode: WRITE_WITH_IMM, len: 0, is_receive: true };
            if !profiler.start(receive(slot, i), handle, write, connected[rail].send_queue(slot)) {
                // A profiler that refuses one event of an operation refuses all. Most often there is
                // no profiler.
                break;
            }
        }
    }

    /// Stops the events of a slot's receives on one rail, or on all rails once the slot is `complete`.
    #[cold]
    pub(crate) fn stop_receives(&mut self, slot: u8, rail: usize, complete: bool) {
        let which = if complete { self.carriers } else { RailSet::of(rail) };
        for i in 0..MAX_RECVS {
            which.iter().for_each(|rail| self.stop(receive(slot, i), rail));
        }
    }
}

/// Returns the number of an operation: receive `i` of a slot.
fn receive(slot: u8, i: usize) -> usize {
    usize::from(slot) * MAX_RECVS + i
}
