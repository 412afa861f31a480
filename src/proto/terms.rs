//! What both ends of a connection must have been told alike, since each derives the same rails and queue pairs from it.

use std::fmt;
use std::str::FromStr;

use super::wire::{DecodeError, Reader, Writer};

/// Most queue pairs of a rail.
pub const MAX_RAIL_QPS: u8 = 32;

/// Who decides the split between SOUT and SUP: `MPIB_MODE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Mode {
    /// The islands: one rail carries all.
    Vanilla = 0,
    /// Hints: both rails are joined everywhere.
    Advanced = 1,
}

/// Which pairs of rails a connection may use, and which it prefers: `MPIB_ROUTE`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum RoutePolicy {
    /// Those of a common subnet before all others.
    PreferSubnet = 0,
    /// None but those of a common subnet.
    Subnet = 1,
    /// Those of the devices that were asked for before all others, whatever lies between.
    Any = 2,
    /// None but those of the devices that were asked for.
    Strict = 3,
}

impl RoutePolicy {
    /// All of them.
    pub const ALL: [Self; 4] = [Self::PreferSubnet, Self::Subnet, Self::Any, Self::Strict];
}

/// As the setting says it.
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

/// One end's settings that the other's must match; all but the first only where both devices are SOUT and SUP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// `MPIB_ROUTE`
    pub route: RoutePolicy,
    /// Whether the device is SOUT and SUP, whatever state their ports are in.
    pub fused: bool,
    /// `MPIB_MODE`
    pub mode: Mode,
    /// Whether `MPIB_SUP_SHARE` is set, so that both rails are joined in either mode. Its value is the sender's affair.
    pub fixed_share: bool,
    /// `MPIB_ISLAND_PREFIX_LEN`, 0 to 32.
    pub island_prefix_len: u8,
    /// `MPIB_SOUT_QP` and `MPIB_SUP_QP`, 1 to [`MAX_RAIL_QPS`].
    pub qps: [u8; 2],
}

impl Terms {
    /// Every setting that differs and that counts for these two ends, with both values.
    pub fn differences(&self, peer: &Self) -> Vec<String> {
        let set = |fixed| if fixed { "set" } else { "unset" }.to_owned();
        let rows = [
            ("MPIB_ROUTE", self.route.to_string(), peer.route.to_string()),
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
        let row = |(name, ours, theirs)| format!("{name} is {ours} here and {theirs} there");
        let count = if self.fused && peer.fused { rows.len() } else { 1 };
        rows.into_iter().take(count).filter(|(_, ours, theirs)| ours != theirs).map(row).collect()
    }

    pub(super) fn write(&self, out: &mut Writer) {
        out.u8(self.route as u8).u8(self.fused.into()).u8(self.mode as u8).u8(self.fixed_share.into());
        out.u8(self.island_prefix_len).u8(self.qps[0]).u8(self.qps[1]);
    }

    pub(super) fn read(from: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let route = RoutePolicy::ALL[usize::from(from.below(4, "route policy", "0 to 3")?)];
        let fused = from.flag("fused")?;
        let mode = if from.flag("mode")? { Mode::Advanced } else { Mode::Vanilla };
        let fixed_share = from.flag("fixed share")?;
        let island_prefix_len = from.below(33, "island prefix length", "0 to 32")?;
        let mut qps = [0; 2];
        for place in &mut qps {
            let found = from.below(MAX_RAIL_QPS + 1, "queue pairs of a rail", "1 to 32")?;
            if found == 0 {
                return Err(DecodeError::Range {
                    what: "queue pairs of a rail",
                    found: 0,
                    expected: "1 to 32",
                });
            }
            *place = found;
        }
        Ok(Self { route, fused, mode, fixed_share, island_prefix_len, qps })
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
    };

    #[test]
    fn every_difference_is_told_with_both_values() {
        assert!(OURS.differences(&OURS).is_empty());
        let peer = Terms {
            route: RoutePolicy::Strict,
            mode: Mode::Advanced,
            fixed_share: true,
            island_prefix_len: 16,
            qps: [1, 3],
            fused: true,
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
        // A device that is not SOUT and SUP has nothing else to agree on.
        let plain = Terms { fused: false, ..peer };
        assert_eq!(OURS.differences(&plain), ["MPIB_ROUTE is prefer-subnet here and strict there"]);
        assert!(OURS.differences(&Terms { route: OURS.route, ..plain }).is_empty());
    }

    #[test]
    fn a_route_policy_is_written_as_it_is_read() {
        for (policy, text) in RoutePolicy::ALL.into_iter().zip(["prefer-subnet", "subnet", "any", "strict"]) {
            assert_eq!((policy.to_string().as_str(), text.parse()), (text, Ok(policy)));
        }
        assert_eq!("Any".parse::<RoutePolicy>(), Err(()));
    }
}
