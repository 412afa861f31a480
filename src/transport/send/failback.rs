//! The sender's work to bring dead rails back: it begins the attempts. Traffic goes on meanwhile.

use std::time::Instant;

use crate::error::{Error, Fast};
use crate::proto::{Attempt, Message, NewRails, RebuildFailed};
use crate::transport::hold_down::HoldDown;
use crate::transport::rail_maker::{Goal, Offer};
use crate::transport::send::SendState;

impl SendState {
    /// Returns whether an attempt may begin.
    pub(crate) fn is_failback_due(&self) -> bool {
        let dead = self.episodes.dead();
        dead != 0 && !self.comm.has_failed() && self.due_rail(dead).is_some()
    }

    fn due_rail(&self, dead: u8) -> Option<usize> {
        let is_free = self.attempts.is_idle() && !self.episodes.is_awaiting();
        is_free.then(|| self.comm.failback.due(dead, Instant::now())).flatten()
    }

    /// Begins an attempt if one is due, and sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) {
        let dead = self.episodes.dead();
        if dead == 0 {
            return;
        }
        match self.comm.attempt_result() {
            None => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer),
            Some(Ok(None)) => {}
            Some(Err(e)) => self.attempt_failed(&e, self.attempts.has_requested()),
        }
        if let Some(rail) = self.due_rail(dead) {
            let which = self.comm.stripes_of(rail);
            self.attempts.begin(which, self.episodes.epoch());
            self.work([Goal::Made], |comm, goals| comm.begin_attempt(which, goals));
        }
    }

    /// Sends REBUILD once the queue pairs are made, and PROVED once the probes have arrived.
    fn attempt_worked(&mut self, Offer { port, routes }: Offer) {
        let rails = self.attempts.rails();
        let Some((attempt, is_proved)) = self.attempts.worked() else { return };
        self.comm.peer.send(&match is_proved {
            false => Message::Rebuild(NewRails { attempt, rails, port, routes }),
            true => Message::Proved(attempt),
        });
    }

    /// Ends the present attempt. Unless this end `has_tried`, its port cannot be used yet.
    fn attempt_failed(&mut self, why: &Error, has_tried: bool) {
        let (rails, now) = (self.attempts.rails(), Instant::now());
        tracing::debug!(target: "net", "rails {rails:#04b} of {} stay dead: {why}", self.comm.peer.name());
        self.attempts.abort();
        self.comm.failback.drop_attempt();
        let change = if has_tried { HoldDown::failed } else { HoldDown::is_unusable };
        self.comm.failback.hold(rails, |hold| change(hold, now));
    }

    /// Gives work of the present attempt to the thread.
    fn work<const N: usize>(
        &mut self,
        goals: [Goal; N],
        begin: impl FnOnce(&mut crate::transport::comm::Comm, [Goal; N]) -> crate::error::Result<()>,
    ) {
        if let Err(e) = begin(&mut self.comm, goals) {
            self.attempt_failed(&e, true);
        }
    }

    pub(super) fn on_rebuilt(&mut self, answer: NewRails) {
        if self.attempts.on_rebuilt(&answer) {
            let peer = Offer { port: answer.port, routes: answer.routes };
            self.work([Goal::Joined(peer), Goal::Proved], |comm, goals| comm.continue_attempt(goals));
        }
    }

    pub(super) fn on_rebuild_failed(&mut self, failed: &RebuildFailed) {
        if self.attempts.is_current(failed.attempt) {
            self.attempt_failed(&Error::Peer(format!("at the receiver: {}", failed.reason)), true);
        }
    }

    /// Handles UP: the receiver uses the rails, and so does this end from now on.
    pub(super) fn on_up(&mut self, attempt: Attempt) -> Fast<()> {
        let Some(rails) = self.attempts.on_up(attempt) else { return Ok(()) };
        self.episodes.revive(rails);
        self.comm.use_new_rails(rails)?;
        self.rails_changed()
    }

    pub(super) fn on_return(&mut self, rails: u8) {
        let now = Instant::now();
        self.comm.failback.hold(rails & self.episodes.dead(), |hold| hold.end(now));
    }
}
