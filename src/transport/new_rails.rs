//! Failback: dead rails of a comm are made anew and used again. `send` and `recv` exchange the
//! messages.

use crate::error::{Error, Fast, Result};
use crate::proto::{Message, rails};
use crate::transport::comm::Comm;
use crate::transport::failback::Work;
use crate::transport::rail_maker::{DeadRail, Goal, NewRail, Offer, RailAttempt, Ticket};
use crate::verbs::Remote;

impl Comm {
    /// Sends a message about an attempt.
    pub(crate) fn send_about_attempt(&mut self, message: Message) -> Fast<()> {
        let sent = self.send_message(&message);
        self.failback.last = Some(message);
        sent
    }

    /// Repeats the last message about an attempt. The peer ignores what it has handled, or what is
    /// about an earlier attempt.
    pub(crate) fn repeat_about_attempt(&mut self) -> Fast<()> {
        let last = self.failback.last.clone();
        last.map_or(Ok(()), |last| self.send_message(&last))
    }

    /// Returns a rail of this mask that may be tried now.
    pub(crate) fn due_rail(&self, dead: u8) -> Option<usize> {
        rails(dead).find(|rail| self.failback.hurried >> rail & 1 == 1 || self.watch.may_return(*rail))
    }

    /// Reports that these rails, which join the same two ports, could not be made anew.
    pub(crate) fn attempt_failed(&mut self, which: u8, why: &Error) {
        tracing::debug!(target: "net", "rails {which:#04b} of {} stay dead: {why}", self.peer.name());
        self.failback.drop_attempt();
        rails(which).take(1).for_each(|rail| self.watch.attempt_failed(rail));
    }

    /// Begins an attempt for rails that join the same two ports, on the thread.
    pub(crate) fn begin_attempt(&mut self, which: u8, goals: impl IntoIterator<Item = Goal>) -> Result<()> {
        // The queue pairs of an attempt before are destroyed first.
        self.failback.drop_attempt();
        self.failback.hurried &= !which;
        let Self { rails: all, region, remote, .. } = self;
        let dead: Vec<_> = rails(which)
            .map(|index| DeadRail {
                index,
                rail: &all[index],
                region,
                remote: Remote { addr: remote.addr, rkey: remote.rkeys[index] },
            })
            .collect();
        let attempt = self.failback.maker.begin(&dead)?;
        self.work_on(attempt, goals)
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
        let ticket = Ticket::new(&self.failback.worker, self.watch(), attempt, goals)?;
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
    pub(crate) fn use_new_rails(&mut self, which: u8) -> Fast<()> {
        let Work::Waiting(attempt) = std::mem::replace(&mut self.failback.work, Work::None) else {
            return Err(Error::Internal("there are no new rails".into()).into());
        };
        for NewRail { index, rail, region, place, rkey } in attempt.finish()? {
            self.watch.set_rail(index, Some(rail.queues()));
            self.stats.rail_missing(index, None);
            self.rails[index] = rail;
            self.region.adopt(index, &region, place);
            self.remote.rkeys[index] = rkey;
        }
        self.failures.revive(which);
        self.queues_changed();
        let carriers = self.plan.carriers(&self.roles());
        if let Some(profiler) = &mut self.profiler {
            profiler.add(which & carriers);
        }
        rails(which).take(1).for_each(|rail| self.watch.rail_returned(rail));
        Ok(())
    }
}
