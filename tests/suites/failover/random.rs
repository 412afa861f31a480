//! Scenarios that are drawn: traffic of any kind, two-sided or one-sided, over 1 to 8 rails while any
//! faults that can be survived strike and end. No byte and no signal may be wrong, no request may
//! fail, and nothing may stand still.

use std::panic::catch_unwind;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use mpib_tests::one_sided::{OneSided, Plan};
use mpib_tests::pair::LIMIT;
use mpib_tests::process::{WITHOUT_SRQ, is_child};
use mpib_tests::proxy::reset_sockets;
use mpib_tests::rma::{CUDA, Group, HOST, rma_tables};
use mpib_tests::rng::Rng;
use mpib_tests::table::TABLES;
use mpib_tests::{here, isolated};
use softverbs::{
    CompletionStatus, CqOf, Direction, Fault, Part, Then, heal, inject, inject_at, set_link, set_rate,
};

use super::failback::sent;
use super::points::{Ends, at_once, env, two_hosts_with};
use super::traffic::Traffic;

/// How many scenarios run, and from which number on.
const COUNT: &str = "RANDOM_FAULTS";
const BY_DEFAULT: u64 = 12;
/// The seed of the scenario of a process.
const SEED: &str = "TEST_SEED";

/// Bytes per second of a port that no fault slows down.
const FULL_RATE: u64 = 100_000_000_000;
/// Statuses that cost a rail, and numbers that no library knows.
const STATUSES: [u32; 12] = [2, 3, 6, 7, 11, 12, 13, 19, 20, 21, 77, 1 << 31];

/// What happens to one adapter, or to the control connection.
#[derive(Debug, Clone, Copy)]
enum Strike {
    /// A fault of the whole port.
    Port(Fault),
    /// A fault of one of the next work requests.
    Request(Fault, u64),
    /// The link goes down and up.
    Blink,
    /// The port has this rate in bytes per second.
    Rate(u64),
    /// The control connection is reset.
    Reset,
}

/// A fault, and when it begins and ends.
#[derive(Debug, Clone, Copy)]
struct Event {
    begins: Duration,
    lasts: Duration,
    /// The index of the adapter: receivers are first.
    adapter: usize,
    strike: Strike,
}

/// What moves.
#[derive(Debug)]
enum Moves {
    Messages {
        version: u32,
        traffic: Traffic,
    },
    Puts {
        version: u32,
        ranks: usize,
        plan: Plan,
        /// Puts of each rank to each one in a run.
        puts: u64,
        /// Each run registers new windows.
        new_windows: bool,
        seed: u64,
    },
}

/// The two kinds of traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Sides {
    Two,
    One,
}

/// Runs the traffic once, and calls what it is passed again and again meanwhile.
type Run<'a> = dyn FnMut(&mut dyn FnMut()) + 'a;

#[derive(Debug)]
struct Scenario {
    rails: usize,
    infiniband: bool,
    srq: bool,
    settings: Vec<(&'static str, &'static str)>,
    moves: Moves,
    events: Vec<Event>,
    /// Whether all rails must carry data in the end.
    returns: bool,
}

fn between(rng: &mut Rng, least: u64, most: u64) -> Duration {
    Duration::from_millis(least + rng.below((most - least) as usize) as u64)
}

impl Strike {
    fn draw(rng: &mut Rng, sender: bool) -> Self {
        let then = rng.pick(&[Then::Silent, Then::Down, Then::Alive]);
        let at = 1 + rng.below(30) as u64;
        match rng.below(12) {
            0 | 1 => Self::Port(Fault::LinkDown),
            2 | 3 => Self::Port(Fault::Silence(rng.pick(&[Direction::In, Direction::Out, Direction::Both]))),
            4 => Self::Request(Fault::LostAck(then), at),
            5 => Self::Request(Fault::Late(between(rng, 0, 20), then), at),
            6 => Self::Request(Fault::Partial(Part::Percent(rng.below(101) as u8), then), at),
            7 => Self::Request(Fault::Status(CompletionStatus::from(rng.pick(&STATUSES))), at),
            // A receiver whose completion queue fails may lose what it has acknowledged.
            8 if sender => Self::Request(Fault::CqError(rng.pick(&[CqOf::Send, CqOf::Recv])), at),
            8 | 9 => Self::Blink,
            10 => Self::Rate(rng.pick(&[1_000_000, 20_000_000, 500_000_000])),
            _ => Self::Reset,
        }
    }

    fn begin(self, device: &str) {
        match self {
            Self::Port(fault) => inject(device, fault).unwrap(),
            Self::Request(fault, at) => inject_at(device, fault, at, at_once(fault).only()).unwrap(),
            Self::Blink => [false, true].into_iter().for_each(|up| set_link(device, up).unwrap()),
            Self::Rate(rate) => set_rate(device, rate).unwrap(),
            Self::Reset => drop(reset_sockets(|_| true)),
        }
    }

    fn end(self, device: &str) {
        match self {
            Self::Port(_) | Self::Request(..) => heal(device).unwrap(),
            Self::Rate(_) => set_rate(device, FULL_RATE).unwrap(),
            Self::Blink | Self::Reset => {}
        }
    }
}

impl Scenario {
    fn draw(seed: u64, sides: Sides) -> Self {
        let mut rng = Rng::new(seed);
        let rails = rng.pick(&[1, 1, 2, 2, 2, 2, 3, 4, 6, 8]);
        let mut settings = Vec::new();
        if rng.below(3) == 0 {
            settings.push(("NCCL_IB_QPS_PER_CONNECTION", rng.pick(&["2", "3", "4"])));
            settings.push(("NCCL_IB_SPLIT_DATA_ON_QPS", rng.pick(&["0", "1"])));
        }
        if rng.below(4) == 0 {
            settings.push(("NCCL_IB_ADAPTIVE_ROUTING", "1"));
            settings.push(("NCCL_IB_AR_THRESHOLD", rng.pick(&["0", "256"])));
        }
        if rng.below(4) == 0 {
            settings.push(("MPIB_SPLIT", "speed"));
        }
        if rng.below(4) == 0 {
            settings.push(("MPIB_SPLIT_MIN", rng.pick(&["4096", "1000000"])));
        }
        let moves = match sides {
            Sides::Two => Moves::messages(&mut rng),
            Sides::One => Moves::puts(&mut rng),
        };
        if matches!(&moves, Moves::Messages { traffic, .. } if traffic.flush) {
            settings.push(("MPIB_FLUSH", "1"));
        }
        let event = |rng: &mut Rng| {
            let adapter = rng.below(2 * rails);
            let strike = Strike::draw(rng, sides == Sides::Two && adapter >= rails);
            Event { begins: between(rng, 0, 600), lasts: between(rng, 1, 700), adapter, strike }
        };
        let events: Vec<_> = (0..1 + rng.below(6)).map(|_| event(&mut rng)).collect();
        let (infiniband, srq) = (rng.below(4) == 0, rng.below(3) > 0);
        // Whole messages need not use every rail, and small ones no rail that was slow.
        let uses_all = moves.largest() >= 2_000
            && settings.iter().all(|(name, _)| *name != "MPIB_SPLIT_MIN")
            && events.iter().all(|event| !matches!(event.strike, Strike::Rate(_)));
        let returns = uses_all && rng.below(6) == 0;
        Self { rails, infiniband, srq, settings, moves, events, returns }
    }

    fn devices(&self) -> String {
        let more = match self.moves {
            Moves::Messages { .. } => "",
            // What arrives in the memory of a GPU lands after its completion.
            Moves::Puts { .. } => ",dmabuf=on,posted=1ms",
        };
        if !self.infiniband {
            return two_hosts_with(self.rails, more);
        }
        let device = |name: &str, rail: usize, host: usize| {
            let lid = 1 + 2 * rail + host;
            format!("{name}{rail}:link=ib,lid={lid},subnet=0xfe8000000000{rail:04x}{more}")
        };
        let hosts = [("r", 1), ("s", 2)];
        let all = hosts.iter().flat_map(|(name, host)| (0..self.rails).map(|rail| device(name, rail, *host)));
        all.collect::<Vec<_>>().join(";")
    }

    fn run(&self) {
        match &self.moves {
            Moves::Messages { version, traffic } => {
                let ends = Ends::two_hosts(*version, self.rails);
                let mut link = ends.link(traffic);
                self.strike(&ends.devices, self.rails, &mut |each| link.run(each));
                link.close();
            }
            Moves::Puts { version, ranks, plan, puts, new_windows, seed } => {
                let ends = Ends::two_hosts(TABLES[0].version(), self.rails);
                let table = rma_tables().into_iter().find(|table| table.version() == *version).unwrap();
                let devices: Vec<i32> =
                    [ends.receiver, ends.sender].into_iter().cycle().take(*ranks).collect();
                let group = Group::on(table, &devices, plan.contexts);
                let mut rng = Rng::new(*seed);
                let (mut traffic, mut all) = (OneSided::new(&group, *plan, Rng::new(rng.draw())), *puts);
                // The ranks connect.
                traffic.run(all);
                self.strike(&ends.devices, 0, &mut |each| {
                    if *new_windows {
                        let next = OneSided::new(&group, *plan, Rng::new(rng.draw()));
                        std::mem::replace(&mut traffic, next).end();
                        all = 0;
                    }
                    all += puts;
                    traffic.run_with(all, each);
                });
                traffic.end();
                group.close();
            }
        }
    }

    /// Runs traffic until all events are over, and twice more. The devices from `senders` on send.
    fn strike(&self, devices: &[String], senders: usize, run: &mut Run<'_>) {
        run(&mut || {});
        let (start, mut begun, mut ended) = (Instant::now(), 0u64, 0u64);
        let all = (1 << self.events.len()) - 1;
        while ended != all {
            run(&mut || {
                let now = start.elapsed();
                for (i, event) in self.events.iter().enumerate() {
                    let device = &devices[event.adapter];
                    if begun >> i & 1 == 0 && now >= event.begins {
                        event.strike.begin(device);
                        begun |= 1 << i;
                    }
                    if begun >> i & 1 == 1 && ended >> i & 1 == 0 && now >= event.begins + event.lasts {
                        event.strike.end(device);
                        ended |= 1 << i;
                    }
                }
            });
        }
        // An event's end may have healed what a later one has begun, and a fault that has not struck yet
        // must not strike a connection that is closed.
        devices.iter().for_each(|device| heal(device).unwrap());
        (0..2).for_each(|_| run(&mut || {}));
        if self.returns {
            all_rails_return(&devices[senders..], run);
        }
    }
}

impl Moves {
    /// Bytes of the largest message, at least so many.
    fn largest(&self) -> usize {
        match self {
            Self::Messages { traffic, .. } => traffic.groups.iter().flatten().copied().max().unwrap_or(0),
            Self::Puts { plan, .. } => plan.largest,
        }
    }

    fn messages(rng: &mut Rng) -> Self {
        let version = TABLES[rng.below(TABLES.len())].version();
        // NCCL flushes no optional receive, and makes only small ones.
        let optional = rng.below(3) == 0;
        let largest = if optional { 2_000 } else { rng.pick(&[2_000, 10_000, 10_000, 100_000]) };
        let flush = !optional && rng.below(2) == 0;
        let size = |rng: &mut Rng| match rng.below(6) {
            0 => 0,
            1 | 2 => rng.below(256),
            3 => 128 * rng.below(largest / 128),
            _ => rng.below(largest),
        };
        let mut group = || {
            let places = rng.pick(&[1, 1, 1, 1, 2, 3, 8]);
            (0..places).map(|_| size(rng)).collect::<Vec<_>>()
        };
        let groups: Vec<_> = (0..24).map(|_| group()).collect();
        let in_flight = 1 + rng.below(16);
        Self::Messages { version, traffic: Traffic { groups, in_flight, optional, flush } }
    }

    fn puts(rng: &mut Rng) -> Self {
        let tables = rma_tables();
        let version = tables[rng.below(tables.len())].version();
        let (largest, depth) = rng.pick(&[(500, 80), (2_000, 40), (10_000, 16), (100_000, 5), (100_000, 2)]);
        let kinds = [(); 3].map(|()| rng.pick(&[HOST, CUDA]));
        let plan = Plan { contexts: rng.pick(&[1, 2, 4]), kinds, depth: 1 + rng.below(depth), largest };
        Self::Puts {
            version,
            ranks: rng.pick(&[2, 2, 2, 3]),
            plan,
            puts: rng.pick(&[6, 12, 24]),
            new_windows: rng.below(3) == 0,
            seed: rng.draw(),
        }
    }
}

/// Runs traffic until each of the adapters that send has carried data.
fn all_rails_return(senders: &[String], run: &mut Run<'_>) {
    let before: Vec<u64> = senders.iter().map(|device| sent(device)).collect();
    let begin = Instant::now();
    // Small messages may go whole on one rail: data of all sizes is enough.
    while senders.iter().zip(&before).any(|(device, before)| sent(device) == *before) {
        assert!(begin.elapsed() < LIMIT, "a rail does not return");
        run(&mut || {});
    }
}

/// One scenario, in its own process.
fn scenario(test: &str, seed: u64, sides: Sides) {
    let scenario = Scenario::draw(seed, sides);
    let (devices, seed) = (scenario.devices(), seed.to_string());
    let mut more = vec![(SEED, seed.as_str())];
    more.extend_from_slice(&scenario.settings);
    more.extend((!scenario.srq).then_some(WITHOUT_SRQ));
    isolated(test, &env(&devices, &more), || {
        eprintln!("{SEED}={seed}: {scenario:?}");
        scenario.run();
    });
}

/// As many scenarios as are asked for.
fn scenarios(test: &str, sides: Sides) {
    if is_child(test) {
        return scenario(test, std::env::var(SEED).unwrap().parse().unwrap(), sides);
    }
    let count = std::env::var(COUNT).map_or(BY_DEFAULT, |n| n.parse().expect("RANDOM_FAULTS is a number"));
    let (first, _) = Rng::from_env();
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            if number >= count {
                return;
            }
            if catch_unwind(|| scenario(test, first + number, sides)).is_err() {
                failed.lock().unwrap().push(first + number);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(work);
        }
    });
    println!("random faults: {count} scenarios of {test} from {SEED}={first} on");
    let failed = failed.into_inner().unwrap();
    assert!(failed.is_empty(), "{} of {count} scenarios failed: {SEED} of {failed:?}", failed.len());
}

//= failover.md: fault: several rails, one after the other or together, also while an earlier fault is being repaired
//= failover.md: random faults of any rails under any traffic cost no byte and no connection
#[test]
fn random_faults() {
    scenarios(here!(), Sides::Two);
}

//= failover.md: random faults of any rails under any traffic cost no byte and no connection
#[test]
fn random_faults_under_puts() {
    scenarios(here!(), Sides::One);
}
