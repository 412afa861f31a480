//! A connection that the probes have confirmed and that both ends have not committed to yet.

use std::sync::Arc;

use nccl_net_mpib_agent_iface::stats::Direction;

use crate::agent::Subscription;
use crate::connect::endpoint::Endpoint;
use crate::connect::local_rails::LocalRail;
use crate::connect::local_work::LocalWork;
use crate::connect::machine::{Keep, LeftOut, Member};
use crate::connect::rebuild::Rebuilder;
use crate::connect::registration;
use crate::control::Channel;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::proto::{Ends, ImmLayout, RailInfo, Role};
use crate::route::Route;
use crate::split::Plan;
use crate::stats::Counters;
use crate::transport::comm::Comm;
use crate::transport::failback::Failover;
use crate::transport::peer::Peer;
use crate::transport::rail::{Names, Rail};
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;

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
        let Endpoint { rails: mut all, mut region, remote: from, .. } = work.take_endpoint()?;
        let LocalWork { role, settings, rails: local, .. } = work;
        let role = *role;
        let (made, mut remote) =
            (region.clone(), RemoteMemory { addr: from.addr, ..RemoteMemory::default() });
        // Registrations of dead rails are made with their queue pairs.
        let place = |member: &Member| match member {
            Member::Works { stripe, .. } => *stripe,
            Member::Dead { .. } => 0,
        };
        region.select(&made, &keep.members.iter().map(place).collect::<Vec<_>>());
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
        tracing::info!(target: "net", "{} {peer} ({plan}): rails {}", VERB.local(role), routes.join(", "));
        let named: Vec<_> = rails.iter().map(|r: &Rail| (r.role, r.nic.name())).collect();
        let direction = *DIRECTION.local(role);
        let stats = Counters::open(&settings.config, direction, plan, &peer, &named, keep.substitute);
        for LeftOut { name, role, why } in &keep.left_out {
            stats.rail_left_out(*role, name, why);
        }
        let flow = registration::open(settings, plan, &rails, &peer)?;
        let failover = Failover {
            is_enabled: keep.failover,
            wait: settings.config.failover_wait,
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
fn dead_rail(local: &LocalRail, (role, route): (Role, &Route), peer: &RailInfo, name: String) -> Rail {
    let gid = local.gids[*route.addrs.local(role)];
    let remote_gid = peer.addrs[*route.addrs.remote(role)].gid;
    let names = Names { local_gid: gid.raw, remote_gid, gid_kind: gid.kind, peer: name };
    Rail::dead(&local.nic, local.role, (local.port.speed, peer.speed_mbps), names)
}
