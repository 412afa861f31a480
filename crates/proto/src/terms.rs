//! The settings that both ends of a connection must share: each end derives the same rails and
//! queue pairs from them.

use std::fmt;
use std::str::FromStr;

use super::wire::{Codec, DecodeError, Layout, Nested, Reader, Writer, layout, numbered, within};

/// The maximum number of queue pairs of a rail of SOUT and SUP.
pub const MAX_RAIL_QPS: u8 = 32;
/// The maximum number of queue pairs of any other rail.
pub const MAX_PLAIN_QPS: u8 = 128;

/// The name of a number of queue pairs.
const QPS: &str = "queue pairs of a rail";

numbered! {
    /// The split between SOUT and SUP: `MPIB_MODE`.
    Mode, "mode", "0 or 1":
    /// By island: one rail carries all data.
    Vanilla = 0,
    /// By hints: both rails are always joined.
    Advanced = 1,
}

numbered! {
    /// The pairs of rails that a connection may use, and their order: `MPIB_ROUTE`.
    RoutePolicy, "route policy", "0 to 3":
    /// Pairs on a common subnet first.
    PreferSubnet = 0,
    /// Only pairs on a common subnet.
    Subnet = 1,
    /// Pairs of the requested devices first, with or without a common subnet.
    Any = 2,
    /// Only pairs of the requested devices.
    Strict = 3,
}

/// The value of the setting.
impl fmt::Display for RoutePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PreferSubnet => "prefer-subnet",
            Self::Subnet => "subnet",
            Self::Any => "any",
            Self::Strict => "strict",
        })
    }
}

impl FromStr for RoutePolicy {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        Self::ALL.into_iter().find(|policy| policy.to_string() == text).ok_or(())
    }
}

layout! {
    /// The settings of one end that must equal the other's: `route` always; those of SOUT and SUP if
    /// both devices are SOUT and SUP; the last two otherwise.
    #[derive(Copy)]
    pub struct Terms {
        /// `MPIB_ROUTE`
        pub route: RoutePolicy = Nested,
        /// Whether the device is SOUT and SUP, in any state of their ports.
        pub fused: bool = "fused",
        /// `MPIB_MODE`
        pub mode: Mode = Nested,
        /// Whether `MPIB_SUP_SHARE` is set: both rails are joined in either mode then. Only the sender
        /// uses its value.
        pub fixed_share: bool = "fixed share",
        /// `MPIB_ISLAND_PREFIX_LEN`, 0 to 32.
        pub island_prefix_len: u8 = within("island prefix length", 0..=32, "0 to 32"),
        /// `MPIB_SOUT_QP` and `MPIB_SUP_QP`, 1 to [`MAX_RAIL_QPS`].
        pub qps: [u8; 2] = [const { within(QPS, 1..=MAX_RAIL_QPS as u64, "1 to 32") }; 2],
        /// `NCCL_IB_QPS_PER_CONNECTION`, 1 to [`MAX_PLAIN_QPS`]. Ignored if both devices are SOUT and
        /// SUP.
        pub plain_qps: u8 = within(QPS, 1..=MAX_PLAIN_QPS as u64, "1 to 128"),
        /// `NCCL_IB_SPLIT_DATA_ON_QPS`. Ignored likewise.
        pub plain_split: bool = "split",
        /// `MPIB_FAILOVER`. It may differ: a connection has failover if both ends have.
        pub failover: bool = "failover",
    }
}

impl Terms {
    /// Returns the settings that differ and matter for these two ends, with both values.
    pub fn differences(&self, peer: &Self) -> Vec<String> {
        if self == peer {
            return Vec::new();
        }
        let set = |fixed| if fixed { "set" } else { "unset" }.to_owned();
        let mpib = [
            ("MPIB_MODE", (self.mode as u8).to_string(), (peer.mode as u8).to_string()),
            ("MPIB_SUP_SHARE", set(self.fixed_share), set(peer.fixed_share)),
            (
                "MPIB_ISLAND_PREFIX_LEN",
                self.island_prefix_len.to_string(),
                peer.island_prefix_len.to_string(),
            ),
            ("MPIB_SOUT_QP", self.qps[0].to_string(), peer.qps[0].to_string()),
            ("MPIB_SUP_QP", self.qps[1].to_string(), peer.qps[1].to_string()),
        ];
        let split = |split| u8::from(split).to_string();
        let plain = [
            ("NCCL_IB_QPS_PER_CONNECTION", self.plain_qps.to_string(), peer.plain_qps.to_string()),
            ("NCCL_IB_SPLIT_DATA_ON_QPS", split(self.plain_split), split(peer.plain_split)),
        ];
        let rows = if self.fused && peer.fused { &mpib[..] } else { &plain };
        let route = [("MPIB_ROUTE", self.route.to_string(), peer.route.to_string())];
        let row = |(name, ours, theirs): &(&str, String, String)| {
            format!("{name} is {ours} here and {theirs} there")
        };
        route.iter().chain(rows).filter(|(_, ours, theirs)| ours != theirs).map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: Terms = Terms {
        route: RoutePolicy::PreferSubnet,
        fused: true,
        mode: Mode::Vanilla,
        fixed_share: false,
        island_prefix_len: 24,
        qps: [2, 4],
        plain_qps: 1,
        plain_split: false,
        failover: true,
    };

    #[test]
    fn every_difference_has_both_values() {
        assert!(OURS.differences(&OURS).is_empty());
        let peer = Terms {
            route: RoutePolicy::Strict,
            mode: Mode::Advanced,
            fixed_share: true,
            island_prefix_len: 16,
            qps: [1, 3],
            fused: true,
            plain_qps: 4,
            plain_split: true,
            failover: false,
        };
        assert_eq!(
            OURS.differences(&peer),
            [
                "MPIB_ROUTE is prefer-subnet here and strict there",
                "MPIB_MODE is 0 here and 1 there",
                "MPIB_SUP_SHARE is unset here and set there",
                "MPIB_ISLAND_PREFIX_LEN is 24 here and 16 there",
                "MPIB_SOUT_QP is 2 here and 1 there",
                "MPIB_SUP_QP is 4 here and 3 there",
            ]
        );
        // If an end is not SOUT and SUP, other settings matter.
        let plain = Terms { fused: false, ..peer };
        let expected = [
            "MPIB_ROUTE is prefer-subnet here and strict there",
            "NCCL_IB_QPS_PER_CONNECTION is 1 here and 4 there",
            "NCCL_IB_SPLIT_DATA_ON_QPS is 0 here and 1 there",
        ];
        assert_eq!(OURS.differences(&plain), expected);
        assert_eq!(Terms { fused: false, ..OURS }.differences(&peer), expected);
        let like = Terms { route: OURS.route, plain_qps: 1, plain_split: false, ..plain };
        assert!(OURS.differences(&like).is_empty());
    }

    #[test]
    fn a_route_policy_is_written_as_it_is_read() {
        for (policy, text) in RoutePolicy::ALL.into_iter().zip(["prefer-subnet", "subnet", "any", "strict"]) {
            assert_eq!((policy.to_string().as_str(), text.parse()), (text, Ok(policy)));
        }
        assert_eq!("Any".parse::<RoutePolicy>(), Err(()));
    }
}
