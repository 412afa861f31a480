//! The usual send, by the shortest way: one receive in its group, all data on one rail that the
//! policy need not choose, one work request. Everything else is [`start`](SendState::start)'s.

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Result};
use crate::policy::Policy;
use crate::proto::{ImmLayout, MAX_RAILS};
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::request::cells::Cells;
use crate::transport::send::SendState;
use crate::transport::send::cts_fifo;
use crate::transport::send::group::SENDS;
use crate::transport::work::Work;
use crate::verbs::{ImmWrite, Local, Words};

/// What the usual sends of a comm have in common.
#[derive(Debug)]
pub(crate) struct SingleSend {
    /// They have 1 to this many bytes.
    largest: usize,
    /// Their rail.
    rail: usize,
    /// The mask of that rail.
    mask: u8,
    /// Their share for SUP, for the statistics.
    share: Option<u16>,
    write: ImmWrite,
}

impl SingleSend {
    pub(crate) fn new(policy: &Policy, layout: ImmLayout, separate_imm_above: usize) -> Self {
        let whole = policy.whole();
        let below = whole.map_or(1, |whole| whole.below).min(layout.exact_below());
        let rail = whole.map_or(0, |whole| whole.rail % MAX_RAILS);
        Self {
            largest: (below - 1).min(separate_imm_above),
            rail,
            mask: 1 << rail,
            share: whole.and_then(|whole| whole.share),
            write: ImmWrite::new(),
        }
    }
}

/// Why a send has not been started by the shortest way.
pub(crate) enum NotSingle {
    /// It is not a usual one, or something is in its way. Nothing has been done.
    Unusual,
    /// It could not be posted.
    Failed(Box<Error>),
}

impl SendState {
    /// Starts a send if it is a usual one and nothing is in its way.
    #[inline(always)]
    pub(crate) fn start_single(
        &mut self,
        fifo: &Words,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Result<u8, NotSingle> {
        let SingleSend { largest, rail, mask, ref mut write, .. } = self.single;
        let (true, Some(mr)) = (buffer.len.wrapping_sub(1) < largest, mr) else {
            return Err(NotSingle::Unusual);
        };
        let seq = self.seq;
        let Some(found) = cts_fifo::find_single(fifo, seq, tag) else { return Err(NotSingle::Unusual) };
        let (slot, index) = (seq.slot(), self.next);
        let (group, cell) = (&mut self.groups[usize::from(slot)], self.cells.get(index));
        let queue = self.comm.rails[rail].send_queue_mut(slot);
        if buffer.len as u64 > found.room
            || group.pending != 0
            || !cell.is_free()
            || queue.room() == 0
            || !CommProfiler::skips(&mut self.comm.profiler, profiler)
        {
            return Err(NotSingle::Unusual);
        }
        cell.begin();
        self.in_flight += 1;
        self.next = Cells::<SENDS>::after(index);
        (group.count, group.sends[0]) = (1, index);
        group.mark_posted(mask);
        self.seq = seq.next();
        let send = &mut self.sends[usize::from(index)];
        (send.buffer, send.slot) = (buffer, slot);
        let lkey = mr.lkeys()[rail % MAX_RAILS];
        let local = Local { addr: buffer.addr as u64, len: buffer.len as u32, lkey };
        let imm = self.comm.layout.encode_exact(slot, mask, local.len);
        let wr_id = queue.signal(Work::Data { slot }, 1);
        write.set(local, found.remote(rail), imm, wr_id, buffer.len <= queue.inline());
        queue.post_imm(write).map_err(NotSingle::Failed)?;
        self.comm.stats.sent_whole(rail, buffer.len, self.single.share);
        Ok(index)
    }
}
