//! Optional features on a plain device of any number of rails: each alone, and random combinations.
//! One rule gives what every rail should carry, and softverbs counts what it did carry.

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{connect, init};
use mpib_tests::rng::Rng;
use mpib_tests::table::{Ptr, table};
use mpib_tests::vdevices::{Rig, fits_immediate, newest, parts, speeds};
use mpib_tests::{BY_SPEED, NO_PINGS, SPLIT_ALL, here, is_child, set, with_and_without_srq};
use softverbs::{Counters, QpAttributes};

const MIB: usize = 1 << 20;
/// Names the combination of a process.
const CASE: &str = "TEST_CASE";
const RAILS: [usize; 5] = [1, 2, 3, 4, 8];

/// A connection's settings.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Setup {
    /// Version of the table.
    version: u32,
    rails: usize,
    qps: usize,
    split: bool,
    /// Bytes above which data and immediate are separate work requests.
    apart_above: Option<usize>,
    flush: bool,
    ece: bool,
    class: Option<u8>,
    cts_class: Option<u8>,
    timeout: u8,
    /// Single CTS entries are inline in the work request.
    inline: bool,
    /// Single receives have the hint that their completion is optional.
    optional: bool,
}

/// The defaults, except for adaptive routing, whose default depends on the link layer.
const PLAIN: Setup = Setup {
    version: 12,
    rails: 1,
    qps: 1,
    split: false,
    apart_above: None,
    flush: false,
    ece: false,
    class: None,
    cts_class: None,
    timeout: 20,
    inline: true,
    optional: false,
};

impl Setup {
    /// Draws a random value for each setting.
    fn draw(rng: &mut Rng) -> Self {
        let maybe = |rng: &mut Rng, n: usize| (rng.below(2) == 1).then_some(n);
        Self {
            version: rng.pick(&[9, 10, 11, 12]),
            rails: rng.pick(&RAILS),
            qps: rng.pick(&[1, 2, 3, 4, 8, 16]),
            split: rng.below(2) == 1,
            apart_above: rng.pick(&[None, Some(0), Some(8192), Some(100_000)]),
            flush: rng.below(2) == 1,
            ece: rng.below(2) == 1,
            class: maybe(rng, 104).map(|n| n as u8),
            cts_class: maybe(rng, 184).map(|n| n as u8),
            timeout: rng.pick(&[14, 20]),
            inline: rng.below(2) == 1,
            optional: rng.below(2) == 1,
        }
    }

    /// Sets the variables, for the next `init` and the devices that are made after it.
    fn put(&self) {
        let number = |name, value: Option<usize>| set(name, value.map(|n| n.to_string()));
        number("NCCL_IB_QPS_PER_CONNECTION", Some(self.qps));
        number("NCCL_IB_SPLIT_DATA_ON_QPS", Some(self.split.into()));
        number("NCCL_IB_ADAPTIVE_ROUTING", Some(self.apart_above.is_some().into()));
        number("NCCL_IB_AR_THRESHOLD", self.apart_above);
        number("MPIB_FLUSH", Some(self.flush.into()));
        number("NCCL_IB_ECE_ENABLE", Some(self.ece.into()));
        number("NCCL_IB_TC", self.class.map(usize::from));
        number("NCCL_IB_FIFO_TC", self.cts_class.map(usize::from));
        number("NCCL_IB_TIMEOUT", Some(self.timeout.into()));
        number("NCCL_IB_USE_INLINE", Some(self.inline.into()));
    }

    /// Queue pairs of one rail that carry parts of one message.
    fn stripes(&self) -> usize {
        if self.split { self.qps.min(8 / self.rails) } else { 1 }
    }

    /// Queue pairs of one end of one rail.
    fn qps_per_rail(&self) -> usize {
        self.stripes() * self.qps.div_ceil(self.stripes())
    }

    /// Which device the first so many rails are, as NCCL asks for it.
    fn device(&self) -> i32 {
        let devs: Vec<i32> = (0..self.rails as i32).collect();
        if self.rails == 1 { 0 } else { newest().fuse(&devs) }
    }
}

/// Work that a rail has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Did {
    bytes: u64,
    /// Writes without an immediate, CTS writes among them.
    writes: u64,
    /// Writes with an immediate.
    signals: u64,
    doorbells: u64,
    /// Work requests with inline data.
    inlines: u64,
    reads: u64,
}

/// By rail, since the process began; rails are named r0, r1, ….
fn done() -> [Counters; 8] {
    let counters = softverbs::counters();
    std::array::from_fn(|i| counters.iter().find(|d| d.name == format!("r{i}")).unwrap().total)
}

fn during(f: impl FnOnce()) -> [Did; 8] {
    let before = done();
    f();
    let now = done();
    std::array::from_fn(|i| {
        let c = now[i].since(&before[i]);
        let (signals, doorbells, inlines) = (c.writes_with_imm, c.doorbells, c.inlines);
        Did { bytes: c.bytes, writes: c.writes, signals, doorbells, inlines, reads: c.reads }
    })
}

/// Returns the expected work of each rail for a group of sends of these lengths.
fn by_the_rule(setup: &Setup, speeds: &[u32], lens: &[usize]) -> [Did; 8] {
    let mut all = [Did::default(); 8];
    let per_rail = setup.stripes();
    let weights: Vec<u64> =
        speeds[..setup.rails].iter().flat_map(|speed| vec![u64::from(*speed); per_rail]).collect();
    let cut: Vec<Vec<usize>> = lens.iter().map(|len| parts(*len, &weights)).collect();
    let record = lens.len() > 1 || !fits_immediate(lens[0], weights.len());
    let apart = record || setup.apart_above.is_some_and(|most| lens[0] > most);
    let mut active: Vec<usize> = (0..weights.len()).filter(|i| cut.iter().any(|c| c[*i] > 0)).collect();
    if active.is_empty() {
        active.push(0);
    }
    for stripe in &active {
        let rail = &mut all[stripe / per_rail];
        let filled = cut.iter().map(|c| c[*stripe]).filter(|part| *part > 0);
        rail.bytes += filled.clone().sum::<usize>() as u64;
        rail.writes += if apart { filled.count() as u64 } else { 0 };
        rail.signals += 1;
        rail.doorbells += 1;
    }
    all[active[0] / per_rail].bytes += if record { 64 } else { 0 };
    // One write carries all CTS entries.
    all[0].bytes += 64 * lens.len() as u64;
    all[0].writes += 1;
    all[0].doorbells += 1;
    all[0].inlines += u64::from(setup.inline && lens.len() == 1);
    all
}

/// What was set of the queue pairs, which there are just enough of.
fn check_attributes(setup: &Setup) {
    let all = softverbs::qp_attributes();
    let looped = if setup.flush { setup.rails } else { 0 };
    assert_eq!(all.len(), 2 * setup.rails * setup.qps_per_rail() + looped, "{setup:?}: {all:?}");
    for i in 0..setup.rails {
        let name = format!("r{i}");
        let of_rail: Vec<&QpAttributes> = all.iter().filter(|a| a.device == name).collect();
        let between: Vec<_> = of_rail.iter().filter(|a| !a.loopback).collect();
        assert_eq!(between.len(), 2 * setup.qps_per_rail(), "{setup:?}: {of_rail:?}");
        let usual = setup.class.unwrap_or(0);
        let cts = between.iter().filter(|a| setup.cts_class == Some(a.traffic_class)).count();
        assert_eq!(cts, usize::from(setup.cts_class.is_some()), "{setup:?}: {of_rail:?}");
        let options = softverbs::devices()[i].ece.filter(|_| setup.ece);
        for a in &between {
            assert_eq!((a.timeout, a.ece), (setup.timeout, options), "{setup:?}: {a:?}");
            assert!(a.traffic_class == usual || setup.cts_class == Some(a.traffic_class), "{setup:?}: {a:?}");
        }
    }
}

/// A flush of one byte that came: a read on each rail that has carried data, with the setting
/// alone.
fn check_flush(setup: &Setup, rig: &Rig, carried: [bool; 8]) {
    let to = rig.pair.recv_buffer(1);
    let read = during(|| {
        let (rc, request) = rig.pair.table.iflush(rig.pair.recv, &[(to.addr(), 1, to.mr)]);
        assert_eq!((rc, request.is_null()), (Success, !setup.flush), "{setup:?}");
        if !request.is_null() {
            rig.pair.wait(request);
        }
    });
    let expected = carried.map(|carried| u64::from(carried && setup.flush));
    assert_eq!(read.map(|did| did.reads), expected, "{setup:?}");
    to.dereg();
}

/// These groups over a connection with these settings: all as the rule has it.
fn check(setup: &Setup, speeds: &[u32], groups: &[Vec<usize>]) {
    setup.put();
    let first: Ptr = init(table(12));
    let dev = setup.device();
    let ctx = init(table(setup.version));
    let most = groups.iter().map(|lens| lens.iter().sum()).max().unwrap_or(0);
    let mut rig = Rig::of(connect(table(setup.version), ctx, dev), most);
    check_attributes(setup);
    let mut carried = [false; 8];
    rig.optional = setup.optional;
    for lens in groups {
        let did = during(|| rig.exchange(lens));
        let expected = by_the_rule(setup, speeds, lens);
        assert_eq!(did, expected, "{lens:?} with {setup:?} and {speeds:?}");
        carried = std::array::from_fn(|i| carried[i] || expected[i].signals > 0);
    }
    // Now the receiver has seen all that came before.
    rig.optional = false;
    rig.exchange(&[0]);
    check_flush(setup, &rig, carried);
    rig.close();
    assert_eq!((table(setup.version).finalize(ctx), table(12).finalize(first)), (Success, Success));
    assert_eq!(take_warnings(), Vec::<String>::new(), "{setup:?}");
}

/// `body` in a process with eight rails of these speeds; `queues` limits the queues of the adapters.
fn with_speeds(test: &str, of: &[u32; 8], queues: &str, case: &str, body: impl FnOnce()) {
    let rails: Vec<_> = (0..8).map(|i| format!("r{i}:addr=10.0.{i}.1/24,ece=0x7{queues}")).collect();
    let (rails, of) = (rails.join(";"), speeds(of));
    let env = [
        ("SOFTVERBS_DEVICES", rails.as_str()),
        ("MPIB_RAIL_SPEED", of.as_str()),
        SPLIT_ALL,
        BY_SPEED,
        NO_PINGS,
        (CASE, case),
    ];
    with_and_without_srq(test, &env, body);
}

/// Of different speeds.
const SPEEDS: [u32; 8] = [40_000, 30_000, 20_000, 10_000, 10_000, 25_000, 5_000, 12_500];

fn each_alone(test: &str, on: &[Setup]) {
    with_speeds(test, &SPEEDS, "", "", || {
        let groups =
            [vec![0], vec![1], vec![8192], vec![8193], vec![300_000], vec![MIB, 0, 77], vec![3 * MIB + 1]];
        for rails in RAILS {
            for setup in on {
                check(&Setup { rails, ..*setup }, &SPEEDS, &groups);
            }
        }
    });
}

#[test]
fn rails_alone() {
    each_alone(here!(), &[PLAIN]);
}

#[test]
fn queue_pairs_alternating_and_striped() {
    let on = |qps, split| Setup { qps, split, ..PLAIN };
    each_alone(here!(), &[on(4, false), on(1, true), on(2, true), on(4, true), on(16, true)]);
}

#[test]
fn separate_immediates() {
    let on = |bytes| Setup { apart_above: Some(bytes), ..PLAIN };
    each_alone(here!(), &[on(0), on(8192), on(300_000)]);
}

#[test]
fn flushes() {
    each_alone(here!(), &[Setup { flush: true, ..PLAIN }]);
}

#[test]
fn enhanced_connections() {
    each_alone(here!(), &[Setup { ece: true, ..PLAIN }]);
}

#[test]
fn cts_writes_from_memory() {
    each_alone(here!(), &[Setup { inline: false, ..PLAIN }]);
}

#[test]
fn optional_receives() {
    each_alone(here!(), &[Setup { optional: true, ..PLAIN }]);
}

#[test]
fn classes() {
    let on = |class, cts_class| Setup { class, cts_class, ..PLAIN };
    each_alone(here!(), &[on(Some(104), None), on(None, Some(184)), on(Some(104), Some(184))]);
}

#[test]
fn everything_together() {
    let all = Setup {
        qps: 2,
        split: true,
        apart_above: Some(8192),
        flush: true,
        ece: true,
        class: Some(104),
        cts_class: Some(184),
        inline: false,
        optional: true,
        ..PLAIN
    };
    each_alone(here!(), &[all]);
}

/// Speeds, limits of queues, settings and groups of a seed.
fn combination(seed: u64) -> ([u32; 8], &'static str, Setup, Vec<Vec<usize>>) {
    let mut rng = Rng::new(seed);
    // Whole shares for any number of stripes.
    let of = [0; 8].map(|_| 840 * (1 + rng.below(70)) as u32);
    let queues = rng.pick(&["", ",max_srq_wr=3", ",max_srq_wr=67", ",max_qp_wr=64"]);
    let setup = Setup::draw(&mut rng);
    let group = |_| {
        let most = rng.pick(&[2, 200, 20_000, 200_000, MIB / 2]);
        (0..rng.pick(&[1, 1, 1, 2, 8])).map(|_| rng.below(most)).collect()
    };
    (of, queues, setup, (0..20).map(group).collect())
}

/// Each combination runs in a separate process, because tables before v11 have one init per
/// process.
#[test]
fn combinations_drawn_at_random() {
    let (_, mut rng) = Rng::from_env();
    for _ in 0..40 {
        let case = match std::env::var(CASE) {
            Ok(case) => case.parse().unwrap(),
            Err(_) => rng.draw(),
        };
        let (of, queues, setup, groups) = combination(case);
        with_speeds(here!(), &of, queues, &case.to_string(), || check(&setup, &of, &groups));
        if is_child(here!()) {
            return;
        }
    }
}
