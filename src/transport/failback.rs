//! Failback: dead rails of a comm are made anew and used again. What both ends have in common;
//! `send` and `recv` exchange the messages.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::error::{Error, Fast, Result};
use crate::proto::{MAX_RAILS, rails};
use crate::transport::comm::Comm;
use crate::transport::hold_down::HoldDown;
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
    /// By rail.
    hold_downs: [HoldDown; MAX_RAILS],
    /// By rail: since when it is dead.
    dead_since: [Option<Instant>; MAX_RAILS],
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
            hold_downs: Default::default(),
            dead_since: [None; MAX_RAILS],
            work: Work::None,
        }
    }

    /// Notes that rails have died.
    pub(crate) fn died(&mut self, which: u8, now: Instant) {
        for rail in rails(which) {
            self.hold_downs[rail].died(now);
            self.dead_since[rail].get_or_insert(now);
        }
    }

    /// Returns the rail of this mask that may be tried first, if it may be now.
    pub(crate) fn due(&self, dead: u8, now: Instant) -> Option<usize> {
        let first = rails(dead).min_by_key(|rail| self.hold_downs[*rail].until())?;
        (self.hold_downs[first].until() <= Some(now)).then_some(first)
    }

    /// Changes the hold-down of rails.
    pub(crate) fn hold(&mut self, which: u8, change: impl Fn(&mut HoldDown)) {
        rails(which).for_each(|rail| change(&mut self.hold_downs[rail]));
    }

    /// Destroys what there is of the present attempt.
    pub(crate) fn drop_attempt(&mut self) {
        self.work = Work::None;
    }

    /// Returns whether the thread does nothing for it, and no attempt waits.
    pub(crate) fn is_idle(&self) -> bool {
        matches!(self.work, Work::None)
    }

    /// Returns whether the result of the thread's work can be taken.
    fn take_done(&mut self) -> Option<Result<Box<dyn RailAttempt>>> {
        let Work::OnThread(ticket) = &self.work else { return None };
        let done = ticket.take()?;
        self.work = Work::None;
        Some(done)
    }

    /// Returns how long the rails of this mask have been dead, and forgets it.
    fn outage(&mut self, which: u8, now: Instant) -> Duration {
        let since = rails(which).filter_map(|rail| self.dead_since[rail].take()).min();
        since.map_or(Duration::ZERO, |since| now - since)
    }
}

impl Comm {
    /// Begins an attempt for rails that join the same two ports, on the thread.
    pub(crate) fn begin_attempt(&mut self, which: u8, goals: impl IntoIterator<Item = Goal>) -> Result<()> {
        // The queue pairs of an attempt before are destroyed first.
        self.failback.drop_attempt();
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
            self.rails[index] = rail;
        }
        self.failures.revive(which);
        self.queues_changed();
        for rail in rails(which) {
            self.watch.set_rail(rail, Some(self.rails[rail].queues()));
            self.watch.rail_returned(rail);
            self.stats.rail_in_use(rail, true);
        }
        if let Some(profiler) = &mut self.profiler {
            let carriers = self.plan.carriers(&self.rails.iter().map(|r| r.role).collect::<Vec<_>>());
            profiler.add(which & carriers);
        }
        let now = Instant::now();
        self.failback.hold(which, |hold| hold.is_back(now));
        let seconds = self.failback.outage(which, now).as_secs_f64();
        let names: Vec<_> = rails(which).map(|rail| self.rails[rail].describe()).collect();
        tracing::info!(
            target: "net",
            "{} is back after {seconds:.1} s: the connection with {} uses it again",
            names.first().map_or("", String::as_str),
            self.peer.name()
        );
        Ok(())
    }
}
