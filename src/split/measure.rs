//! How long the large parts of a connection's messages take on each rail, and the shares that
//! follow. Times are in ns.

use std::sync::Arc;

use nccl_net_mpib_agent_iface::shares::DOUBLING;

use super::Reported;
use super::reported::scale;
use super::shares::{Goodput, MEASURED, Shares};
use crate::device::{Nic, SCALE_ONE};
use crate::proto::{MAX_RAILS, RailSet, SLOTS};

/// A connection's own measurement counts until the port's is so much newer.
const FRESH: u64 = 1_000_000_000;
/// The shares follow once in this time. In it no share changes by more than a hundredth.
const STEP: u64 = DOUBLING / 64;

/// The measurement of one connection.
#[derive(Debug)]
pub(super) struct Measure {
    rails: Box<[MeasuredRail]>,
    /// The speeds that the ports report.
    reported: Arc<Reported>,
    shares: Shares,
    /// When the shares followed last, and the rails whose shares did.
    followed: (u64, RailSet),
    /// The smallest part that is measured.
    least: usize,
    /// By slot: when its parts were posted.
    posted: Box<[u64; SLOTS]>,
}

/// What a connection has measured on a rail.
#[derive(Debug)]
struct MeasuredRail {
    /// This end's port.
    port: Arc<Nic>,
    own: Goodput,
    /// Bytes of measured parts in flight.
    in_flight: u64,
    /// When the last measured part completed.
    done: u64,
}

impl MeasuredRail {
    /// Returns the port's goodput, of all connections.
    fn of_port(&self) -> Goodput {
        Goodput { rate: self.port.meter().goodput(), at: self.port.meter().measured_at() }
    }

    /// Returns the goodput of the rail: the connection's, or the port's if that was measured and the
    /// connection's was not, or long before.
    fn goodput(&self) -> Goodput {
        let (own, of_port) = (self.own, self.of_port());
        let is_old = own.rate == 0 || own.at.saturating_add(FRESH) < of_port.at;
        // Not the port's time: it must not keep this connection from measuring.
        if is_old && of_port.rate > 0 { Goodput { at: own.at, ..of_port } } else { own }
    }

    /// Returns the rate that counts for the share: 0 if nothing was measured.
    fn rate(&self) -> u64 {
        match self.goodput().rate {
            0 => 0,
            rate => (rate / u64::from(SCALE_ONE) * u64::from(scale(&self.port))).max(1),
        }
    }

    /// Takes in a part of `bytes` bytes that was posted at `posted` and has completed. It took the
    /// time from its post, or from the completion before it if that was later.
    fn completed(&mut self, bytes: usize, posted: u64, now: u64) {
        self.in_flight = self.in_flight.saturating_sub(bytes as u64);
        let meter = self.port.meter();
        meter.busy().completed(bytes, posted, now);
        if self.in_flight == 0 {
            meter.busy().end();
        }
        let time = now.saturating_sub(posted.max(self.done));
        self.done = now;
        self.own = self.goodput();
        self.own.add(bytes, time, now);
        let mut of_port = self.of_port();
        of_port.add(bytes, time, now);
        meter.set_goodput(of_port.rate, of_port.at);
    }

    /// Forgets the parts in flight: the rail is given up, or the connection ends.
    fn stop(&mut self) {
        self.done = 0;
        if std::mem::take(&mut self.in_flight) > 0 {
            self.port.meter().busy().end();
        }
    }
}

impl Measure {
    /// `ports` has this end's port of each rail. Parts from `least` bytes on are measured.
    pub(super) fn new(ports: &[Arc<Nic>], reported: Arc<Reported>, least: usize, now: u64) -> Self {
        let own = Goodput { rate: 0, at: now };
        let rail = |port: &Arc<Nic>| MeasuredRail { port: Arc::clone(port), own, in_flight: 0, done: 0 };
        let mut measure = Self {
            rails: ports.iter().take(MAX_RAILS).map(rail).collect(),
            reported,
            shares: Shares::default(),
            followed: (0, RailSet::EMPTY),
            least,
            posted: Box::new([0; SLOTS]),
        };
        measure.follow(RailSet::first(measure.rails.len()), now);
        measure
    }

    /// Notes that a group's parts on `rails` are about to be posted in a slot. `bytes` returns those
    /// of a rail. Returns the rails whose parts are measured.
    pub(super) fn begin(
        &mut self,
        slot: u8,
        rails: RailSet,
        bytes: impl Fn(usize) -> usize,
        now: impl Fn() -> u64,
    ) -> RailSet {
        if rails.iter().map(&bytes).sum::<usize>() < MEASURED {
            return RailSet::EMPTY;
        }
        let measured: RailSet = rails.iter().filter(|rail| bytes(*rail) >= self.least).collect();
        if !measured.is_empty() {
            let now = now();
            self.posted[usize::from(slot)] = now;
            for rail in measured.iter() {
                let of_rail = &mut self.rails[rail];
                if of_rail.in_flight == 0 {
                    of_rail.port.meter().busy().begin(now);
                }
                of_rail.in_flight += bytes(rail) as u64;
            }
        }
        measured
    }

    /// Takes in the completion of a measured part of `bytes` bytes.
    pub(super) fn completed(&mut self, slot: u8, rail: usize, bytes: usize, now: u64) {
        self.rails[rail].completed(bytes, self.posted[usize::from(slot)], now);
    }

    /// Forgets what was measured on a rail that is out of use.
    pub(super) fn forget(&mut self, rail: usize, now: u64) {
        let of_rail = &mut self.rails[rail];
        of_rail.stop();
        of_rail.own = Goodput { rate: 0, at: now };
        of_rail.port.meter().forget();
        self.shares.forget(rail);
        self.followed.1 = RailSet::EMPTY;
    }

    /// Returns the shares of the rails, as weights.
    pub(super) fn weights(&self) -> [u16; MAX_RAILS] {
        self.shares.weights()
    }

    /// Lets the shares of `rails` follow if it is time for that. Returns whether they did.
    pub(super) fn follow_when_due(&mut self, rails: RailSet, now: u64) -> bool {
        let is_due = self.followed.1 != rails || now.saturating_sub(self.followed.0) >= STEP;
        if is_due {
            self.follow(rails, now);
        }
        is_due
    }

    /// Returns the weights by which a message of `size` bytes is divided among the rails that were
    /// last followed.
    pub(super) fn divide(&self, size: usize, now: u64) -> [u16; MAX_RAILS] {
        let rails = self.followed.1;
        // A rail with large parts in flight is measured when they complete.
        let is_due = |rail: &usize| self.rails[*rail].in_flight == 0 && self.rails[*rail].own.is_due(now);
        let due = rails.iter().filter(is_due).min_by_key(|rail| self.rails[*rail].own.at);
        self.shares.divide(size, |rail| self.rails[rail].in_flight, rails, due)
    }

    /// Moves the shares of `rails` towards what was measured.
    fn follow(&mut self, rails: RailSet, now: u64) {
        self.followed = (now, rails);
        let mut rates = [0; MAX_RAILS];
        rails.iter().for_each(|rail| rates[rail] = self.rails[rail].rate());
        self.shares.follow(rates, &self.reported.now(), rails, now);
        for rail in rails.iter() {
            self.rails[rail].port.meter().set_weight(self.shares.per_1024(rail, rails));
        }
    }
}

impl Drop for Measure {
    fn drop(&mut self) {
        self.rails.iter_mut().for_each(MeasuredRail::stop);
    }
}
