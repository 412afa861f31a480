//! The health of a port and of its routes: the states, the causes, and when rails may return.
//!
//! `docs/internals/rail-life.md` has the states and the times.

use std::collections::HashMap;
use std::time::{Duration, Instant, SystemTime};

pub(crate) use nccl_net_mpib_agent_iface::stats::PortState;

use crate::failover::failed_routes::{EXPIRY, FailedRoutes, RouteKey};
use crate::failover::hold_down::HoldDown;
use crate::sync::{AtomicU8, Mutex, Ordering};

/// How long a port is suspect although queries find it usable: packets may have been lost.
const SUSPECT: Duration = Duration::from_secs(1);

/// How often a port that was given up is queried: events get lost.
const QUERY: Duration = Duration::from_secs(1);

/// How long a rail rests after it was given up and after each attempt: the fault may not be over.
const REST: Duration = Duration::from_millis(500);

/// How long after the last sign of a fault a port is in doubt: a lost packet proves nothing about the
/// port or its routes.
const DOUBT: Duration = Duration::from_secs(10);

/// Most routes of a port that are remembered. Beyond it a failure has no hold-down.
const MAX_ROUTES: usize = 4096;

/// Why a port or a route is not healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Cause {
    /// The reason for people.
    pub(crate) why: String,
    /// Since when.
    pub(crate) since: Moment,
}

/// A time, for logic and for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moment {
    /// For logic.
    pub(crate) instant: Instant,
    /// For people.
    pub(crate) time: SystemTime,
}

/// What happens to a port.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Happening<'a> {
    /// An event: the link went down.
    LinkDown(&'a str),
    /// An event: the link is up.
    LinkUp,
    /// A rail on the port makes no progress.
    Stalled(&'a str),
    /// The port cannot be used, by a query that followed a failure.
    Failed(&'a str),
    /// The adapter failed or was removed. The port stays down until the adapter is opened again.
    Removed(&'a str),
    /// The adapter was opened again.
    Reopened,
    /// A query: whether the port can be used, or why not.
    Queried(Result<(), &'a str>),
    /// A rail on the port works again, or no connection waits for one.
    Restored,
}

/// What a happening has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    /// Nothing.
    None,
    /// The port is suspect from now on.
    Suspected,
    /// The port is down from now on: the rails on it must be given up.
    Died,
    /// The port can be reached again: rails may be probed.
    Reachable,
    /// The port is healthy again.
    Back {
        /// Time since the first sign of the failure.
        outage: Duration,
    },
}

/// The health of one port and of its routes.
#[derive(Debug, Default)]
pub(crate) struct PortHealth {
    state: AtomicU8,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    port: Port,
    /// Routes that failed while the port was active, by the peer's GID.
    routes: HashMap<[u8; 16], RouteHealth>,
    /// What a connect has found: routes that do not work, and why the port does not reach itself.
    failed_at_connect: FailedRoutes,
    no_loopback: Option<(Instant, String)>,
    /// The last change of the network.
    changed: Option<Instant>,
    episodes: Option<Episodes>,
}

#[derive(Debug, Default)]
struct Port {
    state: PortState,
    /// Present unless healthy.
    cause: Option<Cause>,
    hold: HoldDown,
    removed: bool,
    /// When it was last queried.
    queried: Option<Instant>,
    /// The last sign of a fault.
    faulty: Option<Instant>,
}

#[derive(Debug, Default)]
struct RouteHealth {
    /// Present while the route is out of use, for one connection at least.
    cause: Option<Cause>,
    /// Whether the cause is the word of a peer alone.
    reported: bool,
    hold: HoldDown,
    /// The peer has refused attempts. Its RETURN ends the wait.
    refused: HoldDown,
}

/// The episodes of connections within one reporting interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Episodes {
    /// When the first one was reported.
    pub(crate) since: Instant,
    /// Episodes, one for each connection and fault.
    pub(crate) count: u32,
    /// Bytes that were sent again.
    pub(crate) replayed: u64,
    /// The longest stall.
    pub(crate) longest: Duration,
    /// The sum of all stalls.
    pub(crate) total: Duration,
}

impl Moment {
    /// Returns the present.
    pub(crate) fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    /// Returns the time of day in UTC, for messages.
    pub(crate) fn clock(&self) -> String {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (secs, millis) = (since.as_secs() % 86_400, since.subsec_millis());
        format!("{:02}:{:02}:{:02}.{millis:03} UTC", secs / 3600, secs / 60 % 60, secs % 60)
    }
}

impl PortHealth {
    /// Returns the port's state: one relaxed load.
    #[inline]
    pub(crate) fn state(&self) -> PortState {
        PortState::of(self.state.load(Ordering::Relaxed)).unwrap_or_default()
    }

    /// Returns whether the port's adapter failed or was removed, and has not been opened again.
    pub(crate) fn is_removed(&self) -> bool {
        self.state() == PortState::Down && self.record.lock().port.removed
    }

    /// Returns since when the port is down: one relaxed load while it is not.
    pub(crate) fn down_since(&self) -> Option<Instant> {
        if self.state() != PortState::Down {
            return None;
        }
        let port = &self.record.lock().port;
        port.cause.as_ref().filter(|_| port.state == PortState::Down).map(|cause| cause.since.instant)
    }

    /// Returns why the port is not healthy, and since when.
    pub(crate) fn cause(&self) -> Option<Cause> {
        self.record.lock().port.cause.clone()
    }

    /// Returns the state with its cause.
    pub(crate) fn state_and_cause(&self) -> (PortState, Option<Cause>) {
        let port = &self.record.lock().port;
        (port.state, port.cause.clone())
    }

    /// Applies what has happened to the port.
    pub(crate) fn happened(&self, now: Moment, what: Happening<'_>) -> Change {
        let mut record = self.record.lock();
        let change = record.port.step(now, what);
        self.state.store(record.port.state.code(), Ordering::Relaxed);
        change
    }

    /// Notes that the route to a peer's GID has failed although the port is active. Returns `false`
    /// if the route is out of use already.
    pub(crate) fn route_failed(&self, now: Moment, peer: [u8; 16], why: &str) -> bool {
        let mut record = self.record.lock();
        record.port.faulty = Some(now.instant);
        let Some(route) = record.route(now.instant, peer) else { return true };
        if route.cause.is_some() && !route.reported {
            return false;
        }
        route.cause = Some(Cause { why: why.to_owned(), since: now });
        route.reported = false;
        route.hold.failed(now.instant);
        true
    }

    /// Notes that a peer reports that a route has failed. The hold-down of the route, which all
    /// connections share, does not begin. Returns `false` if the route is out of use already.
    pub(crate) fn route_reported(&self, now: Moment, peer: [u8; 16], why: &str) -> bool {
        let mut record = self.record.lock();
        let Some(route) = record.route(now.instant, peer) else { return true };
        if route.cause.is_some() {
            return false;
        }
        route.cause = Some(Cause { why: why.to_owned(), since: now });
        route.reported = true;
        true
    }

    /// Returns whether a rail over the route to a peer's GID may be made again. The port must be
    /// reachable, and the rail must have rested `since` it was given up or tried. A hold-down protects
    /// a connection's other rails from one that flaps, so it does not hold the `last` one.
    pub(crate) fn may_return(
        &self,
        now: Instant,
        peer: &[u8; 16],
        since: Option<Instant>,
        last: bool,
    ) -> bool {
        let Record { port, routes, .. } = &*self.record.lock();
        let is_held = |route: &RouteHealth| !route.hold.may_return(now) || !route.refused.may_return(now);
        matches!(port.state, PortState::Healthy | PortState::Probing)
            && since.is_none_or(|since| now.saturating_duration_since(since) >= REST)
            && (last || port.hold.may_return(now) && !routes.get(peer).is_some_and(is_held))
    }

    /// Notes that this end could not make a rail over the route again. The next attempt waits twice
    /// as long, unless the port is down: then the route is not the cause.
    pub(crate) fn attempt_failed(&self, now: Instant, peer: &[u8; 16]) {
        let mut record = self.record.lock();
        match record.port.state {
            PortState::Probing => record.port.hold.attempt_failed(now),
            PortState::Healthy => {
                record.route(now, *peer).into_iter().for_each(|route| route.hold.attempt_failed(now));
            }
            PortState::Suspect | PortState::Down => {}
        }
    }

    /// Notes that the peer has refused an attempt over the route. The next one waits twice as long,
    /// or until the [peer returns](Self::peer_returned).
    pub(crate) fn attempt_refused(&self, now: Instant, peer: &[u8; 16]) {
        let mut record = self.record.lock();
        record.route(now, *peer).into_iter().for_each(|route| route.refused.attempt_failed(now));
    }

    /// Notes that the peer can use its port again.
    pub(crate) fn peer_returned(&self, peer: &[u8; 16]) {
        let mut record = self.record.lock();
        record.routes.get_mut(peer).into_iter().for_each(|route| route.refused = HoldDown::default());
    }

    /// Notes that a rail over the route works again. Returns the time since the route's failure, if
    /// the route was out of use.
    pub(crate) fn route_returned(&self, now: Instant, peer: &[u8; 16]) -> Option<Duration> {
        let mut record = self.record.lock();
        let route = record.routes.get_mut(peer)?;
        route.hold.returned(now);
        route.refused = HoldDown::default();
        let cause = route.cause.take()?;
        Some(now.saturating_duration_since(cause.since.instant))
    }

    /// Returns whether a packet that got lost shows something of the port or a route: the port has
    /// shown no fault lately.
    pub(crate) fn is_steady(&self, now: Instant) -> bool {
        self.record.lock().is_steady(now)
    }

    /// Remembers that a route did not work for a connect whose attempt `began` then. A change of the
    /// network since may have caused the failure, or have mended the route.
    pub(crate) fn connect_failed(&self, now: Instant, began: Instant, key: RouteKey, why: String) {
        let mut record = self.record.lock();
        if record.changed.is_none_or(|changed| changed < began) {
            record.failed_at_connect.remember(now, key, why);
        }
    }

    /// Returns why a route did not work for an earlier connect, if it is not to be tried again yet.
    pub(crate) fn why_not(&self, now: Instant, key: &RouteKey) -> Option<String> {
        self.record.lock().failed_at_connect.why(now, key)
    }

    /// Forgets that a route did not work for an earlier connect. Returns whether it was known.
    pub(crate) fn connect_works(&self, key: &RouteKey) -> bool {
        self.record.lock().failed_at_connect.forget(key)
    }

    /// Remembers that packets of the port to itself did not arrive, unless a fault of the port may be
    /// the cause.
    pub(crate) fn loopback_failed(&self, now: Instant, why: &str) {
        let mut record = self.record.lock();
        if record.is_steady(now) {
            record.no_loopback = Some((now, why.to_owned()));
        }
    }

    /// Returns why packets of the port to itself did not arrive lately.
    pub(crate) fn no_loopback(&self, now: Instant) -> Option<String> {
        let record = self.record.lock();
        let (since, why) = record.no_loopback.as_ref()?;
        (now.saturating_duration_since(*since) < EXPIRY).then(|| why.clone())
    }

    /// Forgets what connects have found: a port or its addresses, here or on the way, have changed.
    pub(crate) fn network_changed(&self, now: Instant) {
        let mut record = self.record.lock();
        record.failed_at_connect.clear();
        (record.no_loopback, record.changed) = (None, Some(now));
    }

    /// Adds an episode to those of the current reporting interval.
    pub(crate) fn add_episode(&self, now: Instant, replayed: u64, stall: Duration) {
        let mut record = self.record.lock();
        let none = Episodes { since: now, count: 0, replayed: 0, longest: stall, total: Duration::ZERO };
        let sum = record.episodes.get_or_insert(none);
        sum.count += 1;
        sum.replayed = sum.replayed.saturating_add(replayed);
        sum.longest = sum.longest.max(stall);
        sum.total += stall;
    }

    /// Takes the episodes to report, once the first of them is as old as `age`.
    pub(crate) fn take_episodes(&self, now: Instant, age: Duration) -> Option<Episodes> {
        let old = |sum: &mut Episodes| now.saturating_duration_since(sum.since) >= age;
        self.record.lock().episodes.take_if(old)
    }

    /// Returns whether the port is to be queried now: always while it is suspect, and each second
    /// while it is out of use.
    pub(crate) fn is_query_due(&self, now: Instant) -> bool {
        if self.state() == PortState::Healthy {
            return false;
        }
        let port = &mut self.record.lock().port;
        let due = match port.state {
            PortState::Healthy => false,
            PortState::Suspect => true,
            PortState::Down | PortState::Probing => {
                port.queried.is_none_or(|queried| now.saturating_duration_since(queried) >= QUERY)
            }
        };
        if due {
            port.queried = Some(now);
        }
        due
    }

    /// Returns after what time [`take_episodes`](Self::take_episodes) returns episodes, if there are any.
    pub(crate) fn episodes_due(&self, now: Instant, age: Duration) -> Option<Duration> {
        let since = self.record.lock().episodes.as_ref()?.since;
        Some((since + age).saturating_duration_since(now))
    }
}

impl Record {
    fn is_steady(&self, now: Instant) -> bool {
        let is_over = |at| now.saturating_duration_since(at) >= DOUBT;
        self.port.state == PortState::Healthy && self.port.faulty.is_none_or(is_over)
    }

    /// Returns the record of a route; `None` if there are too many.
    fn route(&mut self, now: Instant, peer: [u8; 16]) -> Option<&mut RouteHealth> {
        let routes = &mut self.routes;
        if routes.len() >= MAX_ROUTES {
            routes.retain(|_, route| !route.hold.is_forgotten(now) || !route.refused.is_forgotten(now));
        }
        let has_room = routes.len() < MAX_ROUTES || routes.contains_key(&peer);
        has_room.then(|| routes.entry(peer).or_default())
    }
}

impl Port {
    fn step(&mut self, now: Moment, what: Happening<'_>) -> Change {
        use Happening::*;
        use PortState::*;
        match what {
            Removed(_) => self.removed = true,
            Reopened => (self.removed, self.queried) = (false, None),
            _ => {}
        }
        match (self.state, what) {
            (Healthy, LinkDown(why)) => self.suspect(now, why),
            (Suspect, LinkUp) => self.recover(now),
            (Suspect, Queried(Ok(()))) if self.age(now) >= SUSPECT => self.recover(now),
            (Healthy | Suspect | Probing, Failed(why) | Removed(why))
            | (Suspect, Stalled(why) | Queried(Err(why)))
            | (Probing, LinkDown(why) | Queried(Err(why))) => self.die(now, why),
            (Down, LinkUp | Queried(Ok(()))) if !self.removed => {
                self.state = Probing;
                self.hold.restart(now.instant);
                Change::Reachable
            }
            (Probing, Restored) => self.recover(now),
            _ => Change::None,
        }
    }

    /// Returns the time since the first sign of the failure.
    fn age(&self, now: Moment) -> Duration {
        let since = self.cause.as_ref().map_or(now.instant, |cause| cause.since.instant);
        now.instant.saturating_duration_since(since)
    }

    fn suspect(&mut self, now: Moment, why: &str) -> Change {
        self.cause = Some(Cause { why: why.to_owned(), since: now });
        (self.state, self.faulty) = (PortState::Suspect, Some(now.instant));
        Change::Suspected
    }

    /// Gives the port up. The first cause stays.
    fn die(&mut self, now: Moment, why: &str) -> Change {
        self.cause.get_or_insert_with(|| Cause { why: why.to_owned(), since: now });
        (self.state, self.faulty) = (PortState::Down, Some(now.instant));
        self.hold.failed(now.instant);
        Change::Died
    }

    fn recover(&mut self, now: Moment) -> Change {
        let outage = self.age(now);
        (self.state, self.cause, self.faulty) = (PortState::Healthy, None, Some(now.instant));
        self.hold.returned(now.instant);
        Change::Back { outage }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
