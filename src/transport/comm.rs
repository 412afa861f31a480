//! What a sending and a receiving comm have in common.

use std::sync::Arc;

use crate::async_events::CommWatch;
use crate::config::Config;
use crate::device::Nic;
use crate::error::{Error, Fast, Result};
use crate::policy::Plan;
use crate::process::Process;
use crate::proto::{ImmLayout, LinkLayer, MAX_RAILS, RailRole};
use crate::stats::Counters;
use crate::transport::peer::Peer;
use crate::transport::profiler::CommProfiler;
use crate::transport::rail::Rail;
use crate::verbs::{Batch, Chain, Completion, Region};

/// Batches of completions that one call takes from one queue, at most: a call stays short whatever comes in.
const BATCHES: usize = 32;

/// `NCCL_IB_AR_THRESHOLD` where it is not set.
const AR_THRESHOLD: u32 = 8192;

/// What the handshake made.
#[derive(Debug)]
pub(crate) struct Comm {
    // Queue pairs go first: after them no device touches memory.
    pub(crate) rails: Vec<Rail>,
    pub(crate) region: Region,
    pub(crate) remote: RemoteMemory,
    pub(crate) layout: ImmLayout,
    pub(crate) chain: Chain,
    pub(crate) peer: Peer,
    pub(crate) plan: Plan,
    pub(crate) stats: Counters,
    /// Where init brought the profiler's callback.
    pub(crate) profiler: Option<Box<CommProfiler>>,
    watch: Arc<CommWatch>,
    failed: Option<Error>,
}

/// Memory of the peer: a sender's CTS FIFO, a receiver's completion records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteMemory {
    pub(crate) addr: u64,
    /// Per rail of the connection.
    pub(crate) rkeys: [u32; MAX_RAILS],
}

impl Comm {
    pub(crate) fn new(
        process: &Process,
        rails: Vec<Rail>,
        (region, remote): (Region, RemoteMemory),
        layout: ImmLayout,
        peer: Peer,
        plan: Plan,
        stats: Counters,
    ) -> Self {
        let watch = process
            .events
            .watch(format!("the connection with {}", peer.name()), rails.iter().map(Rail::queues).collect());
        Self {
            rails,
            region,
            remote,
            layout,
            chain: Chain::default(),
            peer,
            plan,
            stats,
            profiler: None,
            watch,
            failed: None,
        }
    }

    /// An error where the comm has failed before, or an event of an adapter has ended it.
    #[inline(always)]
    pub(crate) fn alive(&mut self) -> Fast<()> {
        self.not_failed()?;
        self.not_ended()
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    #[inline]
    fn not_failed(&self) -> Fast<()> {
        match &self.failed {
            None => Ok(()),
            Some(e) => Err(closed(e)),
        }
    }

    #[inline(always)]
    fn not_ended(&mut self) -> Fast<()> {
        if self.watch.is_marked() { self.ended() } else { Ok(()) }
    }

    #[cold]
    fn ended(&mut self) -> Fast<()> {
        match self.watch.ended() {
            None => Ok(()),
            Some(why) => {
                let e = Error::Event(why.to_owned());
                Err(self.fail(e.into()))
            }
        }
    }

    /// An error where the peer is gone and what it owes can no longer come.
    pub(crate) fn look(&mut self, owed: &str) -> Fast<()> {
        let here = self.peer.look(owed);
        self.settle(here)
    }

    /// Passes a result on; an error fails the comm for good, and the peer is told why.
    #[inline]
    pub(crate) fn settle<T, E: Into<Box<Error>>>(&mut self, result: Result<T, E>) -> Fast<T> {
        result.map_err(|e| self.fail(e.into()))
    }

    #[cold]
    pub(crate) fn fail(&mut self, e: Box<Error>) -> Box<Error> {
        self.stats.failure(&e);
        // Whoever is told the error may give the operations up that the events belong to.
        if let Some(profiler) = &mut self.profiler {
            profiler.stop_all();
        }
        if self.failed.is_none() {
            self.failed = Some(e.closed());
            self.peer.refuse(&e);
        }
        e
    }

    /// What a completion with an error means for the comm.
    #[cold]
    fn completed_badly(&self, rail: usize, completion: &Completion) -> Box<Error> {
        self.stats.rail_error(rail);
        self.rails[rail].failed(rail, completion).into()
    }

    /// Indices of the rails in their device, in order.
    pub(crate) fn roles(&self) -> Vec<RailRole> {
        self.rails.iter().map(|r| r.role).collect()
    }

    pub(crate) fn nics(&self) -> Vec<Arc<Nic>> {
        self.rails.iter().map(|r| Arc::clone(&r.nic)).collect()
    }

    /// Bytes above which data and immediate are sent apart.
    pub(crate) fn apart_above(&self, config: &Config) -> usize {
        let infiniband = || self.rails.iter().all(|r| r.nic.port().link == LinkLayer::InfiniBand);
        match config.adaptive_routing.unwrap_or_else(infiniband) {
            true => config.ar_threshold.unwrap_or(AR_THRESHOLD) as usize,
            false => usize::MAX,
        }
    }

    /// Largest message that fits through any one rail, since a policy may send all on one.
    pub(crate) fn max_message(&self) -> usize {
        self.rails.iter().map(|r| r.nic.port().max_message as usize).min().unwrap_or(0)
    }
}

/// The state of either end of a connection, as `test` drives it.
pub(crate) trait Progress {
    /// What both ends have in common.
    fn comm(&mut self) -> &mut Comm;

    /// What the peer owes this end for a request, in words; `None` where it has no part in it.
    fn owed(index: usize) -> Option<&'static str>;

    /// Whether a request is still under way.
    fn pending(&self, index: usize) -> bool;

    /// Takes one good completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()>;

    /// Takes what completed on every rail.
    #[inline]
    fn drain(&mut self) -> Fast<()> {
        let mut batch = Batch::new();
        for rail in 0..self.comm().rails.len() {
            for _ in 0..BATCHES {
                self.comm().rails[rail].cq.poll(&mut batch)?;
                for completion in batch.iter() {
                    if completion.status() != 0 {
                        return Err(self.comm().completed_badly(rail, completion));
                    }
                    self.completed(rail, completion)?;
                }
                if !batch.is_full() {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Takes what completed, and does what has to follow.
    fn poll(&mut self) -> Fast<()> {
        self.drain()
    }
}

/// Goes on with a request of either end that is not done.
pub(crate) fn progress<S: Progress>(state: &mut S, index: usize) -> Fast<()> {
    state.comm().not_failed()?;
    let polled = state.poll();
    state.comm().settle(polled)?;
    if !state.pending(index) {
        return Ok(());
    }
    // A failed completion says more than the event that comes with it, so it goes first.
    state.comm().not_ended()?;
    match S::owed(index) {
        Some(owed) => state.comm().look(owed),
        None => Ok(()),
    }
}

#[cold]
fn closed(e: &Error) -> Box<Error> {
    e.closed().into()
}
