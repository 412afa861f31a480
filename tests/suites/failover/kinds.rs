//! Every fault at each work request of each kind of traffic.

use mpib_tests::{here, isolated};

use super::points::{Ends, FAULTS, env, every_point, two_hosts};
use super::traffic::Traffic;

/// Runs every fault at the work requests of `traffic` over `n` rails.
fn on_rails(test: &str, n: usize, more: &[(&str, &str)], traffic: &Traffic) {
    let devices = two_hosts(n);
    let log = isolated(test, &env(&devices, more), || {
        every_point(&Ends::two_hosts(12, n), traffic, &FAULTS);
    });
    report(test, log);
}

/// Prints the number of fault points of a test.
fn report(test: &str, log: Option<String>) {
    let points = log.iter().flat_map(|log| log.lines()).filter(|line| line.ends_with(" fault points"));
    points.for_each(|line| println!("{test}: {line}"));
}

#[test]
fn tiny_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[8], &[100], &[1]], 4, 4));
}

#[test]
fn large_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[20_000], &[70_001]], 2, 2));
}

#[test]
fn groups() {
    on_rails(
        here!(),
        2,
        &[],
        &Traffic::of(&[&[1000, 5, 4096, 0, 7000, 128, 127, 1], &[0; 8], &[10, 2000, 0]], 2, 3),
    );
}

#[test]
fn empty_messages() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[0], &[0, 0], &[0]], 3, 4));
}

#[test]
fn optional_receives() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[8], &[1000], &[128], &[5000], &[1, 1]], 3, 4).optional());
}

#[test]
fn separate_immediates() {
    let more = [("NCCL_IB_ADAPTIVE_ROUTING", "1"), ("NCCL_IB_AR_THRESHOLD", "256")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[1000], &[200], &[5000]], 2, 3));
}

#[test]
fn completion_records() {
    // The immediate of two rails has no odd size of so many bytes.
    on_rails(here!(), 2, &[], &Traffic::of(&[&[(2 << 20) + 1], &[100]], 1, 2));
}

#[test]
fn stripes() {
    let more = [("NCCL_IB_QPS_PER_CONNECTION", "4"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "1")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[5000], &[100], &[0], &[3000, 0, 100]], 2, 3));
}

#[test]
fn queue_pairs_in_turn() {
    let more = [("NCCL_IB_QPS_PER_CONNECTION", "3"), ("NCCL_IB_SPLIT_DATA_ON_QPS", "0")];
    on_rails(here!(), 2, &more, &Traffic::of(&[&[5000], &[100], &[0], &[3000, 0, 100]], 2, 3));
}

#[test]
fn full_pipelines() {
    on_rails(here!(), 2, &[], &Traffic::of(&[&[2000], &[40], &[300, 0, 5000]], 32, 32));
}

#[test]
fn flushes() {
    on_rails(here!(), 2, &[("MPIB_FLUSH", "1")], &Traffic::of(&[&[1000], &[8], &[0, 300]], 2, 3).flushed());
}

#[test]
fn three_rails() {
    on_rails(here!(), 3, &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 3, 4));
}

#[test]
fn eight_rails() {
    on_rails(here!(), 8, &[], &Traffic::of(&[&[3000], &[8], &[1000, 0, 77]], 2, 4));
}
