//! A connection, shared by its [`Channel`](super::Channel) and the thread.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr};
use std::sync::atomic::{AtomicU8, Ordering};

use mio::net::TcpStream;
use parking_lot::{Mutex, MutexGuard};

use super::socket::canonical;
use crate::error::{Error, Result};
use crate::proto::{HEADER_BYTES, Message, Peeked};

/// Most messages that may wait to be read. A handshake has six; more of them break the protocol.
const INBOX_MAX: usize = 64;
/// Most bytes read under one hold of the lock.
const READ_BATCH: usize = 64 << 10;

/// State of the connection to the peer, as far as this end knows. Read with one atomic load.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum ChannelState {
    /// No end of the connection is known. A connection that is not established yet counts as open.
    Open,
    /// The peer has sent BYE.
    ByePeer,
    /// The peer has ended without a BYE, cannot be reached, or breaks the protocol.
    Lost,
}

/// One connection.
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
    /// Host and process, once the peer's HELLO has come.
    who: String,
    outbox: Vec<u8>,
    unread: Vec<u8>,
    inbox: VecDeque<Message>,
    end: Option<End>,
    /// The message that the owner waits for.
    step: Option<&'static str>,
}

/// Why the connection has ended.
#[derive(Debug)]
enum End {
    Bye,
    Lost(String),
    Broken(String),
}

/// Whether the thread must keep a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkStatus {
    Open,
    Closed,
}

impl Link {
    /// Makes one that is not connected yet.
    pub(super) fn pending() -> Self {
        Self { state: AtomicU8::new(ChannelState::Open as u8), inner: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn state(&self) -> ChannelState {
        match self.state.load(Ordering::Acquire) {
            0 => ChannelState::Open,
            1 => ChannelState::ByePeer,
            _ => ChannelState::Lost,
        }
    }

    /// Sets the connected stream, and the bytes that were read from it after the first frame.
    pub(super) fn establish(&self, stream: TcpStream, peer: SocketAddr, unread: Vec<u8>) {
        let mut inner = self.lock();
        inner.peer = Some(canonical(peer));
        inner.stream = Some(stream);
        inner.unread = unread;
        self.decode_frames(&mut inner);
        self.write(&mut inner);
    }

    /// Passes the socket to `f`, and whether everything is sent. Does nothing if there is none.
    pub(super) fn with_stream(
        &self,
        f: impl FnOnce(&mut TcpStream, bool) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        let mut inner = self.lock();
        let all_sent = inner.outbox.is_empty();
        inner.stream.as_mut().map_or(Ok(()), |stream| f(stream, all_sent))
    }

    /// Queues `message` as if it had just come.
    pub(super) fn deliver(&self, message: Message) {
        self.queue(&mut self.lock(), message);
    }

    /// Ends a connection that was never established.
    pub(super) fn fail(&self, why: String) {
        self.finish(&mut self.lock(), End::Lost(why));
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.lock().peer
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.lock().stream.as_ref()?.local_addr().ok().map(canonical)
    }

    pub(super) fn describe(&self) -> String {
        self.lock().label()
    }

    pub(super) fn expect(&self, step: Option<&'static str>) {
        self.lock().step = step;
    }

    /// Queues a frame. The next [`flush`](Self::flush) writes it.
    pub(super) fn enqueue(&self, message: &Message) -> Result<()> {
        let frame =
            message.encode().map_err(|e| Error::Internal(format!("{} to send: {e}", message.name())))?;
        let mut inner = self.lock();
        if let Some(end) = &inner.end {
            return Err(end.error(&inner));
        }
        inner.outbox.extend_from_slice(&frame);
        Ok(())
    }

    /// Writes as much of what is queued as the socket accepts. The rest is written when the socket
    /// is ready.
    pub(super) fn flush(&self) {
        self.write(&mut self.lock());
    }

    /// Queues a frame and writes as much as the socket accepts.
    pub(super) fn send(&self, message: &Message) -> Result<()> {
        self.enqueue(message)?;
        self.flush();
        Ok(())
    }

    pub(super) fn has_message(&self) -> bool {
        !self.lock().inbox.is_empty()
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

    /// Queues a BYE, and writes as much as the socket accepts.
    pub(super) fn send_bye(&self) {
        // A BYE always encodes, and a lost peer needs none.
        let _ = self.send(&Message::Bye);
    }

    /// Returns how many bytes wait to be sent.
    pub(super) fn unsent(&self) -> usize {
        self.lock().outbox.len()
    }

    /// Closes the socket at once.
    pub(super) fn abort(&self) {
        self.lock().hang_up();
    }

    /// Writes what waits and reads what has come. Called by the thread.
    pub(super) fn on_ready(&self) -> LinkStatus {
        loop {
            let mut inner = self.lock();
            self.write(&mut inner);
            let drained = self.read(&mut inner);
            self.decode_frames(&mut inner);
            if inner.stream.is_none() {
                return LinkStatus::Closed;
            }
            if drained {
                return LinkStatus::Open;
            }
        }
    }

    /// Reads and drops what comes after our own BYE. Returns `Closed` when the peer has closed too.
    pub(super) fn discard(&self) -> LinkStatus {
        let mut inner = self.lock();
        self.write(&mut inner);
        let Some(mut stream) = inner.stream.as_ref() else { return LinkStatus::Closed };
        let mut sink = [0; 4096];
        for _ in 0..READ_BATCH / sink.len() {
            match stream.read(&mut sink) {
                Ok(0) => return LinkStatus::Closed,
                Ok(_) => {}
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return LinkStatus::Open,
                Err(_) => return LinkStatus::Closed,
            }
        }
        // A peer that keeps sending after our BYE is not waited for.
        LinkStatus::Closed
    }

    fn write(&self, inner: &mut Inner) {
        if inner.outbox.is_empty() {
            return;
        }
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
            // What the peer sent before it closed is still to be read; `read` finds the end.
            inner.outbox.clear();
            if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) {
                return;
            }
            self.finish(inner, End::Lost(format!("sending failed: {e}")));
        }
    }

    /// Returns `true` when there is nothing more to read now.
    fn read(&self, inner: &mut Inner) -> bool {
        let mut batch = 0;
        let mut chunk = [0; 4096];
        while batch < READ_BATCH {
            let Some(mut stream) = inner.stream.as_ref() else { return true };
            match stream.read(&mut chunk) {
                Ok(0) => {
                    self.decode_frames(inner);
                    self.finish(
                        inner,
                        End::Lost("closed the connection without a BYE; did its process end?".into()),
                    );
                    return true;
                }
                Ok(n) => {
                    inner.unread.extend_from_slice(&chunk[..n]);
                    batch += n;
                }
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) if e.kind() == ErrorKind::WouldBlock => return true,
                Err(e) => {
                    self.decode_frames(inner);
                    self.finish(inner, End::Lost(broken(&e)));
                    return true;
                }
            }
        }
        false
    }

    /// Turns whole frames into messages.
    fn decode_frames(&self, inner: &mut Inner) {
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
                Ok(message) => self.queue(inner, message),
                Err(e) => return self.finish(inner, End::Broken(e.to_string())),
            }
            at += HEADER_BYTES + len;
        }
        unread.drain(..at);
        inner.unread = unread;
    }

    fn queue(&self, inner: &mut Inner, message: Message) {
        match message {
            Message::Bye => return self.finish(inner, End::Bye),
            Message::Welcome { .. } => {
                return self.finish(inner, End::Broken("WELCOME for the second time".into()));
            }
            Message::Hello(ref hello) => inner.who = format!(" ({}, pid {})", hello.host, hello.pid),
            Message::Wiring(_)
            | Message::Ready
            | Message::Probed { .. }
            | Message::Down { .. }
            | Message::State(_)
            | Message::Verdict(_)
            | Message::Refuse { .. } => {}
        }
        if inner.inbox.len() == INBOX_MAX {
            return self.finish(
                inner,
                End::Broken(format!("more than {INBOX_MAX} messages that were not requested")),
            );
        }
        inner.inbox.push_back(message);
    }

    /// Closes the socket and stores the reason, unless there is one already.
    fn finish(&self, inner: &mut Inner, end: End) {
        inner.hang_up();
        if inner.end.is_none() {
            let state = if matches!(end, End::Bye) { ChannelState::ByePeer } else { ChannelState::Lost };
            inner.end = Some(end);
            self.state.store(state as u8, Ordering::Release);
        }
    }
}

/// Describes a failed read. A process that ends with unread bytes resets its connections; those of
/// a host that ends time out.
fn broken(e: &std::io::Error) -> String {
    let cause = match e.kind() {
        ErrorKind::ConnectionReset => "; did its process end?",
        ErrorKind::TimedOut => "; is its host up, and the network between?",
        _ => "",
    };
    format!("the connection broke: {e}{cause}")
}

impl Inner {
    /// Shuts the socket down before it closes it: a forked child holds the socket too, and a close
    /// alone would leave the peer waiting.
    fn hang_up(&mut self) {
        if let Some(stream) = self.stream.take() {
            // Fails only if the peer has closed.
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
            // Never established: the reason names the addresses.
            Self::Lost(why) if inner.peer.is_none() => Error::Peer(why.clone()),
            Self::Bye => Error::Peer(format!("{label} has closed the connection{during}")),
            Self::Lost(why) => Error::Peer(format!("{label}: {why}{during}")),
            Self::Broken(why) => Error::Protocol(format!("{label} sent {why}{during}")),
        }
    }
}
