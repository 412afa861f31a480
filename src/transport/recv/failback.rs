//! The receiver's work to bring dead rails back: it answers the sender's attempts.

use crate::error::{Error, Fast};
use crate::failover::ReceiverWorked;
use crate::proto::{Message, NewRails, Offer, RailSet};
use crate::transport::failback::Goal;
use crate::transport::recv::RecvState;

impl RecvState {
    /// Returns whether rails that this end could not make can be tried again.
    pub(super) fn is_return_due(&self) -> bool {
        !self.comm.has_failed() && self.recovery.is_return_due(|rail| self.comm.watch.may_return(rail))
    }

    /// Makes queue pairs, and connects them to the sender's.
    pub(super) fn make(&mut self, request: NewRails) -> Fast<()> {
        let which = RailSet::from_bits(request.rails);
        let joined = Goal::Joined(Box::new(request.offer));
        let begun = self.comm.begin_attempt(which, [Goal::Made, joined]);
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
    fn attempt_worked(&mut self, offer: Offer) -> Fast<()> {
        match self.recovery.worked() {
            ReceiverWorked::Nothing => Ok(()),
            ReceiverWorked::Made(attempt, which) => {
                let answer = NewRails { attempt, rails: which.bits(), offer };
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
