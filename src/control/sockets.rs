//! The table of all sockets of control connections.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Registry, Token};

use super::bounds::HalfOpenList;
use super::channel::ChannelState;
use super::connector::{Attempt, Connector, Outcome};
use super::half_open::HalfOpen;
use super::link::{Call, Link};
use super::listener::Acceptor;
use super::redial::{RedialId, Redialer, Redialled};
use super::wire::{Lingering, Wire};

/// The token by which the thread is woken.
pub(super) const WAKER: Token = Token(0);
/// The token of all sockets of handshakes together.
pub(super) const HANDSHAKES: Token = Token(1);
pub(super) const BOTH: Interest = Interest::READABLE.add(Interest::WRITABLE);

/// The distance of the times at which timers are due.
const TICK: Duration = Duration::from_millis(5);

/// Where frames are counted for the statistics.
pub(crate) trait FrameCounts: fmt::Debug + Send + Sync {
    /// Counts a frame with a wrong tag.
    fn forged(&self);
}

/// One socket, or group of sockets.
#[derive(Debug)]
pub(super) enum Entry {
    Listener(Acceptor),
    HalfOpen(HalfOpen),
    Connector(Connector),
    Attempt(Attempt),
    Link(Arc<Link>),
    /// A broken connection that is dialled again.
    Redialer(Redialer),
    /// An accepted TCP connection that is to replace a broken one.
    Redialled(Redialled),
    Lingering(Lingering),
}

impl Entry {
    /// Returns the connection whose owner has a channel of it, and which nothing else serves.
    fn link(&self) -> Option<&Arc<Link>> {
        match self {
            Self::Link(link) => Some(link),
            Self::Connector(connector) => Some(connector.link()),
            Self::Redialer(redialer) => Some(redialer.link()),
            _ => None,
        }
    }
}

/// All sockets.
pub(super) struct Sockets {
    /// The sockets of listeners and handshakes.
    pub(super) handshakes: Poll,
    events: Events,
    /// The sockets of established connections. The thread waits for them.
    pub(super) established: Registry,
    pub(super) entries: HashMap<Token, Entry>,
    /// The connection that is served. It is not in the table then, and a panic must fail it, too.
    in_hand: Option<Arc<Link>>,
    timers: BinaryHeap<Reverse<(Instant, Token)>>,
    /// From which ticks count.
    start: Instant,
    /// Entries to be stepped once more, after the others.
    again: Vec<Token>,
    /// The ready entries while they are stepped.
    ready: Vec<Token>,
    last: usize,
    /// The connections of this process that have not ended.
    redials: HashMap<RedialId, Token>,
    /// Calls that notify the owners of channels.
    calls: Vec<Call>,
    pub(super) half_open: HalfOpenList,
    /// Where frames with a wrong tag are counted.
    counts: Arc<dyn FrameCounts>,
}

impl Sockets {
    pub(super) fn new(established: Registry, counts: Arc<dyn FrameCounts>) -> io::Result<Self> {
        Ok(Self {
            handshakes: Poll::new()?,
            events: Events::with_capacity(64),
            established,
            entries: HashMap::new(),
            in_hand: None,
            timers: BinaryHeap::new(),
            start: Instant::now(),
            again: Vec::new(),
            ready: Vec::new(),
            last: HANDSHAKES.0,
            redials: HashMap::new(),
            calls: Vec::new(),
            half_open: HalfOpenList::of_process(),
            counts,
        })
    }

    /// Begins or ends to wake the thread by events of handshakes.
    pub(super) fn watch_handshakes(&self, watch: bool) -> io::Result<()> {
        let fd = self.handshakes.as_raw_fd();
        match watch {
            true => self.established.register(&mut SourceFd(&fd), HANDSHAKES, Interest::READABLE),
            false => self.established.deregister(&mut SourceFd(&fd)),
        }
    }

    /// Steps the sockets of handshakes that are ready. Returns whether there were any.
    pub(super) fn serve_handshakes(&mut self) -> bool {
        // An interrupted call finds the events the next time.
        let polled = self.handshakes.poll(&mut self.events, Some(Duration::ZERO));
        let mut ready = std::mem::take(&mut self.ready);
        ready.clear();
        if polled.is_ok() {
            ready.extend(self.events.iter().map(|event| event.token()));
        }
        ready.append(&mut self.again);
        ready.iter().for_each(|token| self.step(*token));
        let any = !ready.is_empty();
        self.ready = ready;
        if self.next_timer().is_some() {
            self.run_timers(Instant::now());
        }
        any
    }

    /// Handles an event or a timer of `token`. Neither has any other meaning than "try again".
    pub(super) fn step(&mut self, token: Token) {
        let Some(entry) = self.take(token) else { return };
        let entry = match entry {
            Entry::Listener(mut acceptor) => {
                let whole = acceptor.on_ready(token, self);
                self.entries.insert(token, Entry::Listener(acceptor));
                return whole.into_iter().for_each(|token| self.step(token));
            }
            Entry::HalfOpen(half_open) => half_open.on_ready(token, self),
            Entry::Connector(connector) => connector.on_timer(token, self),
            Entry::Attempt(attempt) => attempt.on_ready(self),
            Entry::Link(link) => self.step_link(token, link),
            Entry::Redialer(redialer) => redialer.on_timer(token, self),
            Entry::Redialled(redialled) => redialled.on_ready(token, self),
            Entry::Lingering(lingering) => lingering.advance(token, self),
        };
        self.put_back(token, entry);
    }

    pub(super) fn step_link(&mut self, token: Token, link: Arc<Link>) -> Option<Entry> {
        let state = link.on_ready();
        if link.take_forged() {
            self.counts.forged();
        }
        link.take_calls(&mut self.calls);
        match state {
            ChannelState::Open => Some(Entry::Link(link)),
            ChannelState::Broken => Redialer::start(link, token, self),
            ChannelState::ByePeer | ChannelState::Lost => {
                self.ended(token, &link);
                None
            }
        }
    }

    /// Takes an entry out of the table while it is served: that may change the table.
    pub(super) fn take(&mut self, token: Token) -> Option<Entry> {
        let entry = self.entries.remove(&token)?;
        self.in_hand = entry.link().cloned();
        Some(entry)
    }

    /// Puts an entry back that was served, unless it has ended.
    pub(super) fn put_back(&mut self, token: Token, entry: Option<Entry>) {
        self.in_hand = None;
        if let Some(entry) = entry {
            self.entries.insert(token, entry);
        }
    }

    /// Steps the entries whose timers are due.
    pub(super) fn run_timers(&mut self, now: Instant) {
        while let Some(Reverse((at, token))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            match self.entries.get(&token) {
                // Its PROOF may be due. An established connection has no deadline: this timer may be
                // one of its half-open time, too.
                Some(Entry::Link(link)) => link.flush(),
                _ => self.step(token),
            }
        }
    }

    /// Returns when the next timer is due.
    pub(super) fn next_timer(&self) -> Option<Instant> {
        self.timers.peek().map(|Reverse((at, _))| *at)
    }

    /// Returns whether an entry has to be stepped without an event.
    pub(super) fn is_behind(&self) -> bool {
        !self.again.is_empty()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns a token that was never used: a late event must not reach another socket.
    pub(super) fn next_token(&mut self) -> Token {
        self.last += 1;
        Token(self.last)
    }

    /// Adds a socket of a handshake.
    pub(super) fn register(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        self.handshakes.registry().register(source, token, BOTH)
    }

    /// Gives a socket of a handshake another token.
    pub(super) fn reregister(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        self.handshakes.registry().reregister(source, token, BOTH)
    }

    pub(super) fn insert(&mut self, token: Token, entry: Entry) {
        self.entries.insert(token, entry);
    }

    /// Steps `token` once more. For an entry that stops before its socket would block: no further
    /// event would come for the rest.
    pub(super) fn again(&mut self, token: Token) {
        self.again.push(token);
    }

    /// Steps `token` at `at`, or up to [`TICK`] later: most timers turn out not to be needed, and the
    /// thread wakes up once for all of a tick.
    pub(super) fn wake_at(&mut self, at: Instant, token: Token) {
        let passed = at.saturating_duration_since(self.start).as_nanos();
        let ticks = passed.div_ceil(TICK.as_nanos());
        let since = Duration::from_nanos(u64::try_from(ticks * TICK.as_nanos()).unwrap_or(u64::MAX));
        self.timers.push(Reverse((self.start + since, token)));
    }

    /// Moves a connection whose handshake is over to the thread.
    pub(super) fn hand_over(&mut self, token: Token) {
        let Some(Entry::Link(link)) = self.entries.get(&token) else { return };
        let moved = link.with_wire(|wire| {
            self.handshakes.registry().deregister(&mut *wire.stream)?;
            let interest = if wire.unsent() == 0 { Interest::READABLE } else { BOTH };
            self.established.register(&mut *wire.stream, token, interest)
        });
        match moved {
            Ok(()) => link.set_established(),
            Err(e) => link.fail(format!("epoll_ctl failed: {e}")),
        }
    }

    /// Makes a connection known to peers that dial it again.
    pub(super) fn began(&mut self, channel: Token, link: &Link) {
        if let Some(terms) = link.redial_terms() {
            self.redials.insert(terms.id(), channel);
        }
    }

    /// Finds a connection that has not ended, and the token of its channel.
    pub(super) fn unended(&self, id: &RedialId) -> Option<(Token, Arc<Link>)> {
        let channel = *self.redials.get(id)?;
        let link = self.entries.get(&channel)?.link()?;
        matches!(link.state(), ChannelState::Open | ChannelState::Broken).then(|| (channel, Arc::clone(link)))
    }

    /// Drops what is known of a connection that has ended, and notifies its owner.
    pub(super) fn ended(&mut self, channel: Token, link: &Link) {
        link.take_calls(&mut self.calls);
        let id = link.redial_terms().map(|terms| terms.id());
        if let Some(id) = id.filter(|id| self.redials.get(id) == Some(&channel)) {
            self.redials.remove(&id);
        }
    }

    /// Counts an accepted connection as half open, and closes another one for it if there are too
    /// many.
    pub(super) fn add_half_open(&mut self, token: Token, listener: Token, from: SocketAddr) {
        if let Some(closed) = self.half_open.add(token, listener, from.ip()) {
            self.remove(closed);
        }
    }

    pub(super) fn has_news(&self) -> bool {
        !self.calls.is_empty()
    }

    /// Returns the calls that notify the owners of channels, to be made without the lock.
    pub(super) fn take_calls(&mut self) -> Vec<Call> {
        std::mem::take(&mut self.calls)
    }

    /// Closes an entry at once, with all that belongs to it.
    pub(super) fn remove(&mut self, token: Token) {
        match self.entries.remove(&token) {
            Some(Entry::Listener(acceptor)) => acceptor.close(token, self),
            Some(Entry::Connector(connector)) => {
                self.ended(token, connector.link());
                connector.close(self);
            }
            Some(Entry::Link(link)) => {
                self.ended(token, &link);
                link.leave().into_iter().for_each(Wire::hang_up);
            }
            Some(Entry::Redialer(redialer)) => {
                self.ended(token, redialer.link());
                redialer.close(self);
            }
            Some(Entry::HalfOpen(_) | Entry::Attempt(_) | Entry::Redialled(_) | Entry::Lingering(_))
            | None => self.half_open.remove(token),
        }
    }

    pub(super) fn acceptor(&mut self, token: Token) -> Option<&mut Acceptor> {
        match self.entries.get_mut(&token) {
            Some(Entry::Listener(acceptor)) => Some(acceptor),
            _ => None,
        }
    }

    /// Describes an attempt for the error of a connector that gives up.
    pub(super) fn attempt_state(&self, token: Token) -> &'static str {
        match self.entries.get(&token) {
            Some(Entry::Attempt(attempt)) if attempt.is_connected() => "connected, no answer",
            _ => "no connection yet",
        }
    }

    /// Passes the result of an attempt to its owner.
    pub(super) fn attempt_ended(&mut self, owner: Token, addr: SocketAddr, result: Outcome) {
        let entry = match self.take(owner) {
            Some(Entry::Connector(connector)) => connector.on_result(owner, addr, result, self),
            Some(Entry::Redialer(redialer)) => redialer.on_result(owner, addr, result, self),
            other => other,
        };
        self.put_back(owner, entry);
    }

    /// Ends all connections: nothing serves them any more.
    pub(super) fn fail_all(&mut self) {
        let held = self.entries.drain().filter_map(|(_, entry)| entry.link().cloned());
        for link in held.chain(self.in_hand.take()) {
            link.fail("the thread of the control connections has ended".into());
            link.take_calls(&mut self.calls);
        }
    }
}

impl fmt::Debug for Sockets {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sockets").field("entries", &self.entries.len()).finish_non_exhaustive()
    }
}
