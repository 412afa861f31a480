//! The background thread, and its table of all sockets.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread;
use std::time::{Duration, Instant};

use mio::event::Source;
use mio::{Events, Interest, Poll, Registry, Token, Waker};
use parking_lot::Mutex;

use super::connector::{Attempt, Connector, Outcome};
use super::half_open::HalfOpen;
use super::link::{Link, LinkStatus};
use super::listener::Acceptor;
use crate::error::{Error, Result};
use crate::warned::Warned;

const WAKER: Token = Token(0);
/// How long a closed channel waits until its peer has read what is left, and has closed too.
const LINGER: Duration = Duration::from_secs(2);

/// The control connections of a process, and the thread that serves them.
#[derive(Debug)]
pub struct Control {
    running: Mutex<Weak<Reactor>>,
    pub(super) warned: Arc<Warned>,
}

impl Control {
    pub(crate) fn new(warned: Arc<Warned>) -> Self {
        Self { running: Mutex::default(), warned }
    }

    /// Returns the running thread, or starts one.
    pub(super) fn reactor(&self) -> Result<Arc<Reactor>> {
        let mut running = self.running.lock();
        // A thread that has ended has reported that to its users; new users get a new one.
        if let Some(reactor) = running.upgrade().filter(|r| r.alive().is_ok()) {
            return Ok(reactor);
        }
        let reactor = Arc::new(Reactor::start()?);
        *running = Arc::downgrade(&reactor);
        Ok(reactor)
    }
}

/// The thread as its users hold it. It ends when the last one is dropped.
#[derive(Debug)]
pub(super) struct Reactor {
    queue: Arc<CommandQueue>,
}

/// What the thread and its users share.
#[derive(Debug)]
struct CommandQueue {
    commands: Mutex<Vec<Command>>,
    waker: Waker,
    registry: Registry,
    tokens: AtomicUsize,
    dead: AtomicBool,
}

/// A command to the thread.
#[derive(Debug)]
pub(super) enum Command {
    /// Serves a listener.
    Listen(Token, Acceptor),
    /// Connects.
    Connect(Token, Connector),
    /// Closes at once.
    Remove(Token),
    /// Closes when all is sent and the peer has closed.
    Linger(Token),
    /// Ends the thread when nothing is left.
    Stop,
}

/// One socket, or group of sockets, that the thread serves.
#[derive(Debug)]
pub(super) enum Entry {
    Listener(Acceptor),
    HalfOpen(HalfOpen),
    Connector(Connector),
    Attempt(Attempt),
    Link(Arc<Link>),
    Lingering(Lingering),
}

/// A connection that has sent its last frame, and waits until the peer has read it and closed.
#[derive(Debug)]
pub(super) struct Lingering {
    link: Arc<Link>,
    /// Bytes that are not sent.
    left: usize,
    until: Instant,
}

impl Reactor {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        Self::spawn().map_err(|e| Error::io("starting the thread of the control connections", e))
    }

    fn spawn() -> io::Result<Self> {
        let poll = Poll::new()?;
        let waker = Waker::new(poll.registry(), WAKER)?;
        let registry = poll.registry().try_clone()?;
        let queue = Arc::new(CommandQueue {
            commands: Mutex::default(),
            waker,
            registry,
            tokens: AtomicUsize::new(WAKER.0 + 1),
            dead: AtomicBool::new(false),
        });
        let reactor = ReactorState {
            queue: Arc::clone(&queue),
            entries: HashMap::new(),
            timers: BinaryHeap::new(),
            again: Vec::new(),
        };
        thread::Builder::new().name("mpib-bootstrap".into()).spawn(move || run(poll, reactor))?;
        Ok(Self { queue })
    }

    /// Returns a token that was never used: a late event must not reach another socket.
    pub(super) fn next_token(&self) -> Token {
        self.queue.next_token()
    }

    /// Registers `source`: its events wake the thread when there is something to accept.
    pub(super) fn register(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        self.queue.registry.register(source, token, Interest::READABLE)
    }

    /// Queues a command and wakes the thread.
    pub(super) fn submit(&self, command: Command) -> Result<()> {
        self.alive()?;
        self.queue.with_commands(|c| c.push(command));
        self.queue.waker.wake().map_err(|e| Error::io("waking the thread of the control connections", e))
    }

    /// Returns an error if the thread has ended. Only a bug in this plugin can end it.
    pub(super) fn alive(&self) -> Result<()> {
        if self.queue.dead.load(Ordering::Acquire) {
            return Err(Error::Internal("the thread of the control connections has ended".into()));
        }
        Ok(())
    }
}

impl Drop for Reactor {
    fn drop(&mut self) {
        // Not joined: lingering channels may take seconds, and the plugin's file is never unmapped.
        let _ = self.submit(Command::Stop);
    }
}

impl CommandQueue {
    fn next_token(&self) -> Token {
        Token(self.tokens.fetch_add(1, Ordering::Relaxed))
    }

    fn with_commands<T>(&self, f: impl FnOnce(&mut Vec<Command>) -> T) -> T {
        f(&mut self.commands.lock())
    }
}

/// The thread's own state.
pub(super) struct ReactorState {
    queue: Arc<CommandQueue>,
    entries: HashMap<Token, Entry>,
    timers: BinaryHeap<Reverse<(Instant, Token)>>,
    /// To be stepped once more, after the others.
    again: Vec<Token>,
}

fn run(mut poll: Poll, mut reactor: ReactorState) {
    let mut events = Events::with_capacity(256);
    let mut stopping = false;
    loop {
        match poll.poll(&mut events, reactor.timeout()) {
            Ok(()) => {}
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Err(e) => {
                return tracing::warn!(target: "net", "the thread of the control connections ends: poll: {e}");
            }
        }
        for command in reactor.queue.with_commands(std::mem::take) {
            stopping |= reactor.execute(command);
        }
        for event in &events {
            reactor.step(event.token());
        }
        for token in std::mem::take(&mut reactor.again) {
            reactor.step(token);
        }
        reactor.run_timers();
        if stopping && reactor.entries.is_empty() {
            return;
        }
    }
}

impl ReactorState {
    /// Returns `true` for [`Command::Stop`].
    fn execute(&mut self, command: Command) -> bool {
        match command {
            Command::Listen(token, acceptor) => {
                self.insert(token, Entry::Listener(acceptor));
                // It was registered before: an event that came meanwhile found no entry.
                self.step(token);
            }
            Command::Connect(token, connector) => {
                self.insert(token, Entry::Connector(connector));
                self.step(token);
            }
            Command::Remove(token) => self.remove(token),
            Command::Linger(token) => {
                if let Some(Entry::Link(link)) = self.entries.remove(&token) {
                    let entry = self.linger(token, link);
                    self.put_back(token, entry);
                } else {
                    self.remove(token);
                }
            }
            Command::Stop => return true,
        }
        false
    }

    fn timeout(&self) -> Option<Duration> {
        if !self.again.is_empty() {
            return Some(Duration::ZERO);
        }
        self.timers.peek().map(|Reverse((at, _))| at.saturating_duration_since(Instant::now()))
    }

    /// Handles an event or a timer of `token`. Neither has any other meaning than "try again".
    fn step(&mut self, token: Token) {
        // Removed while it runs, since it may change the table.
        let Some(entry) = self.entries.remove(&token) else { return };
        let entry = match entry {
            Entry::Listener(mut acceptor) => {
                acceptor.on_ready(token, self);
                Some(Entry::Listener(acceptor))
            }
            Entry::HalfOpen(half_open) => half_open.on_ready(token, self),
            Entry::Connector(connector) => connector.on_timer(token, self),
            Entry::Attempt(attempt) => attempt.on_ready(token, self),
            Entry::Link(link) => (link.on_ready() == LinkStatus::Open).then_some(Entry::Link(link)),
            Entry::Lingering(lingering) => lingering.advance(token, self),
        };
        self.put_back(token, entry);
    }

    fn put_back(&mut self, token: Token, entry: Option<Entry>) {
        if let Some(entry) = entry {
            self.entries.insert(token, entry);
        }
    }

    fn run_timers(&mut self) {
        let now = Instant::now();
        while let Some(Reverse((at, token))) = self.timers.peek().copied() {
            if at > now {
                break;
            }
            self.timers.pop();
            // An established connection has no deadline: this timer is one of its half-open time.
            if !matches!(self.entries.get(&token), Some(Entry::Link(_))) {
                self.step(token);
            }
        }
    }

    pub(super) fn next_token(&self) -> Token {
        self.queue.next_token()
    }

    pub(super) fn register(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        self.queue.registry.register(source, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn reregister(&self, source: &mut impl Source, token: Token) -> io::Result<()> {
        self.queue.registry.reregister(source, token, Interest::READABLE | Interest::WRITABLE)
    }

    pub(super) fn insert(&mut self, token: Token, entry: Entry) {
        self.entries.insert(token, entry);
    }

    /// Steps `token` once more. For an entry that stops before its socket would block: no further
    /// event would come for the rest.
    pub(super) fn again(&mut self, token: Token) {
        self.again.push(token);
    }

    pub(super) fn wake_at(&mut self, at: Instant, token: Token) {
        self.timers.push(Reverse((at, token)));
    }

    /// Closes an entry at once, with all that belongs to it.
    pub(super) fn remove(&mut self, token: Token) {
        match self.entries.remove(&token) {
            Some(Entry::Listener(acceptor)) => acceptor.close(self),
            Some(Entry::Connector(connector)) => connector.close(self),
            Some(Entry::Link(link)) => link.abort(),
            Some(Entry::HalfOpen(_) | Entry::Attempt(_) | Entry::Lingering(_)) | None => {}
        }
    }

    pub(super) fn acceptor(&mut self, token: Token) -> Option<&mut Acceptor> {
        match self.entries.get_mut(&token) {
            Some(Entry::Listener(acceptor)) => Some(acceptor),
            _ => None,
        }
    }

    pub(super) fn attempt_state(&self, token: Token) -> Option<(SocketAddr, String)> {
        match self.entries.get(&token) {
            Some(Entry::Attempt(attempt)) => Some(attempt.describe()),
            _ => None,
        }
    }

    /// Passes the result of an attempt to its connector.
    pub(super) fn attempt_ended(
        &mut self,
        connector: Token,
        attempt: Token,
        addr: SocketAddr,
        result: Outcome,
    ) {
        if let Some(Entry::Connector(c)) = self.entries.remove(&connector) {
            let entry = c.on_result(connector, attempt, addr, result, self);
            self.put_back(connector, entry);
        }
    }

    /// Keeps `link` until the peer has read its last frame.
    pub(super) fn linger(&mut self, token: Token, link: Arc<Link>) -> Option<Entry> {
        let lingering = Lingering { link, left: usize::MAX, until: Instant::now() };
        lingering.advance(token, self)
    }
}

impl Lingering {
    /// Extends the time whenever the peer has read something.
    fn advance(mut self, me: Token, reactor: &mut ReactorState) -> Option<Entry> {
        if self.link.discard() == LinkStatus::Closed {
            self.link.abort();
            return None;
        }
        let left = self.link.unsent();
        if left < self.left {
            self.left = left;
            self.until = Instant::now() + LINGER;
            reactor.wake_at(self.until, me);
        }
        if Instant::now() >= self.until {
            self.link.abort();
            return None;
        }
        Some(Entry::Lingering(self))
    }
}

impl Drop for ReactorState {
    /// Runs also when the thread panics: nothing waits forever.
    fn drop(&mut self) {
        self.queue.dead.store(true, Ordering::Release);
        for (_, entry) in self.entries.drain() {
            if let Entry::Link(link) = entry {
                link.fail("the thread of the control connections has ended".into());
            }
        }
    }
}
