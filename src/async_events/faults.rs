//! Verdicts on ports and routes: one for all connections of the process, with one line in the log.

use std::net::IpAddr;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use mpib_proto::RailSet;

use crate::async_events::affected::Affected;
use crate::async_events::state::EventState;
use crate::async_events::watch::{CommWatch, Failure, Owner, RailPath};
use crate::device::Nic;
use crate::error::Result;
use crate::failover::{Cause, Change, Happening, Moment, PortHealth, PortState};
use crate::housekeeping::{Job, JobId, TICK};
use crate::route::gid_addr;
use crate::stats::Reason;
use crate::verbs::{About, AsyncEvent, Context};
use crate::worker::{Steps, Urgency};

/// How long the episodes of a port are collected for one line.
const REPORT: Duration = Duration::from_secs(1);
/// Connections that lose their last rails within this time of each other have one warning.
const BURST: Duration = Duration::from_secs(1);
/// How often a port is queried that is suspect.
const SUSPECT: Duration = Duration::from_millis(10);

/// The failure of a rail. An adapter's thread judges it, because a query of the port may block.
#[derive(Debug)]
struct Report {
    state: Weak<EventState>,
    route: RailPath,
    failure: Failure,
    /// What it has cost so far.
    affected: Affected,
    at: Moment,
}

impl Steps for Report {
    fn step(&self) -> bool {
        self.state.upgrade().iter().for_each(|state| state.judge(self));
        true
    }
}

/// How it became known that a port is down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Known {
    /// It is no news.
    Before,
    /// By an event or a query.
    Now,
    /// By rails that have failed. Each connection may have had its own sign, such as the event of a
    /// queue pair, and has given its rail up: they all count.
    ByRails,
}

/// What an event has changed of its ports, for the event's line.
#[derive(Debug, Default)]
pub(super) struct PortChange {
    pub(super) text: String,
    /// Connections have lost a rail.
    pub(super) costs_rails: bool,
}

impl EventState {
    /// Applies an event to the lives of its ports.
    pub(super) fn port_event(&self, context: &Context, event: &AsyncEvent) -> PortChange {
        let now = Moment::now();
        let ours = |nic: &Arc<Nic>| match event.about {
            About::Port(port) => nic.port().number == port,
            _ => event.about == About::Device && event.is_fatal(),
        };
        let of_adapter = |nic: &Arc<Nic>| nic.context().id() == context.id();
        let mut changed = PortChange::default();
        for nic in self.nics().iter().filter(|nic| of_adapter(nic) && ours(nic)) {
            let why = format!("{}: {event}", nic.name());
            let change = match event {
                e if e.is_link_down() => {
                    nic.health().happened(now, Happening::LinkDown(&why));
                    if let Some(affected) = self.query(nic, now) {
                        changed = PortChange { text: format!("; {affected}"), costs_rails: true };
                    }
                    Change::None
                }
                e if e.is_link_up() => nic.health().happened(now, Happening::LinkUp),
                e if e.is_fatal() => nic.health().happened(now, Happening::Removed(&why)),
                e if e.is_gid_change() => {
                    if let Some(loss) = self.lost_addresses(nic) {
                        changed = PortChange { text: loss, costs_rails: true };
                    }
                    Change::None
                }
                _ => Change::None,
            };
            self.show(nic);
            if let Change::Back { outage } = change {
                changed.text += &format!("; it was down for {:.3} s", outage.as_secs_f64());
            }
        }
        changed
    }

    /// Handles the end of a context: its adapter was removed.
    pub(super) fn lost(&self, context: &Context, why: &str) {
        for nic in self.nics().iter().filter(|nic| nic.context().id() == context.id()) {
            self.changed(nic, Moment::now(), Happening::Removed(why));
            self.show(nic);
        }
    }

    /// Condemns the rails whose local address is no longer in the port's GID table. Returns the
    /// addresses and the connections, if there are any.
    fn lost_addresses(&self, nic: &Nic) -> Option<String> {
        let mut lost = Vec::new();
        for route in self.comms().iter().flat_map(|comm| comm.routes()).filter(|route| route.is_on(nic)) {
            if !lost.contains(&route.local) {
                lost.push(route.local);
            }
        }
        lost.retain(|(gid, kind)| nic.has_gid(*gid, *kind) == Some(false));
        let why = format!("its address is no longer in the GID table of {}", nic.name());
        let on_lost = |route: &RailPath| route.is_on(nic) && lost.contains(&route.local);
        let affected = self.give_up(on_lost, Reason::Address, &why, Affected::default());
        let lost: Vec<_> = lost.iter().map(|(gid, _)| gid_addr(*gid).to_string()).collect();
        (!affected.is_empty()).then(|| format!("; it no longer has {}; {affected}", lost.join(", ")))
    }

    /// Condemns all rails whose route `fits` accepts, and adds what that costs.
    fn give_up(
        &self,
        fits: impl Fn(&RailPath) -> bool,
        reason: Reason,
        why: &str,
        mut affected: Affected,
    ) -> Affected {
        for comm in self.comms().iter().filter(|comm| comm.has_failover()) {
            affected.condemn(comm, comm.rails_in_use(&fits), reason, why);
        }
        affected
    }

    /// Queries a port whose link went down, by an event. If the port cannot be used, condemns all
    /// rails on it, and returns what that costs.
    fn query(&self, nic: &Nic, now: Moment) -> Option<Affected> {
        let trouble = nic.now().err()?;
        let down = self.happened(nic, now, Happening::Queried(Err(&trouble)), Known::Now);
        down.1.map(|(_, affected)| affected)
    }

    /// Applies what has happened to a port. If the port is down from now on, condemns the rails on it
    /// before another thread reports one of them, and returns why and what that costs.
    fn happened(
        &self,
        nic: &Nic,
        now: Moment,
        what: Happening<'_>,
        known: Known,
    ) -> (Change, Option<(Cause, Affected)>) {
        let _verdict = self.verdict.lock();
        let change = nic.health().happened(now, what);
        (change, (change == Change::Died).then(|| self.condemn_port(nic, known)).flatten())
    }

    /// Condemns all rails on a port that is down, but not the last ones of a connection unless the
    /// adapter was removed: their queue pairs go on if the port is back within the adapter's own limit,
    /// and nothing else could carry their data. Those look whether they have waited too long. Returns
    /// why the port is down and what that costs in all, if it costs anything. Connections without
    /// another rail count if the fault is new.
    fn condemn_port(&self, nic: &Nic, known: Known) -> Option<(Cause, Affected)> {
        let (cause, mut affected) = (nic.health().cause()?, Affected::default());
        for comm in self.comms().iter().filter(|comm| comm.has_failover()) {
            let on_port = |route: &RailPath| route.is_on(nic);
            let lost = comm.rails_in_use(on_port);
            if lost.is_empty() {
                if known == Known::ByRails && !comm.rails_given_up(on_port).is_empty() {
                    affected.count(comm);
                }
                continue;
            }
            if lost != comm.rails_in_use(|_| true) || nic.health().is_removed() {
                affected.condemn(comm, lost, Reason::Port, &cause.why);
                continue;
            }
            if known == Known::Before {
                comm.mark();
                continue;
            }
            comm.notify();
            affected.wait();
        }
        (!affected.is_empty()).then_some((cause, affected))
    }

    /// Applies the failure of a rail to the life of its port, and if the port works to its route.
    fn judge(&self, Report { route, failure, affected, at, .. }: &Report) {
        let (nic, now, why) = (&route.nic, *at, failure.why.as_str());
        let trouble = nic.now().err().map(|trouble| format!("{trouble}; {why}"));
        let what = trouble.as_deref().map_or(Happening::Stalled(why), Happening::Failed);
        log_port(nic, self.happened(nic, now, what, Known::ByRails).1);
        if nic.health().state() != PortState::Down {
            let (is_new, affected) = match failure.is_alone {
                true => (nic.health().route_reported(now, route.peer, why), affected.clone()),
                false => {
                    let is_new = nic.health().route_failed(now, route.peer, why);
                    let same = |other: &RailPath| other.is_same(route);
                    (is_new, self.give_up(same, failure.reason, why, affected.clone()))
                }
            };
            if is_new && !affected.is_empty() {
                log_route(now, route, why, &affected);
            }
        }
        self.show(nic);
        self.housekeeping.wake(self.job);
    }

    /// Queries a port that is not healthy, and reports the episodes of its connections.
    fn look_at(&self, nic: &Arc<Nic>) {
        let (health, now) = (nic.health(), Moment::now());
        if health.is_query_due(now.instant) {
            let trouble = nic.now().err();
            let what = match trouble.as_deref() {
                Some(why) if nic.has_dead_context() => Happening::Removed(why),
                trouble => Happening::Queried(trouble.map_or(Ok(()), Err)),
            };
            self.changed(nic, now, what);
            if health.is_removed() {
                self.reopen(nic);
            }
        }
        if health.state() == PortState::Down {
            // What was the last rail of a connection may have company again.
            log_port(nic, self.condemn_port(nic, Known::Before));
        }
        let fits = |route: &RailPath| route.is_on(nic);
        if health.state() == PortState::Probing
            && self.comms().iter().all(|comm| comm.rails_given_up(fits).is_empty())
        {
            self.changed(nic, now, Happening::Restored);
        }
        self.show(nic);
        if let Some(sum) = health.take_episodes(now.instant, REPORT) {
            let millis = |time: Duration| time.as_secs_f64() * 1e3;
            let times = if sum.count == 1 { "time" } else { "times" };
            tracing::info!(
                target: "net",
                "after the loss of {}: {} {times} a connection carried on over other rails, {} bytes were sent again, \
                 stalls of {:.1} ms on average and {:.1} ms at most",
                nic.name(), sum.count, sum.replayed, millis(sum.total / sum.count.max(1)), millis(sum.longest)
            );
        }
    }

    /// Shows the state of a port in the statistics.
    fn show(&self, nic: &Nic) {
        let (state, cause) = nic.health().state_and_cause();
        let cause = cause.as_ref().map(|cause| (cause.why.as_str(), cause.since.time));
        self.stats.port_state(nic.name(), state, cause);
    }

    /// Shows in the statistics what the connections of a port have measured, and its scale.
    fn show_meter(&self, nic: &Nic) {
        if let Some(record) = self.stats.port(nic.name()) {
            let meter = nic.meter();
            let goodput = meter.busy().goodput(record, Instant::now());
            record.measured(goodput, meter.weight().into());
            record.set_scale(meter.scale().into());
        }
    }

    /// Applies what has happened to a port without an event, and logs what that changes.
    fn changed(&self, nic: &Nic, now: Moment, what: Happening<'_>) {
        let (change, cost) = self.happened(nic, now, what, Known::Now);
        log_port(nic, cost);
        if let Change::Back { outage } = change {
            self.stats.returned();
            tracing::info!(target: "net", "{} is back after {:.3} s", nic.name(), outage.as_secs_f64());
        }
    }
}

/// Returns the time until a port must be looked at again; `None` if it is healthy, and nothing of it
/// is to be reported.
fn next_look(health: &PortHealth, now: Instant) -> Option<Duration> {
    let report = || health.episodes_due(now, REPORT).map(|due| due.min(TICK));
    match health.state() {
        PortState::Suspect => Some(SUSPECT),
        PortState::Healthy => report(),
        PortState::Down | PortState::Probing => report().or(Some(TICK)),
    }
}

fn log_port(nic: &Nic, cost: Option<(Cause, Affected)>) {
    if let Some((cause, affected)) = cost {
        let (name, clock) = (nic.name(), cause.since.clock());
        tracing::warn!(target: "net", "{name} is down since {clock}: {}; {affected}", cause.why);
    }
}

fn log_route(now: Moment, route: &RailPath, why: &str, affected: &Affected) {
    let (name, peer, clock) = (route.nic.name(), peer_of(route), now.clock());
    tracing::warn!(target: "net", "the route from {name} to {peer} failed at {clock}: {why}; {affected}");
}

fn peer_of(route: &RailPath) -> IpAddr {
    gid_addr(route.peer)
}

impl Owner for EventState {
    fn closed(&self, comm: JobId) {
        self.forget(comm);
    }

    fn wake(&self, comm: JobId) {
        self.housekeeping.wake(comm);
    }

    fn start(&self, comm: JobId) {
        self.housekeeping.start(comm);
    }

    fn rails_failed(&self, comm: &CommWatch, which: RailSet, failure: Failure) {
        let mut routes: Vec<RailPath> = which.iter().filter_map(|rail| comm.route(rail)).collect();
        routes.dedup_by(|a, b| a.is_same(b));
        // With all their stripes.
        let which = routes.iter().fold(which, |all, failed| all | comm.rails_in_use(|r| r.is_same(failed)));
        let (mut affected, at) = (Affected::default(), Moment::now());
        affected.condemn(comm, which, failure.reason, &failure.why);
        for route in routes {
            let nic = Arc::clone(&route.nic);
            let (state, failure, affected) = (self.this.clone(), failure.clone(), affected.clone());
            let report = Arc::new(Report { state, route, failure, affected, at });
            if nic.worker().add(Arc::<Report>::clone(&report), Urgency::High).is_err() {
                // The system has no thread left.
                self.judge(&report);
            }
        }
    }

    fn has_no_rail(&self, comm: &CommWatch, wait: Duration) {
        let now = Instant::now();
        let last = self.last_without_rails.lock().replace(now);
        let text = format!(
            "{} has no rail left; it waits up to {} s for one to come back (MPIB_FAILOVER_WAIT)",
            comm.name(),
            wait.as_secs()
        );
        match last.is_some_and(|last| now.saturating_duration_since(last) < BURST) {
            true => tracing::info!(target: "net", "{text}"),
            false => tracing::warn!(target: "net", "{text}"),
        }
    }

    fn episode(&self, route: &RailPath, reason: Reason, replayed: u64, stall: Duration) {
        route.nic.health().add_episode(Moment::now().instant, replayed, stall);
        self.stats.episode(route.nic.name(), reason, replayed, stall);
    }

    fn rail_works(&self, route: &RailPath) {
        let (health, now) = (route.nic.health(), Moment::now());
        if let Some(outage) = health.route_returned(now.instant, &route.peer) {
            self.stats.returned();
            let (name, peer, outage) = (route.nic.name(), peer_of(route), outage.as_secs_f64());
            tracing::info!(target: "net", "the route from {name} to {peer} works again after {outage:.3} s");
        }
        if health.state() == PortState::Probing {
            self.changed(&route.nic, now, Happening::Restored);
        }
    }
}

/// Watches the ports that are not healthy, and shows what the others carry.
impl Job for EventState {
    fn run(&self) -> Result<()> {
        for nic in self.nics() {
            self.look_at(&nic);
            self.show_meter(&nic);
        }
        self.stats.count_unlisted();
        Ok(())
    }

    fn interval(&self) -> Option<Duration> {
        self.nics().iter().filter_map(|nic| next_look(nic.health(), Instant::now())).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_suspect_port_is_looked_at_often() {
        let (health, now) = (PortHealth::default(), Moment::now());
        let at = |ms| now.instant + Duration::from_millis(ms);
        assert_eq!(next_look(&health, at(0)), None);
        health.add_episode(now.instant, 0, Duration::ZERO);
        assert_eq!(next_look(&health, at(0)), Some(TICK), "the line is due in a second");
        assert_eq!(next_look(&health, at(900)), Some(Duration::from_millis(100)));
        health.happened(now, Happening::LinkDown("a test"));
        assert_eq!(next_look(&health, at(0)), Some(SUSPECT));
        assert!(health.take_episodes(at(1000), REPORT).is_some());
    }
}
