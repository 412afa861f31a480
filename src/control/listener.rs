//! Listeners: sockets that accept control connections.

use std::sync::Arc;
use std::time::Duration;

use mio::Token;
use parking_lot::Mutex;

use super::accepted::{Accepted, Guest};
use super::acceptor::{Acceptor, Guests};
use super::channel::Channel;
use super::interfaces::{fitted, reachable};
use super::options::Options;
use super::reactor::{Control, Reactor};
use super::redial_listener::RedialListener;
use super::redial_terms::random;
use super::socket;
use super::sockets::Entry;
use crate::error::{Error, Result};
use crate::proto::{Addr, Handle, Secret};
use crate::warned::Subject;

/// How long an unknown peer may stay silent, even if the handshake's own limit is longer.
const STRANGER_LIMIT: Duration = Duration::from_secs(10);

/// A listener for peers that know its handle.
#[derive(Debug)]
pub struct Listener {
    accepted: Arc<Accepted>,
    reactor: Arc<Reactor>,
    token: Token,
    handle: Handle,
    redials: Option<(Arc<RedialListener>, Duration)>,
}

impl Listener {
    /// Listens on a port that the system chooses.
    pub fn open(control: &Control, options: &Options<'_>) -> Result<Self> {
        let interfaces = control.interfaces()?;
        let addrs = reachable(&interfaces, options)?;
        let failed = |e| Error::io("listening for control connections", e);
        let mut socket = socket::listen(options.family).map_err(failed)?;
        let port = socket.local_addr().map_err(|e| Error::io("getsockname of a listener", e))?.port();
        let secret = Arc::new(Secret::from(random()?));
        let (handle, left) = fitted(&secret, port, &addrs).map_err(|e| Error::Internal(e.to_string()))?;
        let handle = handle.on(control.host);
        if !left.is_empty() && control.warned.once(Subject::HandleFull) {
            log_left_out(&handle, &left);
        }
        let failover = options.failover.as_ref();
        let redials =
            failover.map(|failover| control.redials.get(control, &interfaces, failover)).transpose()?;
        let (redials, here) = redials.unzip();
        let redials = redials.zip(failover.map(|failover| failover.wait));
        let reactor = control.reactor()?;
        let (waiting, refused, seats) = (Mutex::default(), Mutex::default(), Arc::clone(&control.seats));
        let accepted = Arc::new(Accepted { waiting, seats, refused });
        let limits = (options.timeout.min(STRANGER_LIMIT), options.silence);
        let guests = Guests::Connectors { accepted: Arc::clone(&accepted), here: here.map(Box::new) };
        let token = reactor.begin(|sockets| {
            let token = sockets.next_token();
            sockets.register(&mut *socket, token)?;
            let mut acceptor = Acceptor::new(socket, guests, secret, limits);
            acceptor.name(handle.addrs());
            sockets.insert(token, Entry::Listener(acceptor));
            Ok(token)
        });
        let token = token?.map_err(failed)?;
        Ok(Self { accepted, reactor, token, handle, redials })
    }

    /// Returns what a peer needs to connect.
    pub fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Returns the next peer with a whole and valid HELLO, which is the first message of its
    /// channel.
    pub fn try_accept(&self) -> Result<Option<Channel>> {
        let next = self.try_accept_unflushed()?;
        next.iter().for_each(Channel::flush);
        Ok(next)
    }

    /// As [`try_accept`](Self::try_accept), for a caller that flushes the channel soon: WELCOME, and
    /// what the caller sends, are one packet then.
    pub(crate) fn try_accept_unflushed(&self) -> Result<Option<Channel>> {
        let take = |wanted: bool| {
            self.accepted.with(|waiting| {
                let next = waiting.next();
                waiting.wanted = wanted && next.is_none();
                next
            })
        };
        let mut next = take(true);
        if next.is_none() {
            let driven = self.reactor.drive();
            next = take(false);
            driven?;
        }
        let channel = |Guest { token, link, seat }| {
            Channel::new(link, Arc::clone(&self.reactor), token, self.redials.clone()).on(seat)
        };
        Ok(next.map(channel))
    }

    /// Returns why a peer that knows the secret was refused since the last call: its HELLO cannot be
    /// decoded.
    pub fn refused(&self) -> Option<Error> {
        self.accepted.refused().take().map(Error::Protocol)
    }
}

fn log_left_out(handle: &Handle, left: &[Addr]) {
    let [named, left] = [handle.addrs(), left].map(|addrs| {
        let texts: Vec<String> = addrs.iter().map(ToString::to_string).collect();
        texts.join(", ")
    });
    tracing::info!(
        target: "net",
        "this host has more addresses than a handle holds: advertised are {named}; left out are {left}. If a peer reaches \
         only the latter, name them in MPIB_OOB_IF or NCCL_SOCKET_IFNAME"
    );
}

impl Drop for Listener {
    fn drop(&mut self) {
        // If the thread has ended, nothing is left to close.
        let _ = self.reactor.with(|sockets| sockets.remove(self.token));
    }
}
