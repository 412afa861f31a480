//! Queues of one route at one end: created, and connected to the peer's.
//!
//! A flush reads over a queue pair that is connected to itself. Some virtual functions and ports loop
//! nothing back. Data does not need that, and most GPUs need no flush, so such a rail is kept without
//! one. An iflush that needs the rail is an error.

use mpib_proto::{CTS_BYTES, Ece, LinkLayer, QpWiring, RailInfo, Role, RouteWiring};

use crate::config::{Config, Finding};
use crate::connect::endpoint::{Depths, RouteCq};
use crate::connect::local_rails::LocalRail;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::route::{Route, dlid};
use crate::stats::Traffic;
use crate::transport::Settings;
use crate::transport::rail::{Names, Rail};
use crate::transport::recv::cts_writer;
use crate::transport::recv::receives::Receives;
use crate::transport::send_queue::{NotPosted, SendQueue, SendQueues};
use crate::verbs::{Access, Fresh, Gid, Path, Qp, QpOptions, Region};
use crate::warned::Subject;
use std::sync::Arc;
use std::time::Instant;

/// Bytes that a CTS write of one entry carries in itself.
pub(crate) const INLINE: u32 = CTS_BYTES as u32;

/// The parameters that all routes of a handshake share.
#[derive(Debug)]
pub(crate) struct BringupContext<'a> {
    pub(crate) role: Role,
    pub(crate) settings: &'a Settings,
    pub(crate) local_rails: &'a [LocalRail],
    /// The peer's rails.
    pub(crate) peer: &'a [RailInfo],
}

impl BringupContext<'_> {
    /// Returns this end's rail of a route.
    pub(crate) fn local(&self, route: &Route) -> &LocalRail {
        &self.local_rails[*route.rails.local(self.role)]
    }

    /// Returns the peer's rail of a route.
    pub(crate) fn peer(&self, route: &Route) -> &RailInfo {
        &self.peer[*route.rails.remote(self.role)]
    }

    /// Returns this end's GID of a route and the peer's.
    pub(crate) fn gids(&self, route: &Route) -> (Gid, [u8; 16]) {
        let local = self.local(route).gids[*route.addrs.local(self.role)];
        (local, self.peer(route).addrs[*route.addrs.remote(self.role)].gid)
    }

    /// Returns the path of a route from this entry of the GID table; the caller adds the numbers of the
    /// queue pairs. `requested` are the connector's service level and traffic class at an acceptor:
    /// only the connector knows the communicator's traffic class in every interface version.
    pub(crate) fn path(&self, route: &Route, gid_index: u8, requested: (u8, u8)) -> Result<Path> {
        let (local, peer, settings) = (self.local(route), self.peer(route), self.settings);
        let (_, peer_gid) = self.gids(route);
        let requested = if self.role == Role::Acceptor { requested } else { (0, 0) };
        let roce = local.port.link == LinkLayer::Ethernet;
        // A port that requires GRHs drops packets without one, wherever they come from.
        let grh = roce || !route.one_subnet || local.port.grh_required || peer.grh_required;
        Ok(Path {
            port: local.port.number,
            gid_index,
            pkey_index: local.nic.pkey_index(&settings.config)?,
            mtu: path_mtu(local, peer),
            lid: if roce { 0 } else { dlid(peer, peer_gid, route.one_subnet) },
            gid: grh.then_some(peer_gid),
            service_level: settings.service_level().unwrap_or(requested.0),
            traffic_class: settings.traffic_class().unwrap_or(requested.1),
            qpn: 0,
            peer_psn: 0,
            psn: 0,
            access: Access::Write,
            ece: None,
        })
    }
}

/// The local objects of one route.
#[derive(Debug)]
pub(crate) struct LocalRoute {
    pub(crate) route: Route,
    /// Each queue pair with the sequence number of its first packet.
    pub(super) qps: Vec<(Qp<Fresh>, u32)>,
    /// Whether it is the first stripe of its rail, which alone carries CTS writes and flushes.
    leads: bool,
    receives: Option<Receives>,
    /// Connected to itself: a read over it flushes what the adapter has written.
    flush: Option<Qp<Fresh>>,
    /// Why there is none although the connection flushes.
    no_flush: Option<String>,
    /// Whether the rail could flush in an earlier life: then it must.
    must_flush: bool,
    flush_path: Option<Box<Path>>,
    cq: RouteCq,
    /// Index of the address in the GID table when the first queue pair was set up.
    gid_index: Option<u8>,
}

/// What is left of rails that are made again.
#[derive(Debug)]
pub(crate) struct FormerLife {
    /// The control memory of this end.
    pub(crate) region: Region,
    /// Numbers of the queue pairs that they have had. A late packet of theirs must not meet a new one.
    pub(crate) qps: Vec<u32>,
    /// Whether they could flush. Then they can, and a read that fails shows another fault.
    pub(crate) flushed: bool,
}

/// The number of a route's queue pairs for data, and the depths of its queues.
#[derive(Debug)]
pub(super) struct RouteQueues {
    pub(super) n: u32,
    pub(super) leads: bool,
    pub(super) depths: Depths,
}

/// Returns the smaller MTU of two ports, as its number in verbs. Queue pairs of ports with
/// different MTUs can be connected.
pub(crate) fn path_mtu(local: &LocalRail, remote: &RailInfo) -> u8 {
    local.port.mtu.min(remote.mtu as u8)
}

/// Describes an adapter that cannot carry a CTS entry inline although the user requests it. Makes a
/// queue pair.
///
/// # Errors
/// The queue pair cannot be made.
pub(crate) fn not_inline(config: &Config, nic: &Nic) -> Result<Option<Finding>> {
    if config.use_inline != Some(true) {
        return Ok(None);
    }
    let has = nic.inline_room(INLINE)?;
    let text = format!(
        "{}: max_inline_data is {has}, expected {INLINE}; CTS writes are not inline although NCCL_IB_USE_INLINE=1",
        nic.name()
    );
    Ok((has < INLINE).then_some(Finding { degraded: true, text }))
}

/// Makes the receives of `n` queue pairs: in an SRQ if the adapter has them, else in the queue of
/// each. The peer need not know which.
fn make_receives(settings: &Settings, rail: &LocalRail, n: u32, depths: &Depths) -> Result<Receives> {
    let (nic, adapter) = (&rail.nic, rail.nic.adapter());
    if settings.process.warned.once(Subject::Receives(adapter.to_owned())) {
        let entries = depths.srq.max(depths.receives);
        tracing::info!(target: "net", "{} ({entries} entries)", nic.receive_queues());
    }
    match depths.srq {
        0 => Ok(Receives::own(n, depths.receives)),
        depth => Receives::shared(&rail.pd, depth),
    }
}

/// Returns a random number for the first packet of a queue pair, of 24 bits.
pub(super) fn first_psn() -> Result<u32> {
    let mut psn = [0; 4];
    getrandom::fill(&mut psn[..3]).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
    Ok(u32::from_le_bytes(psn))
}

/// Makes a queue pair whose number is not among the `former` ones.
fn other_than(former: &[u32], make: impl Fn() -> Result<Qp<Fresh>>) -> Result<Qp<Fresh>> {
    // Kept meanwhile: the adapter then gives none of these numbers twice.
    let mut unwanted = Vec::new();
    loop {
        let qp = make()?;
        if !former.contains(&qp.number()) {
            return Ok(qp);
        }
        unwanted.push(qp);
    }
}

impl LocalRoute {
    pub(super) fn new(
        (role, settings): (Role, &Settings),
        rail: &LocalRail,
        route: Route,
        RouteQueues { n, leads, depths }: RouteQueues,
        cq: RouteCq,
        former: Option<&FormerLife>,
    ) -> Result<Self> {
        let must_flush = former.is_some_and(|former| former.flushed);
        let former = former.map_or(&[][..], |former| &former.qps);
        let (nic, pd) = (&rail.nic, &rail.pd);
        let receives = match role {
            Role::Connector => None,
            Role::Acceptor => Some(make_receives(settings, rail, n, &depths)?),
        };
        let qp = |queue| {
            let cts = role == Role::Acceptor && queue as usize == cts_writer::CTS_QUEUE;
            let inline = match role {
                Role::Connector => settings.config.inline,
                Role::Acceptor if cts && settings.config.use_inline != Some(false) => INLINE,
                Role::Acceptor => 0,
            };
            let options = QpOptions { send_depth: depths.send(queue), inline, receives: depths.receives };
            let srq = receives.as_ref().and_then(Receives::srq);
            let qp = other_than(former, || Qp::new(pd, &cq.cq, srq, options))?;
            Ok((qp, first_psn()?))
        };
        let qps = (0..n).map(qp).collect::<Result<_>>()?;
        let no_flush = if depths.flush > 0 && !must_flush { known_failure(settings, nic) } else { None };
        let options = QpOptions { send_depth: depths.flush, inline: 0, receives: 0 };
        let flushes = depths.flush > 0 && no_flush.is_none();
        let flush = || other_than(former, || Qp::new(pd, &cq.cq, None, options));
        let flush = flushes.then(flush).transpose()?;
        let flush_path = None;
        Ok(Self { route, qps, leads, receives, flush, no_flush, must_flush, flush_path, cq, gid_index: None })
    }

    /// Returns the ECE options of the local queue pairs, which are the same for each. `None` if the
    /// device has none or the user disables ECE.
    pub(super) fn ece(&self, settings: &Settings) -> Result<Option<Ece>> {
        let Some((qp, _)) = self.qps.first().filter(|_| settings.config.ece) else { return Ok(None) };
        let ece = qp.ece()?;
        if ece.is_none() && settings.process.warned.once(Subject::NoEce) {
            let device = self.cq.cq.context().name();
            tracing::info!(target: "net", "queue pairs are set up without ECE: {device} or its verbs library has none");
        }
        Ok(ece)
    }

    /// Moves the queue pairs to RTS. After a failure another call repeats the state change that
    /// failed.
    pub(crate) fn advance(&mut self, with: &BringupContext<'_>, remote: &RouteWiring) -> Result<()> {
        let (local, settings) = (with.local(&self.route), with.settings);
        let (gid, _) = with.gids(&self.route);
        // Verbs identify a GID by its index, which may have changed since HELLO.
        let gid_index = self.gid_index.map_or_else(|| local.nic.place_of(&gid), Ok)?;
        self.gid_index = Some(gid_index);
        let common = with.path(&self.route, gid_index, (remote.service_level, remote.traffic_class))?;
        // The acceptor sets the connector's options and reports which of them its own device
        // supports; the connector sets those.
        let ece = if self.ece(settings)?.is_some() { remote.ece } else { None };
        let timing = settings.timing();
        // A receiver sends CTS writes and acknowledgements on its first queue pair.
        let roce = local.port.link == LinkLayer::Ethernet;
        let cts = with.role == Role::Acceptor && self.leads && roce;
        let cts_class = settings.config.fifo_tc.filter(|_| cts);
        for (i, ((qp, psn), remote)) in self.qps.iter_mut().zip(&remote.qps).enumerate() {
            let mut path = Path { ece, qpn: remote.qpn, peer_psn: remote.psn, psn: *psn, ..common };
            if let (0, Some(class)) = (i, cts_class) {
                path.traffic_class = class;
            }
            qp.advance(&path, timing)?;
        }
        let Some(qp) = &mut self.flush else { return Ok(()) };
        let access = match settings.traffic {
            Traffic::Messages => Access::Read,
            Traffic::Windows => Access::Both,
        };
        let path = Path {
            gid_index,
            service_level: common.service_level,
            traffic_class: common.traffic_class,
            ..Path::to_itself(&local.port, &gid, common.pkey_index, qp.number(), access)
        };
        self.flush_path = Some(Box::new(path));
        qp.advance(&path, timing)
    }

    /// Goes on without flushes after `e` if the queue pairs for data are connected: then only the
    /// adapter's way to itself has failed. Otherwise returns `e`.
    pub(crate) fn give_up_flush(&mut self, with: &BringupContext<'_>, e: Error) -> Result<()> {
        let connected = self.qps.iter().all(|(qp, _)| qp.is_connected());
        if !connected || self.must_flush || self.flush.take().is_none() {
            return Err(e);
        }
        let why = e.to_string();
        keep_without_flush(with.settings, &with.local(&self.route).nic, &why)?;
        self.no_flush = Some(why);
        Ok(())
    }

    /// Returns the number of state changes that have succeeded.
    pub(crate) fn changes(&self) -> u32 {
        self.qps.iter().map(|(qp, _)| qp).chain(&self.flush).map(Qp::changes).sum()
    }

    /// Returns the rail, after [`advance`](Self::advance) has succeeded, and the ECE options in
    /// effect.
    pub(crate) fn rail(
        self,
        with: &BringupContext<'_>,
        remote: &RouteWiring,
        name: &Arc<str>,
    ) -> Result<(Rail, Option<Ece>)> {
        let (local, peer) = (with.local(&self.route), with.peer(&self.route));
        let (gid, remote_gid) = with.gids(&self.route);
        let place = local.nic.place_of(&gid)?;
        if let Some(first) = self.gid_index.filter(|first| *first != place) {
            return Err(Error::Usage(format!(
                "{} moved from index {first} of the GID table of {} to index {place} while queue pairs were set up",
                gid.addr(),
                local.nic.name()
            )));
        }
        let requested = remote.ece.is_some();
        let agreed = if requested { self.ece(with.settings)? } else { None };
        let queue =
            |((qp, _), remote): ((Qp<Fresh>, u32), &QpWiring)| Ok(SendQueue::new(qp.ready()?, remote.qpn));
        let send_queues: SendQueues =
            self.qps.into_iter().zip(&remote.qps).map(queue).collect::<Result<_>>()?;
        let flush = self.flush.map(|qp| {
            let own = qp.number();
            Ok(SendQueue::new(qp.ready()?, own))
        });
        let names = Names { local_gid: gid.raw, remote_gid, gid_kind: gid.kind, peer: Arc::clone(name) };
        let RouteCq { cq, shared: shares_cq } = self.cq;
        let (mut receives, nic) = (self.receives, Arc::clone(&local.nic));
        receives
            .iter_mut()
            .try_for_each(|receives| receives.fill(&send_queues))
            .map_err(NotPosted::of_route)?;
        let speeds = (local.port.speed, peer.speed_mbps);
        let rail = Rail {
            send_queues,
            flush: flush.transpose()?,
            no_flush: self.no_flush,
            flush_path: self.flush_path,
            receives,
            cq: Some(cq),
            shares_cq,
            nic,
            role: local.role,
            speeds,
            names,
            former: Vec::new(),
        };
        Ok((rail, agreed))
    }
}

/// Reports that a rail is kept without flushes. Connections of the next minute do not try them on
/// this port, unless an event of a port comes, or a fault of the port may be the cause.
///
/// # Errors
/// `MPIB_STRICT=1`: the rail must not be kept.
pub(crate) fn keep_without_flush(settings: &Settings, nic: &Nic, why: &str) -> Result<()> {
    let name = nic.name();
    let what = format!(
        "{name} does not reach itself, so it cannot flush: {why}; connections use it, and iflush of GPU memory that it \
         has written is an error. If no GPU needs flushes (NVIDIA from Hopper on), set MPIB_FLUSH=0; otherwise allow \
         loopback (hairpin) on the adapter and its switch port, or use another adapter"
    );
    let what = settings.config.degraded(what)?;
    nic.health().loopback_failed(Instant::now(), why);
    if settings.process.warned.once(Subject::NoLoopback(name.to_owned())) {
        tracing::warn!(target: "net", "{what}");
    }
    Ok(())
}

/// Returns why earlier connections could not flush on a port. With `MPIB_STRICT=1` every connection
/// tries, because none goes without.
pub(crate) fn known_failure(settings: &Settings, nic: &Nic) -> Option<String> {
    nic.health().no_loopback(Instant::now()).filter(|_| !settings.config.strict)
}
