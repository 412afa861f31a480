//! The sender's part when rails fail and return: it gives up dead rails, sends STATE, sends lost parts
//! again, and begins the attempts to bring rails back.

use nccl_net_versions::Buffer;

use crate::error::{Error, Fast};
use crate::failover::{Posted, SenderAction};
use crate::proto::{MAX_RECVS, Message, NewRails, RailSet, Sequence, SizeQ, Split, rails};
use crate::transport::comm::Comm;
use crate::transport::failover::Running;
use crate::transport::life::Pinged;
use crate::transport::progress::Progress;
use crate::transport::rail_maker::{Goal, Offer};
use crate::transport::send::post::{PartWrites, UsualSends, data_writes};
use crate::transport::send::window::{Group, NO_SEND, SendOp, keep};
use crate::transport::send::{SendState, cts_fifo};
use crate::transport::send_queue::Work;
use crate::verbs::Keys;
use crate::worker::Urgency;

impl SendState {
    /// Returns whether no send may begin: no rail is left.
    pub(crate) fn blocks_sends(&self) -> bool {
        self.comm.living() == 0
    }

    /// See [`Progress::handle_news`].
    pub(super) fn handle_news(&mut self) -> Fast<()> {
        self.recovery.failed(RailSet::from_bits(self.comm.take_failed()));
        self.comm.repeat_after_a_break();
        while let Some(message) = self.comm.next_message()? {
            let action = self.recovery.on_message(message, &self.open_groups())?;
            self.act(action)?;
        }
        self.give_up()?;
        self.comm.ping_if_late(Pinged::Others)?;
        if self.comm.awaits_pings() {
            self.poll()?;
        }
        if self.comm.drained() != self.drained {
            self.rails_changed()?;
        }
        self.advance_failback()?;
        self.comm.check_rails()?;
        if self.comm.living() == 0 { Ok(()) } else { self.post_unposted() }
    }

    fn act(&mut self, action: SenderAction) -> Fast<()> {
        match action {
            SenderAction::Nothing => {}
            SenderAction::GivenUpByPeer(which) => self.comm.given_up_by_the_peer(which.bits()),
            SenderAction::Judged(groups) => self.obey(groups),
            SenderAction::Join(answer) => self.join(answer),
            SenderAction::Failed(which, why) => {
                self.comm.attempt_failed(which, true, &Error::Peer(format!("at the receiver: {why}")));
            }
            SenderAction::Returned(which) => self.comm.watch.peer_returned(which.bits()),
            SenderAction::Use(which) => {
                self.comm.use_new_rails(which)?;
                self.memory.renew(which.bits());
                self.rails_changed()?;
            }
        }
        Ok(())
    }

    /// Gives up the rails that have failed. Sends STATE once nothing is left of them.
    fn give_up(&mut self) -> Fast<()> {
        if let Some(new) = self.recovery.episode() {
            self.episode.get_or_insert_with(|| Running::new(new));
            self.comm.stop_rails(new);
            // What the adapter has acknowledged so far need not be judged.
            self.poll()?;
            let waits = self.open_groups().iter().any(|group| group.mask & new.bits() != 0);
            self.comm.give_up(new, if waits { Urgency::High } else { Urgency::Low })?;
            self.splitter.forget(new);
            self.rails_changed()?;
        }
        if !self.recovery.is_fencing() || !self.comm.is_fenced()? {
            return Ok(());
        }
        let open = self.open_groups();
        let state = self.recovery.state(self.seq, &open);
        for group in &state.open {
            self.groups[usize::from(group.seq.slot())].pending |= group.lost;
        }
        self.comm.send_message(Message::State(state))
    }

    /// Splits the sends of the group that is being matched among the living rails.
    fn split_matched_again(&mut self) -> Fast<()> {
        let slot = self.seq.slot();
        let group = self.groups[usize::from(slot)];
        for place in rails(group.matched) {
            let index = usize::from(group.sends[place]);
            self.split(slot, place, self.sends[index].len)?;
            keep(&mut self.splits, group.sends[place], self.ops[place].split);
            // The keys of a rail that was made anew may be others.
            let target = cts_fifo::target(self.comm.region.words(), self.seq, place);
            self.ops[place].target = target.ok_or_else(|| offered_again(self.seq))?;
            for rail in rails(self.comm.living()) {
                self.ops[place].lkeys[rail] = self.lkey_of(self.ops[place].buffer, rail)?;
            }
        }
        Ok(())
    }

    /// Sends over the living rails from now on.
    pub(super) fn rails_changed(&mut self) -> Fast<()> {
        self.drained = self.comm.drained();
        self.splitter.keep(RailSet::from_bits(self.comm.undrained(self.drained)));
        let inline = self.usual.wanted_inline;
        self.usual = UsualSends::new(&self.splitter, &self.comm, inline, self.separate_imm_above);
        // Without a rail no send begins, and no group is posted.
        if self.comm.living() == 0 { Ok(()) } else { self.split_matched_again() }
    }

    /// Returns the groups that are posted and not completed.
    fn open_groups(&self) -> Vec<Posted> {
        self.open_sequences()
            .map(|seq| {
                let group = &self.groups[usize::from(seq.slot())];
                let len = self.sends[usize::from(group.sends[0])].len;
                let size = group.size(self.comm.layout, len);
                Posted { seq, mask: group.mask, size: size.bytes().map(|bytes| bytes as u64) }
            })
            .collect()
    }

    fn open_sequences(&self) -> impl Iterator<Item = Sequence> {
        self.seq.predecessors().filter(|seq| self.groups[usize::from(seq.slot())].pending != 0)
    }

    /// Completes the parts that the receiver has, and prepares the others to be sent again.
    fn obey(&mut self, judged: Vec<(Sequence, u8, u8)>) {
        for (seq, lost, again) in judged {
            let group = &mut self.groups[usize::from(seq.slot())];
            group.pending = group.pending & !lost | again;
            group.moved |= again;
            if group.pending == 0 {
                self.complete_group(seq.slot());
            }
        }
    }

    /// Sends lost parts again as far as there is room.
    fn post_unposted(&mut self) -> Fast<()> {
        while let Some((seq, replay)) = self.recovery.next_unposted() {
            let Some(carrier) = self.splitter.least_busy(|rail| self.comm.rails[rail].in_flight()) else {
                break;
            };
            if !self.post_again(
                seq,
                usize::from(replay.part),
                carrier,
                self.comm.layout.encode_replay(replay),
            )? {
                break;
            }
            self.recovery.posted(carrier);
        }
        if !self.recovery.has_unposted()
            && let Some(Running { rail, begun, bytes }) = self.episode.take()
        {
            self.comm.watch.report_episode(rail, bytes, begun.elapsed());
        }
        Ok(())
    }

    /// Sends a part again on another rail. Returns `false` if its send queue has no room yet.
    fn post_again(&mut self, seq: Sequence, part: usize, carrier: usize, imm: u32) -> Fast<bool> {
        let slot = seq.slot();
        let group = self.groups[usize::from(slot)];
        let ops = self.ops_of(seq, &group, part, carrier)?;
        let ops = &ops[..usize::from(group.count)];
        let Comm { rails: all, chain, region, remote, stats, layout, .. } = &mut self.comm;
        let of_rail = &mut all[carrier];
        let largest = of_rail.largest_write();
        let queue = of_rail.send_queue_mut(slot);
        if queue.room() <= data_writes(ops, part, largest) {
            return Ok(false);
        }
        let leads = group.mask.trailing_zeros() as usize == part;
        let recorded = group.size(*layout, ops[0].buffer.len) == SizeQ::RECORD;
        let work = Work::Replay { slot, part: part as u8 };
        let (offset, record) = (seq.record_offset(), leads && recorded);
        let writes = PartWrites { offset, part, carrier, largest, imm, work, record, joined: false };
        let written = writes.prepare(ops, queue, chain, (region, remote));
        let posted = written.and_then(|written| queue.post(chain, true).map(|()| written));
        match posted {
            Ok(written) => {
                stats.posted(carrier, written.requests, written.writes, written.bytes);
                self.episode.iter_mut().for_each(|episode| episode.bytes += written.bytes as u64);
            }
            Err(e) => self.comm.not_posted(carrier, e)?,
        }
        Ok(true)
    }

    /// Returns the sends of a group as they were posted. The receiver has not completed the group,
    /// so its CTS entries are still there.
    fn ops_of(&self, seq: Sequence, group: &Group, part: usize, carrier: usize) -> Fast<[SendOp; MAX_RECVS]> {
        let mut ops = [NO_SEND; MAX_RECVS];
        for (place, (op, index)) in ops.iter_mut().zip(group.members()).enumerate() {
            let sent = &self.sends[index];
            let Some(target) = cts_fifo::target(self.comm.region.words(), seq, place) else {
                return Err(overwritten(seq));
            };
            (op.buffer, op.target) = (sent.buffer(), target);
            op.lkeys[carrier] = self.lkey_of(op.buffer, carrier)?;
            op.split = match sent.is_split {
                true => self.splits[index],
                false => {
                    let mut whole = Split::NONE;
                    whole.whole(sent.len, part);
                    whole
                }
            };
        }
        Ok(ops)
    }

    /// Returns the present local key of a buffer on a rail.
    fn lkey_of(&self, buffer: Buffer, rail: usize) -> Fast<u32> {
        if buffer.len == 0 {
            return Ok(0);
        }
        let keys = self.comm.rails[rail].nic.keys_of(buffer);
        keys.map(Keys::lkey).ok_or_else(|| {
            let Buffer { addr, len } = buffer;
            let what = format!("{len} bytes at {addr:#x} were deregistered before their send was complete");
            Error::Argument(what).into()
        })
    }

    /// Handles the completion of a part that was sent again.
    #[cold]
    pub(crate) fn completed_again(&mut self, rail: usize, slot: u8, part: u8, wr_id: u64) -> Fast<()> {
        let known = self.comm.rails[rail].send_queue_mut(slot).sent(wr_id)?;
        self.comm.stats.completed(rail, known);
        let group = &mut self.groups[usize::from(slot)];
        if group.pending >> part & 1 == 0 {
            return Err(Error::Internal(format!("part {part} of slot {slot} completed twice")).into());
        }
        group.pending &= !(1 << part);
        if group.pending == 0 {
            self.complete_group(slot);
        }
        Ok(())
    }
}

#[cold]
fn offered_again(seq: Sequence) -> Box<Error> {
    let seq = seq.number();
    Error::Protocol(format!("the peer has offered the slot of group {seq} again before the group was sent"))
        .into()
}

#[cold]
fn overwritten(seq: Sequence) -> Box<Error> {
    let seq = seq.number();
    Error::Protocol(format!("VERDICT requests parts of group {seq}, whose slot the peer has offered again"))
        .into()
}

impl SendState {
    /// Returns whether an attempt may begin.
    pub(crate) fn is_failback_due(&self) -> bool {
        !self.comm.has_failed() && self.due_rail().is_some()
    }

    fn due_rail(&self) -> Option<usize> {
        self.recovery.due(|rail| self.comm.watch.may_return(rail))
    }

    /// Begins an attempt if one is due, and sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) -> Fast<()> {
        match self.comm.attempt_result() {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer)?,
            Some(Err(e)) => self.attempt_failed(&e),
        }
        if let Some(rail) = self.due_rail() {
            let which = self.comm.stripes_of(rail);
            self.recovery.begin(which);
            let begun = self.comm.begin_attempt(which, [Goal::Made]);
            begun.unwrap_or_else(|e| self.attempt_failed(&e));
        }
        Ok(())
    }

    /// Sends REBUILD once the queue pairs are made, and PROVED once the probes have arrived.
    fn attempt_worked(&mut self, Offer { port, routes, rkeys }: Offer) -> Fast<()> {
        let rebuild =
            |attempt, which: RailSet| NewRails { attempt, rails: which.bits(), port, routes, rkeys };
        self.recovery.worked(rebuild).map_or(Ok(()), |message| self.comm.send_message(message))
    }

    fn attempt_failed(&mut self, why: &Error) {
        let which = self.recovery.abort();
        self.comm.attempt_failed(which, false, why);
    }

    /// Connects the new queue pairs to the receiver's, and probes.
    pub(super) fn join(&mut self, answer: NewRails) {
        let peer = Offer { port: answer.port, routes: answer.routes, rkeys: answer.rkeys };
        let continued = self.comm.continue_attempt([Goal::Joined(peer), Goal::Proved]);
        continued.unwrap_or_else(|e| self.attempt_failed(&e));
    }
}
