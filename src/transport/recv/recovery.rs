//! The receiver's part when rails fail and return: it gives up what STATE names, judges what has
//! arrived, answers attempts, and writes CTS entries again.

use std::time::{Duration, Instant};

use crate::error::{Error, Fast};
use crate::failover::{Held, Receiver, ReceiverAction, ReceiverWorked};
use crate::proto::{Message, NewRails, OpenGroup, RailSet, SLOTS, SenderState, Sequence, SizeQ, rails};
use crate::transport::failover::Running;
use crate::transport::life::Pinged;
use crate::transport::progress::Progress;
use crate::transport::rail_maker::{Goal, Offer};
use crate::transport::recv::RecvState;
use crate::transport::recv::window::ArrivalError;
use crate::worker::Urgency;

/// How long data may take to show up after its sender's adapter got the acknowledgement: an adapter
/// may acknowledge before its completion is visible. What has not come by then never comes: the
/// sender has given the data back to NCCL. So a longer time would save no connection.
const ACKNOWLEDGED: Duration = Duration::from_secs(1);

impl RecvState {
    /// See [`Progress::handle_news`].
    pub(super) fn handle_news(&mut self) -> Fast<()> {
        let failed = RailSet::from_bits(self.comm.take_failed());
        if let Some(down) = self.recovery.failed(failed) {
            self.episode.get_or_insert_with(|| Running::new(failed));
            self.comm.send_message(down)?;
        }
        self.comm.repeat_after_a_break();
        while let Some(message) = self.comm.next_message()? {
            let action = self.recovery.on_message(message, self.cts.next())?;
            self.act(action)?;
        }
        self.comm.ping_if_late(Pinged::All)?;
        if self.recovery.state().is_some() {
            self.try_to_judge()?;
        } else if self.blocks_offers() || self.comm.awaits_pings() || self.recovery.owes_up() {
            // NCCL may have no request to test: what offers wait for is polled here.
            self.poll()?;
            self.write_cts_again()?;
        }
        self.advance_failback()?;
        self.comm.check_rails()
    }

    fn act(&mut self, action: ReceiverAction) -> Fast<()> {
        match action {
            ReceiverAction::Nothing => Ok(()),
            ReceiverAction::GiveUp(new) => {
                self.comm.given_up_by_the_peer(new.bits());
                let dead = self.recovery.state().map_or(new, |state| RailSet::from_bits(state.dead));
                self.episode.get_or_insert_with(|| Running::new(if new.is_empty() { dead } else { new }));
                self.comm.stop_rails(new);
                self.patience = Some(Instant::now() + ACKNOWLEDGED);
                self.restore_room()?;
                // No CTS entry of a dead rail can arrive any more: the sender has destroyed its
                // queue pairs.
                let next = self.recovery.state().map_or(self.cts.next(), |state| state.next);
                match self.comm.living() >> self.cts.rail() & 1 {
                    0 => self.move_cts(next),
                    _ => Ok(()),
                }
            }
            ReceiverAction::Make(request) => self.make(request),
            ReceiverAction::Probe => {
                self.comm.continue_attempt([Goal::Proved]).or_else(|e| self.attempt_failed(&e))
            }
        }
    }

    /// Returns whether no buffer may be offered: an episode is going on, or no rail is left.
    pub(super) fn blocks_offers(&self) -> bool {
        self.recovery.blocks_offers() || self.cts.is_behind() || self.comm.living() == 0
    }

    /// Judges the lost parts once everything has arrived that the sender has completed, and nothing
    /// is left of the dead rails.
    fn try_to_judge(&mut self) -> Fast<()> {
        // Before the poll: this process may pause after it.
        let is_over = self.patience.is_none_or(|until| Instant::now() >= until);
        self.poll()?;
        let Some(state) = self.recovery.state() else { return Ok(()) };
        let new = RailSet::from_bits(state.dead).without(self.recovery.dead());
        let missing = self.completed_at_the_sender(state).find(|seq| self.is_outstanding(*seq));
        if let Some(seq) = missing {
            return match is_over {
                true => Err(lost_for_good(self.comm.peer.name(), seq)),
                false => Ok(()),
            };
        }
        let waits = state.open.iter().any(|group| group.lost != 0);
        let left: RailSet = new.iter().filter(|rail| self.comm.rails[*rail].is_alive()).collect();
        self.flushes.iter_mut().for_each(|flushes| flushes.give_up(left.bits()));
        self.comm.give_up(left, if waits { Urgency::High } else { Urgency::Low })?;
        if self.comm.is_fenced()? { self.judge() } else { Ok(()) }
    }

    /// Yields the groups that the sender has completed, of those whose slots are not in use again.
    fn completed_at_the_sender<'a>(
        &self,
        state: &'a SenderState,
    ) -> impl Iterator<Item = Sequence> + use<'a> {
        let offered = self.cts.next().predecessors();
        offered.filter(|seq| *seq < state.next && state.open.iter().all(|group| group.seq != *seq))
    }

    /// Returns whether data of a group is outstanding.
    pub(super) fn is_outstanding(&self, seq: Sequence) -> bool {
        let is_in_its_slot = self.cts.next().number() - seq.number() <= SLOTS as u64;
        let request = self.cells.get(seq.slot());
        is_in_its_slot && (request.is_in_flight() || request.awaits_data())
    }

    /// Judges the lost parts.
    fn judge(&mut self) -> Fast<()> {
        self.flushes.iter_mut().for_each(|flushes| flushes.fenced(Instant::now()));
        let mut recovery = std::mem::replace(&mut self.recovery, Receiver::new(RailSet::EMPTY));
        let judged = recovery.judge(|seq| self.held(seq));
        self.recovery = recovery;
        let Some((verdict, partial)) = judged else { return Ok(()) };
        for group in partial {
            let again =
                verdict.again.iter().find(|(seq, _)| *seq == group.seq).map_or(0, |(_, parts)| *parts);
            self.learn(&group, group.lost & !again).map_err(|e| self.state_error(&e))?;
        }
        self.patience = None;
        self.comm.send_message(Message::Verdict(verdict))?;
        self.end_episode();
        self.recovery.down().map_or(Ok(()), |down| self.comm.send_message(down))
    }

    /// Reports the episode once everything that was lost has arrived, and a rail lives.
    #[cold]
    #[inline(never)]
    pub(super) fn end_episode(&mut self) {
        if !self.recovery.is_unfinished()
            && self.comm.living() != 0
            && let Some(Running { rail, begun, bytes }) = self.episode.take()
        {
            self.comm.watch.report_episode(rail, bytes, begun.elapsed());
        }
    }

    /// Returns whether flushes wait.
    pub(super) fn settles_flushes(&mut self) -> bool {
        let Self { flushes, comm, .. } = self;
        let done = || comm.stats.done(0, 0);
        flushes.as_mut().is_some_and(|flushes| flushes.settle(Instant::now(), done))
    }

    /// Returns what has arrived of a group.
    fn held(&self, seq: Sequence) -> Held {
        if !self.is_outstanding(seq) {
            return Held::Whole;
        }
        let place = |seq: Sequence| &self.slots[usize::from(seq.slot()) % SLOTS];
        let given_back = self.cells.get(seq.slot()).awaits_data();
        let mut later = seq.next();
        let mut used = false;
        while given_back && !used && later < self.cts.next() {
            used = place(later).overlaps(place(seq));
            later = later.next();
        }
        Held::Parts { got: place(seq).carriers(), given_back, used }
    }

    /// Learns the parts of an open group. The lost ones that are `done` count as arrived.
    fn learn(&mut self, group: &OpenGroup, done: u8) -> Result<(), ArrivalError> {
        let slot = group.seq.slot();
        let bytes = group.size.map(|size| usize::try_from(size).unwrap_or(usize::MAX));
        let size = bytes.map_or(SizeQ::RECORD, |bytes| self.comm.layout.size(bytes));
        if bytes != size.bytes() {
            return Err(ArrivalError::Word);
        }
        self.slots[usize::from(slot) % SLOTS].learn(slot, group.mask, size)?;
        if done == 0 { Ok(()) } else { self.add_parts(slot, done) }
    }

    /// Fills the receives of all rails: what is sent again takes more of them.
    pub(super) fn restore_room(&mut self) -> Fast<()> {
        self.credit = 0;
        for rail in 0..self.comm.rails.len() {
            if let Err(e) = self.comm.rails[rail].fill() {
                self.comm.not_posted(rail, e)?;
            }
        }
        Ok(())
    }

    /// Moves the CTS writes to a living rail, from the sender's `next` group on.
    pub(super) fn move_cts(&mut self, next: Sequence) -> Fast<()> {
        let Some(rail) = rails(self.comm.living()).next() else {
            self.unwritten = Some(next);
            return Ok(());
        };
        self.cts.move_to(&self.comm, rail, self.renewal.first_of(next));
        self.write_cts_again()
    }

    /// Writes CTS entries again as far as there is room.
    pub(super) fn write_cts_again(&mut self) -> Fast<()> {
        if self.comm.living() >> self.cts.rail() & 1 == 0 {
            return Ok(());
        }
        let Self { cts, comm, slots, .. } = self;
        let written = cts.write_again(comm, |slot| slots[usize::from(slot) % SLOTS].count());
        written.or_else(|e| comm.not_posted(cts.rail(), e))
    }

    /// Handles an immediate without a mask: a part that is sent again.
    pub(crate) fn part_arrived(&mut self, rail: usize, word: u32) -> Result<(), ArrivalError> {
        let replay = self.comm.layout.decode_replay(word).ok_or(ArrivalError::Word)?;
        // A part that an immediate with a mask has brought does not come again, and its slot may have
        // another group.
        let place = &self.slots[usize::from(replay.slot) % SLOTS];
        if !self.recovery.arrived(replay) || !place.awaits(replay.part) {
            return Err(ArrivalError::Unrequested(replay.slot, replay.part));
        }
        if let Some(flushes) = &mut self.flushes {
            flushes.carried(rail);
        }
        self.credit = 0;
        self.end_episode();
        self.add_parts(replay.slot, 1 << replay.part)
    }

    #[cold]
    fn state_error(&self, wrong: &ArrivalError) -> Box<Error> {
        Error::Protocol(format!("STATE of {}: {wrong}", self.comm.peer.name())).into()
    }
}

#[cold]
fn lost_for_good(peer: &str, seq: Sequence) -> Box<Error> {
    let (seq, s) = (seq.number(), ACKNOWLEDGED.as_secs());
    Error::Peer(format!(
        "group {seq} from {peer} is lost: a failed adapter acknowledged its data and did not deliver it within {s} s"
    ))
    .into()
}

impl RecvState {
    /// Returns whether rails that this end could not make can be tried again.
    pub(super) fn is_return_due(&self) -> bool {
        !self.comm.has_failed() && self.recovery.is_return_due(|rail| self.comm.watch.may_return(rail))
    }

    /// Makes queue pairs, and connects them to the sender's.
    pub(super) fn make(&mut self, request: NewRails) -> Fast<()> {
        let which = RailSet::from_bits(request.rails);
        let peer = Offer { port: request.port, routes: request.routes, rkeys: request.rkeys };
        let begun = self.comm.begin_attempt(which, [Goal::Made, Goal::Joined(peer)]);
        begun.or_else(|e| self.attempt_failed(&e))
    }

    /// Sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) -> Fast<()> {
        match self.comm.attempt_result() {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer)?,
            Some(Err(e)) => self.attempt_failed(&e)?,
        }
        let Self { recovery, comm, .. } = self;
        let which = recovery.returned(|rail| comm.watch.may_return(rail));
        if !which.is_empty() {
            tracing::debug!(target: "net", "rails {which} of {} can be tried again", comm.peer.name());
            comm.send_message(Message::Return { rails: which.bits() })?;
        }
        self.try_cts_home();
        self.try_up()
    }

    /// Sends REBUILT once the queue pairs are connected. Uses the rails once the probes have arrived.
    fn attempt_worked(&mut self, Offer { port, routes, rkeys }: Offer) -> Fast<()> {
        match self.recovery.worked() {
            ReceiverWorked::Nothing => Ok(()),
            ReceiverWorked::Made(attempt, which) => {
                let answer = NewRails { attempt, rails: which.bits(), port, routes, rkeys };
                self.comm.send_message(Message::Rebuilt(answer))
            }
            ReceiverWorked::Use(which) => self.use_rails(which),
        }
    }

    fn use_rails(&mut self, which: RailSet) -> Fast<()> {
        self.comm.use_new_rails(which)?;
        self.memory.renew(which.bits());
        if let Some(flushes) = &mut self.flushes {
            flushes.revive(which.bits(), &self.comm.rails);
        }
        self.restore_room()?;
        if let Some(next) = self.unwritten.take() {
            self.move_cts(next)?;
        }
        self.renew_cts(which.bits())?;
        self.cts.want_home(&self.comm);
        self.end_episode();
        self.try_up()
    }

    /// Ends the present attempt, and sends the reason.
    pub(super) fn attempt_failed(&mut self, why: &Error) -> Fast<()> {
        let Some((which, failed)) = self.recovery.abort(why.to_string()) else { return Ok(()) };
        self.comm.attempt_failed(which, false, why);
        self.comm.send_message(failed)
    }

    /// Moves the CTS writes back to their own rail if it lives, and all writes over the other one
    /// have completed: a late one could overwrite a newer entry.
    pub(super) fn try_cts_home(&mut self) {
        let Some(home) = self.cts.wanted_home() else { return };
        if self.unwritten.is_none()
            && !self.cts.is_behind()
            && self.comm.living() >> home & 1 == 1
            && self.cts.queue(&mut self.comm.rails).in_flight() == 0
        {
            self.cts.go_home(&self.comm);
        }
    }
}

/// What is left to write of entries whose keys have changed.
#[derive(Debug, Default)]
pub(super) struct KeyRenewal {
    /// The first group whose entries at the sender may have old keys.
    pub(super) first: Option<Sequence>,
}

impl KeyRenewal {
    /// Returns the group from which on entries must be written again, at least from `next` on.
    pub(super) fn first_of(&self, next: Sequence) -> Sequence {
        self.first.map_or(next, |first| first.min(next))
    }
}

impl RecvState {
    /// Renews the keys of these rails in the entries of all groups whose data is outstanding. The
    /// entries are written again if a key has changed.
    pub(super) fn renew_cts(&mut self, which: u8) -> Fast<()> {
        let mut offered: Vec<_> = self.cts.next().predecessors().collect();
        offered.retain(|seq| self.is_outstanding(*seq));
        for seq in offered {
            if self.renew_entries(seq, which) {
                self.renewal.first = Some(self.renewal.first_of(seq));
            }
        }
        match self.renewal.first {
            Some(first) if self.unwritten.is_none() => {
                self.cts.rewrite(first);
                self.write_cts_again()
            }
            _ => Ok(()),
        }
    }

    /// Renews the keys of these rails in the entries of a group, as this end keeps them. Returns
    /// whether one has changed.
    fn renew_entries(&self, seq: Sequence, which: u8) -> bool {
        self.cts.stage(&self.comm, seq);
        let slot = &self.slots[usize::from(seq.slot()) % SLOTS];
        let mut changed = false;
        for (place, buffer) in slot.buffers().iter().enumerate().filter(|(_, buffer)| buffer.len > 0) {
            for rail in rails(which) {
                // NCCL keeps a buffer registered until its receive is complete.
                if let Some(keys) = self.comm.rails[rail].nic.keys_of(*buffer) {
                    changed |= self.cts.set_key(&self.comm, (seq, place), rail, keys.rkey());
                }
            }
        }
        changed
    }

    /// Sends UP if it waits and the sender has the new keys.
    pub(super) fn try_up(&mut self) -> Fast<()> {
        if self.renewal.first.is_some() && self.unwritten.is_none() && self.cts.is_rewritten(&self.comm) {
            self.renewal.first = None;
        }
        if self.renewal.first.is_some() {
            return Ok(());
        }
        self.recovery.up().map_or(Ok(()), |up| self.comm.send_message(up))
    }
}
