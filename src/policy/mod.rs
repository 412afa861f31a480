//! How much of a transfer goes on which rail: the only place that decides it.
//!
//! A [`Plan`] is made once per connection, the same on both ends: which rails get queue pairs, which one carries CTS
//! writes. A [`Policy`] is the sender's, and is asked once per transfer.

use std::fmt;

use crate::config::Config;
use crate::proto::{Hello, MAX_RAILS, Mode, RailInfo, RoutePolicy, SHARE_ONE, SPLIT_ALIGN, Split, Terms};
use crate::route::{self, Choice, Class};

/// Rail index of SOUT in its device.
const SOUT: u8 = 0;
/// Rail index of SUP in its device.
const SUP: u8 = 1;

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

    /// The routes between two ends, by what they have told each other, at this turn.
    pub fn choose(self, policy: RoutePolicy, connector: &Hello, acceptor: &Hello, turn: u32) -> Choice {
        match self {
            Self::Plain => route::choose(policy, &connector.rails, &acceptor.rails, turn),
            Self::Isolated(_) | Self::Shared(_) => route::choose_roles(&connector.rails, &acceptor.rails),
        }
    }

    /// Whether rails with this index in their device get queue pairs. Between islands SUP's would time out on
    /// their way up, since SUP networks end at their island.
    pub fn joins(self, role: u8) -> bool {
        self != Self::Isolated(Class::Inter) || role == SOUT
    }

    /// The rail that must carry all data, where one must.
    pub fn home(self) -> Option<u8> {
        match self {
            Self::Plain | Self::Shared(_) => None,
            Self::Isolated(Class::Intra) => Some(SUP),
            Self::Isolated(Class::Inter) => Some(SOUT),
        }
    }

    /// The rails of a connection that may carry data, when they have these indices in their device.
    pub fn carriers(self, roles: &[u8]) -> u8 {
        let all = roles.iter().take(MAX_RAILS).fold(0, |mask, _| mask << 1 | 1);
        let home = self.home().and_then(|home| roles.iter().position(|role| *role == home));
        home.map_or(all, |rail| 1 << rail)
    }

    /// The rail that carries CTS writes, where it is there.
    pub fn cts(self) -> u8 {
        self.home().unwrap_or(SOUT)
    }

    /// The queue pairs of a rail with this index in its device, of `rails` that are joined.
    pub fn stripes(self, terms: &Terms, role: u8, rails: usize) -> Stripes {
        match self {
            Self::Plain => Stripes::plain(terms.plain_qps, terms.plain_split, rails),
            Self::Isolated(_) | Self::Shared(_) => {
                let turns = terms.qps.get(usize::from(role)).map_or(1, |n| (*n).into());
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

/// What operators call rail `role` of a fused device.
pub fn rail_name(role: u8) -> &'static str {
    match role {
        SOUT => "SOUT",
        SUP => "SUP",
        _ => "a further rail",
    }
}

/// The newest hint for a connection.
pub trait Flow: fmt::Debug + Send {
    /// Parts per 1024 for SUP, 0 to 1024. Asked once per transfer: must not wait.
    fn share(&self) -> u16;
}

/// Where a connection's share comes from.
#[derive(Debug)]
pub enum Source {
    /// From a setting.
    Fixed(u16),
    /// From outside, and it may change from one transfer to the next.
    Hint(Box<dyn Flow>),
    /// No share of SUP but a weight of each rail: see [`weights`].
    Weights([u16; MAX_RAILS]),
}

/// Weights of plain rails, from what each end of each carries in Mb/s: a rail is as fast as its slower end. Zero is a speed
/// that is not known; where one is not, all count alike.
pub fn weights(speeds: &[(u32, u32)]) -> [u16; MAX_RAILS] {
    let slower = |(ours, theirs): &(u32, u32)| *ours.min(theirs);
    let known = speeds.iter().all(|pair| slower(pair) > 0);
    let largest = speeds.iter().map(slower).max().unwrap_or(0);
    // Halved until they fit: in proportion, to 1 in 2^15.
    let halvings = (u32::BITS - largest.leading_zeros()).saturating_sub(u16::BITS);
    let mut weights = [0; MAX_RAILS];
    for (place, pair) in weights.iter_mut().zip(speeds) {
        *place = if known { u16::try_from(slower(pair) >> halvings).unwrap_or(u16::MAX).max(1) } else { 1 };
    }
    weights
}

/// A connection's policy. Rails are those of the connection: 0 is SOUT where they are SOUT and SUP.
#[derive(Debug)]
pub struct Policy {
    source: Source,
    /// Transfers of at most so many bytes have no share for SUP.
    threshold: usize,
    /// Rails that may carry data.
    available: u8,
}

impl Policy {
    /// For a connection whose rails have these indices in their device, in order. `threshold` is
    /// `MPIB_BDP_THRESHOLD`, which counts for hints between islands.
    pub fn new(plan: Plan, source: Source, threshold: u32, roles: &[u8]) -> Self {
        let counts = plan == Plan::Shared(Class::Inter) && matches!(source, Source::Hint(_));
        Self {
            source,
            threshold: if counts { usize::try_from(threshold).unwrap_or(usize::MAX) } else { 0 },
            available: plan.carriers(roles),
        }
    }

    /// The cut of one transfer of `size` bytes. An empty one goes on SOUT where SOUT may carry data, whatever the share.
    pub fn split(&self, size: usize) -> Option<Split> {
        let mut split = Split::NONE;
        self.cut(size, self.share(size), &mut split).then_some(split)
    }

    /// The share of SUP for one transfer of `size` bytes, 0 to 1024; `None` where it decides nothing: only one rail may
    /// carry data, or there is none.
    #[inline]
    pub fn share(&self, size: usize) -> Option<u16> {
        if size == 0 || self.available & self.available.wrapping_sub(1) == 0 {
            return None;
        }
        let share = match &self.source {
            _ if size <= self.threshold => 0,
            Source::Fixed(share) => *share,
            Source::Hint(flow) => flow.share(),
            Source::Weights(_) => return None,
        };
        Some(share.min(SHARE_ONE))
    }

    /// [`split`](Self::split) by what [`share`](Self::share) gave, in place; `false` if there is no rail.
    #[inline(always)]
    pub fn cut(&self, size: usize, share: Option<u16>, split: &mut Split) -> bool {
        match (share, &self.source) {
            (Some(sup), _) => split.cut(size, &[SHARE_ONE.saturating_sub(sup), sup], self.available),
            (None, Source::Weights(weights)) if size >= SPLIT_ALIGN => {
                split.cut(size, weights, self.available)
            }
            // On the one rail, or the first of several, none of which has no weight.
            (None, _) if self.available != 0 => {
                split.whole(size, self.available.trailing_zeros() as usize);
                true
            }
            (None, _) => false,
        }
    }
}

#[cfg(test)]
mod tests;
