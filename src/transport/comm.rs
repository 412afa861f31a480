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
use crate::transport::queues::CompletionQueues;
use crate::transport::rail::Rail;
use crate::transport::recv::receives;
use crate::verbs::{Chain, Completion, Region};

/// The peer's state is checked at one of so many polls that find nothing.
const PEER_CHECK_INTERVAL: u32 = 32;

/// Default of `NCCL_IB_AR_THRESHOLD`, in bytes.
const AR_THRESHOLD: u32 = 8192;

/// A connection that the handshake has established, at either end.
#[derive(Debug)]
pub(crate) struct Comm {
    // The rails are dropped first: once their queue pairs are destroyed, no device touches memory.
    pub(crate) rails: Vec<Rail>,
    pub(crate) queues: CompletionQueues,
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
    /// Polls that find nothing before the next check of the peer; at least 1.
    idle_polls: u32,
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
            queues: CompletionQueues::new(&rails),
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
            idle_polls: 1,
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

    /// Returns an error if the comm has failed, or if an adapter's event has ended it: one load.
    #[inline(always)]
    pub(crate) fn check_usable(&mut self) -> Fast<()> {
        if self.is_marked() { self.check_marked() } else { Ok(()) }
    }

    #[cold]
    #[inline(never)]
    fn check_marked(&mut self) -> Fast<()> {
        self.not_failed()?;
        self.ended()
    }

    /// Returns whether the comm has failed, or an event has ended it or is about to: one load.
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        self.watch.is_marked()
    }

    /// Returns the mark that [`check_usable`](Self::check_usable) reads, for use without the lock.
    pub(crate) fn watch(&self) -> Arc<CommWatch> {
        Arc::clone(&self.watch)
    }

    pub(crate) fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    pub(crate) fn not_failed(&self) -> Fast<()> {
        match &self.failed {
            None => Ok(()),
            Some(e) => Err(closed(e)),
        }
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

    /// Called when a poll has found nothing: now and then returns an error if the peer is dead and
    /// `outstanding` can no longer complete.
    #[inline(always)]
    pub(crate) fn found_nothing(&mut self, outstanding: Option<&'static str>) -> Fast<()> {
        self.idle_polls -= 1;
        if self.idle_polls != 0 {
            return Ok(());
        }
        self.idle_polls = PEER_CHECK_INTERVAL;
        outstanding.map_or(Ok(()), |what| self.check_peer(what))
    }

    /// Returns an error if the peer is dead and `outstanding` can no longer complete.
    #[cold]
    #[inline(never)]
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
            self.watch.mark();
            self.peer.refuse(&e);
        }
        e
    }

    /// Turns a failed completion into the comm's error. A flushed receive is none: it does not name
    /// the cause, which another completion, an event or the peer reports.
    #[cold]
    pub(crate) fn failed_completion(&self, rail: usize, completion: &Completion) -> Fast<()> {
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

    /// Returns the size in bytes of the largest message that is one write on any rail: a policy may
    /// send all of it on one.
    pub(crate) fn largest_write(&self) -> usize {
        self.rails.iter().map(Rail::largest_write).min().unwrap_or(0)
    }

    /// Returns the size in bytes of the largest message.
    pub(crate) fn longest_send(&self) -> usize {
        self.rails.iter().map(Rail::longest_send).min().unwrap_or(0)
    }
}

#[cold]
fn closed(e: &Error) -> Box<Error> {
    e.closed().into()
}
