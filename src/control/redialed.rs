//! Accepted connections of the listener for re-dials: nothing they send counts until a REDIAL with
//! the listener's nonce, and the token and the key of a connection of this process has come.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Instant;

use mio::Token;
use subtle::ConstantTimeEq;

use super::socket::{self, Stream};
use super::sockets::{Entry, Sockets};
use crate::proto::{HEADER_BYTES, Message, Nonce, Peeked, REDIAL_BYTES, Redial, Role};

/// A connection whose RESUME has not come.
#[derive(Debug)]
pub(super) struct Redialed {
    listener: Token,
    stream: Stream,
    addr: SocketAddr,
    nonce: Nonce,
    until: Instant,
    read: Vec<u8>,
    /// The channel whose connector was sent WELCOME.
    welcomed: Option<Token>,
}

/// What the bytes so far mean.
enum Verdict {
    /// More bytes are needed.
    Wait,
    /// No peer of this process. Gets no answer.
    Stranger(&'static str),
    Redial(Redial),
    /// The peer goes on with this connection, on which these bytes followed.
    Resume(Vec<u8>),
}

impl Redialed {
    pub(super) fn new(
        listener: Token,
        stream: Stream,
        addr: SocketAddr,
        nonce: Nonce,
        until: Instant,
    ) -> Self {
        // If this end gives the connection up, a FIN would look like the end of this process.
        socket::reset_on_close(&stream);
        Self { listener, stream, addr, nonce, until, read: Vec::new(), welcomed: None }
    }

    /// Continues to read. Returns the entry that replaces this one in the thread's table, if any.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        loop {
            let why = match self.read_on() {
                Ok(Verdict::Wait) if Instant::now() < self.until => return Some(Entry::Redialed(self)),
                Ok(Verdict::Wait) => "it did not go on in time",
                Ok(Verdict::Stranger(why)) => why,
                Ok(Verdict::Resume(rest)) => {
                    sockets.acceptor(self.listener)?.forget(me);
                    let (channel, link) = sockets.unended(self.welcomed?)?;
                    let entry = sockets.resume(channel, link, (self.stream, rest), &[]);
                    sockets.put_back(channel, entry);
                    return None;
                }
                Ok(Verdict::Redial(redial)) => match sockets.redialled(redial.token, redial.from.other()) {
                    None => return self.refuse(me, sockets),
                    Some((_, link)) if !link.has_key(&redial.key) => "its key is wrong",
                    Some((channel, _)) if self.welcome(redial.token).is_ok() => match redial.from {
                        Role::Connector => {
                            self.welcomed = Some(channel);
                            continue;
                        }
                        Role::Acceptor => {
                            // WELCOME must arrive.
                            socket::close_in_order(&self.stream);
                            sockets.acceptor(self.listener)?.forget(me);
                            sockets.interrupted(channel);
                            return None;
                        }
                    },
                    Some(_) => "it cannot be answered",
                },
                Err(_) => "it closed",
            };
            tracing::debug!(target: "net", "dropped a re-dialled control connection from {}: {why}", self.addr);
            sockets.acceptor(self.listener)?.forget(me);
            return None;
        }
    }

    fn welcome(&mut self, token: Nonce) -> io::Result<()> {
        let welcome = Message::Welcome { token }.encode().map_err(io::Error::other)?;
        // The first bytes that this end sends: the socket has room.
        self.stream.write_all(&welcome)
    }

    /// Answers a peer whose connection has ended here.
    fn refuse(self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        sockets.acceptor(self.listener)?.forget(me);
        socket::close_in_order(&self.stream);
        sockets.refuse(me, self.stream, self.addr, "its process has closed the connection".into())
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
        match (Message::decode(&frame[HEADER_BYTES..]), self.welcomed) {
            (Ok(Message::Redial(redial)), None) if bool::from(redial.nonce.ct_eq(&self.nonce)) => {
                Verdict::Redial(redial)
            }
            (Ok(Message::Redial(_)), None) => Verdict::Stranger("its REDIAL is for another process"),
            (Ok(Message::Resume), Some(_)) => Verdict::Resume(std::mem::take(&mut self.read)),
            _ => Verdict::Stranger("it sent another message"),
        }
    }
}
