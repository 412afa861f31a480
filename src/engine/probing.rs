//! The handshake's probes: a route counts when a zero-byte write on each of its queue pairs has completed, and the read
//! of the one for flushes.

use std::time::Instant;

use super::lane::Lane;
use super::rail::{Rail, Work};
use super::recv;
use super::wiring::Joined;
use crate::error::{Error, Result};
use crate::proto::{MAX_RAILS, Message};
use crate::verbs::{Batch, Chain, Local, Region, Remote};

/// Probes on every route.
#[derive(Debug)]
pub(super) struct Probing {
    pub(super) joined: Joined,
    /// Probes under way on each route: one for each of its queue pairs.
    pending: [usize; MAX_RAILS],
    until: Instant,
}

impl Probing {
    pub(super) fn start(mut joined: Joined, until: Instant) -> Self {
        let mut pending = [0; MAX_RAILS];
        let mut chain = Chain::default();
        for (i, place) in joined.rails.iter_mut().enumerate() {
            let Ok(rail) = place else { continue };
            let to = Remote { addr: joined.remote.addr, rkey: joined.remote.rkeys[i] };
            let post = |lane: &mut Lane| {
                chain.clear();
                match chain.write(None, to, None, Some(Work::Probe.id())) {
                    true => lane.post(&mut chain, true),
                    false => Err(Error::Internal("no room for a probe".into())),
                }
            };
            let written = rail.lanes.iter_mut().try_for_each(post);
            match written.and_then(|()| read_own(rail, &joined.region, i, &mut chain)) {
                Ok(()) => pending[i] = rail.lanes.iter().chain(&rail.flush).count(),
                Err(e) => *place = Err(e),
            }
        }
        Self { joined, pending, until }
    }

    /// Takes what has completed; `true` when every probe has, or the time is up.
    pub(super) fn over(&mut self) -> Result<bool> {
        for (i, place) in self.joined.rails.iter_mut().enumerate() {
            let Ok(rail) = place else { continue };
            if self.pending[i] == 0 {
                continue;
            }
            match probed(i, rail) {
                Ok(n) => self.pending[i] = self.pending[i].saturating_sub(n),
                Err(e) => {
                    self.pending[i] = 0;
                    *place = Err(e);
                }
            }
        }
        if self.pending.iter().any(|n| *n > 0) && Instant::now() < self.until {
            return Ok(false);
        }
        for (place, pending) in self.joined.rails.iter_mut().zip(&mut self.pending) {
            if std::mem::take(pending) > 0 {
                *place =
                    Err(Error::Peer("the probe did not complete in time (MPIB_PROBE_TIMEOUT_MS)".into()));
            }
        }
        Ok(true)
    }

    pub(super) fn report(&self) -> Message {
        let rails = || (0u8..).zip(&self.joined.rails);
        let mask = rails().filter(|(_, r)| r.is_ok()).fold(0, |mask, (i, _)| mask | 1 << i);
        let reasons = rails().filter_map(|(i, r)| r.as_ref().err().map(|e| (i, e.to_string()))).collect();
        Message::Probed { mask, reasons }
    }
}

/// The first read of the queue pair for flushes, where there is one.
fn read_own(rail: &mut Rail, region: &Region, i: usize, chain: &mut Chain) -> Result<()> {
    let Some(lane) = &mut rail.flush else { return Ok(()) };
    let (addr, mr) = (region.addr(recv::SINK / 8 + i) as u64, &region.mrs()[i]);
    chain.clear();
    let local = Local { addr, len: 1, lkey: mr.lkey() };
    match chain.read(local, Remote { addr, rkey: mr.rkey() }, Work::Probe.id()) {
        true => lane.post(chain, true),
        false => Err(Error::Internal("no room for a probe".into())),
    }
}

/// Takes what has completed of a rail's probes; how many have.
fn probed(i: usize, rail: &mut Rail) -> Result<usize> {
    let mut batch = Batch::new();
    rail.cq.poll(&mut batch)?;
    let mut done = 0;
    for completion in batch.iter() {
        if completion.status != 0 {
            return Err(rail.failed(i, &completion));
        }
        let lane = rail.lanes.iter_mut().chain(&mut rail.flush).find(|l| l.number() == completion.qpn);
        let lane = lane.ok_or_else(|| {
            Error::Internal(format!(
                "a probe completed on queue pair {}, which is not of its rail",
                completion.qpn
            ))
        })?;
        lane.sent()?;
        done += 1;
    }
    Ok(done)
}
