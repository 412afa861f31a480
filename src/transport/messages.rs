//! The messages of an established connection. They go over the control connection and, if the
//! connection has a mailbox, over a rail, too: whichever copy comes first counts, and handlers
//! accept repetitions.

use std::time::Instant;

use crate::error::{Error, Fast};
use crate::proto::{HEADER_BYTES, Message};
use crate::transport::comm::Comm;
use crate::transport::mailbox::MAIL_QUEUE;

impl Comm {
    /// Sends a message to the peer.
    pub(crate) fn send_message(&mut self, message: &Message) -> Fast<()> {
        self.peer.send(message);
        let Some(mailbox) = &mut self.mailbox else { return Ok(()) };
        let frame = message.encode();
        let frame = frame.map_err(|e| Error::Internal(format!("{} to send: {e}", message.name())))?;
        // A mailbox that is full belongs to a peer that reads nothing: its process may be stopped.
        if let Err(e) = mailbox.send(&frame) {
            tracing::debug!(target: "net", "{}: {e}", self.peer.name());
        }
        self.drive_mailbox()
    }

    /// Returns the next message of the peer.
    ///
    /// # Errors
    /// The peer breaks the protocol.
    pub(crate) fn next_message(&mut self) -> Fast<Option<Message>> {
        if let Some(message) = self.peer.next_message() {
            return Ok(Some(message));
        }
        let Self { mailbox: Some(mailbox), region, peer, .. } = self else { return Ok(None) };
        let wrong = |what: String| Error::Protocol(format!("mailbox of {}: {what}", peer.name()));
        let Some(frame) = mailbox.poll(region).map_err(|e| wrong(e.to_string()))? else { return Ok(None) };
        let message = Message::decode(frame.get(HEADER_BYTES..).unwrap_or_default());
        let message = message.map_err(|e| wrong(e.to_string()))?;
        self.peer.heard();
        Ok(Some(message))
    }

    /// Writes what the mailbox has to write on a living rail.
    pub(crate) fn drive_mailbox(&mut self) -> Fast<()> {
        let living = self.living() & !self.failures.noticed();
        let Self { mailbox: Some(mailbox), rails, region, remote, chain, stats, .. } = self else {
            return Ok(());
        };
        if living == 0 || !mailbox.is_busy() {
            return Ok(());
        }
        let rail = living.trailing_zeros() as usize;
        let queues = &mut rails[rail].send_queues;
        match mailbox.drive((rail, queues), region, remote, chain, Instant::now()) {
            Ok(writes) => (0..writes).for_each(|_| stats.posted_bare(rail)),
            Err(e) => self.not_posted(rail, e)?,
        }
        Ok(())
    }

    /// Handles the completion of the mailbox's writes.
    #[cold]
    pub(crate) fn mail_sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        let known = self.rails[rail].send_queues[MAIL_QUEUE].sent(wr_id)?;
        self.stats.completed(rail, known);
        Ok(())
    }

    /// Returns whether the mailbox has something to write, or an acknowledgement or a ping is
    /// outstanding.
    pub(crate) fn is_busy(&self) -> bool {
        self.awaits_pings() || self.mailbox.as_ref().is_some_and(|mailbox| mailbox.is_busy())
    }

    /// Returns whether something may have come to the mailbox.
    pub(crate) fn has_mail(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.has_mail(&self.region))
    }
}
