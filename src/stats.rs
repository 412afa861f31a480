//! Counters of each connection, in a page that other processes read. `agent-iface` has its layout.
//!
//! The page belongs to the process and outlives `finalize`, as its connections do. Counting is a
//! few plain stores under the lock of the comm's state. Without a page, or with `MPIB_STATS=0`, it
//! is one comparison; but a connection of several rails counts in any case if it may fail over, since
//! the watchdog reads its counters.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use mpib_proto::RailRole;
use nccl_net_mpib_agent_iface::environment::job_of_scheduler;
pub(crate) use nccl_net_mpib_agent_iface::stats::{Awaited, Direction, Lack, Reason, Totals, Traffic};
use nccl_net_mpib_agent_iface::stats::{
    ConnectionEntry, Data, Entry, Event, Islands, NewConnection, Operations, PortRecord, PortState,
    StatsWriter, UnlistedEntry,
};

use crate::config::Config;
use crate::control::FrameCounts;
use crate::error::{Error, Result};
use crate::route::Class;
use crate::split::Plan;
use crate::verbs::{About, AsyncEvent};
use crate::warned::{Subject, Warned};

/// Returns the page, which has the process's id in its name: one for all instances of the plugin.
fn page() -> std::io::Result<&'static StatsWriter> {
    StatsWriter::for_this_process(env!("CARGO_PKG_VERSION"))
}

/// Whether a process's events are counted.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    /// An init requested the page, and the page is there.
    counts: AtomicBool,
    /// NCCL's operations in the page, if its profiler is this plugin.
    operations: OnceLock<Operations>,
}

impl Stats {
    /// Makes the page, unless the settings want none or it is there. Logs once if the page cannot
    /// be made.
    ///
    /// # Errors
    /// With `MPIB_STRICT=1`: the page cannot be made.
    pub(crate) fn init(&self, config: &Config, warned: &Warned) -> Result<()> {
        let Some(page) = config.stats.then(page) else { return Ok(()) };
        let e = match page {
            Ok(page) => {
                let of_scheduler = || job_of_scheduler(|name| std::env::var(name).ok());
                page.name_job(&config.job.clone().or_else(of_scheduler).unwrap_or_default());
                self.counts.store(true, Ordering::Relaxed);
                return Ok(());
            }
            Err(e) => e,
        };
        let what = format!("no statistics page can be made (set MPIB_STATS=0 to do without): {e}");
        let what = config.degraded(what)?;
        if warned.once(Subject::StatsPage) {
            tracing::warn!(target: "init", "{what}; mpib stats will not show this process");
        }
        Ok(())
    }

    /// Begins to record NCCL's operations; `None` without a page.
    pub(crate) fn profile(&self) -> Option<Operations> {
        let page = self.page()?;
        Some(*self.operations.get_or_init(|| page.operations()))
    }

    /// Returns NCCL's operations, if they are recorded.
    pub(crate) fn operations(&self) -> Option<Operations> {
        self.operations.get().copied()
    }

    /// Counts an event of an adapter.
    pub(crate) fn event(&self, event: &AsyncEvent) {
        let kind = match event {
            e if e.is_link_down() => Event::LinkDown,
            e if e.is_link_up() => Event::LinkUp,
            e if e.is_table() => Event::Table,
            e if e.is_fatal() && e.about == About::Device => Event::Device,
            e if e.is_fatal() => Event::Queue,
            _ => Event::Other,
        };
        if let Some(page) = self.page() {
            page.event(kind);
        }
    }

    /// Counts a failover episode of a connection that began on a port, with the bytes that were sent
    /// again in it and its stall.
    pub(crate) fn episode(&self, port: &str, reason: Reason, replayed: u64, stall: Duration) {
        if let Some(page) = self.page() {
            page.episode(port, reason, replayed, stall);
        }
    }

    /// Records the state of a port, and the cause of a state other than healthy with the time of the
    /// first sign.
    pub(crate) fn port_state(&self, port: &str, state: PortState, cause: Option<(&str, SystemTime)>) {
        if let Some(page) = self.page() {
            page.port_state(port, state, cause);
        }
    }

    /// Returns the record of a port in the page, if there is one.
    pub(crate) fn port(&self, port: &str) -> Option<&'static PortRecord> {
        self.page()?.port(port)
    }

    /// Adds the counts of connections that have no entry in the page to the totals.
    pub(crate) fn count_unlisted(&self) {
        if let Some(page) = self.page() {
            page.count_unlisted();
        }
    }

    /// Counts a port or a route that came back into use.
    pub(crate) fn returned(&self) {
        if let Some(page) = self.page() {
            page.returned();
        }
    }

    fn page(&self) -> Option<&'static StatsWriter> {
        self.counts.load(Ordering::Relaxed).then(|| page().ok()).flatten()
    }
}

impl FrameCounts for Stats {
    fn forged(&self) {
        if let Some(page) = self.page() {
            page.forged();
        }
    }
}

/// The counters of a connection of several rails, as the watchdog reads them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RailCounters {
    entry: &'static Entry,
    direction: Direction,
}

impl RailCounters {
    /// Returns the work requests that were posted on a rail, and those of them that are known to be
    /// complete.
    pub(crate) fn progress(&self, rail: usize) -> (u64, u64) {
        self.entry.rail(rail).progress()
    }

    /// Returns the bytes of all work requests that were posted on a rail.
    pub(crate) fn bytes(&self, rail: usize) -> u64 {
        self.entry.rail(rail).bytes()
    }

    /// Returns whether the connection sends data.
    pub(crate) fn are_of_a_sender(&self) -> bool {
        self.direction == Direction::Send
    }
}

/// The counters of one end of a connection, if it is counted.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    entry: Option<&'static Entry>,
    /// What is counted.
    kind: Option<(Direction, Traffic)>,
    /// Whether the watchdog reads the counters.
    is_watched: bool,
    /// When dropped, adds the counts to the totals of the page and frees the entry.
    taken: Option<ConnectionEntry>,
    /// Present if the watchdog reads the counters and there is no page.
    _unlisted: Option<UnlistedEntry>,
}

/// Counts the sends that wait for the peer. NCCL's progress thread alone calls isend, so there is
/// one writer without the lock, too.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Waits(Option<&'static Entry>);

impl Waits {
    /// Counts a call.
    #[inline(always)]
    pub(crate) fn no_receive(self) {
        if let Some(entry) = self.0 {
            entry.wait_for_peer();
        }
    }
}

impl Counters {
    /// Begins to count. `rails` has the role, and HCA and port, of each rail. `elsewhere`: NCCL did
    /// not request one of the rails.
    pub(crate) fn open(
        config: &Config,
        traffic: Traffic,
        direction: Direction,
        plan: Plan,
        peer: &str,
        rails: &[(RailRole, &str)],
        elsewhere: bool,
    ) -> Self {
        let is_watched = config.failover && rails.len() > 1;
        // init has logged that there is no page.
        let page = config.stats.then(|| page().ok()).flatten();
        let taken = page.map(|page| Self::add(page, traffic, direction, plan, peer, rails, elsewhere));
        let in_page = taken.as_ref().map(ConnectionEntry::entry);
        let unlisted = (is_watched && in_page.is_none()).then(UnlistedEntry::new);
        let entry = in_page.or(unlisted.as_ref().map(UnlistedEntry::entry));
        Self { entry, kind: Some((direction, traffic)), is_watched, taken, _unlisted: unlisted }
    }

    /// Adds a connection to the page.
    fn add(
        page: &'static StatsWriter,
        traffic: Traffic,
        direction: Direction,
        plan: Plan,
        peer: &str,
        rails: &[(RailRole, &str)],
        elsewhere: bool,
    ) -> ConnectionEntry {
        let class = |class| match class {
            Class::Intra => Islands::Same,
            Class::Inter => Islands::Two,
        };
        let (islands, data) = match plan {
            Plan::Plain => (Islands::Unknown, Data::Plain),
            Plan::Isolated(c) => (class(c), Data::OneRail),
            Plan::StandIn => (class(Class::Intra), Data::OneRail),
            Plan::Shared(c) => (class(c), Data::Split),
        };
        let rails: Vec<_> = rails.iter().map(|(role, name)| (role.index(), *name)).collect();
        page.add(&NewConnection {
            direction,
            islands,
            data,
            traffic,
            peer,
            rails: &rails,
            substituted: elsewhere,
        })
    }

    /// Returns the counters that the watchdog reads: those of a connection of several rails that
    /// may fail over.
    pub(crate) fn of_rails(&self) -> Option<RailCounters> {
        let (direction, _) = self.kind.filter(|_| self.is_watched)?;
        Some(RailCounters { entry: self.entry?, direction })
    }

    /// Returns the number of the port record of each of so many rails, from 1; 0 if it has none.
    pub(crate) fn ports(&self, rails: usize) -> Box<[u32]> {
        (0..rails).map(|rail| self.entry.map_or(0, |entry| entry.rail(rail).port())).collect()
    }

    /// Counts a request that a call returned, and the share of a send.
    #[inline]
    pub(crate) fn request(&self, share: Option<u16>) {
        let Some(entry) = self.entry else { return };
        entry.request();
        if let Some(share) = share {
            entry.share(share);
        }
    }

    /// Counts a completed request of so many messages with so many bytes in all.
    #[inline]
    pub(crate) fn done(&self, messages: usize, bytes: usize) {
        if let Some(entry) = self.entry {
            entry.done(messages, bytes);
        }
    }

    /// Counts a send that returns no request since the peer has posted no receive.
    #[inline]
    pub(crate) fn no_receive<T>(&self) -> Option<T> {
        self.waits().no_receive();
        None
    }

    /// Returns the counter of [`no_receive`](Self::no_receive), for use without the lock.
    pub(crate) fn waits(&self) -> Waits {
        Waits(self.entry)
    }

    /// Counts a usual send: a message that is one work request on one rail.
    #[inline(always)]
    pub(crate) fn sent_whole(&self, rail: usize, bytes: usize, share: Option<u16>) {
        if let Some(entry) = self.entry {
            entry.rail(rail).posted(1, 1, bytes);
            entry.request();
            if let Some(share) = share {
                entry.share(share);
            }
        }
    }

    /// Counts a usual receive: its CTS write is a work request.
    #[inline(always)]
    pub(crate) fn offered(&self, rail: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).posted_bare();
            entry.request();
        }
    }

    /// Counts the arrival of a message of so many bytes on a rail, or of its last part, which completes
    /// its request.
    #[inline(always)]
    pub(crate) fn arrived_last(&self, rail: usize, bytes: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).arrived();
            entry.done(1, bytes);
        }
    }

    /// Counts a call that returns no request since a queue is full.
    #[inline]
    pub(crate) fn no_room<T>(&self) -> Option<T> {
        if let Some(entry) = self.entry {
            entry.wait_for_queue();
        }
        None
    }

    /// Counts work requests posted on a rail. `parts` of them carry message data, `bytes` bytes in
    /// total.
    #[inline]
    pub(crate) fn posted(&self, rail: usize, work_requests: usize, parts: usize, bytes: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).posted(work_requests, parts, bytes);
        }
    }

    /// Counts a posted work request that carries no part of a message.
    #[inline]
    pub(crate) fn posted_bare(&self, rail: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).posted_bare();
        }
    }

    /// Counts completed work requests of a rail.
    #[inline]
    pub(crate) fn completed(&self, rail: usize, work_requests: u32) {
        if let Some(entry) = self.entry {
            entry.rail(rail).completed(work_requests);
        }
    }

    /// Counts a message, or a part of one, that arrived on a rail.
    #[inline]
    pub(crate) fn arrived(&self, rail: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).arrived();
        }
    }

    /// Counts a completion with an error.
    #[cold]
    pub(crate) fn rail_error(&self, rail: usize) {
        if let Some(entry) = self.entry {
            entry.rail(rail).error();
        }
    }

    /// Records why the connection lacks a rail, or that the rail is in use again.
    #[cold]
    pub(crate) fn rail_missing(&self, rail: usize, why: Option<(Lack, &str)>) {
        if let Some(entry) = self.entry {
            entry.rail(rail).missing(why);
        }
    }

    /// Records a rail that the connection expects and never uses.
    pub(crate) fn rail_left_out(&self, role: RailRole, name: &str, why: &str) {
        if let Some(taken) = &self.taken {
            taken.leave_out(role.index(), name, why);
        }
    }

    /// Returns what was counted so far; `None` if nothing is counted.
    pub(crate) fn totals(&self) -> Option<Totals> {
        self.entry.map(Totals::of)
    }

    /// Returns what a peer of this name keeps the connection waiting for, in words.
    pub(crate) fn describe(&self, what: Awaited, peer: &str) -> String {
        what.of_peer(self.kind.map(|(direction, _)| direction), peer)
    }

    /// Returns whether the connection waits for data while requests are outstanding. A receiver of
    /// windows has receives posted at all times.
    pub(crate) fn awaits_outstanding(&self) -> bool {
        self.kind != Some((Direction::Receive, Traffic::Windows))
    }

    /// Records what the connection waits for, and since when.
    pub(crate) fn waits_for(&self, wait: Option<(Awaited, SystemTime)>) {
        if let Some(entry) = self.entry {
            entry.waits(wait);
        }
    }

    /// Records why a call failed, and with it the connection.
    #[cold]
    pub(crate) fn failure(&self, why: &Error) {
        if let Some(entry) = self.entry {
            entry.failure(&why.to_string());
        }
    }
}
