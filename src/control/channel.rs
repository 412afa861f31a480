//! The owner's end of a control connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::Token;

use super::Control;
use super::connector::Connector;
use super::interfaces::{in_groups, interfaces};
use super::link::{ChannelState, Link};
use super::reactor::{Command, Reactor};
use crate::error::{Error, Result};
use crate::proto::{Handle, Hello, Message, Nonce};

/// A control connection. Dropped without [`close`](Self::close), it ends without a BYE, which the peer sees as a loss.
#[derive(Debug)]
pub struct Channel {
    link: Arc<Link>,
    reactor: Arc<Reactor>,
    token: Token,
    timeout: Duration,
    closed: bool,
}

impl Channel {
    pub(super) fn new(link: Arc<Link>, reactor: Arc<Reactor>, token: Token, timeout: Duration) -> Self {
        Self { link, reactor, token, timeout, closed: false }
    }

    /// Begins to connect to the listener behind `handle`, with `hello` as the first message; its nonce and token are
    /// filled in. Returns at once. [`try_recv`](Self::try_recv) tells a failure, at the latest after `timeout`,
    /// and else the listener's own HELLO. Messages may be sent from now on; they wait. A peer whose host is not heard of for `silence`
    /// counts as gone.
    pub fn connect(
        control: &Control,
        handle: &Handle,
        hello: &Hello,
        timeout: Duration,
        silence: Duration,
    ) -> Result<Self> {
        let local: Vec<_> = interfaces()?.into_iter().map(|i| i.addr).collect();
        let mut token = Nonce::default();
        getrandom::fill(&mut token).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
        let hello = Message::Hello(Hello { nonce: *handle.nonce(), token, ..hello.clone() });
        let frame = hello.encode().map_err(|e| Error::Internal(format!("HELLO to send: {e}")))?;
        let reactor = control.reactor()?;
        let link = Arc::new(Link::pending());
        let (groups, times) = (in_groups(handle, &local), (timeout, silence));
        let connector = Connector::new(Arc::clone(&link), groups, frame, token, times);
        let id = reactor.next_token();
        reactor.submit(Command::Connect(id, connector))?;
        Ok(Self::new(link, reactor, id, timeout))
    }

    /// Sends, or queues what the socket does not take now. An error means that the peer is gone.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.link.send(message)
    }

    /// The next message; `None` if none has come. All that came before the end of the connection is given first. Then an
    /// error that names the peer and the step: closed, lost, or the step's time is up.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        match self.link.try_recv()? {
            Some(message) => Ok(Some(message)),
            // Nothing will ever come from a thread that has ended.
            None => self.reactor.alive().map(|()| None),
        }
    }

    /// What the owner now waits for, in words, and for how long at most: from now on [`try_recv`](Self::try_recv) tells
    /// when the time of the handshake's settings is over.
    pub fn expect(&self, step: &'static str) {
        self.link.expect(step, self.timeout);
    }

    /// As [`expect`](Self::expect), and `more` beyond the time of the settings.
    pub fn expect_later(&self, step: &'static str, more: Duration) {
        self.link.expect(step, self.timeout.saturating_add(more));
    }

    /// As [`expect`](Self::expect), for what is due whenever the peer comes to it: that the time of the settings is over again is a line in the log,
    /// and only the loss of the peer an error.
    pub fn expect_whenever(&self, step: &'static str) {
        self.link.expect_whenever(step, self.timeout);
    }

    /// The handshake is over: no message is due.
    pub fn settled(&self) {
        self.link.settled();
    }

    /// One atomic load, for the data path. Tells of a BYE or a loss also while earlier messages wait to be read.
    pub fn state(&self) -> ChannelState {
        self.link.state()
    }

    /// The peer's address; `None` until connected.
    pub fn peer(&self) -> Option<SocketAddr> {
        self.link.peer()
    }

    /// This end's address; `None` until connected.
    pub fn local(&self) -> Option<SocketAddr> {
        self.link.local()
    }

    /// The peer for a log: address, and host and process once known.
    pub fn describe(&self) -> String {
        self.link.describe()
    }

    /// Ends it in good order: everything sent before, and a BYE, go out even if the process keeps nothing of the
    /// channel; the thread waits a while for the peer to take it and to close, too. A channel that is not connected yet just ends.
    pub fn close(mut self) {
        self.closed = true;
        self.link.send_bye();
        self.submit(Command::Linger(self.token));
    }

    /// The thread may have ended, and then there is nobody to tell.
    fn submit(&self, command: Command) {
        let _ = self.reactor.submit(command);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.closed {
            self.submit(Command::Remove(self.token));
        }
    }
}
