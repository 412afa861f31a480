//! A group of ranks that put, signal and get: what NCCL calls a collComm.

use std::mem;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{Command, Extent, LinkKind, Signal};
use nccl_net_versions::{Failure, Tagged};
use parking_lot::Mutex;

use super::connector::Terms;
use super::incoming::Shared;
use super::link::RecvLink;
use super::local::{Local, Part, Purpose};
use super::order::Due;
use super::outgoing::Job;
use super::peers::{Peer, Peers};
use super::requests::{Ended, Number, Pool, Request, Table};
use super::signals::{self, Signals};
use super::window::{self, Found, Window, Windows};
use crate::connect::Listening;
use crate::error::{Error, Result};

/// How long a group that closes tries to say so. A peer that does not hear it reports a lost
/// connection.
const FAREWELL: Duration = Duration::from_secs(1);
/// How long the end of a window waits for adapters that use it.
const DEREGISTERS: Duration = Duration::from_secs(1);
/// Of so many rounds, one looks for peers that connect: that is a system call.
const ACCEPT_EVERY: u32 = 64;
/// Links at most that have not said whose they are.
const JOINING: usize = 64;

/// A group, as one rank sees it.
#[derive(Debug)]
pub struct Group {
    terms: Terms,
    listening: Arc<Listening>,
    pool: Pool,
    // Locked by NCCL's progress thread, and for moments by the threads that register windows.
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    windows: Windows,
    table: Table,
    local: Local,
    signals: Signals,
    peers: Peers,
    /// Accepted links that have not said whose they are.
    joining: Vec<RecvLink>,
    rounds: u32,
    /// The first failure.
    failed: Option<Failure>,
    /// Peers may have ended.
    is_closing: bool,
}

/// A part of a window that a caller names.
#[derive(Debug, Clone, Copy)]
pub(super) struct WindowOffset<'a> {
    pub(super) window: &'a Arc<Window>,
    pub(super) offset: usize,
}

/// A put that a caller asks for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Put<'a> {
    pub(super) rank: usize,
    pub(super) size: usize,
    /// From where to where, if there is data.
    pub(super) data: Option<(WindowOffset<'a>, WindowOffset<'a>)>,
    /// The word, and what to add to it.
    pub(super) signal: Option<(WindowOffset<'a>, u64)>,
}

impl Group {
    pub(super) fn new(terms: Terms, listening: Arc<Listening>) -> Self {
        let ranks = terms.handles.len();
        let state = State {
            windows: Windows::default(),
            table: Table::default(),
            local: Local::new(),
            signals: Signals::default(),
            peers: Peers::new(ranks),
            joining: Vec::new(),
            rounds: 0,
            failed: None,
            is_closing: false,
        };
        Self { terms, listening, pool: Pool::new(), state: Mutex::new(state) }
    }

    /// Uses a traffic class for the connections from now on.
    pub(super) fn set_traffic_class(&self, class: i32) {
        self.terms.set_traffic_class(class);
    }

    /// Registers the next window.
    pub(super) fn register(&self, request: window::Request) -> Result<Arc<Window>> {
        // Without the lock: an adapter takes its time.
        let window = Window::register(self.terms.device, &self.terms.settings().config, request)?;
        self.state.lock().windows.add(window)
    }

    /// Ends a window. Waits until the adapters are done with it: a signal or data may be seen before
    /// the operation that has brought it ends. Its registrations stay until the group ends if all
    /// rails are dead for long: an abort of the job must not wait for them.
    pub(super) fn deregister(&self, number: u32) {
        self.state.lock().windows.remove(number);
        self.progress_until(DEREGISTERS, |state| {
            let is_over = !state.uses(number);
            if is_over {
                state.forget(number);
            }
            is_over
        });
    }

    /// Begins a put, with a signal or without.
    pub(super) fn put(&self, put: Put<'_>) -> Result<&Tagged<Request>> {
        let part = |place: WindowOffset<'_>| place.part(put.size);
        let data = put.data.filter(|_| put.size > 0);
        let from = data.map(|(from, _)| part(from)).transpose()?;
        let to = data.map(|(_, to)| to);
        let is_own = put.rank == self.terms.rank;
        // Another rank checks the place in its window itself.
        let own = to.filter(|_| is_own).map(part).transpose()?;
        let signal = put.signal.map(|(place, value)| place.signal(value)).transpose()?;
        let mut state = self.state.lock();
        let request = self.begin(&mut state, put.rank)?;
        let number = request.number();
        if !is_own {
            let data = from.zip(to).map(|(from, to)| (from, to.window.number, to.offset as u64));
            state.peers.of(put.rank).outgoing.push(
                &self.terms,
                put.rank,
                Job::Put { request: number, data, signal },
            );
            self.advance(&mut state, put.rank);
            return Ok(request);
        }
        let State { peers, local, .. } = &mut *state;
        let order = &mut peers.of(put.rank).incoming.order;
        let ticket = order.push(signal, Some(number));
        match from.zip(own) {
            Some((from, to)) => local.copy(&self.terms, from, to, Purpose::Put(put.rank, ticket)),
            None => order.is_visible(ticket),
        }
        Ok(request)
    }

    /// Begins a get.
    pub(super) fn get(
        &self,
        rank: usize,
        size: usize,
        remote: WindowOffset<'_>,
        here: WindowOffset<'_>,
    ) -> Result<&Tagged<Request>> {
        let to = here.part(size)?;
        let own = (rank == self.terms.rank).then(|| remote.part(size)).transpose()?;
        let mut state = self.state.lock();
        let request = self.begin(&mut state, rank)?;
        let number = request.number();
        if size == 0 {
            self.pool.part_done(&mut state.table, number)?;
        } else if let Some(from) = own {
            state.local.copy(&self.terms, from, to, Purpose::Request(number));
        } else {
            let from =
                Extent { window: remote.window.number, offset: remote.offset as u64, size: size as u64 };
            let peer = state.peers.of(rank);
            peer.incoming.await_answer(number, to);
            peer.outgoing.push(&self.terms, rank, Job::Get { request: number, from });
            self.advance(&mut state, rank);
        }
        Ok(request)
    }

    fn begin(&self, state: &mut State, rank: usize) -> Result<&Tagged<Request>> {
        let ranks = self.terms.handles.len();
        if rank >= ranks {
            return Err(Error::Argument(format!(
                "rank {rank}: expected one of this group, which has {ranks}"
            )));
        }
        if let Some(code) = state.peers.get(rank).and_then(|peer| peer.failed) {
            let why = format!("the connection with rank {rank} has failed");
            return Err(Error::Closed { code, why });
        }
        self.pool.begin(&mut state.table, rank)
    }

    /// Collects a request if it is done. Makes progress if it is not: NCCL waits for some requests
    /// without any other call.
    ///
    /// # Errors
    /// The request was collected before. A failure of the request itself is in the result.
    pub(super) fn test(&self, request: &Request) -> Result<Option<Ended>> {
        let mut ended = request.collect()?;
        if ended.is_none() {
            // A failure is the request's, or another call's.
            let _ = self.progress();
            ended = request.collect()?;
        }
        if ended.is_some() {
            self.state.lock().table.free(request.number());
        }
        Ok(ended)
    }

    /// Goes on with everything.
    pub(super) fn progress(&self) -> Result<(), Failure> {
        // Another thread makes it.
        let Some(mut state) = self.state.try_lock() else { return Ok(()) };
        self.accept(&mut state);
        self.for_each_peer(&mut state, Self::advance);
        self.finish_local(&mut state);
        self.for_each_peer(&mut state, Self::apply);
        let State { signals, local, .. } = &mut *state;
        if signals.progress(&self.terms, local) {
            self.finish_local(&mut state);
        }
        state.failed.map_or(Ok(()), Err)
    }

    /// Makes progress until something is over, for a limited time. A failure is another call's.
    fn progress_until(&self, limit: Duration, mut is_over: impl FnMut(&mut State) -> bool) {
        let until = Instant::now() + limit;
        loop {
            let _ = self.progress();
            if is_over(&mut self.state.lock()) || Instant::now() >= until {
                return;
            }
            std::thread::yield_now();
        }
    }

    fn for_each_peer(&self, state: &mut State, one: fn(&Self, &mut State, usize)) {
        let mut index = 0;
        while let Some(rank) = state.peers.rank(index) {
            one(self, state, rank);
            index += 1;
        }
    }

    /// Returns whether a peer or this rank has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.state.lock().failed.is_some()
    }

    /// Takes links of peers that connect.
    fn accept(&self, state: &mut State) {
        state.rounds = state.rounds.wrapping_add(1);
        if state.joining.len() < JOINING && state.rounds.is_multiple_of(ACCEPT_EVERY) {
            let accepted =
                self.listening.accept().and_then(|comm| comm.map(|c| RecvLink::new(c, 1)).transpose());
            match accepted {
                Ok(link) => state.joining.extend(link),
                Err(e) => tracing::warn!(target: "net", "a peer could not connect, others may: {e}"),
            }
        }
        for link in mem::take(&mut state.joining) {
            match self.join(state, link) {
                Ok(link) => state.joining.extend(link),
                Err(e) => tracing::warn!(target: "net", "a connection is refused: {e}"),
            }
        }
    }

    /// Hands a link to the peer that it is of, or returns it if that is not known yet.
    fn join(&self, state: &mut State, mut link: RecvLink) -> Result<Option<RecvLink>> {
        link.offer().map_err(|e| *e)?;
        let Some(message) = link.next_received().map_err(|e| *e)? else { return Ok(Some(link)) };
        let Command::Join { rank, link: kind, group } = link.command(message)? else {
            return Err(Error::Protocol("the first message of a link is no JOIN".into()));
        };
        let rank = rank as usize;
        if group != self.terms.group || rank >= state.peers.len() {
            return Err(Error::Protocol(format!(
                "JOIN of rank {rank} of group {group:#x}: expected one of {} ranks of group {:#x}",
                state.peers.len(),
                self.terms.group
            )));
        }
        match (rank == self.terms.rank, kind) {
            (false, kind) => state.peers.of(rank).incoming.joined(kind, link)?,
            (true, LinkKind::Data) => state.local.accepted(link)?,
            (true, LinkKind::Commands) => return Err(Error::Protocol("JOIN of this rank itself".into())),
        }
        Ok(None)
    }

    /// Goes on with one peer.
    fn advance(&self, state: &mut State, rank: usize) {
        let State { windows, table, local, peers, .. } = state;
        let Some(peer) = peers.get(rank).filter(|peer| peer.failed.is_none()) else { return };
        let Peer { outgoing, incoming, .. } = peer;
        let mut shared = Shared { terms: &self.terms, pool: &self.pool, table, windows, local };
        let mut asked = |id, data| outgoing.push(&self.terms, rank, Job::Answer { id, data });
        let received = incoming.progress(&mut shared, &mut asked);
        let done = received.and_then(|()| outgoing.progress(&self.terms, &self.pool, shared.table));
        if let Err(e) = done {
            self.fail(state, rank, &e);
        }
    }

    /// Fails all that concerns a rank.
    #[cold]
    fn fail(&self, state: &mut State, rank: usize, e: &Error) {
        let failure = e.failure();
        match e {
            _ if state.is_closing => tracing::debug!(target: "net", "rank {rank} has ended before: {e}"),
            Error::Closed { .. } => {}
            _ => tracing::warn!(target: "net", "one-sided traffic with rank {rank} has failed: {e}"),
        }
        state.failed.get_or_insert(failure);
        if let Some(peer) = state.peers.get(rank) {
            peer.failed = Some(failure);
        }
        self.pool.fail(&state.table, rank, failure);
    }

    /// Goes on with copies on this host, and notes which are done.
    fn finish_local(&self, state: &mut State) {
        if let Err(e) = state.local.progress(&self.terms) {
            self.fail(state, self.terms.rank, &e);
            return;
        }
        while let Some((purpose, value)) = state.local.next_done() {
            match purpose {
                Purpose::Put(rank, ticket) => state.peers.of(rank).incoming.order.is_visible(ticket),
                Purpose::Request(number) => self.part_done(state, number),
                Purpose::Read(word) => state.signals.read(word, value),
                Purpose::Write(word) => {
                    let State { signals, peers, .. } = &mut *state;
                    signals.written(word, |rank| peers.of(rank).incoming.order.applied());
                }
            }
        }
    }

    fn part_done(&self, state: &mut State, number: Number) {
        if let Err(e) = self.pool.part_done(&mut state.table, number) {
            self.fail(state, self.terms.rank, &e);
        }
    }

    /// Applies the signals of a rank that are due.
    fn apply(&self, state: &mut State, rank: usize) {
        loop {
            let due = state.peers.get(rank).and_then(|peer| peer.incoming.order.next());
            match due {
                None => return,
                Some(Due::Done(number)) => self.part_done(state, number),
                Some(Due::Apply(signal)) => match state.add(signal, rank) {
                    Ok(true) => state.peers.of(rank).incoming.order.applied(),
                    Ok(false) => return,
                    Err(e) => return self.fail(state, rank, &e),
                },
            }
        }
    }

    /// Says farewell to the peers, and ends all connections.
    pub(super) fn close(self) -> Result<()> {
        {
            let mut state = self.state.lock();
            state.is_closing = true;
            state.peers.iter_mut().for_each(|peer| peer.outgoing.end());
        }
        let is_idle = |peer: &mut Peer| peer.failed.is_some() || peer.outgoing.is_idle();
        self.progress_until(FAREWELL, |state| state.peers.iter_mut().all(is_idle));
        let State { peers, local, .. } = self.state.into_inner();
        self.terms.pending.abandon();
        for Peer { outgoing, incoming, failed } in peers.into_peers() {
            let closed = outgoing.close().and(incoming.close());
            if failed.is_none() {
                closed?;
            }
        }
        local.close()
    }
}

impl State {
    /// Returns whether an adapter still uses a window that has ended.
    fn uses(&mut self, number: u32) -> bool {
        let by_peer = |peer: &mut Peer| {
            peer.failed.is_none() && (peer.outgoing.is_sending(number) || peer.incoming.is_flushing(number))
        };
        let here = !self.local.has_failed() && (self.signals.uses(number) || self.local.uses(number));
        here || self.peers.iter_mut().any(by_peer)
    }

    /// Forgets a window that nothing uses.
    fn forget(&mut self, number: u32) {
        self.signals.forget(number);
        self.local.forget(number);
        for peer in self.peers.iter_mut() {
            peer.outgoing.forget(number);
            peer.incoming.forget(number);
        }
    }

    /// Adds to a word for a rank. Returns whether it is done.
    fn add(&mut self, signal: Signal, rank: usize) -> Result<bool> {
        match self.windows.find(signal.window) {
            Found::Window(window) => self.signals.add(&window, signal.offset, signal.value, rank),
            // Deregistered meanwhile.
            Found::Ended | Found::NotYet => Ok(true),
        }
    }
}

impl WindowOffset<'_> {
    /// Returns `size` bytes from here on.
    fn part(&self, size: usize) -> Result<Part> {
        let buffer = self.window.part(self.offset as u64, size as u64)?;
        Ok(Part { window: Arc::clone(self.window), buffer })
    }

    /// Returns a signal to this place.
    fn signal(&self, value: u64) -> Result<Signal> {
        signals::check(self.window, self.offset as u64)?;
        Ok(Signal { window: self.window.number, offset: self.offset as u64, value })
    }
}
