//! NCCL's profiler, told of what each send and receive does on each queue pair. `docs/profiler.md` says what a reader sees.
//!
//! An event belongs to the operation behind NCCL's handle, which is valid until NCCL is told that the request is done, or
//! that the connection has failed: so all events of a request end before that.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nccl_net_versions::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

use crate::proto::{MAX_RECVS, Part, SLOTS, rails};
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::transport::request::REQUESTS;
use crate::transport::send::group::{Group, SendOp};
use crate::transport::send_queue::SendQueue;
use crate::transport::work::Work;
use crate::verbs::{WRITE, WRITE_WITH_IMM};

/// Operations of a comm that are told whatever becomes of it. From then on it is one of [`SELDOM`], while nobody in this process has
/// ever taken an event.
const FIRST: u32 = 64;
const SELDOM: u32 = 32;

/// The profiler of one comm, where init brought a callback, which NCCL does from v10 on whether there is a profiler or not. The events
/// are those of its requests: of a send one for each rail, of a group of receives one for each receive and rail.
///
/// Dropped with its comm, which is before NCCL is told that it is closed; events still under way end then.
#[derive(Debug)]
pub(crate) struct CommProfiler {
    profiler: Profiler,
    /// Whether a profiler has ever accepted an event in this process.
    seen: Arc<AtomicBool>,
    /// Events under way: none where nobody profiles, and then the data path has nothing else to look at.
    under_way: usize,
    /// By request or receive, then by rail. Made once: nothing is allocated later.
    events: Box<[ProfilerEvent]>,
    /// By rail: its index in its device.
    devices: Box<[c_int]>,
    /// Rails that may carry data.
    carriers: u8,
    /// Operations that were told.
    told: u32,
    /// Operations that are not, before the next one that is.
    left: u32,
}

/// What is written on a rail.
struct Write {
    rail: usize,
    wr_id: u64,
    opcode: u32,
    len: usize,
}

impl Drop for CommProfiler {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl CommProfiler {
    /// For a sender.
    pub(crate) fn of_sends(settings: &Settings, comm: &Comm) -> Option<Box<Self>> {
        settings.profiler.map(|profiler| Self::new(profiler, settings, comm, REQUESTS))
    }

    /// For a receiver.
    pub(crate) fn of_receives(settings: &Settings, comm: &Comm) -> Option<Box<Self>> {
        settings.profiler.map(|profiler| Self::new(profiler, settings, comm, SLOTS * MAX_RECVS))
    }

    fn new(profiler: Profiler, settings: &Settings, comm: &Comm, operations: usize) -> Box<Self> {
        let roles = comm.roles();
        Box::new(Self {
            profiler,
            seen: Arc::clone(&settings.process.profiler_seen),
            under_way: 0,
            events: (0..operations * roles.len()).map(|_| ProfilerEvent::NONE).collect(),
            devices: roles.iter().map(|role| role.index().into()).collect(),
            carriers: comm.plan.carriers(&roles),
            told: 0,
            left: 0,
        })
    }

    /// The profiler, where it has an event under way.
    #[inline(always)]
    pub(crate) fn at_work(profiler: &mut Option<Box<Self>>) -> Option<&mut Self> {
        profiler.as_deref_mut().filter(|profiler| profiler.under_way > 0)
    }

    /// Whether the operation with this handle is to be told.
    #[inline(always)]
    pub(crate) fn wants(profiler: &mut Option<Box<Self>>, handle: ProfilerHandle) -> bool {
        if handle.is_none() {
            return false;
        }
        let Some(profiler) = profiler.as_deref_mut() else { return false };
        if profiler.left > 0 {
            profiler.left -= 1;
            return false;
        }
        profiler.told = profiler.told.saturating_add(1);
        let all = profiler.told < FIRST || profiler.seen.load(Ordering::Relaxed);
        profiler.left = if all { 0 } else { SELDOM - 1 };
        true
    }

    /// A part of a group of one is going to be posted, with its immediate.
    #[inline(never)]
    pub(crate) fn part(
        profiler: &mut Option<Box<Self>>,
        index: u8,
        send: &SendOp,
        part: Part,
        slot: u8,
        queue: &SendQueue,
    ) {
        let Some(profiler) = profiler else { return };
        let wr_id = queue.signal(Work::Data { slot }, 1);
        let write = Write { rail: part.rail, wr_id, opcode: WRITE_WITH_IMM, len: part.len };
        profiler.start(usize::from(index), send.profiler, write, queue);
    }

    /// The writes of a group are going to be posted on a rail, and one with the immediate and this `wr_id`, whose completion
    /// tells of all. `first`: an empty send, which has no write of its own, has that one.
    pub(crate) fn group(
        &mut self,
        group: &Group,
        sends: &[SendOp; REQUESTS],
        rail: usize,
        first: bool,
        wr_id: u64,
        queue: &SendQueue,
    ) {
        for index in group.members() {
            let send = &sends[index];
            let opcode = match (send.buffer.len, send.split.bytes(rail)) {
                (0, _) if first => WRITE_WITH_IMM,
                (_, 0) => continue,
                _ => WRITE,
            };
            let write = Write { rail, wr_id, opcode, len: send.split.bytes(rail) };
            self.start(index, send.profiler, write, queue);
        }
    }

    /// What a group of sends had on a rail is done.
    #[cold]
    pub(crate) fn sent(&mut self, group: &Group, rail: usize) {
        group.members().for_each(|index| self.stop(index, rail));
    }

    /// A slot's receive number `i` is going to be offered. Which rails will carry it is the sender's choice, so there is an
    /// event on each that may.
    #[inline(never)]
    pub(crate) fn receive(comm: &mut Comm, slot: u8, i: usize, handle: ProfilerHandle) {
        let Comm { profiler: Some(profiler), rails: connected, .. } = comm else { return };
        for rail in rails(profiler.carriers) {
            // What comes on it is known when it has come. The receives of a rail are all alike: the number is the slot's.
            let write = Write { rail, wr_id: slot.into(), opcode: WRITE_WITH_IMM, len: 0 };
            if !profiler.start(receive(slot, i), handle, write, connected[rail].send_queue(slot)) {
                // Whether it takes events is the operation's affair, and most often nobody profiles.
                break;
            }
        }
    }

    /// Data for a slot came on a rail, the last of it where it is `whole`.
    #[cold]
    pub(crate) fn arrived(&mut self, slot: u8, rail: usize, whole: bool) {
        let mask = if whole { self.carriers } else { 1 << rail };
        for i in 0..MAX_RECVS {
            rails(mask).for_each(|rail| self.stop(receive(slot, i), rail));
        }
    }

    /// Whether the profiler took the event.
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
        self.profiler.start(place, handle, &event);
        let taken = !place.is_none();
        self.under_way += usize::from(taken);
        if taken {
            self.seen.store(true, Ordering::Relaxed);
            self.left = 0;
        }
        taken
    }

    fn stop(&mut self, operation: usize, rail: usize) {
        let place = &mut self.events[operation * self.devices.len() + rail];
        if !place.is_none() {
            self.profiler.stop(place);
            self.under_way -= 1;
        }
    }

    /// Ends all that are under way: NCCL is going to be told that the connection has failed, or is closed.
    #[cold]
    pub(crate) fn stop_all(&mut self) {
        if self.under_way > 0 {
            self.events.iter_mut().for_each(|event| self.profiler.stop(event));
            self.under_way = 0;
        }
    }
}

/// The number of a slot's receive.
fn receive(slot: u8, i: usize) -> usize {
    usize::from(slot) * MAX_RECVS + i
}
