//! The sender's work to bring dead rails back: it begins the attempts. Traffic goes on meanwhile.

use crate::error::{Error, Fast};
use crate::proto::{NewRails, Offer, RailSet};
use crate::transport::failback::Goal;
use crate::transport::send::SendState;

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
    fn attempt_worked(&mut self, offer: Offer) -> Fast<()> {
        let rebuild = |attempt, which: RailSet| NewRails { attempt, rails: which.bits(), offer };
        self.recovery.worked(rebuild).map_or(Ok(()), |message| self.comm.send_message(message))
    }

    fn attempt_failed(&mut self, why: &Error) {
        let which = self.recovery.abort();
        self.comm.attempt_failed(which, false, why);
    }

    /// Connects the new queue pairs to the receiver's, and probes.
    pub(super) fn join(&mut self, answer: NewRails) {
        let joined = Goal::Joined(Box::new(answer.offer));
        let continued = self.comm.continue_attempt([joined, Goal::Proved]);
        continued.unwrap_or_else(|e| self.attempt_failed(&e));
    }
}
