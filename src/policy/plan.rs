//! The plan of a connection: which rails get queue pairs, and which one carries CTS writes.

use std::fmt;

use super::SplitMode;
use crate::config::Config;
use crate::proto::{Hello, MAX_RAILS, Mode, RailInfo, RailRole, RoutePolicy, Terms};
use crate::route::{self, Choice, Class};

/// Returns the settings that the peer must share. `fused` if the rails of the device are SOUT and
/// SUP.
pub fn terms(config: &Config, fused: bool) -> Terms {
    Terms {
        route: config.route,
        fused,
        mode: config.mode,
        fixed_share: config.sup_share.is_some(),
        island_prefix_len: config.island_prefix_len,
        qps: [config.sout_qp, config.sup_qp],
        plain_qps: config.ib_qps,
        plain_split: config.ib_split,
        failover: config.failover,
    }
}

/// How the queue pairs of one rail share its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripes {
    /// Stripes of the rail. Like a rail, each stripe has separate queue pairs, a separate immediate
    /// and a separate bit in the mask.
    pub stripes: usize,
    /// Queue pairs of each stripe. Successive messages use them round-robin.
    pub turns: usize,
}

impl Stripes {
    /// Returns the stripes of `rails` plain rails with `qps` queue pairs each. A mask has
    /// [`MAX_RAILS`] bits, so at most that many queue pairs carry one message. Where there are
    /// more, messages use them round-robin.
    pub fn plain(qps: u8, split: bool, rails: usize) -> Self {
        let qps = usize::from(qps.max(1));
        let stripes = if split { qps.min(MAX_RAILS / rails.clamp(1, MAX_RAILS)) } else { 1 };
        Self { stripes, turns: qps.div_ceil(stripes) }
    }

    /// Returns the number of queue pairs of the rail.
    pub fn qps(self) -> usize {
        self.stripes * self.turns
    }
}

/// How a connection uses its rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// One end's rails are not SOUT and SUP: all usable routes carry data, in proportion to their
    /// speeds.
    Plain,
    /// Vanilla: one rail carries all data. The other one has no queue pairs.
    Isolated(Class),
    /// Vanilla within an island, and both ends have failover: SUP carries all data, and SOUT stands
    /// in while SUP is given up.
    StandIn,
    /// Advanced, or a fixed share: both rails carry data.
    Shared(Class),
}

impl Plan {
    /// Makes the plan from the agreed terms and both ends' rails.
    pub fn new(ours: &Terms, theirs: &Terms, a: &[RailInfo], b: &[RailInfo]) -> Self {
        if !(ours.fused && theirs.fused) {
            return Self::Plain;
        }
        let failover = ours.failover && theirs.failover;
        // Without failover a port that is down is no part of the connection.
        let known = |rails: &[RailInfo]| -> Vec<RailInfo> {
            rails.iter().filter(|rail| failover || !rail.is_down).cloned().collect()
        };
        let class = route::class(ours.island_prefix_len, &known(a), &known(b));
        match ours.mode {
            Mode::Vanilla if ours.fixed_share => Self::Shared(class),
            Mode::Vanilla if class == Class::Intra && failover => Self::StandIn,
            Mode::Vanilla => Self::Isolated(class),
            Mode::Advanced => Self::Shared(class),
        }
    }

    /// Returns how this end divides the transfers of a connection with this plan.
    pub fn split_mode(self, config: &Config) -> SplitMode {
        SplitMode::new(config, self != Self::Plain)
    }

    /// Chooses the routes between two ends from their HELLOs. `rotation` selects among equal ones.
    pub fn choose(self, policy: RoutePolicy, connector: &Hello, acceptor: &Hello, rotation: u32) -> Choice {
        match self {
            Self::Plain => route::choose(policy, &connector.rails, &acceptor.rails, rotation),
            Self::Isolated(_) | Self::StandIn | Self::Shared(_) => {
                route::choose_roles(&connector.rails, &acceptor.rails)
            }
        }
    }

    /// Returns whether rails with this role get queue pairs.
    pub fn joins(self, role: RailRole) -> bool {
        self == Self::StandIn || self.requires(role)
    }

    /// Returns whether a connection without a rail with this role is degraded from the beginning.
    pub fn requires(self, role: RailRole) -> bool {
        self.home().is_none_or(|home| role == home)
    }

    /// Returns the rail that carries all data as long as it works, if the plan has one.
    pub fn home(self) -> Option<RailRole> {
        match self {
            Self::Plain | Self::Shared(_) => None,
            Self::Isolated(Class::Intra) | Self::StandIn => Some(RailRole::SUP),
            Self::Isolated(Class::Inter) => Some(RailRole::SOUT),
        }
    }

    /// Returns the mask of rails that carry data as long as they work, for a connection whose rails
    /// have these roles.
    pub fn carriers(self, roles: &[RailRole]) -> u8 {
        let all = roles.iter().take(MAX_RAILS).fold(0, |mask, _| mask << 1 | 1);
        let home = self.home().and_then(|home| roles.iter().position(|role| *role == home));
        home.map_or(all, |rail| 1 << rail)
    }

    /// Returns the rail that carries CTS writes if the connection has it.
    pub fn cts(self) -> RailRole {
        self.home().unwrap_or(RailRole::SOUT)
    }

    /// Returns the stripes of a rail with this role, when the connection uses `rails` rails.
    pub fn stripes(self, terms: &Terms, role: RailRole, rails: usize) -> Stripes {
        match self {
            Self::Plain => Stripes::plain(terms.plain_qps, terms.plain_split, rails),
            Self::Isolated(_) | Self::StandIn | Self::Shared(_) => {
                let turns = terms.qps.get(usize::from(role.index())).map_or(1, |n| (*n).into());
                Stripes { stripes: 1, turns }
            }
        }
    }
}

/// The wording of log lines.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain rails"),
            Self::Isolated(class) => write!(f, "{class}, all on one rail"),
            Self::StandIn => write!(f, "{}, all on one rail, another one stands in", Class::Intra),
            Self::Shared(class) => write!(f, "{class}, split"),
        }
    }
}
