//! Accepted connections of the listener for re-dials: nothing they send counts until a REDIAL with
//! the listener's id, and the token and the tag of a connection of this process has come, and
//! nothing happens before a RESUME under both challenges.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Instant;

use mio::Token;

use super::beginnings::Beginnings;
use super::half_open::Look;
use super::link::Link;
use super::redial_terms::random;
use super::socket::{self, Stream};
use super::sockets::{Entry, Sockets};
use crate::proto::{
    HEADER_BYTES, Keys, Message, Peeked, REDIAL_BYTES, Redial, Role, Secret, Transcript, ended_proof,
};

/// A connection whose RESUME has not come.
#[derive(Debug)]
pub(super) struct Redialed {
    listener: Token,
    stream: Stream,
    addr: SocketAddr,
    /// The listener's.
    secret: Arc<Secret>,
    /// The connections that have not ended and cannot be replaced yet.
    beginnings: Arc<Beginnings>,
    until: Instant,
    read: Vec<u8>,
    /// Set once WELCOME was sent.
    welcomed: Option<Box<Welcomed>>,
}

/// A peer that was sent WELCOME.
#[derive(Debug)]
struct Welcomed {
    channel: Token,
    /// The peer's role.
    from: Role,
    keys: Keys,
}

/// What the bytes so far mean.
enum Verdict {
    /// More bytes are needed.
    Wait,
    /// No peer of this process. Gets no answer.
    Stranger(&'static str),
    /// The message, and its frame.
    Redial(Redial, Vec<u8>),
    /// The peer goes on with this connection, on which these bytes followed.
    Resume(Box<Welcomed>, Vec<u8>),
}

impl Redialed {
    pub(super) fn new(
        listener: Token,
        (stream, addr): (Stream, SocketAddr),
        secret: Arc<Secret>,
        beginnings: Arc<Beginnings>,
        until: Instant,
    ) -> Self {
        // If this end gives the connection up, a FIN would look like the end of this process.
        socket::reset_on_close(&stream);
        Self { listener, stream, addr, secret, beginnings, until, read: Vec::new(), welcomed: None }
    }

    /// Reads what has come with the connection.
    pub(super) fn look(&mut self) -> Look {
        let mut chunk = [0; REDIAL_BYTES];
        while self.read.len() < REDIAL_BYTES {
            match self.stream.read(&mut chunk[..REDIAL_BYTES - self.read.len()]) {
                Ok(0) => return Look::Stranger,
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Look::Partial,
                Err(_) => return Look::Stranger,
            }
        }
        match Message::decode(&self.read[HEADER_BYTES..]) {
            Ok(Message::Redial(redial)) if redial.id == *self.secret.id() => Look::Whole,
            _ => Look::Stranger,
        }
    }

    /// Continues to read. Returns the entry that replaces this one in the thread's table, if any.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        loop {
            let why = match self.read_on() {
                Ok(Verdict::Wait) if Instant::now() < self.until => return Some(Entry::Redialed(self)),
                Ok(Verdict::Wait) => "it did not go on in time",
                Ok(Verdict::Stranger(why)) => why,
                Ok(Verdict::Resume(welcomed, rest)) => {
                    let Welcomed { channel, from, keys } = *welcomed;
                    sockets.half_open.remove(me);
                    let (channel, link) = sockets.unended(channel)?;
                    match from {
                        Role::Connector => {
                            let entry = sockets.resume(channel, link, (self.stream, rest), keys, &[]);
                            sockets.put_back(channel, entry);
                        }
                        // The acceptor has found that the connection is broken.
                        Role::Acceptor => {
                            socket::close_in_order(&self.stream);
                            sockets.interrupted(channel);
                        }
                    }
                    return None;
                }
                Ok(Verdict::Redial(redial, frame)) => {
                    let id = (redial.token, redial.from.other());
                    match sockets.redialled(&id) {
                        // Its proof of the end would be good later.
                        None if self.beginnings.includes(&id) => "its handshake is not over",
                        None => return self.refuse(me, &redial, sockets),
                        Some((channel, link)) => match self.welcome((&redial, &frame), channel, &link) {
                            Ok(()) => {
                                // A copy of a REDIAL comes this far.
                                sockets.half_open.remove(me);
                                sockets.add_half_open(me, self.listener, self.addr);
                                sockets.wake_at(self.until, me);
                                continue;
                            }
                            Err(why) => why,
                        },
                    }
                }
                Err(_) => "it closed",
            };
            tracing::debug!(target: "net", "dropped a re-dialled control connection from {}: {why}", self.addr);
            sockets.half_open.remove(me);
            return None;
        }
    }

    /// Answers the REDIAL of a peer. An error is why that cannot be done.
    fn welcome(
        &mut self,
        (redial, frame): (&Redial, &[u8]),
        channel: Token,
        link: &Link,
    ) -> Result<(), &'static str> {
        let key = link.redial_key().filter(|key| redial.is_by_holder_of(key)).ok_or("its tag is wrong")?;
        let unanswered = "it cannot be answered";
        let challenge = random().map_err(|_| unanswered)?;
        let session = Transcript::new(&key, frame).session(&challenge);
        let welcome = Message::Welcome { challenge, proof: session.proof };
        let welcome = welcome.encode().map_err(|_| unanswered)?;
        // The first bytes that this end sends: the socket has room.
        self.stream.write_all(&welcome).map_err(|_| unanswered)?;
        let keys = session.keys_of(redial.from.other(), None);
        self.welcomed = Some(Box::new(Welcomed { channel, from: redial.from, keys }));
        Ok(())
    }

    /// Answers a peer whose connection has ended here.
    fn refuse(self, me: Token, redial: &Redial, sockets: &mut Sockets) -> Option<Entry> {
        sockets.half_open.remove(me);
        socket::close_in_order(&self.stream);
        let proof = ended_proof(&self.secret, &redial.token, redial.from.other());
        sockets.refuse(me, (self.stream, self.addr), None, &Message::Ended { proof })
    }

    fn read_on(&mut self) -> io::Result<Verdict> {
        let mut chunk = [0; 256];
        loop {
            match self.examine() {
                Verdict::Wait => {}
                known => return Ok(known),
            }
            match self.stream.read(&mut chunk) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(Verdict::Wait),
                Err(e) => return Err(e),
            }
        }
    }

    /// Takes the next frame. An unknown peer never makes this end keep more than one REDIAL.
    fn examine(&mut self) -> Verdict {
        let len = match Peeked::at(&self.read) {
            Ok(Peeked::Whole { len }) => len,
            Ok(Peeked::Partial) if self.read.len() < REDIAL_BYTES => return Verdict::Wait,
            Ok(Peeked::Partial) | Err(_) => return Verdict::Stranger("its first frame is no REDIAL"),
        };
        let rest = self.read.split_off(HEADER_BYTES + len);
        let frame = std::mem::replace(&mut self.read, rest);
        let body = &frame[HEADER_BYTES..];
        let Some(mut welcomed) = self.welcomed.take() else {
            return match Message::decode(body) {
                Ok(Message::Redial(redial)) if redial.id == *self.secret.id() => {
                    Verdict::Redial(redial, frame)
                }
                Ok(Message::Redial(_)) => Verdict::Stranger("its REDIAL is for another process"),
                _ => Verdict::Stranger("its first frame is no REDIAL"),
            };
        };
        match welcomed.keys.open(body).map(Message::decode) {
            Some(Ok(Message::Resume)) => Verdict::Resume(welcomed, std::mem::take(&mut self.read)),
            Some(_) => Verdict::Stranger("it sent no RESUME"),
            None => Verdict::Stranger("the tag of its RESUME is wrong"),
        }
    }
}
