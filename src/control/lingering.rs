//! Connections that have sent their last frame.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;
use mio::net::TcpStream;

use super::link::{Link, LinkStatus};
use super::socket::Stream;
use super::sockets::{Answer, BOTH, Entry, Sockets};
use crate::proto::{Message, Role};

/// How long a closed channel waits until its peer has read what is left, and has closed too.
const LINGER: Duration = Duration::from_secs(2);

/// When a connection whose last frame is sent is looked at first. The pause doubles with each look
/// until [`LINGER`] is over. The peer usually closes soon, and an event for it would wake the thread
/// at each end of a connection.
const FIRST_LOOK: Duration = Duration::from_millis(20);

/// A connection that has sent its last frame, and waits until the peer has read it and closed.
#[derive(Debug)]
pub(super) struct Lingering {
    link: Arc<Link>,
    /// Bytes that are not sent.
    left: usize,
    until: Instant,
    /// The pause after the next look; `None` while events show what happens.
    pause: Option<Duration>,
}

impl Sockets {
    /// Closes a channel once all is sent and the peer has closed. A channel that is not connected
    /// yet is closed at once.
    pub(super) fn close(&mut self, token: Token) {
        if let Some(Entry::Link(link)) = self.entries.get(&token) {
            let link = Arc::clone(link);
            self.entries.remove(&token);
            self.ended(token, &link);
            let mut pause = None;
            // If it fails, events go on to show what happens.
            let _ = link.with_stream(|stream, all_sent| {
                pause = self.unwatch(stream, token, all_sent)?;
                Ok(())
            });
            let entry = self.linger(token, link, pause);
            self.put_back(token, entry);
        } else {
            self.remove(token);
        }
    }

    /// Sends `last` on an accepted connection, behind the answer to its first frame if that can be
    /// given, and keeps the connection until the peer has read that.
    pub(super) fn refuse(
        &mut self,
        token: Token,
        (stream, addr): (Stream, SocketAddr),
        answer: Option<Answer>,
        last: &Message,
    ) -> Option<Entry> {
        let link = match answer {
            Some(Answer { session, welcome, early }) => {
                let link = Link::with_redial(None);
                link.secure(&session, Role::Acceptor, Some(early)).ok()?;
                link.enqueue_first(&welcome);
                link
            }
            None => Link::unauthenticated(),
        };
        let link = Arc::new(link);
        link.establish(stream, addr, Vec::new());
        // The peer may have closed.
        let _ = link.send(last);
        self.linger(token, link, None)
    }

    /// Begins to wait for the end of a connection. If all is sent, events do not matter any more:
    /// returns the pause until the first look.
    fn unwatch(&self, stream: &mut TcpStream, token: Token, all_sent: bool) -> io::Result<Option<Duration>> {
        if all_sent {
            // It is registered with one of them.
            let established = self.established.deregister(stream);
            established.or_else(|_| self.handshakes.registry().deregister(stream))?;
            return Ok(Some(FIRST_LOOK));
        }
        // A socket of a handshake is registered for both already, and this call fails.
        let _ = self.established.reregister(stream, token, BOTH);
        Ok(None)
    }

    /// Keeps `link` until the peer has read its last frame.
    fn linger(&mut self, token: Token, link: Arc<Link>, pause: Option<Duration>) -> Option<Entry> {
        let lingering = Lingering { link, left: usize::MAX, until: Instant::now(), pause };
        lingering.advance(token, self)
    }
}

impl Lingering {
    /// Extends the time whenever the peer has read something.
    pub(super) fn advance(mut self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        if self.link.discard() == LinkStatus::Closed {
            self.link.abort();
            return None;
        }
        let left = self.link.unsent();
        if left < self.left {
            self.left = left;
            self.until = Instant::now() + LINGER;
            sockets.wake_at(self.until, me);
        }
        let now = Instant::now();
        if now >= self.until {
            self.link.abort();
            return None;
        }
        if let Some(pause) = &mut self.pause {
            sockets.wake_at(now + *pause, me);
            *pause *= 2;
        }
        Some(Entry::Lingering(self))
    }
}
