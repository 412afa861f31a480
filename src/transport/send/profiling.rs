//! The profiler events of sends: one for each send and rail.

use nccl_net_versions::ProfilerHandle;

use crate::proto::Part;
use crate::transport::profiler::{CommProfiler, Write};
use crate::transport::send::group::{Group, SendOp};
use crate::transport::send_queue::SendQueue;
use crate::verbs::{WRITE, WRITE_WITH_IMM};

/// Starts the event of one part of a group of one, before the part is posted with its immediate and
/// this `wr_id`. The send has this request and handle.
#[inline(never)]
pub(crate) fn part(
    profiler: &mut Option<Box<CommProfiler>>,
    (index, handle): (u8, ProfilerHandle),
    part: Part,
    wr_id: u64,
    queue: &SendQueue,
) {
    let Some(profiler) = profiler else { return };
    let write = Write { rail: part.rail, wr_id, opcode: WRITE_WITH_IMM, len: part.len };
    profiler.start(index.into(), handle, write, queue);
}

/// Starts the events of a group on one rail, before its writes are posted. They end with the
/// completion of the write that carries the immediate, whose `wr_id` this is. It is the write with the
/// data if it is `joined`. An empty send has no write; on the `first` rail the write with the
/// immediate stands for it.
pub(crate) fn group(
    profiler: &mut CommProfiler,
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
        let write = Write { rail, wr_id, opcode, len: send.split.bytes(rail) };
        profiler.start(index, send.profiler, write, queue);
    }
}

/// Stops the events of a group on one rail.
#[cold]
pub(crate) fn completed(profiler: &mut CommProfiler, group: &Group, rail: usize) {
    group.members().for_each(|index| profiler.stop(index, rail));
}
