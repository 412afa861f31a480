//! Waits as simulated passes find them.

use super::*;

/// A connection whose passes are made by hand.
struct World {
    waiting: Waiting,
    pass: Pass,
}

impl World {
    fn new() -> Self {
        let pass = Pass {
            now: Instant::now(),
            clock: SystemTime::now(),
            counts: Totals::default(),
            is_outstanding: false,
            lacks_rail: false,
        };
        let mut world = Self { waiting: Waiting::default(), pass };
        assert_eq!(world.pass(TICK), None);
        world
    }

    /// Makes a pass after this time.
    fn pass(&mut self, after: Duration) -> Option<Turn> {
        self.pass.now += after;
        self.pass.clock += after;
        self.waiting.look(self.pass)
    }

    /// Makes passes for this time. NCCL makes such a call before each.
    fn passes(&mut self, time: Duration, call: fn(&mut Totals)) -> Vec<Turn> {
        let count = time.as_millis() / TICK.as_millis();
        let one = |_| {
            call(&mut self.pass.counts);
            self.pass(TICK)
        };
        (0..count).filter_map(one).collect()
    }

    /// What it waits for, and since how long by the clock.
    fn waits(&self) -> Option<(Awaited, Duration)> {
        let (what, since) = self.waiting.since()?;
        Some((what, self.pass.clock.duration_since(since).unwrap()))
    }
}

const fn s(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn nothing(_: &mut Totals) {}
fn no_receive(counts: &mut Totals) {
    counts.waits_peer += 1000;
}
fn no_room(counts: &mut Totals) {
    counts.waits_queue += 1;
}
fn done(counts: &mut Totals) {
    (counts.requests, counts.done) = (counts.requests + 1, counts.done + 1);
}

#[test]
fn a_send_without_a_receive_waits_until_one_begins() {
    let mut world = World::new();
    world.passes(s(5), nothing);
    assert_eq!(world.waits(), None, "nobody asks");
    world.passes(s(3) + TICK, no_receive);
    assert_eq!(world.waits(), Some((Awaited::Receive, s(3))));
    world.passes(TICK, done);
    assert_eq!(world.waits(), None);
    // Busy: sends are refused all the time, and others begin.
    world.passes(s(3), |counts| {
        no_receive(counts);
        done(counts);
    });
    assert_eq!(world.waits(), None);
}

#[test]
fn a_wait_ends_when_nccl_asks_no_more() {
    let mut world = World::new();
    world.passes(s(3), no_room);
    world.passes(ASKS - TICK, nothing);
    assert!(matches!(world.waits(), Some((Awaited::Room, _))), "one thread was late");
    world.passes(TICK, nothing);
    assert_eq!(world.waits(), None);
}

#[test]
fn what_is_outstanding_waits_for_data_unless_nccl_asks_for_something_else() {
    let mut world = World::new();
    world.pass.is_outstanding = true;
    world.passes(s(2), nothing);
    assert_eq!(world.waits(), Some((Awaited::Data, s(2) - TICK * 2)), "from the second pass on");
    world.passes(s(1), no_receive);
    assert_eq!(world.waits(), Some((Awaited::Receive, s(1) - TICK)));
    world.pass.lacks_rail = true;
    world.passes(s(1), no_receive);
    assert_eq!(world.waits(), Some((Awaited::Rail, s(1) - TICK)));
    (world.pass.lacks_rail, world.pass.is_outstanding) = (false, false);
    world.passes(ASKS, nothing);
    assert_eq!(world.waits(), None);
    world.pass.lacks_rail = true;
    world.passes(s(2), nothing);
    assert_eq!(world.waits(), None, "an idle connection needs no rail");
}

#[test]
fn a_long_wait_is_one_warning_and_its_end_one_line() {
    for (call, lacks_rail, what) in [
        (no_receive as fn(&mut Totals), false, Awaited::Receive),
        (no_room, false, Awaited::Room),
        (no_room, true, Awaited::Rail),
    ] {
        let mut world = World::new();
        world.pass.lacks_rail = lacks_rail;
        assert_eq!(world.passes(LONG, call), []);
        assert_eq!(world.passes(TICK, call), [Turn::Long(what, LONG)]);
        assert_eq!(world.passes(s(600), call), [], "once");
        assert_eq!(world.passes(TICK, done), [Turn::Over(what, s(660))]);
        assert_eq!(world.passes(s(5), done), []);
        assert_eq!(world.passes(LONG + TICK, call), [Turn::Long(what, LONG)], "another wait");
    }
}

#[test]
fn a_receiver_without_data_is_no_warning() {
    let mut world = World::new();
    world.pass.is_outstanding = true;
    assert_eq!(world.passes(s(600), nothing), []);
    assert!(matches!(world.waits(), Some((Awaited::Data, _))));
    assert_eq!(world.passes(s(1), done), []);
}

#[test]
fn time_in_which_the_process_did_not_run_does_not_count() {
    let mut world = World::new();
    world.passes(s(10) + TICK, no_receive);
    no_receive(&mut world.pass.counts);
    assert_eq!(world.pass(s(3600)), None);
    assert_eq!(world.waits(), Some((Awaited::Receive, s(10) + LATE)));
    assert_eq!(world.passes(s(50) - LATE - TICK, no_receive), []);
    assert_eq!(world.passes(TICK, no_receive), [Turn::Long(Awaited::Receive, LONG)]);
}
