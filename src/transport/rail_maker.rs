//! Queue pairs that are made anew for dead rails, on a thread: verbs take milliseconds for that.
//!
//! `connect` implements both traits. It stands above this module.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::async_events::CommWatch;
use crate::error::{Error, Result};
use crate::proto::{RailInfo, RouteWiring};
use crate::transport::rail::Rail;
use crate::verbs::{Region, Remote};
use crate::worker::{Steps, Urgency, Worker};

/// Makes rails of one connection anew.
pub(crate) trait RailMaker: fmt::Debug + Send + Sync {
    /// Begins an attempt for rails that join the same two ports. Creates nothing yet.
    fn begin(&self, rails: &[DeadRail<'_>]) -> Result<Box<dyn RailAttempt>>;
}

/// A rail to be made anew.
#[derive(Debug)]
pub(crate) struct DeadRail<'a> {
    /// Its index in the connection.
    pub(crate) index: usize,
    /// What is left of it.
    pub(crate) rail: &'a Rail,
    /// The control memory of this end.
    pub(crate) region: &'a Region,
    /// The control memory of the peer.
    pub(crate) remote: Remote,
}

/// One attempt to make rails anew. If it is dropped, none of its queue pairs exists any more.
pub(crate) trait RailAttempt: fmt::Debug + Send {
    /// Does what can be done for the goal without waiting. Returns whether it is reached.
    fn pursue(&mut self, goal: &Goal) -> Result<bool>;

    /// Describes this end's port and queue pairs to the peer, once they exist.
    fn offer(&self) -> Option<Offer>;

    /// Returns the rails, once all goals are reached.
    fn finish(self: Box<Self>) -> Result<Vec<NewRail>>;
}

/// The goals of an attempt. Each but the first needs the one before.
#[derive(Debug)]
pub(crate) enum Goal {
    /// The queue pairs exist.
    Made,
    /// The queue pairs are connected to those of the peer.
    Joined(Offer),
    /// The probes of this end have arrived.
    Proved,
}

/// The port, the new queue pairs and the keys of an end.
#[derive(Debug, Clone)]
pub(crate) struct Offer {
    pub(crate) port: RailInfo,
    pub(crate) routes: Vec<RouteWiring>,
    /// Those of the control memory, by rail.
    pub(crate) rkeys: Vec<u32>,
}

/// Rails that work again.
#[derive(Debug)]
pub(crate) struct NewRail {
    /// The index in the connection.
    pub(crate) index: usize,
    pub(crate) rail: Rail,
    /// The control memory of this end with the registration that the rail uses.
    pub(crate) region: Region,
    /// The place of the registration in the region.
    pub(crate) place: usize,
    /// The key of the peer's control memory.
    pub(crate) rkey: u32,
}

/// Work of an attempt on the thread. If it is dropped, the attempt is, too.
#[derive(Debug)]
pub(crate) struct Ticket(Arc<Work>);

#[derive(Debug)]
struct Work {
    /// `None` once the result is taken, or the ticket dropped.
    state: Mutex<Option<WorkState>>,
    watch: Arc<CommWatch>,
}

#[derive(Debug)]
struct WorkState {
    attempt: Box<dyn RailAttempt>,
    goals: VecDeque<Goal>,
    failed: Option<Error>,
}

impl Ticket {
    /// Gives an attempt to the thread. The comm is marked when it has reached all goals, or has
    /// failed.
    pub(crate) fn new(
        worker: &Worker,
        watch: Arc<CommWatch>,
        attempt: Box<dyn RailAttempt>,
        goals: impl IntoIterator<Item = Goal>,
    ) -> Result<Self> {
        let state = WorkState { attempt, goals: goals.into_iter().collect(), failed: None };
        let work = Arc::new(Work { state: Mutex::new(Some(state)), watch });
        worker.add(Arc::<Work>::clone(&work), Urgency::Low)?;
        Ok(Self(work))
    }

    /// Returns the attempt if its work has ended.
    pub(crate) fn take(&self) -> Option<Result<Box<dyn RailAttempt>>> {
        // The thread holds the lock during a step.
        let mut state = self.0.state.try_lock()?;
        let WorkState { attempt, failed, .. } =
            state.take_if(|state| state.goals.is_empty() || state.failed.is_some())?;
        Some(failed.map_or(Ok(attempt), Err))
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        *self.0.state.lock() = None;
    }
}

impl Steps for Work {
    fn step(&self) -> bool {
        let mut place = self.state.lock();
        let Some(state) = &mut *place else { return true };
        while let Some(goal) = state.goals.front() {
            match state.attempt.pursue(goal) {
                Ok(true) => drop(state.goals.pop_front()),
                Ok(false) => return false,
                Err(e) => {
                    state.failed = Some(e);
                    break;
                }
            }
        }
        drop(place);
        self.watch.notify();
        true
    }
}
