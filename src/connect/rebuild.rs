//! Rails of an established connection that are made anew after they have failed: queue pairs,
//! bring-up and probes as in a handshake, on the present ports and addresses.

use std::sync::Arc;
use std::time::Instant;

use crate::connect::bringup::Bringup;
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::local_route::FormerLife;
use crate::connect::machine::BringUp;
use crate::connect::probe::ProbeRun;
use crate::device::Nic;
use crate::error::{Error, Result};
use crate::failover::{Happening, Moment};
use crate::proto::{Ends, Memory, RailRole, Role, RouteWiring, Wiring, written_bytes};
use crate::route::{LocalRail, Route, rejoin};
use crate::transport::Settings;
use crate::transport::rail_maker::{DeadRail, Goal, NewRail, Offer, RailAttempt, RailMaker};
use crate::transport::remote_memory::RemoteMemory;
use crate::verbs::Region;

/// Makes the rails of one connection anew.
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
    role: Role,
    settings: Arc<Settings>,
    /// Index of each rail in the connection.
    rails: Vec<usize>,
    /// The number of queue pairs of each.
    queues: Vec<usize>,
    nic: Arc<Nic>,
    /// The place of the rails in the device.
    place: RailRole,
    /// The addresses of the rails when they failed.
    gids: Ends<[u8; 16]>,
    former: FormerLife,
    peer: String,
    /// The control memory, kept as long as a queue pair may write it.
    region: Region,
    remote: RemoteMemory,
    port: Option<LocalRail>,
    /// Described by [`RailAttempt::offer`] once they exist.
    offer: Option<Offer>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    New,
    Made(LocalEndpoint),
    BringUp(Bringup),
    Joined(Endpoint),
    Probe(Box<ProbeRun>, Instant),
    Proved(Endpoint),
}

impl Rebuilder {
    pub(crate) fn new(role: Role, settings: &Settings, queues: Vec<usize>) -> Self {
        Self { role, settings: Arc::new(settings.clone()), queues }
    }
}

impl RailMaker for Rebuilder {
    fn begin(&self, rails: &[DeadRail<'_>]) -> Result<Box<dyn RailAttempt>> {
        let DeadRail { rail, region, remote, .. } =
            rails.first().ok_or_else(|| Error::Internal("an attempt without rails".into()))?;
        let indices: Vec<usize> = rails.iter().map(|dead| dead.index).collect();
        if rails.iter().any(|dead| !dead.rail.joins_the_ports_of(rail)) {
            return Err(Error::Protocol(format!("rails {indices:?} join different ports")));
        }
        let (ours, theirs) = (rail.names.local_gid, rail.names.remote_gid);
        let gids = match self.role {
            Role::Connector => Ends { connector: ours, acceptor: theirs },
            Role::Acceptor => Ends { connector: theirs, acceptor: ours },
        };
        let former = FormerLife {
            qps: rails.iter().flat_map(|dead| dead.rail.former.iter().copied()).collect(),
            flushed: rails.iter().all(|dead| dead.rail.no_flush.is_none()),
        };
        let mut region = (*region).clone();
        region.retain(|i| indices.contains(&i));
        let mut remote = RemoteMemory { addr: remote.addr, ..RemoteMemory::default() };
        remote.rkeys.iter_mut().zip(rails).for_each(|(rkey, dead)| *rkey = dead.remote.rkey);
        Ok(Box::new(Rebuild {
            role: self.role,
            settings: Arc::clone(&self.settings),
            queues: indices.iter().map(|i| self.queues[*i]).collect(),
            rails: indices,
            nic: Arc::clone(&rail.nic),
            place: rail.role,
            gids,
            former,
            peer: rail.names.peer.clone(),
            region,
            remote,
            port: None,
            offer: None,
            stage: Stage::New,
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

    fn finish(self: Box<Self>) -> Result<Vec<NewRail>> {
        let Stage::Proved(endpoint) = self.stage else {
            return Err(Error::Internal("rails are used before they are proved".into()));
        };
        let made = self.rails.into_iter().zip(endpoint.rails).enumerate().map(|(place, (index, rail))| {
            let (region, rkey) = (endpoint.region.clone(), endpoint.remote.rkeys[place]);
            Ok(NewRail { index, rail: rail?, region, place, rkey })
        });
        made.collect()
    }
}

impl Rebuild {
    /// See [`RailAttempt::pursue`].
    fn step(&mut self, goal: &Goal) -> Result<bool> {
        let stage = std::mem::replace(&mut self.stage, Stage::New);
        let (stage, is_reached) = match (goal, stage) {
            (Goal::Made, _) => (Stage::Made(self.make()?), true),
            (Goal::Joined(peer), Stage::Made(local)) => (Stage::BringUp(self.join(local, peer)?), false),
            (Goal::Joined(_), Stage::BringUp(mut bringup)) => {
                match bringup.poll(self.role, &self.settings, self.port.as_slice()) {
                    false => (Stage::BringUp(bringup), false),
                    true => (Stage::Joined(self.joined(bringup.finish())?), true),
                }
            }
            (Goal::Proved, Stage::Joined(endpoint)) => {
                let until = Instant::now() + self.settings.config.probe_timeout;
                (Stage::Probe(Box::new(ProbeRun::start(endpoint, Some(&self.former))), until), false)
            }
            (Goal::Proved, Stage::Probe(mut probe, until)) => {
                let has_ended = probe.poll(&self.settings);
                if !has_ended && Instant::now() < until {
                    (Stage::Probe(probe, until), false)
                } else {
                    probe.stop(&self.settings);
                    (Stage::Proved(all_work(probe.endpoint)?), true)
                }
            }
            (goal, stage) => return Err(Error::Internal(format!("{goal:?} in stage {stage:?}"))),
        };
        self.stage = stage;
        Ok(is_reached)
    }

    /// Creates the queue pairs on the port in its present state.
    fn make(&mut self) -> Result<LocalEndpoint> {
        let (nic, settings) = (&self.nic, &self.settings);
        let (port, gids) = nic.now().map_err(|why| Error::Usage(format!("{}: {why}", nic.name())))?;
        let mut rail = LocalRail::new(nic, port, gids, self.place, true);
        // An adapter that was opened again has another protection domain.
        self.region.move_to(&rail.pd)?;
        let info = rail.info(&settings.process.control.interfaces()?)?;
        // The addresses follow with those of the peer.
        let route = Route::ONLY;
        let stripes: Vec<_> = self.queues.iter().map(|queues| (route, *queues)).collect();
        let rails = std::slice::from_ref(&rail);
        let local =
            LocalEndpoint::on(self.region.clone(), self.role, settings, rails, &stripes, Some(&self.former))?;
        let Wiring { mut routes, memory } = local.message(self.role, settings)?;
        for (route, rail) in routes.iter_mut().zip(&self.rails) {
            (route.local_rail, route.remote_rail) = (*rail as u8, *rail as u8);
        }
        self.offer = Some(Offer { port: info, routes, rkeys: memory.rkeys });
        self.port = Some(rail);
        Ok(local)
    }

    /// Begins to connect the queue pairs to the peer's.
    fn join(&self, mut local: LocalEndpoint, peer: &Offer) -> Result<Bringup> {
        let ours = self.offer.as_ref().map(|offer| &offer.port);
        let ours = ours.ok_or_else(|| Error::Internal("no queue pairs to connect".into()))?;
        check(&peer.routes, &self.rails, &self.queues).map_err(|why| self.unfit(&why))?;
        if peer.rkeys.len() != self.rails.len() {
            let (found, expected) = (peer.rkeys.len(), self.rails.len());
            return Err(self.unfit(&format!("{found} remote keys for {expected} rails")));
        }
        let (connector, acceptor) = match self.role {
            Role::Connector => (ours, &peer.port),
            Role::Acceptor => (&peer.port, ours),
        };
        let policy = self.settings.config.route;
        let route = rejoin(policy, connector, acceptor, &self.gids).map_err(Error::Usage)?;
        local.routes.iter_mut().for_each(|stripe| stripe.route = route);
        let (addr, rkeys) = (self.remote.addr, peer.rkeys.clone());
        let memory = Memory { addr, len: written_bytes(false) as u64, rkeys };
        let now = Instant::now();
        let with = BringUp {
            wiring: Wiring { routes: peer.routes.clone(), memory },
            rails: vec![peer.port.clone()],
            host: String::new(),
            retry_until: now + self.settings.config.connect_timeout / 2,
            last: true,
        };
        Ok(Bringup::start(local, self.role, self.port.as_slice(), self.peer.clone(), with, |_| None))
    }

    fn unfit(&self, why: &str) -> Error {
        Error::Protocol(format!("{}: {why}", self.peer))
    }

    /// Notes the options in effect.
    fn joined(&mut self, endpoint: Endpoint) -> Result<Endpoint> {
        let endpoint = all_work(endpoint)?;
        if let Some(offer) = self.offer.as_mut().filter(|_| self.role == Role::Acceptor) {
            offer.routes.iter_mut().zip(&endpoint.eces).for_each(|(route, ece)| route.ece = *ece);
        }
        Ok(endpoint)
    }
}

/// Returns the endpoint unless one of its rails does not work.
fn all_work(mut endpoint: Endpoint) -> Result<Endpoint> {
    match endpoint.rails.iter().position(Result::is_err) {
        None => Ok(endpoint),
        Some(i) => match endpoint.rails.swap_remove(i) {
            Err(e) => Err(e),
            Ok(_) => Ok(endpoint),
        },
    }
}

/// Checks that the peer's queue pairs are those of these rails.
fn check(routes: &[RouteWiring], rails: &[usize], queues: &[usize]) -> Result<(), String> {
    let found: Vec<_> = routes.iter().map(|route| (usize::from(route.local_rail), route.qps.len())).collect();
    let expected: Vec<_> = rails.iter().copied().zip(queues.iter().copied()).collect();
    match found == expected {
        true => Ok(()),
        false => Err(format!("queue pairs by rail: {found:?}, expected {expected:?}")),
    }
}
