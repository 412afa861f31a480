//! The receiver's work to bring dead rails back: it answers the sender's attempts.

use crate::error::{Error, Fast};
use crate::proto::{Attempt, Message, NewRails, RebuildFailed};
use crate::transport::rail_maker::{Goal, Offer};
use crate::transport::recv::RecvState;

impl RecvState {
    /// Returns whether rails that this end could not make anew can be tried again.
    pub(super) fn is_return_due(&self) -> bool {
        self.unusable != 0 && !self.comm.has_failed() && self.comm.due_rails(self.unusable) != 0
    }

    /// Handles REBUILD: makes queue pairs, and connects them to the sender's.
    pub(super) fn on_rebuild(&mut self, request: NewRails) -> Fast<()> {
        self.comm.needs_failover("REBUILD")?;
        if self.attempts.on_rebuild(&request, self.episodes.epoch(), self.episodes.dead())? {
            self.unusable &= !request.rails;
            let peer = Offer { port: request.port, routes: request.routes, rkeys: request.rkeys };
            let begun = self.comm.begin_attempt(request.rails, [Goal::Made, Goal::Joined(peer)]);
            return begun.or_else(|e| self.attempt_failed(&e));
        }
        Ok(())
    }

    /// Handles PROVED: probes the way to the sender.
    pub(super) fn on_proved(&mut self, attempt: Attempt) -> Fast<()> {
        match self.attempts.on_proved(attempt) {
            true => self.comm.continue_attempt([Goal::Proved]).or_else(|e| self.attempt_failed(&e)),
            false => Ok(()),
        }
    }

    /// Sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) -> Fast<()> {
        match self.comm.attempt_result() {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer)?,
            Some(Err(e)) => self.attempt_failed(&e)?,
        }
        if self.is_return_due() {
            let rails = self.comm.due_rails(self.unusable);
            self.unusable &= !rails;
            tracing::debug!(target: "net", "rails {rails:#04b} of {} can be tried again", self.comm.peer.name());
            self.comm.send_about_attempt(Message::Return { rails })?;
        }
        self.try_cts_home();
        self.try_up()
    }

    /// Sends REBUILT once the queue pairs are connected. Uses the rails and sends UP once the probes
    /// have arrived.
    fn attempt_worked(&mut self, Offer { port, routes, rkeys }: Offer) -> Fast<()> {
        let Some((attempt, rails, is_up)) = self.attempts.worked() else { return Ok(()) };
        if !is_up {
            let answer = NewRails { attempt, rails, port, routes, rkeys };
            return self.comm.send_about_attempt(Message::Rebuilt(answer));
        }
        self.episodes.revive(rails);
        self.comm.use_new_rails(rails)?;
        self.memory.renew(rails);
        if let Some(flushes) = &mut self.flushes {
            flushes.revive(rails, &self.comm.rails);
        }
        self.restore_room()?;
        if let Some(next) = self.unwritten.take() {
            self.move_cts(next)?;
        }
        self.renew_cts(rails)?;
        self.cts.want_home(&self.comm);
        self.up_when_renewed(attempt)
    }

    /// Ends the present attempt, and sends the reason.
    fn attempt_failed(&mut self, why: &Error) -> Fast<()> {
        let Some((attempt, rails)) = self.attempts.abort() else { return Ok(()) };
        self.comm.attempt_failed(rails, false, why);
        self.unusable |= rails;
        let failed = RebuildFailed { attempt, reason: why.to_string() };
        self.comm.send_about_attempt(Message::RebuildFailed(failed))
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
