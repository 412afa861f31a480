//! From frames to messages: tags are checked, and what concerns the connection itself is handled.

use super::super::end::End;
use super::super::news::ChannelEvent;
use super::{Inner, Link, Security};
use crate::proto::{HEADER_BYTES, Message, Peeked};

/// Most messages that may wait to be read. A handshake has six; more of them break the protocol.
const INBOX_MAX: usize = 64;

impl Link {
    /// Turns whole frames into messages.
    pub(super) fn decode_frames(&self, inner: &mut Inner) {
        let mut unread = std::mem::take(&mut inner.unread);
        let mut at = 0;
        while inner.end.is_none() {
            let rest = &unread[at..];
            let len = match Peeked::at(rest) {
                Ok(Peeked::Whole { len }) => len,
                Ok(Peeked::Partial) => break,
                Err(e) => return self.finish(inner, End::Violation(e.to_string())),
            };
            let body = &rest[HEADER_BYTES..HEADER_BYTES + len];
            let Security::Keys(keys) = &mut inner.security else {
                return self.finish(inner, End::Violation("a frame before its keys".into()));
            };
            let Some(body) = keys.open(body) else { return self.distrust(inner) };
            match Message::decode(body) {
                Ok(message) => self.queue(inner, message),
                Err(e) => return self.finish(inner, End::Violation(e.to_string())),
            }
            at += HEADER_BYTES + len;
        }
        unread.drain(..at);
        inner.unread = unread;
    }

    pub(super) fn queue(&self, inner: &mut Inner, message: Message) {
        match message {
            Message::Bye => return self.finish(inner, End::Bye),
            Message::Welcome { .. } => {
                return self.finish(inner, End::Violation("WELCOME for the second time".into()));
            }
            Message::Proof if !inner.proved => {
                inner.proved = true;
                return;
            }
            Message::Hello(ref hello) => inner.who = format!(" ({}, pid {})", hello.host, hello.pid),
            Message::Callback(_) if inner.called_back => {
                return self.finish(inner, End::Violation("CALLBACK for the second time".into()));
            }
            Message::Callback(callback) => {
                inner.called_back = true;
                if let Some(redial) = &mut inner.redial {
                    redial.set_peer(callback);
                }
                return;
            }
            Message::Redial(_) | Message::Resume | Message::Proof | Message::Ended { .. } => {
                let text = format!("{} within a connection", message.name());
                return self.finish(inner, End::Violation(text));
            }
            Message::Down { .. }
            | Message::State(_)
            | Message::Verdict(_)
            | Message::Rebuild(_)
            | Message::Rebuilt(_)
            | Message::RebuildFailed(_)
            | Message::Proved(_)
            | Message::Up(_)
            | Message::Return { .. } => {
                let text = format!("{} without a number", message.name());
                return self.finish(inner, End::Violation(text));
            }
            Message::Wiring(_)
            | Message::Ready
            | Message::Probed { .. }
            | Message::Numbered(_)
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

    /// Ends the TCP connection after a frame whose tag is wrong: something between the ends, or
    /// another process, has written to it. The peer did not, so an established connection with
    /// failover goes on with a new TCP connection.
    fn distrust(&self, inner: &mut Inner) {
        let why = "a frame with a wrong authentication tag: something between the ends changes their control connection";
        inner.forged = inner.forged.saturating_add(1);
        inner.forged_news = true;
        let what = format!("the peer's address sent {why} (number {})", inner.forged);
        match inner.may_resume() {
            true => self.break_off(inner, what),
            false => self.finish(inner, End::Broken(what)),
        }
    }
}
