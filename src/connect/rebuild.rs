//! Rails of an established connection that are made again after they have failed: an attempt as in a
//! handshake, on the present ports and addresses, on a thread.

use std::sync::Arc;
use std::time::Instant;

use mpib_proto::{Ends, Offer, RailRole, RailSet, Role};

use crate::connect::endpoint::Endpoint;
use crate::connect::local_route::FormerLife;
use crate::connect::local_work::LocalWork;
use crate::connect::machine::{BringUp, Stripes, check_wiring};
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::failover::{Happening, Moment};
use crate::route::{LocalRail, Route, rejoin};
use crate::transport::Settings;
use crate::transport::failback::{Goal, RailAttempt, RailMaker};
use crate::transport::rail::Rail;
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;

/// Makes the rails of one connection again.
#[derive(Debug)]
pub(crate) struct Rebuilder {
    role: Role,
    settings: Arc<Settings>,
    /// By rail: the number of its queue pairs for data.
    queues: Vec<usize>,
}

/// One attempt for rails that join the same two ports.
#[derive(Debug)]
struct Rebuild {
    work: LocalWork,
    /// A route for each rail, all between the same two ports.
    stripes: Stripes,
    nic: Arc<Nic>,
    /// The place of the rails in the device.
    place: RailRole,
    /// The addresses of the rails when they failed.
    gids: Ends<[u8; 16]>,
    peer: Arc<str>,
    /// The address of the peer's control memory.
    remote: u64,
    /// What this end has made.
    offer: Option<Offer>,
    /// Until when the probes may take, once they have begun.
    probes_until: Option<Instant>,
}

impl Rebuilder {
    pub(crate) fn new(role: Role, settings: &Settings, queues: Vec<usize>) -> Self {
        Self { role, settings: Arc::new(settings.clone()), queues }
    }
}

impl RailMaker for Rebuilder {
    fn begin(
        &self,
        which: RailSet,
        rails: &[Rail],
        region: &Region,
        remote: &RemoteMemory,
    ) -> Result<Box<dyn RailAttempt>> {
        let dead = || which.iter().filter_map(|rail| rails.get(rail));
        let first = dead().next().ok_or_else(|| Error::Internal("an attempt without rails".into()))?;
        if dead().count() != which.len() || dead().any(|rail| !rail.joins_the_ports_of(first)) {
            return Err(Error::Protocol(format!("rails {which} join different ports")));
        }
        let former = FormerLife {
            qps: dead().flat_map(|rail| rail.former.iter().copied()).collect(),
            flushed: dead().all(|rail| rail.no_flush.is_none()),
            region: region.select(which.iter()),
        };
        let each = which.iter().map(|rail| (Route::ONLY, self.queues[rail])).collect();
        Ok(Box::new(Rebuild {
            work: LocalWork::new(self.role, &self.settings, Vec::new(), Some(former)),
            stripes: Stripes { each, has_mailbox: false },
            nic: Arc::clone(&first.nic),
            place: first.role,
            gids: Ends::new(self.role, first.names.local_gid, first.names.remote_gid),
            peer: first.names.peer.clone(),
            remote: remote.addr,
            offer: None,
            probes_until: None,
        }))
    }
}

impl RailAttempt for Rebuild {
    fn pursue(&mut self, goal: &Goal) -> Result<bool> {
        let reached = self.step(goal);
        // The port may have failed meanwhile: then the route is not the cause.
        if reached.is_err()
            && let Err(why) = self.nic.now()
        {
            self.nic.health().happened(Moment::now(), Happening::Failed(&why));
        }
        reached
    }

    fn offer(&self) -> Option<Offer> {
        self.offer.clone()
    }

    fn finish(mut self: Box<Self>) -> Result<(Vec<Rail>, Region, RemoteMemory)> {
        let Endpoint { rails, region, remote, .. } = self.work.take_endpoint()?;
        Ok((rails.into_iter().collect::<Result<_>>()?, region, remote))
    }
}

impl Rebuild {
    /// See [`RailAttempt::pursue`].
    fn step(&mut self, goal: &Goal) -> Result<bool> {
        match goal {
            Goal::Made => return self.make().map(|()| true),
            Goal::Joined(peer) if self.work.is_made() => self.join(peer)?,
            Goal::Proved if self.probes_until.is_none() => {
                self.probes_until = Some(Instant::now() + self.work.settings.config.probe_timeout);
                self.work.probe()?;
            }
            Goal::Joined(_) | Goal::Proved => {}
        }
        let mut done = self.work.poll();
        if done.is_none() && self.probes_until.is_some_and(|until| until <= Instant::now()) {
            self.work.stop()?;
            done = self.work.poll();
        }
        if done.is_none() {
            return Ok(false);
        }
        let endpoint = self.work.endpoint()?;
        if endpoint.rails.iter().any(Result::is_err) {
            let rails: Result<Vec<Rail>> = self.work.take_endpoint()?.rails.into_iter().collect();
            return rails.map(|_| false);
        }
        if let Some(offer) = self.offer.as_mut().filter(|_| self.work.role == Role::Acceptor) {
            offer.wiring.set_eces(&endpoint.eces);
        }
        Ok(true)
    }

    /// Creates the queue pairs on the port in its present state.
    fn make(&mut self) -> Result<()> {
        let nic = &self.nic;
        let rail = LocalRail::read(nic, self.place, true, Nic::now);
        let mut rail = rail.map_err(|why| Error::Usage(format!("{}: {why}", nic.name())))?;
        let port = rail.info(&self.work.settings.process.control.interfaces()?)?;
        self.work.rails = vec![rail];
        let wiring = self.work.make(&self.stripes)?;
        self.offer = Some(Offer { port, wiring });
        Ok(())
    }

    /// Begins to connect the queue pairs to the peer's.
    fn join(&mut self, Offer { port, wiring }: &Offer) -> Result<()> {
        let ours = self.offer.as_ref().map(|offer| &offer.port);
        let ours = ours.ok_or_else(|| Error::Internal("no queue pairs to connect".into()))?;
        let (role, config) = (self.work.role, Arc::clone(&self.work.settings.config));
        check_wiring(role, &self.peer, &self.stripes, wiring)?;
        if wiring.memory.addr != self.remote {
            let (found, expected) = (wiring.memory.addr, self.remote);
            let what = format!("{}: control memory at {found:#x}, expected {expected:#x}", self.peer);
            return Err(Error::Protocol(what));
        }
        let ports = Ends::new(role, ours, port);
        let route =
            rejoin(config.route, ports.connector, ports.acceptor, &self.gids).map_err(Error::Usage)?;
        self.work.adopt(vec![route; self.stripes.each.len()])?;
        let with = BringUp {
            wiring: wiring.clone(),
            rails: vec![port.clone()],
            host: String::new(),
            retry_until: Instant::now() + config.connect_timeout / 2,
            last: true,
        };
        self.work.join(Arc::clone(&self.peer), with, None)
    }
}
