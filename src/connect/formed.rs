//! A connection that the probes have confirmed and that both ends have not committed to yet.

use std::sync::Arc;

use nccl_net_mpib_agent_iface::stats::Direction;

use crate::agent::Subscription;
use crate::connect::endpoint::Endpoint;
use crate::connect::machine::Keep;
use crate::connect::rebuild::Rebuilder;
use crate::connect::registration;
use crate::control::Channel;
use crate::error::{Error, Result};
use crate::process::Process;
use crate::proto::{Ends, ImmLayout, Role};
use crate::split::Plan;
use crate::stats::Counters;
use crate::transport::Settings;
use crate::transport::comm::Comm;
use crate::transport::failback::Failover;
use crate::transport::peer::Peer;
use crate::transport::rail::Rail;
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
    /// Keeps the stripes of the connection, destroys the others, and registers the connection with
    /// the agent.
    pub(crate) fn new(
        role: Role,
        settings: &Settings,
        channel: &Channel,
        endpoint: Endpoint,
        keep: &Keep,
    ) -> Result<Self> {
        let Endpoint { rails: all, mut region, mut remote, .. } = endpoint;
        let mut rails: Vec<Rail> = Vec::with_capacity(keep.stripes.len());
        for (i, rail) in all.into_iter().enumerate() {
            if let (Ok(rail), true) = (rail, keep.stripes.contains(&i)) {
                remote.rkeys[rails.len()] = remote.rkeys[i];
                rails.push(rail);
            }
        }
        region.retain(|i| keep.stripes.contains(&i));
        let layout = u8::try_from(rails.len()).ok().and_then(ImmLayout::new);
        let layout = layout.ok_or_else(|| Error::Internal(format!("{} rails", rails.len())))?;
        let (plan, peer) = (keep.plan, channel.describe());
        let mut routes: Vec<_> = rails.iter().map(Rail::describe).collect();
        // The stripes of a rail are neighbours.
        routes.dedup();
        tracing::info!(target: "net", "{} {peer} ({plan}): rails {}", VERB.local(role), routes.join(", "));
        let named: Vec<_> = rails.iter().map(|r: &Rail| (r.role, r.nic.name())).collect();
        let direction = *DIRECTION.local(role);
        let stats = Counters::open(&settings.config, direction, plan, &peer, &named, keep.substitute);
        let flow = registration::open(settings, plan, &rails, &peer)?;
        let failover = Failover {
            is_enabled: keep.failover,
            wait: settings.config.failover_wait,
            maker: Arc::new(Rebuilder::new(role, settings, &rails)),
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
