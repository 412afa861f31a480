//! The probes of a rail, at connect and when it is made again. They are the work requests of the
//! data path: a route works if a write of a full packet completes on each of its queue pairs. That
//! of a sender's first queue pair has an immediate, which must consume a receive. A route can flush
//! if a read completes on the queue pair for flushes. An empty write precedes them on the first queue
//! pair: it distinguishes a route that loses only long packets from one that loses all.
//!
//! All writes are from and to the scratch memory of both ends.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{MAX_RAILS, PROBE_IMM, RailSet, SCRATCH, SRQ_FAILED};

use crate::connect::endpoint::Endpoint;
use crate::connect::local_route::{FormerLife, keep_without_flush};
use crate::device::Nic;
use crate::error::{Error, FailedCompletion, Fast, RETRY_EXC, Result, status_text, wc_status};
use crate::transport::Settings;
use crate::transport::rail::Rail;
use crate::transport::recv::{self, receives};
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Batch, Chain, Completion, Cq, Kind, Local, Path, Qp, QpOptions, Region, Remote};

/// Probes on every route.
#[derive(Debug)]
pub(crate) struct ProbeRun {
    pub(crate) endpoint: Endpoint,
    routes: [Probes; MAX_RAILS],
    /// Whether this is the first life of the rails: what fails may never have worked.
    is_first: bool,
    /// Whether a rail that fails to flush does not work.
    must_flush: bool,
}

/// The probes of one route.
#[derive(Debug, Clone, Default)]
struct Probes {
    /// Writes that have been posted.
    posted: usize,
    /// Writes in flight.
    writes: usize,
    /// Whether the immediate of the peer's probe has yet to arrive.
    awaits_imm: bool,
    /// Until when it may arrive, once the peer has reported that its probe failed.
    arrive_by: Option<Instant>,
    /// Reads in flight on the queue pair for flushes.
    reads: usize,
    /// Whether the empty write has completed.
    reached: bool,
    /// Why the read has failed. If a write fails, too, the port has another fault.
    unread: Option<String>,
    /// Whether the read got no answer, for the first time: a packet may have been lost.
    is_lost: bool,
    /// Whether the read was repeated.
    is_repeated: bool,
}

impl Probes {
    fn pending(&self) -> bool {
        self.awaits_imm || self.writes + self.reads > 0
    }

    /// Returns whether the data writes have completed although the read has failed.
    fn cannot_flush(&self) -> bool {
        !self.awaits_imm && self.writes == 0 && self.unread.is_some()
    }
}

/// How long an immediate may take that the peer has sent before it reported its failed probe. It is
/// usually there: this end then knows whether its own receives are the cause.
const LATE: Duration = Duration::from_millis(100);

impl ProbeRun {
    /// Begins the probes of all routes, or of rails with this former life.
    pub(crate) fn start(mut endpoint: Endpoint, former: Option<&FormerLife>) -> Self {
        let mut routes: [Probes; MAX_RAILS] = Default::default();
        let mut chain = Chain::default();
        for (i, place) in endpoint.rails.iter_mut().enumerate() {
            let Ok(rail) = place else { continue };
            let (addr, mr) = (endpoint.region.addr(SCRATCH / 8) as u64, &endpoint.region.mrs()[i]);
            let full = Some(Local { addr, len: endpoint.mtus[i], lkey: mr.lkey() });
            let to = endpoint.remote.scratch(i);
            let receives = rail.receives.is_some();
            let mut post = |queue: &mut SendQueue, from, imm| {
                chain.clear();
                match chain.write(from, to, imm, Some(queue.signal(Work::Probe, 1))) {
                    true => queue.post(&mut chain, true),
                    false => Err(NotPosted::internal("no room for a probe")),
                }
            };
            let empty = rail.send_queues.first_mut().map_or(Ok(()), |queue| post(queue, None, None));
            let mut imm = (!receives).then_some(PROBE_IMM);
            let written = empty.and_then(|()| {
                rail.send_queues.iter_mut().try_for_each(|queue| post(queue, full, imm.take()))
            });
            if let Err(e) = written {
                *place = Err(e.of_route());
                continue;
            }
            let posted = 1 + rail.send_queues.len();
            let unread = read_own(rail, &endpoint.region, i, &mut chain).err().map(|e| e.to_string());
            let reads = usize::from(rail.flush.is_some() && unread.is_none());
            routes[i] =
                Probes { posted, writes: posted, awaits_imm: receives, reads, unread, ..Probes::default() };
        }
        let must_flush = former.is_some_and(|former| former.flushed);
        Self { endpoint, routes, is_first: former.is_none(), must_flush }
    }

    /// Polls for completions; returns whether every probe has ended.
    pub(crate) fn poll(&mut self, settings: &Settings) -> bool {
        self.poll_queues();
        let now = Instant::now();
        for probes in &mut self.routes {
            probes.awaits_imm &= probes.arrive_by.is_none_or(|by| now < by);
        }
        self.repeat_reads(settings);
        let must_flush = self.must_flush;
        self.fail_if(Probes::cannot_flush, |rail, probes| match &probes.unread {
            Some(why) if must_flush => Err(Error::Peer(format!("the port does not reach itself: {why}"))),
            Some(why) if rail.flush.is_some() => give_up_flush(settings, rail, why),
            _ => Ok(()),
        });
        !self.routes.iter().any(Probes::pending)
    }

    /// Repeats each read that got no answer once, on another queue pair: that of the read is in ERR.
    fn repeat_reads(&mut self, settings: &Settings) {
        let Endpoint { rails, region, .. } = &mut self.endpoint;
        for (i, (place, probes)) in rails.iter_mut().zip(&mut self.routes).enumerate() {
            if let Ok(rail) = place
                && probes.cannot_flush()
                && std::mem::take(&mut probes.is_lost)
            {
                probes.is_repeated = true;
                let repeated = connect_to_itself(rail, settings)
                    .and_then(|()| read_own(rail, region, i, &mut Chain::default()));
                match repeated {
                    Ok(()) => (probes.reads, probes.unread) = (1, None),
                    Err(e) => probes.unread = Some(e.to_string()),
                }
            }
        }
    }

    /// Polls each CQ of the routes with pending probes once.
    fn poll_queues(&mut self) {
        let mut cqs: Vec<Arc<Cq>> = Vec::with_capacity(MAX_RAILS);
        for (place, probes) in self.endpoint.rails.iter().zip(&self.routes) {
            let Ok(rail) = place else { continue };
            let Some(cq) = rail.cq.as_ref().filter(|_| probes.pending()) else { continue };
            if !cqs.iter().any(|known| known.id() == cq.id()) {
                cqs.push(Arc::clone(cq));
            }
        }
        for cq in cqs {
            if let Err(e) = self.poll_queue(&cq) {
                let why = e.to_string();
                self.fail_if(Probes::pending, |rail, _| {
                    match rail.cq.as_ref().is_some_and(|own| own.id() == cq.id()) {
                        true => Err(Error::Peer(why.clone())),
                        false => Ok(()),
                    }
                });
            }
        }
    }

    /// Handles all completions of a CQ.
    fn poll_queue(&mut self, cq: &Cq) -> Fast<()> {
        let mut batch = Batch::new();
        loop {
            let completions = cq.poll(&mut batch)?;
            completions.iter().for_each(|completion| self.completed(cq, completion));
            if completions.is_empty() {
                return Ok(());
            }
        }
    }

    /// Handles a completion of a CQ. Queue pairs of two adapters may have one number.
    fn completed(&mut self, cq: &Cq, completion: &Completion) {
        let owner = |place: &Result<Rail>| {
            let (qpn, id) = (completion.qpn(), Some(cq.id()));
            let is_owner = |rail: &Rail| {
                rail.cq.as_ref().map(|own| own.id()) == id
                    && rail.queue_pairs().any(|queue| queue.number() == qpn)
            };
            place.as_ref().is_ok_and(is_owner)
        };
        // Some providers keep completions of a queue pair that is destroyed.
        let Some(i) = self.endpoint.rails.iter().position(owner) else { return };
        let Ok(rail) = &mut self.endpoint.rails[i] else { return };
        if let Err(e) = completed(i, rail, &mut self.routes[i], completion) {
            self.give_up(i, e);
        }
    }

    /// Gives up a route.
    fn give_up(&mut self, i: usize, e: Error) {
        let is_steady = |rail: &Rail| rail.nic.health().is_steady(Instant::now());
        // What the rail has carried before it can carry now, and a fault loses packets of any length.
        let infers = self.is_first && self.endpoint.rails[i].as_ref().is_ok_and(is_steady);
        let mtu = infers.then_some(self.endpoint.mtus[i]);
        if matches!(&e, Error::Completion(c) if c.status == RETRY_EXC) && !self.routes[i].reached {
            self.endpoint.silent.insert(i);
        }
        self.endpoint.rails[i] = Err(self.routes[i].explain(e, mtu));
        self.routes[i] = Probes::default();
    }

    /// Ends the probes that have not completed.
    pub(crate) fn stop(&mut self, settings: &Settings) {
        let late = "the probe did not complete in time (MPIB_PROBE_TIMEOUT_MS)";
        let must_flush = self.must_flush;
        let silent = self.routes.iter().enumerate().filter(|(_, probes)| probes.pending() && !probes.reached);
        self.endpoint.silent |= silent.map(|(i, _)| i).collect();
        self.fail_if(Probes::pending, |rail, probes| match (probes.writes, probes.awaits_imm) {
            (0, false) if !must_flush => give_up_flush(settings, rail, late),
            (0, true) => {
                Err(Error::Peer("the peer's probe did not arrive in time (MPIB_PROBE_TIMEOUT_MS)".into()))
            }
            _ => Err(Error::Peer(late.into())),
        });
        // Removes what the destroyed queue pairs may have left.
        self.poll_queues();
        self.routes = Default::default();
    }

    /// Ends the probes of routes on which nothing has answered yet; unless `all`, only if another route
    /// has answered.
    pub(crate) fn end_silent(&mut self, all: bool) {
        let has_answer = |(place, probes): (&Result<Rail>, &Probes)| place.is_ok() && probes.reached;
        if !all && !self.endpoint.rails.iter().zip(&self.routes).any(has_answer) {
            return;
        }
        let is_silent = |probes: &Probes| probes.pending() && !probes.reached;
        let silent: RailSet = (0..self.routes.len()).filter(|i| is_silent(&self.routes[*i])).collect();
        self.endpoint.silent |= silent;
        self.endpoint.brief |= silent;
        self.fail_if(is_silent, |_, _| Err(Error::Peer("the probe was not acknowledged".into())));
        // Removes what the destroyed queue pairs may have left.
        self.poll_queues();
    }

    /// Handles the peer's report that its probes of these routes have failed.
    pub(crate) fn peer_failed(&mut self, which: RailSet) {
        let by = Instant::now() + LATE;
        which.iter().for_each(|i| self.routes[i].arrive_by = Some(by));
    }

    /// Ends the pending probes of these routes.
    pub(crate) fn abandon(&mut self, which: RailSet) {
        for (i, (place, probes)) in self.endpoint.rails.iter_mut().zip(&mut self.routes).enumerate() {
            if probes.pending() && which.contains(i) {
                *place = Err(Error::Peer("the peer does not try it".into()));
                *probes = Probes::default();
                self.endpoint.untried.insert(i);
            }
        }
    }

    /// Applies `f` to each route whose probes fit `which`, and gives up those for which it fails.
    fn fail_if(
        &mut self,
        which: impl Fn(&Probes) -> bool,
        mut f: impl FnMut(&mut Rail, &mut Probes) -> Result<()>,
    ) {
        for i in 0..self.endpoint.rails.len() {
            if let Ok(rail) = &mut self.endpoint.rails[i]
                && which(&self.routes[i])
                && let Err(e) = f(rail, &mut self.routes[i])
            {
                self.give_up(i, e);
            }
        }
    }
}

impl Probes {
    /// Returns the cause of a failure, in few words for the table of routes. If the empty packet
    /// alone has arrived, the others, of `mtu` bytes, may be too long for a link on the way.
    fn explain(&self, e: Error, mtu: Option<u32>) -> Error {
        let e = match e {
            Error::Completion(c) => Error::Peer(in_few_words(&c)),
            e => e,
        };
        let Some(mtu) = mtu.filter(|_| self.reached && self.posted - self.writes == 1) else { return e };
        Error::Peer(format!(
            "{e}; empty packets arrive, and those of {mtu} bytes do not: has an interface or a switch on the way a smaller \
             MTU than the ports at both ends?"
        ))
    }
}

/// Describes the failed completion of a probe for the table of routes.
fn in_few_words(c: &FailedCompletion) -> String {
    let status = wc_status(c.status);
    let port = c.port.as_ref().map_or_else(String::new, |why| format!("; {} now: {why}", c.device));
    format!("the probe failed: {} ({}){port}", status.meaning, status_text(c.status, c.vendor_err))
}

/// Replaces the rail's queue pair for flushes by another one, which is connected to itself.
fn connect_to_itself(rail: &mut Rail, settings: &Settings) -> Result<()> {
    let (Some(former), Some(path), Some(cq)) = (rail.flush.take(), &rail.flush_path, &rail.cq) else {
        return Err(Error::Internal("a read without a queue pair".into()));
    };
    let options = QpOptions { send_depth: former.send_depth(), inline: 0, receives: 0 };
    let mut qp = Qp::new(&rail.nic.pd(), cq, None, options)?;
    let own = qp.number();
    qp.advance(&Path { qpn: own, ..**path }, settings.timing())?;
    rail.flush = Some(SendQueue::new(qp.ready()?, own));
    Ok(())
}

/// Posts the first read of the queue pair for flushes, if the rail has one.
fn read_own(rail: &mut Rail, region: &Region, i: usize, chain: &mut Chain) -> Result<()> {
    let Some(queue) = &mut rail.flush else { return Ok(()) };
    let (addr, mr) = (region.addr(recv::SINK / 8 + i) as u64, &region.mrs()[i]);
    chain.clear();
    let local = Local { addr, len: 1, lkey: mr.lkey() };
    match chain.read(local, Remote { addr, rkey: mr.rkey() }, queue.signal(Work::Probe, 1)) {
        true => queue.post(chain, true).map_err(NotPosted::of_route),
        false => Err(Error::Internal("no room for a probe".into())),
    }
}

/// Handles a completion of a queue pair of the rail.
fn completed(i: usize, rail: &mut Rail, probes: &mut Probes, completion: &Completion) -> Result<()> {
    if receives::is_flushed(completion) {
        return Ok(());
    }
    if completion.status() != 0 {
        let srq = rail.receives.as_ref().is_some_and(|receives| receives.srq().is_some());
        let mut failed = rail.failed(i, completion);
        if let Error::Completion(c) = &mut failed {
            c.port = rail.nic.now().err();
        }
        match failed {
            Error::Completion(c) if c.loopback => {
                (probes.reads, probes.unread) = (0, Some(in_few_words(&c)));
                probes.is_lost = c.status == RETRY_EXC && !probes.is_repeated;
                return Ok(());
            }
            Error::Completion(c)
                if srq && c.port.is_none() && Work::of(completion.wr_id()) == Work::Receive =>
            {
                return Err(srq_failed(&rail.nic, &c));
            }
            e => return Err(e),
        }
    }
    if let Kind::Arrived(imm) = completion.kind() {
        return arrived(rail, probes, completion, imm);
    }
    let (qpn, id) = (completion.qpn(), completion.wr_id());
    if let Some(at) = rail.send_queues.iter().position(|l| l.number() == qpn) {
        rail.send_queues[at].sent(id).map_err(|e| *e)?;
        probes.writes -= 1;
        probes.reached |= at == 0;
    } else if let Some(queue) = &mut rail.flush {
        queue.sent(id).map_err(|e| *e)?;
        probes.reads -= 1;
    }
    Ok(())
}

/// Handles the immediate of the peer's probe. It has consumed a receive, which is replaced.
fn arrived(rail: &mut Rail, probes: &mut Probes, completion: &Completion, imm: u32) -> Result<()> {
    if !probes.awaits_imm || imm != PROBE_IMM || !rail.arrived(completion, imm as u8) {
        let (peer, qpn) = (&rail.names.peer, completion.qpn());
        return Err(Error::Protocol(format!(
            "{peer} sent the immediate {imm:#010x} to QP {qpn}, expected {PROBE_IMM:#010x} once, to the first one of a rail"
        )));
    }
    probes.awaits_imm = false;
    rail.fill().map_err(NotPosted::of_route)
}

/// Notes that the SRQs of an adapter do not work: it takes their receives, and fails when an
/// immediate consumes one. From now on its queue pairs receive from their own queues.
fn srq_failed(nic: &Nic, c: &FailedCompletion) -> Error {
    let why = status_text(c.status, c.vendor_err);
    if nic.set_srq_failed(&why) {
        let name = nic.adapter();
        tracing::warn!(
            target: "net",
            "a receive in a shared receive queue of {name} failed ({why}); its queue pairs receive from their own queues"
        );
    }
    Error::Peer(format!("{SRQ_FAILED}{why}"))
}

/// Keeps a rail without flushes: its adapter does not reach itself.
fn give_up_flush(settings: &Settings, rail: &mut Rail, why: &str) -> Result<()> {
    rail.flush = None;
    rail.no_flush = Some(why.to_owned());
    keep_without_flush(settings, &rail.nic, why)
}
