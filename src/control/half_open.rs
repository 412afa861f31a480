//! Accepted connections of unknown peers: nothing they send counts until a whole HELLO with the
//! right nonce has come.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::Token;
use subtle::ConstantTimeEq;

use super::link::Link;
use super::socket::Stream;
use super::sockets::{Entry, Sockets};
use crate::proto::{self, HEADER_BYTES, Hello, HelloPrefix, Message, Nonce, PROTOCOL_VERSION, Peeked};

/// A connection whose HELLO has not come.
#[derive(Debug)]
pub(super) struct HalfOpen {
    listener: Token,
    stream: Stream,
    addr: SocketAddr,
    nonce: Nonce,
    until: Instant,
    read: Vec<u8>,
}

/// What the bytes so far mean.
enum Verdict {
    /// More bytes are needed.
    Wait,
    /// No peer of this listener. Gets no answer.
    Stranger(String),
    /// A peer that knows the nonce but is not compatible. Gets a REFUSE with the reason.
    Refused(String),
    /// A peer of this listener, with the bytes after its HELLO.
    Peer(Hello, Vec<u8>),
}

impl HalfOpen {
    pub(super) fn new(
        listener: Token,
        stream: Stream,
        addr: SocketAddr,
        nonce: Nonce,
        until: Instant,
    ) -> Self {
        Self { listener, stream, addr, nonce, until, read: Vec::new() }
    }

    /// Continues to read. Returns the entry that replaces this one in the thread's table, if any.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let verdict = match self.read_on() {
            Verdict::Wait if Instant::now() < self.until => return Some(Entry::HalfOpen(self)),
            Verdict::Wait => Verdict::Stranger("no HELLO came in time".into()),
            known => known,
        };
        let acceptor = sockets.acceptor(self.listener)?;
        acceptor.forget(me);
        match verdict {
            Verdict::Peer(hello, rest) if acceptor.admit(hello.token) => {
                let token = hello.token;
                let redial = acceptor.redial_terms(token);
                let link = Arc::new(Link::with_redial(redial.clone()));
                link.deliver(Message::Hello(hello));
                link.establish(self.stream, self.addr, rest);
                // The peer may have closed; the owner sees that on the channel.
                let _ = link.enqueue(&Message::Welcome { token });
                redial.iter().for_each(|redial| drop(link.enqueue(&redial.callback())));
                acceptor.hand_over(me, &link);
                sockets.again(me);
                Some(Entry::Link(link))
            }
            Verdict::Refused(reason) => {
                acceptor.refuse(format!("refused a control connection from {}: {reason}", self.addr));
                sockets.refuse(me, self.stream, self.addr, reason)
            }
            Verdict::Stranger(why) => {
                tracing::debug!(target: "net", "dropped a control connection from {}: {why}", self.addr);
                None
            }
            // A second connection of a peer that has one.
            Verdict::Peer(..) | Verdict::Wait => None,
        }
    }

    fn read_on(&mut self) -> Verdict {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Verdict::Stranger(format!("it closed after {} bytes", self.read.len())),
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Verdict::Wait,
                Err(e) => return Verdict::Stranger(e.to_string()),
            }
            // Examined after each piece: an unknown peer never makes us keep more than one.
            match self.examine() {
                Verdict::Wait => {}
                known => return known,
            }
        }
    }

    fn examine(&self) -> Verdict {
        let prefix = match HelloPrefix::at(&self.read) {
            Ok(None) => return Verdict::Wait,
            Ok(Some(prefix)) => prefix,
            Err(e) => return Verdict::Stranger(e.to_string()),
        };
        if !bool::from(prefix.nonce.ct_eq(&self.nonce)) {
            return Verdict::Stranger("its HELLO is for another listener".into());
        }
        if prefix.version != PROTOCOL_VERSION {
            return Verdict::Refused(proto::DecodeError::Version { found: prefix.version }.to_string());
        }
        let len = match Peeked::at(&self.read) {
            Ok(Peeked::Whole { len }) => len,
            Ok(Peeked::Partial) => return Verdict::Wait,
            Err(e) => return Verdict::Stranger(e.to_string()),
        };
        match Message::decode(&self.read[HEADER_BYTES..HEADER_BYTES + len]) {
            Ok(Message::Hello(hello)) => Verdict::Peer(hello, self.read[HEADER_BYTES + len..].to_vec()),
            Ok(other) => Verdict::Stranger(format!("it began with {}", other.name())),
            Err(e) => Verdict::Refused(format!("its HELLO cannot be read: {e}")),
        }
    }
}
