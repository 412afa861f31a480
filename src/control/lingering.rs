//! Connections that have sent their last frame.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mio::Token;

use super::link::{Link, LinkStatus};
use super::socket::Stream;
use super::sockets::{Answer, BOTH, Entry, Sockets};
use crate::proto::{Message, Role};

/// How long a closed channel waits until its peer has read what is left, and has closed too.
const LINGER: Duration = Duration::from_secs(2);

/// A connection that has sent its last frame, and waits until the peer has read it and closed.
#[derive(Debug)]
pub(super) struct Lingering {
    link: Arc<Link>,
    /// Bytes that are not sent.
    left: usize,
    until: Instant,
}

impl Sockets {
    /// Closes a channel once all is sent and the peer has closed. A channel that is not connected
    /// yet is closed at once.
    pub(super) fn close(&mut self, token: Token) {
        if let Some(Entry::Link(link)) = self.entries.get(&token) {
            let link = Arc::clone(link);
            self.entries.remove(&token);
            self.ended(token, &link);
            if link.unsent() > 0 {
                // A socket of a handshake is registered for both already, and this call fails.
                let _ = link.with_stream(|stream, _| self.established.reregister(stream, token, BOTH));
            }
            let entry = self.linger(token, link);
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
        self.linger(token, link)
    }

    /// Keeps `link` until the peer has read its last frame.
    fn linger(&mut self, token: Token, link: Arc<Link>) -> Option<Entry> {
        let lingering = Lingering { link, left: usize::MAX, until: Instant::now() };
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
        if Instant::now() >= self.until {
            self.link.abort();
            return None;
        }
        Some(Entry::Lingering(self))
    }
}
