//! Sends of any kind, also those that are not [`single`](super::single).

use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Fast};
use crate::policy::Cut;
use crate::proto::{MAX_RAILS, rails};
use crate::transport::comm::Comm;
use crate::transport::memory::Mr;
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::Progress;
use crate::transport::send::group::{Matched, keep};
use crate::transport::send::{SendState, cts_fifo, profiling, timing};
use crate::transport::work::Work;

impl SendState {
    /// Starts a send on a comm that is marked.
    #[cold]
    pub(super) fn start_marked(
        &mut self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        self.poll_marked()?;
        self.look_closer()?;
        if self.blocks_sends() {
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_room());
        }
        self.start(buffer, tag, mr, profiler)
    }

    /// Starts a send of any kind.
    #[inline(never)]
    pub(super) fn start(
        &mut self,
        buffer: Buffer,
        tag: i32,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Fast<Option<u8>> {
        let slot = self.seq.slot();
        let group = &mut self.groups[usize::from(slot)];
        if group.pending != 0 && !self.slot_comes_free(slot)? {
            return Ok(self.comm.stats.no_room());
        }
        let group = &mut self.groups[usize::from(slot)];
        let met = (group.matched != 0).then_some((group.matched, group.count));
        let Some(found) = cts_fifo::find(self.comm.region.words(), self.seq, tag, met)? else {
            self.comm.check_peer("sends")?;
            return Ok(self.comm.stats.no_receive());
        };
        if buffer.len as u64 > found.room {
            return Err(too_large(buffer, tag, found.room));
        }
        let (place, count, target) = (found.place, found.count, found.target());
        let Some(index) = self.cells.find_free(&mut self.next) else { return Ok(self.comm.stats.no_room()) };
        let share = self.split(slot, place, buffer.len)?;
        // Only an empty send has no registration.
        let lkeys = mr.map_or([0; MAX_RAILS], |mr| *mr.lkeys());
        let send = &mut self.ops[place];
        let is_split = keep(&mut self.splits, index, send.split);
        self.sends[usize::from(index)] = Matched { addr: buffer.addr, len: buffer.len, slot, is_split };
        let reported = CommProfiler::should_report(&mut self.comm.profiler, profiler);
        send.profiler = if reported { profiler } else { ProfilerHandle::NONE };
        (send.buffer, send.target, send.lkeys) = (buffer, target, lkeys);
        let posted = match count {
            1 => self.post_one(slot, index)?,
            count => self.match_group(slot, index, place, count)?,
        };
        if !posted {
            return Ok(self.comm.stats.no_room());
        }
        self.policy.posted(buffer.len, share, &self.ops[place].split);
        self.comm.stats.request(share);
        self.cells.get(index).begin();
        self.in_flight += 1;
        Ok(Some(index))
    }

    /// Splits a send of the group that is being matched. Returns the share for SUP.
    #[inline(always)]
    pub(super) fn split(&mut self, slot: u8, place: usize, len: usize) -> Fast<Option<u16>> {
        let share = self.policy.share(len);
        let cut = match self.policy.cut(len, share, &mut self.ops[place].split) {
            Cut::Measured => {
                let split = &mut self.ops[place].split;
                timing::cut(self.timing.as_deref(), &mut self.policy, len, split)
            }
            cut => cut,
        };
        match cut {
            Cut::Done => {}
            Cut::Whole => {
                let rail = self.least_busy(slot);
                self.ops[place].split.whole(len, rail);
            }
            Cut::NoRail | Cut::Measured => return Err(internal("the policy has no rail")),
        }
        Ok(share)
    }

    /// Returns the rail for a whole send. Sends of the group that is being matched count as in
    /// flight: they will be posted together.
    #[inline(never)]
    fn least_busy(&self, slot: u8) -> usize {
        let group = &self.groups[usize::from(slot)];
        self.policy.least_busy(|rail| {
            let waiting = rails(group.matched).filter(|place| self.ops[*place].split.bytes(rail) > 0).count();
            self.comm.rails[rail].in_flight() + waiting as u32
        })
    }

    /// Matches a send with one of a group's several receives, and posts the group if it was the
    /// last. Returns `false` if a send queue has no room for the group yet; the send is then not
    /// matched.
    #[inline(never)]
    fn match_group(&mut self, slot: u8, index: u8, place: usize, count: usize) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        group.count = count as u8;
        group.sends[place] = index;
        group.matched |= 1 << place;
        if !group.is_matched() || self.post_separate_imm(slot)? {
            return Ok(true);
        }
        self.groups[usize::from(slot)].matched &= !(1 << place);
        Ok(false)
    }

    /// Polls, and returns whether the slot's previous group is completed now.
    #[cold]
    fn slot_comes_free(&mut self, slot: u8) -> Fast<bool> {
        self.poll()?;
        Ok(self.groups[usize::from(slot)].pending == 0)
    }

    /// Posts a group of one, with data and immediate in one work request per rail. Returns `false`
    /// if a send queue has no room for it yet.
    fn post_one(&mut self, slot: u8, index: u8) -> Fast<bool> {
        let group = &mut self.groups[usize::from(slot)];
        (group.count, group.sends[0]) = (1, index);
        let send = &self.ops[0];
        let (len, mask) = (send.buffer.len, send.split.mask());
        let size = self.comm.layout.size(len);
        if size.bytes().is_none() || len > self.separate_imm_above {
            return self.post_separate_imm(slot);
        }
        let imm = self.comm.layout.encode(slot, mask, size);
        if !self.has_room(slot, mask) {
            self.poll()?;
            if !self.has_room(slot, mask) {
                return Ok(false);
            }
        }
        self.groups[usize::from(slot)].mark_posted(mask);
        self.seq = self.seq.next();
        match &mut self.timing {
            None => self.post_parts(slot, index, imm, |_| Work::Data { slot }),
            Some(timing) => {
                let split = &self.ops[0].split;
                let measured = timing.begin(slot, mask, |rail| split.bytes(rail));
                self.post_parts(slot, index, imm, |rail| Work::data(slot, rail, measured))
            }
        }
    }

    /// Posts the parts of a group of one. `work` returns the purpose of each rail's write.
    #[inline(always)]
    fn post_parts(&mut self, slot: u8, index: u8, imm: u32, work: impl Fn(usize) -> Work) -> Fast<bool> {
        let send = &self.ops[0];
        let Comm { rails, chain, stats, profiler, .. } = &mut self.comm;
        let mut failed = None;
        for part in send.split.parts() {
            let queue = rails[part.rail].send_queue_mut(slot);
            let work = work(part.rail);
            if !send.profiler.is_none() {
                profiling::part(profiler, index, send, part, work, queue);
            }
            match send.post(part, queue, chain, work, imm) {
                Ok(()) => stats.posted(part.rail, 1, 1, part.len),
                Err(e) => failed = Some((part.rail, e)),
            }
        }
        failed.map_or(Ok(true), |(rail, e)| self.comm.not_posted(rail, e).map(|()| true))
    }

    /// Returns whether each rail of `mask` has room for one work request.
    fn has_room(&self, slot: u8, mask: u8) -> bool {
        rails(mask).all(|rail| self.comm.rails[rail].send_queue(slot).room() > 0)
    }
}

#[cold]
fn internal(what: &str) -> Box<Error> {
    Error::Internal(what.into()).into()
}

#[cold]
fn too_large(Buffer { len, .. }: Buffer, tag: i32, room: u64) -> Box<Error> {
    let what =
        format!("a send of {len} bytes with tag {tag} meets a receive of {room} bytes: nothing was sent");
    Error::Usage(what).into()
}
