//! Failback: dead rails of a comm are made anew and used again. `send` and `recv` exchange the
//! messages.

use std::sync::Arc;

use crate::error::{Error, Fast, Result};
use crate::proto::RailSet;
use crate::transport::comm::Comm;
use crate::transport::failback::Work;
use crate::transport::fence::{Destroy, Fence};
use crate::transport::rail_maker::{DeadRail, Goal, NewRail, Offer, RailAttempt, Ticket};
use crate::verbs::Remote;
use crate::worker::Urgency;

impl Destroy for Box<dyn RailAttempt> {
    fn destroy(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Destroy for Ticket {
    fn destroy(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

impl Comm {
    /// Reports that these rails, which join the same two ports, could not be made anew: at this end,
    /// or because the peer has `refused`.
    pub(crate) fn attempt_failed(&mut self, which: RailSet, refused: bool, why: &Error) {
        tracing::debug!(target: "net", "rails {which} of {} stay dead: {why}", self.peer.name());
        self.drop_attempt();
        self.failures.attempt_failed(which, why);
        self.watch.attempt_failed(which.bits(), refused);
    }

    /// Begins an attempt for rails that join the same two ports, on the thread.
    pub(crate) fn begin_attempt(
        &mut self,
        which: RailSet,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Result<()> {
        self.drop_attempt();
        self.failures.attempt_begins(which);
        let Self { rails: all, region, remote, .. } = self;
        let dead: Vec<_> = which
            .iter()
            .map(|index| DeadRail {
                index,
                rail: &all[index],
                region,
                remote: Remote { addr: remote.addr, rkey: remote.rkeys[index] },
            })
            .collect();
        let attempt = self.failback.maker.begin(&dead)?;
        self.failback.worker = which.lowest().map(|rail| Arc::clone(&self.rails[rail].nic));
        self.work_on(attempt, goals)
    }

    /// Destroys what there is of the present attempt, on the adapter's thread: the comm
    /// [is fenced](Self::is_fenced) once that is done.
    pub(crate) fn drop_attempt(&mut self) {
        let Some(nic) = self.failback.worker.take() else { return };
        let watch = Arc::clone(&self.watch);
        match std::mem::replace(&mut self.failback.work, Work::None) {
            Work::None => {}
            Work::OnThread(ticket) => {
                self.fences.push(Fence::begin(nic.worker(), Urgency::High, watch, ticket));
            }
            Work::Waiting(attempt) => {
                self.fences.push(Fence::begin(nic.worker(), Urgency::High, watch, attempt));
            }
        }
    }

    /// Continues the attempt that waits for the peer.
    pub(crate) fn continue_attempt(&mut self, goals: impl IntoIterator<Item = Goal>) -> Result<()> {
        match std::mem::replace(&mut self.failback.work, Work::None) {
            Work::Waiting(attempt) => self.work_on(attempt, goals),
            Work::OnThread(_) | Work::None => Err(Error::Internal("no attempt waits for the peer".into())),
        }
    }

    fn work_on(
        &mut self,
        attempt: Box<dyn RailAttempt>,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Result<()> {
        let Some(nic) = &self.failback.worker else { return Err(Error::Internal("no attempt".into())) };
        let ticket = Ticket::new(nic.worker(), self.watch(), attempt, goals)?;
        self.failback.work = Work::OnThread(ticket);
        Ok(())
    }

    /// Returns the result of the thread's work if it has ended: what the attempt has made so far. The
    /// attempt waits for the peer then, or has failed.
    pub(crate) fn attempt_result(&mut self) -> Option<Result<Option<Offer>>> {
        let done = self.failback.take_done()?;
        Some(done.map(|attempt| {
            let offer = attempt.offer();
            self.failback.work = Work::Waiting(attempt);
            offer
        }))
    }

    /// Uses the rails of the attempt that has reached all goals.
    pub(crate) fn use_new_rails(&mut self, which: RailSet) -> Fast<()> {
        let Work::Waiting(attempt) = std::mem::replace(&mut self.failback.work, Work::None) else {
            return Err(Error::Internal("there are no new rails".into()).into());
        };
        for NewRail { index, mut rail, region, place, rkey } in attempt.finish()? {
            rail.former = std::mem::take(&mut self.rails[index].former);
            self.watch.set_rail(index, Some(rail.queues()));
            self.stats.rail_missing(index, None);
            self.rails[index] = rail;
            self.region.adopt(index, &region, place);
            self.remote.rkeys[index] = rkey;
        }
        self.failures.revive(which);
        self.queues_changed();
        which.iter().take(1).for_each(|rail| self.watch.rail_returned(rail));
        Ok(())
    }
}
