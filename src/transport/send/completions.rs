//! What the completions of a sender's queues mean.

use crate::error::{Error, Fast};
use crate::transport::comm::Comm;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::send::{SendState, profiling};
use crate::transport::work::Work;
use crate::verbs::{Completion, Kind};

impl Progress for SendState {
    /// The index of the send.
    type Request = u8;

    #[inline]
    fn comm(&mut self) -> &mut Comm {
        &mut self.comm
    }

    fn outstanding(_: u8) -> Option<&'static str> {
        Some("sends")
    }

    #[inline]
    fn pending(&self, index: u8) -> bool {
        self.cells.get(index).is_in_flight()
    }

    #[inline]
    fn polls_on(&self, index: u8) -> bool {
        self.pending(index)
    }

    /// A send whose group is not posted yet waits for no completion. Parts that are sent again may
    /// be on any rail.
    #[inline]
    fn awaited(&self, index: u8) -> u8 {
        let group = &self.groups[usize::from(self.sends[usize::from(index)].slot)];
        if group.moved == 0 { group.pending } else { u8::MAX }
    }

    fn handle_news(&mut self) -> Fast<()> {
        Self::handle_news(self)
    }

    fn is_busy(&mut self) -> bool {
        self.blocks_sends() || self.recovery.is_fencing() || self.recovery.has_unposted()
    }

    #[inline(always)]
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        let (Kind::Sent, Work::Data { slot }) = (completion.kind(), Work::of(completion.wr_id())) else {
            return self.completed_unusual(rail, completion);
        };
        self.data_sent(rail, slot, completion.wr_id())
    }
}

impl SendState {
    /// Handles the completion of one rail's part of a group.
    #[inline(always)]
    fn data_sent(&mut self, rail: usize, slot: u8, wr_id: u64) -> Fast<()> {
        let known = self.comm.rails[rail].send_queue_mut(slot).sent(wr_id)?;
        self.comm.stats.completed(rail, known);
        let group = &mut self.groups[usize::from(slot)];
        if group.pending >> rail & 1 == 0 {
            return Err(twice(rail, slot));
        }
        if let Some(profiler) = CommProfiler::active(&mut self.comm.profiler) {
            profiling::completed(profiler, group, rail);
        }
        group.pending &= !(1 << rail);
        let (pending, count, first) = (group.pending, group.count, group.sends[0]);
        match (pending, count) {
            (0, 1) => self.complete(first),
            (0, _) => self.complete_group(slot),
            _ => {}
        }
        Ok(())
    }

    /// Completes a send: its last part has completed.
    #[inline(always)]
    fn complete(&mut self, index: u8) {
        let size = self.sends[usize::from(index)].len;
        self.comm.stats.done(1, size);
        self.cells.get(index).complete_one(size);
        self.in_flight -= 1;
        if self.in_flight == 0 {
            // The first requests are the ones in the processor's caches.
            self.next = 0;
        }
    }

    #[cold]
    #[inline(never)]
    fn completed_unusual(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        match (completion.kind(), Work::of(completion.wr_id())) {
            (Kind::Sent, Work::Replay { slot, part }) => {
                self.completed_again(rail, slot, part, completion.wr_id())
            }
            (Kind::Sent, Work::Measured { slot }) => {
                self.data_sent(rail, slot, completion.wr_id())?;
                let members = self.groups[usize::from(slot)].members();
                let bytes = members.filter_map(|index| self.splits.get(index)).map(|split| split.bytes(rail));
                self.splitter.completed(slot, rail, bytes.sum());
                Ok(())
            }
            (Kind::Sent, Work::Mail) => self.comm.mail_sent(rail, completion.wr_id()),
            (Kind::Sent, Work::Ping) => self.comm.pinged(rail, completion.wr_id()),
            _ => Err(unknown(completion)),
        }
    }

    #[inline(never)]
    pub(super) fn complete_group(&mut self, slot: u8) {
        let group = self.groups[usize::from(slot)];
        group.members().for_each(|index| self.complete(index as u8));
    }
}

#[cold]
fn unknown(completion: &Completion) -> Box<Error> {
    let (kind, work) = (completion.kind(), Work::of(completion.wr_id()));
    Error::Internal(format!("a sender's queue completed {kind:?} as {work:?}")).into()
}

#[cold]
fn twice(rail: usize, slot: u8) -> Box<Error> {
    Error::Internal(format!("slot {slot} completed twice on rail {rail}")).into()
}
