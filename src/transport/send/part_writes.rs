//! The work requests of one part of a group.

use crate::proto::{FIFO_BYTES, RECORD_BYTES};
use crate::transport::remote_memory::RemoteMemory;
use crate::transport::send::group::SendOp;
use crate::transport::send_queue::{NotPosted, SendQueue};
use crate::transport::work::Work;
use crate::verbs::{Chain, Local, Region, Remote};

/// The work requests of one part of a group: its data, and the immediate.
#[derive(Debug)]
pub(crate) struct PartWrites {
    /// Offset of the group's completion record.
    pub(crate) offset: usize,
    /// The rail that was to carry the part.
    pub(crate) part: usize,
    /// The rail that carries it.
    pub(crate) carrier: usize,
    /// The largest write of the carrier in bytes.
    pub(crate) largest: usize,
    pub(crate) imm: u32,
    /// The purpose of the write with the immediate.
    pub(crate) work: Work,
    /// Whether that write carries the completion record.
    pub(crate) record: bool,
    /// Whether that write is the last one with data. Otherwise it follows.
    pub(crate) joined: bool,
}

/// What [`PartWrites::prepare`] has put into the chain, or posted if it was full.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Work requests.
    pub(crate) requests: usize,
    /// Those of them that stand for data.
    pub(crate) writes: usize,
    /// The sum of the writes' lengths, in bytes.
    pub(crate) bytes: usize,
    /// The `wr_id` of the write with the immediate, which is the last of the chain.
    pub(crate) signal: u64,
}

/// Returns the number of writes with data of one part of a group, on a rail with this largest write.
#[inline]
pub(crate) fn data_writes(ops: &[SendOp], part: usize, largest: usize) -> usize {
    ops.iter().map(|send| send.split.bytes(part).div_ceil(largest)).sum()
}

impl PartWrites {
    /// Fills the chain. The caller posts it, signalled.
    pub(crate) fn prepare(
        &self,
        ops: &[SendOp],
        queue: &mut SendQueue,
        chain: &mut Chain,
        (region, remote): (&Region, &RemoteMemory),
    ) -> Result<Prepared, NotPosted> {
        chain.clear();
        let (mut writes, mut bytes, mut last) = (0, 0, None);
        for send in ops.iter().filter(|send| send.buffer.len > 0) {
            let Some(part) = send.split.parts().find(|p| p.rail == self.part) else { continue };
            for at in (0..part.len).step_by(self.largest) {
                let ends = send.ends(self.carrier, part.offset + at, self.largest.min(part.len - at));
                if let Some((local, to)) = last.replace(ends) {
                    push(queue, chain, Some(local), to, None)?;
                }
                writes += 1;
            }
            bytes += part.len;
        }
        let (local, to, requests) = match (last, self.joined) {
            (Some((local, to)), true) => (Some(local), to, writes),
            (last, _) => {
                if let Some((local, to)) = last {
                    push(queue, chain, Some(local), to, None)?;
                }
                let (addr, lkey) =
                    (region.addr((FIFO_BYTES + self.offset) / 8), region.mrs()[self.carrier].lkey());
                let record = Local { addr: addr as u64, len: RECORD_BYTES as u32, lkey };
                let to = Remote { addr: remote.addr + self.offset as u64, rkey: remote.rkeys[self.carrier] };
                (self.record.then_some(record), to, writes + 1)
            }
        };
        queue.post_if_full(chain)?;
        let signal = queue.signal(self.work, chain.len() + 1);
        push(queue, chain, local, to, Some((self.imm, signal)))?;
        // A joined write without data stands for an empty message.
        Ok(Prepared { requests, writes: if self.joined { requests } else { writes }, bytes, signal })
    }
}

/// Adds a write to the chain, after a post if that is full. The last one has the immediate and a
/// `wr_id`.
fn push(
    queue: &mut SendQueue,
    chain: &mut Chain,
    local: Option<Local>,
    to: Remote,
    last: Option<(u32, u64)>,
) -> Result<(), NotPosted> {
    queue.post_if_full(chain)?;
    let is_written = chain.write(local, to, last.map(|(imm, _)| imm), last.map(|(_, signal)| signal));
    if is_written { Ok(()) } else { Err(chain_full()) }
}

/// There was room, so this is a bug.
#[cold]
fn chain_full() -> NotPosted {
    NotPosted::internal("a chain has no room for a work request")
}
