//! A connection, shared by its [`Channel`](super::Channel) and the thread.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use parking_lot::{Mutex, MutexGuard};
use subtle::ConstantTimeEq;

use super::end::{ChannelState, End};
use super::news::{Call, ChannelEvent, News, Pending};
use super::redial_terms::{RedialId, RedialTerms};
use super::socket::{self, Stream, canonical};
use crate::error::{Error, Result};
use crate::proto::{HEADER_BYTES, Message, Nonce, Peeked};

/// Most messages that may wait to be read. A handshake has six; more of them break the protocol.
const INBOX_MAX: usize = 64;
/// How long a connection counts as just resumed.
const JUST_RESUMED: Duration = Duration::from_millis(500);

#[path = "link_io.rs"]
mod io;
#[cfg(any(test, feature = "simulation"))]
#[path = "link_pieces_tests.rs"]
mod pieces_tests;

#[cfg(any(test, feature = "simulation"))]
pub use pieces_tests::simulated;

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    state: AtomicU8,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    /// `None` while connecting and after the end.
    stream: Option<Stream>,
    peer: Option<SocketAddr>,
    /// Host and process, once the peer's HELLO has come.
    who: String,
    outbox: Vec<u8>,
    unread: Vec<u8>,
    inbox: VecDeque<Message>,
    end: Option<End>,
    /// The message that the owner waits for.
    step: Option<&'static str>,
    /// The handshake is over.
    established: bool,
    /// How the connection is dialled again; `None` without failover.
    redial: Option<RedialTerms>,
    /// The first error of a write: the kernel reports it once, and the next read finds no bytes.
    fault: Option<std::io::Error>,
    /// Since when the connection is broken, and why.
    broken: Option<(Instant, String)>,
    resumed: Option<Instant>,
    pending: Pending,
}

/// Whether the thread must keep a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LinkStatus {
    Open,
    /// To be dialled again.
    Broken,
    Closed,
}

impl Link {
    /// Makes one that is not connected yet.
    pub(super) fn pending() -> Self {
        Self::with_redial(None)
    }

    /// Makes one that is not connected yet and may be dialled again once it is established.
    pub(super) fn with_redial(redial: Option<RedialTerms>) -> Self {
        let inner = Mutex::new(Inner { redial, ..Inner::default() });
        Self { state: AtomicU8::new(ChannelState::Open as u8), inner }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    pub(super) fn state(&self) -> ChannelState {
        ChannelState::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Sets the connected stream, and the bytes that were read from it after the first frame.
    pub(super) fn establish(&self, stream: Stream, peer: SocketAddr, unread: Vec<u8>) {
        let mut inner = self.lock();
        inner.set_stream(stream, Some(peer), unread);
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
        inner.stream.as_deref_mut().map_or(Ok(()), |stream| f(stream, all_sent))
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
        self.lock().name().unwrap_or_else(|| "the peer".into())
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
            return Err(inner.error(end));
        }
        // What is sent to a broken connection is lost: the owner repeats it when it is resumed.
        if inner.broken.is_none() {
            inner.outbox.extend_from_slice(&frame);
        }
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
            return Err(inner.error(end));
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

    /// Ends the handshake. A broken TCP connection may be replaced from now on.
    pub(super) fn set_established(&self) {
        self.lock().established = true;
    }

    /// Sets who is notified of events, or ends that.
    pub(super) fn on_news(&self, hook: Option<Arc<dyn News>>) {
        self.lock().pending.set(hook);
    }

    /// Moves the calls that notify the owner to `calls`.
    pub(super) fn take_news(&self, calls: &mut Vec<Call>) {
        self.lock().pending.take(calls);
    }

    /// Returns by what a re-dial names the connection; `None` if it is not to be dialled again.
    pub(super) fn redial_id(&self) -> Option<RedialId> {
        self.lock().redial.as_ref().map(RedialTerms::id)
    }

    /// Returns how the connection is dialled again.
    pub(super) fn redial_terms(&self) -> Option<RedialTerms> {
        self.lock().redial.clone()
    }

    /// Compares the key of a re-dial in constant time.
    pub(super) fn has_key(&self, key: &Nonce) -> bool {
        self.lock().redial.as_ref().is_some_and(|redial| redial.key().ct_eq(key).into())
    }

    /// Returns since when the connection is broken, and why.
    pub(super) fn broken(&self) -> Option<(Instant, String)> {
        self.lock().broken.clone()
    }

    pub(super) fn just_resumed(&self) -> bool {
        self.lock().resumed.is_some_and(|at| at.elapsed() < JUST_RESUMED)
    }

    /// Breaks the connection: the peer has found that it does not work.
    pub(super) fn interrupt(&self, why: &str) {
        self.break_off(&mut self.lock(), why.into());
    }

    /// Replaces the socket by `stream`, on which `first` is sent, and from which `unread` was read.
    /// Returns when and why the connection broke.
    pub(super) fn resume(&self, stream: Stream, unread: Vec<u8>, first: &[u8]) -> Option<(Instant, String)> {
        let mut inner = self.lock();
        inner.abandon();
        let peer = stream.peer_addr().ok();
        inner.set_stream(stream, peer, unread);
        inner.outbox.extend_from_slice(first);
        inner.resumed = Some(Instant::now());
        self.state.store(ChannelState::Open as u8, Ordering::Release);
        inner.pending.push(ChannelEvent::Resumed);
        inner.broken.take()
    }

    /// Closes the socket at once.
    pub(super) fn abort(&self) {
        self.lock().hang_up();
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
                Err(e) => return self.finish(inner, End::Violation(e.to_string())),
            };
            match Message::decode(&rest[HEADER_BYTES..HEADER_BYTES + len]) {
                Ok(message) => self.queue(inner, message),
                Err(e) => return self.finish(inner, End::Violation(e.to_string())),
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
                return self.finish(inner, End::Violation("WELCOME for the second time".into()));
            }
            Message::Hello(ref hello) => inner.who = format!(" ({}, pid {})", hello.host, hello.pid),
            Message::Callback(callback) => {
                if let Some(redial) = &mut inner.redial {
                    redial.set_peer(callback);
                }
                return;
            }
            Message::Redial(_) | Message::Resume => {
                let text = format!("{} within a connection", message.name());
                return self.finish(inner, End::Violation(text));
            }
            Message::Wiring(_)
            | Message::Ready
            | Message::Probed { .. }
            | Message::Down { .. }
            | Message::State(_)
            | Message::Verdict(_)
            | Message::Rebuild(_)
            | Message::Rebuilt(_)
            | Message::RebuildFailed(_)
            | Message::Proved(_)
            | Message::Up(_)
            | Message::Return { .. }
            | Message::Refuse { .. } => {}
        }
        if inner.inbox.len() == INBOX_MAX {
            return self.finish(
                inner,
                End::Violation(format!("more than {INBOX_MAX} messages that were not requested")),
            );
        }
        inner.inbox.push_back(message);
        inner.pending.push(ChannelEvent::Message);
    }

    /// Marks the connection as broken. Frames that were not sent or not read whole are dropped.
    fn break_off(&self, inner: &mut Inner, why: String) {
        inner.abandon();
        if inner.end.is_none() {
            inner.broken = Some((Instant::now(), why));
            self.state.store(ChannelState::Broken as u8, Ordering::Release);
            inner.pending.push(ChannelEvent::Broken);
        }
    }

    /// Closes the socket and stores the reason, unless there is one already.
    fn finish(&self, inner: &mut Inner, end: End) {
        inner.hang_up();
        if inner.end.is_none() {
            self.state.store(end.state() as u8, Ordering::Release);
            inner.end = Some(end);
            inner.pending.push(ChannelEvent::Ended);
        }
    }
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

    /// Closes the socket by RST: a FIN would mean that this process has ended.
    fn abandon(&mut self) {
        if let Some(stream) = self.stream.take() {
            socket::reset_on_close(&stream);
        }
        self.outbox.clear();
        self.fault = None;
    }

    /// Sets the stream. One that has ended already has no peer: the name stays the last one.
    fn set_stream(&mut self, stream: Stream, peer: Option<SocketAddr>, unread: Vec<u8>) {
        self.peer = peer.map(canonical).or(self.peer);
        self.stream = Some(stream);
        self.unread = unread;
    }

    /// Returns whether a broken TCP connection is replaced by a new one.
    fn may_resume(&self) -> bool {
        self.established && self.redial.as_ref().is_some_and(RedialTerms::is_agreed)
    }

    /// "10.0.0.2:4711 (node7, pid 42)"; `None` before the peer was reached.
    fn name(&self) -> Option<String> {
        self.peer.map(|peer| format!("{peer}{}", self.who))
    }

    fn error(&self, end: &End) -> Error {
        end.error(self.name(), self.step)
    }
}

#[cfg(test)]
#[path = "link_tests.rs"]
mod tests;
