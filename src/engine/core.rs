//! What a sending and a receiving comm have in common.

use std::sync::{Arc, Mutex, MutexGuard};

use nccl_net_versions::Sizes;

use super::peer::Peer;
use super::rail::Rail;
use crate::error::{Error, Result};
use crate::events::Watched;
use crate::policy::Plan;
use crate::proto::{ImmLayout, MAX_RAILS};
use crate::stats::Counters;
use crate::verbs::{Batch, Chain, Completion, Pd, Region};

/// Batches of completions that one call takes from one queue, at most: a call stays short whatever comes in.
const BATCHES: usize = 32;

/// What the handshake made.
#[derive(Debug)]
pub(super) struct Core {
    // Queue pairs go first: after them no device touches memory.
    pub(super) rails: Vec<Rail>,
    pub(super) region: Region,
    pub(super) remote: RemoteMemory,
    pub(super) layout: ImmLayout,
    pub(super) chain: Chain,
    pub(super) peer: Peer,
    pub(super) plan: Plan,
    pub(super) stats: Counters,
    watched: Arc<Watched>,
    failed: Option<Error>,
}

/// Memory of the peer: a sender's CTS FIFO, a receiver's completion records.
#[derive(Debug, Clone, Copy)]
pub(super) struct RemoteMemory {
    pub(super) addr: u64,
    /// Per rail of the connection.
    pub(super) rkeys: [u32; MAX_RAILS],
}

impl Core {
    pub(super) fn new(
        rails: Vec<Rail>,
        region: Region,
        remote: RemoteMemory,
        layout: ImmLayout,
        peer: Peer,
        plan: Plan,
        stats: Counters,
    ) -> Self {
        let watched = Watched::new(
            format!("the connection with {}", peer.name()),
            rails.iter().map(Rail::queues).collect(),
        );
        Self {
            rails,
            region,
            remote,
            layout,
            chain: Chain::default(),
            peer,
            plan,
            stats,
            watched,
            failed: None,
        }
    }

    /// An error where the comm has failed before, or an event of an adapter has ended it.
    pub(super) fn alive(&mut self) -> Result<()> {
        self.not_failed()?;
        self.not_ended()
    }

    fn not_failed(&self) -> Result<()> {
        match &self.failed {
            None => Ok(()),
            Some(e) => Err(e.closed()),
        }
    }

    fn not_ended(&mut self) -> Result<()> {
        match self.watched.over() {
            None => Ok(()),
            Some(why) => {
                let e = Error::Event(why.to_owned());
                Err(self.fail(e))
            }
        }
    }

    /// Passes a result on; an error fails the comm for good, and the peer is told why.
    pub(super) fn settle<T>(&mut self, result: Result<T>) -> Result<T> {
        result.map_err(|e| self.fail(e))
    }

    #[cold]
    fn fail(&mut self, e: Error) -> Error {
        self.stats.failure(&e);
        if self.failed.is_none() {
            self.failed = Some(e.closed());
            self.peer.refuse(&e);
        }
        e
    }

    /// What a completion with an error means for the comm.
    #[cold]
    fn completed_badly(&self, rail: usize, completion: &Completion) -> Error {
        self.stats.rail_error(rail);
        self.rails[rail].failed(rail, completion)
    }

    /// Indices of the rails in their device, in order.
    pub(super) fn roles(&self) -> Vec<u8> {
        self.rails.iter().map(|r| r.role).collect()
    }

    pub(super) fn pds(&self) -> Vec<Arc<Pd>> {
        self.rails.iter().map(|r| Arc::clone(r.nic.pd())).collect()
    }

    /// Largest message that fits through any one rail, since a policy may send all on one.
    pub(super) fn max_message(&self) -> usize {
        self.rails.iter().map(|r| r.nic.port().max_message as usize).min().unwrap_or(0)
    }
}

/// The state of either end of a connection, as `test` drives it.
pub(super) trait Progress {
    /// What the peer owes this end, for messages.
    const OWED: &'static str;

    /// What both ends have in common.
    fn core(&mut self) -> &mut Core;

    /// The sizes of a request that is done; its place is free again.
    fn take_done(&mut self, index: usize) -> Result<Option<Sizes>>;

    /// Takes one good completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Result<()>;

    /// Takes what completed on every rail.
    fn drain(&mut self) -> Result<()> {
        let mut batch = Batch::new();
        for rail in 0..self.core().rails.len() {
            for _ in 0..BATCHES {
                self.core().rails[rail].cq.poll(&mut batch)?;
                for completion in batch.iter() {
                    if completion.status != 0 {
                        return Err(self.core().completed_badly(rail, &completion));
                    }
                    self.completed(rail, &completion)?;
                }
                if !batch.is_full() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes what completed, and does what has to follow.
    fn poll(&mut self) -> Result<()> {
        self.drain()
    }
}

/// `test` of either end: what is done is told even on a comm that has failed since.
pub(super) fn test<S: Progress>(state: &Mutex<S>, index: usize) -> Result<Option<Sizes>> {
    let mut state = lock(state)?;
    if let Some(sizes) = state.take_done(index)? {
        return Ok(Some(sizes));
    }
    state.core().not_failed()?;
    let polled = state.poll();
    state.core().settle(polled)?;
    if let Some(sizes) = state.take_done(index)? {
        return Ok(Some(sizes));
    }
    // A failed completion says more than the event that comes with it, so it goes first.
    state.core().not_ended()?;
    let here = state.core().peer.look(S::OWED);
    state.core().settle(here)?;
    Ok(None)
}

/// Whoever has a comm's state. After a panic inside the comm it is not to be trusted.
pub(super) fn lock<T>(state: &Mutex<T>) -> Result<MutexGuard<'_, T>> {
    state.lock().map_err(|_| Error::Internal("the connection's state was left by a panic".into()))
}

/// Indices of the set bits.
pub(super) fn rails_of(mask: u8) -> impl Iterator<Item = usize> {
    let mut rest = mask;
    std::iter::from_fn(move || {
        let rail = (rest != 0).then(|| rest.trailing_zeros() as usize)?;
        rest &= rest - 1;
        Some(rail)
    })
}
