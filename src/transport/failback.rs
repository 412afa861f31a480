//! Failback: dead rails of a comm are made anew and used again. What both ends have in common;
//! `send` and `recv` exchange the messages.

use std::sync::Arc;
use std::time::Duration;

use crate::error::{Error, Fast, Result};
use crate::proto::{Message, rails};
use crate::transport::comm::Comm;
use crate::transport::rail_maker::{DeadRail, Goal, Offer, RailAttempt, RailMaker, Ticket};
use crate::worker::Worker;

/// Whether and how a comm goes on without rails, and with new ones.
#[derive(Debug)]
pub(crate) struct Failover {
    /// `MPIB_FAILOVER`
    pub(crate) is_enabled: bool,
    /// `MPIB_FAILOVER_WAIT`
    pub(crate) wait: Duration,
    pub(crate) maker: Arc<dyn RailMaker>,
    pub(crate) worker: Arc<Worker>,
}

/// The attempts of a comm to make rails anew, as far as both ends have them in common.
#[derive(Debug)]
pub(crate) struct Failback {
    maker: Arc<dyn RailMaker>,
    worker: Arc<Worker>,
    /// Rails that are tried without a hold-down: the peer's port has become usable.
    hurried: u8,
    /// The last message about an attempt, in case a control connection breaks and loses it.
    last: Option<Message>,
    work: Work,
}

/// Where the present attempt is.
#[derive(Debug)]
enum Work {
    None,
    /// The thread works on it.
    OnThread(Ticket),
    /// It waits for the peer.
    Waiting(Box<dyn RailAttempt>),
}

impl Failback {
    pub(crate) fn new(failover: &Failover) -> Self {
        Self {
            maker: Arc::clone(&failover.maker),
            worker: Arc::clone(&failover.worker),
            hurried: 0,
            last: None,
            work: Work::None,
        }
    }

    /// Tries these rails without a hold-down, once.
    pub(crate) fn hurry(&mut self, which: u8) {
        self.hurried |= which;
    }

    /// Destroys what there is of the present attempt.
    pub(crate) fn drop_attempt(&mut self) {
        self.work = Work::None;
    }

    /// Returns whether the result of the thread's work can be taken.
    fn take_done(&mut self) -> Option<Result<Box<dyn RailAttempt>>> {
        let Work::OnThread(ticket) = &self.work else { return None };
        let done = ticket.take()?;
        self.work = Work::None;
        Some(done)
    }
}

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
        let dead: Vec<_> =
            rails(which).map(|index| DeadRail { index, rail: &all[index], region, remote }).collect();
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
        for (index, rail) in attempt.finish()? {
            self.watch.set_rail(index, Some(rail.queues()));
            self.stats.rail_in_use(index, true);
            self.rails[index] = rail;
        }
        self.failures.revive(which);
        self.queues_changed();
        if let Some(profiler) = &mut self.profiler {
            let roles: Vec<_> = self.rails.iter().map(|rail| rail.role).collect();
            profiler.add(which & self.plan.carriers(&roles));
        }
        rails(which).take(1).for_each(|rail| self.watch.rail_returned(rail));
        Ok(())
    }
}
