//! The work of an attempt at one end: queue pairs are made, connected to the peer's, and probed. It is
//! the same for the first rails of a connection, in a [`handshake`](super::handshake), and for rails
//! that are made again ([`rebuild`](super::rebuild)).

use std::sync::Arc;

use mpib_proto::{self, Role, Wiring};

use crate::connect::bringup::Bringup;
use crate::connect::endpoint::{Endpoint, LocalEndpoint};
use crate::connect::known_failures::KnownFailures;
use crate::connect::local_rails::LocalRail;
use crate::connect::local_route::FormerLife;
use crate::connect::machine::{BringUp, Sought, Stripes};
use crate::connect::probe::ProbeRun;
use crate::connect::search::Search;
use crate::error::{Error, Result};
use crate::route::Route;
use crate::transport::Settings;

/// The local objects of one end.
#[derive(Debug)]
pub(crate) struct LocalWork {
    stage: Stage,
    pub(crate) role: Role,
    pub(crate) settings: Arc<Settings>,
    /// This end's rails, by their index in a route.
    pub(crate) rails: Vec<LocalRail>,
    /// The routes of the attempt, one for each stripe.
    pub(crate) routes: Vec<Route>,
    /// `None` if the rails have never worked.
    former: Option<FormerLife>,
}

#[derive(Debug)]
enum Stage {
    None,
    Made(LocalEndpoint),
    BringUp(Bringup),
    Joined(Endpoint),
    Probe(Box<ProbeRun>),
    /// A search without the peer's end, or one that has ended at this end.
    Sought(Box<Search>),
    Search(Box<Search>),
}

/// Work that has ended. [`LocalWork::endpoint`] has the result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Done {
    BroughtUp,
    Probed,
    Searched,
}

impl LocalWork {
    pub(crate) fn new(
        role: Role,
        settings: &Arc<Settings>,
        rails: Vec<LocalRail>,
        former: Option<FormerLife>,
    ) -> Self {
        let settings = Arc::clone(settings);
        Self { stage: Stage::None, role, settings, rails, routes: Vec::new(), former }
    }

    /// Creates the queue pairs of the stripes, and describes them to the peer. Queue pairs that exist
    /// and were not connected yet are used if they serve these stripes, too.
    pub(crate) fn make(&mut self, stripes: &Stripes) -> Result<Wiring> {
        self.routes = stripes.each.iter().map(|(route, _)| *route).collect();
        let unused = match self.take() {
            Stage::Made(local) if self.former.is_none() && local.serves(self.role, stripes) => Some(local),
            // The queue pairs of the attempt before are destroyed first.
            _ => None,
        };
        let Self { role, settings, rails, routes, former, .. } = self;
        let local = match unused {
            Some(mut local) => {
                local.adopt(routes);
                local
            }
            None => LocalEndpoint::new(*role, settings, rails, stripes, former.as_ref())?,
        };
        let wiring = local.message(*role, settings)?;
        self.stage = Stage::Made(local);
        Ok(wiring)
    }

    /// Sets the rails as they were read last. Queue pairs of an adapter that was opened again since the
    /// rails before were read are destroyed.
    pub(crate) fn set_rails(&mut self, rails: Vec<LocalRail>) {
        let before = std::mem::replace(&mut self.rails, rails);
        let stays = |route: &Route| {
            let rail = *route.rails.local(self.role);
            let both = before.get(rail).zip(self.rails.get(rail));
            both.is_some_and(|(before, now)| Arc::ptr_eq(&before.pd, &now.pd))
        };
        if !self.routes.iter().all(stays) {
            self.discard();
        }
    }

    /// Destroys what there is of the attempt.
    pub(crate) fn discard(&mut self) {
        self.stage = Stage::None;
    }

    /// Sets the addresses of the routes, which were not known when the queue pairs were created. The
    /// rails are the same.
    pub(crate) fn adopt(&mut self, routes: Vec<Route>) -> Result<()> {
        let Stage::Made(local) = &mut self.stage else { return Err(out_of_place()) };
        local.adopt(&routes);
        self.routes = routes;
        Ok(())
    }

    /// Returns whether the queue pairs exist, and are not being connected yet.
    pub(crate) fn is_made(&self) -> bool {
        matches!(self.stage, Stage::Made(_))
    }

    /// Begins to connect the queue pairs to the peer's, but not on routes that are `known` not to
    /// work.
    pub(crate) fn join(
        &mut self,
        name: Arc<str>,
        peer: BringUp,
        known: Option<&KnownFailures>,
    ) -> Result<()> {
        let Stage::Made(local) = self.take() else { return Err(out_of_place()) };
        let why = |route: &Route| known.and_then(|known| known.of(self.role, &self.rails, route));
        self.stage = Stage::BringUp(Bringup::start(local, self.role, &self.rails, name, peer, why));
        Ok(())
    }

    /// Begins the probes.
    pub(crate) fn probe(&mut self) -> Result<()> {
        let Stage::Joined(endpoint) = self.take() else { return Err(out_of_place()) };
        self.stage = Stage::Probe(Box::new(ProbeRun::start(endpoint, self.former.as_ref())));
        Ok(())
    }

    /// Returns the probes in progress.
    pub(crate) fn probes(&mut self) -> Result<&mut ProbeRun> {
        match &mut self.stage {
            Stage::Probe(probes) => Ok(probes),
            _ => Err(out_of_place()),
        }
    }

    /// Ends the probes or the search with the results so far.
    pub(crate) fn stop(&mut self) -> Result<()> {
        match &mut self.stage {
            Stage::Probe(probes) => probes.stop(&self.settings),
            Stage::Search(search) => search.stop(),
            _ => return Err(out_of_place()),
        }
        Ok(())
    }

    /// Creates the queue pairs of a search, but not for routes that are `known` not to work, and
    /// describes them to the peer.
    pub(crate) fn make_search(
        &mut self,
        sought: Sought,
        known: &KnownFailures,
    ) -> Result<mpib_proto::Search> {
        self.discard();
        let why = |route: &Route| known.of(self.role, &self.rails, route);
        let search = Search::new(self.role, &self.rails, sought, why)?;
        let message = search.message(&self.settings);
        self.stage = Stage::Sought(Box::new(search));
        Ok(message)
    }

    /// Begins a search, whose queue pairs exist, with the peer's end.
    pub(crate) fn begin_search(&mut self, peer: mpib_proto::Search) -> Result<()> {
        let Stage::Sought(mut search) = self.take() else { return Err(out_of_place()) };
        search.join(peer);
        self.stage = Stage::Search(search);
        Ok(())
    }

    /// Returns the search that has ended at this end.
    pub(crate) fn search(&self) -> Result<&Search> {
        match &self.stage {
            Stage::Sought(search) => Ok(search),
            _ => Err(out_of_place()),
        }
    }

    /// Advances the work in progress. Returns what has ended.
    pub(crate) fn poll(&mut self) -> Option<Done> {
        let Self { stage, role, settings, rails, .. } = self;
        let done = match stage {
            Stage::BringUp(bringup) => bringup.poll(*role, settings, rails).then_some(Done::BroughtUp),
            Stage::Probe(probes) => probes.poll(settings).then_some(Done::Probed),
            Stage::Search(search) => search.poll(settings, rails).then_some(Done::Searched),
            Stage::None | Stage::Made(_) | Stage::Joined(_) | Stage::Sought(_) => None,
        }?;
        self.stage = match self.take() {
            Stage::BringUp(bringup) => Stage::Joined(bringup.finish()),
            Stage::Probe(probes) => Stage::Joined(probes.endpoint),
            Stage::Search(search) => Stage::Sought(search),
            other => other,
        };
        Some(done)
    }

    /// Returns what the work that has ended has brought about.
    pub(crate) fn endpoint(&self) -> Result<&Endpoint> {
        match &self.stage {
            Stage::Joined(endpoint) => Ok(endpoint),
            _ => Err(out_of_place()),
        }
    }

    /// Takes the endpoint, which the caller uses.
    pub(crate) fn take_endpoint(&mut self) -> Result<Endpoint> {
        match self.take() {
            Stage::Joined(endpoint) => Ok(endpoint),
            _ => Err(out_of_place()),
        }
    }

    fn take(&mut self) -> Stage {
        std::mem::replace(&mut self.stage, Stage::None)
    }
}

pub(super) fn out_of_place() -> Error {
    Error::Internal("a step of an attempt does not fit its local work".into())
}
