//! The receiver's work to bring dead rails back: it answers the sender's attempts.

use std::time::{Duration, Instant};

use crate::error::{Error, Fast};
use crate::proto::{Attempt, Message, NewRails, RebuildFailed};
use crate::transport::rail_maker::{Goal, Offer};
use crate::transport::recv::RecvState;

/// How often the state of a port that cannot be used is read.
const LOOK: Duration = Duration::from_secs(1);

impl RecvState {
    /// Returns whether a port that could not be used must be looked at.
    pub(super) fn is_look_due(&self) -> bool {
        !self.comm.has_failed()
            && self.unusable.is_some_and(|(_, at)| at <= Instant::now())
            && self.attempts.is_idle()
            && self.comm.failback.is_idle()
    }

    /// Handles REBUILD: makes queue pairs, and connects them to the sender's.
    pub(super) fn on_rebuild(&mut self, request: NewRails) -> Fast<()> {
        self.comm.needs_failover("REBUILD")?;
        if self.attempts.on_rebuild(&request, self.episodes.epoch(), self.episodes.dead())? {
            self.unusable = None;
            let peer = Offer { port: request.port, routes: request.routes };
            let begun = self.comm.begin_attempt(request.rails, [Goal::Made, Goal::Joined(peer)]);
            begun.unwrap_or_else(|e| self.attempt_failed(&e));
        }
        Ok(())
    }

    /// Handles PROVED: probes the way to the sender.
    pub(super) fn on_proved(&mut self, attempt: Attempt) {
        if self.attempts.on_proved(attempt) {
            self.comm.continue_attempt([Goal::Proved]).unwrap_or_else(|e| self.attempt_failed(&e));
        }
    }

    /// Sends what the thread has brought about.
    pub(super) fn advance_failback(&mut self) -> Fast<()> {
        match self.comm.attempt_result() {
            None => {}
            Some(Ok(Some(offer))) => self.attempt_worked(offer)?,
            // The port can be used again.
            Some(Ok(None)) => {
                self.comm.failback.drop_attempt();
                if let Some((rails, _)) = self.unusable.take() {
                    self.comm.peer.send(&Message::Return { rails });
                }
            }
            Some(Err(e)) if !self.attempts.is_idle() => self.attempt_failed(&e),
            Some(Err(_)) => self.unusable.iter_mut().for_each(|(_, at)| *at = Instant::now() + LOOK),
        }
        if let Some((rails, _)) = self.unusable.filter(|_| self.is_look_due()) {
            if self.comm.begin_attempt(rails, [Goal::Usable]).is_err() {
                self.unusable = None;
            }
        }
        self.try_cts_home()
    }

    /// Sends REBUILT once the queue pairs are connected. Uses the rails and sends UP once the probes
    /// have arrived.
    fn attempt_worked(&mut self, Offer { port, routes }: Offer) -> Fast<()> {
        let Some((attempt, rails, is_up)) = self.attempts.worked() else { return Ok(()) };
        if !is_up {
            self.comm.peer.send(&Message::Rebuilt(NewRails { attempt, rails, port, routes }));
            return Ok(());
        }
        self.episodes.revive(rails);
        self.comm.use_new_rails(rails)?;
        if let Some(flushes) = &mut self.flushes {
            flushes.revive(rails, &self.comm.rails);
        }
        self.restore_room()?;
        if let Some(next) = self.unwritten.take() {
            self.move_cts(next)?;
        }
        self.cts.want_home(&self.comm);
        self.comm.peer.send(&Message::Up(attempt));
        Ok(())
    }

    /// Ends the present attempt, and sends the reason.
    fn attempt_failed(&mut self, why: &Error) {
        self.comm.failback.drop_attempt();
        let Some((attempt, rails)) = self.attempts.abort() else { return };
        tracing::debug!(target: "net", "rails {rails:#04b} of {} stay dead: {why}", self.comm.peer.name());
        self.unusable = Some((rails, Instant::now() + LOOK));
        let failed = RebuildFailed { attempt, reason: why.to_string() };
        self.comm.peer.send(&Message::RebuildFailed(failed));
    }

    /// Moves the CTS writes back to their own rail if it lives, and all writes over the other one
    /// have completed: a late one could overwrite a newer entry.
    pub(super) fn try_cts_home(&mut self) -> Fast<()> {
        let Some(home) = self.cts.wanted_home() else { return Ok(()) };
        if self.unwritten.is_none()
            && !self.cts.is_behind()
            && self.comm.living() >> home & 1 == 1
            && self.cts.queue(&mut self.comm.rails).in_flight() == 0
        {
            self.cts.go_home(&self.comm);
        }
        Ok(())
    }
}
