//! What the rails carry while they are busy, and the shares of a connection that follow. Times are in
//! ns.
//!
//! The goodput of a rail belongs to its port: what all connections of the process carry there while
//! any of them is busy. A connection that shares a port counts for its fair part of that.

use std::sync::Arc;

use mpib_proto::{MAX_RAILS, RailSet, SLOTS};
use nccl_net_mpib_agent_iface::shares::DOUBLING;

use super::Reported;
use super::reported::scale;
use super::shares::{Goodput, MEASURED, Shares};
use crate::device::{PortMeter, SCALE_ONE, Span};

/// The shares follow once in this time. In it no share changes by more than a hundredth.
const STEP: u64 = DOUBLING / 64;
/// A rail that was not measured for this long is measured by small parts, too.
const MISSED: u64 = DOUBLING / 10;

/// Returns the bytes that count for a part. An empty one is in flight, too.
#[inline(always)]
fn counted(bytes: usize) -> u64 {
    bytes.max(1) as u64
}

/// The measurement of one connection.
#[derive(Debug)]
pub(super) struct Measure {
    rails: Box<[MeasuredRail]>,
    /// The speeds that the ports report.
    reported: Arc<Reported>,
    shares: Shares,
    /// When the shares followed last, and the rails whose shares did.
    followed: (u64, RailSet),
    /// The fewest bytes of a large group that are measured.
    least: u64,
    /// By slot: when its parts were posted, 0 for those of a small group.
    posted: Box<[u64; SLOTS]>,
    /// The rails with parts in flight.
    busy: RailSet,
    /// The rails that were not measured for a while.
    missed: RailSet,
    /// When goodput was measured last, or when this last looked for rails that were not.
    now: u64,
}

/// A rail as a connection measures it.
#[derive(Debug)]
struct MeasuredRail {
    /// This end's port.
    port: Arc<PortMeter>,
    /// The connection's bytes in flight.
    in_flight: u64,
    /// Its share, which counts at the port while it has bytes in flight, in parts per 1024.
    claim: u32,
}

impl MeasuredRail {
    /// Returns the goodput of the port.
    fn goodput(&self) -> Goodput {
        Goodput { rate: self.port.goodput(), at: self.port.measured_at() }
    }

    /// Returns the rate that counts for the share: the connection's fair part of the goodput, if
    /// others that are busy on the port count by their shares. 0 if nothing was measured.
    fn rate(&self) -> u64 {
        let (own, claims) = (u64::from(self.claim), u64::from(self.port.busy().claims()));
        let all = if self.in_flight > 0 { claims.max(own) } else { claims + own };
        match self.goodput().rate / u64::from(SCALE_ONE) * u64::from(scale(&self.port)) {
            0 => 0,
            rate => (rate / all * own).max(1),
        }
    }

    /// Notes that a part is about to be posted. Returns whether the port is idle.
    #[inline(always)]
    fn begin(&mut self, bytes: u64) -> bool {
        if self.in_flight == 0 {
            self.port.busy().claim(self.claim);
        }
        self.in_flight += bytes;
        self.port.busy().begin(bytes)
    }

    /// Takes in what the port has carried.
    #[inline(never)]
    fn measured(&self, Span { bytes, time, is_alone }: Span, now: u64) {
        let mut goodput = self.goodput();
        match is_alone {
            true => goodput.raise(bytes, time, now),
            false => goodput.add(bytes, time, now),
        }
        self.port.set_goodput(goodput.rate, goodput.at);
    }

    /// Forgets the parts in flight: the rail is given up, or the connection ends.
    fn stop(&mut self) {
        if self.in_flight > 0 {
            self.port.busy().give_up(std::mem::take(&mut self.in_flight));
            self.port.busy().release(self.claim);
        }
    }

    /// Claims another share.
    fn follow(&mut self, share: u16) {
        if self.in_flight > 0 {
            self.port.busy().release(self.claim);
            self.port.busy().claim(share.into());
        }
        self.claim = share.into();
        self.port.set_weight(share);
    }
}

impl Measure {
    /// `ports` has this end's port of each rail. `least` are the fewest bytes of a large group that
    /// are measured.
    pub(super) fn new(ports: &[Arc<PortMeter>], reported: Arc<Reported>, least: usize, now: u64) -> Self {
        let rail = |port: &Arc<PortMeter>| MeasuredRail { port: Arc::clone(port), in_flight: 0, claim: 1 };
        let rails: Box<[_]> = ports.iter().take(MAX_RAILS).map(rail).collect();
        let all = RailSet::first(rails.len());
        let mut measure = Self {
            rails,
            reported,
            shares: Shares::default(),
            followed: (0, RailSet::EMPTY),
            least: least as u64,
            posted: Box::new([0; SLOTS]),
            busy: RailSet::EMPTY,
            missed: all,
            now,
        };
        // A port is due some time after it could first be measured.
        for rail in measure.rails.iter().filter(|rail| rail.port.goodput() == 0) {
            rail.port.set_goodput(0, now);
        }
        measure.follow(all);
        measure
    }

    /// Notes that the parts of a group of `size` bytes are about to be posted on `rails` in a slot.
    /// `bytes` returns those of a rail.
    #[inline(always)]
    pub(super) fn begin(
        &mut self,
        slot: u8,
        rails: RailSet,
        size: usize,
        bytes: impl Fn(usize) -> usize,
        now: impl Fn() -> u64,
    ) {
        let posted = if size < MEASURED { 0 } else { now() };
        self.posted[usize::from(slot)] = posted;
        // Small parts that do not follow each other closely measure nothing.
        if slot == 0 {
            self.look_for_missed(now());
        }
        for rail in rails.iter() {
            let of_rail = &mut self.rails[rail];
            if of_rail.begin(counted(bytes(rail))) && (posted > 0 || self.missed.contains(rail)) {
                of_rail.port.busy().count_from(if posted > 0 { posted } else { now() });
            }
        }
        self.busy |= rails;
    }

    /// Takes in the completion of a part of `bytes` bytes. Returns whether goodput was measured, also
    /// by other connections, for which one in [`SLOTS`] messages looks.
    #[inline(always)]
    pub(super) fn completed(&mut self, slot: u8, rail: usize, bytes: usize, now: impl Fn() -> u64) -> bool {
        let of_rail = &mut self.rails[rail];
        let bytes = counted(bytes).min(of_rail.in_flight);
        of_rail.in_flight -= bytes;
        if of_rail.in_flight == 0 {
            self.busy.remove(rail);
            of_rail.port.busy().release(of_rail.claim);
        }
        let posted = self.posted[usize::from(slot)];
        let least = if posted > 0 { self.least } else { MEASURED as u64 };
        let Some((span, now)) = of_rail.port.busy().completed(bytes, posted, least, now) else {
            return slot == 0;
        };
        of_rail.measured(span, now);
        self.now = now;
        true
    }

    /// Returns the rails with parts in flight.
    #[inline(always)]
    pub(super) fn busy(&self) -> RailSet {
        self.busy
    }

    /// Returns the bytes in flight on a rail's port, of all connections of the process.
    pub(super) fn of_all(&self, rail: usize) -> u64 {
        self.rails[rail].port.busy().in_flight()
    }

    /// Forgets what was measured on a rail that is out of use.
    pub(super) fn forget(&mut self, rail: usize) {
        let of_rail = &mut self.rails[rail];
        of_rail.stop();
        self.busy.remove(rail);
        of_rail.port.forget(self.now);
        self.shares.forget(rail);
        self.followed.1 = RailSet::EMPTY;
        self.missed.insert(rail);
    }

    /// Returns the shares of the rails, as weights.
    pub(super) fn weights(&self) -> [u16; MAX_RAILS] {
        self.shares.weights()
    }

    /// Lets the shares of `rails` follow if it is time for that. Returns whether they did.
    pub(super) fn follow_when_due(&mut self, rails: RailSet) -> bool {
        let is_due = self.followed.1 != rails || self.now.saturating_sub(self.followed.0) >= STEP;
        if is_due {
            self.follow(rails);
        }
        is_due
    }

    /// Returns the goodput of the fastest rail that was last followed, if that of each is known.
    pub(super) fn fastest(&self) -> Option<u64> {
        let rates = || self.followed.1.iter().map(|rail| self.rails[rail].goodput().rate);
        rates().max().filter(|_| rates().all(|rate| rate > 0))
    }

    /// Returns the weights by which a message of `size` bytes is divided among the rails that were
    /// last followed. If there is room, the rail `due` has enough to be measured.
    pub(super) fn divide(&self, size: usize, due: Option<usize>) -> [u16; MAX_RAILS] {
        self.shares.divide(size, |rail| self.rails[rail].in_flight, self.followed.1, due)
    }

    /// Returns the rail that was measured the longest time ago, if it is due and its port does not
    /// carry enough to be measured.
    pub(super) fn due(&self) -> Option<usize> {
        let is_due = |rail: &usize| {
            let of_rail = &self.rails[*rail];
            of_rail.port.busy().in_flight() < MEASURED as u64 && of_rail.goodput().is_due(self.now)
        };
        (self.missed & self.followed.1)
            .iter()
            .filter(is_due)
            .min_by_key(|rail| self.rails[*rail].goodput().at)
    }

    /// Moves the shares of `rails` towards what was measured.
    fn follow(&mut self, rails: RailSet) {
        self.followed = (self.now, rails);
        let mut rates = [0; MAX_RAILS];
        rails.iter().for_each(|rail| rates[rail] = self.rails[rail].rate());
        self.shares.follow(rates, &self.reported.now(), rails, self.now);
        for rail in rails.iter() {
            self.rails[rail].follow(self.shares.per_1024(rail, rails));
        }
        self.look_for_missed(self.now);
    }

    /// Notes which of the rails that were last followed have not been measured for a while.
    #[inline(never)]
    fn look_for_missed(&mut self, now: u64) {
        self.now = now;
        let is_missed = |rail: &usize| {
            let goodput = self.rails[*rail].goodput();
            goodput.rate == 0 || now.saturating_sub(goodput.at) > MISSED
        };
        self.missed = self.followed.1.iter().filter(is_missed).collect();
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
        self.rails.iter_mut().for_each(MeasuredRail::stop);
    }
}
