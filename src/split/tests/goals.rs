//! What the measured split reaches on rails whose ports all report the same speed, as a part of what
//! is possible. In simulated time, so a figure is the same in each run.

use super::world::{MS, SECOND, World};
use crate::config::Config;

const KIB: usize = 1 << 10;
const MIB: usize = 1 << 20;

/// Speeds that the ports report, in Mb/s. With the first messages are split from some 1.6 KiB on, with
/// the second from 64 KiB on.
const REPORTED: [u32; 2] = [2_500, 100_000];
const SEEDS: std::ops::Range<u64> = 1..4;

/// What one process does: so many connections, each with so many messages in flight.
#[derive(Clone, Copy)]
struct Load {
    connections: usize,
    depth: usize,
    size: usize,
}

/// The eight channels of a ring.
fn ring(size: usize) -> Load {
    Load { connections: 8, depth: 8, size }
}

fn one(size: usize) -> Load {
    Load { connections: 1, depth: 8, size }
}

fn sum(rates: &[u64]) -> f64 {
    rates.iter().sum::<u64>() as f64 * 1e6
}

/// Returns the part of the rails' sum in percent that a new process reaches after half a second, or
/// after its messages in flight were exchanged four times.
fn reached(rates: &[u64], speed: u32, load: Load, seed: u64) -> f64 {
    let Load { connections, depth, size } = load;
    let mut world = World::new(rates, seed);
    let (process, ports): (_, Vec<usize>) = (world.process(), (0..rates.len()).collect());
    (0..connections).for_each(|_| world.job(&process, &ports, speed, size, depth));
    let queue = (SECOND as f64 * (connections * depth * size) as f64 / sum(rates)) as u64;
    world.run((500 * MS).max(4 * queue));
    let done: f64 = world.goodput((500 * MS).max(6 * queue)).iter().sum();
    100.0 * done / sum(rates)
}

fn all_reach(rates: &[u64], load: Load, least: f64) {
    for (speed, seed) in REPORTED.into_iter().flat_map(|speed| SEEDS.map(move |seed| (speed, seed))) {
        let found = reached(rates, speed, load, seed);
        assert!(
            found >= least,
            "{found:.1} % of {rates:?}, {} connections with {} KiB, ports report {speed} Mb/s, seed {seed}",
            load.connections,
            load.size / KIB
        );
    }
}

//= split.md: small messages are measured, too
#[test]
fn small_messages_reach_the_sum_of_unequal_rails() {
    all_reach(&[300, 100], ring(4 * KIB), 90.0);
    all_reach(&[300, 100], ring(16 * KIB), 97.0);
    all_reach(&[300, 100], ring(32 * KIB), 97.0);
    all_reach(&[300, 100], one(16 * KIB), 95.0);
}

/// NCCL's LL128 and Simple, and chunks of 4 MiB.
#[test]
fn rings_reach_the_sum_of_unequal_rails() {
    for size in [120 * KIB, 512 * KIB, 4 * MIB] {
        all_reach(&[300, 100], ring(size), 98.0);
    }
}

/// 63 peers, one message in flight to each.
#[test]
fn an_all_to_all_reaches_the_sum_of_unequal_rails() {
    for size in [16 * KIB, 64 * KIB] {
        all_reach(&[300, 100], Load { connections: 63, depth: 1, size }, 97.0);
    }
}

/// The channels of a small all-reduce begin each step together.
//= measured-split.md: small messages of all connections together use all rails
#[test]
fn channels_that_begin_together_use_all_rails() {
    let worlds = [[200, 200], [600, 200], [200, 600]].into_iter().flat_map(|r| REPORTED.map(|s| (r, s)));
    for (rates, speed) in worlds {
        for (channels, size) in [(1, 512), (1, 4096), (2, 512), (2, 2048), (4, 1024), (8, 512), (8, 3072)] {
            let mut world = World::new(&rates, 1);
            let process = world.process();
            (0..channels).for_each(|_| world.job(&process, &[0, 1], speed, size, 1));
            world.steps(500 * MS);
            let took = world.steps(500 * MS) / 1e3;
            // With the latency of the simulation.
            let best = 1e6 * (channels * size) as f64 / sum(&rates) + 4.0;
            let what = format!("{channels} x {size} bytes, {rates:?}, ports report {speed} Mb/s");
            assert!(took < 1.35 * best, "{took:.1} us, best {best:.1}: {what}");
        }
    }
}

/// NCCL says by setNetAttr that an all-to-all comes. Whole messages, which it suggests, would not be
/// faster.
#[test]
fn whole_messages_bring_an_all_to_all_nothing() {
    for (rates, size) in
        [[300, 100], [200, 200]].into_iter().flat_map(|r| [64, 512].map(|kib| (r, kib * KIB)))
    {
        let [split, whole] = [None, Some(1 << 30)].map(|split_min| {
            let config = Config { split_min, ..Config::default() };
            let mut world = World::new(&rates, 1);
            let process = world.process();
            (0..63).for_each(|_| world.job_with(&config, &process, &[0, 1], REPORTED[1], size, 1));
            world.run(2 * SECOND);
            100.0 * world.goodput(2 * SECOND).iter().sum::<f64>() / sum(&rates)
        });
        assert!(split >= 98.0 && split >= whole - 1.0, "{split:.1} %, whole {whole:.1} %, {rates:?}, {size}");
    }
}

//= measured-split.md: rails carry in proportion to their measured goodput
#[test]
fn large_messages_reach_the_sum_of_unequal_rails() {
    for size in [512 * KIB, 2 * MIB, 4 * MIB, 16 * MIB] {
        all_reach(&[200, 100, 50], one(size), 98.0);
    }
    for size in [512 * KIB, 4 * MIB] {
        all_reach(&[100, 90, 80, 70, 60, 50, 40, 30], one(size), 98.0);
    }
    all_reach(&[300, 300], Load { connections: 2, depth: 8, size: 4 * MIB }, 98.0);
}

/// A message that waits for the one before it is to end early.
//= mpib.md: on slow rails, smaller messages are split
#[test]
fn a_message_alone_is_carried_by_all_rails_that_are_slow() {
    for (rates, size) in
        [[600, 200], [200, 200]].into_iter().flat_map(|r| [4, 8, 16, 32].map(|s| (r, s * KIB)))
    {
        for speed in REPORTED {
            let mut world = World::new(&rates, 1);
            let process = world.process();
            world.job(&process, &[0, 1], speed, size, 1);
            world.run(500 * MS);
            let took = 1e6 * size as f64 / world.goodput(500 * MS)[0];
            // With the latency of the simulation.
            let best = 1e6 * size as f64 / sum(&rates) + 4.0;
            assert!(took < 1.1 * best, "{took:.1} us, best {best:.1}, {rates:?}, {size} bytes, {speed} Mb/s");
        }
    }
}

/// On rails that need less than 5 µs for it.
#[test]
fn a_message_alone_goes_whole_on_fast_rails() {
    for (rates, size) in [([12_500; 2], 32 * KIB), ([5_000; 2], 8 * KIB), ([50_000, 25_000], 64 * KIB - 128)]
    {
        let mut world = World::new(&rates, 1);
        let process = world.process();
        world.job(&process, &[0, 1], 100_000, size, 1);
        world.run(500 * MS);
        let before = [0, 1].map(|port| world.carried(port));
        world.run(MS);
        let carried = [0, 1].map(|port| world.carried(port) - before[port]);
        assert!(carried.iter().all(|bytes| bytes % size as u64 == 0), "{carried:?}, {rates:?}, {size} bytes");
    }
}

/// Returns what both jobs have in MB/s, in the same process or in two.
fn two_jobs(rates: &[u64], ports: [&[usize]; 2], is_one_process: bool, size: usize, seed: u64) -> [f64; 2] {
    let mut world = World::new(rates, seed);
    let processes = [world.process(), world.process()];
    for (job, ports) in ports.into_iter().enumerate() {
        let process = &processes[if is_one_process { 0 } else { job }];
        world.job(process, ports, REPORTED[1], size, 8);
    }
    world.run(SECOND);
    let found = world.goodput(SECOND);
    [0, 1].map(|job| found[job] / 1e6)
}

//= measured-split.md: a job on a single rail has its turns
#[test]
fn a_single_rail_beside_a_fused_one_has_its_turns() {
    for (is_one_process, seed) in [true, false].into_iter().flat_map(|p| SEEDS.map(move |seed| (p, seed))) {
        let [fused, single] = two_jobs(&[200, 200], [&[0, 1], &[0]], is_one_process, 512 * KIB, seed);
        assert!(single >= 98.0 && fused + single >= 392.0, "{fused:.0} + {single:.0}, seed {seed}");
    }
}

#[test]
fn two_jobs_with_a_rail_in_common_reach_the_sum() {
    for (is_one_process, size) in [(true, 16 * KIB), (true, 512 * KIB), (false, 16 * KIB), (false, 512 * KIB)]
    {
        let found = two_jobs(&[200; 3], [&[0, 1], &[1, 2]], is_one_process, size, 1);
        let both = found[0] + found[1];
        assert!(both >= 588.0 && found.iter().all(|job| *job >= 0.4 * both), "{found:.0?} {size}");
    }
}

/// Returns how long after a change less than 95 % of the best are reached, in ms. Throughput is that
/// of 64 messages.
fn time_back(world: &mut World, size: usize, best: f64) -> f64 {
    let window = (64.0 * size as f64 / best * SECOND as f64) as u64;
    let windows = SECOND.div_ceil(window).clamp(20, 400);
    let is_less = |world: &mut World| world.goodput(window).iter().sum::<f64>() < 0.95 * best;
    let less = (1..=windows).filter(|_| is_less(world)).count() as u64;
    (less * window) as f64 / MS as f64
}

//= split.md: shares follow a rate that changes
#[test]
fn shares_follow_a_rate_that_changes_at_every_size() {
    for (speed, size) in REPORTED.into_iter().flat_map(|s| [16, 64, 512, 4096].map(|size| (s, size * KIB))) {
        let mut world = World::new(&[400, 400], 1);
        let process = world.process();
        world.job(&process, &[0, 1], speed, size, 8);
        world.run(500 * MS);
        for rate in [200, 400, 200, 400] {
            world.set_rate(1, rate);
            let back = time_back(&mut world, size, (400 + rate) as f64 * 1e6);
            assert!(back <= 25.0, "{back:.1} ms, {} KiB, {rate} MB/s, ports report {speed} Mb/s", size / KIB);
        }
    }
}

/// A process that was stopped while a part was in flight measures next to nothing.
#[test]
fn a_rail_that_was_measured_far_too_slow_is_used_again() {
    let loads = [1, 8].into_iter().flat_map(|depth| [2, 4, 16, 64, 512].map(|size| (depth, size * KIB)));
    for (speed, (depth, size)) in REPORTED.into_iter().flat_map(|s| loads.clone().map(move |load| (s, load)))
    {
        let mut world = World::new(&[30, 10], 1);
        let process = world.process();
        [30_000_000, 1000].into_iter().enumerate().for_each(|(port, rate)| {
            world.set_measured(&process, port, rate);
        });
        world.job(&process, &[0, 1], speed, size, depth);
        world.run(11 * SECOND);
        let before = world.carried(1);
        world.run(SECOND);
        let carried = world.carried(1) - before;
        let least = if depth == 1 { 1 } else { 8_000_000 };
        assert!(carried >= least, "{carried} bytes, {depth} x {} KiB, ports report {speed} Mb/s", size / KIB);
    }
}
