//! A connection's plan: which rails get queue pairs, and which one carries CTS writes.

use std::fmt;

use super::SplitMode;
use crate::config::Config;
use crate::proto::{Hello, MAX_RAILS, Mode, RailInfo, RailRole, RoutePolicy, Terms};
use crate::route::{self, Choice, Class};

/// What an end demands of its peer. `fused`: its device is SOUT and SUP.
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
    }
}

/// How the queue pairs of one rail carry messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stripes {
    /// Parts into which the rail's part of a message is cut, each with queue pairs of its own. To the rest of the connection each is
    /// a rail of its own: with an immediate, a bit in the mask.
    pub stripes: usize,
    /// Queue pairs of each stripe, which messages take in turn.
    pub turns: usize,
}

impl Stripes {
    /// Of `rails` plain rails, with `qps` queue pairs each. A mask has [`MAX_RAILS`] bits, so that many queue pairs carry a
    /// message at most; where there are more they take turns.
    pub fn plain(qps: u8, split: bool, rails: usize) -> Self {
        let qps = usize::from(qps.max(1));
        let stripes = if split { qps.min(MAX_RAILS / rails.clamp(1, MAX_RAILS)) } else { 1 };
        Self { stripes, turns: qps.div_ceil(stripes) }
    }

    /// Queue pairs of the rail.
    pub fn qps(self) -> usize {
        self.stripes * self.turns
    }
}

/// How a connection uses its rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// An end is not SOUT and SUP: whatever can be joined is used, in proportion to the rails' speeds.
    Plain,
    /// Vanilla: one rail carries all.
    Isolated(Class),
    /// Advanced, or a fixed share: both rails carry parts.
    Shared(Class),
}

impl Plan {
    /// From terms that do not differ, and both ends' rails.
    pub fn new(ours: &Terms, theirs: &Terms, a: &[RailInfo], b: &[RailInfo]) -> Self {
        if !(ours.fused && theirs.fused) {
            return Self::Plain;
        }
        let class = route::class(ours.island_prefix_len, a, b);
        match ours.mode {
            Mode::Vanilla if !ours.fixed_share => Self::Isolated(class),
            Mode::Vanilla | Mode::Advanced => Self::Shared(class),
        }
    }

    /// Returns how this end divides the transfers of a connection with this plan.
    pub fn split_mode(self, config: &Config) -> SplitMode {
        SplitMode::new(config, self != Self::Plain)
    }

    /// The routes between two ends, by their HELLOs, at this rotation.
    pub fn choose(self, policy: RoutePolicy, connector: &Hello, acceptor: &Hello, rotation: u32) -> Choice {
        match self {
            Self::Plain => route::choose(policy, &connector.rails, &acceptor.rails, rotation),
            Self::Isolated(_) | Self::Shared(_) => route::choose_roles(&connector.rails, &acceptor.rails),
        }
    }

    /// Whether rails with this index in their device get queue pairs. Between islands SUP's would time out on
    /// their way up, since SUP networks end at their island.
    pub fn joins(self, role: RailRole) -> bool {
        self != Self::Isolated(Class::Inter) || role == RailRole::SOUT
    }

    /// The rail that must carry all data, where one must.
    pub fn home(self) -> Option<RailRole> {
        match self {
            Self::Plain | Self::Shared(_) => None,
            Self::Isolated(Class::Intra) => Some(RailRole::SUP),
            Self::Isolated(Class::Inter) => Some(RailRole::SOUT),
        }
    }

    /// The rails of a connection that may carry data, when they have these indices in their device.
    pub fn carriers(self, roles: &[RailRole]) -> u8 {
        let all = roles.iter().take(MAX_RAILS).fold(0, |mask, _| mask << 1 | 1);
        let home = self.home().and_then(|home| roles.iter().position(|role| *role == home));
        home.map_or(all, |rail| 1 << rail)
    }

    /// The rail that carries CTS writes, where it is there.
    pub fn cts(self) -> RailRole {
        self.home().unwrap_or(RailRole::SOUT)
    }

    /// The queue pairs of a rail with this index in its device, of `rails` that are joined.
    pub fn stripes(self, terms: &Terms, role: RailRole, rails: usize) -> Stripes {
        match self {
            Self::Plain => Stripes::plain(terms.plain_qps, terms.plain_split, rails),
            Self::Isolated(_) | Self::Shared(_) => {
                let turns = terms.qps.get(usize::from(role.index())).map_or(1, |n| (*n).into());
                Stripes { stripes: 1, turns }
            }
        }
    }
}

/// For the log.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain rails"),
            Self::Isolated(class) => write!(f, "{class}, all on one rail"),
            Self::Shared(class) => write!(f, "{class}, split"),
        }
    }
}
