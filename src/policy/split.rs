//! The sender's policy: how each transfer is cut.

use std::fmt;
use std::sync::Arc;

use super::{Plan, SplitMode, Weights};
use crate::proto::{RailRole, SHARE_ONE, SPLIT_ALIGN, Split};
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
    /// A weight for each rail instead of a share.
    Weights(Arc<Weights>),
}

impl Source {
    /// Returns the source for a connection. `hints` is the connection's registration with the
    /// agent, if it has one; without it all data goes on SOUT. `speeds` are the speeds of both ends
    /// of each rail in Mb/s.
    pub fn new(split: SplitMode, hints: Option<Box<dyn HintSource>>, speeds: &[(u32, u32)]) -> Self {
        match (split, hints) {
            (SplitMode::BySpeed, _) if speeds.len() > 1 => Self::Weights(Arc::new(Weights::new(speeds))),
            (SplitMode::Fixed(share), _) => Self::Fixed(share),
            (SplitMode::Hinted, Some(hints)) => Self::Hint(hints),
            (SplitMode::BySpeed | SplitMode::Isolated | SplitMode::Hinted, _) => Self::Fixed(0),
        }
    }
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

    /// Returns the weights by which it cuts, if it does.
    pub fn weights(&self) -> Option<&Arc<Weights>> {
        match &self.source {
            Source::Weights(weights) => Some(weights),
            Source::Fixed(_) | Source::Hint(_) => None,
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

    /// Cuts a transfer as [`split`](Self::split) does, with the result of [`share`](Self::share),
    /// in place. Returns `false` if no rail may carry data.
    #[inline(always)]
    pub fn cut(&self, size: usize, share: Option<u16>, split: &mut Split) -> bool {
        match (share, &self.source) {
            (Some(sup), _) => split.cut(size, &[SHARE_ONE.saturating_sub(sup), sup], self.available),
            (None, Source::Weights(weights)) if size >= SPLIT_ALIGN => {
                split.cut(size, &weights.now(), self.available)
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
