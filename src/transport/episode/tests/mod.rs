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
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    //= protocol.md: episode: every part arrives once, no buffer is written after its time
    #[test]
    fn every_message_arrives_and_no_buffer_is_written_after_its_time(
        n in 1u8..=4,
        choices in prop::collection::vec(any::<u32>(), 0..600),
    ) {
        let mut world = World::new(n);
        choices.iter().for_each(|choice| world.step(*choice));
        world.settle();
        let (lost, open) = (world.not_arrived(), world.not_complete());
        prop_assert!(lost.is_empty(), "groups {:?} never arrive", lost);
        prop_assert!(open.is_empty(), "{:?} never complete", open);
        prop_assert_eq!(world.dead(), (0, 0), "rails never come back");
    }
}
