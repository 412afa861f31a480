//! The settings that both ends of a connection must share: each end derives the same rails and
//! queue pairs from them.

use std::fmt;
use std::str::FromStr;

use super::wire::{DecodeError, Reader, Writer};

/// The maximum number of queue pairs of a rail of SOUT and SUP.
pub(crate) const MAX_RAIL_QPS: u8 = 32;
/// The maximum number of queue pairs of any other rail.
pub(crate) const MAX_PLAIN_QPS: u8 = 128;

/// The split between SOUT and SUP: `MPIB_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Mode {
    /// By island: one rail carries all data.
    Vanilla = 0,
    /// By hints: both rails are always joined.
    Advanced = 1,
}

/// The pairs of rails that a connection may use, and their order: `MPIB_ROUTE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RoutePolicy {
    /// Pairs on a common subnet first.
    PreferSubnet = 0,
    /// Only pairs on a common subnet.
    Subnet = 1,
    /// Pairs of the requested devices first, with or without a common subnet.
    Any = 2,
    /// Only pairs of the requested devices.
    Strict = 3,
}

impl RoutePolicy {
    /// All policies.
    pub const ALL: [Self; 4] = [Self::PreferSubnet, Self::Subnet, Self::Any, Self::Strict];
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

/// The settings of one end that must equal the other's: `route` always; those of SOUT and SUP if
/// both devices are SOUT and SUP; the last two otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Terms {
    /// `MPIB_ROUTE`
    pub route: RoutePolicy,
    /// Whether the device is SOUT and SUP, in any state of their ports.
    pub fused: bool,
    /// `MPIB_MODE`
    pub mode: Mode,
    /// Whether `MPIB_SUP_SHARE` is set: both rails are joined in either mode then. Only the sender
    /// uses its value.
    pub fixed_share: bool,
    /// `MPIB_ISLAND_PREFIX_LEN`, 0 to 32.
    pub island_prefix_len: u8,
    /// `MPIB_SOUT_QP` and `MPIB_SUP_QP`, 1 to [`MAX_RAIL_QPS`].
    pub qps: [u8; 2],
    /// `NCCL_IB_QPS_PER_CONNECTION`, 1 to [`MAX_PLAIN_QPS`]. Ignored if both devices are SOUT and
    /// SUP.
    pub plain_qps: u8,
    /// `NCCL_IB_SPLIT_DATA_ON_QPS`. Ignored likewise.
    pub plain_split: bool,
    /// `MPIB_FAILOVER`. It may differ: a connection has failover if both ends have.
    pub failover: bool,
}

impl Terms {
    /// Returns the settings that differ and matter for these two ends, with both values.
    pub fn differences(&self, peer: &Self) -> Vec<String> {
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

    pub(super) fn write(&self, out: &mut Writer) {
        out.u8(self.route as u8).u8(self.fused.into()).u8(self.mode as u8).u8(self.fixed_share.into());
        out.u8(self.island_prefix_len).u8(self.qps[0]).u8(self.qps[1]);
        out.u8(self.plain_qps).u8(self.plain_split.into()).u8(self.failover.into());
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let route = RoutePolicy::ALL[usize::from(from.below(4, "route policy", "0 to 3")?)];
        let fused = from.flag("fused")?;
        let mode = if from.flag("mode")? { Mode::Advanced } else { Mode::Vanilla };
        let fixed_share = from.flag("fixed share")?;
        let island_prefix_len = from.below(33, "island prefix length", "0 to 32")?;
        let mut qps = [0; 2];
        for place in &mut qps {
            *place = queue_pairs(from, MAX_RAIL_QPS, "1 to 32")?;
        }
        let plain_qps = queue_pairs(from, MAX_PLAIN_QPS, "1 to 128")?;
        let plain_split = from.flag("split")?;
        let failover = from.flag("failover")?;
        Ok(Self { route, fused, mode, fixed_share, island_prefix_len, qps, plain_qps, plain_split, failover })
    }
}

/// Reads a number from 1 to `most`.
fn queue_pairs(from: &mut Reader<'_>, most: u8, expected: &'static str) -> Result<u8, DecodeError> {
    let what = "queue pairs of a rail";
    match from.below(most + 1, what, expected)? {
        0 => Err(DecodeError::Range { what, found: 0, expected }),
        found => Ok(found),
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
