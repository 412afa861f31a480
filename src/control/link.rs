//! An established connection, shared by its [`Channel`](super::Channel) and the thread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use mio::net::TcpStream;

use super::socket::canonical;
use crate::error::{Error, Result};
use crate::proto::{HEADER_BYTES, Message, Peeked};

/// Messages that may wait to be read. A handshake has six; more means that the peer does not follow it.
const INBOX_MAX: usize = 64;
/// Bytes read under one hold of the lock.
const READ_TURN: usize = 64 << 10;

/// What is known of the peer; one atomic load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum State {
    /// Not known to be gone. A connection under way counts as open.
    Open,
    /// It closed in good order.
    ByePeer,
    /// It is gone without a word, cannot be reached, or breaks the protocol.
    Lost,
}

/// Shared by the channel and the thread.
#[derive(Debug)]
pub(super) struct Link {
    state: AtomicU8,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` while connecting and after the end.
    stream: Option<TcpStream>,
    peer: Option<SocketAddr>,
    local: Option<SocketAddr>,
    /// Host and process, once its HELLO has come.
    who: String,
    outbox: Vec<u8>,
    unread: Vec<u8>,
    inbox: VecDeque<Message>,
    end: Option<End>,
    /// The message that the owner waits for.
    step: Option<&'static str>,
}

/// Why nothing more will come.
#[derive(Debug)]
enum End {
    Bye,
    Lost(String),
    Broken(String),
}

/// Whether the thread must go on watching a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Watch {
    Keep,
    Done,
}

impl Link {
    /// Not connected yet.
    pub(super) fn pending() -> Self {
        Self { state: AtomicU8::new(State::Open as u8), inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn state(&self) -> State {
        match self.state.load(Ordering::Acquire) {
            0 => State::Open,
            1 => State::ByePeer,
            _ => State::Lost,
        }
    }

    /// Takes a connected stream and what has been read from it behind the first frame.
    pub(super) fn establish(&self, stream: TcpStream, unread: Vec<u8>) {
        let mut inner = self.lock();
        inner.peer = stream.peer_addr().ok().map(canonical);
        inner.local = stream.local_addr().ok().map(canonical);
        inner.stream = Some(stream);
        inner.unread = unread;
        self.take_frames(&mut inner);
        self.flush(&mut inner);
    }

    /// As if `message` had come.
    pub(super) fn deliver(&self, message: Message) {
        self.take(&mut self.lock(), message);
    }

    /// Ends a connection that never came about.
    pub(super) fn fail(&self, why: String) {
        self.finish(&mut self.lock(), End::Lost(why));
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.lock().peer
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.lock().local
    }

    pub(super) fn describe(&self) -> String {
        self.lock().label()
    }

    pub(super) fn expect(&self, step: Option<&'static str>) {
        self.lock().step = step;
    }

    /// Queues a frame and writes what the socket takes now; the thread writes the rest.
    pub(super) fn send(&self, message: &Message) -> Result<()> {
        let frame =
            message.encode().map_err(|e| Error::Internal(format!("{} to send: {e}", message.name())))?;
        let mut inner = self.lock();
        if let Some(end) = &inner.end {
            return Err(end.error(&inner));
        }
        inner.outbox.extend_from_slice(&frame);
        self.flush(&mut inner);
        Ok(())
    }

    pub(super) fn try_recv(&self) -> Result<Option<Message>> {
        let mut inner = self.lock();
        if let Some(message) = inner.inbox.pop_front() {
            return Ok(Some(message));
        }
        if let Some(end) = &inner.end {
            return Err(end.error(&inner));
        }
        Ok(None)
    }

    /// Queues a BYE, and writes what the socket takes now.
    pub(super) fn say_bye(&self) {
        // Its only errors: a BYE always encodes, and a peer that is gone needs none.
        let _ = self.send(&Message::Bye);
    }

    /// Bytes that wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.lock().outbox.len()
    }

    /// Closes the socket at once.
    pub(super) fn abort(&self) {
        self.lock().hang_up();
    }

    /// The thread's turn: writes what waits, reads what has come.
    pub(super) fn on_ready(&self) -> Watch {
        loop {
            let mut inner = self.lock();
            self.flush(&mut inner);
            let drained = self.read(&mut inner);
            self.take_frames(&mut inner);
            if inner.stream.is_none() {
                return Watch::Done;
            }
            if drained {
                return Watch::Keep;
            }
        }
    }

    /// Reads and forgets, after our own BYE. Done when the peer has closed, too.
    pub(super) fn discard(&self) -> Watch {
        let mut inner = self.lock();
        self.flush(&mut inner);
        let Some(mut stream) = inner.stream.as_ref() else { return Watch::Done };
        let mut sink = [0; 4096];
        for _ in 0..READ_TURN / sink.len() {
            match stream.read(&mut sink) {
                Ok(0) => return Watch::Done,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Watch::Keep,
                Err(_) => return Watch::Done,
            }
        }
        // A peer that goes on sending after our BYE is not worth waiting for.
        Watch::Done
    }

    fn flush(&self, inner: &mut Inner) {
        let Some(mut stream) = inner.stream.as_ref() else { return };
        let mut done = 0;
        let lost = loop {
            if done == inner.outbox.len() {
                break None;
            }
            match stream.write(&inner.outbox[done..]) {
                Ok(n) => done += n,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => break None,
                Err(e) => break Some(e),
            }
        };
        inner.outbox.drain(..done);
        if let Some(e) = lost {
            // What the peer said before it went is still to be read; `read` finds the end.
            inner.outbox.clear();
            if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
                return;
            }
            self.finish(inner, End::Lost(format!("sending failed: {e}")));
        }
    }

    /// `true` when there is no more to read now.
    fn read(&self, inner: &mut Inner) -> bool {
        let mut turn = 0;
        let mut chunk = [0; 4096];
        while turn < READ_TURN {
            let Some(mut stream) = inner.stream.as_ref() else { return true };
            match stream.read(&mut chunk) {
                Ok(0) => {
                    self.take_frames(inner);
                    self.finish(
                        inner,
                        End::Lost("closed the connection without a word; did its process end?".into()),
                    );
                    return true;
                }
                Ok(n) => {
                    inner.unread.extend_from_slice(&chunk[..n]);
                    turn += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) => {
                    self.take_frames(inner);
                    self.finish(inner, End::Lost(broken(&e)));
                    return true;
                }
            }
        }
        false
    }

    /// Turns whole frames into messages.
    fn take_frames(&self, inner: &mut Inner) {
        let mut unread = std::mem::take(&mut inner.unread);
        let mut at = 0;
        while inner.end.is_none() {
            let rest = &unread[at..];
            let len = match Peeked::at(rest) {
                Ok(Peeked::Whole { len }) => len,
                Ok(Peeked::Partial) => break,
                Err(e) => return self.finish(inner, End::Broken(e.to_string())),
            };
            match Message::decode(&rest[HEADER_BYTES..HEADER_BYTES + len]) {
                Ok(message) => self.take(inner, message),
                Err(e) => return self.finish(inner, End::Broken(e.to_string())),
            }
            at += HEADER_BYTES + len;
        }
        unread.drain(..at);
        inner.unread = unread;
    }

    fn take(&self, inner: &mut Inner, message: Message) {
        match message {
            Message::Bye => return self.finish(inner, End::Bye),
            Message::Welcome { .. } => {
                return self.finish(inner, End::Broken("WELCOME for the second time".into()));
            }
            Message::Hello(ref hello) => inner.who = format!(" ({}, pid {})", hello.host, hello.pid),
            Message::Wiring(_) | Message::Ready | Message::Probed { .. } | Message::Refuse { .. } => {}
        }
        if inner.inbox.len() == INBOX_MAX {
            return self
                .finish(inner, End::Broken(format!("more than {INBOX_MAX} messages that nobody asked for")));
        }
        inner.inbox.push_back(message);
    }

    /// The first end counts, and closes the socket: after a BYE, too, nothing that we say matters.
    fn finish(&self, inner: &mut Inner, end: End) {
        inner.hang_up();
        if inner.end.is_none() {
            let state = if matches!(end, End::Bye) { State::ByePeer } else { State::Lost };
            inner.end = Some(end);
            self.state.store(state as u8, Ordering::Release);
        }
    }
}

/// A process that ends with something unread resets its connections; a host that ends lets them time out.
fn broken(e: &std::io::Error) -> String {
    let cause = match e.kind() {
        ErrorKind::ConnectionReset => "; did its process end?",
        ErrorKind::TimedOut => "; is its host up, and the network between?",
        _ => "",
    };
    format!("the connection broke: {e}{cause}")
}

impl Inner {
    /// Not only closed: a process that was forked from this one holds the socket as well, and would keep the peer waiting.
    fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            // It fails only where the peer is gone already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// "10.0.0.2:4711 (node7, pid 42)"
    fn label(&self) -> String {
        match self.peer {
            Some(peer) => format!("{peer}{}", self.who),
            None => "the peer".into(),
        }
    }
}

impl End {
    fn error(&self, inner: &Inner) -> Error {
        let during = inner.step.map_or(String::new(), |step| format!(" while this end waited for {step}"));
        let label = inner.label();
        match self {
            // It never came about: the reason names the addresses.
            Self::Lost(why) if inner.peer.is_none() => Error::Peer(why.clone()),
            Self::Bye => Error::Peer(format!("{label} has closed the connection{during}")),
            Self::Lost(why) => Error::Peer(format!("{label}: {why}{during}")),
            Self::Broken(why) => Error::Protocol(format!("{label} sent {why}{during}")),
        }
    }
}
