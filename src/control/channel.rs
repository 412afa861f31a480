//! The owner's end of a control connection.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::Token;

use super::connector::Connector;
use super::interfaces::{in_groups, interfaces};
use super::link::{Link, State};
use super::reactor::{Command, Reactor};
use crate::error::{Error, Result};
use crate::proto::{Handle, Hello, Message, Nonce};

/// A control connection. Dropped without [`close`](Self::close), it ends without a BYE, which the peer sees as a loss.
#[derive(Debug)]
pub struct Channel {
    link: Arc<Link>,
    reactor: Arc<Reactor>,
    token: Token,
    closed: bool,
}

impl Channel {
    pub(super) fn new(link: Arc<Link>, reactor: Arc<Reactor>, token: Token) -> Self {
        Self { link, reactor, token, closed: false }
    }

    /// Begins to connect to the listener behind `handle`, with `hello` as the first message; its nonce and token are
    /// filled in. Returns at once. [`try_recv`](Self::try_recv) tells a failure, at the latest after `timeout`,
    /// and else the listener's own HELLO. Messages may be sent from now on; they wait. A peer whose host is not heard of for `silence`
    /// counts as gone.
    pub fn connect(handle: &Handle, hello: &Hello, timeout: Duration, silence: Duration) -> Result<Self> {
        let local: Vec<_> = interfaces()?.into_iter().map(|i| i.addr).collect();
        let mut token = Nonce::default();
        getrandom::fill(&mut token).map_err(|e| Error::Internal(format!("getrandom: {e}")))?;
        let hello = Message::Hello(Hello { nonce: *handle.nonce(), token, ..hello.clone() });
        let frame = hello.encode().map_err(|e| Error::Internal(format!("HELLO to send: {e}")))?;
        let reactor = Reactor::get()?;
        let link = Arc::new(Link::pending());
        let (groups, times) = (in_groups(handle, &local), (timeout, silence));
        let connector = Connector::new(Arc::clone(&link), groups, frame, token, times);
        let id = reactor.next_token();
        reactor.tell(Command::Connect(id, connector))?;
        Ok(Self::new(link, reactor, id))
    }

    /// Sends, or queues what the socket does not take now. An error means that the peer is gone.
    pub fn send(&self, message: &Message) -> Result<()> {
        self.link.send(message)
    }

    /// The next message; `None` if none has come. All that came before the end of the connection is given first. Then an
    /// error that names the peer and the step: closed or lost.
    pub fn try_recv(&self) -> Result<Option<Message>> {
        match self.link.try_recv()? {
            Some(message) => Ok(Some(message)),
            // Nothing will ever come from a thread that has ended.
            None => self.reactor.alive().map(|()| None),
        }
    }

    /// Names the message that the owner waits for. Errors of [`try_recv`](Self::try_recv) contain the name.
    pub fn expect(&self, step: &'static str) {
        self.link.expect(Some(step));
    }

    /// No message is due.
    pub fn settled(&self) {
        self.link.expect(None);
    }

    /// One atomic load, for the data path. Tells of a BYE or a loss also while earlier messages wait to be read.
    pub fn state(&self) -> State {
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
        self.link.say_bye();
        self.leave(Command::Linger(self.token));
    }

    /// The thread may have ended, and then there is nobody to tell.
    fn leave(&self, command: Command) {
        let _ = self.reactor.tell(command);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.closed {
            self.leave(Command::Remove(self.token));
        }
    }
}
