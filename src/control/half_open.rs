//! Accepted connections of unknown peers: nothing they send counts until their first frame has come
//! whole, with the tag of a holder of the secret.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::Token;
use mpib_proto::{
    self, HEADER_BYTES, Hello, HelloPrefix, MAX_FRAME_BYTES, Message, PROTOCOL_VERSION, Peeked, REDIAL_BYTES,
    Redial, Role, Secret, Session, Transcript, ended_proof,
};

use super::link::Link;
use super::listener::Admission;
use super::redial::Redialled;
use super::socket::{Stream, read_some};
use super::sockets::{Entry, Sockets};
use super::wire::{Wire, encoded, welcome};

/// A connection whose first frame has not come.
#[derive(Debug)]
pub(super) struct HalfOpen {
    listener: Token,
    stream: Stream,
    addr: SocketAddr,
    /// The listener's.
    secret: Arc<Secret>,
    first: FirstFrame,
    until: Instant,
    read: Vec<u8>,
    /// What the first look has found, if that was a whole frame.
    found: Option<Verdict>,
    /// Until when another connection with the same HELLO may prove itself.
    waits_until: Option<Instant>,
}

/// With which message the peers of a listener begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum FirstFrame {
    Hello,
    Redial,
}

/// What a new connection has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Less than a first frame.
    Partial,
    /// Bytes that no peer sends.
    Rejected,
    /// The first frame of a peer.
    Whole,
}

/// What the bytes so far mean.
#[derive(Debug)]
enum Verdict {
    /// More bytes are needed.
    Wait,
    /// No peer of this listener. Gets no answer.
    Reject(String),
    /// A peer of another version. Gets a REFUSE with the reason, which every version can read.
    OtherVersion(String),
    /// A peer whose HELLO of this many bytes cannot be decoded. Gets a REFUSE with the reason.
    Unreadable(String, usize),
    /// A peer of this listener, with its HELLO of this many bytes.
    Hello(Hello, usize),
    /// One that dials a connection again, with its REDIAL of this many bytes.
    Redial(Redial, usize),
}

impl HalfOpen {
    pub(super) fn new(
        listener: Token,
        (stream, addr): (Stream, SocketAddr),
        secret: Arc<Secret>,
        first: FirstFrame,
        until: Instant,
    ) -> Self {
        let (read, found, waits_until) = (Vec::new(), None, None);
        Self { listener, stream, addr, secret, first, until, read, found, waits_until }
    }

    /// Reads what has come with the connection.
    pub(super) fn look(&mut self) -> Look {
        match self.read_on() {
            Verdict::Wait => Look::Partial,
            Verdict::Reject(why) => {
                self.report(&why);
                Look::Rejected
            }
            whole => {
                self.found = Some(whole);
                Look::Whole
            }
        }
    }

    /// Continues to read. Returns the entry that replaces this one in the thread's table, if any.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let found = self.found.take();
        let is_new = found.is_some();
        let verdict = match found.unwrap_or_else(|| self.read_on()) {
            Verdict::Wait if Instant::now() < self.until => return Some(Entry::HalfOpen(self)),
            Verdict::Wait => Verdict::Reject("its first frame did not come in time".into()),
            known => known,
        };
        sockets.half_open.remove(me);
        match verdict {
            Verdict::Hello(hello, len) => {
                let entry = self.admit(me, hello, len, sockets);
                if matches!(entry, Some(Entry::Link(_))) && !is_new {
                    // More may have come behind the HELLO. A new socket's first event is still due.
                    sockets.again(me);
                }
                entry
            }
            Verdict::Redial(redial, len) => self.resume(me, &redial, len, sockets),
            // Accept fails: the claim covers the version.
            Verdict::OtherVersion(reason) => {
                let why = format!("refused a control connection from {}: {reason}", self.addr);
                sockets.acceptor(self.listener)?.refuse(why);
                sockets.refuse(me, (Wire::plain(self.stream), self.addr), &Message::Refuse { reason })
            }
            // Accept waits for the connector: the claim does not cover the rest.
            Verdict::Unreadable(reason, len) => {
                tracing::info!(target: "net", "refused a control connection from {}: {reason}", self.addr);
                let addr = self.addr;
                let (wire, _) = self.answer(len)?;
                sockets.refuse(me, (wire, addr), &Message::Refuse { reason })
            }
            Verdict::Reject(why) => {
                self.report(&why);
                None
            }
            Verdict::Wait => None,
        }
    }

    fn report(&self, why: &str) {
        tracing::debug!(target: "net", "dropped a control connection from {}: {why}", self.addr);
    }

    /// Answers a HELLO of `len` bytes. `None` without random bytes, which the kernel always has.
    fn answer(mut self, len: usize) -> Option<(Wire, Session)> {
        let rest = self.read.split_off(len);
        let transcript = Transcript::new(&self.secret, &self.read);
        let (session, frame) = welcome(&transcript).ok()?;
        let keys = session.keys_of(Role::Acceptor, Some(transcript.early_key()));
        Some((Wire::new(self.stream, keys, rest).with_answer(&frame), session))
    }

    /// Answers a peer of this listener. Its messages may be read before it has proved itself.
    fn admit(mut self, me: Token, hello: Hello, len: usize, sockets: &mut Sockets) -> Option<Entry> {
        let connector = hello.claim.token;
        let acceptor = sockets.acceptor(self.listener)?;
        match acceptor.admission(&connector) {
            Admission::Denied => return None,
            Admission::Full => {
                acceptor.report_full(self.addr);
                return None;
            }
            Admission::Beside(until) => {
                // Its HELLO has come, but it waits like one without.
                sockets.add_half_open(me, self.listener, self.addr);
                if self.waits_until.replace(until) != Some(until) {
                    sockets.wake_at(until, me);
                }
                return Some(Entry::HalfOpen(self));
            }
            Admission::First => {}
        }
        let (terms, callback) = acceptor.redial(connector);
        let (listener, addr) = (self.listener, self.addr);
        let (mut wire, session) = self.answer(len)?;
        if let Some(callback) = callback {
            wire.append(encoded(&callback).ok()?);
        }
        let link = Arc::new(Link::new(terms));
        link.deliver(Message::Hello(hello));
        // The peer may have closed; the owner sees that on the channel.
        link.begin(wire, Role::Acceptor, addr, session.resume).ok()?;
        sockets.began(me, &link);
        let acceptor = sockets.acceptor(listener)?;
        acceptor.welcome(connector, &link);
        acceptor.hand_over(me, &link);
        Some(Entry::Link(link))
    }

    /// Answers a peer that dials a connection of this process again.
    fn resume(mut self, me: Token, redial: &Redial, len: usize, sockets: &mut Sockets) -> Option<Entry> {
        let role = redial.from.other();
        let Some((channel, link)) = sockets.unended(&(redial.token, role)) else {
            let proof = ended_proof(&self.secret, &redial.token, role);
            return sockets.refuse(me, (Wire::plain(self.stream), self.addr), &Message::Ended { proof });
        };
        let Some(key) = link.redial_key().filter(|key| redial.is_by_holder_of(key)) else {
            self.report("the tag of its REDIAL is wrong, or the handshake is not over");
            return None;
        };
        let rest = self.read.split_off(len);
        let (session, frame) = welcome(&Transcript::new(&key, &self.read)).ok()?;
        let wire = Wire::new(self.stream, session.keys_of(role, None), rest).with_answer(&frame);
        sockets.add_half_open(me, self.listener, self.addr);
        sockets.wake_at(self.until, me);
        Redialled::new(wire, channel, redial.from, self.until).on_ready(me, sockets)
    }

    fn read_on(&mut self) -> Verdict {
        loop {
            match read_some(&mut self.stream, &mut self.read) {
                Ok(true) => {}
                // A whole HELLO that waits for its turn.
                Ok(false) => return self.examine(),
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    return Verdict::Reject(format!("it closed after {} bytes", self.read.len()));
                }
                Err(e) => return Verdict::Reject(e.to_string()),
            }
            if self.read.len() > 2 * MAX_FRAME_BYTES {
                return Verdict::Reject("it sends more than a connector does".into());
            }
            // Examined after each piece: an unknown peer never makes this end keep more than one.
            match self.examine() {
                Verdict::Wait => {}
                known => return known,
            }
        }
    }

    fn examine(&self) -> Verdict {
        match self.first {
            FirstFrame::Hello => self.examine_hello(),
            FirstFrame::Redial => self.examine_redial(),
        }
    }

    fn examine_hello(&self) -> Verdict {
        let prefix = match HelloPrefix::at(&self.read) {
            Ok(None) => return Verdict::Wait,
            Ok(Some(prefix)) => prefix,
            Err(e) => return Verdict::Reject(e.to_string()),
        };
        if !prefix.claim.is_for(&self.secret, prefix.version) {
            return Verdict::Reject("its HELLO is for another listener".into());
        }
        if prefix.version != PROTOCOL_VERSION {
            let (found, release) = (prefix.version, prefix.claim.release);
            return Verdict::OtherVersion(mpib_proto::DecodeError::Version { found, release }.to_string());
        }
        let len = match Peeked::at(&self.read) {
            Ok(Peeked::Whole { len }) => HEADER_BYTES + len,
            Ok(Peeked::Partial) => return Verdict::Wait,
            Err(e) => return Verdict::Reject(e.to_string()),
        };
        match Message::decode(&self.read[HEADER_BYTES..len]) {
            Ok(Message::Hello(hello)) => Verdict::Hello(hello, len),
            Ok(other) => Verdict::Reject(format!("it began with {}", other.name())),
            Err(e) => Verdict::Unreadable(format!("its HELLO cannot be read: {e}"), len),
        }
    }

    fn examine_redial(&self) -> Verdict {
        let len = match Peeked::at(&self.read) {
            Ok(Peeked::Whole { len }) => HEADER_BYTES + len,
            Ok(Peeked::Partial) if self.read.len() < REDIAL_BYTES => return Verdict::Wait,
            Ok(Peeked::Partial) | Err(_) => return Verdict::Reject("it began with no REDIAL".into()),
        };
        match Message::decode(&self.read[HEADER_BYTES..len]) {
            Ok(Message::Redial(redial)) if redial.id == *self.secret.id() => Verdict::Redial(redial, len),
            _ => Verdict::Reject("it began with no REDIAL for this process".into()),
        }
    }
}
