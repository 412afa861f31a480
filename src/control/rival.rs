//! Further connections of a connector whose first one has proved nothing.
//!
//! A HELLO can be copied: another process that reads it can send it to the listener and be first.
//! The connector alone can go on, because the keys depend on its secret. Of several connections
//! with one HELLO, the one whose PROOF arrives is the connector's.

use std::sync::Arc;
use std::time::Instant;

use mio::Token;

use super::link::{Link, LinkStatus};
use super::sockets::{Entry, Sockets};
use crate::proto::Nonce;

/// A connection that was sent WELCOME, beside another one with the same HELLO.
#[derive(Debug)]
pub(super) struct Rival {
    pub(super) listener: Token,
    pub(super) link: Arc<Link>,
    pub(super) connector: Nonce,
    pub(super) until: Instant,
}

impl Rival {
    /// Continues to read. The connection takes the place of the other one once it has proved
    /// itself.
    pub(super) fn on_ready(self, me: Token, sockets: &mut Sockets) -> Option<Entry> {
        let open = sockets.serve(&self.link) == LinkStatus::Open && Instant::now() < self.until;
        if open && !self.link.is_proved() {
            return Some(Entry::Rival(self));
        }
        sockets.half_open.remove(me);
        let acceptor = sockets.acceptor(self.listener)?;
        let superseded = open.then(|| acceptor.supersede(self.connector, &self.link)).flatten();
        let Some(removed) = superseded else {
            self.link.abort();
            return None;
        };
        let displaced = acceptor.hand_over(me, &self.link);
        removed.into_iter().chain(displaced).for_each(|token| sockets.remove(token));
        Some(Entry::Link(self.link))
    }
}
