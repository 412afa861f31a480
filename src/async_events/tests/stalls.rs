//! The watchdog, with times of the test.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{RailRole, RailSet};
use nccl_net_mpib_agent_iface::stats::Direction;

use super::{PORT_ERR, World, await_condemned};
use crate::async_events::stalls::Watchdog;
use crate::async_events::watch::CommWatch;
use crate::config::Config;
use crate::connect::tests::until;
use crate::failover::PortState;
use crate::housekeeping::Job;
use crate::split::Plan;
use crate::stats::{Counters, Reason, Traffic};

const RAILS: [(RailRole, &str); 2] = [(RailRole::SOUT, "a:1"), (RailRole::SUP, "b:1")];

/// Returns the counters of a connection.
fn counters(config: &Config, direction: Direction, rails: &[(RailRole, &str)]) -> Counters {
    Counters::open(config, Traffic::Messages, direction, Plan::Plain, "peer", rails, false)
}

/// Two rails, and counters in no page.
struct End {
    world: World,
    counters: Counters,
    comm: Arc<CommWatch>,
    watchdog: Watchdog,
    start: Instant,
}

impl End {
    fn sender() -> Self {
        Self::new(Direction::Send)
    }

    fn new(direction: Direction) -> Self {
        let world = World::new();
        let config = Config { stats: false, ..Config::default() };
        assert!(counters(&config, direction, &RAILS[..1]).of_rails().is_none());
        let counters = counters(&config, direction, &RAILS);
        let comm = world.comm(10, &[(0, 1), (1, 1)], Some(&counters));
        let watchdog = Watchdog::new(Arc::clone(&world.state));
        // No time passes in a pass: a long one would make the next ones rarer.
        let start = Instant::now() + Duration::from_secs(3600);
        Self { world, counters, comm, watchdog, start }
    }

    /// Posts and completes work requests on both rails, polls all queues, and runs the watchdog at a
    /// time in ms.
    fn at(&self, ms: u64, posted: [usize; 2], completed: [u32; 2]) -> u8 {
        self.comm.polled();
        self.unpolled_at(ms, posted, completed)
    }

    /// Like [`at`](Self::at), but the queues are not polled since the last call.
    fn unpolled_at(&self, ms: u64, posted: [usize; 2], completed: [u32; 2]) -> u8 {
        for rail in 0..2 {
            self.counters.posted(rail, posted[rail], posted[rail], 0);
            self.counters.completed(rail, completed[rail]);
        }
        self.watchdog.pass(self.start + Duration::from_millis(ms), Duration::from_millis(100));
        self.comm.take_condemned().bits()
    }
}

//= rail-life.md: when a rail has stalled
//= configuration.md: MPIB_STALL_MS
#[test]
fn the_watchdog_condemns_a_rail_that_completes_nothing_while_another_one_does() {
    let sender = End::sender();
    let other = sender.world.comm(20, &[(0, 1)], None);
    assert_eq!(sender.at(0, [8, 8], [0, 0]), 0);
    for i in 1..25 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(500, [0, 1], [0, 1]), 0b01);
    assert!(
        sender
            .comm
            .cause(0)
            .unwrap()
            .contains("completed nothing for 500 ms with 8 work requests outstanding")
    );
    // The route is the cause.
    await_condemned([&other], [0b01]);
    assert_eq!(sender.at(2000, [0, 0], [0, 0]), 0, "once");
}

/// The counters may be another connection's by then.
//= rail-life.md: watched time
#[test]
fn the_watchdog_reads_no_counters_of_a_connection_that_has_ended() {
    let sender = End::sender();
    sender.at(0, [8, 8], [0, 0]);
    sender.comm.unwatch();
    assert!(sender.comm.counts().is_empty());
    for i in 1..60 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
}

/// What has completed may lie in a queue, and an adapter in software may have had no processor.
//= rail-life.md: watched time
#[test]
fn the_watchdog_counts_only_time_in_which_the_queues_were_polled() {
    let sender = End::sender();
    sender.at(0, [8, 8], [0, 0]);
    for i in 1..1000 {
        assert_eq!(sender.unpolled_at(20 * i, [0, 1], [0, 1]), 0, "{i}");
        assert!(sender.comm.is_marked(), "{i}: the next call is to poll");
    }
    for i in 1000..1024 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    // Time enough, but nobody has polled since the other rail completed something.
    for i in 1024..1030 {
        assert_eq!(sender.unpolled_at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(20 * 1030, [0, 1], [0, 1]), 0b01);
}

/// The watchdog has no processor either.
//= rail-life.md: watched time
#[test]
fn the_watchdog_counts_no_more_than_twice_its_interval_when_it_is_late() {
    let sender = End::sender();
    sender.at(0, [8, 8], [0, 0]);
    for i in 1..25 {
        assert_eq!(sender.at(3000 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(3000 * 25, [0, 1], [0, 1]), 0b01, "25 times 20 ms");
}

//= rail-life.md: watched time
#[test]
fn the_watchdog_requests_no_polls_of_a_connection_whose_rails_move() {
    let sender = End::sender();
    sender.comm.unmark();
    sender.at(0, [1, 1], [0, 0]);
    for i in 1..100 {
        sender.at(10 * i, [1, 1], [1, 1]);
        assert!(!sender.comm.is_marked(), "{i}");
    }
}

/// Its port reports 100 Gb/s and carries 100 MB/s.
//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_waits_for_what_a_slow_rail_has_to_carry() {
    let sender = End::sender();
    let at = |ms, posted: usize, completed| {
        sender.counters.posted(0, posted, posted, posted * 10_000_000);
        sender.counters.completed(0, completed);
        sender.at(ms, [0, 1], [0, 1])
    };
    at(0, 4, 0);
    for i in 1..=200 {
        assert_eq!(at(10 * i, usize::from(i % 10 == 0), u32::from(i % 10 == 0)), 0, "{i}");
    }
    // 40 MB are outstanding. Another ten may be, for all that the counters show.
    let silent = (1..).find(|i| at(2000 + 10 * i, 0, 0) != 0).unwrap();
    assert!((130..=180).contains(&silent), "{silent}: about twice 0.4 to 0.6 s after 0.5 s");
}

/// Of several flows over one route one may be lost.
//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_waits_longer_while_other_connections_show_that_the_route_works() {
    let sender = End::sender();
    let counters = counters(&Config::default(), Direction::Send, &RAILS);
    let other = sender.world.comm(20, &[(0, 1), (1, 1)], Some(&counters));
    let at = |ms| {
        counters.posted(0, 1, 1, 0);
        counters.completed(0, 1);
        sender.at(ms, [0, 1], [0, 1])
    };
    sender.at(0, [8, 8], [0, 0]);
    for i in 1..500 {
        assert_eq!(at(10 * i), 0, "{i}");
    }
    assert_eq!(at(5000), 0b01);
    drop(other);
}

/// A port that serves one connection after the other lets a ping wait for the bytes of others.
//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_waits_for_what_other_connections_have_to_carry_on_the_port() {
    let sender = End::sender();
    let counters = counters(&Config::default(), Direction::Send, &RAILS);
    let other = sender.world.comm(20, &[(0, 1), (1, 1)], Some(&counters));
    sender.world.nics[0].meter().set_goodput(100_000_000, 1);
    counters.posted(0, 4, 4, 40_000_000);
    sender.at(0, [8, 8], [0, 0]);
    for i in 1..130 {
        assert_eq!(sender.at(10 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(1300, [0, 1], [0, 1]), 0b01);
    drop(other);
}

/// Most of its work requests are not signalled, and complete with the next one that is.
//= rail-life.md: pings
#[test]
fn the_watchdog_condemns_a_rail_of_a_receiver_only_if_its_ping_is_not_answered() {
    let receiver = End::new(Direction::Receive);
    assert_eq!(receiver.at(0, [1, 0], [0, 0]), 0);
    // An active receiver, whose CTS writes complete rarely.
    for i in 1..100 {
        let ping = receiver.comm.take_late().bits() != 0;
        let done = if ping { 4 } else { 0 };
        assert_eq!(receiver.at(20 * i, [1, ping.into()], [done, ping.into()]), 0, "{i}");
    }
    // Its ping is not answered, and that of the other rail is.
    let late =
        (100..).find(|i| receiver.at(20 * i, [1, 0], [0, 0]) == 0 && receiver.comm.take_late().bits() != 0);
    let late = late.unwrap();
    for i in late + 1..late + 25 {
        assert_eq!(receiver.at(20 * i, [1, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(receiver.at(20 * (late + 25), [1, 1], [0, 1]), 0b01);
}

/// The rail's wait does not begin again with the pings: they show only whether the other one works.
//= rail-life.md: pings
#[test]
fn the_watchdog_condemns_the_only_rail_of_a_sender_that_has_work_as_soon_as_any() {
    let sender = End::sender();
    assert_eq!(sender.at(0, [8, 0], [0, 0]), 0);
    assert_eq!((sender.at(10, [0, 0], [0, 0]), sender.comm.take_late().bits()), (0, 0));
    assert_eq!(
        (sender.at(20, [0, 0], [0, 0]), sender.comm.take_late().bits()),
        (0, 0b01),
        "the other one is pinged"
    );
    for i in 3..50 {
        let ping = u32::from(i == 4);
        assert_eq!(sender.at(10 * i, [0, ping as usize], [0, ping]), 0, "{i}");
        assert_eq!(sender.comm.take_late().bits(), 0, "{i}: once");
    }
    assert_eq!(sender.at(500, [0, 0], [0, 0]), 0b01);
}

/// Pings may be impossible at first: rails return, and queues get room.
//= rail-life.md: pings
#[test]
fn the_watchdog_requests_pings_again_until_another_rail_has_completed_something() {
    let sender = End::sender();
    sender.at(0, [8, 0], [0, 0]);
    let late =
        (1..62).filter(|i| sender.at(10 * i, [0, 0], [0, 0]) == 0 && sender.comm.take_late().bits() != 0);
    assert_eq!(late.collect::<Vec<_>>(), [2, 12, 22, 32, 42, 52]);
    assert_eq!(sender.at(620, [0, 1], [0, 1]), 0b01);
}

/// A rail that is slow completes its ping late, and lives.
//= rail-life.md: pings
#[test]
fn the_watchdog_spares_a_rail_of_a_receiver_that_answers_its_pings_late() {
    let receiver = End::new(Direction::Receive);
    let (mut now, mut pings) = (0, 0);
    receiver.at(now, [1, 0], [0, 0]);
    for _ in 0..20 {
        while receiver.comm.take_late().bits() == 0 {
            now += 10;
            assert_eq!(receiver.at(now, [0, 0], [0, 0]), 0, "{now}");
        }
        pings += 1;
        // The other rail's ping completes at once, and that of this rail just in time.
        for i in 0..49 {
            now += 10;
            assert_eq!(receiver.at(now, [1, (i == 0).into()], [0, (i == 0).into()]), 0, "{now}");
        }
        now += 10;
        assert_eq!(receiver.at(now, [1, 0], [50, 0]), 0, "{now}");
    }
    assert_eq!(pings, 20);
}

//= rail-life.md: the watchdog
#[test]
fn counters_are_read_often_while_rails_are_active_and_for_a_while_after() {
    let often = Duration::from_millis(10);
    let sender = End::sender();
    assert_eq!(sender.watchdog.interval(), None);
    sender.at(0, [0, 0], [0, 0]);
    assert_eq!(sender.watchdog.interval(), None);
    // Short messages: no pass finds one outstanding.
    sender.at(250, [1, 0], [1, 0]);
    assert_eq!(sender.watchdog.interval(), Some(often));
    sender.at(260, [0, 1], [0, 0]);
    assert_eq!(sender.watchdog.interval(), Some(often));
    sender.at(270, [0, 0], [0, 1]);
    sender.at(10_260, [0, 0], [0, 0]);
    assert_eq!(sender.watchdog.interval(), Some(often));
    sender.at(10_270, [0, 0], [0, 0]);
    assert_eq!(sender.watchdog.interval(), None);
}

//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_acts_at_once_on_a_port_whose_link_is_down() {
    let sender = End::sender();
    sender.at(0, [8, 8], [0, 0]);
    sender.world.port_event(0, PORT_ERR);
    for i in 1..5 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(100, [0, 1], [0, 1]), 0b01);
    let health = sender.world.nics[0].health();
    until(|| (health.state() == PortState::Down).then_some(()));
}

//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_spares_rails_that_all_wait_and_those_without_failover() {
    let sender = End::sender();
    assert_eq!(sender.at(0, [8, 8], [0, 0]), 0);
    for i in 1..100 {
        assert_eq!(sender.at(20 * i, [0, 0], [0, 0]), 0, "{i}: the peer");
    }
    // Comms without failover.
    sender.comm.set_failover(false);
    for i in 100..200 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
}

#[test]
fn what_a_rails_earlier_life_has_left_behind_is_not_outstanding() {
    let sender = End::sender();
    sender.at(0, [8, 8], [0, 0]);
    sender.comm.condemn(RailSet::from_bits(1), Reason::Stall, "test");
    sender.comm.set_rail(0, None);
    assert_eq!(sender.at(20, [0, 0], [0, 0]), 0b01);
    sender.comm.set_rail(0, Some(sender.world.queues(0, 1, 30)));
    for i in 2..100 {
        assert_eq!(sender.at(20 * i, [0, 1], [0, 1]), 0, "{i}");
    }
    // Now it has work again.
    for i in 100..125 {
        assert_eq!(sender.at(20 * i, [1, 1], [0, 1]), 0, "{i}");
    }
    assert_eq!(sender.at(2500, [0, 1], [0, 1]), 0b01);
}

/// The watchdog reads the counts of a rail, and the rail is made again, before it takes them in.
//= rail-life.md: when a rail has stalled
#[test]
fn the_watchdog_takes_in_no_counts_of_a_rail_before_it_was_made_again() {
    let sender = End::sender();
    std::thread::scope(|scope| {
        let made = scope.spawn(|| {
            for n in 0..20_000 {
                sender.counters.posted(0, 1, 1, 1000);
                sender.counters.completed(0, 1);
                sender.comm.set_rail(0, Some(sender.world.queues(0, 1, n)));
            }
        });
        while !made.is_finished() {
            sender.watchdog.pass(sender.start, Duration::from_millis(100));
        }
    });
}
