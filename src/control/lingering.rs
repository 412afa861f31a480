//! Connections that have sent their last frame.

use std::io;
use std::net::{Shutdown, SocketAddr};
use std::time::{Duration, Instant};

use mio::Token;
use mio::net::TcpStream;

use super::sockets::{BOTH, Entry, Sockets};
use super::wire::{Wire, encoded};
use crate::proto::Message;

/// How long a closed channel waits until its peer has read what is left, and has closed too.
const LINGER: Duration = Duration::from_secs(2);

/// When a connection whose last frame is sent is looked at first. The pause doubles with each look
/// until [`LINGER`] is over. The peer usually closes soon, and an event for it would wake the thread
/// at each end of a connection.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// A connection that has sent its last frame, and waits until the peer has read it and closed.
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
