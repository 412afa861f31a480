//! A connection that the probes have confirmed and that both ends have not committed to yet.

use mpib_proto::{Ends, ImmLayout, RailInfo, Role};

use crate::agent::{Addresses, Options, PATIENCE, Subscription};
use crate::config::Config;
use crate::connect::endpoint::Endpoint;
use crate::connect::local_rails::LocalRail;
use crate::connect::local_work::LocalWork;
use crate::connect::machine::{Keep, LeftOut, Member};
use crate::connect::rebuild::Rebuilder;
use crate::control::Channel;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::route::{Route, gid_addr};
use crate::split::Plan;
use crate::stats::{Counters, Traffic};
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::transport::failback::Failover;
use crate::transport::failover::FailoverMode;
use crate::transport::peer::Peer;
use crate::transport::rail::{Names, Rail};
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;
use crate::warned::Subject;
use nccl_net_mpib_agent_iface::stats::Direction;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

const VERB: Ends<&str> = Ends { connector: "sending to", acceptor: "receiving from" };
const DIRECTION: Ends<Direction> = Ends { connector: Direction::Send, acceptor: Direction::Receive };

/// The parts of a comm.
#[derive(Debug)]
pub(crate) struct Formed {
    // Queue pairs are dropped first: afterwards no device accesses the memory.
    rails: Vec<Rail>,
    region: Region,
    remote: RemoteMemory,
    layout: ImmLayout,
    plan: Plan,
    failover: Failover,
    stats: Counters,
    pub(crate) flow: Option<Subscription>,
}

impl Formed {
    /// Keeps the stripes that work, destroys the others, adds those that are dead from the beginning,
    /// and registers the connection with the agent.
    pub(crate) fn new(work: &mut LocalWork, channel: &Channel, keep: Keep) -> Result<Self> {
        let Endpoint { rails: mut all, region, remote: from, .. } = work.take_endpoint()?;
        let LocalWork { role, settings, rails: local, .. } = work;
        let role = *role;
        let mut remote = RemoteMemory { addr: from.addr, ..RemoteMemory::default() };
        // Registrations of dead rails are made with their queue pairs.
        let place = |member: &Member| match member {
            Member::Works { stripe, .. } => *stripe,
            Member::Dead { .. } => 0,
        };
        let region = region.select(keep.members.iter().map(place));
        let (mut rails, mut dead, mut queues) = (Vec::new(), Vec::new(), Vec::new());
        for (i, member) in keep.members.into_iter().enumerate() {
            let rail = match member {
                Member::Works { stripe, .. } => {
                    remote.rkeys[i] = from.rkeys[stripe];
                    std::mem::replace(&mut all[stripe], Err(Error::Internal("a rail is kept twice".into())))?
                }
                Member::Dead { route, queues: n, peer, why } => {
                    queues.push(n);
                    dead.push((i, why));
                    dead_rail(&local[*route.rails.local(role)], (role, &route), &peer, channel.describe())
                }
            };
            if rail.is_alive() {
                queues.push(rail.send_queues.len());
            }
            rails.push(rail);
        }
        // The others are destroyed.
        drop(all);
        let layout = u8::try_from(rails.len()).ok().and_then(ImmLayout::new);
        let layout = layout.ok_or_else(|| Error::Internal(format!("{} rails", rails.len())))?;
        let (plan, peer) = (keep.plan, channel.describe());
        let describe = |rail: &Rail| match rail.is_alive() {
            true => rail.describe(),
            false => format!("{} (not yet)", rail.describe()),
        };
        let mut routes: Vec<_> = rails.iter().map(describe).collect();
        // The stripes of a rail are neighbours.
        routes.dedup();
        let purpose = match settings.traffic {
            Traffic::Messages => "",
            Traffic::Windows => " for one-sided traffic",
        };
        tracing::info!(target: "net", "{} {peer}{purpose} ({plan}): rails {}", VERB.local(role), routes.join(", "));
        let named: Vec<_> = rails.iter().map(|r: &Rail| (r.role, r.nic.name())).collect();
        let direction = *DIRECTION.local(role);
        let stats = Counters::open(
            &settings.config,
            settings.traffic,
            direction,
            plan,
            &peer,
            &named,
            keep.substitute,
        );
        for LeftOut { name, role, why } in &keep.left_out {
            stats.rail_left_out(*role, name, why);
        }
        let flow = register(settings, plan, &rails, &peer)?;
        let failover = Failover {
            mode: match keep.failover {
                true => FailoverMode::On { wait: settings.config.failover_wait },
                false => FailoverMode::Off { retries: settings.config.retry_time().longest },
            },
            maker: Arc::new(Rebuilder::new(role, settings, queues)),
            dead,
        };
        Ok(Self { rails, region, remote, layout, plan, failover, stats, flow })
    }

    /// Returns the comm and its registration with the agent.
    pub(crate) fn into_comm(self, process: &Process, channel: Channel) -> (Comm, Option<Subscription>) {
        let Self { rails, region, remote, layout, plan, failover, stats, flow } = self;
        let peer = Peer::new(channel);
        (Comm::new(process, rails, (region, remote), layout, peer, (plan, failover), stats), flow)
    }
}

/// Makes the rail of a route that does not work yet.
fn dead_rail(local: &LocalRail, (role, route): (Role, &Route), peer: &RailInfo, name: Arc<str>) -> Rail {
    let gid = local.gids[*route.addrs.local(role)];
    let remote_gid = peer.addrs[*route.addrs.remote(role)].gid;
    let names = Names { local_gid: gid.raw, remote_gid, gid_kind: gid.kind, peer: name };
    Rail::dead(&local.nic, local.role, (local.port.speed, peer.speed_mbps), names)
}

/// Returns the error of a connection that needs a hint and has none.
pub(crate) fn unhinted(peer: &str, flow: &Subscription, config: &Config) -> Error {
    let options = Options::from(config);
    let unanswered = || format!("agent {}: it has not answered yet", options.sockets_text());
    let why = flow.fault().unwrap_or_else(unanswered);
    Error::Usage(format!(
        "no hint for the connection with {peer} within {:?}: {why}. Start the agent of this host, or set MPIB_AGENT_SOCKET and \
         MPIB_HINTS to where it is; without MPIB_STRICT=1 MPIB_SPLIT={} decides until a hint arrives (MPIB_STRICT=1)",
        PATIENCE, config.split,
    ))
}

/// Registers the connection of these rails, in the background. `None` if hints do not apply: the
/// mode is not advanced, the share is fixed, only one rail is left, or a rail has no IPv4 address.
/// The agent's messages have no room for other addresses.
///
/// # Errors
/// The client's thread cannot be started, or `MPIB_STRICT=1` and a rail has no IPv4 address.
fn register(settings: &Settings, plan: Plan, rails: &[Rail], peer: &str) -> Result<Option<Subscription>> {
    let Settings { process, config, .. } = settings;
    if !plan.takes_hints(config) {
        process.agent.attach(|| Options::from(&**config))?;
        return Ok(None);
    }
    let [sout, sup] = rails else { return Ok(None) };
    match (addresses(sout), addresses(sup)) {
        (Some((sout_src, sout_dst)), Some((sup_src, sup_dst))) => {
            let addresses = Addresses { sout_src, sout_dst, sup_src, sup_dst };
            Subscription::open(&process.agent, &Options::from(&**config), addresses).map(Some)
        }
        _ => {
            let what =
                format!("no hints for the connection with {peer}: they are for rails with IPv4 addresses");
            let what = config.degraded(what)?;
            tracing::warn!(target: "net", "{what}; MPIB_SPLIT={} decides how its data is split", config.split);
            Ok(None)
        }
    }
}

/// Returns the IPv4 addresses of a rail, this end's first.
fn addresses(rail: &Rail) -> Option<(Ipv4Addr, Ipv4Addr)> {
    match (gid_addr(rail.names.local_gid), gid_addr(rail.names.remote_gid)) {
        (IpAddr::V4(local), IpAddr::V4(remote)) => Some((local, remote)),
        _ => None,
    }
}

/// Logs once for each pair of NICs that a connection uses a NIC under another PCI root or at
/// another NUMA node than the requested ones, if NCCL may register GPU memory.
///
/// # Errors
/// `MPIB_STRICT=1`: the same text.
pub(crate) fn check_distance(settings: &Settings, requested: &[Arc<Nic>], used: &[&Arc<Nic>]) -> Result<()> {
    let others = used.iter().filter(|nic| requested.iter().all(|r| r.name() != nic.name()));
    for nic in others.filter(|nic| nic.takes_gpu_memory()) {
        let Some(place) = nic.place() else { continue };
        let places: Vec<_> = requested.iter().filter_map(|r| Some((r, r.place()?))).collect();
        let is_near = places.iter().any(|(_, other)| place.away_from(other).is_none());
        let Some((other, there)) = places.first().filter(|_| !is_near) else { continue };
        let (name, other) = (nic.name(), other.name());
        let what = format!(
            "connections go over {name} ({place}) and not over {other} ({there}), which NCCL requested: the two are under \
             different PCI roots or at different NUMA nodes. NCCL chose GPUDirect RDMA by the distance of {other} to the \
             GPU; over {name} it may be slow, and some platforms do not support it. Make the peer reachable from {other}, \
             or refuse such connections with MPIB_ROUTE=strict, or turn GPUDirect RDMA off with NCCL_NET_GDR_LEVEL=LOC"
        );
        let what = settings.config.degraded(what)?;
        if settings.process.warned.once(Subject::FarSubstitute(name.to_owned(), other.to_owned())) {
            tracing::warn!(target: "net", "{what}");
        }
    }
    Ok(())
}
