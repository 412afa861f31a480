//! The failed rails of a comm: which failures cost it a rail, and which the connection; how it gives
//! rails up, and what was done to bring them back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{Message, RailSet};

use crate::device::Nic;
use crate::error::{Error, Fast, Result, wc_status};
use crate::failover::PortState;
use crate::stats::{Lack, Reason};
use crate::transport::comm::Comm;
use crate::transport::looks::Looks;
use crate::transport::rail::Rail;
use crate::transport::send_queue::NotPosted;
use crate::verbs::Region;
use crate::worker::{End, Task, Urgency};

/// What counts of an outage at most between two looks at it. Housekeeping looks more often, unless a
/// query of an adapter blocks it.
const LOOK: Duration = Duration::from_secs(1);

/// What a failed rail costs a comm.
#[derive(Debug, Clone, Copy)]
pub(crate) enum FailoverMode {
    /// The connection: `MPIB_FAILOVER` is off at an end. A rail with work requests in flight may be down
    /// for the longest time that adapters retry.
    Off { retries: Duration },
    /// The rail alone. The comm may be without any for `MPIB_FAILOVER_WAIT`.
    On { wait: Duration },
}

/// The rails of a comm that have failed.
#[derive(Debug)]
pub(crate) struct RailFailures {
    mode: FailoverMode,
    /// Rails that have failed and are not given up yet.
    new: RailSet,
    /// Rails that are given up.
    dead: RailSet,
    /// The first failure, for the case that no rail is left.
    first: Option<Error>,
    /// Since when it has none.
    none_since: Option<Instant>,
    /// The time without a rail that works; without failover, with a rail that does not.
    outage: Option<Outage>,
    /// By rail, as far as there were any.
    attempts: Vec<Attempts>,
    /// The episode in progress.
    episode: Option<Episode>,
}

/// A time without a rail that works, or without failover, with a rail that does not.
#[derive(Debug)]
struct Outage {
    since: Instant,
    looks: Looks,
    /// What counts of it.
    lasted: Duration,
}

/// The attempts to bring a rail back since it was given up.
#[derive(Debug, Default, Clone)]
struct Attempts {
    begun: u32,
    /// When the last one began.
    last: Option<Instant>,
    /// Why it has failed; `None` while it goes on.
    failed: Option<String>,
}

impl FailoverMode {
    pub(crate) fn is_on(self) -> bool {
        matches!(self, Self::On { .. })
    }
}

impl RailFailures {
    /// The comm begins without the `dead` rails.
    pub(crate) fn new(mode: FailoverMode, dead: RailSet) -> Self {
        Self {
            mode,
            new: RailSet::EMPTY,
            dead,
            first: None,
            none_since: None,
            outage: None,
            attempts: Vec::new(),
            episode: None,
        }
    }

    /// Returns whether the comm goes on without a failed rail.
    pub(crate) fn is_enabled(&self) -> bool {
        self.mode.is_on()
    }

    /// Returns the rails that have failed, given up or not. Their completions mean nothing more.
    pub(crate) fn noticed(&self) -> RailSet {
        self.new | self.dead
    }

    /// Returns how long the outage that began at `since` lasts, as far as that counts.
    fn outage_lasts(&mut self, since: Instant, now: Instant) -> Duration {
        let outage = match &mut self.outage {
            Some(outage) if outage.since == since => outage,
            other => other.insert(Outage { since, looks: Looks::begin(since, LOOK), lasted: Duration::ZERO }),
        };
        outage.lasted += outage.looks.passed(now);
        outage.lasted
    }

    /// Notes that an attempt to bring rails back begins.
    pub(crate) fn attempt_begins(&mut self, which: RailSet) {
        for rail in which.iter() {
            self.attempts.resize(self.attempts.len().max(rail + 1), Attempts::default());
            let begun = self.attempts[rail].begun.saturating_add(1);
            self.attempts[rail] = Attempts { begun, last: Some(Instant::now()), failed: None };
        }
    }

    /// Notes that an attempt to bring rails back has failed.
    pub(crate) fn attempt_failed(&mut self, which: RailSet, why: &Error) {
        for rail in which.iter() {
            if let Some(attempts) = self.attempts.get_mut(rail) {
                attempts.failed = Some(why.to_string());
            }
        }
    }

    /// Describes the attempts to bring a rail back.
    fn attempts(&self, rail: usize) -> String {
        let Some(Attempts { begun, last: Some(last), failed }) = self.attempts.get(rail) else {
            return "no attempt to bring it back has begun".into();
        };
        let (plural, ago) = (if *begun == 1 { "" } else { "s" }, last.elapsed().as_secs_f64());
        let result = failed.as_deref().map_or("has had no answer".into(), |why| format!("has failed: {why}"));
        format!(
            "{begun} attempt{plural} to bring it back, of which the last began {ago:.1} s ago and {result}"
        )
    }

    /// Notes that rails have new queue pairs.
    pub(crate) fn revive(&mut self, which: RailSet) {
        self.dead = self.dead.without(which);
        self.new = self.new.without(which);
        self.none_since = None;
        for rail in which.iter() {
            self.attempts.get_mut(rail).map(std::mem::take);
        }
        if self.dead.is_empty() {
            self.first = None;
        }
    }
}

/// An episode, for the log and the statistics.
#[derive(Debug)]
struct Episode {
    /// The first rail that was given up.
    rail: usize,
    begun: Instant,
    /// Bytes that were sent again. Senders count them.
    bytes: u64,
}

/// Returns whether another rail may carry what failed so. The other failures are mistakes: they
/// would happen on any rail.
fn is_fault_of_a_rail(error: &Error) -> bool {
    match error {
        // A port that is down fails requests with almost any status.
        Error::Completion(c) => !wc_status(c.status).is_mistake || c.port.is_some(),
        Error::Verbs { .. } => true,
        _ => false,
    }
}

/// Returns the names of the ports of some rails, for messages.
pub(super) fn names(all: &[Rail], which: RailSet) -> String {
    let mut names: Vec<_> = which.iter().map(|rail| all[rail].nic.name()).collect();
    // Stripes of a rail follow each other.
    names.dedup();
    names.join(", ")
}

impl Comm {
    /// Returns the rails of the connection, alive or not.
    pub(crate) fn all_rails(&self) -> RailSet {
        RailSet::from_bits(self.layout.all_rails())
    }

    /// Returns the rails that are not given up.
    pub(crate) fn living(&self) -> RailSet {
        self.all_rails().without(self.failures.dead)
    }

    /// Returns the living rails that have not failed either.
    pub(crate) fn working(&self) -> RailSet {
        self.all_rails().without(self.failures.noticed())
    }

    /// Returns whether a rail is alive.
    pub(crate) fn has_rail(&self) -> bool {
        !self.living().is_empty()
    }

    /// Returns the rails on drained ports.
    pub(crate) fn drained(&self) -> RailSet {
        self.rails_that(|rail| rail.nic.meter().scale() == 0)
    }

    /// Returns the rails that `fits` accepts.
    fn rails_that(&self, fits: impl Fn(&Rail) -> bool) -> RailSet {
        self.rails.iter().enumerate().filter(|(_, rail)| fits(rail)).map(|(i, _)| i).collect()
    }

    /// Returns the living rails that data is to use: those that are not `drained`, or all if there is
    /// no other.
    pub(crate) fn undrained(&self, drained: RailSet) -> RailSet {
        let living = self.living();
        let Some(first) = living.lowest().filter(|_| drained.includes(living)) else {
            return living.without(drained);
        };
        if self.rails[first].nic.meter().is_ignored_first() {
            let (peer, names) = (self.peer.name(), names(&self.rails, living));
            tracing::warn!(
                target: "net",
                "{names} carries data although it is drained: the connection with {peer} has no other rail"
            );
        }
        living
    }

    /// Handles the failure of a rail, with all its stripes. The next call gives it up.
    ///
    /// # Errors
    /// `error`, if it is not a fault of the rail, if the comm does not go on without one, or if no
    /// other rail is left and the comm does not wait for one.
    #[cold]
    pub(crate) fn rail_failed(&mut self, rail: usize, error: impl Into<Box<Error>>) -> Fast<()> {
        self.rails_failed(RailSet::of(rail), error.into())
    }

    /// Handles work requests that were not posted on a rail. If they cost the comm no more than the
    /// rail, they count as posted: they are lost with it.
    #[cold]
    pub(crate) fn not_posted(&mut self, rail: usize, why: NotPosted) -> Fast<()> {
        self.rail_failed(rail, why.of_rail())
    }

    /// Handles a failed call of the adapter's library for a queue of these rails. If they cost the
    /// comm no more than the rails, the request of the call counts as posted: it is lost with them.
    #[cold]
    pub(crate) fn rails_failed(&mut self, which: RailSet, mut error: Box<Error>) -> Fast<()> {
        let failed = self.with_stripes(which);
        if self.failures.noticed().includes(failed) {
            return Ok(());
        }
        let is_last = self.working().without(failed).is_empty();
        let goes_on = match self.failures.mode {
            FailoverMode::Off { .. } => false,
            FailoverMode::On { wait } => !(is_last && wait.is_zero()),
        };
        if let Error::Completion(c) = &mut *error
            && (!goes_on || wc_status(c.status).is_mistake)
        {
            // Here a query does no harm: the connection ends, unless its port is the cause.
            c.port = which.lowest().and_then(|rail| self.rails[rail].nic.now().err());
        }
        if !goes_on || !is_fault_of_a_rail(&error) {
            return Err(error);
        }
        self.failures.new |= failed;
        self.report_failure(failed, &error.to_string());
        self.failures.first.get_or_insert(*error);
        self.mark();
        Ok(())
    }

    /// Returns the rails that join the same two ports as this one.
    pub(crate) fn stripes_of(&self, rail: usize) -> RailSet {
        self.rails_that(|other| other.joins_the_ports_of(&self.rails[rail]))
    }

    /// Returns these rails and all that join the same two ports as one of them.
    fn with_stripes(&self, which: RailSet) -> RailSet {
        which.iter().fold(which, |all, rail| all | self.stripes_of(rail))
    }

    /// Yields the first stripe of each of these rails.
    fn first_stripes(&self, which: RailSet) -> impl Iterator<Item = usize> + '_ {
        which.iter().filter(move |rail| (self.stripes_of(*rail) & which).lowest() == Some(*rail))
    }

    /// Reports the failure of rails to the process: its other connections over the same port or
    /// route give theirs up, too, and one line is logged. While the control connection is broken, a
    /// failure shows nothing of the route: the peer's process may have ended.
    fn report_failure(&self, failed: RailSet, why: &str) {
        if self.peer.is_broken() {
            return self.watch.rails_failed_alone(failed, Reason::Completion, why);
        }
        self.first_stripes(failed).for_each(|rail| self.watch.rail_failed(rail, Reason::Completion, why));
    }

    /// Returns the rails that are to be given up since the last call.
    pub(crate) fn take_failed(&mut self) -> RailSet {
        std::mem::take(&mut self.failures.new) | self.watch.take_condemned()
    }

    /// Reports the rails that the peer has given up, and this end has not.
    pub(crate) fn given_up_by_the_peer(&mut self, which: RailSet) {
        self.failed_at_the_peer(which, "the peer has given it up");
    }

    /// Reports rails that the peer has made useless, and that have not failed here.
    pub(crate) fn failed_at_the_peer(&mut self, which: RailSet, why: &str) {
        let new = self.with_stripes(which.without(self.failures.noticed()));
        if !new.is_empty() {
            self.watch.rails_failed_alone(new, Reason::Peer, why);
        }
    }

    /// Begins an episode with the failure of these rails, unless one goes on.
    pub(crate) fn begin_episode(&mut self, failed: RailSet) {
        let rail = failed.lowest().unwrap_or(0);
        self.failures.episode.get_or_insert_with(|| Episode { rail, begun: Instant::now(), bytes: 0 });
    }

    /// Counts bytes that were sent again.
    pub(crate) fn sent_again(&mut self, bytes: usize) {
        self.failures.episode.iter_mut().for_each(|episode| episode.bytes += bytes as u64);
    }

    /// Reports the episode: everything that was lost is sent again, and a rail lives.
    pub(crate) fn end_episode(&mut self) {
        if let Some(Episode { rail, begun, bytes }) = self.failures.episode.take() {
            self.watch.report_episode(rail, bytes, begun.elapsed());
        }
    }

    /// Posts nothing more on these rails, and drops the attempt.
    pub(crate) fn stop_rails(&mut self, which: RailSet) {
        let since = self.without_a_rail_since();
        self.failures.dead |= which;
        self.drop_attempt();
        if !self.has_rail() && self.failures.none_since.is_none() {
            self.failures.none_since = since.or_else(|| Some(Instant::now()));
            if let FailoverMode::On { wait } = self.failures.mode {
                self.watch.has_no_rail(wait);
            }
        }
    }

    /// Returns whether data waits for a rail: none works, or what one has lost is not sent again yet.
    pub(crate) fn lacks_rail(&self) -> bool {
        self.failures.episode.is_some() || self.without_a_rail_since().is_some()
    }

    /// Returns since when no rail works: all are given up, or the ports of the others are down.
    fn without_a_rail_since(&self) -> Option<Instant> {
        let down_since = |rail: usize| self.rails[rail].nic.health().down_since();
        match self.living() {
            RailSet::EMPTY => self.failures.none_since,
            living => living.iter().map(down_since).reduce(|a, b| Some(a?.max(b?))).flatten(),
        }
    }

    /// Destroys everything that the comm has on these rails, on the threads of their adapters. Once
    /// it [is fenced](Self::is_fenced), no packet of theirs reads or writes memory any more. What data
    /// waits for is destroyed first.
    ///
    /// # Errors
    /// No rail is left, and the comm does not wait for one.
    pub(crate) fn give_up(&mut self, which: RailSet, urgency: Urgency) -> Fast<()> {
        self.pings = self.pings.without(which);
        for rail in which.iter() {
            let in_flight = self.destroy_rail(rail, urgency, None);
            self.stats.completed(rail, in_flight);
            let (reason, why) = self.watch.fault(rail).unwrap_or((Reason::Completion, String::new()));
            self.stats.rail_missing(rail, Some((Lack::GivenUp(reason), &why)));
            self.watch.set_rail(rail, None);
        }
        // NCCL's profiler gets no event for parts that change their rail.
        self.profiler.iter_mut().for_each(|profiler| profiler.stop_all());
        self.queues_changed();
        self.check_rails()
    }

    /// Returns whether everything that was given up is destroyed, or belongs to an adapter that hangs.
    ///
    /// # Errors
    /// A queue pair could not be destroyed: packets may still arrive for it.
    pub(crate) fn is_fenced(&mut self) -> Fast<bool> {
        let mut left = Vec::new();
        for fence in std::mem::take(&mut self.fences) {
            match fence.end() {
                End::Done(destroyed) => destroyed?,
                End::Hangs => self.report_hanging(),
                End::Outstanding(fence) => left.push(fence),
            }
        }
        self.fences = left;
        Ok(self.fences.is_empty())
    }

    /// Destroys everything that the comm has on its rails, on all adapters at once, and waits until
    /// that is done: NCCL may use the memory for something else then. What an adapter that hangs has
    /// is left to it.
    pub(crate) fn destroy(&mut self) {
        let alive: RailSet = self.all_rails().iter().filter(|rail| self.rails[*rail].is_alive()).collect();
        let dead = self.all_rails().without(alive);
        let region = self.region.take();
        let of_dead = region.select(dead.iter());
        let each: Vec<_> = alive.iter().map(|rail| (rail, region.select(std::iter::once(rail)))).collect();
        // The adapters' threads drop the last of each registration.
        drop(region);
        for (rail, region) in each {
            self.destroy_rail(rail, Urgency::High, Some(region));
        }
        for fence in std::mem::take(&mut self.fences) {
            match fence.wait() {
                Some(Ok(())) => {}
                Some(Err(e)) => {
                    tracing::warn!(target: "net", "closing the connection with {}: {e}", self.peer.name());
                }
                None => self.report_hanging(),
            }
        }
        // Not waited for: no data uses an attempt, whose step may wait for the network.
        self.drop_attempt();
        if let Some(rail) = dead.iter().next() {
            self.rails[rail].nic.worker().release(of_dead);
        }
    }

    /// Begins to destroy the queues that the comm has on a rail, and then to deregister `memory`. Returns
    /// the work requests that were in flight.
    fn destroy_rail(&mut self, rail: usize, urgency: Urgency, memory: Option<Region>) -> u32 {
        let (queues, in_flight) = self.rails[rail].take_queues();
        let nic = Arc::clone(&self.rails[rail].nic);
        self.destroy_on(&nic, urgency, || {
            let destroyed = queues.destroy();
            drop(memory);
            destroyed
        });
        in_flight
    }

    /// Begins to destroy something on an adapter's threads.
    pub(crate) fn destroy_on(
        &mut self,
        nic: &Nic,
        urgency: Urgency,
        destroy: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let watch = Arc::clone(&self.watch);
        self.fences.push(Task::begin(nic.worker(), urgency, destroy, move || watch.notify()));
    }

    fn report_hanging(&self) {
        tracing::warn!(
            target: "net",
            "an adapter of the connection with {} does not destroy queue pairs: it is left alone",
            self.peer.name()
        );
    }

    /// Returns an error if the comm has been without a rail for too long.
    pub(crate) fn check_rails(&mut self) -> Fast<()> {
        let (FailoverMode::On { wait }, Some(since)) = (self.failures.mode, self.without_a_rail_since())
        else {
            return Ok(());
        };
        let lasted = self.failures.outage_lasts(since, Instant::now());
        if lasted < wait { Ok(()) } else { Err(self.no_rail(lasted, wait)) }
    }

    /// Returns an error if the comm does not go on without a failed rail, and the adapter of one that is
    /// down reports no error for its work requests.
    pub(crate) fn check_adapters(&mut self) -> Fast<()> {
        let FailoverMode::Off { retries } = self.failures.mode else { return Ok(()) };
        let down_since = |rail: usize| {
            let of_rail = &self.rails[rail];
            of_rail.nic.health().down_since().filter(|_| of_rail.in_flight() > 0).map(|since| (since, rail))
        };
        let Some((since, rail)) = self.living().iter().filter_map(down_since).min() else { return Ok(()) };
        let lasted = self.failures.outage_lasts(since, Instant::now());
        if lasted < retries { Ok(()) } else { Err(self.reports_nothing(rail, retries)) }
    }

    /// Returns the error of a rail whose port is down, and whose adapter keeps work requests. The
    /// kernel's rxe does while its network interface holds packets back.
    #[cold]
    fn reports_nothing(&self, rail: usize, retries: Duration) -> Box<Error> {
        let nic = &self.rails[rail].nic;
        let why = nic.health().cause().map_or(String::new(), |cause| format!(": {}", cause.why));
        let what = format!(
            "rail {rail} ({}) of the connection with {} is down{why}; its adapter has reported no error in {:.1} s, the \
             longest time that its retries take (NCCL_IB_TIMEOUT, NCCL_IB_RETRY_CNT), and failover is off",
            nic.name(),
            self.peer.name(),
            retries.as_secs_f64()
        );
        Error::Event(what).into()
    }

    /// Returns the error of a comm without a rail, with the present state of each port.
    #[cold]
    fn no_rail(&self, outage: Duration, wait: Duration) -> Box<Error> {
        let (peer, wait) = (self.peer.name(), wait.as_secs());
        let mut what = format!(
            "no rail of the connection with {peer} has worked for {:.1} s (MPIB_FAILOVER_WAIT={wait})",
            outage.as_secs_f64()
        );
        for rail in self.first_stripes(self.all_rails()) {
            what += &format!("; {}", self.describe_dead(rail));
        }
        Error::Peer(self.with_first_failure(what)).into()
    }

    /// Describes a dead rail: its port now, and the attempts to bring it back.
    fn describe_dead(&self, rail: usize) -> String {
        let nic = &self.rails[rail].nic;
        let (state, cause) = nic.health().state_and_cause();
        let why = cause.map_or(String::new(), |cause| format!(": {}", cause.why));
        let port = match state {
            PortState::Healthy => "is active".into(),
            PortState::Probing => "is active again".into(),
            PortState::Suspect => format!("may be down{why}"),
            PortState::Down => format!("cannot be used{why}"),
        };
        let next = match self.watch.may_return_in(rail) {
            Some(Duration::ZERO) => "the next one is due".into(),
            Some(next) => format!("the next one was due in {:.1} s", next.as_secs_f64()),
            None => "the next one waits for the port".into(),
        };
        format!("{}: the port {port}; {}; {next}", nic.name(), self.failures.attempts(rail))
    }

    /// Adds the first failure of a rail, or the cause of a rail that was given up.
    fn with_first_failure(&self, what: String) -> String {
        let cause = || (0..self.rails.len()).find_map(|rail| self.watch.cause(rail));
        match self.failures.first.as_ref().map(Error::to_string).or_else(cause) {
            Some(first) => format!("{what}; the first failure: {first}"),
            None => what,
        }
    }

    /// Adds the failures of rails to the error of a peer that has ended: they may be the reason, or the
    /// consequence. A sender that closes, and does not know yet that a rail has failed here, has
    /// completed data that this end may never have got.
    pub(crate) fn after_failures(&self, e: Error) -> Error {
        let unsettled = self.living().iter().find(|rail| self.watch.cause(*rail).is_some());
        let what = match unsettled.filter(|_| self.peer.has_closed()) {
            Some(rail) => format!(
                "{e}; the ends had not agreed yet on what {} has lost, and data of it may be missing",
                self.rails[rail].nic.name()
            ),
            None if self.failures.noticed().is_empty() => return e,
            None => e.to_string(),
        };
        Error::Peer(self.with_first_failure(what))
    }

    /// Returns an error unless the comm goes on without a failed rail, as the peer expects.
    #[cold]
    pub(crate) fn needs_failover(&self, message: &str) -> Fast<()> {
        if self.failures.is_enabled() {
            return Ok(());
        }
        let peer = self.peer.name();
        let what =
            format!("{peer} sent {message} since a rail failed there, and MPIB_FAILOVER=0 is set here");
        Err(Error::Peer(what).into())
    }

    /// Returns the error for a message that this end does not expect.
    #[cold]
    pub(crate) fn unexpected(&self, message: &Message) -> Box<Error> {
        Error::Protocol(format!("{} sent {} on an established connection", self.peer.name(), message.name()))
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= failover.md: time in which the process does not run is no part of MPIB_FAILOVER_WAIT
    #[test]
    fn a_pause_counts_as_one_look_and_each_outage_counts_alone() {
        let mut failures = RailFailures::new(FailoverMode::On { wait: LOOK }, RailSet::EMPTY);
        let (start, half) = (Instant::now(), LOOK / 2);
        for (since, now, lasts) in [
            (start, start, Duration::ZERO),
            (start, start + half, half),
            (start, start + 100 * LOOK, half + LOOK),
            (start, start + 100 * LOOK + half, LOOK + LOOK),
            (start + 200 * LOOK, start + 200 * LOOK + half, half),
        ] {
            assert_eq!(failures.outage_lasts(since, now), lasts, "{:?}", now - start);
        }
    }
}
