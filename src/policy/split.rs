//! The sender's policy: how each transfer is cut.

use std::cell::Cell;
use std::fmt;
use std::sync::Arc;

use super::goodput::MEASURED;
use super::weights::scaled;
use super::{Limits, Measured, Plan, SplitMode, Weights};
use crate::config::SplitBy;
use crate::device::Nic;
use crate::proto::{MAX_RAILS, RailRole, SHARE_ONE, SPLIT_ALIGN, Split, rails};
use crate::route::Class;

/// The newest hint for a connection.
pub trait HintSource: fmt::Debug + Send {
    /// Returns the share for SUP in parts per 1024; `None` if there was no hint yet. Called once per
    /// transfer, so it must not wait.
    fn share(&self) -> Option<u16>;
}

/// Where the split of a connection comes from.
#[derive(Debug)]
pub enum Source {
    /// A constant share for SUP.
    Fixed(u16),
    /// The agent's share for SUP, which may change between transfers. Until the first hint, what the
    /// rails can carry. They are measured in any case: an agent may decide by that.
    Hint(Box<dyn HintSource>, Capacities, Option<Box<Measured>>),
    /// What the rails can carry.
    Capacities(Capacities),
}

/// What the rails of a connection can carry, in proportion to each other.
#[derive(Debug)]
pub enum Capacities {
    /// Not considered: rail 0 carries all.
    None,
    /// By the speeds of the ports.
    Reported(Arc<Weights>),
    /// By their goodput, which is measured.
    Measured(Box<Measured>),
}

impl Capacities {
    /// Returns what the settings want for a connection. `ports` has this end's port of each rail.
    /// `now` is in ns.
    fn new(by: SplitBy, speeds: &[(u32, u32)], ports: Vec<Arc<Nic>>, now: u64) -> Self {
        let is_one_port = ports.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1]));
        match by {
            _ if speeds.len() < 2 => Self::None,
            SplitBy::Share => Self::None,
            SplitBy::Measured if !is_one_port => {
                let reported = Arc::new(Weights::new(speeds));
                Self::Measured(Box::new(Measured::new(ports, reported, now)))
            }
            SplitBy::Speed | SplitBy::Measured => Self::Reported(Arc::new(Weights::new(speeds))),
        }
    }
}

impl Source {
    /// Returns the source for a connection by its settings. `hints` is the connection's registration
    /// with the agent, if it has one. `speeds` are the speeds of both ends of each rail in Mb/s, and
    /// `ports` this end's ports. `now` is in ns.
    pub fn new(
        split: SplitMode,
        by: SplitBy,
        hints: Option<Box<dyn HintSource>>,
        speeds: &[(u32, u32)],
        ports: Vec<Arc<Nic>>,
        now: u64,
    ) -> Self {
        let capacities = |by| Capacities::new(by, &scaled(speeds, &ports), ports.clone(), now);
        match (split, hints) {
            (SplitMode::BySpeed, _) => Self::Capacities(capacities(SplitBy::Speed)),
            (SplitMode::Measured, _) => Self::Capacities(capacities(SplitBy::Measured)),
            (SplitMode::Fixed(share), _) => Self::Fixed(share),
            (SplitMode::Hinted, Some(hints)) if by == SplitBy::Measured => {
                Self::Hint(hints, capacities(by), None)
            }
            (SplitMode::Hinted, Some(hints)) => {
                let measured = match capacities(SplitBy::Measured) {
                    Capacities::Measured(measured) => Some(measured),
                    _ => None,
                };
                Self::Hint(hints, capacities(by), measured)
            }
            (SplitMode::Hinted, None) => Self::Capacities(capacities(by)),
            (SplitMode::Isolated, _) => Self::Capacities(Capacities::None),
        }
    }
}

/// The policy of a connection. Rail 0 is SOUT if the rails are SOUT and SUP.
#[derive(Debug)]
pub struct Policy {
    source: Source,
    /// Transfers of at most this many bytes have no share for SUP.
    threshold: usize,
    /// Transfers below this many bytes are not split.
    split_min: usize,
    /// Mask of the rails that carry data by the plan.
    carriers: u8,
    /// Mask of the rails that may carry data now.
    available: u8,
    /// With shares: how much more SUP's part of the whole transfers would have been than what SUP
    /// carried of them, in bytes times [`SHARE_ONE`]. Negative if SUP carried more.
    due: Cell<i64>,
}

/// Transfers that always go whole on one rail: those with at least one byte and fewer than `below`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Whole {
    /// The first size that is not among them.
    pub below: usize,
    /// The rail that carries all of them.
    pub rail: usize,
    /// What [`Policy::share`] returns for each of them.
    pub share: Option<u16>,
}

impl Policy {
    /// Makes the policy of a connection whose rails have these roles, in order.
    pub fn new(plan: Plan, source: Source, limits: Limits, roles: &[RailRole]) -> Self {
        let hinted = plan == Plan::Shared(Class::Inter) && matches!(source, Source::Hint(..));
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        Self {
            source,
            threshold: if hinted { size(limits.sout_only) } else { 0 },
            split_min: size(limits.split_min),
            carriers: plan.carriers(roles),
            available: plan.carriers(roles),
            due: Cell::new(0),
        }
    }

    /// Uses only the rails of the mask from now on. If the plan's rails are not among them, others
    /// stand in.
    pub fn keep(&mut self, rails: u8) {
        self.available = match self.carriers & rails {
            0 => rails,
            some => some,
        };
    }

    /// Returns the rails' capacities; `Capacities::None` if the share is fixed.
    fn capacities(&self) -> &Capacities {
        match &self.source {
            Source::Fixed(_) => &Capacities::None,
            Source::Hint(_, capacities, _) | Source::Capacities(capacities) => capacities,
        }
    }

    /// Returns the speeds that the ports report, if they count.
    pub fn reported(&self) -> Option<&Arc<Weights>> {
        match self.capacities() {
            Capacities::None => None,
            Capacities::Reported(reported) => Some(reported),
            Capacities::Measured(measured) => Some(measured.reported()),
        }
    }

    /// Returns the weights of the rails now, if they have any.
    fn weights(&self) -> Option<[u16; MAX_RAILS]> {
        match self.capacities() {
            Capacities::None => None,
            Capacities::Reported(reported) => Some(reported.now()),
            Capacities::Measured(measured) => Some(measured.weights()),
        }
    }

    /// Returns the measurement of the connection's rails, if there is one.
    pub fn measured(&mut self) -> Option<&mut Measured> {
        match &mut self.source {
            Source::Hint(_, Capacities::Measured(measured), _)
            | Source::Hint(_, _, Some(measured))
            | Source::Capacities(Capacities::Measured(measured)) => Some(measured),
            _ => None,
        }
    }

    /// Returns the size of the smallest part to measure. With hints a rail may have so small a share
    /// that its parts are below [`MEASURED`], and must be measured nevertheless.
    pub fn least_measured(&self) -> usize {
        if matches!(self.source, Source::Hint(..)) { MEASURED / 16 } else { MEASURED }
    }

    /// Cuts one transfer by the [measurement](Cut::Measured). `in_flight` are the bytes of large
    /// parts in flight on each rail. `now` is in ns.
    pub fn cut_measured(
        &mut self,
        size: usize,
        in_flight: &[u64; MAX_RAILS],
        now: u64,
        split: &mut Split,
    ) -> Cut {
        let available = self.available;
        let Some(measured) = self.measured() else { return Cut::NoRail };
        let weights = measured.divide(size, in_flight, available, now);
        if split.cut(size, &weights, available) { Cut::Done } else { Cut::NoRail }
    }

    /// Cuts one transfer of `size` bytes while no rail has work requests in flight. An empty
    /// transfer goes on SOUT if SOUT may carry data, regardless of the share.
    pub fn split(&self, size: usize) -> Option<Split> {
        let mut split = Split::NONE;
        match self.cut(size, self.share(size), &mut split) {
            Cut::Done => {}
            Cut::Whole => split.whole(size, self.least_busy(|_| 0)),
            Cut::Measured => _ = split.cut(size, &self.weights()?, self.available),
            Cut::NoRail => return None,
        }
        self.posted(size, self.share(size), &split);
        Some(split)
    }

    /// Returns the share for SUP of one transfer of `size` bytes, 0 to 1024. `None` if the plan
    /// has one rail for data, or if weights apply.
    #[inline]
    pub fn share(&self, size: usize) -> Option<u16> {
        if size == 0 || is_one(self.carriers) {
            return None;
        }
        if is_one(self.available) {
            return self.share_of_one();
        }
        let share = match &self.source {
            _ if size <= self.threshold => 0,
            Source::Fixed(share) => *share,
            Source::Hint(flow, capacities, _) => match (flow.share(), capacities) {
                (Some(share), _) => share,
                (None, Capacities::None) => 0,
                (None, _) => return None,
            },
            Source::Capacities(Capacities::None) => 0,
            Source::Capacities(_) => return None,
        };
        Some(share.min(SHARE_ONE))
    }

    /// Returns the share while one of SOUT and SUP carries all, because the other one is given up or
    /// drained. `None` if no share applied before.
    #[cold]
    fn share_of_one(&self) -> Option<u16> {
        let has_share = match &self.source {
            Source::Fixed(_) => true,
            Source::Hint(flow, ..) => flow.share().is_some(),
            Source::Capacities(_) => false,
        };
        match self.available {
            0b01 if has_share => Some(0),
            0b10 if has_share => Some(SHARE_ONE),
            _ => None,
        }
    }

    /// Returns the transfers that always go whole on the same rail, if there are any. The data path
    /// decides nothing for them.
    pub fn whole(&self) -> Option<Whole> {
        let first = usize::try_from(self.available.trailing_zeros()).ok().filter(|_| self.available != 0)?;
        let below = match &self.source {
            _ if self.available.count_ones() == 1 => usize::MAX,
            Source::Capacities(_) | Source::Fixed(_) => SPLIT_ALIGN,
            Source::Hint(..) => self.threshold.saturating_add(1),
        };
        let share = self.share(1);
        let rail = match share {
            Some(SHARE_ONE..) => 1,
            _ => first,
        };
        (below > 1).then_some(Whole { below, rail, share })
    }

    /// Cuts a transfer in place, with the result of [`share`](Self::share).
    #[inline(always)]
    pub fn cut(&self, size: usize, share: Option<u16>, split: &mut Split) -> Cut {
        let Some(sup) = share else { return self.cut_by_capacities(size, split) };
        // With one rail left the share is 0 or all. Below the alignment no second rail has a part.
        if size < self.split_min && size >= SPLIT_ALIGN {
            split.whole(size, self.whole_by_share(size, sup));
        } else {
            split.cut_by_share(size, sup);
        }
        Cut::Done
    }

    /// Cuts a transfer without a share in place.
    #[inline(always)]
    fn cut_by_capacities(&self, size: usize, split: &mut Split) -> Cut {
        let is_several = !is_one(self.available);
        if self.available == 0 {
            return Cut::NoRail;
        }
        if is_several && size >= SPLIT_ALIGN {
            let weights = match self.capacities() {
                Capacities::None => [0; MAX_RAILS],
                _ if size < self.split_min => return Cut::Whole,
                Capacities::Reported(reported) => reported.now(),
                Capacities::Measured(_) if size >= MEASURED => return Cut::Measured,
                Capacities::Measured(measured) => measured.weights(),
            };
            split.cut(size, &weights, self.available);
        } else {
            // On the only rail, or on the first of several. No rail has weight 0.
            split.whole(size, self.available.trailing_zeros() as usize);
        }
        Cut::Done
    }

    /// Chooses SOUT (0) or SUP (1) for a whole transfer, by what SUP has carried of the whole
    /// transfers so far: over many of them SUP carries its share of the bytes.
    #[inline(never)]
    fn whole_by_share(&self, size: usize, sup: u16) -> usize {
        if sup == 0 || sup >= SHARE_ONE {
            return usize::from(sup != 0);
        }
        // The size is below MPIB_SPLIT_MIN, a 32-bit number: the products fit.
        let size = size as i64;
        let due = self.due.get() + size * i64::from(sup);
        // SUP if that brings it nearer to its share.
        usize::from(due >= size * i64::from(SHARE_ONE / 2))
    }

    /// Accounts for a transfer that was cut with this share, once it is certain to be posted.
    #[inline]
    pub fn posted(&self, size: usize, share: Option<u16>, split: &Split) {
        match share {
            Some(sup @ 1..SHARE_ONE) if (SPLIT_ALIGN..self.split_min).contains(&size) => {
                let (due, carried) = (size as i64 * i64::from(sup), split.bytes(1) as i64);
                self.due.set(self.due.get() + due - carried * i64::from(SHARE_ONE));
            }
            _ => {}
        }
    }

    /// Chooses the rail on which a whole transfer is likely to end first: the one with the fewest
    /// work requests in flight in proportion to its weight. Of equal ones it is the lowest.
    /// `in_flight` returns the work requests in flight on a rail.
    pub fn least_busy(&self, in_flight: impl Fn(usize) -> u32) -> usize {
        let weights = self.weights();
        let weight = |rail: usize| weights.map_or(1, |weights| u64::from(weights[rail]));
        let load = |rail| (u64::from(in_flight(rail)) + 1, weight(rail));
        let mut best = self.available.trailing_zeros() as usize;
        let (mut least, mut best_weight) = load(best);
        for rail in rails(self.available).skip(1) {
            let (requests, weight) = load(rail);
            // least / best_weight > requests / weight
            if least * weight > requests * best_weight {
                (best, least, best_weight) = (rail, requests, weight);
            }
        }
        best
    }
}

/// Returns whether a mask has at most one rail.
const fn is_one(mask: u8) -> bool {
    mask & mask.wrapping_sub(1) == 0
}

/// The result of [`Policy::cut`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// The split is made.
    Done,
    /// The transfer is cut [by measurement](Policy::cut_measured).
    Measured,
    /// The transfer is too small to be split. It goes on the [least busy](Policy::least_busy) rail.
    Whole,
    /// No rail may carry data.
    NoRail,
}
