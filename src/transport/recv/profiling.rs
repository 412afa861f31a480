//! The profiler events of receives: one for each receive and rail that may carry its data.

use nccl_net_versions::ProfilerHandle;

use crate::proto::{MAX_RECVS, SLOTS, rails};
use crate::transport::comm::Comm;
use crate::transport::profiler::{CommProfiler, Write};
use crate::verbs::WRITE_WITH_IMM;

/// Number of receives that can have events at the same time.
pub(crate) const RECEIVES: usize = SLOTS * MAX_RECVS;

/// Starts the events of receive `i` of a slot, before its CTS entry is written. The sender chooses
/// the rails, so each rail that may carry data has an event.
#[inline(never)]
pub(crate) fn start(comm: &mut Comm, slot: u8, i: usize, handle: ProfilerHandle) {
    let Comm { profiler: Some(profiler), rails: connected, .. } = comm else { return };
    for rail in rails(profiler.carriers()) {
        // The length is known only on arrival. All receives of a rail are alike, so the work
        // request's id is the slot.
        let write = Write { rail, wr_id: slot.into(), opcode: WRITE_WITH_IMM, len: 0 };
        if !profiler.start(operation(slot, i), handle, write, connected[rail].send_queue(slot)) {
            // A profiler that refuses one event of an operation refuses all. Most often there is no
            // profiler.
            break;
        }
    }
}

/// Stops the events of a slot on one rail, or on all rails once the slot is `complete`.
#[cold]
pub(crate) fn arrived(profiler: &mut CommProfiler, slot: u8, rail: usize, complete: bool) {
    let mask = if complete { profiler.carriers() } else { 1 << rail };
    for i in 0..MAX_RECVS {
        rails(mask).for_each(|rail| profiler.stop(operation(slot, i), rail));
    }
}

fn operation(slot: u8, i: usize) -> usize {
    usize::from(slot) * MAX_RECVS + i
}
