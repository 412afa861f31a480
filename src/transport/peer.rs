//! The other end, as a comm in use sees it: its control channel.

use std::time::{Duration, Instant};

use crate::control::{Channel, State};
use crate::error::{Error, Result};
use crate::proto::Message;

/// How long data of a peer that is gone may still come: its last completions and its good-bye take different ways.
const GRACE: Duration = Duration::from_millis(200);

/// The peer of a comm.
#[derive(Debug)]
pub(crate) struct Peer {
    /// `None` once we have said good-bye.
    channel: Option<Channel>,
    name: String,
    gone_since: Option<Instant>,
}

impl Peer {
    pub(crate) fn new(channel: Channel) -> Self {
        let name = channel.describe();
        Self { channel: Some(channel), name, gone_since: None }
    }

    /// For messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether nothing is known against it: one atomic load.
    #[inline]
    pub(crate) fn is_here(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.state() == State::Open)
    }

    /// An error where the peer is gone and `what` it owes us can no longer come. To be called when nothing has
    /// come: one atomic load while the peer is there.
    pub(crate) fn look(&mut self, what: &str) -> Result<()> {
        match &self.channel {
            Some(channel) if channel.state() != State::Open => self.gone(what),
            _ => Ok(()),
        }
    }

    #[cold]
    fn gone(&mut self, what: &str) -> Result<()> {
        let Some(channel) = &self.channel else { return Ok(()) };
        let last = loop {
            match channel.try_recv() {
                Ok(Some(Message::Refuse { reason })) => {
                    return Err(Error::Peer(format!("{} gave the connection up: {reason}", self.name)));
                }
                Ok(Some(_)) => {}
                Ok(None) => break String::new(),
                Err(e) => break e.to_string(),
            }
        };
        if self.gone_since.get_or_insert_with(Instant::now).elapsed() < GRACE {
            return Ok(());
        }
        let how = if channel.state() == State::ByePeer { "closed the connection" } else { "is gone" };
        let detail = if last.is_empty() { last } else { format!(": {last}") };
        Err(Error::Peer(format!("{} {how} with {what} outstanding{detail}", self.name)))
    }

    /// Tells the peer why we give up.
    pub(crate) fn refuse(&mut self, why: &Error) {
        if let Some(channel) = self.channel.take() {
            // Whether it still listens does not matter.
            let _ = channel.send(&Message::Refuse { reason: why.to_string() });
            channel.close();
        }
    }

    /// Takes leave in good order.
    pub(crate) fn leave(&mut self) {
        if let Some(channel) = self.channel.take() {
            channel.close();
        }
    }
}
