//! Faults of software devices, and the rails that they cost.

mod stalls;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use mpib_proto::GidKind;
use mpib_proto::RailSet;
use parking_lot::Mutex;

use super::state::EventState;
use super::watch::{CommWatch, Queues, RailPath};
use crate::config::Config;
use crate::connect::tests::{ports, until};
use crate::device::{Hold, Nic};
use crate::failover::PortState;
use crate::housekeeping::tests::{Count, add};
use crate::housekeeping::{Housekeeping, TICK};
use crate::process::Process;
use crate::stats::{Counters, Reason};
use crate::verbs::{About, AsyncEvent};
use crate::worker::{Steps, THREADS, Urgency};

const QP_FATAL: i32 = 1;
const QP_ACCESS_ERR: i32 = 3;
const CQ_ERR: i32 = 0;
const SRQ_ERR: i32 = 14;
const DEVICE_FATAL: i32 = 8;
const PORT_ACTIVE: i32 = 9;
const PORT_ERR: i32 = 10;
const GID_CHANGE: i32 = 18;

/// Ports of two adapters, and the state without its thread.
struct World {
    state: Arc<EventState>,
    nics: [Arc<Nic>; 2],
    _devices: Hold,
}

impl World {
    fn new() -> Self {
        // Configures the software devices, as every test of this process must.
        ports();
        let process = Process::new();
        let hold = process.devices.open(&Config::default()).unwrap();
        let all = process.devices.nics();
        let state = EventState::new(Arc::clone(&process.stats), Arc::<Housekeeping>::default());
        state.set_nics(all.clone());
        Self { state, nics: [&all[0], &all[1]].map(Arc::clone), _devices: hold }
    }

    /// A comm on these ports with peers that have these GIDs. Its queues on rail i have number
    /// `first + i`.
    fn comm(&self, first: u32, rails: &[(usize, u8)], counters: Option<&Counters>) -> Arc<CommWatch> {
        let queues = rails.iter().zip(first..).map(|((nic, peer), n)| self.queues(*nic, *peer, n)).collect();
        let counters = counters.and_then(Counters::of_rails);
        let comm = EventState::watch(&self.state, format!("comm {first}"), queues, counters);
        comm.set_failover(true);
        comm
    }

    fn queues(&self, nic: usize, peer: u8, number: u32) -> Queues {
        let nic = Arc::clone(&self.nics[nic]);
        let gid = nic.now().unwrap().1[0];
        let route = RailPath { nic, local: (gid.raw, gid.kind), peer: [peer; 16] };
        Queues {
            context: route.nic.context().id(),
            route,
            qps: vec![number],
            cq: Some(number as usize),
            srq: Some(number as usize),
        }
    }

    fn event(&self, nic: usize, kind: i32, about: About) {
        let _line = self.state.handle(&self.nics[nic].context(), &AsyncEvent { kind, about });
    }

    fn port_event(&self, nic: usize, kind: i32) {
        self.event(nic, kind, About::Port(self.nics[nic].port().number));
    }
}

/// Waits until these rails are condemned, on an adapter's thread.
fn await_condemned<const N: usize>(comms: [&CommWatch; N], expected: [u8; N]) {
    let mut all = [0; N];
    until(|| {
        all.iter_mut().zip(comms).for_each(|(all, comm)| *all |= comm.take_condemned().bits());
        (all == expected).then_some(())
    });
}

#[test]
fn a_condemned_rail_marks_the_comm_once_until_it_is_rebuilt() {
    let world = World::new();
    let comm = world.comm(10, &[(0, 1), (1, 1)], None);
    assert!(!comm.is_marked());
    assert_eq!(
        comm.condemn(RailSet::from_bits(0b101), Reason::Stall, "first").bits(),
        0b001,
        "it has two rails"
    );
    assert_eq!((comm.is_marked(), comm.take_condemned().bits(), comm.take_condemned().bits()), (true, 1, 0));
    comm.unmark();
    assert_eq!(
        (comm.condemn(RailSet::from_bits(1), Reason::Stall, "second").bits(), comm.is_marked()),
        (0, false),
        "given up already"
    );
    assert_eq!((comm.cause(0).as_deref(), comm.cause(1), comm.cause(9)), (Some("first"), None, None));
    comm.set_rail(0, None);
    assert_eq!(comm.condemn(RailSet::from_bits(0b11), Reason::Stall, "third").bits(), 0b10);
    comm.set_rail(0, Some(world.queues(0, 1, 20)));
    assert_eq!((comm.cause(0), comm.take_condemned().bits()), (None, 0b10));
    assert_eq!(comm.condemn(RailSet::from_bits(1), Reason::Stall, "fourth").bits(), 1);
    // The earlier life's condemnation is not of the next life.
    comm.set_rail(0, Some(world.queues(0, 1, 21)));
    assert_eq!(comm.take_condemned().bits(), 0);
}

#[test]
fn the_mark_of_an_event_that_ends_the_comm_stays() {
    let world = World::new();
    let comm = world.comm(10, &[(0, 1)], None);
    comm.mark();
    comm.unmark();
    assert!(!comm.is_marked());
    comm.end("an event");
    comm.unmark();
    assert!(comm.is_marked());
}

//= faults.md: 25
//= rail-life.md: what a sign of a fault costs
#[test]
fn a_failed_queue_costs_its_rail_alone() {
    for (kind, about) in [
        (QP_FATAL, About::Qp(11)),
        (QP_ACCESS_ERR, About::Qp(11)),
        (CQ_ERR, About::Cq(11)),
        (SRQ_ERR, About::Srq(11)),
    ] {
        let world = World::new();
        let (comm, other) =
            (world.comm(10, &[(0, 1), (1, 1)], None), world.comm(20, &[(0, 1), (1, 1)], None));
        // Numbers are those of an adapter.
        world.event(0, kind, about);
        assert_eq!(comm.take_condemned().bits(), 0);
        world.event(1, kind, about);
        assert_eq!((comm.take_condemned().bits(), other.take_condemned().bits()), (0b10, 0), "{kind}");
        assert!(comm.is_marked() && !other.is_marked());
        comm.unmark();
        assert!(!comm.is_marked(), "not ended");
    }
}

//= rail-life.md: a dead adapter is not opened again while a connection goes on with it
#[test]
fn a_comm_without_failover_stays_on_a_dead_context_until_an_event_ends_it() {
    let world = World::new();
    let comm = world.comm(10, &[(0, 1)], None);
    let [here, other] = [0, 1].map(|nic: usize| world.nics[nic].context().id());
    assert!(!comm.stays_on(here), "its rail is given up and rebuilt");
    comm.set_failover(false);
    assert_eq!((comm.stays_on(here), comm.stays_on(other)), (true, here == other));
    comm.end("an event");
    assert!(!comm.stays_on(here));
}

//= rail-life.md: what a sign of a fault costs
#[test]
fn a_comm_without_failover_ends() {
    let world = World::new();
    let plain = world.comm(20, &[(0, 1), (1, 1)], None);
    plain.set_failover(false);
    world.event(0, QP_FATAL, About::Qp(20));
    assert_eq!(plain.take_condemned().bits(), 0);
    plain.unmark();
    assert!(plain.is_marked(), "ended");
}

//= rail-life.md: what a sign of a fault costs
#[test]
fn a_failed_adapter_costs_all_rails_on_it_until_it_is_opened_again() {
    let world = World::new();
    let (comm, other) = (world.comm(10, &[(0, 1), (1, 1)], None), world.comm(20, &[(1, 2)], None));
    world.event(0, DEVICE_FATAL, About::Device);
    assert_eq!((comm.take_condemned().bits(), other.take_condemned().bits()), (0b01, 0));
    assert!(comm.cause(0).unwrap().contains("the adapter failed, or was removed"));
    world.port_event(0, PORT_ACTIVE);
    let states = world.nics.each_ref().map(|nic| nic.health().state());
    assert_eq!(states, [PortState::Down, PortState::Healthy]);
    assert!(!comm.may_return(0));
}

//= rail-life.md: what a sign of a fault costs
#[test]
fn a_link_that_goes_down_costs_rails_when_one_of_them_stalls() {
    let world = World::new();
    let comms = [1, 2].map(|peer| world.comm(10 * u32::from(peer), &[(0, peer), (1, peer)], None));
    let late = world.comm(30, &[(0, 3)], None);
    // The event of another port of the adapter.
    world.event(0, PORT_ERR, About::Port(77));
    assert_eq!(world.nics[0].health().state(), PortState::Healthy);
    world.port_event(0, PORT_ERR);
    assert_eq!(world.nics[0].health().state(), PortState::Suspect);
    assert!(comms.iter().all(|comm| !comm.is_marked()));
    comms[0].rail_failed(0, Reason::Completion, "no progress");
    await_condemned([&comms[0], &comms[1]], [0b01, 0b01]);
    assert_eq!(world.nics[0].health().state(), PortState::Down);
    assert_eq!(late.take_condemned().bits(), 0, "its queue pairs may outlive the outage");
    late.rail_failed(0, Reason::Completion, "no progress");
    assert_eq!(late.take_condemned().bits(), 0b01, "and have not");
    assert!(comms[1].cause(0).unwrap().contains("the link went down (IBV_EVENT_PORT_ERR)"));
    // Back: the hold-down begins when the port can be reached.
    world.port_event(0, PORT_ACTIVE);
    assert_eq!(world.nics[0].health().state(), PortState::Probing);
    assert!(!comms[0].may_return(0));
    comms[0].set_rail(0, Some(world.queues(0, 1, 40)));
    comms[0].rail_returned(0);
    assert_eq!(world.nics[0].health().state(), PortState::Healthy);
    assert!(comms[0].may_return(0));
}

//= rail-life.md: a failed route costs the rails to the same peer
#[test]
fn a_failed_rail_of_an_active_port_costs_the_rails_to_the_same_peer() {
    let world = World::new();
    let failed = world.comm(10, &[(0, 1), (1, 1)], None);
    let same = world.comm(20, &[(1, 1), (0, 1)], None);
    let other = world.comm(30, &[(0, 2), (1, 2)], None);
    let plain = world.comm(40, &[(0, 1), (1, 1)], None);
    plain.set_failover(false);
    failed.rail_failed(0, Reason::Completion, "retries exceeded");
    await_condemned([&failed, &same], [0b01, 0b10]);
    assert_eq!([&other, &plain].map(|comm| comm.take_condemned().bits()), [0, 0]);
    assert_eq!(same.cause(1).as_deref(), Some("retries exceeded"));
    assert_eq!(world.nics[0].health().state(), PortState::Healthy);
    assert!(!failed.may_return(0) && other.may_return(0));
    // A connection that was set up over the route proves the route.
    let new = world.comm(50, &[(0, 1)], None);
    // The rail rests a while, also if its route works.
    until(|| failed.may_return(0).then_some(()));
    assert_eq!(new.take_condemned().bits(), 0);
}

//= rail-life.md: the word of a peer costs no other connection a rail
#[test]
fn a_peer_that_gives_rails_up_costs_its_own_connection_alone() {
    let world = World::new();
    let rails = [(0, 1), (1, 1)];
    let [reported, other, late] = [10, 20, 30].map(|first| world.comm(first, &rails, None));
    reported.rails_failed_alone(RailSet::from_bits(0b01), Reason::Peer, "the peer has given it up");
    assert_eq!([&reported, &other].map(|comm| comm.take_condemned().bits()), [0b01, 0]);
    assert_eq!(reported.cause(0).as_deref(), Some("the peer has given it up"));
    // The hold-down of the route does not begin: the others return when they would.
    late.condemn(RailSet::from_bits(0b01), Reason::Completion, "its queue failed");
    until(|| late.may_return(0).then_some(()));
    // This end's own sign concerns all that are left.
    late.set_rail(0, Some(world.queues(0, 1, 40)));
    late.rail_failed(0, Reason::Completion, "retries exceeded");
    await_condemned([&other], [0b01]);
    assert!(!late.may_return(0));
}

/// A link that is down by an event of this end needs no further sign.
//= rail-life.md: what a sign of a fault costs
#[test]
fn the_word_of_a_peer_confirms_that_a_link_is_down() {
    let world = World::new();
    let [reported, other] = [10, 20].map(|first| world.comm(first, &[(0, 1), (1, 1)], None));
    world.port_event(0, PORT_ERR);
    assert_eq!(world.nics[0].health().state(), PortState::Suspect);
    reported.rails_failed_alone(RailSet::from_bits(0b01), Reason::Peer, "the peer has given it up");
    await_condemned([&reported, &other], [0b01, 0b01]);
    assert_eq!(world.nics[0].health().state(), PortState::Down);
}

/// Is in a step until the second channel ends.
struct Stuck(Sender<()>, Mutex<Receiver<()>>);

impl Steps for Stuck {
    fn step(&self) -> bool {
        self.0.send(()).unwrap();
        self.1.lock().recv().is_err()
    }
}

/// The query of a port may block in the kernel. Here all threads of the port do.
//= rail-life.md: no call of NCCL waits for the query of a port
#[test]
fn a_rail_fails_before_its_port_is_queried() {
    let world = World::new();
    let [failed, other] = [10, 20].map(|first| world.comm(first, &[(0, 1), (1, 1)], None));
    let (begun, steps) = channel();
    let stuck: Vec<_> = (0..THREADS)
        .map(|_| {
            let (go_on, waits) = channel();
            let job = Arc::new(Stuck(begun.clone(), Mutex::new(waits)));
            world.nics[0].worker().add(job, Urgency::High).unwrap();
            steps.recv().unwrap();
            go_on
        })
        .collect();
    failed.rail_failed(0, Reason::Completion, "retries exceeded");
    assert_eq!([&failed, &other].map(|comm| comm.take_condemned().bits()), [0b01, 0]);
    assert!(!failed.may_return(0), "it rests");
    drop(stuck);
    await_condemned([&other], [0b01]);
}

//= faults.md: 21: a GID is removed under load: the rails that use it are given up at once
//= rail-life.md: what a sign of a fault costs
#[test]
fn a_removed_address_costs_the_rails_that_use_it() {
    let world = World::new();
    let comm = world.comm(10, &[(0, 1), (1, 1)], None);
    let mut queues = world.queues(0, 1, 20);
    queues.route.local = ([0xfe; 16], GidKind::RoceV2);
    let lost = EventState::watch(&world.state, "lost".into(), vec![queues], None);
    lost.set_failover(true);
    world.port_event(1, GID_CHANGE);
    assert_eq!(lost.take_condemned().bits(), 0, "the event of another port");
    world.port_event(0, GID_CHANGE);
    assert_eq!((lost.take_condemned().bits(), comm.take_condemned().bits()), (0b1, 0));
    assert_eq!(world.nics[0].health().state(), PortState::Healthy);
}

#[test]
fn a_wake_runs_the_job_once_and_the_thread_waits_again() {
    ports();
    let process = Process::new();
    let config = Config::default();
    let _devices = process.devices.open(&config).unwrap();
    let count = Arc::<Count>::default();
    let id = add(&process.housekeeping, &count);
    let (start, runs) = (Instant::now(), || count.runs());
    let await_run = |after: u32| {
        while runs() <= after {
            assert!(start.elapsed() < Duration::from_secs(60));
            std::thread::yield_now();
        }
    };
    let thread = process.events.start(&config, || process.devices.nics()).unwrap();
    await_run(0);
    for _ in 0..5 {
        let before = runs();
        process.housekeeping.wake(id);
        await_run(before);
    }
    await_run(runs() + 2);
    // One run at the start, one for each wake, and one for each tick.
    let ticks = start.elapsed().as_millis() / TICK.as_millis();
    let found = runs();
    assert!(u128::from(found) <= 1 + 5 + ticks + 1, "{found} runs in {ticks} ticks");
    drop(thread);
}
