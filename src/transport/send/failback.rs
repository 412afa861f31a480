//! The sender's work to bring dead rails back: it begins the attempts. Traffic goes on meanwhile.

use crate::error::{Error, Fast};
use crate::proto::{Attempt, Message, NewRails, RebuildFailed, rails};
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
        is_free.then(|| rails(self.comm.due_rails(dead)).next()).flatten()
    }

    /// Begins an attempt if one is due, and sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) -> Fast<()> {
        let dead = self.episodes.dead();
        if dead == 0 {
            return Ok(());
        }
        match self.comm.attempt_result() {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer)?,
            Some(Err(e)) => self.attempt_failed(false, &e),
        }
        if let Some(rail) = self.due_rail(dead) {
            let which = self.comm.stripes_of(rail);
            self.attempts.begin(which, self.episodes.epoch());
            let begun = self.comm.begin_attempt(which, [Goal::Made]);
            begun.unwrap_or_else(|e| self.attempt_failed(false, &e));
        }
        Ok(())
    }

    /// Sends REBUILD once the queue pairs are made, and PROVED once the probes have arrived.
    fn attempt_worked(&mut self, Offer { port, routes, rkeys }: Offer) -> Fast<()> {
        let rails = self.attempts.rails();
        let Some((attempt, is_proved)) = self.attempts.worked() else { return Ok(()) };
        let message = match is_proved {
            false => Message::Rebuild(NewRails { attempt, rails, port, routes, rkeys }),
            true => Message::Proved(attempt),
        };
        self.comm.send_about_attempt(message)
    }

    /// `refused`: by the receiver.
    fn attempt_failed(&mut self, refused: bool, why: &Error) {
        let rails = self.attempts.rails();
        self.attempts.abort();
        self.comm.attempt_failed(rails, refused, why);
    }

    pub(super) fn on_rebuilt(&mut self, answer: NewRails) {
        if self.attempts.on_rebuilt(&answer) {
            let peer = Offer { port: answer.port, routes: answer.routes, rkeys: answer.rkeys };
            let continued = self.comm.continue_attempt([Goal::Joined(peer), Goal::Proved]);
            continued.unwrap_or_else(|e| self.attempt_failed(false, &e));
        }
    }

    pub(super) fn on_rebuild_failed(&mut self, failed: &RebuildFailed) {
        if self.attempts.is_current(failed.attempt) {
            self.attempt_failed(true, &Error::Peer(format!("at the receiver: {}", failed.reason)));
        }
    }

    /// Handles UP: the receiver uses the rails, and so does this end from now on.
    pub(super) fn on_up(&mut self, attempt: Attempt) -> Fast<()> {
        let Some(rails) = self.attempts.on_up(attempt) else { return Ok(()) };
        self.episodes.revive(rails);
        self.comm.use_new_rails(rails)?;
        self.memory.renew(rails);
        self.rails_changed()
    }

    pub(super) fn on_return(&mut self, rails: u8) {
        self.comm.watch.peer_returned(rails & self.episodes.dead());
    }
}
