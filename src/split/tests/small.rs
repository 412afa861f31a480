//! Messages that go whole on one rail.

use super::*;

/// What small messages of these sizes put on SOUT and SUP with this splitter.
fn carried(splitter: &mut Splitter, sizes: &[usize]) -> [usize; 2] {
    let mut bytes = [0; 2];
    for size in sizes {
        let split = cut(splitter, *size).unwrap();
        assert_eq!(split.parts().count(), 1, "{size} bytes are split");
        for part in split.parts() {
            bytes[part.rail] += part.len;
        }
    }
    bytes
}

fn default_limits() -> Limits {
    Limits::new(&Config::default(), &[])
}

//= configuration.md: MPIB_SPLIT_MIN
#[test]
fn messages_from_split_min_on_are_split() {
    let limits = Limits { sout_only: 0, split_min: 4096, is_set: true };
    let mut splitter = new(Plan::Shared(Class::Intra), Source::Fixed(512), limits, &BOTH);
    for (size, rails) in [(4095, 1), (4096, 2), (256, 1), (1 << 30, 2)] {
        assert_eq!(cut(&mut splitter, size).unwrap().parts().count(), rails, "{size} bytes");
    }
    let mut all = new(Plan::Plain, by_speed(&[(1, 1), (1, 1)]), limits, &BOTH);
    assert_eq!([4095, 4096].map(|size| cut(&mut all, size).unwrap().parts().count()), [1, 2]);
}

//= mpib.md: on slow rails, smaller messages are split
#[test]
fn the_default_of_split_min_is_a_time() {
    let split_min = |speeds: &[(u32, u32)]| Limits::new(&Config::default(), speeds).split_min;
    for (speeds, bytes) in [
        (&[][..], 65_536),
        (&[(0, 0), (0, 0)], 65_536),
        (&[(400_000, 400_000), (100_000, 100_000)], 65_536),
        (&[(10_000, 100_000), (100_000, 10_000)], 6_553),
        (&[(10_000, 10_000), (100_000, 100_000)], 65_536),
        (&[(1, 1), (1, 1)], 0),
    ] {
        assert_eq!(split_min(speeds), bytes, "{speeds:?}");
    }
    let config = Config { split_min: Some(512), ..Config::default() };
    assert_eq!(Limits::new(&config, &[(10_000, 10_000)]).split_min, 512);
}

//= mpib.md: small messages go whole, and over many of them SUP carries its share
#[test]
fn small_messages_keep_a_share_of_all_or_nothing() {
    let agent = Hint::default();
    let mut splitter = new(Plan::Shared(Class::Inter), hinted(agent.clone()), default_limits(), &BOTH);
    let sizes = [1, 127, 128, 4096, 65_535].repeat(20);
    let sum: usize = sizes.iter().sum();
    for share in [512, 0, 700, 1024, 1, 0, 1023, u16::MAX] {
        agent.0.store(share, Ordering::Relaxed);
        let [sout, sup] = carried(&mut splitter, &sizes);
        assert_eq!(sout + sup, sum);
        match share {
            0 => assert_eq!(sup, 0),
            1024.. => assert_eq!(sout, 0),
            _ => {}
        }
    }
}

/// Messages that MPIB_BDP_THRESHOLD keeps on SOUT do not count.
#[test]
fn the_threshold_does_not_change_the_share_of_other_small_messages() {
    let limits = Limits { sout_only: 1024, ..default_limits() };
    let mut splitter = new(Plan::Shared(Class::Inter), hint(512), limits, &BOTH);
    let sizes = [1024, 32_768].repeat(100);
    assert_eq!(carried(&mut splitter, &sizes), [100 * 1024 + 50 * 32_768, 50 * 32_768]);
}

/// A splitter between plain rails of these speeds, for small messages.
fn whole(speeds: &[u32]) -> Splitter {
    let speeds: Vec<_> = speeds.iter().map(|speed| (*speed, *speed)).collect();
    let roles: Vec<RailRole> = RailRole::all().take(speeds.len()).collect();
    new(Plan::Plain, by_speed(&speeds), default_limits(), &roles)
}

//= fused-devices.md: small messages go whole on the rail with the least in flight
#[test]
fn small_messages_take_the_least_busy_rail() {
    let chosen = |splitter: &mut Splitter, size, in_flight: &[u32]| {
        let mut split = Split::NONE;
        assert!(splitter.split(size, |rail| in_flight[rail], &mut split));
        let rail = split.rails().lowest().unwrap();
        assert_eq!(split.bytes(rail), size);
        rail
    };
    let mut equal = whole(&[100, 100, 100]);
    for (in_flight, rail) in [([0, 0, 0], 0), ([1, 0, 0], 1), ([1, 1, 0], 2), ([1, 1, 1], 0), ([3, 2, 2], 1)]
    {
        assert_eq!(chosen(&mut equal, 4096, &in_flight), rail, "{in_flight:?}");
    }
    // A rail of four times the speed has four times as many requests in flight.
    let mut unequal = whole(&[100, 400]);
    for (in_flight, rail) in [([0, 0], 1), ([0, 2], 1), ([0, 3], 0), ([0, 4], 0), ([1, 4], 1), ([1, 7], 0)] {
        assert_eq!(chosen(&mut unequal, 4096, &in_flight), rail, "{in_flight:?}");
    }
    // Below 128 bytes the first rail carries all.
    assert_eq!(carriers(&mut unequal, 127), 1);
}

#[test]
fn small_transfers_are_decided_before() {
    let decided = |plan, source, sout_only| {
        let splitter = new(plan, source, exact(sout_only), &BOTH);
        splitter.decided().map(|(below, rail)| (below, rail, splitter.share(1)))
    };
    let shared = Plan::Shared(Class::Inter);
    assert_eq!(decided(shared, Source::Fixed(341), 0), Some((128, 0, Some(341))));
    assert_eq!(decided(shared, Source::Fixed(1024), 0), Some((128, 1, Some(1024))));
    assert_eq!(decided(shared, hint(1024), 4096), Some((4097, 0, Some(0))));
    assert_eq!(decided(shared, hint(1024), 0), None);
    let alone = Some((usize::MAX, 0, None));
    assert_eq!(decided(Plan::Isolated(Class::Inter), Source::Fixed(341), 0), alone);
    assert_eq!(weighed(&[(1, 1), (2, 2)]).decided(), Some((128, 0)));
}

proptest! {
    /// After each message, what SUP has carried differs from its share by less than the largest
    /// message: by the larger of both shares of it at most.
    //= mpib.md: small messages go whole, and over many of them SUP carries its share
    #[test]
    fn small_messages_keep_the_share_in_bytes(
        sizes in prop::collection::vec(128usize..64 << 10, 1..200),
        share in 1u16..1024,
    ) {
        let mut splitter = new(Plan::Shared(Class::Intra), Source::Fixed(share), default_limits(), &BOTH);
        let (mut sum, mut sup, mut largest) = (0, 0, 0);
        for size in sizes {
            sup += carried(&mut splitter, &[size])[1];
            (sum, largest) = (sum + size, largest.max(size));
            let off = (sup * 1024).abs_diff(sum * usize::from(share));
            prop_assert!(off <= largest * usize::from(share.max(1024 - share)), "{sup} of {sum} bytes with {share}");
        }
    }
}
