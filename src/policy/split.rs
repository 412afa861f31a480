//! The sender's policy: the cut of each transfer.

use std::fmt;

use super::{Plan, SplitMode};
use crate::proto::{MAX_RAILS, RailRole, SHARE_ONE, SPLIT_ALIGN, Split};
use crate::route::Class;

/// The newest hint for a connection.
pub trait HintSource: fmt::Debug + Send {
    /// Parts per 1024 for SUP, 0 to 1024. Asked once per transfer: must not wait.
    fn share(&self) -> u16;
}

/// Where a connection's share comes from.
#[derive(Debug)]
pub enum Source {
    /// From a setting.
    Fixed(u16),
    /// From outside, and it may change from one transfer to the next.
    Hint(Box<dyn HintSource>),
    /// No share of SUP but a weight of each rail: see [`weights`].
    Weights([u16; MAX_RAILS]),
}

impl Source {
    /// Returns the source for a connection. `hints` is the connection's registration with the agent, if there is one; without
    /// hints all data goes on SOUT. `speeds` are the speeds of both ends of each rail in Mb/s.
    pub fn new(split: SplitMode, hints: Option<Box<dyn HintSource>>, speeds: &[(u32, u32)]) -> Self {
        match (split, hints) {
            (SplitMode::BySpeed, _) if speeds.len() > 1 => Self::Weights(weights(speeds)),
            (SplitMode::Fixed(share), _) => Self::Fixed(share),
            (SplitMode::Hinted, Some(hints)) => Self::Hint(hints),
            (SplitMode::BySpeed | SplitMode::Isolated | SplitMode::Hinted, _) => Self::Fixed(0),
        }
    }
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
    pub fn new(plan: Plan, source: Source, threshold: u32, roles: &[RailRole]) -> Self {
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
