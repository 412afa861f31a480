//! The part of a connection that both ends have: rails, control memory, peer, failure state.

use std::sync::Arc;

use crate::async_events::CommWatch;
use crate::config::Config;
use crate::device::Nic;
use crate::error::{Error, Fast, Result};
use crate::policy::Plan;
use crate::process::Process;
use crate::proto::{ImmLayout, LinkLayer, MAX_RAILS, RailRole};
use crate::stats::Counters;
use crate::transport::Settings;
use crate::transport::peer::Peer;
use crate::transport::profiler::CommProfiler;
use crate::transport::rail::Rail;
use crate::transport::recv::receives;
use crate::verbs::{Batch, Chain, Completion, Region};

/// Batches of completions that one call polls from one CQ at most. The limit keeps a call short,
/// however many completions there are.
const BATCHES: usize = 32;

/// Default of `NCCL_IB_AR_THRESHOLD`, in bytes.
const AR_THRESHOLD: u32 = 8192;

/// A connection that the handshake has established, at either end.
#[derive(Debug)]
pub(crate) struct Comm {
    // The rails are dropped first: once their queue pairs are destroyed, no device touches memory.
    pub(crate) rails: Vec<Rail>,
    pub(crate) region: Region,
    pub(crate) remote: RemoteMemory,
    pub(crate) layout: ImmLayout,
    pub(crate) chain: Chain,
    pub(crate) peer: Peer,
    pub(crate) plan: Plan,
    pub(crate) stats: Counters,
    /// Present if init brought a profiler callback.
    pub(crate) profiler: Option<Box<CommProfiler>>,
    watch: Arc<CommWatch>,
    failed: Option<Error>,
}

/// Memory of the peer that this end writes: a sender's CTS FIFO, or a receiver's completion
/// records.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RemoteMemory {
    pub(crate) addr: u64,
    /// By rail of the connection.
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

    /// Allocates the profiler events of `operations` operations if init brought a profiler
    /// callback.
    pub(crate) fn start_profiling(&mut self, settings: &Settings, operations: usize) {
        let roles = self.roles();
        let carriers = self.plan.carriers(&roles);
        let seen = &settings.process.profiler_seen;
        self.profiler =
            settings.profiler.map(|profiler| CommProfiler::new(profiler, seen, &roles, carriers, operations));
    }

    /// Returns an error if the comm has failed, or if an adapter's event has ended it.
    #[inline(always)]
    pub(crate) fn check_usable(&mut self) -> Fast<()> {
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

    /// Returns an error if the peer is dead and `outstanding` can no longer complete.
    pub(crate) fn check_peer(&mut self, outstanding: &str) -> Fast<()> {
        let here = self.peer.check(outstanding);
        self.fail_on_error(here)
    }

    /// Returns `result`. An error fails the comm for good and sends the reason to the peer.
    #[inline]
    pub(crate) fn fail_on_error<T, E: Into<Box<Error>>>(&mut self, result: Result<T, E>) -> Fast<T> {
        result.map_err(|e| self.fail(e.into()))
    }

    #[cold]
    pub(crate) fn fail(&mut self, e: Box<Error>) -> Box<Error> {
        self.stats.failure(&e);
        // NCCL may free the operations that the events belong to as soon as it has the error.
        if let Some(profiler) = &mut self.profiler {
            profiler.stop_all();
        }
        if self.failed.is_none() {
            self.failed = Some(e.closed());
            self.peer.refuse(&e);
        }
        e
    }

    /// Turns a failed completion into the comm's error. A flushed receive is none: it does not name
    /// the cause, which another completion, an event or the peer reports.
    #[cold]
    fn failed_completion(&self, rail: usize, completion: &Completion) -> Fast<()> {
        if receives::is_flushed(completion) {
            return Ok(());
        }
        self.stats.rail_error(rail);
        Err(self.rails[rail].failed(rail, completion).into())
    }

    /// Returns each rail's place in the device, in order.
    pub(crate) fn roles(&self) -> Vec<RailRole> {
        self.rails.iter().map(|r| r.role).collect()
    }

    pub(crate) fn nics(&self) -> Vec<Arc<Nic>> {
        self.rails.iter().map(|r| Arc::clone(&r.nic)).collect()
    }

    /// Returns the message size in bytes above which the immediate travels in a work request of its
    /// own.
    pub(crate) fn separate_imm_above(&self, config: &Config) -> usize {
        let infiniband = || self.rails.iter().all(|r| r.nic.port().link == LinkLayer::InfiniBand);
        match config.adaptive_routing.unwrap_or_else(infiniband) {
            true => config.ar_threshold.unwrap_or(AR_THRESHOLD) as usize,
            false => usize::MAX,
        }
    }

    /// Returns the largest message in bytes that fits through any single rail: a policy may send
    /// all of it on one.
    pub(crate) fn max_message(&self) -> usize {
        self.rails.iter().map(|r| r.nic.port().max_message as usize).min().unwrap_or(0)
    }
}

/// The state of one end, as `test` drives it.
pub(crate) trait Progress {
    /// Returns the part that both ends have.
    fn comm(&mut self) -> &mut Comm;

    /// Names what the peer still has to do for a request; `None` for a request without the peer.
    fn outstanding(index: usize) -> Option<&'static str>;

    /// Returns whether a request is in flight.
    fn pending(&self, index: usize) -> bool;

    /// Handles one successful completion of a rail.
    fn completed(&mut self, rail: usize, completion: &Completion) -> Fast<()>;

    /// Polls the CQ of every rail.
    #[inline]
    fn drain(&mut self) -> Fast<()> {
        let mut batch = Batch::new();
        for rail in 0..self.comm().rails.len() {
            for _ in 0..BATCHES {
                self.comm().rails[rail].cq.poll(&mut batch)?;
                for completion in batch.iter() {
                    if completion.status() != 0 {
                        self.comm().failed_completion(rail, completion)?;
                        continue;
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

    /// Polls every CQ, then does what the completions call for.
    fn poll(&mut self) -> Fast<()> {
        self.drain()
    }
}

/// Makes progress for a request that is not completed.
pub(crate) fn progress<S: Progress>(state: &mut S, index: usize) -> Fast<()> {
    state.comm().not_failed()?;
    let polled = state.poll();
    state.comm().fail_on_error(polled)?;
    if !state.pending(index) {
        return Ok(());
    }
    // A failed completion names the cause; the event that comes with it does not. So the completion
    // is checked first.
    state.comm().not_ended()?;
    match S::outstanding(index) {
        Some(outstanding) => state.comm().check_peer(outstanding),
        None => Ok(()),
    }
}

#[cold]
fn closed(e: &Error) -> Box<Error> {
    e.closed().into()
}
