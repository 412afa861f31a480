//! What the threads that notice faults know of a comm, and what they report to it.

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use mpib_proto::GidKind;
use mpib_proto::RailSet;
use parking_lot::Mutex;

use crate::async_events::comm_flags::CommFlags;
use crate::device::Nic;
use crate::housekeeping::JobId;
use crate::stats::{RailCounters, Reason};
use crate::verbs::About;
use crate::watchdog::{Posted, RailProgress, Watch};

/// How long an event waits for the completion that a failed queue may still deliver: the completion
/// names the request that failed, and the cause.
const GRACE: Duration = Duration::from_millis(200);

/// What a comm uses, and what happened to it.
#[derive(Debug)]
pub(crate) struct CommWatch {
    /// For messages.
    name: String,
    /// The comm's job, and its key in the list of all comms.
    job: JobId,
    /// The mark, and the rails to give up that the comm does not know of yet.
    flags: CommFlags,
    /// Whether the comm gives single rails up: see [`set_failover`](Self::set_failover).
    failover: AtomicBool,
    /// Why an event ended the comm, and when the event came.
    ended: OnceLock<(String, Instant)>,
    rails: Mutex<Vec<WatchedRail>>,
    /// Present if it has several rails.
    pub(super) counters: Option<RailCounters>,
    /// Complete polls of all completion queues.
    polls: AtomicU32,
    /// What the watchdog knows.
    pub(super) progress: Mutex<Progress>,
    owner: Weak<dyn Owner>,
}

/// What the watchdog knows of a comm.
#[derive(Debug)]
pub(super) struct Progress {
    pub(super) watch: Watch,
    pub(super) rails: Vec<RailProgress>,
}

/// Why rails have failed.
#[derive(Debug, Clone)]
pub(super) struct Failure {
    pub(super) reason: Reason,
    pub(super) why: String,
    /// The reason may concern the comm alone. If their port works, no other comm gives a rail up.
    pub(super) is_alone: bool,
}

/// What a comm requires of the one who made its watch.
pub(super) trait Owner: fmt::Debug + Send + Sync {
    /// Removes a comm from the list.
    fn closed(&self, comm: JobId);
    /// Makes housekeeping run the job of a comm now.
    fn wake(&self, comm: JobId);
    /// Ends the rest of a comm's job.
    fn start(&self, comm: JobId);
    /// Rails of a comm have failed: condemns them, and then, on a thread, all other rails that the
    /// cause concerns.
    fn rails_failed(&self, comm: &CommWatch, which: RailSet, failure: Failure);
    /// A comm has no rail left, and waits so long for one.
    fn has_no_rail(&self, comm: &CommWatch, wait: Duration);
    /// An episode has ended that began with the failure of a rail over a route.
    fn episode(&self, route: &RailPath, reason: Reason, replayed: u64, stall: Duration);
    /// A rail over a route works, after a failure or for the first time.
    fn rail_works(&self, route: &RailPath);
}

/// One rail of a comm.
#[derive(Debug)]
struct WatchedRail {
    route: RailPath,
    /// `None` while the rail has no queues.
    queues: Option<Queues>,
    /// Why the rail was given up, and when, or when an attempt to make it again has failed since.
    /// `None` while it is in use.
    cause: Option<(String, Instant)>,
    /// Why it was given up last.
    reason: Reason,
    /// Work requests posted in earlier lives of the rail that have never completed.
    lost: u64,
}

/// The local port and GID of a rail, and the remote GID.
#[derive(Debug, Clone)]
pub(crate) struct RailPath {
    /// The local port.
    pub(crate) nic: Arc<Nic>,
    /// The local GID and its type.
    pub(crate) local: ([u8; 16], GidKind),
    /// The peer's GID.
    pub(crate) peer: [u8; 16],
}

/// What a comm uses on one rail.
#[derive(Debug)]
pub(crate) struct Queues {
    /// The port and the addresses.
    pub(crate) route: RailPath,
    /// [`Context::id`](crate::verbs::Context::id)
    pub(crate) context: usize,
    /// Numbers of its queue pairs.
    pub(crate) qps: Vec<u32>,
    /// [`Cq::id`](crate::verbs::Cq::id)
    pub(crate) cq: Option<usize>,
    /// [`Srq::id`](crate::verbs::Srq::id)
    pub(crate) srq: Option<usize>,
}

/// What a comm has done on a rail in use.
#[derive(Debug)]
pub(super) struct RailCounts {
    pub(super) index: usize,
    pub(super) nic: Arc<Nic>,
    /// The peer's GID.
    pub(super) peer: [u8; 16],
    /// Work requests known to be complete, in all lives of the rail.
    pub(super) done: u64,
    /// Work requests outstanding.
    pub(super) outstanding: u64,
    /// In all lives of the rail.
    pub(super) posted: Posted,
}

impl CommWatch {
    pub(super) fn new(
        job: JobId,
        name: String,
        queues: Vec<Queues>,
        counters: Option<RailCounters>,
        owner: Weak<dyn Owner>,
    ) -> Self {
        let progress = queues.iter().map(|_| RailProgress::default()).collect();
        let progress = Progress { watch: Watch::default(), rails: progress };
        let rail = |queues: Queues| WatchedRail {
            route: queues.route.clone(),
            queues: Some(queues),
            cause: None,
            reason: Reason::Completion,
            lost: 0,
        };
        Self {
            name,
            job,
            flags: CommFlags::new(),
            failover: AtomicBool::new(false),
            ended: OnceLock::new(),
            rails: Mutex::new(queues.into_iter().map(rail).collect()),
            counters,
            polls: AtomicU32::new(0),
            progress: Mutex::new(progress),
            owner,
        }
    }

    /// Returns the name under which housekeeping runs the comm's job.
    pub(crate) fn job(&self) -> JobId {
        self.job
    }

    /// Returns whether a call on the comm must look closer: one load. It must if rails are
    /// condemned, if an event has ended the comm or will when its grace period is over, or if
    /// anyone else has called [`mark`](Self::mark).
    #[inline]
    pub(crate) fn is_marked(&self) -> bool {
        self.flags.is_marked()
    }

    /// Makes the next call on the comm look closer. Writes of the caller from before are visible to
    /// the thread that sees the mark.
    pub(crate) fn mark(&self) {
        self.flags.mark();
    }

    /// Marks the comm, and makes housekeeping look at it now: NCCL may not call for a while.
    pub(crate) fn notify(&self) {
        self.mark();
        self.wake();
    }

    /// Makes housekeeping look at the comm again now and then.
    pub(crate) fn start(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.start(self.job);
        }
    }

    /// Clears the mark, unless an event has ended the comm. Call this **before** looking at what may
    /// have changed, and [`mark`](Self::mark) again afterwards if something is still going on:
    /// a change that another thread makes after this call comes with a new mark, and a change from
    /// before is visible after this call. The other order loses marks.
    pub(crate) fn unmark(&self) {
        self.flags.unmark();
        if self.ended.get().is_some() {
            self.mark();
        }
    }

    /// Sets whether the comm gives single rails up. Without it, as at first, faults of rails end the
    /// comm, and no rail is condemned by others.
    pub(crate) fn set_failover(&self, on: bool) {
        self.failover.store(on, Ordering::Relaxed);
    }

    /// Returns whether the comm gives single rails up.
    pub(crate) fn has_failover(&self) -> bool {
        self.failover.load(Ordering::Relaxed)
    }

    /// Gives rails up, and makes the next call on the comm find that, or housekeeping if
    /// NCCL does not call. The first cause of each rail stays until the rail is made again, and
    /// a rail that is given up already is not given up again. Returns the rails that are new.
    pub(crate) fn condemn(&self, which: RailSet, reason: Reason, why: &str) -> RailSet {
        let mut new = RailSet::EMPTY;
        let mut all = self.rails.lock();
        for rail in which.iter() {
            if let Some(watched) = all.get_mut(rail).filter(|watched| watched.cause.is_none()) {
                watched.cause = Some((why.to_owned(), Instant::now()));
                watched.reason = reason;
                new.insert(rail);
            }
        }
        if !new.is_empty() {
            self.flags.condemn(new.bits());
            drop(all);
            self.notify();
        }
        new
    }

    /// Returns the rails that were condemned since the last call.
    pub(crate) fn take_condemned(&self) -> RailSet {
        RailSet::from_bits(self.flags.take_condemned())
    }

    /// Counts a poll of all completion queues, whose completions the counters show. One thread at a
    /// time calls this.
    #[inline]
    pub(crate) fn polled(&self) {
        self.polls.store(self.polls.load(Ordering::Relaxed).wrapping_add(1), Ordering::Release);
    }

    /// Returns how often [`polled`](Self::polled) was called.
    pub(super) fn polls(&self) -> u32 {
        self.polls.load(Ordering::Acquire)
    }

    /// Returns whether all its work requests that matter are signalled: a sender's are.
    pub(super) fn is_signalled(&self) -> bool {
        self.counters.is_none_or(|counters| counters.are_of_a_sender())
    }

    /// Requests [pings](crate::transport::life): these rails are late, and the other ones have done
    /// nothing that shows whether the peer can be reached.
    pub(super) fn request_ping(&self, late: RailSet) {
        self.flags.add_late(late.bits());
        self.notify();
    }

    /// Returns the rails that were late since the last call.
    pub(crate) fn take_late(&self) -> RailSet {
        RailSet::from_bits(self.flags.take_late())
    }

    /// Returns why a rail was given up; `None` while it is in use.
    pub(crate) fn cause(&self, rail: usize) -> Option<String> {
        self.fault(rail).map(|(_, why)| why)
    }

    /// Returns the [cause](Self::cause) with its kind.
    pub(crate) fn fault(&self, rail: usize) -> Option<(Reason, String)> {
        let all = self.rails.lock();
        let watched = all.get(rail)?;
        watched.cause.as_ref().map(|(why, _)| (watched.reason, why.clone()))
    }

    /// Sets the queues of a rail: `None` once they are destroyed, others when the rail is made again.
    /// The rail is in use then: a condemnation of its earlier life is dropped. Call this before the
    /// new queues are used.
    pub(crate) fn set_rail(&self, rail: usize, queues: Option<Queues>) {
        // In the order of the watchdog.
        let mut progress = self.progress.lock();
        let mut all = self.rails.lock();
        let Some(watched) = all.get_mut(rail) else { return };
        if let Some(queues) = &queues {
            watched.route = queues.route.clone();
            watched.cause = None;
            if let Some(counters) = self.counters {
                let (work_requests, done) = counters.progress(rail);
                watched.lost = work_requests.saturating_sub(done);
                let posted = Posted { work_requests, bytes: counters.bytes(rail) };
                progress.rails[rail].restart(posted);
            }
            self.flags.acquit(1 << rail);
        }
        watched.queues = queues;
    }

    /// Watches no rail any more: the counters are about to be another connection's.
    pub(crate) fn unwatch(&self) {
        // In the order of the watchdog, which reads the counters under both locks.
        let _progress = self.progress.lock();
        self.rails.lock().iter_mut().for_each(|rail| rail.queues = None);
    }

    /// Reports that a rail failed: a completion with an error, or a limit that has passed. The caller's
    /// rail is condemned at once. A thread of the adapter then queries the port. If it cannot be used,
    /// all rails of the process on the port are condemned. Else the route is the cause, and all rails
    /// of the process over the route are. One warning is logged for the port or the route.
    #[cold]
    pub(crate) fn rail_failed(&self, rail: usize, reason: Reason, why: &str) {
        self.rails_failed(RailSet::of(rail), Failure { reason, why: why.to_owned(), is_alone: false });
    }

    /// Reports that rails have failed for a reason that may concern this comm alone: the peer has
    /// given them up, and may lie, or it may have ended. They are condemned at once. If a port of theirs
    /// cannot be used, all rails of the process on it are.
    #[cold]
    pub(crate) fn rails_failed_alone(&self, which: RailSet, reason: Reason, why: &str) {
        self.rails_failed(which, Failure { reason, why: why.to_owned(), is_alone: true });
    }

    fn rails_failed(&self, which: RailSet, failure: Failure) {
        match self.owner.upgrade() {
            Some(owner) => owner.rails_failed(self, which, failure),
            None => drop(self.condemn(which, failure.reason, &failure.why)),
        }
    }

    /// Reports that the comm has no rail left, and waits so long for one.
    #[cold]
    pub(crate) fn has_no_rail(&self, wait: Duration) {
        if let Some(owner) = self.owner.upgrade().filter(|_| !wait.is_zero()) {
            owner.has_no_rail(self, wait);
        }
    }

    /// Sets that a rail is dead from the beginning. If the port of this end is down, that concerns all
    /// connections on it; else the connection alone, as what its peer gives up.
    pub(crate) fn dead_at_connect(&self, rail: usize, why: &str) {
        let mut all = self.rails.lock();
        let Some(watched) = all.get_mut(rail) else { return };
        (watched.queues, watched.reason) = (None, Reason::Peer);
        watched.cause = Some((why.to_owned(), Instant::now()));
        drop(all);
        self.rails_failed_alone(RailSet::of(rail), Reason::Peer, why);
    }

    /// Returns whether a rail that was given up may be made again now.
    pub(crate) fn may_return(&self, rail: usize) -> bool {
        self.may_return_at(rail, Instant::now())
    }

    fn may_return_at(&self, rail: usize, then: Instant) -> bool {
        let all = self.rails.lock();
        let last = all.iter().all(|rail| rail.cause.is_some());
        all.get(rail).is_some_and(|WatchedRail { route, cause, .. }| {
            let since = cause.as_ref().map(|(_, since)| *since);
            route.nic.health().may_return(then, &route.peer, since, last)
        })
    }

    /// Returns in what time a rail [may return](Self::may_return), to a tenth of a second; `None` if
    /// its port cannot be reached.
    pub(crate) fn may_return_in(&self, rail: usize) -> Option<Duration> {
        let now = Instant::now();
        // The longest hold-down is 30 s.
        let mut times = (0..=310).map(|tenths| Duration::from_millis(100 * tenths));
        times.find(|time| self.may_return_at(rail, now + *time))
    }

    /// Reports that these rails, which join the same two ports, could not be made again: at this end,
    /// or because the peer has `refused`.
    pub(crate) fn attempt_failed(&self, which: RailSet, refused: bool) {
        let now = Instant::now();
        let mut all = self.rails.lock();
        for (i, rail) in which.iter().enumerate() {
            let Some(WatchedRail { route, cause, .. }) = all.get_mut(rail) else { continue };
            cause.iter_mut().for_each(|(_, since)| *since = now);
            match (i, refused) {
                (0, true) => route.nic.health().attempt_refused(now, &route.peer),
                (0, false) => route.nic.health().attempt_failed(now, &route.peer),
                _ => {}
            }
        }
    }

    /// Reports that the peer can use its ports of these rails again.
    pub(crate) fn peer_returned(&self, which: RailSet) {
        let all = self.rails.lock();
        for WatchedRail { route, .. } in which.iter().filter_map(|rail| all.get(rail)) {
            route.nic.health().peer_returned(&route.peer);
        }
    }

    /// Reports that a rail made again has proved to work. The first rail that returns to a port or a
    /// route is logged.
    pub(crate) fn rail_returned(&self, rail: usize) {
        if let (Some(owner), Some(route)) = (self.owner.upgrade(), self.route(rail)) {
            owner.rail_works(&route);
        }
    }

    /// Reports a finished episode that began with the failure of `rail`. Housekeeping logs the
    /// episodes of a port within a second together.
    pub(crate) fn report_episode(&self, rail: usize, replayed: u64, stall: Duration) {
        let of_rail = self.rails.lock().get(rail).map(|watched| (watched.route.clone(), watched.reason));
        if let (Some(owner), Some((route, reason))) = (self.owner.upgrade(), of_rail) {
            owner.episode(&route, reason, replayed, stall);
        }
    }

    /// Returns why an event ended the comm, once the grace period is over.
    pub(crate) fn ended(&self) -> Option<&str> {
        self.ended.get().filter(|(_, since)| since.elapsed() >= GRACE).map(|(why, _)| why.as_str())
    }

    /// Returns the comm's name, for messages.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the comm goes on with a context after the context's adapter has failed: it
    /// gives no rail up, and no event has ended it.
    pub(super) fn stays_on(&self, context: usize) -> bool {
        let uses = || !self.rails_with(|queues| queues.context == context).is_empty();
        !self.has_failover() && self.ended.get().is_none() && uses()
    }

    /// Ends the comm. The first event stays.
    pub(super) fn end(&self, event: &str) {
        let why = format!("{} is over, since an adapter reported: {event}", self.name);
        let _ = self.ended.set((why, Instant::now()));
        self.mark();
    }

    /// Returns the rails whose queues `fits` accepts.
    pub(super) fn rails_with(&self, fits: impl Fn(&Queues) -> bool) -> RailSet {
        self.rails_that(|rail| rail.queues.as_ref().is_some_and(&fits))
    }

    /// Returns the rails in use whose route `fits` accepts.
    pub(super) fn rails_in_use(&self, fits: impl Fn(&RailPath) -> bool) -> RailSet {
        self.rails_that(|rail| rail.cause.is_none() && fits(&rail.route))
    }

    /// Returns the rails that were given up and whose route `fits` accepts.
    pub(super) fn rails_given_up(&self, fits: impl Fn(&RailPath) -> bool) -> RailSet {
        self.rails_that(|rail| rail.cause.is_some() && fits(&rail.route))
    }

    /// Returns the routes of all rails.
    pub(super) fn routes(&self) -> Vec<RailPath> {
        self.rails.lock().iter().map(|rail| rail.route.clone()).collect()
    }

    /// Returns the route of a rail.
    pub(super) fn route(&self, rail: usize) -> Option<RailPath> {
        Some(self.rails.lock().get(rail)?.route.clone())
    }

    /// Returns the counts of the rails in use; none without counters.
    pub(super) fn counts(&self) -> Vec<RailCounts> {
        let Some(counters) = self.counters else { return Vec::new() };
        let all = self.rails.lock();
        let in_use = all.iter().enumerate().filter(|(_, rail)| rail.cause.is_none() && rail.queues.is_some());
        let counts = in_use.map(|(index, rail)| {
            let (work_requests, done) = counters.progress(index);
            let outstanding = work_requests.saturating_sub(done).saturating_sub(rail.lost);
            let posted = Posted { work_requests, bytes: counters.bytes(index) };
            let (nic, peer) = (Arc::clone(&rail.route.nic), rail.route.peer);
            RailCounts { index, nic, peer, done, outstanding, posted }
        });
        counts.collect()
    }

    fn rails_that(&self, fits: impl Fn(&WatchedRail) -> bool) -> RailSet {
        let all = self.rails.lock();
        all.iter().enumerate().filter(|(_, rail)| fits(rail)).map(|(rail, _)| rail).collect()
    }

    fn wake(&self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.wake(self.job);
        }
    }
}

impl Drop for CommWatch {
    fn drop(&mut self) {
        if let Some(owner) = self.owner.upgrade() {
            owner.closed(self.job);
        }
    }
}

impl Queues {
    /// Returns whether an event about something of this adapter concerns them.
    pub(super) fn includes(&self, context: usize, about: About) -> bool {
        self.context == context
            && match about {
                About::Device => true,
                About::Port(port) => self.route.nic.port().number == port,
                About::Qp(qpn) => self.qps.contains(&qpn),
                About::Cq(id) => self.cq == Some(id),
                About::Srq(id) => self.srq == Some(id),
            }
    }
}

impl RailPath {
    /// Returns whether the local port is the one of `nic`.
    pub(super) fn is_on(&self, nic: &Nic) -> bool {
        self.nic.name() == nic.name()
    }

    /// Returns whether the other route joins the same two ports.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        self.is_on(&other.nic) && self.peer == other.peer
    }
}
