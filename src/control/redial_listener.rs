//! The process's listener for connections that replace broken ones.

use std::sync::{Arc, Weak};
use std::time::Duration;

use mio::Token;
use parking_lot::Mutex;

use super::acceptor::Acceptor;
use super::beginnings::Beginnings;
use super::interfaces::{Interface, fitted, reachable};
use super::options::{Failover, Options};
use super::reactor::{Control, Reactor};
use super::redial_terms::{Here, random};
use super::socket;
use super::sockets::Entry;
use crate::error::{Error, Result};
use crate::proto::{Addr, Secret};

/// How long a peer may take to send its REDIAL, and to continue after WELCOME.
const LIMIT: Duration = Duration::from_secs(10);

/// The listener for re-dials, which a process opens with the first connection that needs it and
/// closes with the last.
///
/// Channels and listeners hold it, and sockets never do: its drop locks the table of the sockets.
#[derive(Debug)]
pub(super) struct RedialListener {
    reactor: Arc<Reactor>,
    token: Token,
    secret: Arc<Secret>,
    port: u16,
    /// The addresses to which connections may come.
    named: Mutex<Vec<Addr>>,
    beginnings: Arc<Beginnings>,
}

/// The listener of a process.
#[derive(Debug, Default)]
pub(super) struct SharedListener(Mutex<Weak<RedialListener>>);

impl SharedListener {
    /// Returns the listener, and where peers reach it.
    pub(super) fn get(
        &self,
        control: &Control,
        interfaces: &[Interface],
        failover: &Failover,
    ) -> Result<(Arc<RedialListener>, Here)> {
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
        let (handle, _) = fitted(&listener.secret, listener.port, &addrs)
            .map_err(|e| Error::Internal(format!("the handle for re-dials: {e}")))?;
        let mut named = listener.named.lock();
        if *named != handle.addrs() {
            // Connections may come to these addresses from now on.
            let token = listener.token;
            listener.reactor.with(|sockets| {
                sockets.acceptor(token).into_iter().for_each(|acceptor| acceptor.name(handle.addrs()));
            })?;
            *named = handle.addrs().to_vec();
        }
        drop(named);
        let beginnings = Arc::clone(&listener.beginnings);
        Ok((listener, Here { handle, beginnings }))
    }
}

impl RedialListener {
    fn open(reactor: Arc<Reactor>, failover: &Failover) -> Result<Self> {
        let failed = |e| Error::io("listening for control connections that are dialled again", e);
        let mut socket = socket::listen(failover.family).map_err(failed)?;
        let port = socket.local_addr().map_err(failed)?.port();
        let secret = Arc::new(Secret::from(random()?));
        let beginnings = Arc::<Beginnings>::default();
        let (known, running) = (Arc::clone(&secret), Arc::clone(&beginnings));
        let token = reactor.with(|sockets| {
            let token = sockets.next_token();
            sockets.register(&mut *socket, token)?;
            sockets.insert(token, Entry::Listener(Acceptor::of_redials(socket, known, running, LIMIT)));
            Ok(token)
        });
        let (token, named) = (token?.map_err(failed)?, Mutex::default());
        Ok(Self { token, reactor, secret, port, named, beginnings })
    }
}

impl Drop for RedialListener {
    fn drop(&mut self) {
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.remove(self.token));
    }
}
