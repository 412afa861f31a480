//! A search: which of up to 64 routes answer. A port that works answers within milliseconds, so all
//! routes are tried at once, each with one queue pair at either end and without memory.
//!
//! The acceptor connects its queue pairs. Then the connector connects its own and writes zero bytes
//! on each: the acknowledgement shows that packets get through in both directions. Such a write needs
//! no remote key (InfiniBand Architecture Specification, volume 1, C9-88; read in `check_rkey` of the
//! kernel's `drivers/infiniband/sw/rxe/rxe_resp.c`, too). A route that has answered gets the queue
//! pairs of a connection afterwards, and their [probes](super::probe).

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{self, NO_ANSWER, QpWiring, RailInfo, Role};

use crate::connect::endpoint::{CqNeeds, completion_queues};
use crate::connect::known_failures::is_of_network;
use crate::connect::local_rails::LocalRail;
use crate::connect::local_route::{BringupContext, first_psn};
use crate::connect::machine::{Reply, Sought};
use crate::error::{Blame, Error, Result, status_text, wc_status};
use crate::route::Route;
use crate::transport::Settings;
use crate::verbs::{Batch, Chain, Completion, Cq, Fresh, Path, Qp, QpOptions, Ready, Remote, Timing};

/// The local ACK timeout is 4.096 us times 2 to the power of 13, 34 ms. Adapters may raise it.
const TIMING: Timing = Timing { timeout: 13, retries: 7 };

/// How long others may take after the first route has answered: a better one may be among them.
const GRACE: Duration = Duration::from_millis(20);

/// How long one poll may change states of queue pairs.
const TURN: Duration = Duration::from_millis(5);

/// One end of a search.
#[derive(Debug)]
pub(crate) struct Search {
    role: Role,
    routes: Vec<Route>,
    /// The peer's rails.
    rails: Vec<RailInfo>,
    each: Vec<Progress>,
    cqs: Vec<Arc<Cq>>,
    /// First packet sequence number of each queue pair.
    psn: u32,
    /// The peer's end, once it is known.
    peer: Option<mpib_proto::Search>,
    /// When the first route has answered.
    answered: Option<Instant>,
}

/// How far a route has come.
#[derive(Debug)]
enum Progress {
    Made(Qp<Fresh>),
    /// A connector's write is in flight.
    Connected(Qp<Ready>),
    Ended(Reply),
}

impl Search {
    /// Creates the queue pair of each route for which `known` returns no reason.
    pub(crate) fn new(
        role: Role,
        local_rails: &[LocalRail],
        Sought { routes, rails, .. }: Sought,
        known: impl Fn(&Route) -> Option<String>,
    ) -> Result<Self> {
        let local = |route: &Route| &local_rails[*route.rails.local(role)];
        let needs = |route| CqNeeds {
            context: local(route).pd.context(),
            completions: 1,
            max_cqe: local(route).nic.limits().max_cqe,
        };
        let needs: Vec<_> = routes.iter().map(needs).collect();
        let (mut cqs, mut each): (Vec<Arc<Cq>>, Vec<Progress>) = (Vec::new(), Vec::new());
        for (route, cq) in routes.iter().zip(completion_queues(&needs)) {
            let options = QpOptions { send_depth: 1, inline: 0, receives: 0 };
            let make = || {
                let cq = cq?.cq;
                let qp = Qp::new(&local(route).pd, &cq, None, options)?;
                if cqs.iter().all(|known| known.id() != cq.id()) {
                    cqs.push(cq);
                }
                Ok(qp)
            };
            let made = known(route).map_or_else(|| make().map_err(|e| reason(&e)), Err);
            each.push(made.map_or_else(|why| Progress::Ended(Reply::Fails(why)), Progress::Made));
        }
        Ok(Self { role, routes, rails, each, cqs, psn: first_psn()?, peer: None, answered: None })
    }

    /// Describes this end to the peer.
    pub(crate) fn message(&self, settings: &Settings) -> mpib_proto::Search {
        let qp = |progress: &Progress| {
            let qpn = match progress {
                Progress::Made(qp) => qp.number(),
                Progress::Connected(qp) => qp.number(),
                Progress::Ended(_) => return None,
            };
            Some(QpWiring { qpn, psn: self.psn })
        };
        let reason = |(i, progress): (u8, &Progress)| match progress {
            Progress::Ended(Reply::Fails(why)) => Some((i, why.clone())),
            _ => None,
        };
        mpib_proto::Search {
            qps: self.each.iter().map(qp).collect(),
            reasons: (0..).zip(&self.each).filter_map(reason).collect(),
            service_level: settings.service_level().unwrap_or(0),
            traffic_class: settings.traffic_class().unwrap_or(0),
        }
    }

    /// Begins to connect the queue pairs to the peer's. A route that the peer does not try ends.
    pub(crate) fn join(&mut self, peer: mpib_proto::Search) {
        for (i, progress) in self.each.iter_mut().enumerate() {
            if matches!(progress, Progress::Made(_)) && remote(&peer, i).is_none() {
                *progress = Progress::Ended(Reply::Open);
            }
        }
        self.peer = Some(peer);
    }

    /// Connects queue pairs, and takes the answers of a connector's. Returns whether nothing is left
    /// to do: each queue pair of an acceptor is connected, or each route of a connector has answered
    /// or failed. A connector waits no longer than the grace for others than the first to answer.
    pub(crate) fn poll(&mut self, settings: &Settings, local_rails: &[LocalRail]) -> bool {
        let began = Instant::now();
        while let Some(i) = self.each.iter().position(|progress| matches!(progress, Progress::Made(_))) {
            let progress = self.connect(i, settings, local_rails);
            self.each[i] = progress.unwrap_or_else(|e| Progress::Ended(Reply::Fails(reason(&e))));
            if began.elapsed() >= TURN {
                break;
            }
        }
        self.take_answers();
        let is_pending = |progress: &Progress| match progress {
            Progress::Made(_) => true,
            Progress::Connected(_) => self.role == Role::Connector,
            Progress::Ended(_) => false,
        };
        let is_over = self.answered.is_some_and(|first| first.elapsed() >= GRACE);
        is_over || !self.each.iter().any(is_pending)
    }

    /// Connects a queue pair, and posts the write of a connector's.
    fn connect(&mut self, i: usize, settings: &Settings, local_rails: &[LocalRail]) -> Result<Progress> {
        let open = Progress::Ended(Reply::Open);
        let peer = self.peer.as_ref().ok_or_else(|| Error::Internal("a search without a peer".into()))?;
        let (Progress::Made(mut qp), Some(remote)) =
            (std::mem::replace(&mut self.each[i], open), remote(peer, i))
        else {
            return Err(Error::Internal("a search of a route without queue pairs".into()));
        };
        let with = BringupContext { role: self.role, settings, local_rails, peer: &self.rails };
        let route = &self.routes[i];
        let gid_index = with.local(route).nic.place_of(&with.gids(route).0)?;
        let path = with.path(route, gid_index, (peer.service_level, peer.traffic_class))?;
        qp.advance(&Path { qpn: remote.qpn, peer_psn: remote.psn, psn: self.psn, ..path }, TIMING)?;
        let qp = qp.ready()?;
        if self.role == Role::Connector {
            let mut chain = Chain::default();
            if !chain.write(None, Remote { addr: 0, rkey: 0 }, None, Some(i as u64)) {
                return Err(Error::Internal("no room for a write".into()));
            }
            qp.post(&mut chain).map_err(|e| *e)?;
        }
        Ok(Progress::Connected(qp))
    }

    fn take_answers(&mut self) {
        let mut batch = Batch::new();
        for cq in &self.cqs {
            // The routes of a CQ that fails are silent.
            while let Ok(completions) = cq.poll(&mut batch)
                && !completions.is_empty()
            {
                for completion in completions {
                    // By its place: queue pairs of two adapters may have one number.
                    let place = usize::try_from(completion.wr_id()).ok();
                    let progress = place.and_then(|i| self.each.get_mut(i));
                    let Some(progress @ Progress::Connected(_)) = progress else { continue };
                    let reply = reply(completion);
                    if reply == Reply::Answers {
                        self.answered.get_or_insert_with(Instant::now);
                    }
                    *progress = Progress::Ended(reply);
                }
            }
        }
    }

    /// Ends the search at its time limit. Routes on which nothing has answered fail, unless others
    /// have just answered; those that are not connected yet stay open.
    pub(crate) fn stop(&mut self) {
        for progress in &mut self.each {
            let reply = match progress {
                Progress::Connected(_) if self.role == Role::Connector && self.answered.is_none() => {
                    Reply::Fails(silent())
                }
                Progress::Made(_) => Reply::Open,
                Progress::Connected(_) | Progress::Ended(_) => continue,
            };
            *progress = Progress::Ended(reply);
        }
    }

    /// Returns what has come of each route.
    pub(crate) fn replies(&self) -> Vec<Reply> {
        let reply = |progress: &Progress| match progress {
            Progress::Ended(reply) => reply.clone(),
            Progress::Made(_) | Progress::Connected(_) => Reply::Open,
        };
        self.each.iter().map(reply).collect()
    }
}

/// Returns the peer's queue pair of a route.
fn remote(peer: &mpib_proto::Search, i: usize) -> Option<QpWiring> {
    peer.qps.get(i).copied().flatten()
}

/// Returns what the completion of an empty write shows. A peer that refuses it has answered.
fn reply(completion: &Completion) -> Reply {
    let (status, vendor_err) = (completion.status(), completion.vendor_err());
    match wc_status(status).blame {
        _ if status == 0 => Reply::Answers,
        Blame::Peer => Reply::Answers,
        Blame::Path => Reply::Fails(silent()),
        Blame::Nobody | Blame::Local | Blame::Device => Reply::Fails(status_text(status, vendor_err)),
    }
}

/// Returns the reason of a route on which nothing answers.
fn silent() -> String {
    format!("{NO_ANSWER}no acknowledgement came in time")
}

/// Returns the reason of a route that an error ends.
fn reason(e: &Error) -> String {
    if is_of_network(e) { format!("{NO_ANSWER}{e}") } else { e.to_string() }
}
