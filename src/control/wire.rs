//! A TCP connection with its keys: frames in both directions, what waits to be sent or read, and the
//! time after its last frame.

use std::io::{self, ErrorKind};
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::Token;
use mio::net::TcpStream;
use mpib_proto::{HEADER_BYTES, Keys, Message, Peeked, Session, Transcript};

use super::socket::{self, Stream, canonical};
use super::sockets::{BOTH, Entry, Sockets};
use crate::error::{Error, Result};

/// Most bytes read at a time.
const READ_BATCH: usize = 64 << 10;
/// How long a closed channel waits until its peer has read what is left, and has closed too.
const LINGER: Duration = Duration::from_secs(2);
/// When a connection whose last frame is sent is looked at first. The pause doubles with each look
/// until [`LINGER`] is over. The peer usually closes soon, and an event for it would wake the thread
/// at each end of a connection.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// See the module.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) stream: Stream,
    /// `None`: frames have no tags, and none is read.
    keys: Option<Box<Keys>>,
    outbox: Vec<u8>,
    /// Until when the outbox waits.
    held_until: Option<Instant>,
    unread: Vec<u8>,
    /// The first error of a write: the kernel reports it once, and the next read finds no bytes.
    fault: Option<io::Error>,
}

/// What comes behind the bytes that were read.
#[derive(Debug)]
pub(super) enum Rest {
    /// Nothing yet.
    Nothing,
    /// More bytes, perhaps.
    More,
    /// A FIN: the peer's process has closed the connection.
    Fin,
    /// The TCP connection does not work any more.
    Broken(io::Error),
}

/// Why a frame is no message of the peer.
#[derive(Debug)]
pub(super) enum Wrong {
    /// It breaks the protocol.
    Frame(String),
    /// Its tag is wrong: the peer did not write it.
    Tag,
}

impl Wire {
    /// Makes one whose frames have tags under `keys`. `unread` was read from the socket before.
    pub(super) fn new(stream: Stream, keys: Keys, unread: Vec<u8>) -> Self {
        Self { keys: Some(Box::new(keys)), unread, ..Self::plain(stream) }
    }

    /// Makes one that sends frames without tags, and reads none.
    pub(super) fn plain(stream: Stream) -> Self {
        let (keys, held_until, fault) = (None, None, None);
        Self { stream, keys, outbox: Vec::new(), held_until, unread: Vec::new(), fault }
    }

    /// Queues the answer to the first frame, which has no tag.
    pub(super) fn with_answer(mut self, frame: &[u8]) -> Self {
        self.outbox.extend_from_slice(frame);
        self
    }

    /// Queues a frame with its tag.
    pub(super) fn append(&mut self, mut frame: Vec<u8>) {
        if let Some(keys) = &mut self.keys {
            keys.seal(&mut frame);
        }
        self.outbox.extend(frame);
        self.held_until = None;
    }

    /// Sends nothing before `until`, unless more is queued.
    pub(super) fn hold_until(&mut self, until: Instant) {
        self.held_until = Some(until);
    }

    /// Sends what is held as soon as there is a write.
    pub(super) fn release(&mut self) {
        self.held_until = None;
    }

    /// Returns how many bytes wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.outbox.len()
    }

    /// Returns this end's address.
    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.stream.local_addr().ok().map(canonical)
    }

    /// Returns the peer's address; `None` if the TCP connection has ended.
    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.stream.peer_addr().ok().map(canonical)
    }

    /// Writes as much of what is queued as the socket accepts. The next [`read`](Self::read) finds an
    /// error: what the peer sent before it comes first.
    pub(super) fn write(&mut self) {
        if self.held_until.is_some_and(|until| Instant::now() < until) {
            return;
        }
        match socket::write_some(&mut self.stream, &self.outbox) {
            Ok(n) => drop(self.outbox.drain(..n)),
            Err(e) => {
                self.outbox.clear();
                self.fault.get_or_insert(e);
            }
        }
    }

    /// Reads what has come.
    pub(super) fn read(&mut self) -> Rest {
        let most = self.unread.len() + READ_BATCH;
        while self.unread.len() < most {
            match socket::read_some(&mut self.stream, &mut self.unread) {
                Ok(true) => {}
                Ok(false) => return Rest::Nothing,
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => {
                    // An error other than EPIPE came before any FIN of the peer.
                    let fault = self.fault.take_if(|e| e.kind() != ErrorKind::BrokenPipe);
                    return fault.map_or(Rest::Fin, Rest::Broken);
                }
                Err(e) => return Rest::Broken(e),
            }
        }
        Rest::More
    }

    /// Takes the next message that was read whole.
    pub(super) fn next(&mut self) -> Result<Option<Message>, Wrong> {
        let end = match Peeked::at(&self.unread) {
            Ok(Peeked::Whole { len }) => HEADER_BYTES + len,
            Ok(Peeked::Partial) => return Ok(None),
            Err(e) => return Err(Wrong::Frame(e.to_string())),
        };
        let keys = self.keys.as_mut().ok_or(Wrong::Tag)?;
        let body = keys.open(&self.unread[HEADER_BYTES..end]).ok_or(Wrong::Tag)?;
        let message = Message::decode(body).map_err(|e| Wrong::Frame(e.to_string()))?;
        self.unread.drain(..end);
        Ok(Some(message))
    }

    /// Writes what waits, and drops what has come. Returns whether the connection is over. A peer that
    /// does not stop sending is not waited for.
    pub(super) fn discard(&mut self) -> bool {
        self.write();
        let rest = self.read();
        self.unread.clear();
        !matches!(rest, Rest::Nothing)
    }

    /// Closes the socket at once.
    pub(super) fn hang_up(self) {
        // Fails only if the peer has closed.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    /// Closes the socket by RST: a FIN would mean that this process has ended.
    pub(super) fn abandon(self) {
        socket::reset_on_close(&self.stream);
    }

    #[cfg(test)]
    pub(super) fn is_faulty(&self) -> bool {
        self.fault.is_some()
    }

    #[cfg(any(test, feature = "simulation"))]
    pub(super) fn unread(&self) -> usize {
        self.unread.len()
    }
}

/// Returns the frame of a message, without a tag.
pub(super) fn encoded(message: &Message) -> Result<Vec<u8>> {
    message.encode().map_err(|e| Error::Internal(format!("{} to send: {e}", message.name())))
}

/// Answers a first frame. Returns the session, and the frame of WELCOME, which proves that this end has
/// the secret.
pub(super) fn welcome(first: &Transcript) -> Result<(Session, Vec<u8>)> {
    let challenge = socket::random()?;
    let session = first.session(&challenge);
    let frame = encoded(&Message::Welcome { challenge, proof: session.proof })?;
    Ok((session, frame))
}

/// A TCP connection that has sent its last frame, and waits until the peer has read it and closed.
#[derive(Debug)]
pub(super) struct Lingering {
    wire: Wire,
    /// Bytes that are not sent.
    left: usize,
    until: Instant,
    /// The pause after the next look; `None` while events show what happens.
    pause: Option<Duration>,
}

impl Sockets {
    /// Sends a BYE, and closes the channel once all is sent and the peer has closed. A channel that
    /// is not connected is closed at once.
    pub(super) fn close(&mut self, token: Token) {
        let wire = match self.entries.get(&token) {
            Some(Entry::Link(link)) => link.leave(),
            _ => None,
        };
        self.remove(token);
        // A BYE always encodes.
        let (Some(mut wire), Ok(bye)) = (wire, encoded(&Message::Bye)) else { return };
        // The peer closes at about the same time, and its BYE would wake the thread.
        let unwatched = self.unwatch(&mut wire.stream).is_ok();
        wire.append(bye);
        wire.write();
        let all_sent = wire.unsent() == 0;
        if unwatched && !all_sent {
            // If it fails, the connection ends after the time to linger.
            let _ = self.established.register(&mut *wire.stream, token, BOTH);
        }
        let pause = (unwatched && all_sent).then_some(FIRST_LOOK);
        let entry = self.linger(token, wire, pause);
        self.put_back(token, entry);
    }

    /// Sends `last` on an accepted connection, behind what is queued, and keeps the connection until
    /// the peer has read that.
    pub(super) fn refuse(
        &mut self,
        token: Token,
        (mut wire, addr): (Wire, SocketAddr),
        last: &Message,
    ) -> Option<Entry> {
        wire.append(encoded(last).ok()?);
        // It counts as half open until it ends. It belongs to no listener: NCCL may close that while
        // the peer reads.
        self.add_half_open(token, token, addr);
        self.linger(token, wire, None)
    }

    /// Ends the events of a connection, which is registered with one of the two.
    fn unwatch(&self, stream: &mut TcpStream) -> io::Result<()> {
        let established = self.established.deregister(stream);
        established.or_else(|_| self.handshakes.registry().deregister(stream))
    }

    /// Keeps `wire` until the peer has read its last frame.
    fn linger(&mut self, token: Token, wire: Wire, pause: Option<Duration>) -> Option<Entry> {
        let lingering = Lingering { wire, left: usize::MAX, until: Instant::now(), pause };
        lingering.advance(token, self)
    }
}

impl Lingering {
    /// Extends the time whenever the peer has read something.
    pub(super) fn advance(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        if self.wire.discard() {
            return self.end(me, sockets);
        }
        let left = self.wire.unsent();
        if left < self.left {
            self.left = left;
            if left == 0 {
                // Two ends that close at the same time both wait: each finds the other's end by this.
                // It fails only if the connection has ended.
                let _ = self.wire.stream.shutdown(Shutdown::Write);
            }
            self.until = Instant::now() + LINGER;
            sockets.wake_at(self.until, me);
        }
        let now = Instant::now();
        if now >= self.until {
            return self.end(me, sockets);
        }
        if let Some(pause) = &mut self.pause {
            sockets.wake_at(now + *pause, me);
            *pause *= 2;
        }
        Some(Entry::Lingering(self))
    }

    fn end(self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        self.wire.hang_up();
        sockets.half_open.remove(me);
        None
    }
}
