//! Listening ends.

use std::collections::VecDeque;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::time::{Duration, Instant};

use mio::Token;
use mio::net::TcpListener;

use super::channel::Channel;
use super::half_open::HalfOpen;
use super::interfaces::{fitted, interfaces, reachable};
use super::link::Link;
use super::reactor::{Command, Core, Entry, Reactor};
use super::{Options, socket};
use crate::error::{Error, Result};
use crate::proto::{Addr, Handle, Nonce};

/// Connections of a listener that have not shown a HELLO, at most; the oldest makes room.
const HALF_OPEN_MAX: usize = 64;
/// Channels that may wait for `try_accept`, and tokens that are remembered.
const WAITING_MAX: usize = 64;
/// Connections accepted before others have their turn.
const ACCEPT_TURN: usize = 64;
/// How long to wait when the process or system has no descriptor or memory left.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// A stranger may stay silent for this long, whatever the handshake's own limit.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// A listening end, open to those who know its handle.
#[derive(Debug)]
pub struct Listener {
    shared: Arc<Shared>,
    reactor: Arc<Reactor>,
    token: Token,
    handle: Handle,
}

/// Channels that have shown their HELLO.
#[derive(Debug, Default)]
struct Shared {
    waiting: Mutex<VecDeque<(Token, Arc<Link>)>>,
    /// Why the last one that knew the nonce has no channel.
    refused: Mutex<Option<String>>,
}

impl Shared {
    fn with<T>(&self, f: impl FnOnce(&mut VecDeque<(Token, Arc<Link>)>) -> T) -> T {
        f(&mut self.waiting.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn refused(&self) -> MutexGuard<'_, Option<String>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Listener {
    /// Listens on a port of the system's choice.
    pub fn open(options: &Options) -> Result<Self> {
        let addrs = reachable(&interfaces()?, options)?;
        let failed = |e| Error::io("listening for control connections", e);
        let mut socket = socket::listen(options.family).map_err(failed)?;
        let port = socket.local_addr().map_err(|e| Error::io("getsockname of a listener", e))?.port();
        let mut nonce = Nonce::default();
        getrandom::fill(&mut nonce).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
        let (handle, left) = fitted(nonce, port, &addrs).map_err(|e| Error::Internal(e.to_string()))?;
        tell_of_those_left_out(&handle, &left);
        let reactor = Reactor::get()?;
        let shared = Arc::new(Shared::default());
        let token = reactor.next_token();
        let limit = options.timeout.min(STRANGER_LIMIT);
        reactor.register(&mut socket, token).map_err(failed)?;
        reactor.tell(Command::Listen(
            token,
            Acceptor::new(socket, Arc::clone(&shared), nonce, (limit, options.silence)),
        ))?;
        Ok(Self { shared, reactor, token, handle })
    }

    /// What peers must be given.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// The next peer that has shown a whole and right HELLO, which is the first message of its channel.
    pub fn try_accept(&self) -> Result<Option<Channel>> {
        match self.shared.with(VecDeque::pop_front) {
            Some((token, link)) => Ok(Some(Channel::new(link, Arc::clone(&self.reactor), token))),
            None => self.reactor.alive().map(|()| None),
        }
    }

    /// Why a peer that knows the nonce was refused since this was asked last: its HELLO cannot be understood.
    pub fn refused(&self) -> Option<Error> {
        self.shared.refused().take().map(Error::Protocol)
    }
}

/// Once in a process: its listeners have the same addresses.
fn tell_of_those_left_out(handle: &Handle, left: &[Addr]) {
    static ONCE: Once = Once::new();
    let tell = || {
        let [named, left] = [handle.addrs(), left].map(|addrs| {
            let texts: Vec<String> = addrs.iter().map(ToString::to_string).collect();
            texts.join(", ")
        });
        tracing::info!(
            target: "net",
            "this host has more addresses than peers can be told, who are told of {named}; left out are {left}: a peer that reaches \
             these only needs them in MPIB_OOB_IF or NCCL_SOCKET_IFNAME"
        );
    };
    if !left.is_empty() {
        ONCE.call_once(tell);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        // The thread may have ended, and then there is nothing left to close.
        let _ = self.reactor.tell(Command::Remove(self.token));
    }
}

/// The thread's part of a listener.
#[derive(Debug)]
pub(super) struct Acceptor {
    pub(super) socket: TcpListener,
    shared: Arc<Shared>,
    nonce: Nonce,
    /// How long a stranger may take.
    limit: Duration,
    /// How long a peer's host may.
    silence: Duration,
    half_open: VecDeque<Token>,
    /// Of connectors that have been welcomed.
    tokens: VecDeque<Nonce>,
    exhausted: bool,
}

impl Acceptor {
    fn new(
        socket: TcpListener,
        shared: Arc<Shared>,
        nonce: Nonce,
        (limit, silence): (Duration, Duration),
    ) -> Self {
        Self {
            socket,
            shared,
            nonce,
            limit,
            silence,
            half_open: VecDeque::new(),
            tokens: VecDeque::new(),
            exhausted: false,
        }
    }

    /// Takes what waits in the backlog.
    pub(super) fn on_ready(&mut self, me: Token, core: &mut Core) {
        for _ in 0..ACCEPT_TURN {
            let (mut stream, addr) = match self.socket.accept() {
                Ok(accepted) => accepted,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => {
                    continue;
                }
                Err(e) => {
                    if !self.exhausted {
                        tracing::warn!(target: "net", "accepting control connections fails, trying on: {e} (raise ulimit -n?)");
                    }
                    self.exhausted = true;
                    return core.wake_at(Instant::now() + EXHAUSTED_PAUSE, me);
                }
            };
            self.exhausted = false;
            let addr = socket::canonical(addr);
            let token = core.next_token();
            if let Err(e) =
                socket::tune(&stream, self.silence).and_then(|()| core.register(&mut stream, token))
            {
                tracing::debug!(target: "net", "dropped {addr}: {e}");
                continue;
            }
            if self.half_open.len() == HALF_OPEN_MAX {
                let oldest = self.half_open.pop_front();
                oldest.into_iter().for_each(|token| core.remove(token));
            }
            self.half_open.push_back(token);
            let until = Instant::now() + self.limit;
            core.wake_at(until, token);
            core.insert(token, Entry::HalfOpen(HalfOpen::new(me, stream, addr, self.nonce, until)));
        }
        // More may wait; the others have their turn first.
        core.again(me);
    }

    /// A connection stopped being half open.
    pub(super) fn forget(&mut self, token: Token) {
        self.half_open.retain(|t| *t != token);
    }

    /// A whole HELLO with the right nonce has come. `false` for a second try of one connector, or where too many wait.
    pub(super) fn admit(&mut self, connector: Nonce) -> bool {
        if self.tokens.contains(&connector) || self.shared.with(|w| w.len()) >= WAITING_MAX {
            return false;
        }
        if self.tokens.len() == WAITING_MAX {
            self.tokens.pop_front();
        }
        self.tokens.push_back(connector);
        true
    }

    /// A peer that knows the nonce has been told why it cannot be talked to.
    pub(super) fn refuse(&self, why: String) {
        *self.shared.refused() = Some(why);
    }

    /// Gives the channel to `try_accept`.
    pub(super) fn hand_over(&self, token: Token, link: Arc<Link>) {
        self.shared.with(|w| w.push_back((token, link)));
    }

    /// The listener is gone: so is what nobody will accept.
    pub(super) fn close(self, core: &mut Core) {
        let waiting = self.shared.with(std::mem::take);
        for token in self.half_open.into_iter().chain(waiting.into_iter().map(|w| w.0)) {
            core.remove(token);
        }
    }
}
