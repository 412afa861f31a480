//! The receiver's part when rails fail and return: it gives up what STATE names, judges what has
//! arrived, answers attempts, and has CTS entries written again.

use std::time::{Duration, Instant};

use mpib_proto::{Attempt, Message, NewRails, Offer, RailSet, SenderState, Sequence, Up};

use crate::error::{Error, Fast};
use crate::failover::{ReceiverAction, ReceiverWorked};
use crate::transport::failback::Goal;
use crate::transport::life::Pinged;
use crate::transport::progress::Progress;
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
        let failed = self.comm.take_failed();
        if let Some(down) = self.recovery.failed(failed) {
            self.comm.begin_episode(failed);
            self.comm.send_message(down)?;
        }
        self.comm.repeat_after_a_break();
        while let Some(message) = self.comm.next_message()? {
            let action = self.recovery.on_message(message, self.window.next())?;
            self.act(action)?;
        }
        self.comm.ping_if_late(Pinged::All)?;
        if self.recovery.state().is_some() {
            self.try_to_judge()?;
        } else if self.blocks_offers() || self.comm.awaits_bare_writes() {
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
                self.comm.given_up_by_the_peer(new);
                let state = self.recovery.state();
                let dead = state.map_or(new, |state| RailSet::from_bits(state.dead));
                // No CTS entry of a dead rail can arrive any more: the sender has destroyed its
                // queue pairs. What has arrived may have keys of before.
                let first = self.window.oldest_outstanding();
                self.comm.begin_episode(if new.is_empty() { dead } else { new });
                self.comm.stop_rails(new);
                self.patience = Some(Instant::now() + ACKNOWLEDGED);
                self.restore_room()?;
                self.cts.leave_dead_rail(&self.comm, first);
                self.write_cts_again()
            }
            ReceiverAction::Make(request) => self.make(request),
            ReceiverAction::Probe => {
                self.comm.continue_attempt([Goal::Proved]).or_else(|e| self.attempt_failed(&e))
            }
        }
    }

    /// Returns whether no buffer may be offered: an episode is going on, or no rail is left.
    pub(super) fn blocks_offers(&self) -> bool {
        self.recovery.blocks_offers() || self.cts.is_behind() || !self.comm.has_rail()
    }

    /// Judges the lost parts once everything has arrived that the sender has completed, and nothing
    /// is left of the dead rails.
    fn try_to_judge(&mut self) -> Fast<()> {
        // Before the poll: this process may pause after it.
        let is_over = self.patience.is_none_or(|until| Instant::now() >= until);
        self.poll()?;
        let Some(state) = self.recovery.state() else { return Ok(()) };
        let new = RailSet::from_bits(state.dead).without(self.recovery.dead());
        let missing = self.completed_at_the_sender(state).find(|seq| self.window.is_outstanding(*seq));
        if let Some(seq) = missing {
            return match is_over {
                true => Err(lost_for_good(self.comm.peer.name(), seq)),
                false => Ok(()),
            };
        }
        let waits = state.open.iter().any(|group| group.lost != 0);
        let left: RailSet = new.iter().filter(|rail| self.comm.rails[*rail].is_alive()).collect();
        self.flushes.iter_mut().for_each(|flushes| flushes.give_up(left));
        self.comm.give_up(left, if waits { Urgency::High } else { Urgency::Low })?;
        if self.comm.is_fenced()? { self.judge() } else { Ok(()) }
    }

    /// Yields the groups that the sender has completed, of those whose slots are not in use again.
    fn completed_at_the_sender<'a>(
        &self,
        state: &'a SenderState,
    ) -> impl Iterator<Item = Sequence> + use<'a> {
        let offered = self.window.groups();
        offered.filter(|seq| *seq < state.next && state.open.iter().all(|group| group.seq != *seq))
    }

    /// Judges the lost parts.
    fn judge(&mut self) -> Fast<()> {
        self.flushes.iter_mut().for_each(|flushes| flushes.fenced(Instant::now()));
        let Self { recovery, window, .. } = self;
        let Some((verdict, partial)) = recovery.judge(|seq| window.held(seq)) else { return Ok(()) };
        for (group, done) in partial {
            let learned = self.window.learn(self.comm.layout, &group, RailSet::from_bits(done));
            let complete = |size| self.complete(group.seq.slot(), size);
            learned.and_then(|size| size.map_or(Ok(()), complete)).map_err(|e| self.state_error(&e))?;
        }
        self.patience = None;
        self.comm.send_message(Message::Verdict(verdict))?;
        self.end_episode();
        self.recovery.down().map_or(Ok(()), |down| self.comm.send_message(down))
    }

    /// Reports the episode once everything that was lost has arrived, and a rail lives.
    pub(super) fn end_episode(&mut self) {
        if !self.recovery.is_unfinished() && self.comm.has_rail() {
            self.comm.end_episode();
        }
    }

    /// Returns whether flushes wait.
    pub(super) fn settles_flushes(&mut self) -> bool {
        let Self { flushes, comm, .. } = self;
        let done = || comm.stats.done(0, 0);
        flushes.as_mut().is_some_and(|flushes| flushes.settle(Instant::now(), done))
    }

    /// Fills the receives of all rails: what is sent again takes more of them.
    fn restore_room(&mut self) -> Fast<()> {
        self.window.set_credit(0);
        for rail in 0..self.comm.rails.len() {
            if let Err(e) = self.comm.rails[rail].fill() {
                self.comm.not_posted(rail, e)?;
            }
        }
        Ok(())
    }

    /// Writes CTS entries again as far as there is room.
    fn write_cts_again(&mut self) -> Fast<()> {
        let Self { cts, comm, window, .. } = self;
        let written = cts.write_again(comm, window.next(), |seq| window.buffers(seq).len());
        written.or_else(|e| comm.not_posted(cts.rail(), e))
    }

    /// Sends ARRIVED before this end closes: acknowledgements may be lost with a rail, and nobody is
    /// left to answer STATE.
    pub(super) fn send_arrived(&mut self) {
        let next = self.window.oldest_outstanding();
        let is_awaited = self.comm.failures.is_enabled() && self.comm.peer.is_connected();
        if next > Sequence::FIRST && is_awaited && !self.comm.has_failed() {
            self.comm.send_last(Message::Arrived { next });
        }
    }

    /// Returns whether rails that this end could not make can be tried again.
    pub(super) fn is_return_due(&self) -> bool {
        !self.comm.has_failed() && self.recovery.is_return_due(|rail| self.comm.watch.may_return(rail))
    }

    /// Makes queue pairs, and connects them to the sender's.
    fn make(&mut self, request: NewRails) -> Fast<()> {
        let which = RailSet::from_bits(request.rails);
        let joined = Goal::Joined(Box::new(request.offer));
        let begun = self.comm.begin_attempt(which, [Goal::Made, joined]);
        begun.or_else(|e| self.attempt_failed(&e))
    }

    /// Sends what the thread has brought about.
    fn advance_failback(&mut self) -> Fast<()> {
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
        Ok(())
    }

    /// Sends REBUILT once the queue pairs are connected. Uses the rails once the probes have arrived.
    fn attempt_worked(&mut self, offer: Offer) -> Fast<()> {
        match self.recovery.worked() {
            ReceiverWorked::Nothing => Ok(()),
            ReceiverWorked::Made(attempt, which) => {
                let answer = NewRails { attempt, rails: which.bits(), offer };
                self.comm.send_message(Message::Rebuilt(answer))
            }
            ReceiverWorked::Use(attempt, which) => self.use_rails(attempt, which),
        }
    }

    fn use_rails(&mut self, attempt: Attempt, which: RailSet) -> Fast<()> {
        self.comm.use_new_rails(which)?;
        self.memory.renew(which.bits());
        if let Some(flushes) = &mut self.flushes {
            flushes.revive(which, &self.comm.rails);
        }
        self.restore_room()?;
        self.cts.use_living_rail(&self.comm, which);
        self.renew_keys(which);
        self.write_cts_again()?;
        self.cts.want_home(&self.comm);
        self.end_episode();
        self.send_up(attempt)
    }

    /// Ends the present attempt, and sends the reason.
    fn attempt_failed(&mut self, why: &Error) -> Fast<()> {
        let Some((which, failed)) = self.recovery.abort(why.to_string()) else { return Ok(()) };
        self.comm.attempt_failed(which, false, why);
        self.comm.send_message(failed)
    }

    /// Moves the CTS writes back to their own rail if it lives, and all writes over the other one
    /// have completed: a late one could overwrite a newer entry.
    pub(super) fn try_cts_home(&mut self) {
        let Some(home) = self.cts.wanted_home() else { return };
        if !self.cts.is_behind()
            && self.comm.living().contains(home)
            && self.cts.queue(&mut self.comm.rails).in_flight() == 0
        {
            self.cts.go_home(&self.comm);
        }
    }

    /// Renews the keys of these rails in the entries of all groups whose data is outstanding. An
    /// adapter that was opened again has registered all memory again, so the entries that the sender
    /// has may hold keys of the rail's last life.
    fn renew_keys(&mut self, which: RailSet) {
        let outstanding = self.window.groups().filter(|seq| self.window.is_outstanding(*seq));
        let first = outstanding.filter(|seq| self.renew_entries(*seq, which)).last();
        if let Some(first) = first {
            self.cts.rewrite(first);
        }
    }

    /// Renews the keys of these rails in the entries of a group, as this end keeps them. Returns
    /// whether one has changed.
    fn renew_entries(&self, seq: Sequence, which: RailSet) -> bool {
        self.cts.stage(&self.comm, seq);
        let mut changed = false;
        let buffers = self.window.buffers(seq).iter().enumerate();
        for (place, buffer) in buffers.filter(|(_, buffer)| buffer.len > 0) {
            for rail in which.iter() {
                // NCCL keeps a buffer registered until its receive is complete.
                if let Some(keys) = self.comm.rails[rail].nic.keys_of(*buffer) {
                    changed |= self.cts.set_key(&self.comm, (seq, place), rail, keys.rkey());
                }
            }
        }
        changed
    }

    /// Sends UP with the keys of all entries that the sender may need: it uses the rails once it has
    /// them.
    fn send_up(&mut self, attempt: Attempt) -> Fast<()> {
        let Self { cts, comm, window, .. } = self;
        let keys = |seq| (seq, cts.checksum_of_keys(comm, seq, window.buffers(seq).len()));
        let entries = window.groups().filter(|seq| window.is_outstanding(*seq)).map(keys).collect();
        comm.send_message(Message::Up(Up { attempt, entries }))
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
