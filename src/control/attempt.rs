//! One attempt of a connector: a TCP connection to one address, HELLO, and the listener's answer.

use std::io::{self, ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use mio::Token;

use super::socket::{self, Stream};
use super::sockets::{Entry, Sockets};
use crate::proto::{HEADER_BYTES, Message, Peeked, Session, Tag, Transcript, same_tag};

/// How an attempt ended.
#[derive(Debug)]
pub(super) enum Outcome {
    /// The listener has proved itself. The bytes after its answer.
    Welcome(Stream, Vec<u8>, Box<Session>),
    /// The reason of somebody who has proved nothing: the listener, or another process that has
    /// this address.
    Refused(String),
    /// Bytes by which the listener may show that the connection has ended in its process.
    Ended(Tag),
    /// The address connected and closed: a busy listener may do that, or another host.
    Unanswered(String),
    /// The address did not connect.
    Failed(io::Error),
}

/// What an attempt sends first.
#[derive(Debug, Clone)]
pub(super) struct Opening {
    /// The first frame, and others behind it.
    pub(super) bytes: Arc<[u8]>,
    /// From which the session is derived once the listener has answered.
    pub(super) transcript: Transcript,
}

/// One address being tried.
#[derive(Debug)]
pub(super) struct Attempt {
    connector: Token,
    stream: Stream,
    addr: SocketAddr,
    connected: bool,
    opening: Opening,
    sent: usize,
    read: Vec<u8>,
}

impl Attempt {
    /// Begins to connect.
    pub(super) fn start(
        connector: Token,
        addr: SocketAddr,
        opening: &Opening,
        silence: Duration,
        sockets: &mut Sockets,
    ) -> io::Result<Token> {
        let mut stream = socket::connect(addr)?;
        socket::tune(&stream, silence)?;
        let me = sockets.next_token();
        sockets.register(&mut *stream, me)?;
        let (opening, read) = (opening.clone(), Vec::new());
        let attempt = Self { connector, stream, addr, connected: false, opening, sent: 0, read };
        sockets.insert(me, Entry::Attempt(attempt));
        Ok(me)
    }

    /// Describes the attempt for the error of a connector that gives up.
    pub(super) fn describe(&self) -> (SocketAddr, String) {
        let state = if self.connected { "connected, no answer" } else { "no connection yet" };
        (self.addr, format!("{}: {state}", self.addr))
    }

    /// Continues the attempt. Passes the result to the connector when there is one.
    pub(super) fn on_ready(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let result = match self.advance() {
            Ok(None) => return Some(Entry::Attempt(self)),
            Ok(Some(outcome)) => outcome.with(self.stream, &self.read),
            Err(e) if self.connected => Outcome::Unanswered(e.to_string()),
            Err(e) => Outcome::Failed(e),
        };
        sockets.attempt_ended(self.connector, me, self.addr, result);
        None
    }

    fn advance(&mut self) -> io::Result<Option<Answer>> {
        if !self.connected {
            if let Some(e) = self.stream.take_error()? {
                return Err(e);
            }
            match self.stream.peer_addr() {
                Ok(_) => self.connected = true,
                Err(e) if e.kind() == ErrorKind::NotConnected => return Ok(None),
                Err(e) => return Err(e),
            }
        }
        while self.sent < self.opening.bytes.len() {
            match self.stream.write(&self.opening.bytes[self.sent..]) {
                Ok(n) => self.sent += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => return Err(e),
            }
        }
        let mut chunk = [0; 1024];
        loop {
            match self.stream.read(&mut chunk) {
                Ok(0) => {
                    return Err(io::Error::new(
                        ErrorKind::UnexpectedEof,
                        "connected, then closed without an answer",
                    ));
                }
                Ok(n) => self.read.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(None),
                Err(e) => return Err(e),
            }
            let stranger = |e: String| io::Error::other(format!("answers, but not as an MPIB listener: {e}"));
            let len = match Peeked::at(&self.read).map_err(|e| stranger(e.to_string()))? {
                Peeked::Partial => continue,
                Peeked::Whole { len } => len,
            };
            let end = HEADER_BYTES + len;
            return match Message::decode(&self.read[HEADER_BYTES..end]) {
                Ok(Message::Welcome { challenge, proof }) => {
                    let session = self.opening.transcript.session(&challenge);
                    match same_tag(&proof, &session.proof) {
                        true => Ok(Some(Answer::Welcome(end, Box::new(session)))),
                        false => Err(stranger("its proof is wrong, so it is another process".into())),
                    }
                }
                Ok(Message::Ended { proof }) => Ok(Some(Answer::Ended(proof))),
                Ok(Message::Refuse { reason }) => Ok(Some(Answer::Refuse(reason))),
                Ok(other) => Err(stranger(format!("it sent {}", other.name()))),
                Err(e) => Err(stranger(e.to_string())),
            };
        }
    }
}

/// The listener's first frame, and where it ends.
enum Answer {
    Welcome(usize, Box<Session>),
    Refuse(String),
    Ended(Tag),
}

impl Answer {
    fn with(self, stream: Stream, read: &[u8]) -> Outcome {
        match self {
            Self::Welcome(end, session) => Outcome::Welcome(stream, read[end..].to_vec(), session),
            Self::Ended(proof) => Outcome::Ended(proof),
            Self::Refuse(reason) => Outcome::Refused(reason),
        }
    }
}
