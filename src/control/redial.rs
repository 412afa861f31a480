//! What both ends need to replace a broken TCP connection: the process's listener for re-dials, and
//! what the ends of one connection know of each other.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mio::Token;
use parking_lot::Mutex;

use super::interfaces::{Interface, fitted, reachable};
use super::listener::Acceptor;
use super::options::{Failover, Options};
use super::reactor::{Control, Reactor};
use super::socket;
use super::sockets::Entry;
use crate::error::{Error, Result};
use crate::proto::{Callback, Handle, Message, Nonce, Redial, Role};

/// How long a peer may take to send its REDIAL, and to continue after WELCOME.
const LIMIT: Duration = Duration::from_secs(10);

/// By what a connection of this process is found: the token of its HELLO, and this end's role. Both
/// ends may be in one process.
pub(super) type RedialId = (Nonce, Role);

/// How one connection is dialled again.
#[derive(Debug, Clone)]
pub(super) struct RedialTerms {
    /// This end.
    pub(super) role: Role,
    /// The token of the connection's HELLO.
    pub(super) token: Nonce,
    /// Where this end is reached.
    here: Callback,
    /// Where the peer is reached; `None` until it is known, and if the peer has no failover.
    peer: Option<Callback>,
    /// How long the peer's host may be silent.
    pub(super) silence: Duration,
}

impl RedialTerms {
    /// Makes the terms of a new connection, with a random key.
    pub(super) fn new(role: Role, token: Nonce, handle: Handle, silence: Duration) -> Result<Self> {
        let here = Callback { handle, key: random()? };
        Ok(Self { role, token, here, peer: None, silence })
    }

    /// Returns the frame by which the peer learns where this end is reached.
    pub(super) fn callback(&self) -> Message {
        Message::Callback(self.here.clone())
    }

    pub(super) fn set_peer(&mut self, callback: Callback) {
        self.peer = Some(callback);
    }

    /// Returns whether both ends accept re-dials.
    pub(super) fn is_agreed(&self) -> bool {
        self.peer.is_some()
    }

    pub(super) fn id(&self) -> RedialId {
        (self.token, self.role)
    }

    /// Returns the key that a re-dial of the peer must contain.
    pub(super) fn key(&self) -> &Nonce {
        &self.here.key
    }

    /// Returns the peer's addresses, and the REDIAL for its listener.
    pub(super) fn dial(&self) -> Option<(&Handle, Message)> {
        let Callback { handle, key } = self.peer.as_ref()?;
        let redial = Redial { nonce: *handle.nonce(), token: self.token, key: *key, from: self.role };
        Some((handle, Message::Redial(redial)))
    }
}

/// The listener for re-dials, which a process opens with the first connection that needs it and
/// closes with the last.
///
/// Channels and listeners hold it, and sockets never do: its drop locks the table of the sockets.
#[derive(Debug)]
pub(super) struct RedialListener {
    reactor: Arc<Reactor>,
    token: Token,
    nonce: Nonce,
    port: u16,
}

/// The listener of a process.
#[derive(Debug, Default)]
pub(super) struct SharedListener(Mutex<Weak<RedialListener>>);

impl SharedListener {
    /// Returns the listener, and the handle by which peers reach it.
    pub(super) fn get(
        &self,
        control: &Control,
        interfaces: &[Interface],
        failover: &Failover,
    ) -> Result<(Arc<RedialListener>, Handle)> {
        let mut shared = self.0.lock();
        let listener = match shared.upgrade() {
            Some(listener) if listener.reactor.alive().is_ok() => listener,
            _ => {
                let new = Arc::new(RedialListener::open(control.reactor()?, failover)?);
                *shared = Arc::downgrade(&new);
                new
            }
        };
        drop(shared);
        let addrs = reachable(interfaces, &Options::of_redials(failover))?;
        let (handle, _) = fitted(listener.nonce, listener.port, &addrs)
            .map_err(|e| Error::Internal(format!("the handle for re-dials: {e}")))?;
        Ok((listener, handle))
    }
}

impl RedialListener {
    fn open(reactor: Arc<Reactor>, failover: &Failover) -> Result<Self> {
        let failed = |e| Error::io("listening for control connections that are dialled again", e);
        let mut socket = socket::listen(failover.family).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        let nonce = random()?;
        let token = reactor.with(|sockets| {
            let token = sockets.next_token();
            sockets.register(&mut *socket, token)?;
            sockets.insert(token, Entry::Listener(Acceptor::of_redials(socket, nonce, LIMIT)));
            Ok(token)
        });
        Ok(Self { token: token?.map_err(failed)?, reactor, nonce, port })
    }
}

impl Drop for RedialListener {
    fn drop(&mut self) {
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.remove(self.token));
    }
}

/// Returns bytes that nobody can guess.
pub(super) fn random() -> Result<Nonce> {
    let mut nonce = Nonce::default();
    getrandom::fill(&mut nonce).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
    Ok(nonce)
}
