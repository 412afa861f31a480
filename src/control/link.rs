//! A connection, shared by its [`Channel`](super::Channel) and the thread.

use std::collections::VecDeque;
use std::net::{Shutdown, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use parking_lot::{Mutex, MutexGuard};

use super::beginnings::RedialId;
use super::end::{ChannelState, End};
use super::news::{Call, ChannelEvent, News, Pending};
use super::redial_terms::RedialTerms;
use super::socket::{self, Stream, canonical};
use crate::error::{Error, Result};
use crate::proto::{FrameKey, Keys, Message, Role, Secret, Session};

/// How long PROOF is delayed, to be sent together with the next message. Until it is sent, the
/// listener cannot distinguish the death of the connector from the end of a copy of its HELLO.
pub(super) const PROOF_WAITS: Duration = Duration::from_millis(10);
/// How long a connection counts as just resumed.
const JUST_RESUMED: Duration = Duration::from_millis(500);

#[path = "link_frames.rs"]
mod frames;
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
    security: Security,
    outbox: Vec<u8>,
    /// Until when the outbox waits: it holds PROOF alone.
    held_until: Option<Instant>,
    unread: Vec<u8>,
    inbox: VecDeque<Message>,
    end: Option<End>,
    /// The message that the owner waits for.
    step: Option<&'static str>,
    /// The handshake is over.
    established: bool,
    /// Whether CALLBACK has come.
    called_back: bool,
    /// How the connection is dialled again; `None` without failover.
    redial: Option<RedialTerms>,
    /// The first error of a write: the kernel reports it once, and the next read finds no bytes.
    fault: Option<std::io::Error>,
    /// Since when the connection is broken, and why.
    broken: Option<(Instant, String)>,
    resumed: Option<Instant>,
    pending: Pending,
    /// Whether the peer has shown that it knows the secret, with the keys of this connection.
    proved: bool,
    /// Frames with a wrong tag so far.
    forged: u32,
    /// Whether the last one is not counted in the statistics yet.
    forged_news: bool,
}

/// How frames are authenticated.
#[derive(Debug, Default)]
enum Security {
    /// They are not. Such a connection reads nothing.
    #[default]
    None,
    /// The keys are not known yet: these frames wait.
    Awaited(Vec<Vec<u8>>),
    Keys(Box<Keys>),
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
    /// Makes one that sends frames without tags, and reads none.
    pub(super) fn unauthenticated() -> Self {
        Self::of(Inner::default())
    }

    /// Makes one that is not connected yet and may be dialled again once it is established.
    pub(super) fn with_redial(redial: Option<RedialTerms>) -> Self {
        Self::of(Inner { redial, security: Security::Awaited(Vec::new()), ..Inner::default() })
    }

    fn of(inner: Inner) -> Self {
        Self { state: AtomicU8::new(ChannelState::Open as u8), inner: Mutex::new(inner) }
    }

    /// Sets the keys of the end with `role`. `early` is the key of an acceptor's first frames.
    /// A connector queues its PROOF, and then what has waited for the keys. PROOF alone waits for
    /// [`PROOF_WAITS`].
    pub(super) fn secure(&self, session: &Session, role: Role, early: Option<FrameKey>) -> Result<()> {
        let mut inner = self.lock();
        let mut frames = Vec::new();
        if role == Role::Connector {
            frames.push(encoded(&Message::Proof)?);
            // The WELCOME that led here was the listener's proof.
            inner.proved = true;
        }
        let mut waits = role == Role::Connector;
        if let Security::Awaited(waiting) = std::mem::take(&mut inner.security) {
            waits &= waiting.is_empty();
            frames.extend(waiting);
        }
        inner.security = Security::Keys(Box::new(session.keys_of(role, early)));
        if let Some(redial) = &mut inner.redial {
            redial.set_key(session.resume);
        }
        frames.into_iter().for_each(|frame| inner.append(frame));
        inner.held_until = waits.then(|| Instant::now() + PROOF_WAITS);
        Ok(())
    }

    /// Queues a frame that has no tag: the answer to the first frame.
    pub(super) fn enqueue_first(&self, frame: &[u8]) {
        self.lock().outbox.extend_from_slice(frame);
    }

    /// Returns whether the peer has shown that it knows the secret.
    pub(super) fn is_proved(&self) -> bool {
        self.lock().proved
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

    /// Returns whether the connection has ended by a fault of its TCP connection.
    pub(super) fn is_broken_for_good(&self) -> bool {
        matches!(self.lock().end, Some(End::Broken(_)))
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
        let frame = encoded(message)?;
        let mut inner = self.lock();
        if let Some(end) = &inner.end {
            return Err(inner.error(end));
        }
        // What is sent to a broken connection is lost: the owner repeats it when it is resumed.
        if inner.broken.is_none() {
            inner.append(frame);
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
            // The owner answers, or flushes what waits.
            inner.held_until = None;
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
        let mut inner = self.lock();
        inner.established = true;
        inner.redial.iter_mut().for_each(RedialTerms::end_handshake);
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

    /// Returns the key by which re-dials are authenticated.
    pub(super) fn redial_key(&self) -> Option<Secret> {
        self.lock().redial.as_ref().and_then(RedialTerms::key)
    }

    /// Returns since when the connection is broken, and why.
    pub(super) fn broken(&self) -> Option<(Instant, String)> {
        self.lock().broken.clone()
    }

    pub(super) fn just_resumed(&self) -> bool {
        self.lock().resumed.is_some_and(|at| at.elapsed() < JUST_RESUMED)
    }

    /// Returns whether a frame with a wrong tag has come since the last call.
    pub(super) fn take_forged(&self) -> bool {
        std::mem::take(&mut self.lock().forged_news)
    }

    /// Breaks the connection: the peer has found that it does not work.
    pub(super) fn interrupt(&self, why: &str) {
        self.break_off(&mut self.lock(), why.into());
    }

    /// Replaces the socket by `stream` with these keys. `sent` are frames with their tags that are
    /// to be sent first, `unread` was read from the socket. Returns when and why the connection broke.
    pub(super) fn resume(
        &self,
        stream: Stream,
        keys: Keys,
        sent: &[u8],
        unread: Vec<u8>,
    ) -> Option<(Instant, String)> {
        let mut inner = self.lock();
        inner.abandon();
        let peer = stream.peer_addr().ok();
        inner.set_stream(stream, peer, unread);
        inner.security = Security::Keys(Box::new(keys));
        inner.outbox.extend_from_slice(sent);
        inner.resumed = Some(Instant::now());
        self.state.store(ChannelState::Open as u8, Ordering::Release);
        inner.pending.push(ChannelEvent::Resumed);
        inner.broken.take()
    }

    /// Closes the socket at once.
    pub(super) fn abort(&self) {
        self.lock().hang_up();
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
        inner.redial.iter_mut().for_each(RedialTerms::end_handshake);
        if inner.end.is_none() {
            self.state.store(end.state() as u8, Ordering::Release);
            inner.end = Some(end);
            inner.pending.push(ChannelEvent::Ended);
        }
    }
}

/// Returns the frame of a message, without a tag.
pub(super) fn encoded(message: &Message) -> Result<Vec<u8>> {
    message.encode().map_err(|e| Error::Internal(format!("{} to send: {e}", message.name())))
}

impl Inner {
    /// Queues a frame with its tag.
    fn append(&mut self, mut frame: Vec<u8>) {
        match &mut self.security {
            Security::None => {}
            Security::Awaited(frames) => return frames.push(frame),
            Security::Keys(keys) => keys.seal(&mut frame),
        }
        self.outbox.extend_from_slice(&frame);
        self.held_until = None;
    }

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
pub(super) mod tests;
