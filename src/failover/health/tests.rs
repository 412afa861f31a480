//! The states of a port, and its hold-downs.

use super::*;

fn at(start: Instant, ms: u64) -> Moment {
    Moment {
        instant: start + Duration::from_millis(ms),
        time: SystemTime::UNIX_EPOCH + Duration::from_millis(ms),
    }
}

fn route_cause(life: &PortHealth, peer: &[u8; 16]) -> Option<Cause> {
    life.record.lock().routes.get(peer)?.cause.clone()
}

/// What happens at which time in ms, what changes, and the state then.
type Row<'a> = (u64, Happening<'a>, Change, PortState);

fn run(rows: &[Row<'_>]) -> (PortHealth, Instant) {
    let (life, start) = (PortHealth::default(), Instant::now());
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

//= rail-life.md: a port that an event reports as down is down if a query confirms it
#[test]
fn a_port_that_queries_find_usable_is_suspect_for_a_second() {
    run(&[
        (0, LinkUp, Nothing, Healthy),
        (0, Queried(Err("no")), Nothing, Healthy),
        (0, LinkDown("down"), Suspected, Suspect),
        (10, LinkDown("again"), Nothing, Suspect),
        (999, Queried(Ok(())), Nothing, Suspect),
        (999, LinkUp, back(999), Healthy),
        (2000, LinkDown("down"), Suspected, Suspect),
        // The event of the link's return was lost.
        (3000, Queried(Ok(())), back(1000), Healthy),
    ]);
}

//= rail-life.md: a port that an event reports as down is down if a query confirms it
#[test]
fn a_suspect_port_that_cannot_be_used_or_stalls_a_rail_is_down() {
    let (life, _) = run(&[
        (0, LinkDown("the link"), Suspected, Suspect),
        (1, Queried(Err("inactive")), Died, Down),
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

//= rail-life.md: an adapter that was removed stays down until it is opened again
#[test]
fn an_adapter_that_was_removed_stays_down_until_it_is_opened_again() {
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
        (5, Reopened, Nothing, Down),
        (6, Queried(Ok(())), Reachable, Probing),
    ]);
}

//= rail-life.md: the hold-down
#[test]
fn rails_return_when_port_and_route_have_been_well_for_their_hold_down() {
    let (life, start) = run(&[(0, Failed("inactive"), Died, Down), (5000, LinkUp, Reachable, Probing)]);
    let may = |ms, peer: u8| life.may_return(at(start, ms).instant, &[peer; 16], None, false);
    assert_eq!([5499, 5500].map(|ms| may(ms, 1)), [false, true]);
    life.attempt_failed(at(start, 5500).instant, &[1; 16]);
    assert_eq!([6499, 6500].map(|ms| may(ms, 1)), [false, true]);
    assert_eq!(life.happened(at(start, 6500), Restored), back(6500));
    // A route of a healthy port.
    assert!(life.route_failed(at(start, 7000), [1; 16], "no answer"));
    assert!(!life.route_failed(at(start, 7100), [1; 16], "no answer"), "one outage");
    assert_eq!(route_cause(&life, &[1; 16]).unwrap().why, "no answer");
    assert_eq!((may(7499, 1), may(7500, 1), may(7000, 2)), (false, true, true));
    life.attempt_failed(at(start, 7500).instant, &[1; 16]);
    assert_eq!([8499, 8500].map(|ms| may(ms, 1)), [false, true]);
    let outage = |ms| life.route_returned(at(start, ms).instant, &[1; 16]);
    assert_eq!([outage(9000), outage(9000)], [Some(Duration::from_secs(2)), None]);
    assert_eq!(route_cause(&life, &[1; 16]), None);
    // A rail whose port is healthy again, but which cannot be made again.
    life.attempt_failed(at(start, 9000).instant, &[3; 16]);
    assert_eq!([9499, 9500].map(|ms| may(ms, 3)), [false, true]);
}

/// Returns whether a rail with other rails beside it may return, and one without.
fn may(life: &PortHealth, now: Instant, since: Instant) -> [bool; 2] {
    [false, true].map(|last| life.may_return(now, &[1; 16], Some(since), last))
}

//= rail-life.md: a hold-down protects the other rails, so it does not hold the last one
#[test]
fn the_last_rail_rests_and_waits_for_nothing_else_but_its_port() {
    let (life, start) = run(&[(0, Failed("inactive"), Died, Down)]);
    let now = |ms| at(start, ms).instant;
    assert_eq!(may(&life, now(5000), start), [false, false], "the port is down");
    life.happened(at(start, 5000), LinkUp);
    assert_eq!(may(&life, now(5000), start), [false, true]);
    life.attempt_failed(now(5000), &[1; 16]);
    assert_eq!([5499, 5500].map(|ms| may(&life, now(ms), now(5000))), [[false, false], [true, true]]);
    for n in 0..8 {
        life.attempt_failed(now(10_000 + n * 60_000), &[1; 16]);
    }
    let last = 10_000 + 7 * 60_000;
    assert_eq!([499, 500].map(|ms| may(&life, now(last + ms), now(last))[1]), [false, true]);
    assert_eq!([29_999, 30_000].map(|ms| may(&life, now(last + ms), now(last))[0]), [false, true]);
}

//= rail-life.md: an attempt that fails for this end's port does not count against the route
#[test]
fn attempts_do_not_lengthen_a_wait_while_the_port_is_down() {
    let (life, start) = run(&[(0, Failed("inactive"), Died, Down)]);
    for ms in (500..33_000).step_by(500) {
        life.attempt_failed(at(start, ms).instant, &[1; 16]);
    }
    life.happened(at(start, 33_000), LinkUp);
    let returns = |ms| may(&life, at(start, ms).instant, start)[0];
    assert_eq!([33_499, 33_500].map(returns), [false, true]);
}

//= rail-life.md: RETURN ends the waits that the peer's refusals have made
#[test]
fn the_waits_that_a_peer_makes_end_when_it_returns() {
    let (life, start) = (PortHealth::default(), Instant::now());
    let now = |ms| at(start, ms).instant;
    assert!(life.route_failed(at(start, 0), [1; 16], "no answer"));
    for ms in [500, 1000, 2000, 4000, 8000] {
        assert_eq!(may(&life, now(ms), start), [true, true]);
        life.attempt_refused(now(ms), &[1; 16]);
        assert!(!may(&life, now(ms), start)[0]);
    }
    assert_eq!([15_999, 16_000].map(|ms| may(&life, now(ms), start)[0]), [false, true]);
    life.attempt_refused(now(16_000), &[1; 16]);
    life.peer_returned(&[1; 16]);
    assert!(may(&life, now(16_001), start)[0]);
    // Its own failures keep their wait.
    life.attempt_failed(now(16_001), &[1; 16]);
    life.peer_returned(&[1; 16]);
    assert_eq!([17_000, 17_001].map(|ms| may(&life, now(ms), start)[0]), [false, true]);
}

//= rail-life.md: one lost packet takes no property from a rail
#[test]
fn what_fails_on_a_port_in_doubt_is_not_remembered() {
    let key =
        || RouteKey { gid: [2; 16], kind: mpib_proto::GidKind::RoceV2, host: "b".into(), peer: [1; 16] };
    let (life, start) = (PortHealth::default(), Instant::now());
    let now = |ms| at(start, ms).instant;
    let remembers = |ms| {
        life.loopback_failed(now(ms), "no answer");
        assert_eq!(life.no_loopback(now(ms)).is_some(), life.is_steady(now(ms)));
        let remembers = life.no_loopback(now(ms)).is_some();
        life.network_changed(now(ms));
        assert_eq!(life.no_loopback(now(ms)), None);
        remembers
    };
    assert!(remembers(0));
    life.happened(at(start, 1000), LinkDown("the link"));
    assert!(!remembers(1000));
    life.happened(at(start, 1100), LinkUp);
    assert_eq!([1100, 11_099, 11_100].map(remembers), [false, false, true]);
    assert!(life.route_failed(at(start, 20_000), [1; 16], "no answer"));
    assert_eq!([20_000, 30_000].map(remembers), [false, true]);
    life.loopback_failed(now(40_000), "no answer");
    assert_eq!([99_999, 100_000].map(|ms| life.no_loopback(now(ms)).is_some()), [true, false]);
    // Routes that a connect has tried: an attempt from before a change proves nothing.
    life.network_changed(now(50_000));
    life.connect_failed(now(50_001), now(50_000), key(), "no answer".into());
    assert_eq!(life.why_not(now(50_001), &key()), None);
    life.connect_failed(now(50_002), now(50_001), key(), "no answer".into());
    assert!(life.why_not(now(50_002), &key()).unwrap().contains("no answer"));
    life.connect_works(&key());
    assert_eq!(life.why_not(now(50_002), &key()), None);
}

/// Every order of five of these, a second after one another.
#[test]
fn every_order_of_happenings_keeps_the_rules() {
    type Step = fn(&PortHealth, Moment);
    const PEER: [u8; 16] = [1; 16];
    let steps: [Step; 10] = [
        |port, now| _ = port.happened(now, LinkDown("the link")),
        |port, now| _ = port.happened(now, LinkUp),
        |port, now| _ = port.happened(now, Failed("a query")),
        |port, now| _ = port.happened(now, Queried(Ok(()))),
        |port, now| _ = port.happened(now, Removed("no adapter")),
        |port, now| _ = port.happened(now, Reopened),
        |port, now| {
            port.route_returned(now.instant, &PEER);
            port.happened(now, Restored);
        },
        |port, now| _ = port.route_failed(now, PEER, "no answer"),
        |port, now| port.attempt_failed(now.instant, &PEER),
        |port, now| port.attempt_refused(now.instant, &PEER),
    ];
    let start = Instant::now();
    for order in 0..steps.len().pow(5) {
        let (port, mut rest) = (PortHealth::default(), order);
        for second in 0..5 {
            let (now, step) = (at(start, second * 1000), rest % steps.len());
            rest /= steps.len();
            let before = port.state();
            steps[step](&port, now);
            let (state, cause) = port.state_and_cause();
            assert_eq!((port.state(), state == Healthy), (state, cause.is_none()), "{order}");
            let is_reachable = matches!(state, Healthy | Probing);
            let later = |ms: u64| now.instant + Duration::from_millis(ms);
            let returns = |ms, last| port.may_return(later(ms), &PEER, Some(now.instant), last);
            assert_eq!(returns(500, true), is_reachable, "{order}: the last rail");
            assert!(!returns(499, true), "{order}: it rests");
            assert_eq!(returns(30_000, false), is_reachable, "{order}: no wait is longer");
            assert!(returns(500, true) || !returns(500, false), "{order}: the last rail comes first");
            assert!(!port.is_removed() || state == Down, "{order}");
            if before == Down && step == 8 {
                assert_eq!(state, Down, "{order}: an attempt changes no state");
            }
        }
    }
}

#[test]
fn a_port_is_queried_often_while_suspect_and_each_second_while_down() {
    let (life, start) = (PortHealth::default(), Instant::now());
    let due = |ms| life.is_query_due(at(start, ms).instant);
    assert!(!due(0), "healthy");
    life.happened(at(start, 0), LinkDown("the link"));
    assert_eq!([due(0), due(10), due(1000)], [true; 3]);
    life.happened(at(start, 1000), Queried(Err("inactive")));
    assert_eq!([due(1999), due(2000), due(2100), due(3000)], [false, true, false, true]);
    life.happened(at(start, 3000), Queried(Ok(())));
    assert_eq!([due(3500), due(4000)], [false, true], "also while probing");
}

#[test]
fn the_number_of_routes_is_bounded() {
    let (life, start) = (PortHealth::default(), Instant::now());
    let peer = |n: usize| std::array::from_fn(|i| n.to_be_bytes()[i % 8]);
    (0..MAX_ROUTES).for_each(|n| assert!(life.route_failed(at(start, 0), peer(n), "")));
    assert!(life.route_failed(at(start, 0), peer(MAX_ROUTES), "") && route_cause(&life, &peer(0)).is_some());
    assert_eq!(route_cause(&life, &peer(MAX_ROUTES)), None);
    assert_eq!(life.record.lock().routes.len(), MAX_ROUTES);
    life.route_returned(start, &peer(0));
    // 10 min later.
    life.route_failed(at(start, 600_000), peer(MAX_ROUTES), "no answer");
    assert_eq!(route_cause(&life, &peer(MAX_ROUTES)).unwrap().why, "no answer");
}

//= rail-life.md: one line sums up the episodes of a second
#[test]
fn episodes_are_summed_up_for_one_report() {
    let (life, start) = (PortHealth::default(), Instant::now());
    let (ms, second) = (Duration::from_millis, Duration::from_secs(1));
    assert!(life.episodes_due(start, Duration::ZERO).is_none());
    assert!(life.take_episodes(start, Duration::ZERO).is_none());
    for (after, bytes, stall) in [(0, 5, 7), (400, 0, 12), (999, 100, 3)] {
        life.add_episode(start + ms(after), bytes, ms(stall));
    }
    assert_eq!(life.episodes_due(start + ms(999), second), Some(ms(1)));
    assert!(life.take_episodes(start + ms(999), second).is_none());
    assert_eq!(life.episodes_due(start + ms(2000), second), Some(ms(0)));
    let sum = life.take_episodes(start + second, second).unwrap();
    assert_eq!((sum.count, sum.replayed, sum.longest, sum.total), (3, 105, ms(12), ms(22)));
    assert!(life.episodes_due(start, second).is_none());
}
