//! The sender's policy: how each transfer is cut.

use std::fmt;

use super::{Plan, SplitMode};
use crate::proto::{MAX_RAILS, RailRole, SHARE_ONE, SPLIT_ALIGN, Split};
use crate::route::Class;

/// The newest hint for a connection.
pub trait HintSource: fmt::Debug + Send {
    /// Returns the share for SUP in parts per 1024. Called once per transfer, so it must not wait.
    fn share(&self) -> u16;
}

/// Where the split of a connection comes from.
#[derive(Debug)]
pub enum Source {
    /// A constant share for SUP.
    Fixed(u16),
    /// The agent's share for SUP, which may change between transfers.
    Hint(Box<dyn HintSource>),
    /// A weight for each rail instead of a share: see [`weights`].
    Weights([u16; MAX_RAILS]),
}

impl Source {
    /// Returns the source for a connection. `hints` is the connection's registration with the
    /// agent, if it has one; without it all data goes on SOUT. `speeds` are the speeds of both ends
    /// of each rail in Mb/s.
    pub fn new(split: SplitMode, hints: Option<Box<dyn HintSource>>, speeds: &[(u32, u32)]) -> Self {
        match (split, hints) {
            (SplitMode::BySpeed, _) if speeds.len() > 1 => Self::Weights(weights(speeds)),
            (SplitMode::Fixed(share), _) => Self::Fixed(share),
            (SplitMode::Hinted, Some(hints)) => Self::Hint(hints),
            (SplitMode::BySpeed | SplitMode::Isolated | SplitMode::Hinted, _) => Self::Fixed(0),
        }
    }
}

/// Returns the weights of plain rails from the speeds of their two ends in Mb/s. The slower end
/// counts. A speed of 0 is unknown, and then all rails weigh the same.
pub fn weights(speeds: &[(u32, u32)]) -> [u16; MAX_RAILS] {
    let slower = |(ours, theirs): &(u32, u32)| *ours.min(theirs);
    let known = speeds.iter().all(|pair| slower(pair) > 0);
    let largest = speeds.iter().map(slower).max().unwrap_or(0);
    // Halved until all fit into 16 bits. The proportions stay exact to 1 in 2^15.
    let halvings = (u32::BITS - largest.leading_zeros()).saturating_sub(u16::BITS);
    let mut weights = [0; MAX_RAILS];
    for (place, pair) in weights.iter_mut().zip(speeds) {
        *place = if known { u16::try_from(slower(pair) >> halvings).unwrap_or(u16::MAX).max(1) } else { 1 };
    }
    weights
}

/// The policy of a connection. Rail 0 is SOUT if the rails are SOUT and SUP.
#[derive(Debug)]
pub struct Policy {
    source: Source,
    /// Transfers of at most this many bytes have no share for SUP.
    threshold: usize,
    /// Mask of the rails that may carry data.
    available: u8,
}

/// Transfers that always go whole on one rail: those with at least one byte and fewer than `below`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    /// The first size that is not among them.
    pub below: usize,
    /// Their rail.
    pub rail: usize,
    /// What [`Policy::share`] returns for each of them.
    pub share: Option<u16>,
}

impl Policy {
    /// Makes the policy of a connection whose rails have these roles, in order. `threshold` is
    /// `MPIB_BDP_THRESHOLD`, which applies to hints between islands.
    pub fn new(plan: Plan, source: Source, threshold: u32, roles: &[RailRole]) -> Self {
        let counts = plan == Plan::Shared(Class::Inter) && matches!(source, Source::Hint(_));
        Self {
            source,
            threshold: if counts { usize::try_from(threshold).unwrap_or(usize::MAX) } else { 0 },
            available: plan.carriers(roles),
        }
    }

    /// Cuts one transfer of `size` bytes. An empty transfer goes on SOUT if SOUT may carry data,
    /// regardless of the share.
    pub fn split(&self, size: usize) -> Option<Split> {
        let mut split = Split::NONE;
        self.cut(size, self.share(size), &mut split).then_some(split)
    }

    /// Returns the share for SUP of one transfer of `size` bytes, 0 to 1024. `None` if at most one
    /// rail may carry data, or if weights apply.
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

    /// Returns the transfers that always go whole on the same rail, if there are any. The data path
    /// decides nothing for them.
    pub fn whole(&self) -> Option<Whole> {
        let first = usize::try_from(self.available.trailing_zeros()).ok().filter(|_| self.available != 0)?;
        let below = match &self.source {
            _ if self.available.count_ones() == 1 => usize::MAX,
            Source::Weights(_) | Source::Fixed(_) => SPLIT_ALIGN,
            Source::Hint(_) => self.threshold.saturating_add(1),
        };
        let share = self.share(1);
        let rail = match share {
            Some(SHARE_ONE..) => 1,
            _ => first,
        };
        (below > 1).then_some(Whole { below, rail, share })
    }

    /// Cuts a transfer as [`split`](Self::split) does, with the result of [`share`](Self::share),
    /// in place. Returns `false` if no rail may carry data.
    #[inline(always)]
    pub fn cut(&self, size: usize, share: Option<u16>, split: &mut Split) -> bool {
        match (share, &self.source) {
            (Some(sup), _) => split.cut(size, &[SHARE_ONE.saturating_sub(sup), sup], self.available),
            (None, Source::Weights(weights)) if size >= SPLIT_ALIGN => {
                split.cut(size, weights, self.available)
            }
            // On the only rail, or on the first of several. No rail has weight 0.
            (None, _) if self.available != 0 => {
                split.whole(size, self.available.trailing_zeros() as usize);
                true
            }
            (None, _) => false,
        }
    }
}
