//! Queues and memory of one end: made, told to the peer, joined to the peer's.

use std::sync::Arc;

use super::core::RemoteMemory;
use super::offer::Offer;
use super::rail::{Names, Rail, Receives};
use super::{Role, Settings, recv, send};
use crate::error::{Error, Result};
use crate::proto::{
    FIFO_BYTES, LinkLayer, MAX_RAILS, MAX_RECVS, Memory, QpWiring, RECORDS_BYTES, RailInfo, RouteWiring,
    SLOTS, Wiring,
};
use crate::route::Route;
use crate::verbs::{Cq, Fresh, Path, Pd, Qp, QpOptions, Region, Srq, Timing};

/// Send requests for 256 groups: each has a write and the signalling one on a rail.
const SEND_DEPTH: u32 = 2 * SLOTS as u32;
/// CTS writes for 256 groups.
const CTS_DEPTH: u32 = SLOTS as u32;
/// The longest chain of a group must fit into a queue.
pub(super) const MIN_DEPTH: u32 = MAX_RECVS as u32 + 1;
/// What a CTS entry takes.
const INLINE: u32 = 64;

/// One end's part of the routes, before it knows the peer's.
#[derive(Debug)]
pub(super) struct Half {
    routes: Vec<HalfRoute>,
    region: Region,
}

#[derive(Debug)]
struct HalfRoute {
    ours: usize,
    theirs: usize,
    qp: Qp<Fresh>,
    receives: Option<Receives>,
    cq: Arc<Cq>,
    psn: u32,
}

/// Both ends' parts joined. A route whose queue pair could not be joined has the reason in its place.
#[derive(Debug)]
pub(super) struct Joined {
    pub(super) rails: Vec<Result<Rail>>,
    pub(super) region: Region,
    pub(super) remote: RemoteMemory,
}

impl Half {
    pub(super) fn new(role: Role, settings: &Settings, offers: &[Offer], routes: &[Route]) -> Result<Self> {
        let mut halves = Vec::with_capacity(routes.len());
        for route in routes {
            let (ours, theirs) = match role {
                Role::Sender => (route.connector, route.acceptor),
                Role::Receiver => (route.acceptor, route.connector),
            };
            halves.push(HalfRoute::new(role, settings, &offers[ours], ours, theirs)?);
        }
        let pds: Vec<Arc<Pd>> = halves.iter().map(|h| Arc::clone(offers[h.ours].nic.pd())).collect();
        let bytes = match role {
            Role::Sender => send::MEMORY_BYTES,
            Role::Receiver => recv::MEMORY_BYTES,
        };
        Ok(Self { routes: halves, region: Region::new(&pds, bytes / 8)? })
    }

    /// What the peer must know. Its remote keys are in the order of our offers.
    pub(super) fn message(&self, role: Role, offers: usize) -> Wiring {
        let mut rkeys = vec![0; offers];
        for (route, mr) in self.routes.iter().zip(self.region.mrs()) {
            rkeys[route.ours] = mr.rkey();
        }
        let route = |r: &HalfRoute| RouteWiring {
            local_rail: r.ours as u8,
            remote_rail: r.theirs as u8,
            qps: vec![QpWiring { qpn: r.qp.number(), psn: r.psn }],
        };
        let memory = Memory { addr: self.region.addr(0) as u64, len: written_bytes(role), rkeys };
        Wiring { routes: self.routes.iter().map(route).collect(), memory }
    }

    /// Joins our queue pairs to the peer's.
    pub(super) fn join(
        self,
        role: Role,
        settings: &Settings,
        offers: &[Offer],
        peer: &[RailInfo],
        name: &str,
        wiring: &Wiring,
    ) -> Result<Joined> {
        let refuse = |what: String| Err(Error::Protocol(format!("WIRING of {name}: {what}")));
        if wiring.routes.len() != self.routes.len() {
            return refuse(format!("{} routes, expected {}", wiring.routes.len(), self.routes.len()));
        }
        let needed = written_bytes(role.other());
        if wiring.memory.len < needed || wiring.memory.addr.checked_add(needed).is_none() {
            return refuse(format!(
                "{} bytes at {:#x}, expected {needed}",
                wiring.memory.len, wiring.memory.addr
            ));
        }
        if wiring.memory.rkeys.len() != peer.len() {
            return refuse(format!("{} remote keys for {} rails", wiring.memory.rkeys.len(), peer.len()));
        }
        let mut remote = RemoteMemory { addr: wiring.memory.addr, rkeys: [0; MAX_RAILS] };
        let mut rails = Vec::with_capacity(self.routes.len());
        for (i, (half, theirs)) in self.routes.into_iter().zip(&wiring.routes).enumerate() {
            let pair = (usize::from(theirs.remote_rail), usize::from(theirs.local_rail));
            if pair != (half.ours, half.theirs) {
                let ours = (half.ours, half.theirs);
                return refuse(format!("route {i} joins our rail and its rail {pair:?}, expected {ours:?}"));
            }
            let [qp] = theirs.qps[..] else {
                return refuse(format!("{} queue pairs for route {i}, expected 1", theirs.qps.len()));
            };
            remote.rkeys[i] = wiring.memory.rkeys[half.theirs];
            let (offer, rail) = (&offers[half.ours], &peer[half.theirs]);
            rails.push(half.connect(settings, offer, rail, name, qp));
        }
        Ok(Joined { rails, region: self.region, remote })
    }
}

/// Bytes of an end's memory that its peer writes: the front part.
fn written_bytes(role: Role) -> u64 {
    match role {
        Role::Sender => FIFO_BYTES as u64,
        Role::Receiver => RECORDS_BYTES as u64,
    }
}

impl HalfRoute {
    fn new(role: Role, settings: &Settings, offer: &Offer, ours: usize, theirs: usize) -> Result<Self> {
        let (nic, limits) = (&offer.nic, offer.nic.limits());
        let too_small = |what: &str, has: u32, needs: u32| {
            Error::Usage(format!("{}: {what} of {has} entries, and a connection needs {needs}", nic.name()))
        };
        let srq_depth = match role {
            Role::Sender => 0,
            Role::Receiver => settings.config.srq_high.min(limits.max_srq_wr).min(limits.max_cqe / 2),
        };
        let wanted = if role == Role::Sender { SEND_DEPTH } else { CTS_DEPTH };
        let depth = wanted
            .min(settings.queue_depth)
            .min(limits.max_qp_wr)
            .min(limits.max_cqe.saturating_sub(srq_depth));
        if depth < MIN_DEPTH {
            return Err(too_small("a send or completion queue", depth, MIN_DEPTH));
        }
        if role == Role::Receiver && srq_depth == 0 {
            return Err(too_small("a shared receive queue", 0, 1));
        }
        // Room for all at once: after a failure every request completes, signalled or not.
        let cq = Arc::new(Cq::new(nic.pd().context(), depth + srq_depth)?);
        let receives = match role {
            Role::Sender => None,
            Role::Receiver => {
                let low = settings.config.srq_low.min(srq_depth / 2) as usize;
                Some(Receives::new(Srq::new(nic.pd(), srq_depth)?, low)?)
            }
        };
        let options = QpOptions { send_depth: depth, inline: INLINE };
        let qp = Qp::new(nic.pd(), &cq, receives.as_ref().map(|r| &r.srq), options)?;
        let mut psn = [0; 4];
        getrandom::fill(&mut psn[..3]).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
        Ok(Self { ours, theirs, qp, receives, cq, psn: u32::from_le_bytes(psn) })
    }

    fn connect(
        self,
        settings: &Settings,
        offer: &Offer,
        peer: &RailInfo,
        name: &str,
        theirs: QpWiring,
    ) -> Result<Rail> {
        let roce = offer.port.link == LinkLayer::Ethernet;
        let routed = roce || offer.gid.raw[..8] != peer.gid[..8];
        let path = Path {
            port: offer.port.number,
            gid_index: offer.gid.index,
            pkey_index: settings.config.pkey_index,
            mtu: offer.port.mtu.min(peer.mtu.raw() as u8),
            lid: if roce { 0 } else { peer.lid },
            gid: routed.then_some(peer.gid),
            service_level: settings.service_level(),
            traffic_class: settings.traffic_class(),
            qpn: theirs.qpn,
            peer_psn: theirs.psn,
            psn: self.psn,
        };
        let timing = Timing { timeout: settings.config.timeout, retries: settings.config.retry_cnt };
        let qp = self.qp.connect(&path, timing)?;
        let names = Names {
            local_gid: offer.gid.raw,
            remote_gid: peer.gid,
            remote_qpn: theirs.qpn,
            peer: name.to_owned(),
        };
        Ok(Rail::new(qp, self.receives, self.cq, Arc::clone(&offer.nic), names))
    }
}
