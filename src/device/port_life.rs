//! The life of a port, which all connections of the process on it share: its state, the causes, and
//! when rails may return to it.
//!
//! `docs/internals/rail-life.md` has the states and the times.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant, SystemTime};

use parking_lot::Mutex;

use super::hold_down::HoldDown;

/// How long a port is suspect before its rails are given up.
const SUSPECT: Duration = Duration::from_secs(1);

/// How often a port that was given up is queried: events get lost.
const QUERY: Duration = Duration::from_secs(1);

/// Most routes of a port that are remembered. Beyond it a failure has no hold-down.
const MAX_ROUTES: usize = 4096;

/// The state of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(u8)]
pub enum PortState {
    /// Usable, as far as is known.
    #[default]
    Healthy,
    /// An event reported that the link is down. Rails on the port are still in use.
    Suspect,
    /// Given up: no rail uses the port.
    Down,
    /// Reachable again. Rails return to the port when their probes succeed.
    Probing,
}

/// Why a port or a route is not healthy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cause {
    /// In words.
    pub why: String,
    /// Since when.
    pub since: Moment,
}

/// A time, for logic and for people.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Moment {
    /// For logic.
    pub instant: Instant,
    /// For people.
    pub time: SystemTime,
}

/// What happens to a port.
#[derive(Debug, Clone, Copy)]
pub enum Happening<'a> {
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
    /// A periodic query: whether the port can be used, or why not.
    Queried(Result<(), &'a str>),
    /// A rail on the port works again, or no connection waits for one.
    Restored,
}

/// What a happening has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Change {
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

/// The life of one port.
#[derive(Debug, Default)]
pub struct PortLife {
    state: AtomicU8,
    record: Mutex<Record>,
}

#[derive(Debug, Default)]
struct Record {
    port: Port,
    /// Routes that failed while the port was active, by the peer's GID.
    routes: HashMap<[u8; 16], Route>,
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
}

#[derive(Debug, Default)]
struct Route {
    /// Present while the route is out of use.
    cause: Option<Cause>,
    hold: HoldDown,
}

/// The episodes of connections within one reporting interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Episodes {
    /// When the first one was reported.
    pub since: Instant,
    /// Episodes, one for each connection and fault.
    pub count: u32,
    /// Bytes that were sent again.
    pub replayed: u64,
    /// The longest stall.
    pub longest: Duration,
    /// The sum of all stalls.
    pub total: Duration,
}

impl Moment {
    /// Returns the present.
    pub fn now() -> Self {
        Self { instant: Instant::now(), time: SystemTime::now() }
    }

    /// Returns the time of day in UTC, for messages.
    pub fn clock(&self) -> String {
        let since = self.time.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let (secs, millis) = (since.as_secs() % 86_400, since.subsec_millis());
        format!("{:02}:{:02}:{:02}.{millis:03} UTC", secs / 3600, secs / 60 % 60, secs % 60)
    }
}

impl PortLife {
    /// Returns the port's state: one relaxed load.
    #[inline]
    pub fn state(&self) -> PortState {
        PortState::of(self.state.load(Ordering::Relaxed))
    }

    /// Returns why the port is not healthy, and since when.
    pub fn cause(&self) -> Option<Cause> {
        self.record.lock().port.cause.clone()
    }

    /// Returns why the route to a peer's GID is out of use, and since when.
    pub fn route_cause(&self, peer: &[u8; 16]) -> Option<Cause> {
        self.record.lock().routes.get(peer)?.cause.clone()
    }

    /// Applies what has happened to the port.
    pub fn happened(&self, now: Moment, what: Happening<'_>) -> Change {
        let mut record = self.record.lock();
        let change = record.port.step(now, what);
        self.state.store(record.port.state as u8, Ordering::Relaxed);
        change
    }

    /// Notes that the route to a peer's GID has failed although the port is active. Returns `false`
    /// if the route is out of use already.
    pub fn route_failed(&self, now: Moment, peer: [u8; 16], why: &str) -> bool {
        let mut record = self.record.lock();
        let Some(route) = record.route(now.instant, peer) else { return true };
        if route.cause.is_some() {
            return false;
        }
        route.cause = Some(Cause { why: why.to_owned(), since: now });
        route.hold.failed(now.instant);
        true
    }

    /// Returns whether a rail over the route to a peer's GID may be made anew: the port is
    /// reachable, and the hold-down of port and route is over.
    pub fn may_return(&self, now: Instant, peer: &[u8; 16]) -> bool {
        let record = self.record.lock();
        let reachable = matches!(record.port.state, PortState::Healthy | PortState::Probing);
        let route = record.routes.get(peer);
        reachable && record.port.hold.may_return(now) && route.is_none_or(|route| route.hold.may_return(now))
    }

    /// Notes that a rail over the route could not be made anew. The next attempt waits twice as
    /// long.
    pub fn attempt_failed(&self, now: Instant, peer: &[u8; 16]) {
        let mut record = self.record.lock();
        if record.port.state == PortState::Probing {
            record.port.hold.attempt_failed(now);
        } else if let Some(route) = record.route(now, *peer) {
            route.hold.attempt_failed(now);
        }
    }

    /// Notes that a rail over the route works again. Returns the time since the route's failure, if
    /// the route was out of use.
    pub fn route_returned(&self, now: Instant, peer: &[u8; 16]) -> Option<Duration> {
        let mut record = self.record.lock();
        let route = record.routes.get_mut(peer)?;
        route.hold.returned(now);
        let cause = route.cause.take()?;
        Some(now.saturating_duration_since(cause.since.instant))
    }

    /// Adds an episode to those of the current reporting interval.
    pub fn add_episode(&self, now: Instant, replayed: u64, stall: Duration) {
        let mut record = self.record.lock();
        let none = Episodes { since: now, count: 0, replayed: 0, longest: stall, total: Duration::ZERO };
        let sum = record.episodes.get_or_insert(none);
        sum.count += 1;
        sum.replayed = sum.replayed.saturating_add(replayed);
        sum.longest = sum.longest.max(stall);
        sum.total += stall;
    }

    /// Takes the episodes to report, once the first of them is as old as `age`.
    pub fn take_episodes(&self, now: Instant, age: Duration) -> Option<Episodes> {
        let old = |sum: &mut Episodes| now.saturating_duration_since(sum.since) >= age;
        self.record.lock().episodes.take_if(old)
    }

    /// Returns whether the port is to be queried now: once when it has been suspect for long, and
    /// each second while it is out of use.
    pub fn is_query_due(&self, now: Instant) -> bool {
        if self.state() == PortState::Healthy {
            return false;
        }
        let port = &mut self.record.lock().port;
        let past = |since: Option<Instant>| since.map(|since| now.saturating_duration_since(since));
        let due = match port.state {
            PortState::Healthy => false,
            PortState::Suspect => past(port.cause.as_ref().map(|cause| cause.since.instant)) >= Some(SUSPECT),
            PortState::Down | PortState::Probing => past(port.queried).is_none_or(|age| age >= QUERY),
        };
        if due {
            port.queried = Some(now);
        }
        due
    }

    /// Returns whether the port or its reports need a look before long.
    pub fn is_busy(&self) -> bool {
        self.state() == PortState::Suspect || self.record.lock().episodes.is_some()
    }
}

impl Record {
    /// Returns the record of a route; `None` if there are too many.
    fn route(&mut self, now: Instant, peer: [u8; 16]) -> Option<&mut Route> {
        let routes = &mut self.routes;
        if routes.len() >= MAX_ROUTES {
            routes.retain(|_, route| !route.hold.is_forgotten(now));
        }
        let has_room = routes.len() < MAX_ROUTES || routes.contains_key(&peer);
        has_room.then(|| routes.entry(peer).or_default())
    }
}

impl PortState {
    fn of(state: u8) -> Self {
        [Self::Healthy, Self::Suspect, Self::Down, Self::Probing][usize::from(state & 3)]
    }

    /// Returns the state in words.
    pub fn word(self) -> &'static str {
        ["healthy", "suspect", "down", "probing"][self as usize]
    }
}

impl Port {
    fn step(&mut self, now: Moment, what: Happening<'_>) -> Change {
        use Happening::*;
        use PortState::*;
        if let Removed(_) = what {
            self.removed = true;
        }
        match (self.state, what) {
            (Healthy, LinkDown(why)) => self.suspect(now, why),
            (Suspect, LinkUp) => self.recover(now),
            (Suspect, Queried(usable)) if self.age(now) >= SUSPECT => match usable {
                Ok(()) => self.recover(now),
                Err(why) => self.die(now, why),
            },
            (Healthy | Suspect | Probing, Failed(why) | Removed(why))
            | (Suspect, Stalled(why))
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
        self.state = PortState::Suspect;
        Change::Suspected
    }

    /// Gives the port up. The first cause stays.
    fn die(&mut self, now: Moment, why: &str) -> Change {
        self.cause.get_or_insert_with(|| Cause { why: why.to_owned(), since: now });
        self.state = PortState::Down;
        self.hold.failed(now.instant);
        Change::Died
    }

    fn recover(&mut self, now: Moment) -> Change {
        let outage = self.age(now);
        (self.state, self.cause) = (PortState::Healthy, None);
        self.hold.returned(now.instant);
        Change::Back { outage }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(start: Instant, ms: u64) -> Moment {
        Moment {
            instant: start + Duration::from_millis(ms),
            time: SystemTime::UNIX_EPOCH + Duration::from_millis(ms),
        }
    }

    /// What happens at which time in ms, what changes, and the state then.
    type Row<'a> = (u64, Happening<'a>, Change, PortState);

    fn run(rows: &[Row<'_>]) -> (PortLife, Instant) {
        let (life, start) = (PortLife::default(), Instant::now());
        for (i, (ms, what, change, state)) in rows.iter().enumerate() {
            assert_eq!(life.happened(at(start, *ms), *what), *change, "row {i}: {what:?}");
            assert_eq!(life.state(), *state, "row {i}: {what:?}");
            assert_eq!(life.cause().is_none(), *state == Healthy, "row {i}");
        }
        (life, start)
    }

    use Change::{Died, None as Nothing, Reachable, Suspected};
    use Happening::*;
    use PortState::*;

    fn back(ms: u64) -> Change {
        Change::Back { outage: Duration::from_millis(ms) }
    }

    #[test]
    fn a_link_that_comes_up_within_a_second_costs_no_rail() {
        run(&[
            (0, LinkUp, Nothing, Healthy),
            (0, Queried(Err("no")), Nothing, Healthy),
            (0, LinkDown("down"), Suspected, Suspect),
            (10, LinkDown("again"), Nothing, Suspect),
            (999, Queried(Err("inactive")), Nothing, Suspect),
            (999, LinkUp, back(999), Healthy),
            (2000, LinkDown("down"), Suspected, Suspect),
            // The event of the link's return was lost.
            (3000, Queried(Ok(())), back(1000), Healthy),
        ]);
    }

    #[test]
    fn a_link_that_stays_down_for_a_second_or_stalls_a_rail_is_down() {
        let (life, _) = run(&[
            (0, LinkDown("the link"), Suspected, Suspect),
            (1000, Queried(Err("inactive")), Died, Down),
            (1001, LinkDown("the link"), Nothing, Down),
            (1002, Failed("x"), Nothing, Down),
            (5000, LinkUp, Reachable, Probing),
            (5001, LinkUp, Nothing, Probing),
            (5002, Queried(Ok(())), Nothing, Probing),
            (5003, LinkDown("again"), Died, Down),
            (6000, Queried(Ok(())), Reachable, Probing),
        ]);
        let cause = life.cause().unwrap();
        assert_eq!((cause.why.as_str(), cause.since.clock().as_str()), ("the link", "00:00:00.000 UTC"));
        run(&[
            (0, Stalled("alone"), Nothing, Healthy),
            (0, LinkDown("the link"), Suspected, Suspect),
            (20, Stalled("no progress"), Died, Down),
            (30, Queried(Ok(())), Reachable, Probing),
            (40, Restored, back(40), Healthy),
            (50, Restored, Nothing, Healthy),
        ]);
    }

    #[test]
    fn an_adapter_that_was_removed_stays_down() {
        run(&[
            (0, LinkDown("the link"), Suspected, Suspect),
            (1, Removed("no adapter"), Died, Down),
            (2, LinkUp, Nothing, Down),
            (3, Queried(Ok(())), Nothing, Down),
            (4, Restored, Nothing, Down),
        ]);
        run(&[
            (0, Failed("inactive"), Died, Down),
            (1, Queried(Ok(())), Reachable, Probing),
            (2, Failed("inactive"), Died, Down),
            (3, Removed("no adapter"), Nothing, Down),
            (4, LinkUp, Nothing, Down),
        ]);
    }

    #[test]
    fn rails_return_when_port_and_route_have_been_well_for_their_hold_down() {
        let (life, start) = run(&[(0, Failed("inactive"), Died, Down), (5000, LinkUp, Reachable, Probing)]);
        let may = |ms, peer: u8| life.may_return(at(start, ms).instant, &[peer; 16]);
        assert_eq!([5499, 5500].map(|ms| may(ms, 1)), [false, true]);
        life.attempt_failed(at(start, 5500).instant, &[1; 16]);
        assert_eq!([6499, 6500].map(|ms| may(ms, 1)), [false, true]);
        assert_eq!(life.happened(at(start, 6500), Restored), back(6500));
        // A route of a healthy port.
        assert!(life.route_failed(at(start, 7000), [1; 16], "no answer"));
        assert!(!life.route_failed(at(start, 7100), [1; 16], "no answer"), "one outage");
        assert_eq!(life.route_cause(&[1; 16]).unwrap().why, "no answer");
        assert_eq!((may(7499, 1), may(7500, 1), may(7000, 2)), (false, true, true));
        life.attempt_failed(at(start, 7500).instant, &[1; 16]);
        assert_eq!([8499, 8500].map(|ms| may(ms, 1)), [false, true]);
        let outage = |ms| life.route_returned(at(start, ms).instant, &[1; 16]);
        assert_eq!([outage(9000), outage(9000)], [Some(Duration::from_secs(2)), None]);
        assert_eq!(life.route_cause(&[1; 16]), None);
        // A rail whose port is healthy again, but which cannot be made anew.
        life.attempt_failed(at(start, 9000).instant, &[3; 16]);
        assert_eq!([9499, 9500].map(|ms| may(ms, 3)), [false, true]);
    }

    #[test]
    fn a_port_is_queried_once_when_suspect_for_long_and_each_second_while_down() {
        let (life, start) = (PortLife::default(), Instant::now());
        let due = |ms| life.is_query_due(at(start, ms).instant);
        assert!(!due(0), "healthy");
        life.happened(at(start, 0), LinkDown("the link"));
        assert_eq!([due(999), due(1000)], [false, true]);
        life.happened(at(start, 1000), Queried(Err("inactive")));
        assert_eq!([due(1999), due(2000), due(2100), due(3000)], [false, true, false, true]);
        life.happened(at(start, 3000), Queried(Ok(())));
        assert_eq!([due(3500), due(4000)], [false, true], "also while probing");
    }

    #[test]
    fn the_number_of_routes_is_bounded() {
        let (life, start) = (PortLife::default(), Instant::now());
        let peer = |n: usize| std::array::from_fn(|i| n.to_be_bytes()[i % 8]);
        (0..MAX_ROUTES).for_each(|n| assert!(life.route_failed(at(start, 0), peer(n), "")));
        assert!(
            life.route_failed(at(start, 0), peer(MAX_ROUTES), "") && life.route_cause(&peer(0)).is_some()
        );
        assert_eq!(life.route_cause(&peer(MAX_ROUTES)), None);
        assert_eq!(life.record.lock().routes.len(), MAX_ROUTES);
        life.route_returned(start, &peer(0));
        // 10 min later.
        life.route_failed(at(start, 600_000), peer(MAX_ROUTES), "no answer");
        assert_eq!(life.route_cause(&peer(MAX_ROUTES)).unwrap().why, "no answer");
    }

    #[test]
    fn episodes_are_summed_up_for_one_report() {
        let (life, start) = (PortLife::default(), Instant::now());
        let (ms, second) = (Duration::from_millis, Duration::from_secs(1));
        assert!(!life.is_busy() && life.take_episodes(start, Duration::ZERO).is_none());
        for (after, bytes, stall) in [(0, 5, 7), (400, 0, 12), (999, 100, 3)] {
            life.add_episode(start + ms(after), bytes, ms(stall));
        }
        assert!(life.is_busy() && life.take_episodes(start + ms(999), second).is_none());
        let sum = life.take_episodes(start + second, second).unwrap();
        assert_eq!((sum.count, sum.replayed, sum.longest, sum.total), (3, 105, ms(12), ms(22)));
        assert!(!life.is_busy());
    }
}
