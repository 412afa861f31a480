//! Connections that have sent their last frame.

use std::io;
use std::net::{Shutdown, SocketAddr};
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
    /// Sends a BYE, and closes the channel once all is sent and the peer has closed. A channel that
    /// is not connected is closed at once.
    pub(super) fn close(&mut self, token: Token) {
        if let Some(Entry::Link(link)) = self.entries.get(&token) {
            let link = Arc::clone(link);
            self.entries.remove(&token);
            self.ended(token, &link);
            // The peer closes at about the same time, and its BYE would wake the thread.
            let unwatched = link.with_stream(|stream, _| self.unwatch(stream)).is_ok();
            link.send_bye();
            let all_sent = link.unsent() == 0;
            if unwatched && !all_sent {
                // If it fails, the connection ends after the time to linger.
                let _ = link.with_stream(|stream, _| self.established.register(stream, token, BOTH));
            }
            let pause = (unwatched && all_sent).then_some(FIRST_LOOK);
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
        // It counts as half open until it ends. It belongs to no listener: NCCL may close that while
        // the peer reads.
        self.add_half_open(token, token, addr);
        let link = Arc::new(link);
        link.establish(stream, addr, Vec::new());
        // The peer may have closed.
        let _ = link.send(last);
        self.linger(token, link, None)
    }

    /// Ends the events of a connection, which is registered with one of the two.
    fn unwatch(&self, stream: &mut TcpStream) -> io::Result<()> {
        let established = self.established.deregister(stream);
        established.or_else(|_| self.handshakes.registry().deregister(stream))
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
            return self.end(me, sockets);
        }
        let left = self.link.unsent();
        if left < self.left {
            self.left = left;
            if left == 0 {
                // Two ends that close at the same time both wait: each finds the other's end by this.
                // It fails only if the connection has ended.
                let _ = self.link.with_stream(|stream, _| stream.shutdown(Shutdown::Write));
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

    fn end(&self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        self.link.abort();
        sockets.half_open.remove(me);
        None
    }
}
