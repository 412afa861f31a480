//! A sender and a receiver over a simulated fabric. Rails die at any time, together or one by one,
//! also during an episode. A dead rail delivers none, some or all of what is on it, as late as the
//! receiver's queue pair exists, and acknowledges no more. Messages of the control connection are
//! repeated at random. Dead rails, also the last one, are repaired and come back, and die again at
//! any step of that.
//!
//! A model of the receiver's memory shows that every message arrives as it was sent, and that no
//! byte is written into a buffer that NCCL has got back.

mod world;

use proptest::prelude::*;

use crate::proto::{LinkLayer, Mtu, RailInfo, RailRole};
use world::World;

pub(super) fn port() -> RailInfo {
    RailInfo {
        name: String::new(),
        port: 1,
        link_layer: LinkLayer::Ethernet,
        mtu: Mtu::B4096,
        lid: 0,
        addrs: Vec::new(),
        speed_mbps: 0,
        role: RailRole::SOUT,
        requested: true,
        grh_required: false,
        is_down: false,
    }
}

/// Runs `choices` between ends with `n` rails. Asserts that every message arrives, and that all rails
/// come back.
fn check(n: u8, choices: impl Iterator<Item = u32>) {
    let mut world = World::new(n);
    choices.for_each(|choice| world.step(choice));
    world.settle();
    let (lost, open) = (world.not_arrived(), world.not_complete());
    assert!(lost.is_empty(), "groups {lost:?} never arrive");
    assert!(open.is_empty(), "{open:?} never complete");
    assert_eq!(world.dead(), (0, 0), "rails never come back");
}

/// Most choices of one run.
const MAX_CHOICES: usize = 2000;

/// Runs the number of rails and the choices that the bytes stand for.
pub fn simulated(data: &[u8]) {
    let Some((n, choices)) = data.split_first() else { return };
    let choices = choices.as_chunks().0.iter().take(MAX_CHOICES);
    check(n % 4 + 1, choices.map(|bytes| u32::from_le_bytes(*bytes)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    //= protocol.md: episode: every part arrives once, no buffer is written after its time
    #[test]
    fn every_message_arrives_and_no_buffer_is_written_after_its_time(
        n in 1u8..=4,
        choices in prop::collection::vec(any::<u32>(), 0..600),
    ) {
        check(n, choices.into_iter());
    }
}
