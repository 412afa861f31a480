//! Which rails a connection uses, and how messages are split.

mod goals;
mod simulated;
mod small;
mod world;

use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};

use mpib_proto::{Mode, RailRole, RailSet, Split, Terms};

use super::splitter::{Limits, Source};
use super::*;
use crate::config::Config;
use crate::route::Class;
use proptest::prelude::*;

const MIB: usize = 1 << 20;
const BOTH: [RailRole; 2] = [RailRole::SOUT, RailRole::SUP];

/// An agent's hint.
#[derive(Debug, Clone, Default)]
struct Hint(Arc<AtomicU16>);

impl HintSource for Hint {
    fn share(&self) -> Option<u16> {
        Some(self.0.load(Ordering::Relaxed))
    }
}

fn hint(share: u16) -> Source {
    hinted(Hint(Arc::new(share.into())))
}

fn hinted(agent: Hint) -> Source {
    Source::Hinted(Box::new(agent), Box::new(Source::Fixed(0)))
}

fn by_speed(speeds: &[(u32, u32)]) -> Source {
    Source::Reported(Arc::new(Reported::new(speeds)))
}

fn new(plan: Plan, source: Source, limits: Limits, roles: &[RailRole]) -> Splitter {
    Splitter::new(plan, source, None, limits, roles)
}

/// Cuts a message while no rail has work requests in flight, and posts it.
fn cut(splitter: &mut Splitter, size: usize) -> Option<Split> {
    let mut split = Split::NONE;
    let done = splitter.split(size, |_| 0, &mut split);
    done.then(|| splitter.posted(&split)).map(|()| split)
}

/// Returns the rails that carry a message, as a mask.
fn carriers(splitter: &mut Splitter, size: usize) -> u8 {
    cut(splitter, size).unwrap().rails().bits()
}

/// The limits of `MPIB_SPLIT_MIN=0`.
fn exact(sout_only: u32) -> Limits {
    Limits { sout_only, split_min: 0, is_set: true }
}

fn parts(splitter: &mut Splitter, size: usize) -> (usize, usize, u8) {
    let split = cut(splitter, size).unwrap();
    (split.bytes(0), split.bytes(1), split.rails().bits())
}

fn masks(share: u16, roles: &[RailRole]) -> [u8; 2] {
    let mut splitter = new(Plan::Shared(Class::Intra), Source::Fixed(share), exact(0), roles);
    [0, MIB].map(|size| carriers(&mut splitter, size))
}

#[test]
fn the_share_counts_where_there_are_two_rails_and_bytes() {
    assert_eq!(masks(0, &BOTH), [1, 1]);
    assert_eq!(masks(512, &BOTH), [1, 3]);
    assert_eq!(masks(1024, &BOTH), [1, 2]);
    assert_eq!(masks(4000, &BOTH), [1, 2]);
    assert_eq!(masks(1024, &[RailRole::SOUT]), [1, 1]);
    assert_eq!(masks(0, &[RailRole::SUP]), [1, 1]);
}

/// Hints of an agent for a transfer of 1 MiB, valid and invalid ones.
//= mpib.md: SUP carries size * share / 1024 bytes, in multiples of 128
#[test]
fn hints_split_one_mebibyte() {
    for (share, sup, mask) in [
        (0, 0, 1),
        (256, 262_144, 3),
        (512, 524_288, 3),
        (768, 786_432, 3),
        (1024, MIB, 2),
        (1025, MIB, 2),
        (u16::MAX, MIB, 2),
    ] {
        for class in [Class::Intra, Class::Inter] {
            let mut splitter = new(Plan::Shared(class), hint(share), exact(0), &BOTH);
            assert_eq!(parts(&mut splitter, MIB), (MIB - sup, sup, mask), "hint {share}, {class}");
        }
    }
}

#[test]
fn a_new_hint_counts_for_the_next_transfer() {
    let agent = Hint::default();
    let mut splitter = new(Plan::Shared(Class::Inter), hinted(agent.clone()), exact(0), &BOTH);
    for (share, mask) in [(0, 1), (1024, 2), (512, 3), (0, 1)] {
        agent.0.store(share, Ordering::Relaxed);
        assert_eq!(carriers(&mut splitter, MIB), mask, "hint {share}");
    }
}

//= mpib.md: MPIB_BDP_THRESHOLD keeps small inter-island transfers on SOUT
#[test]
fn small_transfers_between_islands_stay_on_sout() {
    let all_on_sup = |plan, source| new(plan, source, exact(4096), &BOTH);
    let mut inter = all_on_sup(Plan::Shared(Class::Inter), hint(1024));
    assert_eq!([1, 4096, 4097].map(|size| carriers(&mut inter, size)), [1, 1, 2]);
    // Within an island, and with a fixed share, the threshold does not apply.
    for mut splitter in [
        all_on_sup(Plan::Shared(Class::Intra), hint(1024)),
        all_on_sup(Plan::Shared(Class::Inter), Source::Fixed(1024)),
    ] {
        assert_eq!([1, 4096, 4097].map(|size| carriers(&mut splitter, size)), [2, 2, 2]);
    }
    let mut off = new(Plan::Shared(Class::Inter), hint(1024), exact(0), &BOTH);
    assert_eq!(carriers(&mut off, 1), 2);
}

#[test]
fn vanilla_uses_the_rail_of_the_class_and_the_other_where_it_must() {
    for (class, roles, carrier) in [
        (Class::Intra, &BOTH[..], 1),
        (Class::Intra, &[RailRole::SUP], 0),
        (Class::Intra, &[RailRole::SOUT], 0),
        (Class::Inter, &[RailRole::SOUT], 0),
        (Class::Inter, &[RailRole::SUP], 0),
    ] {
        // Neither a hint nor a threshold matters.
        let mut splitter = new(Plan::Isolated(class), hint(512), exact(1 << 30), roles);
        for size in [0, 1, 128, MIB] {
            let split = cut(&mut splitter, size).unwrap();
            assert_eq!(
                (split.rails().bits(), split.bytes(carrier)),
                (1 << carrier, size),
                "{class} {roles:?}"
            );
        }
    }
}

/// The other rail is given up or drained.
#[test]
fn a_rail_that_carries_all_has_the_whole_share_or_none() {
    for (source, shares) in [
        (Source::Fixed(341), [Some(341), Some(0), Some(1024), None]),
        (hint(341), [Some(341), Some(0), Some(1024), None]),
        (Source::Fixed(0), [Some(0), Some(0), Some(1024), None]),
    ] {
        let mut splitter = new(Plan::Shared(Class::Inter), source, exact(1 << 10), &BOTH);
        for (rails, share) in [0b11, 0b01, 0b10, 0].into_iter().zip(shares) {
            splitter.keep(RailSet::from_bits(rails));
            assert_eq!(splitter.share(MIB), share, "{rails:#04b}");
            let split = cut(&mut splitter, MIB).map(|split| split.rails().bits() & !rails);
            assert_eq!(split, (rails != 0).then_some(0), "{rails:#04b}");
            assert_eq!(
                cut(&mut splitter, 8).map(|split| split.rails().bits() & !rails),
                (rails != 0).then_some(0)
            );
        }
    }
}

/// Mode, fixed share, the peer's failover, class: which rails get queue pairs, which one is required,
/// which one carries CTS writes.
#[test]
fn plans_follow_mode_and_class() {
    use crate::route::tests::roce;
    let table = [
        (Mode::Vanilla, false, false, "10.0.0.2", [false, true], Some(RailRole::SUP), RailRole::SUP),
        (Mode::Vanilla, false, true, "10.0.0.2", [true, true], Some(RailRole::SUP), RailRole::SUP),
        (Mode::Vanilla, false, true, "10.0.1.2", [true, false], Some(RailRole::SOUT), RailRole::SOUT),
        (Mode::Advanced, false, true, "10.0.0.2", [true, true], None, RailRole::SOUT),
        (Mode::Advanced, false, true, "10.0.1.2", [true, true], None, RailRole::SOUT),
        (Mode::Vanilla, true, true, "10.0.0.2", [true, true], None, RailRole::SOUT),
        (Mode::Vanilla, true, true, "10.0.1.2", [true, true], None, RailRole::SOUT),
    ];
    for (mode, fixed_share, failover, peer, joins, home, cts) in table {
        let config = Config { sout_qp: 2, sup_qp: 4, ..Config::default() };
        let terms = Terms { mode, fixed_share, ..terms(&config, true) };
        let theirs = Terms { failover, ..terms };
        let plan = Plan::new(&terms, &theirs, &[roce("a", "10.0.0.1", 24, 0)], &[roce("b", peer, 24, 0)]);
        assert_eq!(BOTH.map(|role| plan.joins(role)), joins, "{mode:?} {peer}");
        assert_eq!(BOTH.map(|role| plan.requires(role)), BOTH.map(|role| home.is_none_or(|h| h == role)));
        assert_eq!((plan.home(), plan.cts()), (home, cts), "{mode:?} {peer}");
        assert_eq!(BOTH.map(|role| plan.stripes(&terms, role, 2).qps()), [2, 4]);
        assert_eq!(BOTH.map(|role| plan.stripes(&terms, role, 2).stripes), [1, 1]);
    }
    let lone = terms(&Config::default(), false);
    let plan = Plan::new(&terms(&Config::default(), true), &lone, &[], &[]);
    let one = Stripes { stripes: 1, turns: 1 };
    assert_eq!((plan, plan.home(), plan.stripes(&lone, RailRole::SUP, 2)), (Plan::Plain, None, one));
    assert!(plan.joins(RailRole::SOUT) && plan.joins(RailRole::SUP));
}

//= fused-devices.md: queue pairs per rail: stripes and turns
#[test]
fn plain_queue_pairs_take_turns_or_carry_parts() {
    for (qps, split, rails, stripes, turns) in [
        (1, false, 1, 1, 1),
        (4, false, 1, 1, 4),
        (128, false, 8, 1, 128),
        (1, true, 8, 1, 1),
        (4, true, 1, 4, 1),
        (4, true, 2, 4, 1),
        (2, true, 4, 2, 1),
        (2, true, 3, 2, 1),
        // More than a mask has bits for.
        (4, true, 4, 2, 2),
        (4, true, 8, 1, 4),
        (16, true, 1, 8, 2),
        (5, true, 2, 4, 2),
        (3, true, 4, 2, 2),
    ] {
        let found = Stripes::plain(qps, split, rails);
        assert_eq!(found, Stripes { stripes, turns }, "{qps} on each of {rails}, {split}");
        assert!(found.stripes * rails <= 8 && found.qps() >= usize::from(qps));
    }
}

fn weighed(speeds: &[(u32, u32)]) -> Splitter {
    let roles: Vec<RailRole> = RailRole::all().take(speeds.len()).collect();
    new(Plan::Plain, by_speed(speeds), exact(4096), &roles)
}

#[test]
fn plain_rails_carry_in_proportion_to_their_slower_end() {
    for (speeds, parts) in [
        (
            &[(400_000, 400_000), (300_000, 400_000), (200_000, 200_000), (400_000, 100_000)][..],
            &[4, 3, 2, 1][..],
        ),
        (&[(1, 1), (2, 3), (7, 5)], &[1, 2, 5]),
        // One unknown speed makes all weights equal.
        (&[(400_000, 400_000), (0, 100_000)], &[1, 1]),
        (&[(100_000, 100_000); 8], &[1; 8]),
        (&[(u32::MAX, u32::MAX), (1 << 31, u32::MAX)], &[2, 1]),
    ] {
        let mut splitter = weighed(speeds);
        let sum: usize = parts.iter().sum();
        let split = cut(&mut splitter, sum << 22).unwrap();
        for (rail, part) in parts.iter().enumerate() {
            let off = split.bytes(rail).abs_diff(part << 22);
            assert!(off < 1024, "rail {rail} of {speeds:?}: {off} bytes off");
        }
        assert_eq!(splitter.share(sum << 22), None);
        assert_eq!((carriers(&mut splitter, 0), carriers(&mut splitter, 127)), (1, 1));
    }
}

/// Whether a message goes as was decided before, if it was.
fn is_as_decided_before(splitter: &mut Splitter, size: usize) -> bool {
    let decided = splitter.decided().filter(|(below, _)| (1..*below).contains(&size));
    decided.is_none_or(|(_, rail)| {
        carriers(splitter, size) == 1 << rail && splitter.share(size) == splitter.share(1)
    })
}

proptest! {
    #[test]
    fn plain_rails_cover_the_transfer(
        size in prop_oneof![0usize..5000, 0usize..1 << 40],
        speeds in prop::collection::vec((any::<u32>(), any::<u32>()), 1..=8),
    ) {
        let split = cut(&mut weighed(&speeds), size).unwrap();
        prop_assert_eq!(split.parts().map(|p| p.len).sum::<usize>(), size);
        prop_assert!(split.parts().filter(|p| p.rail != 0).all(|p| p.len % 128 == 0));
        prop_assert!(split.parts().all(|p| p.offset % 128 == 0));
        prop_assert!(split.rails().bits() != 0 && usize::from(split.rails().bits()) < 1 << speeds.len());
        prop_assert!(is_as_decided_before(&mut weighed(&speeds), size));
    }

    /// For any input every byte goes out once, aligned, on existing rails, and exactly by the rule.
    //= mpib.md: SUP carries size * share / 1024 bytes, in multiples of 128
    #[test]
    fn every_decision_covers_the_transfer(
        size in prop_oneof![0usize..5000, 0usize..1 << 40],
        share in prop_oneof![0u16..=1024, any::<u16>()],
        threshold in prop_oneof![Just(0u32), 0u32..5000, any::<u32>()],
        hinted: bool,
        plan in prop::sample::select(vec![
            Plan::Plain,
            Plan::Isolated(Class::Intra),
            Plan::Isolated(Class::Inter),
            Plan::StandIn,
            Plan::Shared(Class::Intra),
            Plan::Shared(Class::Inter),
        ]),
        roles in prop::sample::select(vec![&BOTH[..], &[RailRole::SOUT], &[RailRole::SUP]]),
    ) {
        let source = if hinted { hint(share) } else { Source::Fixed(share) };
        let mut splitter = new(plan, source, exact(threshold), roles);
        let split = cut(&mut splitter, size).unwrap();
        let sum: usize = split.parts().map(|p| p.len).sum();
        prop_assert_eq!(sum, size);
        prop_assert!(split.rails().bits() != 0 && usize::from(split.rails().bits()) < 1 << roles.len());
        prop_assert!(is_as_decided_before(&mut splitter, size));
        if roles.len() == 1 {
            return Ok(());
        }
        let small = hinted && plan == Plan::Shared(Class::Inter) && size as u64 <= u64::from(threshold);
        let sup = match plan.home() {
            Some(home) => if home == RailRole::SUP { size } else { 0 },
            None if small => 0,
            None if share >= 1024 => size,
            None => (size * usize::from(share)) >> 10 & !127,
        };
        prop_assert_eq!((split.bytes(0), split.bytes(1)), (size - sup, sup));
    }
}
