//! Accepted connections of unknown peers: nothing they send counts until a whole HELLO with the
//! right claim has come.

use std::io::{ErrorKind, Read};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;

use super::acceptor::Admission;
use super::link::Link;
use super::redial_terms::random;
use super::rival::Rival;
use super::socket::Stream;
use super::sockets::{Answer, Entry, Sockets};
use crate::proto::{
    self, HEADER_BYTES, Hello, HelloPrefix, MAX_FRAME_BYTES, Message, PROTOCOL_VERSION, Peeked, Role, Secret,
    Transcript,
};

/// How long the first of several connections with one HELLO may take for its proof, which takes one
/// round trip, until the others are answered, too.
const FIRST_PROVES: Duration = Duration::from_millis(100);

/// A connection whose HELLO has not come.
#[derive(Debug)]
pub(super) struct HalfOpen {
    listener: Token,
    stream: Stream,
    addr: SocketAddr,
    /// The listener's.
    secret: Arc<Secret>,
    until: Instant,
    read: Vec<u8>,
    /// Whether the claim was found to be right.
    claimed: bool,
    /// What the first look has found, if that was a whole frame.
    found: Option<Verdict>,
    /// Until when another connection with the same HELLO may prove itself.
    waits_until: Option<Instant>,
}

/// What a new connection has brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    /// Less than a first frame.
    Partial,
    /// Bytes that no peer sends.
    Stranger,
    /// The first frame of a peer.
    Whole,
}

/// What the bytes so far mean.
#[derive(Debug)]
enum Verdict {
    /// More bytes are needed.
    Wait,
    /// No peer of this listener. Gets no answer.
    Stranger(String),
    /// A peer of another version. Gets a REFUSE with the reason, which every version can read.
    OtherVersion(String),
    /// A peer whose HELLO of this many bytes cannot be decoded. Gets a REFUSE with the reason.
    Unreadable(String, usize),
    /// A peer of this listener, with its HELLO of this many bytes.
    Peer(Hello, usize),
}

impl HalfOpen {
    pub(super) fn new(
        listener: Token,
        stream: Stream,
        addr: SocketAddr,
        secret: Arc<Secret>,
        until: Instant,
    ) -> Self {
        let (read, claimed, found, waits_until) = (Vec::new(), false, None, None);
        Self { listener, stream, addr, secret, until, read, claimed, found, waits_until }
    }

    /// Reads what has come with the connection.
    pub(super) fn look(&mut self) -> Look {
        match self.read_on() {
            Verdict::Wait => Look::Partial,
            Verdict::Stranger(why) => {
                tracing::debug!(target: "net", "dropped a control connection from {}: {why}", self.addr);
                Look::Stranger
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
            Verdict::Wait => Verdict::Stranger("no HELLO came in time".into()),
            known => known,
        };
        sockets.half_open.remove(me);
        match verdict {
            Verdict::Peer(hello, len) => {
                if !is_new {
                    // More may have come behind the HELLO. A new socket's first event is still due.
                    sockets.again(me);
                }
                self.admit(me, hello, len, sockets)
            }
            Verdict::OtherVersion(reason) => self.refuse(me, reason, sockets),
            Verdict::Unreadable(reason, len) => {
                // Its sender may have copied the claim alone: accept waits for the connector.
                tracing::info!(target: "net", "refused a control connection from {}: {reason}", self.addr);
                let answer = self.answer(len)?;
                sockets.refuse(me, (self.stream, self.addr), Some(answer), &Message::Refuse { reason })
            }
            Verdict::Stranger(why) => {
                tracing::debug!(target: "net", "dropped a control connection from {}: {why}", self.addr);
                None
            }
            Verdict::Wait => None,
        }
    }

    /// Makes the answer to a HELLO of `len` bytes. `None` without random bytes, which the kernel
    /// always has.
    fn answer(&self, len: usize) -> Option<Answer> {
        let challenge = random().ok()?;
        let transcript = Transcript::new(&self.secret, &self.read[..len]);
        let session = transcript.session(&challenge);
        let welcome = Message::Welcome { challenge, proof: session.proof }.encode().ok()?;
        let early = transcript.early_key();
        Some(Answer { session, welcome, early })
    }

    /// Answers a peer of this listener. Its messages may be read before it has proved itself.
    fn admit(mut self, me: Token, hello: Hello, len: usize, sockets: &mut Sockets) -> Option<Entry> {
        let connector = hello.claim.token;
        let acceptor = sockets.acceptor(self.listener)?;
        let admission = acceptor.admission(&connector);
        if admission == Admission::Full {
            acceptor.report_full(self.addr);
        }
        if matches!(admission, Admission::Denied | Admission::Full) {
            return None;
        }
        if admission == Admission::Beside {
            let waits_until = *self.waits_until.get_or_insert_with(|| Instant::now() + FIRST_PROVES);
            if Instant::now() < waits_until {
                // Its HELLO has come, but it waits like one without.
                sockets.add_half_open(me, self.listener, self.addr);
                sockets.wake_at(waits_until, me);
                return Some(Entry::HalfOpen(self));
            }
        }
        let redial = acceptor.redial_terms(connector);
        let Answer { session, welcome, early } = self.answer(len)?;
        let link = Arc::new(Link::with_redial(redial.clone()));
        link.deliver(Message::Hello(hello));
        link.secure(&session, Role::Acceptor, Some(early)).ok()?;
        link.establish(self.stream, self.addr, self.read[len..].to_vec());
        link.enqueue_first(&welcome);
        // The peer may have closed; the owner sees that on the channel.
        redial.iter().for_each(|redial| drop(link.enqueue(&redial.callback())));
        let acceptor = sockets.acceptor(self.listener)?;
        if admission == Admission::Beside {
            link.flush();
            sockets.add_half_open(me, self.listener, self.addr);
            sockets.wake_at(self.until, me);
            let (listener, until) = (self.listener, self.until);
            return Some(Entry::Rival(Rival { listener, link, connector, until }));
        }
        acceptor.welcome(connector, &link);
        let displaced = acceptor.hand_over(me, &link);
        displaced.into_iter().for_each(|token| sockets.remove(token));
        Some(Entry::Link(link))
    }

    /// Refuses a peer of another protocol version, which its claim covers: accept fails.
    fn refuse(self, me: Token, reason: String, sockets: &mut Sockets) -> Option<Entry> {
        let acceptor = sockets.acceptor(self.listener)?;
        acceptor.refuse(format!("refused a control connection from {}: {reason}", self.addr));
        sockets.refuse(me, (self.stream, self.addr), None, &Message::Refuse { reason })
    }

    fn read_on(&mut self) -> Verdict {
        let mut chunk = [0; 4096];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => return Verdict::Stranger(format!("it closed after {} bytes", self.read.len())),
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                // A whole HELLO that waits for its turn.
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.examine(),
                Err(e) => return Verdict::Stranger(e.to_string()),
            }
            if self.read.len() > 2 * MAX_FRAME_BYTES {
                return Verdict::Stranger("it sends more than a connector does".into());
            }
            // Examined after each piece: an unknown peer never makes us keep more than one.
            match self.examine() {
                Verdict::Wait => {}
                known => return known,
            }
        }
    }

    fn examine(&mut self) -> Verdict {
        let prefix = match HelloPrefix::at(&self.read) {
            Ok(None) => return Verdict::Wait,
            Ok(Some(prefix)) => prefix,
            Err(e) => return Verdict::Stranger(e.to_string()),
        };
        if !self.claimed {
            if !prefix.claim.is_for(&self.secret, prefix.version) {
                return Verdict::Stranger("its HELLO is for another listener".into());
            }
            self.claimed = true;
        }
        if prefix.version != PROTOCOL_VERSION {
            let (found, release) = (prefix.version, prefix.claim.release);
            return Verdict::OtherVersion(proto::DecodeError::Version { found, release }.to_string());
        }
        let len = match Peeked::at(&self.read) {
            Ok(Peeked::Whole { len }) => HEADER_BYTES + len,
            Ok(Peeked::Partial) => return Verdict::Wait,
            Err(e) => return Verdict::Stranger(e.to_string()),
        };
        match Message::decode(&self.read[HEADER_BYTES..len]) {
            Ok(Message::Hello(hello)) => Verdict::Peer(hello, len),
            Ok(other) => Verdict::Stranger(format!("it began with {}", other.name())),
            Err(e) => Verdict::Unreadable(format!("its HELLO cannot be read: {e}"), len),
        }
    }
}
