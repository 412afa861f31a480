//! The work requests of one part of a group.

use crate::proto::{FIFO_BYTES, RECORD_BYTES};
use crate::transport::remote_memory::RemoteMemory;
use crate::transport::send::group::{SendOp, chain_full};
use crate::transport::send_queue::{NotPosted, SendQueue};
use crate::transport::work::Work;
use crate::verbs::{Chain, Local, Region, Remote};

/// The work requests of one part of a group: its data, then the write with the immediate.
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
}

/// What [`PartWrites::prepare`] has put into the chain, or posted if it was full.
#[derive(Debug)]
pub(crate) struct Prepared {
    /// Writes with data.
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
        let (mut writes, mut bytes) = (0, 0);
        for send in ops.iter().filter(|send| send.buffer.len > 0) {
            let Some(part) = send.split.parts().find(|p| p.rail == self.part) else { continue };
            for at in (0..part.len).step_by(self.largest) {
                let (local, to) = send.ends(self.carrier, part.offset + at, self.largest.min(part.len - at));
                queue.post_if_full(chain)?;
                if !chain.write(Some(local), to, None, None) {
                    return Err(chain_full());
                }
                writes += 1;
            }
            bytes += part.len;
        }
        let record = Local {
            addr: region.addr((FIFO_BYTES + self.offset) / 8) as u64,
            len: RECORD_BYTES as u32,
            lkey: region.mrs()[self.carrier].lkey(),
        };
        let to = Remote { addr: remote.addr + self.offset as u64, rkey: remote.rkeys[self.carrier] };
        queue.post_if_full(chain)?;
        let signal = queue.signal(self.work, chain.len() + 1);
        if !chain.write(self.record.then_some(record), to, Some(self.imm), Some(signal)) {
            return Err(chain_full());
        }
        Ok(Prepared { writes, bytes, signal })
    }
}
