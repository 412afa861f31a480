//! The messages of an established connection and what carries them: the control connection and, if
//! the connection has a mailbox, a rail, too. The [`Stream`](crate::failover::Stream) handles each
//! once, whichever copy comes first.

use std::time::Instant;

use crate::error::{Error, Fast};
use crate::proto::{HEADER_BYTES, Message};
use crate::transport::comm::Comm;
use crate::transport::mailbox::{MAIL_QUEUE, Mailbox};

impl Comm {
    /// Sends a message to the peer. It arrives in order, as long as anything carries it.
    pub(crate) fn send_message(&mut self, message: Message) -> Fast<()> {
        let frame = self.stream.send(message);
        self.peer.send(&frame);
        self.drive_mailbox()
    }

    /// Repeats what the peer has not acknowledged, if a new TCP connection has replaced a broken one.
    pub(crate) fn repeat_after_a_break(&mut self) {
        if self.notifier.take_resumed() {
            self.stream.unacknowledged().for_each(|frame| self.peer.send(&frame));
        }
    }

    /// Returns the next message of the peer.
    ///
    /// # Errors
    /// The peer breaks the protocol, or this end does not expect messages: it has no failover.
    pub(crate) fn next_message(&mut self) -> Fast<Option<Message>> {
        while let Some(frame) = self.next_frame()? {
            let Message::Numbered(numbered) = frame else { return Err(self.unexpected(&frame)) };
            if let Some(message) = self.stream.accept(numbered)? {
                self.needs_failover(message.name())?;
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Returns the next frame of any carrier.
    fn next_frame(&mut self) -> Fast<Option<Message>> {
        if let Some(frame) = self.peer.next_message() {
            return Ok(Some(frame));
        }
        let Self { mailbox: Some(mailbox), region, peer, .. } = self else { return Ok(None) };
        let wrong = |what: String| Error::Protocol(format!("mailbox of {}: {what}", peer.name()));
        let Some(frame) = mailbox.poll(region).map_err(|e| wrong(e.to_string()))? else { return Ok(None) };
        let message = Message::decode(frame.get(HEADER_BYTES..).unwrap_or_default());
        let message = message.map_err(|e| wrong(e.to_string()))?;
        self.peer.heard();
        Ok(Some(message))
    }

    /// Gives the mailbox the messages that it has not carried yet, as far as it has room.
    fn fill_mailbox(&mut self) -> Fast<()> {
        let Self { mailbox: Some(mailbox), stream, mailed, .. } = self else { return Ok(()) };
        for frame in stream.after(*mailed) {
            let Message::Numbered(numbered) = &frame else { continue };
            let encoded = frame
                .encode()
                .map_err(|e| Error::Internal(format!("{} to send: {e}", numbered.message.name())))?;
            if !mailbox.has_room(&encoded) {
                break;
            }
            mailbox.send(&encoded)?;
            *mailed = numbered.number;
        }
        Ok(())
    }

    /// Writes what the mailbox has to write on a living rail.
    pub(crate) fn drive_mailbox(&mut self) -> Fast<()> {
        self.fill_mailbox()?;
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
        let has_mail = |mailbox: &Mailbox| mailbox.is_busy() || self.mailed != self.stream.last();
        self.awaits_pings() || self.mailbox.as_ref().is_some_and(has_mail)
    }

    /// Returns whether something may have come to the mailbox.
    pub(crate) fn has_mail(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.has_mail(&self.region))
    }
}
