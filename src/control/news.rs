//! Notification of a channel's owner, who need not poll.

use std::fmt;
use std::mem;
use std::sync::Arc;

/// Something that the owner of a channel is notified of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChannelEvent {
    /// Messages have come, which [`Channel::received`](super::Channel::received) returns.
    Message,
    /// The TCP connection broke. It is dialled again. Messages that the peer has not received are
    /// lost, and so is what is sent until [`Resumed`](Self::Resumed).
    Broken,
    /// A new TCP connection has replaced the broken one. Messages that the peer may not have
    /// received must be repeated.
    Resumed,
    /// The connection is closed or lost.
    Ended,
}

/// What is called on each event of a channel.
///
/// The thread `mpib-bootstrap` calls it, which serves the control connections of the process. No
/// lock of the control connections is held. An implementation must not wait, and must not panic.
pub trait News: fmt::Debug + Send + Sync {
    /// Handles an event.
    fn on_news(&self, event: ChannelEvent);
}

/// The events of a channel that its owner has not been notified of.
#[derive(Debug, Default)]
pub(super) struct Pending {
    hook: Option<Arc<dyn News>>,
    events: Vec<ChannelEvent>,
}

/// A call to be made without locks.
pub(super) type Call = (Arc<dyn News>, ChannelEvent);

impl Pending {
    pub(super) fn set(&mut self, hook: Option<Arc<dyn News>>) {
        *self = Self { hook, events: Vec::new() };
    }

    /// Adds an event, unless nobody is to be notified.
    pub(super) fn push(&mut self, event: ChannelEvent) {
        if self.hook.is_some() && self.events.last() != Some(&event) {
            self.events.push(event);
        }
    }

    /// Moves the calls to `calls`.
    pub(super) fn take(&mut self, calls: &mut Vec<Call>) {
        if let Some(hook) = &self.hook {
            calls.extend(mem::take(&mut self.events).into_iter().map(|event| (Arc::clone(hook), event)));
        }
    }
}
