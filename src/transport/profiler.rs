//! NCCL's profiler, told of what each send and receive does on each queue pair. `docs/guide/profiler.md` says what a reader sees.
//!
//! An event belongs to the operation behind NCCL's handle, which is valid until NCCL is told that the request is done, or
//! that the connection has failed: so all events of a request end before that.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use nccl_net_versions::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

use crate::proto::{MAX_RECVS, Part, SLOTS, rails};
use crate::transport::comm::Core;
use crate::transport::request::REQUESTS;
use crate::transport::send::group::{Group, Send};
use crate::transport::send_queue::Lane;
use crate::transport::work::Work;
use crate::verbs::{WRITE, WRITE_WITH_IMM};

/// Whether a profiler has ever taken an event in this process. NCCL gives handles whether there is one or not.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// Operations of a comm that are told whatever becomes of it. From then on it is one of [`SELDOM`], while nobody in this process has
/// ever taken an event.
const FIRST: u32 = 64;
const SELDOM: u32 = 32;

/// The profiler of one comm, where init brought a callback, which NCCL does from v10 on whether there is a profiler or not. The events
/// are those of its requests: of a send one for each rail, of a group of receives one for each receive and rail.
///
/// Dropped with its comm, which is before NCCL is told that it is closed; events still under way end then.
#[derive(Debug)]
pub(crate) struct Profile {
    profiler: Profiler,
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

impl Drop for Profile {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl Profile {
    /// For a sender.
    pub(crate) fn of_sends(profiler: Option<Profiler>, core: &Core) -> Option<Box<Self>> {
        profiler.map(|profiler| Self::new(profiler, core, REQUESTS))
    }

    /// For a receiver.
    pub(crate) fn of_receives(profiler: Option<Profiler>, core: &Core) -> Option<Box<Self>> {
        profiler.map(|profiler| Self::new(profiler, core, SLOTS * MAX_RECVS))
    }

    fn new(profiler: Profiler, core: &Core, operations: usize) -> Box<Self> {
        let roles = core.roles();
        Box::new(Self {
            profiler,
            under_way: 0,
            events: (0..operations * roles.len()).map(|_| ProfilerEvent::NONE).collect(),
            devices: roles.iter().map(|role| (*role).into()).collect(),
            carriers: core.plan.carriers(&roles),
            told: 0,
            left: 0,
        })
    }

    /// The profiler, where it has an event under way.
    #[inline(always)]
    pub(crate) fn at_work(profile: &mut Option<Box<Self>>) -> Option<&mut Self> {
        profile.as_deref_mut().filter(|profile| profile.under_way > 0)
    }

    /// Whether the operation with this handle is to be told.
    #[inline(always)]
    pub(crate) fn wants(profile: &mut Option<Box<Self>>, handle: ProfilerHandle) -> bool {
        if handle.is_none() {
            return false;
        }
        let Some(profile) = profile.as_deref_mut() else { return false };
        if profile.left > 0 {
            profile.left -= 1;
            return false;
        }
        profile.told = profile.told.saturating_add(1);
        let all = profile.told < FIRST || TAKEN.load(Ordering::Relaxed);
        profile.left = if all { 0 } else { SELDOM - 1 };
        true
    }

    /// A part of a group of one is going to be posted, with its immediate.
    #[inline(never)]
    pub(crate) fn part(
        profile: &mut Option<Box<Self>>,
        index: u8,
        send: &Send,
        part: Part,
        slot: u8,
        lane: &Lane,
    ) {
        let Some(profile) = profile else { return };
        let wr_id = lane.signal(Work::Data { slot }, 1);
        let write = Write { rail: part.rail, wr_id, opcode: WRITE_WITH_IMM, len: part.len };
        profile.start(usize::from(index), send.profiler, write, lane);
    }

    /// The writes of a group are going to be posted on a rail, and one with the immediate and this `wr_id`, whose completion
    /// tells of all. `first`: an empty send, which has no write of its own, has that one.
    pub(crate) fn group(
        &mut self,
        group: &Group,
        sends: &[Send; REQUESTS],
        rail: usize,
        first: bool,
        wr_id: u64,
        lane: &Lane,
    ) {
        for index in group.members() {
            let send = &sends[index];
            let opcode = match (send.buffer.len, send.split.bytes(rail)) {
                (0, _) if first => WRITE_WITH_IMM,
                (_, 0) => continue,
                _ => WRITE,
            };
            let write = Write { rail, wr_id, opcode, len: send.split.bytes(rail) };
            self.start(index, send.profiler, write, lane);
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
    pub(crate) fn receive(core: &mut Core, slot: u8, i: usize, handle: ProfilerHandle) {
        let Core { profile: Some(profile), rails: connected, .. } = core else { return };
        for rail in rails(profile.carriers) {
            // What comes on it is known when it has come. The receives of a rail are all alike: the number is the slot's.
            let write = Write { rail, wr_id: slot.into(), opcode: WRITE_WITH_IMM, len: 0 };
            if !profile.start(receive(slot, i), handle, write, connected[rail].lane(slot)) {
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
    fn start(&mut self, operation: usize, handle: ProfilerHandle, write: Write, lane: &Lane) -> bool {
        if handle.is_none() {
            return false;
        }
        let event = QpEvent {
            device: self.devices[write.rail],
            wr_id: write.wr_id,
            opcode: write.opcode as c_int,
            qp_num: lane.number() as c_int,
            length: write.len,
        };
        let place = &mut self.events[operation * self.devices.len() + write.rail];
        self.profiler.start(place, handle, &event);
        let taken = !place.is_none();
        self.under_way += usize::from(taken);
        if taken {
            TAKEN.store(true, Ordering::Relaxed);
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
