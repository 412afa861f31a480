//! Islands: groups of hosts whose SUP networks reach each other.

use std::fmt;
use std::net::IpAddr;

use mpib_proto::{LinkLayer, RailInfo, RailRole};

use super::address::{best, gid_addr};

/// Whether a connection stays within an island.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Both hosts are in one island.
    Intra,
    /// They are not, or it is unknown.
    Inter,
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Intra => "intra-island",
            Self::Inter => "inter-island",
        })
    }
}

/// Returns the class of a connection between two hosts with these rails. The order of the lists
/// does not matter.
///
/// The addresses of the route between both SOUT rails identify the islands: the first `prefix_len`
/// bits (0 to 32) of an IPv4 address, the first 64 bits of a global IPv6 address, the subnet prefix
/// of InfiniBand. If a SOUT is missing or has a link-local address, or if the two cannot be joined,
/// the islands are unknown, which counts as two islands: SOUT joins islands. With a `prefix_len` of
/// 0 all hosts are in one island.
pub(crate) fn class<'a>(
    prefix_len: u8,
    a: impl IntoIterator<Item = &'a RailInfo>,
    b: impl IntoIterator<Item = &'a RailInfo>,
) -> Class {
    let is_sout = |rail: &&RailInfo| rail.role == RailRole::SOUT;
    let one = match (a.into_iter().find(is_sout), b.into_iter().find(is_sout)) {
        _ if prefix_len == 0 => true,
        (Some(a), Some(b)) => one_island(prefix_len, a, b),
        _ => false,
    };
    if one { Class::Intra } else { Class::Inter }
}

fn one_island(prefix_len: u8, a: &RailInfo, b: &RailInfo) -> bool {
    if a.link_layer != b.link_layer {
        return false;
    }
    let Ok(pair) = best(a, b) else { return false };
    if a.link_layer == LinkLayer::InfiniBand {
        return pair.one_subnet;
    }
    let (ours, theirs) = (a.addrs[pair.at.connector].gid, b.addrs[pair.at.acceptor].gid);
    match (gid_addr(ours), gid_addr(theirs)) {
        (IpAddr::V4(a), IpAddr::V4(b)) => {
            let differing = a.to_bits() ^ b.to_bits();
            differing.leading_zeros() >= u32::from(prefix_len) && !a.is_link_local()
        }
        (IpAddr::V6(v6), IpAddr::V6(_)) => !v6.is_unicast_link_local() && ours[..8] == theirs[..8],
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use mpib_proto::unusable_gid;

    use super::*;
    use crate::route::tests::{ib, roce, with};
    use proptest::prelude::*;
    use std::slice::from_ref;

    fn of(prefix_len: u8, a: &str, b: &str) -> Class {
        class(prefix_len, &[roce("a", a, 24, 0)], &[roce("b", b, 24, 0)])
    }

    #[test]
    fn ipv4_islands_share_the_prefix() {
        for (len, a, b, expected) in [
            (24, "10.0.0.1", "10.0.0.254", Class::Intra),
            (24, "10.0.0.1", "10.0.1.1", Class::Inter),
            (16, "10.0.0.1", "10.0.1.1", Class::Intra),
            (23, "10.0.0.1", "10.0.1.1", Class::Intra),
            (32, "10.0.0.1", "10.0.0.1", Class::Intra),
            (32, "10.0.0.1", "10.0.0.0", Class::Inter),
            (31, "10.0.0.1", "10.0.0.0", Class::Intra),
            (1, "10.0.0.1", "192.0.0.1", Class::Inter),
            (0, "10.0.0.1", "192.0.0.1", Class::Intra),
            (24, "169.254.1.1", "169.254.1.2", Class::Inter),
        ] {
            assert_eq!(of(len, a, b), expected, "/{len} {a} {b}");
        }
    }

    #[test]
    fn ipv6_and_infiniband_islands() {
        assert_eq!(of(24, "2001:db8::1", "2001:db8::2"), Class::Intra);
        assert_eq!(of(24, "2001:db8::1", "2001:db8:0:1::1"), Class::Inter);
        assert_eq!(of(24, "fe80::1", "fe80::2"), Class::Inter);
        assert_eq!(of(24, "10.0.0.1", "2001:db8::1"), Class::Inter);
        assert_eq!(of(0, "10.0.0.1", "2001:db8::1"), Class::Intra);
        assert_eq!(class(24, &[ib("a", 0)], &[ib("b", 0)]), Class::Intra);
        assert_eq!(class(24, &[ib("a", 0)], &[roce("b", "10.0.0.1", 24, 0)]), Class::Inter);
    }

    #[test]
    fn the_addresses_in_use_identify_the_island() {
        let a = with("a", &[("10.0.0.1", 24), ("10.5.0.1", 24)], true);
        let b = with("b", &[("10.7.0.1", 24), ("10.5.0.2", 24)], true);
        assert_eq!(class(24, from_ref(&a), from_ref(&b)), Class::Intra);
        // Without a known common subnet each uses its first address.
        let b = with("b", &[("10.7.0.1", 24), ("10.5.0.2", 0)], true);
        assert_eq!(class(24, from_ref(&a), from_ref(&b)), Class::Inter);
        // Rails that cannot be joined do not identify an island by their addresses.
        let mut b = with("b", &[("10.0.0.2", 24)], true);
        b.addrs.remove(0);
        let a = with("a", &[("10.0.0.1", 24)], false);
        assert_eq!(class(24, from_ref(&a), from_ref(&b)), Class::Inter);
    }

    #[test]
    fn a_missing_sout_counts_as_two_islands() {
        let (sout, sup) = (roce("a", "10.0.0.1", 24, 0), roce("b", "10.0.0.2", 24, 1));
        assert_eq!(class(24, from_ref(&sout), from_ref(&sup)), Class::Inter);
        assert_eq!(class(24, &[], &[]), Class::Inter);
        assert_eq!(class(0, &[sout], &[sup]), Class::Intra);
    }

    proptest! {
        /// The class is symmetric and agrees with a bit mask.
        #[test]
        fn the_class_is_the_mask_and_symmetric(a: u32, flip in 0u32..32, noise: u32, len in 0u8..=32) {
            let b = a ^ (1 << flip) ^ (noise & ((1 << flip) - 1));
            let text = |bits: u32| std::net::Ipv4Addr::from_bits(bits);
            let plain = |bits| !text(bits).is_link_local() && unusable_gid(text(bits).into()).is_none();
            prop_assume!(plain(a) && plain(b));
            let mask = if len == 0 { 0 } else { u32::MAX << (32 - len) };
            let expected = if a & mask == b & mask { Class::Intra } else { Class::Inter };
            prop_assert_eq!(of(len, &text(a).to_string(), &text(b).to_string()), expected);
            prop_assert_eq!(of(len, &text(b).to_string(), &text(a).to_string()), expected);
        }
    }
}
