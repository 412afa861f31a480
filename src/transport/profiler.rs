//! Events for NCCL's profiler: one for each send or receive and rail. See
//! `docs/guide/profiler.md` for what a profiler records.
//!
//! An event belongs to the operation behind NCCL's handle. The handle is valid until `test` reports
//! the request as completed or the connection as failed, so all events of a request stop before
//! that.

use std::ffi::c_int;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nccl_net_versions::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

use crate::proto::RailRole;
use crate::transport::send_queue::SendQueue;

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
    /// Rails that may carry data.
    carriers: u8,
    /// Operations reported so far.
    reported: u32,
    /// Operations to skip before the next report.
    skip: u32,
}

/// A work request, as an event describes it.
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
    /// Allocates the events of `operations` operations on rails with these roles. `carriers` is the
    /// mask of the rails that may carry data.
    pub(crate) fn new(
        profiler: Profiler,
        seen: &Arc<AtomicBool>,
        roles: &[RailRole],
        carriers: u8,
        operations: usize,
    ) -> Box<Self> {
        Box::new(Self {
            profiler,
            seen: Arc::clone(seen),
            in_flight: 0,
            events: (0..operations * roles.len()).map(|_| ProfilerEvent::NONE).collect(),
            devices: roles.iter().map(|role| role.index().into()).collect(),
            carriers,
            reported: 0,
            skip: 0,
        })
    }

    /// Reports nothing more on rails outside of the mask.
    pub(crate) fn keep(&mut self, rails: u8) {
        self.carriers &= rails;
    }

    /// Reports on rails of the mask again.
    pub(crate) fn add(&mut self, rails: u8) {
        self.carriers |= rails;
    }

    /// Returns the mask of the rails that may carry data.
    pub(crate) fn carriers(&self) -> u8 {
        self.carriers
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
        self.in_flight += usize::from(taken);
        if taken {
            self.seen.store(true, Ordering::Relaxed);
            self.skip = 0;
        }
        taken
    }

    pub(crate) fn stop(&mut self, operation: usize, rail: usize) {
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
}
