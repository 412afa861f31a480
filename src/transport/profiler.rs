//! NCCL's profiler, told of what each send and receive does on each queue pair. `docs/profiler.md` says what a reader sees.
//!
//! An event belongs to the operation behind NCCL's handle, which is valid until NCCL is told that the request is done, or
//! that the connection has failed: so all events of a request end before that.

use std::ffi::c_int;
use std::sync::atomic::{AtomicBool, Ordering};

use nccl_net_versions::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

use crate::proto::RailRole;
use crate::transport::send_queue::SendQueue;

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
pub(crate) struct CommProfiler {
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
pub(crate) struct Write {
    pub(crate) rail: usize,
    pub(crate) wr_id: u64,
    pub(crate) opcode: u32,
    pub(crate) len: usize,
}

impl Drop for CommProfiler {
    fn drop(&mut self) {
        self.stop_all();
    }
}

impl CommProfiler {
    /// Makes the events of a comm: for `operations` operations on rails with these roles, of which `carriers` may carry data.
    pub(crate) fn new(profiler: Profiler, roles: &[RailRole], carriers: u8, operations: usize) -> Box<Self> {
        Box::new(Self {
            profiler,
            under_way: 0,
            events: (0..operations * roles.len()).map(|_| ProfilerEvent::NONE).collect(),
            devices: roles.iter().map(|role| role.index().into()).collect(),
            carriers,
            told: 0,
            left: 0,
        })
    }

    /// The rails that may carry data.
    pub(crate) fn carriers(&self) -> u8 {
        self.carriers
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
        let all = profiler.told < FIRST || TAKEN.load(Ordering::Relaxed);
        profiler.left = if all { 0 } else { SELDOM - 1 };
        true
    }

    /// Whether the profiler took the event.
    #[inline(always)]
    pub(crate) fn start(
        &mut self,
        operation: usize,
        handle: ProfilerHandle,
        write: Write,
        queue: &SendQueue,
    ) -> bool {
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
            TAKEN.store(true, Ordering::Relaxed);
            self.left = 0;
        }
        taken
    }

    pub(crate) fn stop(&mut self, operation: usize, rail: usize) {
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
