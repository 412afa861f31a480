//! The sender's part when rails fail and return: it gives up dead rails, sends STATE, sends lost parts
//! again, and begins the attempts to bring rails back.

use mpib_proto::{MAX_RAILS, Message, NewRails, Offer, RailSet, Replay, Sequence, SizeQ};
use nccl_net_versions::{Buffer, ProfilerHandle};

use crate::error::{Error, Fast};
use crate::failover::SenderAction;
use crate::transport::failback::Goal;
use crate::transport::life::Pinged;
use crate::transport::progress::Progress;
use crate::transport::send::post::{PartWrites, fits};
use crate::transport::send::window::SendOp;
use crate::transport::send::{SendState, cts_fifo};
use crate::transport::send_queue::Work;
use crate::verbs::Keys;
use crate::worker::Urgency;

impl SendState {
    /// See [`Progress::handle_news`].
    pub(super) fn handle_news(&mut self) -> Fast<()> {
        self.recovery.failed(self.comm.take_failed());
        self.comm.repeat_after_a_break();
        while let Some(message) = self.comm.next_message()? {
            let action = self.recovery.on_message(message, &self.window.open(self.comm.layout))?;
            self.act(action)?;
        }
        self.give_up()?;
        self.use_rails_after_up()?;
        self.complete_arrived();
        self.comm.ping_if_late(Pinged::Others)?;
        if self.comm.awaits_bare_writes() {
            self.poll()?;
        }
        if self.comm.drained() != self.drained {
            self.rails_changed()?;
        }
        self.advance_failback()?;
        self.comm.check_rails()?;
        if self.comm.has_rail() { self.post_unposted() } else { Ok(()) }
    }

    fn act(&mut self, action: SenderAction) -> Fast<()> {
        match action {
            SenderAction::Nothing => {}
            SenderAction::GivenUpByPeer(which) => self.comm.given_up_by_the_peer(which),
            SenderAction::Judged(groups) => self.obey(groups),
            SenderAction::Join(answer) => self.join(answer),
            SenderAction::Failed(which, why) => {
                self.comm.attempt_failed(which, true, &Error::Peer(format!("at the receiver: {why}")));
            }
            SenderAction::Returned(which) => self.comm.watch.peer_returned(which),
        }
        Ok(())
    }

    /// Uses the rails of an attempt after UP, once the CTS entries have their keys.
    fn use_rails_after_up(&mut self) -> Fast<()> {
        let Self { recovery, comm, .. } = self;
        let fifo = comm.region.words();
        let Some(which) = recovery.use_rails(|seq, keys| cts_fifo::has_keys(fifo, seq, keys)) else {
            return Ok(());
        };
        comm.use_new_rails(which)?;
        self.memory.renew(which.bits());
        self.rails_changed()
    }

    /// Gives up the rails that have failed. Sends STATE once nothing is left of them.
    fn give_up(&mut self) -> Fast<()> {
        if let Some(new) = self.recovery.episode() {
            self.comm.begin_episode(new);
            self.comm.stop_rails(new);
            // What the adapter has acknowledged so far need not be judged.
            self.poll()?;
            let open = self.window.open(self.comm.layout);
            let waits = open.iter().any(|group| !(RailSet::from_bits(group.mask) & new).is_empty());
            self.comm.give_up(new, if waits { Urgency::High } else { Urgency::Low })?;
            self.splitter.forget(new);
            self.rails_changed()?;
        }
        if !self.recovery.is_fencing() || !self.comm.is_fenced()? {
            return Ok(());
        }
        let state = self.recovery.state(self.window.seq(), &self.window.open(self.comm.layout));
        for group in &state.open {
            self.window.lose(group.seq, RailSet::from_bits(group.lost));
        }
        self.comm.send_message(Message::State(state))
    }

    /// Sends over the living rails from now on.
    fn rails_changed(&mut self) -> Fast<()> {
        self.drained = self.comm.drained();
        self.splitter.keep(self.comm.undrained(self.drained));
        self.usual.renew(&self.splitter, &self.comm);
        // Without a rail no send begins, and no group is posted.
        if self.comm.has_rail() { self.split_matched_again() } else { Ok(()) }
    }

    /// Splits the sends of the group that is being matched among the living rails.
    fn split_matched_again(&mut self) -> Fast<()> {
        let seq = self.window.seq();
        for place in self.window.places() {
            let buffer = self.window.op(place).buffer;
            let split = self.split(buffer.len)?;
            self.window.split_again(place, split);
            // The keys of a rail that was made again may be others.
            let target = cts_fifo::target(self.comm.region.words(), seq, place);
            let target = target.ok_or_else(|| offered_again(seq, "before the group was sent"))?;
            let lkeys = self.lkeys_of(buffer, self.comm.living())?;
            let op = self.window.op(place);
            (op.target, op.lkeys) = (target, lkeys);
        }
        Ok(())
    }

    /// Completes the parts that the receiver has, and prepares the others to be sent again.
    fn obey(&mut self, judged: Vec<(Sequence, u8, u8)>) {
        let Self { window, comm, .. } = self;
        for (seq, lost, again) in judged {
            let parts = (RailSet::from_bits(lost), RailSet::from_bits(again));
            window.judge(seq, parts, |size| comm.stats.done(1, size));
        }
    }

    /// Completes the lost parts that a closing receiver has. Its queue pairs acknowledge nothing any
    /// more, so the other rails are given up, too, if their acknowledgements do not come in time.
    fn complete_arrived(&mut self) {
        if !self.settles_alone() {
            return;
        }
        let judged = self.recovery.arrived(&self.window.open(self.comm.layout));
        self.obey(judged);
        if self.window.in_flight() > 0 && self.comm.peer.is_over() {
            let why = "the peer has closed the connection before its adapter had acknowledged all data";
            self.comm.failed_at_the_peer(self.comm.working(), why);
        }
    }

    /// Sends lost parts again as far as there is room.
    fn post_unposted(&mut self) -> Fast<()> {
        while let Some((seq, replay)) = self.recovery.next_unposted() {
            let Some(carrier) = self.splitter.least_busy(|rail| self.comm.rails[rail].in_flight()) else {
                break;
            };
            if !self.post_again(seq, replay, carrier)? {
                break;
            }
            self.recovery.posted(carrier);
        }
        if !self.recovery.is_unfinished() {
            self.comm.end_episode();
        }
        Ok(())
    }

    /// Sends a part again on another rail. Returns `false` if its send queue has no room yet.
    fn post_again(&mut self, seq: Sequence, replay: Replay, carrier: usize) -> Fast<bool> {
        let (slot, part, layout) = (seq.slot(), usize::from(replay.part), self.comm.layout);
        let ops = &self.ops_of(seq, part, carrier)?[..];
        if !fits(&self.comm, slot, ops, (part, carrier), false) {
            return Ok(false);
        }
        let leads = self.window.group(slot).leader() == Some(part);
        let record = leads && self.window.size_of(seq, layout) == SizeQ::RECORD;
        let (imm, work) = (layout.encode_replay(replay), Work::Replay { slot, part: replay.part });
        let writes = PartWrites { ops, seq, part, carrier, imm, work, record, joined: false };
        match writes.post(&mut self.comm, None) {
            Ok(bytes) => self.comm.sent_again(bytes),
            Err(e) => self.comm.not_posted(carrier, e)?,
        }
        Ok(true)
    }

    /// Returns the sends of a group as they were posted, with the keys of the carrier. The receiver
    /// has not completed the group, so its CTS entries are still there.
    fn ops_of(&self, seq: Sequence, part: usize, carrier: usize) -> Fast<Vec<SendOp>> {
        let sends = self.window.posted(seq, part).enumerate();
        let op = |(place, (buffer, split))| {
            let target = cts_fifo::target(self.comm.region.words(), seq, place);
            let target =
                target.ok_or_else(|| offered_again(seq, "and VERDICT requests parts of the group"))?;
            let lkeys = self.lkeys_of(buffer, RailSet::of(carrier))?;
            Ok(SendOp { buffer, lkeys, target, split, profiler: ProfilerHandle::NONE })
        };
        sends.map(op).collect()
    }

    /// Returns the present local keys of a buffer on these rails.
    fn lkeys_of(&self, buffer @ Buffer { addr, len }: Buffer, which: RailSet) -> Fast<[u32; MAX_RAILS]> {
        let mut lkeys = [0; MAX_RAILS];
        if len == 0 {
            return Ok(lkeys);
        }
        for rail in which.iter() {
            let keys = self.comm.rails[rail].nic.keys_of(buffer);
            lkeys[rail] = keys.map(Keys::lkey).ok_or_else(|| {
                let what =
                    format!("{len} bytes at {addr:#x} were deregistered before their send was complete");
                Error::Argument(what)
            })?;
        }
        Ok(lkeys)
    }

    /// Returns whether an attempt may begin.
    pub(super) fn is_failback_due(&self) -> bool {
        !self.comm.has_failed() && self.due_rail().is_some()
    }

    fn due_rail(&self) -> Option<usize> {
        self.recovery.due(|rail| self.comm.watch.may_return(rail))
    }

    /// Begins an attempt if one is due, and sends what the thread has brought about.
    fn advance_failback(&mut self) -> Fast<()> {
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
    fn attempt_worked(&mut self, offer: Offer) -> Fast<()> {
        let rebuild = |attempt, which: RailSet| NewRails { attempt, rails: which.bits(), offer };
        self.recovery.worked(rebuild).map_or(Ok(()), |message| self.comm.send_message(message))
    }

    fn attempt_failed(&mut self, why: &Error) {
        let which = self.recovery.abort();
        self.comm.attempt_failed(which, false, why);
    }

    /// Connects the new queue pairs to the receiver's, and probes.
    fn join(&mut self, answer: NewRails) {
        let joined = Goal::Joined(Box::new(answer.offer));
        let continued = self.comm.continue_attempt([joined, Goal::Proved]);
        continued.unwrap_or_else(|e| self.attempt_failed(&e));
    }
}

#[cold]
fn offered_again(seq: Sequence, when: &str) -> Box<Error> {
    let seq = seq.number();
    Error::Protocol(format!("the peer has offered the slot of group {seq} again {when}")).into()
}
