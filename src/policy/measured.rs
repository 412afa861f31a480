//! The measured split of one connection: what it and others have measured on its ports, and the
//! shares that follow.

use std::sync::Arc;

use super::Weights;
use super::goodput::{Goodput, fill};
use super::shares::Shares;
use super::weights::scale;
use crate::device::{Nic, SCALE_ONE};
use crate::proto::{MAX_RAILS, rails};

/// A connection's own measurement counts until the port's is so much newer, in ns.
const FRESH: u64 = 1_000_000_000;

/// The measured split of one connection.
#[derive(Debug)]
pub struct Measured {
    /// This end's port of each rail.
    ports: Box<[Arc<Nic>]>,
    /// The speeds that the ports report.
    reported: Arc<Weights>,
    own: [Goodput; MAX_RAILS],
    shares: Shares,
}

impl Measured {
    /// `ports` has this end's port of each rail. `now` is in ns.
    pub fn new(ports: Vec<Arc<Nic>>, reported: Arc<Weights>, now: u64) -> Self {
        let own = [Goodput { rate: 0, at: now }; MAX_RAILS];
        let mut measured = Self { ports: ports.into(), reported, own, shares: Shares::default() };
        let mask = measured.ports.iter().take(MAX_RAILS).fold(0, |mask, _| mask << 1 | 1);
        measured.follow(mask, now);
        measured
    }

    /// Returns the goodput of a rail: the connection's, or the port's if that was measured and the
    /// connection's was not, or long before.
    fn goodput(&self, rail: usize) -> Goodput {
        let (own, meter) = (self.own[rail], self.ports[rail].meter());
        let of_port = Goodput { rate: meter.goodput(), at: meter.measured_at() };
        let is_old = own.rate == 0 || own.at.saturating_add(FRESH) < of_port.at;
        // Not the port's time: it must not keep this connection from measuring.
        if is_old && of_port.rate > 0 { Goodput { at: own.at, ..of_port } } else { own }
    }

    /// Takes in a part of a rail that took `time` and completed `now`, in ns.
    pub fn add(&mut self, rail: usize, bytes: usize, time: u64, now: u64) {
        let mut own = self.goodput(rail);
        own.add(bytes, time, now);
        self.own[rail] = own;
        let meter = self.ports[rail].meter();
        let mut of_port = Goodput { rate: meter.goodput(), at: meter.measured_at() };
        of_port.add(bytes, time, now);
        meter.set_goodput(of_port.rate, of_port.at);
    }

    /// Forgets what was measured on a rail that is out of use.
    pub fn forget(&mut self, rail: usize, now: u64) {
        self.own[rail] = Goodput { rate: 0, at: now };
        self.shares.forget(rail);
        self.ports[rail].meter().forget();
    }

    /// Returns this end's port of each rail.
    pub fn ports(&self) -> &[Arc<Nic>] {
        &self.ports
    }

    /// Returns the speeds that the ports report.
    pub fn reported(&self) -> &Arc<Weights> {
        &self.reported
    }

    /// Returns the shares of the rails, as weights.
    pub fn weights(&self) -> [u16; MAX_RAILS] {
        self.shares.weights()
    }

    /// Returns the weights by which a message of `size` bytes is divided among the rails of `mask`
    /// `now`, with so many bytes of large parts `in_flight` on each.
    pub fn divide(
        &mut self,
        size: usize,
        in_flight: &[u64; MAX_RAILS],
        mask: u8,
        now: u64,
    ) -> [u16; MAX_RAILS] {
        self.follow(mask, now);
        // A rail with large parts in flight is measured when they complete.
        let is_due = |rail: &usize| in_flight[*rail] == 0 && self.own[*rail].is_due(now);
        let due = rails(mask).filter(is_due).min_by_key(|rail| self.own[*rail].at);
        self.shares.divide(size, in_flight, mask, due)
    }
}

impl Measured {
    /// Moves the shares of the rails in `mask` towards what was measured.
    fn follow(&mut self, mask: u8, now: u64) {
        let reported = self.reported.now();
        let mut rates = [0; MAX_RAILS];
        for rail in rails(mask) {
            rates[rail] = match self.goodput(rail).rate {
                0 => 0,
                // A rate of 0 is one that was not measured.
                rate => (rate / u64::from(SCALE_ONE) * u64::from(scale(&self.ports[rail]))).max(1),
            };
        }
        fill(&mut rates, &reported, mask);
        self.shares.follow(&rates, &reported, mask, now);
        rails(mask).for_each(|r| self.ports[r].meter().set_weight(self.shares.per_1024(r, mask)));
    }
}
