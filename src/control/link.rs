//! A control connection, shared by its [`Channel`](super::Channel) and the thread.

use std::collections::VecDeque;
use std::fmt;
use std::io::{self, ErrorKind};
use std::mem;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use mpib_proto::{Message, Nonce, Role, Secret};
use parking_lot::{Mutex, MutexGuard};

use super::channel::{ChannelEvent, ChannelObserver, ChannelState};
use super::redial::RedialTerms;
use super::socket::canonical;
use super::wire::{Rest, Wire, Wrong, encoded};
use crate::error::{Error, Result};

/// How long PROOF is delayed, to be sent together with the next message.
pub(super) const PROOF_WAITS: Duration = Duration::from_millis(10);
/// How long a connection counts as just resumed.
const JUST_RESUMED: Duration = Duration::from_millis(500);
/// Most messages that may wait to be read. A handshake has six; more of them break the protocol.
const INBOX_MAX: usize = 64;

#[cfg(any(test, feature = "simulation"))]
#[path = "link_pieces_tests.rs"]
mod pieces_tests;

#[cfg(any(test, feature = "simulation"))]
pub use pieces_tests::simulated;

/// One connection.
#[derive(Debug)]
pub(super) struct Link {
    /// The state of the phase, for the data path.
    state: AtomicU8,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    phase: Phase,
    /// The last address of the peer.
    peer: Option<SocketAddr>,
    /// Its host and process, once its HELLO has come.
    who: Option<(String, u32)>,
    /// Both together: "10.0.0.2:4711 (node7, pid 42)". `None` before the peer was reached.
    name: Option<Arc<str>>,
    inbox: VecDeque<Message>,
    /// The message that the owner waits for.
    step: Option<&'static str>,
    /// How the connection is dialled again; `None` without failover.
    redial: Option<RedialTerms>,
    /// Whether the peer has shown that it knows the secret, with the keys of this connection.
    proved: bool,
    /// Whether a frame with a wrong tag has come that is not counted in the statistics yet.
    forged: bool,
    pending: Pending,
}

/// The phases of a connection, in order. A broken one can be open again.
#[derive(Debug)]
enum Phase {
    /// There is no TCP connection yet. These frames follow the proof.
    Connecting(Vec<Vec<u8>>),
    Handshake(Wire),
    /// The handshake is over.
    Open {
        wire: Wire,
        /// When this TCP connection has replaced a broken one.
        resumed: Option<Instant>,
    },
    /// The TCP connection broke. The connection is dialled again.
    Broken(Break),
    Ended(End),
}

/// The time without a TCP connection. Displays why the one before broke, and why there is no other
/// one yet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Break {
    pub(crate) since: Instant,
    /// Why the TCP connection broke.
    why: String,
    /// When the one that broke had replaced another.
    resumed: Option<Instant>,
    dials: FailedDials,
}

/// How the last dials of a broken connection have failed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct FailedDials {
    /// Each address with its error.
    pub(super) failures: String,
    /// Whether all addresses have failed, and the one over which the ends were connected refuses.
    pub(super) is_refused: bool,
}

impl Break {
    /// Returns whether the peer's host has answered the last dials, and nothing listens there: the peer
    /// listens as long as it has a connection.
    pub(crate) fn is_refused(&self) -> bool {
        self.dials.is_refused
    }
}

/// Why a connection has ended.
#[derive(Debug)]
enum End {
    Bye,
    /// This end has closed the connection.
    Left,
    Lost(String),
    /// The TCP connection was reset, has timed out or was changed on the way, which says nothing of
    /// the peer.
    Broken(String),
    /// The peer breaks the protocol.
    Violation(String),
}

/// The events of a channel that its owner has not been notified of.
#[derive(Debug, Default)]
struct Pending {
    hook: Option<Arc<dyn ChannelObserver>>,
    events: Vec<ChannelEvent>,
}

/// A call to be made without locks.
pub(super) type Call = (Arc<dyn ChannelObserver>, ChannelEvent);

impl Default for Phase {
    fn default() -> Self {
        Self::Connecting(Vec::new())
    }
}

impl Phase {
    fn state(&self) -> ChannelState {
        match self {
            Self::Connecting(_) | Self::Handshake(_) | Self::Open { .. } => ChannelState::Open,
            Self::Broken(_) => ChannelState::Broken,
            Self::Ended(End::Bye) => ChannelState::ByePeer,
            Self::Ended(_) => ChannelState::Lost,
        }
    }

    fn wire(&mut self) -> Option<&mut Wire> {
        match self {
            Self::Handshake(wire) | Self::Open { wire, .. } => Some(wire),
            Self::Connecting(_) | Self::Broken(_) | Self::Ended(_) => None,
        }
    }

    fn into_wire(self) -> Option<Wire> {
        match self {
            Self::Handshake(wire) | Self::Open { wire, .. } => Some(wire),
            Self::Connecting(_) | Self::Broken(_) | Self::Ended(_) => None,
        }
    }
}

impl Link {
    /// Makes one that is not connected yet, and may be dialled again once it is established.
    pub(super) fn new(redial: Option<RedialTerms>) -> Self {
        let inner = Inner { redial, ..Inner::default() };
        Self { state: AtomicU8::new(ChannelState::Open as u8), inner: Mutex::new(inner) }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock()
    }

    /// Begins the handshake on a TCP connection to `peer`, as the end with `role`. A connector sends its
    /// PROOF, and then what has waited; PROOF alone waits for [`PROOF_WAITS`]. `key` is the secret of a
    /// TCP connection that replaces this one.
    pub(super) fn begin(&self, mut wire: Wire, role: Role, peer: SocketAddr, key: Nonce) -> Result<()> {
        let mut inner = self.lock();
        let Phase::Connecting(waiting) = &mut inner.phase else { return Ok(()) };
        let waiting = mem::take(waiting);
        if role == Role::Connector {
            wire.append(encoded(&Message::Proof)?);
            if waiting.is_empty() {
                wire.hold_until(Instant::now() + PROOF_WAITS);
            }
            // The WELCOME that led here was the listener's proof.
            inner.proved = true;
        }
        waiting.into_iter().for_each(|frame| wire.append(frame));
        inner.phase = Phase::Handshake(wire);
        inner.set_peer(canonical(peer));
        if let Some(redial) = &mut inner.redial {
            redial.set_key(key);
        }
        self.decode(&mut inner);
        // An acceptor's owner may add to its first packet.
        if role == Role::Connector {
            inner.phase.wire().into_iter().for_each(Wire::write);
        }
        Ok(())
    }

    /// Ends the handshake. A broken TCP connection may be replaced from now on.
    pub(super) fn set_established(&self) {
        let mut inner = self.lock();
        inner.phase = match mem::take(&mut inner.phase) {
            Phase::Handshake(wire) => Phase::Open { wire, resumed: None },
            other => other,
        };
    }

    /// Goes on with `wire` in place of the present TCP connection of an established connection.
    /// Returns the break that this ends.
    pub(super) fn attach(&self, wire: Wire) -> Option<Break> {
        let mut inner = self.lock();
        let broke = match &inner.phase {
            Phase::Broken(broke) => Some(broke.clone()),
            Phase::Open { .. } => None,
            Phase::Connecting(_) | Phase::Handshake(_) | Phase::Ended(_) => {
                wire.abandon();
                return None;
            }
        };
        wire.peer().into_iter().for_each(|peer| inner.set_peer(peer));
        let open = Phase::Open { wire, resumed: Some(Instant::now()) };
        self.enter(&mut inner, open, ChannelEvent::Resumed).into_iter().for_each(Wire::abandon);
        broke
    }

    /// Ends the connection on this end's side, unless it has ended. Returns the TCP connection, if there
    /// is one.
    pub(super) fn leave(&self) -> Option<Wire> {
        let mut inner = self.lock();
        if matches!(inner.phase, Phase::Ended(_)) {
            return None;
        }
        self.enter(&mut inner, Phase::Ended(End::Left), ChannelEvent::Ended)
    }

    /// Ends the connection, for another reason than its TCP connection.
    pub(super) fn fail(&self, why: String) {
        self.finish(&mut self.lock(), End::Lost(why));
    }

    /// Ends the TCP connection by a reset.
    pub(super) fn interrupt(&self, why: &str) {
        self.lose(&mut self.lock(), why.into());
    }

    /// Returns the state: one atomic load.
    pub(super) fn state(&self) -> ChannelState {
        ChannelState::from_raw(self.state.load(Ordering::Acquire))
    }

    /// Passes the TCP connection to `f`. Does nothing if there is none.
    pub(super) fn with_wire(&self, f: impl FnOnce(&mut Wire) -> io::Result<()>) -> io::Result<()> {
        self.lock().phase.wire().map_or(Ok(()), f)
    }

    /// Returns whether the peer has shown that it knows the secret.
    pub(super) fn is_proved(&self) -> bool {
        self.lock().proved
    }

    /// Returns whether the connection has ended by a fault of its TCP connection.
    pub(super) fn is_broken_for_good(&self) -> bool {
        matches!(self.lock().phase, Phase::Ended(End::Broken(_)))
    }

    /// Returns whether this end has closed the connection.
    pub(super) fn has_left(&self) -> bool {
        matches!(self.lock().phase, Phase::Ended(End::Left))
    }

    pub(super) fn peer(&self) -> Option<SocketAddr> {
        self.lock().peer
    }

    pub(super) fn local(&self) -> Option<SocketAddr> {
        self.lock().phase.wire()?.local()
    }

    pub(super) fn describe(&self) -> Arc<str> {
        self.lock().name.clone().unwrap_or_else(|| "the peer".into())
    }

    pub(super) fn expect(&self, step: Option<&'static str>) {
        self.lock().step = step;
    }

    /// Queues `message` as if it had just come.
    pub(super) fn deliver(&self, message: Message) {
        self.queue(&mut self.lock(), message);
    }

    /// Queues a frame. The next [`flush`](Self::flush) writes it.
    pub(super) fn enqueue(&self, message: &Message) -> Result<()> {
        let frame = encoded(message)?;
        let mut inner = self.lock();
        if let Some(error) = inner.error() {
            return Err(error);
        }
        match &mut inner.phase {
            Phase::Connecting(waiting) => waiting.push(frame),
            Phase::Handshake(wire) | Phase::Open { wire, .. } => wire.append(frame),
            // It is lost: the owner repeats it when the connection is resumed.
            Phase::Broken(_) | Phase::Ended(_) => {}
        }
        Ok(())
    }

    /// Writes as much of what is queued as the socket accepts. The rest is written when the socket
    /// is ready.
    pub(super) fn flush(&self) {
        self.lock().phase.wire().into_iter().for_each(Wire::write);
    }

    pub(super) fn has_message(&self) -> bool {
        !self.lock().inbox.is_empty()
    }

    pub(super) fn try_recv(&self) -> Result<Option<Message>> {
        let mut inner = self.lock();
        if let Some(message) = inner.inbox.pop_front() {
            // The owner answers, or flushes what waits.
            inner.phase.wire().into_iter().for_each(Wire::release);
            return Ok(Some(message));
        }
        inner.error().map_or(Ok(None), Err)
    }

    /// Sets who is notified of events, or ends that.
    pub(super) fn observe(&self, hook: Option<Arc<dyn ChannelObserver>>) {
        self.lock().pending = Pending { hook, events: Vec::new() };
    }

    /// Moves the calls that notify the owner to `calls`.
    pub(super) fn take_calls(&self, calls: &mut Vec<Call>) {
        let Pending { hook, events } = &mut self.lock().pending;
        if let Some(hook) = hook {
            calls.extend(events.drain(..).map(|event| (Arc::clone(hook), event)));
        }
    }

    /// Returns how the connection is dialled again; `None` if it is not.
    pub(super) fn redial_terms(&self) -> Option<RedialTerms> {
        self.lock().redial.clone()
    }

    /// Returns the key of re-dials, once the handshake is over.
    pub(super) fn redial_key(&self) -> Option<Secret> {
        let inner = self.lock();
        let key = || inner.redial.as_ref()?.key();
        matches!(inner.phase, Phase::Open { .. } | Phase::Broken(_)).then(key)?
    }

    /// Returns since when the connection is broken, and why.
    pub(super) fn broken(&self) -> Option<Break> {
        self.broken_if(|_| true)
    }

    /// Does so if this is true of the break.
    pub(super) fn broken_if(&self, is_wanted: impl FnOnce(&Break) -> bool) -> Option<Break> {
        let inner = self.lock();
        let Phase::Broken(broke) = &inner.phase else { return None };
        is_wanted(broke).then(|| broke.clone())
    }

    /// Records why a broken connection has not been reached yet, for its owner.
    pub(super) fn set_failed_dials(&self, dials: FailedDials) {
        if let Phase::Broken(broke) = &mut self.lock().phase {
            broke.dials = dials;
        }
    }

    /// Returns whether the present TCP connection, or the one that broke, has just replaced another.
    pub(super) fn just_resumed(&self) -> bool {
        let resumed = match &self.lock().phase {
            Phase::Open { resumed, .. } | Phase::Broken(Break { resumed, .. }) => *resumed,
            _ => None,
        };
        resumed.is_some_and(|at| at.elapsed() < JUST_RESUMED)
    }

    /// Returns whether a frame with a wrong tag has come since the last call.
    pub(super) fn take_forged(&self) -> bool {
        mem::take(&mut self.lock().forged)
    }

    /// Writes what waits and reads what has come. Returns the state then. Called by the thread.
    pub(super) fn on_ready(&self) -> ChannelState {
        loop {
            let mut inner = self.lock();
            let Some(wire) = inner.phase.wire() else { return inner.phase.state() };
            wire.write();
            let rest = wire.read();
            self.decode(&mut inner);
            match rest {
                Rest::More => {}
                Rest::Nothing => return inner.phase.state(),
                // The messages may have ended the connection.
                _ if inner.phase.wire().is_none() => {}
                Rest::Fin => {
                    let why = "closed the connection without a BYE; did its process end?".to_owned();
                    // Within a handshake something between the ends may have closed it.
                    let is_handshake = matches!(inner.phase, Phase::Handshake(_)) && inner.proved;
                    self.finish(&mut inner, if is_handshake { End::Broken(why) } else { End::Lost(why) });
                }
                Rest::Broken(e) => self.lose(&mut inner, broken(&e)),
            }
        }
    }

    /// Turns the frames that were read into messages.
    fn decode(&self, inner: &mut Inner) {
        while let Some(wire) = inner.phase.wire() {
            match wire.next() {
                Ok(Some(message)) => self.queue(inner, message),
                Ok(None) => return,
                Err(Wrong::Frame(what)) => self.finish(inner, End::Violation(what)),
                // Something between the ends, or another process, has written to it.
                Err(Wrong::Tag) => {
                    inner.forged = true;
                    let why = "the peer's address sent a frame with a wrong authentication tag: something \
                               between the ends changes their control connection";
                    self.lose(inner, why.into());
                }
            }
        }
    }

    fn queue(&self, inner: &mut Inner, message: Message) {
        let wrong = match &message {
            Message::Bye => return self.finish(inner, End::Bye),
            Message::Proof if !inner.proved => {
                inner.proved = true;
                return;
            }
            Message::Callback(callback) => {
                let again = inner.redial.as_mut().is_some_and(|redial| redial.set_peer(callback.clone()));
                if !again {
                    return;
                }
                "CALLBACK for the second time".into()
            }
            Message::Welcome { .. } => "WELCOME for the second time".into(),
            Message::Redial(_) | Message::Resume | Message::Proof | Message::Ended { .. } => {
                format!("{} within a connection", message.name())
            }
            Message::Down { .. }
            | Message::State(_)
            | Message::Verdict(_)
            | Message::Rebuild(_)
            | Message::Rebuilt(_)
            | Message::RebuildFailed(_)
            | Message::Proved(_)
            | Message::Up(_)
            | Message::Return { .. }
            | Message::Arrived { .. } => format!("{} without a number", message.name()),
            _ if inner.inbox.len() == INBOX_MAX => {
                format!("more than {INBOX_MAX} messages that were not requested")
            }
            Message::Hello(_)
            | Message::Wiring(_)
            | Message::Ready
            | Message::Probed { .. }
            | Message::Search(_)
            | Message::Found(_)
            | Message::Numbered(_)
            | Message::Refuse { .. } => {
                if let Message::Hello(hello) = &message {
                    inner.set_who(&hello.host, hello.pid);
                }
                inner.inbox.push_back(message);
                inner.pending.push(ChannelEvent::Message);
                return;
            }
        };
        self.finish(inner, End::Violation(wrong));
    }

    /// Ends the TCP connection, which does not work or is not trusted: that says nothing of the peer.
    /// An established connection goes on with another one, if both ends have failover.
    fn lose(&self, inner: &mut Inner, why: String) {
        let Phase::Open { resumed, .. } = inner.phase else { return self.finish(inner, End::Broken(why)) };
        if !inner.redial.as_ref().is_some_and(RedialTerms::is_agreed) {
            return self.finish(inner, End::Broken(why));
        }
        let broke = Break { since: Instant::now(), why, resumed, dials: FailedDials::default() };
        self.enter(inner, Phase::Broken(broke), ChannelEvent::Broken).into_iter().for_each(Wire::abandon);
    }

    /// Ends the connection, unless it has ended.
    fn finish(&self, inner: &mut Inner, end: End) {
        if matches!(inner.phase, Phase::Ended(_)) {
            return;
        }
        let close = if matches!(end, End::Broken(_)) { Wire::abandon } else { Wire::hang_up };
        self.enter(inner, Phase::Ended(end), ChannelEvent::Ended).into_iter().for_each(close);
    }

    /// Begins a phase. Returns the TCP connection of the one before.
    fn enter(&self, inner: &mut Inner, phase: Phase, event: ChannelEvent) -> Option<Wire> {
        self.state.store(phase.state() as u8, Ordering::Release);
        inner.pending.push(event);
        mem::replace(&mut inner.phase, phase).into_wire()
    }
}

impl Inner {
    fn set_peer(&mut self, peer: SocketAddr) {
        self.peer = Some(peer);
        self.set_name();
    }

    fn set_who(&mut self, host: &str, pid: u32) {
        self.who = Some((host.to_owned(), pid));
        self.set_name();
    }

    fn set_name(&mut self) {
        self.name = self.peer.map(|peer| match &self.who {
            Some((host, pid)) => format!("{peer} ({host}, pid {pid})").into(),
            None => peer.to_string().into(),
        });
    }

    /// Returns the error of a connection that has ended. A peer that was never reached has no name.
    fn error(&self) -> Option<Error> {
        let Phase::Ended(end) = &self.phase else { return None };
        let during = self.step.map_or(String::new(), |step| format!(" while this end waited for {step}"));
        let peer = &self.name;
        let name = peer.as_deref().unwrap_or("the peer");
        Some(match end {
            // The reason names the addresses.
            End::Lost(why) | End::Broken(why) if peer.is_none() => Error::Peer(why.clone()),
            End::Bye => Error::Peer(format!("{name} has closed the connection{during}")),
            End::Left => Error::Peer(format!("this end has closed the connection to {name}")),
            End::Lost(why) | End::Broken(why) => Error::Peer(format!("{name}: {why}{during}")),
            End::Violation(why) => Error::Protocol(format!("{name} sent {why}{during}")),
        })
    }
}

impl Pending {
    /// Adds an event, unless nobody is to be notified.
    fn push(&mut self, event: ChannelEvent) {
        if self.hook.is_some() && self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }
}

impl fmt::Display for Break {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)?;
        match self.dials.failures.as_str() {
            "" => Ok(()),
            failures => write!(f, "; dialled again: {failures}"),
        }
    }
}

/// Describes a failed read. A process that ends with unread bytes resets its connections; those of
/// a host that ends time out.
fn broken(e: &io::Error) -> String {
    let cause = match e.kind() {
        ErrorKind::ConnectionReset => "; did its process end?",
        ErrorKind::TimedOut => "; is its host up, and the network between?",
        _ => "",
    };
    format!("the connection broke: {e}{cause}")
}

#[cfg(test)]
#[path = "link_tests.rs"]
pub(super) mod tests;
