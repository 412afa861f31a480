//! What a sender decides: how each message is cut.

use std::fmt;
use std::sync::Arc;

use mpib_proto::{MAX_RAILS, RailRole, RailSet, SHARE_ONE, SPLIT_ALIGN, Split, Weights};

use super::measure::Measure;
use super::reported::{scaled, slower_end};
use super::shares::MEASURED;
use super::{Plan, Reported};
use crate::config::{Config, SplitBy};
use crate::device::Nic;
use crate::route::Class;

/// The default of `MPIB_SPLIT_MIN` on fast rails.
const SPLIT_MIN: u32 = 64 << 10;
/// Bytes per second of the slowest rail that is fast in that sense: 100 Gb/s.
const FAST: u64 = 12_500_000_000;
/// With more bytes than this, what was carried whole is halved on all rails.
const CARRIED_MAX: u64 = 1 << 40;

/// The newest hint for a connection.
pub(crate) trait HintSource: fmt::Debug + Send {
    /// Returns the share for SUP in parts per 1024; `None` if there was no hint yet. Called once per
    /// message, so it must not wait.
    fn share(&self) -> Option<u16>;
}

/// What gives the weights of a connection's rails.
#[derive(Debug)]
pub(super) enum Source {
    /// A constant share for SUP. With 0 rail 0 carries all.
    Fixed(u16),
    /// The speeds that the ports report.
    Reported(Arc<Reported>),
    /// The goodput of the rails, which is measured.
    Measured(Arc<Reported>),
    /// The agent's share for SUP, which may change between messages. Until the first one, the other
    /// source.
    Hinted(Box<dyn HintSource>, Box<Self>),
}

impl Source {
    /// Returns a number that changes with the share or the speeds.
    #[inline(always)]
    fn stamp(&self) -> u64 {
        match self {
            Self::Fixed(_) => 0,
            Self::Reported(reported) | Self::Measured(reported) => reported.renewals().into(),
            Self::Hinted(hints, other) => Self::hinted_stamp(&**hints, other),
        }
    }

    #[inline(never)]
    fn hinted_stamp(hints: &dyn HintSource, other: &Self) -> u64 {
        match hints.share() {
            Some(share) => 1 << 32 | u64::from(share),
            None => other.stamp(),
        }
    }

    /// Returns the share for SUP, if there is one.
    fn share(&self) -> Option<u16> {
        match self {
            Self::Fixed(share) => Some((*share).min(SHARE_ONE)),
            Self::Reported(_) | Self::Measured(_) => None,
            Self::Hinted(hints, other) => match hints.share() {
                Some(share) => Some(share.min(SHARE_ONE)),
                None => other.share(),
            },
        }
    }

    /// Returns the source that decides without a hint.
    fn unhinted(&self) -> &Self {
        if let Self::Hinted(_, other) = self { other } else { self }
    }
}

/// The sizes below which a message is not split.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// `MPIB_BDP_THRESHOLD`: messages of at most this many bytes have no share for SUP. Applies to
    /// hints between islands.
    pub(super) sout_only: u32,
    /// Messages below this many bytes go whole on one rail, or fewer if the rails carry less than
    /// their ports report.
    pub(super) split_min: u32,
    /// Whether `MPIB_SPLIT_MIN` is set: what the rails carry changes nothing.
    pub(super) is_set: bool,
}

impl Limits {
    /// Returns the limits of a connection by its settings. `speeds` are the speeds of both ends of
    /// each rail in Mb/s.
    pub(super) fn new(config: &Config, speeds: &[(u32, u32)]) -> Self {
        let fastest = match speeds.iter().map(slower_end).max() {
            // 0 is unknown.
            None | Some(0) => FAST,
            Some(speed) => u64::from(speed) * 125_000,
        };
        Self {
            sout_only: config.bdp_threshold,
            split_min: config.split_min.unwrap_or_else(|| default_split_min(fastest)),
            is_set: config.split_min.is_some(),
        }
    }
}

/// Returns what `MPIB_SPLIT_MIN` is unless it is set, where the fastest rail carries so many bytes per
/// second. It is a time: a further part costs a work request and a completion, which take about the
/// same time on each rail. A message of [`SPLIT_MIN`] bytes takes 5 µs on a rail that is just [`FAST`].
fn default_split_min(fastest: u64) -> u32 {
    (u64::from(SPLIT_MIN) * fastest.min(FAST) / FAST) as u32
}

/// Decides how each message of a connection is cut. Rail 0 is SOUT if the rails are SOUT and SUP.
#[derive(Debug)]
pub(crate) struct Splitter {
    source: Source,
    measure: Option<Box<Measure>>,
    /// Messages of at most this many bytes go on the first available rail: [`Limits::sout_only`].
    /// Empty messages do in any case.
    sout_only: usize,
    /// Messages below this many bytes go whole on one rail.
    split_min: usize,
    limits: Limits,
    /// The rails that carry data by the plan.
    carriers: RailSet,
    /// The rails that may carry data now.
    available: RailSet,
    /// The source's stamp when what follows was computed.
    stamp: u64,
    weights: Weights,
    /// Whether one rail alone has a weight.
    is_lone: bool,
    /// Whether large messages are divided by the measurement at the time of the send.
    by_goodput: bool,
    /// The share for SUP, if one applies.
    share: Option<u16>,
    /// By rail, with a share: the bytes of messages that went whole on it since the share changed.
    carried: [u64; MAX_RAILS],
}

impl Splitter {
    /// Makes the splitter of a connection by its settings. `hints` is the connection's registration
    /// with the agent, if it has one. By rail: the roles, the speeds of both ends in Mb/s, and this
    /// end's ports.
    pub(crate) fn open(
        plan: Plan,
        config: &Config,
        hints: Option<Box<dyn HintSource>>,
        roles: &[RailRole],
        speeds: &[(u32, u32)],
        ports: &[Arc<Nic>],
        now: u64,
    ) -> Self {
        let reported = Arc::new(Reported::new(&scaled(speeds, ports)));
        let of_ports = |source: fn(Arc<Reported>) -> Source| source(Arc::clone(&reported));
        let is_one_port = ports.windows(2).all(|pair| Arc::ptr_eq(&pair[0], &pair[1]));
        let unhinted = match config.split {
            _ if speeds.len() < 2 => Source::Fixed(0),
            SplitBy::Share if plan != Plan::Plain => Source::Fixed(0),
            SplitBy::Measured if !is_one_port => of_ports(Source::Measured),
            SplitBy::Speed | SplitBy::Measured | SplitBy::Share => of_ports(Source::Reported),
        };
        let source = match (plan, config.sup_share, hints) {
            (Plan::Isolated(_) | Plan::StandIn, ..) => Source::Fixed(0),
            (Plan::Shared(_), Some(share), _) => Source::Fixed(share),
            (Plan::Shared(_), None, Some(hints)) => Source::Hinted(hints, Box::new(unhinted)),
            (Plan::Plain | Plan::Shared(_), ..) => unhinted,
        };
        // With hints a rail may have so small a share that its parts are below `MEASURED`, and must be
        // measured nevertheless: an agent may decide by that.
        let least = match &source {
            Source::Hinted(..) if !is_one_port => Some(MEASURED / 16),
            Source::Measured(_) => Some(MEASURED),
            _ => None,
        };
        let meters: Vec<_> = ports.iter().map(|port| Arc::clone(port.meter())).collect();
        let measure = least.map(|least| Box::new(Measure::new(&meters, reported, least, now)));
        Self::new(plan, source, measure, Limits::new(config, speeds), roles)
    }

    pub(super) fn new(
        plan: Plan,
        source: Source,
        measure: Option<Box<Measure>>,
        limits: Limits,
        roles: &[RailRole],
    ) -> Self {
        let size = |bytes| usize::try_from(bytes).unwrap_or(usize::MAX);
        let has_threshold = plan == Plan::Shared(Class::Inter) && matches!(source, Source::Hinted(..));
        let carriers = plan.carriers(roles);
        let mut splitter = Self {
            source,
            measure,
            sout_only: if has_threshold { size(limits.sout_only) } else { 0 },
            split_min: 0,
            limits,
            carriers,
            available: carriers,
            stamp: 0,
            weights: Weights::new(&[], carriers),
            is_lone: true,
            by_goodput: false,
            share: None,
            carried: [0; MAX_RAILS],
        };
        splitter.weigh();
        splitter
    }

    /// Uses only these rails from now on. If the plan's rails are not among them, others stand in.
    pub(crate) fn keep(&mut self, rails: RailSet) {
        let carriers = self.carriers & rails;
        self.available = if carriers.is_empty() { rails } else { carriers };
        self.weigh();
    }

    /// Returns the speeds that the ports report, if they count.
    pub(crate) fn reported(&self) -> Option<&Arc<Reported>> {
        match self.source.unhinted() {
            Source::Reported(reported) | Source::Measured(reported) => Some(reported),
            Source::Fixed(_) | Source::Hinted(..) => None,
        }
    }

    /// Computes what changes with the source and the available rails.
    #[inline(never)]
    fn weigh(&mut self) {
        self.stamp = self.source.stamp();
        let share = self.source.share();
        let (weights, by_goodput) = match (share, self.source.unhinted(), &mut self.measure) {
            (Some(sup), ..) => ([SHARE_ONE - sup, sup, 0, 0, 0, 0, 0, 0], false),
            (None, Source::Measured(_), Some(measure)) => {
                // A rail that has returned has no share yet.
                measure.follow_when_due(self.available);
                (measure.weights(), true)
            }
            (None, Source::Reported(reported) | Source::Measured(reported), _) => (reported.now(), false),
            (None, ..) => ([0; MAX_RAILS], false),
        };
        self.weights = Weights::new(&weights, self.available);
        self.is_lone = self.weights.rails().len() <= 1;
        self.by_goodput = by_goodput;
        self.share = match self.available.bits() {
            _ if self.carriers.len() < 2 => None,
            0 => None,
            0b01 => share.map(|_| 0),
            0b10 => share.map(|_| SHARE_ONE),
            _ => share,
        };
        self.carried = [0; MAX_RAILS];
        self.limit();
    }

    /// Computes from how many bytes on a message is split by what the rails carry.
    fn limit(&mut self) {
        let fastest = self.measure.as_ref().filter(|_| !self.limits.is_set).and_then(|m| m.fastest());
        let by_time = fastest.map_or(u32::MAX, default_split_min);
        self.split_min = self.limits.split_min.min(by_time) as usize;
    }

    /// Cuts one message of `len` bytes in place. `in_flight` returns the work requests in flight on a
    /// rail. Returns `false` if no rail may carry data.
    #[inline(always)]
    pub(crate) fn split(&mut self, len: usize, in_flight: impl Fn(usize) -> u32, split: &mut Split) -> bool {
        if self.stamp != self.source.stamp() {
            self.weigh();
        }
        let is_small = len <= self.sout_only;
        let rails = if is_small { self.available } else { self.weights.rails() };
        let Some(first) = rails.lowest() else { return false };
        if is_small || len < SPLIT_ALIGN || self.is_lone {
            split.whole(len, first);
        } else if len < self.split_min {
            split.whole(len, self.least_loaded(len, in_flight).unwrap_or(first));
        } else if self.by_goodput {
            self.divide(len, split);
        } else {
            split.cut(len, &self.weights);
        }
        true
    }

    /// Chooses the rail for a whole message: the one with the least load in proportion to its
    /// weight. A share is a promise about bytes, so what the rails have carried counts. Otherwise the
    /// message is to end early, and what is in flight counts: of all connections of the process where
    /// it is measured, since each of NCCL's channels often has one message.
    #[inline(never)]
    fn least_loaded(&self, len: usize, in_flight: impl Fn(usize) -> u32) -> Option<usize> {
        match (self.share, self.measure.as_ref().filter(|_| self.by_goodput)) {
            (Some(_), _) => self.weights.least(len as u64, |rail| self.carried[rail]),
            (None, None) => self.least_busy(in_flight),
            (None, Some(measure)) => {
                let least = || self.weights.least(len as u64, |rail| measure.of_all(rail));
                measure.due().or_else(least)
            }
        }
    }

    /// Returns the rail on which one more work request is likely to end first.
    pub(crate) fn least_busy(&self, in_flight: impl Fn(usize) -> u32) -> Option<usize> {
        self.weights.least(1, |rail| in_flight(rail).into())
    }

    /// Cuts a message by what was measured. One without room for two measured parts goes whole on a
    /// rail that is to be measured again: the rail's part could be nothing, for ever.
    #[inline(never)]
    fn divide(&self, len: usize, split: &mut Split) {
        let Some(measure) = &self.measure else { return };
        match measure.due() {
            Some(rail) if len < 2 * MEASURED => split.whole(len, rail),
            due if len >= MEASURED => {
                split.cut(len, &Weights::new(&measure.divide(len, due), self.available));
            }
            _ => split.cut(len, &self.weights),
        }
    }

    /// Returns the share for SUP of a message of `len` bytes, if one applies.
    #[inline(always)]
    pub(crate) fn share(&self, len: usize) -> Option<u16> {
        match self.share {
            _ if len == 0 => None,
            Some(_) if len <= self.sout_only => Some(0),
            share => share,
        }
    }

    /// Returns a size and a rail: all messages below that size, but empty ones, always go whole on
    /// that rail. The data path decides nothing for them.
    pub(crate) fn decided(&self) -> Option<(usize, usize)> {
        let hinted = matches!(self.source, Source::Hinted(..));
        let (below, rails) = match self.available.len() {
            1 => (usize::MAX, self.available),
            _ if hinted => (self.sout_only.saturating_add(1), self.available),
            _ => (SPLIT_ALIGN, self.weights.rails()),
        };
        rails.lowest().filter(|_| below > 1).map(|rail| (below, rail))
    }

    /// Accounts for a message that [`split`](Self::split) has cut, once it is certain to be posted.
    #[inline(always)]
    pub(crate) fn posted(&mut self, split: &Split) {
        let size = split.size();
        let is_chosen = size < self.split_min && size >= SPLIT_ALIGN && size > self.sout_only;
        if is_chosen && !self.is_lone && self.share.is_some() {
            self.carry(split);
        }
    }

    #[inline(never)]
    fn carry(&mut self, split: &Split) {
        for part in split.parts() {
            self.carried[part.rail] += part.len as u64;
            if self.carried[part.rail] > CARRIED_MAX {
                self.carried.iter_mut().for_each(|carried| *carried /= 2);
            }
        }
    }

    /// Notes that the parts of a group of `size` bytes are about to be posted on `rails` in a slot.
    /// `bytes` returns those of a rail. Returns whether they are measured: [`completed`](Self::completed)
    /// must be called for each.
    #[inline(always)]
    pub(crate) fn begin(
        &mut self,
        slot: u8,
        rails: RailSet,
        size: usize,
        bytes: impl Fn(usize) -> usize,
        now: impl Fn() -> u64,
    ) -> bool {
        let Some(measure) = &mut self.measure else { return false };
        measure.begin(slot, rails, size, bytes, now);
        true
    }

    /// Takes in the completion of a measured part of `bytes` bytes.
    pub(crate) fn completed(&mut self, slot: u8, rail: usize, bytes: usize, now: impl Fn() -> u64) {
        if self.measure.as_mut().is_some_and(|measure| measure.completed(slot, rail, bytes, now)) {
            self.follow();
        }
    }

    /// Lets weights and limits follow what was measured, if it is time for that.
    #[inline(never)]
    fn follow(&mut self) {
        let Some(measure) = &mut self.measure else { return };
        if !measure.follow_when_due(self.available) {
            return;
        }
        if self.by_goodput {
            self.weights = Weights::new(&measure.weights(), self.available);
        }
        self.limit();
    }

    /// Returns the rails with measured parts in flight.
    #[inline(always)]
    pub(crate) fn busy(&self) -> RailSet {
        self.measure.as_ref().map_or(RailSet::EMPTY, |measure| measure.busy())
    }

    /// Forgets what was measured on rails that are given up.
    pub(crate) fn forget(&mut self, rails: RailSet) {
        if let Some(measure) = &mut self.measure {
            rails.iter().for_each(|rail| measure.forget(rail));
        }
    }
}
