//! The life of a port under every schedule of the threads that share it: connections that report
//! failures and returns, and the thread that handles the adapter's events.
//!
//! The product's own files, with loom's lock and atomics in the place of the plugin's.

use std::time::{Duration, Instant};

use crate::explore::explore;
use crate::failover::health::{Change, Happening, Moment, PortHealth, PortState};
use loom::sync::Arc;
use loom::thread;

/// A route's peer.
const PEER: [u8; 16] = [7; 16];

/// Brings a new port into the state that `before` leads to, runs `this` and `other` in two threads,
/// and returns their results and the port. The state that is read without the lock is the one
/// behind it at the end.
fn both<A: 'static, B: 'static>(
    before: &[Happening<'_>],
    this: impl FnOnce(&PortHealth) -> A,
    other: impl FnOnce(&PortHealth) -> B + 'static,
) -> (A, B, Arc<PortHealth>) {
    let life = Arc::new(PortHealth::default());
    for what in before {
        life.happened(Moment::now(), *what);
    }
    let thread = thread::spawn({
        let life = Arc::clone(&life);
        move || other(&life)
    });
    let ours = this(&life);
    let theirs = thread.join().unwrap();
    assert_eq!(life.state(), life.state_and_cause().0, "the state of the port and its copy");
    (ours, theirs, life)
}

fn happens(what: Happening<'static>) -> impl Fn(&PortHealth) -> Change {
    move |life| life.happened(Moment::now(), what)
}

/// Asserts that exactly one of two threads has made the change.
fn one(is_change: impl Fn(&Change) -> bool, changes: (Change, Change)) {
    assert!(is_change(&changes.0) != is_change(&changes.1), "{changes:?}");
}

#[test]
fn a_port_dies_once_and_all_see_it() {
    let schedules = explore(|| {
        let died = |change: &Change| *change == Change::Died;
        let (ours, theirs, life) =
            both(&[], happens(Happening::Failed("a query")), happens(Happening::Removed("an event")));
        one(died, (ours, theirs));
        assert_eq!(life.state(), PortState::Down);
        assert!(life.is_removed() && life.cause().is_some());
    });
    assert!(schedules > 1, "{schedules} schedules");
}

#[test]
fn a_port_returns_once_although_each_of_its_rails_reports_it() {
    let schedules = explore(|| {
        let back = |change: &Change| matches!(change, Change::Back { .. });
        let before = [Happening::Failed("it"), Happening::LinkUp];
        let (ours, theirs, life) = both(&before, happens(Happening::Restored), happens(Happening::Restored));
        one(back, (ours, theirs));
        assert_eq!((life.state(), life.cause()), (PortState::Healthy, None));
    });
    assert!(schedules > 1, "{schedules} schedules");
}

/// A failure and a return at the same time: the order decides, and the copy of the state follows.
#[test]
fn the_copy_of_the_state_is_the_last_one() {
    let schedules = explore(|| {
        let before = [Happening::LinkDown("an event")];
        let (failed, recovered, life) =
            both(&before, happens(Happening::Failed("a query")), happens(Happening::LinkUp));
        assert_eq!(failed, Change::Died);
        let state = match recovered {
            // Down after Healthy, or Probing after Down.
            Change::Back { .. } => PortState::Down,
            Change::Reachable => PortState::Probing,
            other => panic!("{other:?}"),
        };
        assert_eq!(life.state(), state);
    });
    assert!(schedules > 1, "{schedules} schedules");
}

#[test]
fn of_two_threads_one_queries_a_port_that_is_down() {
    let schedules = explore(|| {
        let now = Instant::now();
        let due = move |life: &PortHealth| life.is_query_due(now);
        let (ours, theirs, _) = both(&[Happening::Failed("it")], due, due);
        assert!(ours != theirs, "both or none: {ours}");
    });
    assert!(schedules > 1, "{schedules} schedules");
}

#[test]
fn a_route_fails_once_and_an_episode_is_reported_once() {
    let schedules = explore(|| {
        let now = Moment::now();
        let step = move |life: &PortHealth| {
            life.add_episode(now.instant, 10, Duration::ZERO);
            let taken = life.take_episodes(now.instant, Duration::ZERO).map_or(0, |sum| sum.count);
            (life.route_failed(now, PEER, "no answer"), taken)
        };
        let ((ours, some), (theirs, others), life) = both(&[], step, step);
        assert!(ours != theirs && !life.may_return(now.instant, &PEER, None, false));
        assert_eq!(some + others, 2, "episodes");
        assert!(life.take_episodes(now.instant, Duration::ZERO).is_none());
    });
    assert!(schedules > 1, "{schedules} schedules");
}
