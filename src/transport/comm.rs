//! The part of a connection that both ends have: rails, control memory, peer, failure state.

use std::sync::Arc;
use std::time::{Instant, SystemTime};

use mpib_proto::{ImmLayout, LinkLayer, RailRole, RailSet, Sequence};

use crate::async_events::CommWatch;
use crate::config::Config;
use crate::device::Nic;
use crate::error::{Error, Fast, Result};
use crate::failover::{PortState, Stream};
use crate::housekeeping::{Idleness, LINGER, Pace, TICK};
use crate::process::Process;
use crate::split::Plan;
use crate::stats::{Counters, Lack};
use crate::transport::Settings;
use crate::transport::failback::{Failback, Failover};
use crate::transport::failover::RailFailures;
use crate::transport::messages::Mailbox;
use crate::transport::peer::{Notifier, Peer};
use crate::transport::profiler::CommProfiler;
use crate::transport::progress::CompletionQueues;
use crate::transport::rail::Rail;
use crate::transport::recv::receives;
use crate::transport::remote_memory::RemoteMemory;
use crate::transport::waiting::{Pass, Turn, Waiting};
use crate::verbs::{Chain, Completion, Region};
use crate::worker::Task;

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
    pub(crate) notifier: Arc<Notifier>,
    /// Present in a connection over several pairs of ports.
    pub(crate) mailbox: Option<Mailbox>,
    /// What both ends say of the connection's rails.
    pub(crate) stream: Stream,
    /// The number of the last message that the mailbox has got.
    pub(crate) mailed: u64,
    pub(crate) plan: Plan,
    pub(crate) stats: Counters,
    /// Present if init brought a profiler callback.
    pub(crate) profiler: Option<Box<CommProfiler>>,
    pub(super) watch: Arc<CommWatch>,
    pub(crate) failures: RailFailures,
    pub(crate) failback: Failback,
    /// What is being destroyed.
    pub(super) fences: Vec<Task<Result<()>>>,
    /// The rails on which a ping is outstanding.
    pub(super) pings: RailSet,
    waiting: Waiting,
    /// Whether the last pass of housekeeping found news.
    had_news: bool,
    /// By next sequence number and what is outstanding.
    idleness: Idleness<(Sequence, usize)>,
    /// Whether housekeeping makes no passes. The comm is marked then.
    rests: bool,
    /// When this end last looked for news.
    looked: Instant,
    failed: Option<Error>,
    /// Polls that find nothing before the next check of the peer; at least 1.
    idle_polls: u32,
}

impl Comm {
    pub(crate) fn new(
        process: &Process,
        rails: Vec<Rail>,
        (region, remote): (Region, RemoteMemory),
        layout: ImmLayout,
        peer: Peer,
        (plan, failover): (Plan, Failover),
        stats: Counters,
    ) -> Self {
        let name = format!("the connection with {}", peer.name());
        let queues = rails.iter().map(Rail::queues).collect();
        let watch = process.events.watch(name, queues, stats.of_rails());
        watch.set_failover(failover.mode.is_on());
        let dead = failover.dead.iter().map(|(rail, _)| *rail).collect();
        for (rail, why) in &failover.dead {
            stats.rail_missing(*rail, Some((Lack::Connect, why)));
            watch.dead_at_connect(*rail, why);
        }
        let notifier = Notifier::new(Arc::clone(&watch));
        peer.observe(Arc::<Notifier>::clone(&notifier));
        if peer.has_news() {
            watch.mark();
        }
        Self {
            mailbox: Mailbox::of(&region).filter(|_| failover.mode.is_on()),
            stream: Stream::default(),
            mailed: 0,
            notifier,
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
            failures: RailFailures::new(failover.mode, dead),
            failback: Failback::new(&failover),
            fences: Vec::new(),
            pings: RailSet::EMPTY,
            waiting: Waiting::default(),
            had_news: false,
            idleness: Idleness::UNKNOWN,
            rests: false,
            looked: Instant::now(),
            failed: None,
            idle_polls: 1,
        }
    }

    /// Allocates the profiler events of `operations` operations if init brought a profiler
    /// callback.
    pub(crate) fn start_profiling(&mut self, settings: &Settings, operations: usize) {
        let (roles, carriers) = (self.roles(), self.carriers());
        let seen = &settings.process.profiler_seen;
        self.profiler = settings.profiler.map(|profiler| {
            CommProfiler::new(profiler, seen, (&roles, self.stats.ports(roles.len())), carriers, operations)
        });
    }

    /// Returns an error if the comm has failed, or if an adapter's event has ended it.
    #[cold]
    #[inline(never)]
    pub(crate) fn check_usable(&mut self) -> Fast<()> {
        self.not_failed()?;
        self.ended()
    }

    /// Returns whether calls must look closer: the comm has failed, an event has ended it or is
    /// about to, or there is news of its rails. One load.
    #[inline(always)]
    pub(crate) fn is_marked(&self) -> bool {
        self.watch.is_marked()
    }

    /// Returns the mark that [`check_usable`](Self::check_usable) reads, for use without the lock.
    pub(crate) fn watch(&self) -> Arc<CommWatch> {
        Arc::clone(&self.watch)
    }

    /// Returns whether there is something to look at that no call of NCCL has seen. The end of the
    /// connection is for NCCL's next call alone.
    pub(crate) fn has_news(&self) -> bool {
        let is_over = self.has_failed() || self.peer.has_refused() || self.watch.ended().is_some();
        !is_over && (self.is_marked() || self.has_mail())
    }

    /// Returns whether an event was already pending at the last pass of housekeeping: NCCL has not
    /// polled this comm since. An error is left for NCCL's next call.
    pub(crate) fn has_old_news(&mut self) -> bool {
        let news = self.has_news();
        std::mem::replace(&mut self.had_news, news) && news
    }

    /// Makes the next call look closer.
    pub(crate) fn mark(&self) {
        self.watch.mark();
    }

    /// Clears the mark, before this end looks for news. The mark is set after the news is there, so
    /// no news is missed.
    pub(crate) fn unmark(&mut self) {
        self.had_news = false;
        self.looked = Instant::now();
        self.watch.unmark();
        if std::mem::take(&mut self.rests) {
            self.watch.start();
        }
    }

    /// Begins a pass of housekeeping, which the comm's job makes.
    pub(crate) fn begin_pass(&mut self) {
        self.rests = false;
    }

    /// Returns whether NCCL has left this end alone, by its next sequence number and what is
    /// outstanding.
    pub(crate) fn is_left_alone(&mut self, next: Sequence, outstanding: usize) -> bool {
        self.idleness.time((next, outstanding)) >= TICK
    }

    /// Ends a pass of housekeeping, and returns when the next one is due. An end that waits for
    /// nothing rests: until an event concerns it, or until NCCL's next operation, which finds the mark and
    /// starts the passes again.
    pub(crate) fn end_pass(&mut self, next: Sequence, outstanding: usize) -> Pace {
        let idle = self.idleness.time((next, outstanding)).min(self.looked.elapsed());
        let is_outstanding = outstanding > 0 && !self.has_failed();
        let waits = self.notes_wait(is_outstanding);
        if self.has_news() {
            return Pace::Soon;
        }
        if is_outstanding || waits || self.needs_passes() || idle < LINGER {
            return Pace::Tick;
        }
        self.rests = true;
        self.mark();
        Pace::Rest
    }

    /// Records what the connection waits for and since when, and logs a long wait. Returns whether it
    /// waits.
    fn notes_wait(&mut self, is_outstanding: bool) -> bool {
        let Some(counts) = self.stats.totals().filter(|_| !self.has_failed()) else {
            self.waiting = Waiting::default();
            return false;
        };
        let turn = self.waiting.look(Pass {
            now: Instant::now(),
            clock: SystemTime::now(),
            counts,
            is_outstanding: is_outstanding && self.stats.awaits_outstanding(),
            lacks_rail: self.lacks_rail(),
        });
        let wait = self.waiting.since();
        self.stats.waits_for(wait);
        if let Some(turn) = turn {
            self.report_wait(turn);
        }
        wait.is_some()
    }

    #[cold]
    fn report_wait(&self, turn: Turn) {
        let describe = |what| self.stats.describe(what, self.peer.name());
        match turn {
            Turn::Long(what, lasted) => tracing::warn!(
                target: "net",
                "a connection has waited {} s for {}: NCCL asks for it, and nothing is begun or done; \
                 \"mpib stats\" shows all that wait",
                lasted.as_secs(),
                describe(what),
            ),
            Turn::Over(what, lasted) => tracing::info!(
                target: "net",
                "a connection waits no longer for {}, after {:.1} s",
                describe(what),
                lasted.as_secs_f64(),
            ),
        }
    }

    /// Returns whether the peer or a rail has to be looked at although nothing is outstanding.
    fn needs_passes(&self) -> bool {
        let works = |rail: usize| self.rails[rail].nic.health().state() == PortState::Healthy;
        let all_work = self.working() == self.all_rails() && self.all_rails().iter().all(works);
        let peer = self.peer.is_broken() || self.peer.is_reported_silent();
        !self.has_failed() && (!all_work || peer || self.is_busy())
    }

    /// Makes the list of CQs again after the rails have changed.
    pub(crate) fn queues_changed(&mut self) {
        self.queues = CompletionQueues::new(&self.rails);
        let carriers = self.carriers();
        self.profiler.iter_mut().for_each(|profiler| profiler.set_carriers(carriers));
    }

    /// Returns the living rails that may carry data by the plan.
    fn carriers(&self) -> RailSet {
        self.plan.carriers(&self.roles()) & self.living()
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
        if self.has_mail() {
            self.mark();
        }
        if self.peer.has_message() {
            // What the peer has said comes before its end: it may say that data is lost.
            self.mark();
            return Ok(());
        }
        let looked = self.look_for_life().and_then(|()| self.check_adapters());
        self.fail_on_error(looked)?;
        let here = self.peer.check(outstanding);
        let here = here.map_err(|e| self.after_failures(e));
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

    /// Handles a failed completion: its rail has failed, or the comm. A flushed receive does not
    /// name the cause, which another completion, an event or the peer reports.
    #[cold]
    pub(crate) fn failed_completion(&mut self, rail: usize, completion: &Completion) -> Fast<()> {
        if receives::is_flushed(completion) || self.failures.noticed().contains(rail) {
            return Ok(());
        }
        self.stats.rail_error(rail);
        let error = self.rails[rail].failed(rail, completion);
        self.rail_failed(rail, error)
    }

    /// Handles the completion of a work request on a queue of a rail.
    pub(crate) fn sent(&mut self, rail: usize, queue: usize, wr_id: u64) -> Fast<()> {
        let known = self.rails[rail].send_queues[queue].sent(wr_id)?;
        self.stats.completed(rail, known);
        Ok(())
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
        // A rail without queue pairs gets as many entries as the others have.
        self.rails.iter().filter(|rail| rail.is_alive()).map(Rail::longest_send).min().unwrap_or(0)
    }
}

impl Drop for Comm {
    fn drop(&mut self) {
        self.watch.unwatch();
    }
}

#[cold]
fn closed(e: &Error) -> Box<Error> {
    e.closed().into()
}
