//! The part of the table that replaces broken TCP connections.

use std::sync::Arc;

use mio::Token;

use super::super::beginnings::RedialId;
use super::super::end::ChannelState;
use super::super::link::Link;
use super::super::redialer::Redialer;
use super::super::socket::{self, Stream};
use super::{BOTH, Entry, Sockets};
use crate::proto::Keys;

impl Sockets {
    /// Finds a connection that a peer dials again, by its token and this end's role.
    pub(in crate::control) fn redialled(&self, id: &RedialId) -> Option<(Token, Arc<Link>)> {
        self.unended(*self.redials.get(id)?)
    }

    /// Returns the connection of a channel, with the channel's token, unless it has ended.
    pub(in crate::control) fn unended(&self, channel: Token) -> Option<(Token, Arc<Link>)> {
        let link = match self.entries.get(&channel)? {
            Entry::Link(link) => link,
            Entry::Redialer(redialer) => redialer.link(),
            _ => return None,
        };
        matches!(link.state(), ChannelState::Open | ChannelState::Broken).then(|| (channel, Arc::clone(link)))
    }

    /// Replaces the TCP connection of a channel by `stream`, with these keys, on which `sent` is
    /// sent and after which `rest` was read. Returns the channel's entry.
    pub(in crate::control) fn resume(
        &mut self,
        channel: Token,
        link: Arc<Link>,
        (mut stream, rest): (Stream, Vec<u8>),
        keys: Keys,
        sent: &[u8],
    ) -> Option<Entry> {
        if let Some(Entry::Redialer(redialer)) = self.take(channel) {
            redialer.close(self);
        }
        socket::close_in_order(&stream);
        if let Some(terms) = link.redial_terms() {
            // A socket that has ended refuses options, and the next read finds that.
            let _ = socket::tune(&stream, terms.silence);
        }
        // A socket that is registered nowhere gives an error and needs nothing.
        let _ = link.with_stream(|old, _| self.established.deregister(old));
        let _ = self.handshakes.registry().deregister(&mut *stream);
        let broke = link.resume(stream, keys, sent, rest);
        if let Err(e) = link.with_stream(|stream, _| self.established.register(stream, channel, BOTH)) {
            link.fail(format!("epoll_ctl failed: {e}"));
        }
        let peer = link.describe();
        let how = broke.map_or("is replaced by the peer, which found it broken".into(), |(since, _)| {
            format!("works again, after {} ms", since.elapsed().as_millis())
        });
        tracing::info!(target: "net", "the control connection to {peer} {how}");
        self.step_link(channel, link)
    }

    /// Dials a connection again at once: the peer has found that it is broken.
    pub(in crate::control) fn interrupted(&mut self, channel: Token) {
        let entry = match self.take(channel) {
            Some(Entry::Redialer(redialer)) => redialer.hurry(channel, self),
            Some(Entry::Link(link)) if !link.just_resumed() => {
                link.interrupt("the peer found it broken");
                link.take_news(&mut self.news);
                Redialer::start(link, channel, self)
            }
            other => other,
        };
        self.put_back(channel, entry);
    }

    /// Drops what is known of a connection that has ended, and notifies its owner.
    pub(in crate::control) fn ended(&mut self, channel: Token, link: &Link) {
        link.take_news(&mut self.news);
        if let Some(id) = link.redial_id().filter(|id| self.redials.get(id) == Some(&channel)) {
            self.redials.remove(&id);
        }
    }
}
