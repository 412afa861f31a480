//! Sends whose data and immediate travel in separate work requests.

use std::sync::atomic::Ordering;

use crate::error::{Error, Fast, Result};
use crate::proto::{FIFO_BYTES, MAX_RAILS, MAX_RECVS, Record, SizeQ, rails};
use crate::transport::comm::Comm;
use crate::transport::progress::Progress;
use crate::transport::send::SendState;
use crate::transport::send::group::Group;
use crate::transport::send::part_writes::{PartWrites, data_writes};
use crate::transport::send::profiling;
use crate::transport::work::Work;

impl SendState {
    /// Posts a send whose immediate travels in a separate work request: grouped receives, sizes
    /// that `size_q` cannot encode, sends larger than the adapter's largest write, or
    /// adaptive-routing sends. Per rail: one RDMA WRITE per part, or several for a part larger than
    /// the largest write, then one WRITE_WITH_IMM. The latter carries no data, except on the leader
    /// rail of a group whose sizes the immediate does not contain: there it carries the completion
    /// record.
    #[inline(never)]
    pub(crate) fn post_separate_imm(&mut self, slot: u8) -> Fast<bool> {
        let (group, offset) = (self.groups[usize::from(slot)], self.seq.record_offset());
        let mask = self.mask(&group);
        if !self.fits(slot, mask, &group) {
            self.poll()?;
            if !self.fits(slot, mask, &group) {
                return Ok(false);
            }
        }
        let size = group.size(self.comm.layout, self.ops[0].buffer.len);
        if size == SizeQ::RECORD {
            self.stage_record(&group)?;
        }
        self.groups[usize::from(slot)].mark_posted(mask);
        self.seq = self.seq.next();
        let Comm { rails: all, chain, layout, region, remote, stats, profiler, .. } = &mut self.comm;
        let imm = layout.encode(slot, mask, size);
        let ops = group.ops(&self.ops);
        let bytes = |rail| ops.iter().map(|op| op.split.bytes(rail)).sum();
        let measured = self.timing.as_mut().map_or(0, |timing| timing.begin(slot, mask, bytes));
        let mut failed = None;
        let leader = if size == SizeQ::RECORD { mask.trailing_zeros() as usize } else { MAX_RAILS };
        for rail in rails(mask) {
            let largest = all[rail].largest_write();
            let queue = all[rail].send_queue_mut(slot);
            let record = rail == leader;
            let work = Work::data(slot, rail, measured);
            let part = PartWrites { offset, part: rail, carrier: rail, largest, imm, work, record };
            let written = match part.prepare(ops, queue, chain, (region, remote)) {
                Ok(written) => written,
                Err(e) => {
                    failed = Some((rail, e));
                    continue;
                }
            };
            if let Some(profiler) = profiler {
                let first = mask.trailing_zeros() as usize == rail;
                profiling::group(profiler, &group, ops, rail, first, written.signal, queue);
            }
            match queue.post(chain, true) {
                Ok(()) => stats.posted(rail, written.writes + 1, written.writes, written.bytes),
                Err(e) => failed = Some((rail, e)),
            }
        }
        failed.map_or(Ok(true), |(rail, e)| self.comm.not_posted(rail, e).map(|()| true))
    }

    /// Returns the rails that carry any data of a group. A group without data goes on the rails of
    /// its first send.
    fn mask(&self, group: &Group) -> u8 {
        let filled = group.ops(&self.ops).iter().filter(|send| send.buffer.len > 0);
        match filled.fold(0, |mask, send| mask | send.split.mask()) {
            0 => self.ops[0].split.mask(),
            mask => mask,
        }
    }

    /// Returns whether the slot's send queue on every rail of `mask` has room for the group's
    /// writes and the one with the immediate.
    fn fits(&self, slot: u8, mask: u8, group: &Group) -> bool {
        rails(mask).all(|rail| {
            let of_rail = &self.comm.rails[rail];
            let writes = data_writes(group.ops(&self.ops), rail, of_rail.largest_write());
            of_rail.send_queue(slot).room() > writes
        })
    }

    /// Writes the completion record to the control memory from which the leader rail sends it.
    fn stage_record(&self, group: &Group) -> Result<()> {
        let mut sizes = [0; MAX_RECVS];
        let ops = group.ops(&self.ops);
        for (size, send) in sizes.iter_mut().zip(ops) {
            *size = send.buffer.len;
        }
        let record = Record::new(&sizes[..ops.len()]);
        let record = record.map_err(|e| Error::Internal(e.to_string()))?.encode();
        let start = (FIFO_BYTES + self.seq.record_offset()) / 8;
        for (word, bytes) in self.comm.region.words()[start..].iter().zip(record.chunks_exact(8)) {
            let mut number = [0; 8];
            number.copy_from_slice(bytes);
            word.store(u64::from_ne_bytes(number), Ordering::Relaxed);
        }
        Ok(())
    }
}
