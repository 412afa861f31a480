//! Failback: dead rails of a comm are made again, and used. `send` and `recv` exchange the messages.
//! The work is done on the threads of an adapter: verbs take milliseconds for it.
//!
//! `connect` makes the rails. It stands above this module, so it implements two traits.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_proto::{Offer, RailSet};
use parking_lot::Mutex;

use crate::async_events::CommWatch;
use crate::device::Nic;
use crate::error::{Error, Fast, Result};
use crate::transport::comm::Comm;
use crate::transport::failover::FailoverMode;
use crate::transport::rail::Rail;
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;
use crate::worker::{Steps, Urgency};

/// Makes rails of one connection again.
pub(crate) trait RailMaker: fmt::Debug + Send + Sync {
    /// Begins an attempt for those of the connection's `rails` that `which` has. They join the same
    /// two ports. Creates nothing yet. `region` and `remote` are the control memory of the ends.
    fn begin(
        &self,
        which: RailSet,
        rails: &[Rail],
        region: &Region,
        remote: &RemoteMemory,
    ) -> Result<Box<dyn RailAttempt>>;
}

/// One attempt to make rails again. If it is dropped, none of its queue pairs exists any more.
pub(crate) trait RailAttempt: fmt::Debug + Send {
    /// Does what can be done for the goal without waiting. Returns whether it is reached.
    fn pursue(&mut self, goal: &Goal) -> Result<bool>;

    /// Describes this end's port and queue pairs to the peer, once they exist.
    fn offer(&self) -> Option<Offer>;

    /// Returns the rails in order, once all goals are reached, with the registrations of this end's
    /// control memory that they use, and the keys of the peer's.
    fn finish(self: Box<Self>) -> Result<(Vec<Rail>, Region, RemoteMemory)>;
}

/// The goals of an attempt. Each but the first needs the one before.
#[derive(Debug)]
pub(crate) enum Goal {
    /// The queue pairs exist.
    Made,
    /// The queue pairs are connected to those of the peer.
    Joined(Box<Offer>),
    /// The probes of this end have arrived.
    Proved,
}

/// The failover settings of a comm, and what makes its rails again.
#[derive(Debug)]
pub(crate) struct Failover {
    pub(crate) mode: FailoverMode,
    pub(crate) maker: Arc<dyn RailMaker>,
    /// The rails that are dead from the beginning, and why.
    pub(crate) dead: Vec<(usize, String)>,
}

/// The attempts of a comm to make dead rails again.
#[derive(Debug)]
pub(crate) struct Failback {
    maker: Arc<dyn RailMaker>,
    present: Option<Job>,
}

/// The present attempt. The threads of an adapter port work on it, or it waits for the peer.
#[derive(Debug)]
struct Job {
    work: Arc<Work>,
    nic: Arc<Nic>,
}

#[derive(Debug)]
struct Work {
    /// Locked by a thread during a step. `None` once the attempt is destroyed or used.
    state: Mutex<Option<WorkState>>,
    /// The comm has given the attempt up.
    dropped: AtomicBool,
    watch: Arc<CommWatch>,
}

#[derive(Debug)]
struct WorkState {
    attempt: Box<dyn RailAttempt>,
    /// Those that the threads pursue.
    goals: VecDeque<Goal>,
    /// What has become of them, until the comm takes it.
    result: Option<Result<()>>,
}

impl Failback {
    pub(crate) fn new(failover: &Failover) -> Self {
        Self { maker: Arc::clone(&failover.maker), present: None }
    }
}

impl Job {
    fn new(attempt: Box<dyn RailAttempt>, nic: Arc<Nic>, watch: Arc<CommWatch>) -> Self {
        let state = WorkState { attempt, goals: VecDeque::new(), result: None };
        let work = Work { state: Mutex::new(Some(state)), dropped: AtomicBool::new(false), watch };
        Self { work: Arc::new(work), nic }
    }

    /// Gives goals to the threads. The comm is marked when they are reached, or have failed.
    fn pursue(&self, goals: impl IntoIterator<Item = Goal>) -> Result<()> {
        match self.work.state.try_lock().as_deref_mut() {
            Some(Some(state)) if state.goals.is_empty() => state.goals.extend(goals),
            _ => return Err(Error::Internal("the attempt does not wait for goals".into())),
        }
        self.nic.worker().add(Arc::<Work>::clone(&self.work), Urgency::Low)
    }
}

impl Steps for Work {
    fn step(&self) -> bool {
        if self.dropped.load(Ordering::Acquire) {
            return true;
        }
        let mut place = self.state.lock();
        let Some(WorkState { attempt, goals, result }) = &mut *place else { return true };
        let ended = loop {
            let Some(goal) = goals.front() else { break Ok(()) };
            match attempt.pursue(goal) {
                Ok(true) => drop(goals.pop_front()),
                Ok(false) => return false,
                Err(e) => break Err(e),
            }
        };
        *result = Some(ended);
        drop(place);
        self.watch.notify();
        true
    }
}

/// The thread that is in a step destroys the attempt after the step. Nobody waits for it.
impl Drop for Job {
    fn drop(&mut self) {
        self.work.dropped.store(true, Ordering::Release);
    }
}

impl Comm {
    /// Reports that these rails, which join the same two ports, could not be made again: at this end,
    /// or because the peer has `refused`.
    pub(crate) fn attempt_failed(&mut self, which: RailSet, refused: bool, why: &Error) {
        tracing::debug!(target: "net", "rails {which} of {} stay dead: {why}", self.peer.name());
        self.drop_attempt();
        self.failures.attempt_failed(which, why);
        self.watch.attempt_failed(which, refused);
    }

    /// Begins an attempt for rails that join the same two ports.
    pub(crate) fn begin_attempt(
        &mut self,
        which: RailSet,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Result<()> {
        self.drop_attempt();
        self.failures.attempt_begins(which);
        let first = which.lowest().and_then(|rail| self.rails.get(rail));
        let nic = first.map(|rail| Arc::clone(&rail.nic));
        let nic = nic.ok_or_else(|| Error::Internal("an attempt without rails".into()))?;
        let attempt = self.failback.maker.begin(which, &self.rails, &self.region, &self.remote)?;
        self.failback.present = Some(Job::new(attempt, nic, self.watch()));
        self.continue_attempt(goals)
    }

    /// Continues the attempt that waits for the peer.
    pub(crate) fn continue_attempt(&mut self, goals: impl IntoIterator<Item = Goal>) -> Result<()> {
        match &self.failback.present {
            Some(job) => job.pursue(goals),
            None => Err(Error::Internal("no attempt waits for the peer".into())),
        }
    }

    /// Destroys what there is of the present attempt, on the adapter's threads: the comm
    /// [is fenced](Self::is_fenced) once that is done.
    pub(crate) fn drop_attempt(&mut self) {
        if let Some(job) = self.failback.present.take() {
            let nic = Arc::clone(&job.nic);
            self.destroy_on(&nic, Urgency::High, move || {
                // Waits for the end of a step.
                drop(job.work.state.lock().take());
                Ok(())
            });
        }
    }

    /// Returns the result of the threads' work if it has ended: what the attempt has made so far. The
    /// attempt waits for the peer then, or has failed.
    pub(crate) fn attempt_result(&mut self) -> Option<Result<Option<Offer>>> {
        let mut place = self.failback.present.as_ref()?.work.state.try_lock()?;
        let state = place.as_mut()?;
        let result = state.result.take()?;
        Some(result.map(|()| state.attempt.offer()))
    }

    /// Uses the rails of the attempt that has reached all goals.
    pub(crate) fn use_new_rails(&mut self, which: RailSet) -> Fast<()> {
        let state = self.failback.present.take().and_then(|job| job.work.state.lock().take());
        let state = state.ok_or_else(|| Error::Internal("there are no new rails".into()))?;
        let (rails, region, remote) = state.attempt.finish()?;
        for (place, (index, mut rail)) in which.iter().zip(rails).enumerate() {
            rail.former = std::mem::take(&mut self.rails[index].former);
            self.watch.set_rail(index, Some(rail.queues()));
            self.stats.rail_missing(index, None);
            self.rails[index] = rail;
            self.region.adopt(index, &region, place);
            self.remote.rkeys[index] = remote.rkeys[place];
        }
        self.failures.revive(which);
        self.queues_changed();
        which.lowest().iter().for_each(|rail| self.watch.rail_returned(*rail));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;
    use crate::connect::tests::ports;
    use crate::process::Process;

    /// Is in a step until the first channel ends. The other ends with it.
    #[derive(Debug)]
    struct Stuck(Receiver<()>, Sender<()>);

    impl RailAttempt for Stuck {
        fn pursue(&mut self, _: &Goal) -> Result<bool> {
            self.1.send(()).unwrap();
            Ok(self.0.recv().is_ok())
        }

        fn offer(&self) -> Option<Offer> {
            None
        }

        fn finish(self: Box<Self>) -> Result<(Vec<Rail>, Region, RemoteMemory)> {
            unreachable!("it never ends")
        }
    }

    //= rail-life.md: an attempt ends with its connection, whose close does not wait for it
    #[test]
    fn nobody_waits_for_the_step_of_an_attempt_that_is_given_up() {
        let watch = Process::global().events.watch("a test".into(), Vec::new(), None);
        let (go_on, waits) = channel();
        let (steps, begun) = channel();
        let nic = Arc::clone(&ports()[0].rails[0]);
        let job = Job::new(Box::new(Stuck(waits, steps)), nic, watch);
        job.pursue([Goal::Made]).unwrap();
        begun.recv().unwrap();
        drop(job);
        // The step still goes on. Its thread destroys the attempt.
        drop(go_on);
        assert_eq!(begun.iter().count(), 0, "no further step");
    }
}
