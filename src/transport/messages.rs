//! The messages of an established connection and what carries them: the control connection and, if
//! the connection has a mailbox, a rail, too. The [`Stream`](crate::failover::Stream) handles each
//! once, whichever copy comes first.

use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use mpib_proto::{
    HEADER_BYTES, MAILBOX, MAILBOX_STAGING, MAX_WRITES, MailState, MailboxError, Message, RING_BYTES,
    memory_bytes,
};

use crate::error::{Error, Fast};
use crate::transport::comm::Comm;
use crate::transport::remote_memory::RemoteMemory;
use crate::transport::send_queue::{NotPosted, SendQueue, Work};
use crate::verbs::{Chain, Local, Region, Remote};

impl Comm {
    /// Sends a message to the peer. It arrives in order, as long as anything carries it.
    pub(crate) fn send_message(&mut self, message: Message) -> Fast<()> {
        let frame = self.stream.send(message);
        self.peer.send(&frame);
        self.drive_mailbox()
    }

    /// Sends a message to the peer before this end closes. The control connection alone carries it: the
    /// queue pairs are about to be destroyed.
    pub(crate) fn send_last(&mut self, message: Message) {
        // It counts only behind everything before it.
        self.repeat_after_a_break();
        let frame = self.stream.send(message);
        self.peer.send(&frame);
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
        let working = self.working();
        let Self { mailbox: Some(mailbox), rails, region, remote, chain, stats, .. } = self else {
            return Ok(());
        };
        let Some(rail) = working.lowest().filter(|_| mailbox.is_busy()) else { return Ok(()) };
        let queue = &mut rails[rail].send_queues[MAIL_QUEUE];
        match mailbox.drive((rail, queue), region, remote, chain, Instant::now()) {
            Ok(writes) => (0..writes).for_each(|_| stats.posted_bare(rail)),
            Err(e) => self.not_posted(rail, e)?,
        }
        Ok(())
    }

    /// Handles the completion of the mailbox's writes.
    #[cold]
    pub(crate) fn mail_sent(&mut self, rail: usize, wr_id: u64) -> Fast<()> {
        self.sent(rail, MAIL_QUEUE, wr_id)
    }

    /// Returns whether the mailbox has something to write, or an acknowledgement, one of its writes or a
    /// ping is outstanding.
    pub(crate) fn is_busy(&self) -> bool {
        let has_mail = |mailbox: &Mailbox| mailbox.is_busy() || self.mailed != self.stream.last();
        self.awaits_bare_writes() || self.mailbox.as_ref().is_some_and(has_mail)
    }

    /// Returns whether the completions of the mailbox's last writes are all that it waits for, on a rail
    /// that lives.
    pub(crate) fn awaits_mail_writes(&self) -> bool {
        let settled = self.mailbox.as_ref().filter(|mailbox| !mailbox.is_busy());
        settled.and_then(|mailbox| mailbox.last.as_ref()).is_some_and(|last| {
            let queue = self.rails[last.rail].send_queues.get(MAIL_QUEUE);
            queue.is_some_and(|queue| queue.number() == last.qpn && !queue.has_completed(last.id))
        })
    }

    /// Returns whether something may have come to the mailbox.
    pub(crate) fn has_mail(&self) -> bool {
        self.mailbox.as_ref().is_some_and(|mailbox| mailbox.has_mail(&self.region))
    }
}

/// Index of the queue pair of a rail that carries the mailbox's writes: at both ends its send queue
/// is never shallower than [`MAX_WRITES`].
const MAIL_QUEUE: usize = 0;

/// How long after the completion of the last writes an end without acknowledgement repeats them on
/// the same queue pair. A late write of a dead rail may have torn them, or the peer does not poll.
const REPEAT_AFTER: Duration = Duration::from_millis(100);

/// The mailbox of one end of a connection.
#[derive(Debug, Default)]
pub(crate) struct Mailbox {
    state: MailState,
    /// The last writes.
    last: Option<Posted>,
}

/// Writes that were posted with one doorbell.
#[derive(Debug)]
struct Posted {
    rail: usize,
    /// Number of the queue pair. A rail that comes back has others.
    qpn: u32,
    /// Identifier of the last write, the signalled one.
    id: u64,
    at: Instant,
}

impl Mailbox {
    /// Returns the mailbox of a new connection. `None` if its control memory has none.
    pub(crate) fn of(region: &Region) -> Option<Self> {
        (region.words().len() * 8 >= memory_bytes(true)).then(Self::default)
    }

    /// Returns whether a frame can be queued.
    fn has_room(&self, frame: &[u8]) -> bool {
        self.state.has_room(frame)
    }

    /// Queues one whole frame, which [`drive`](Self::drive) then writes.
    fn send(&mut self, frame: &[u8]) -> Fast<()> {
        let queued = self.state.send(frame);
        queued.map_err(|e| Error::Internal(e.to_string()).into())
    }

    /// Returns the next frame of the peer. If nothing has come, costs two or three loads.
    fn poll(&mut self, region: &Region) -> Fast<Option<Vec<u8>>> {
        self.state
            .poll(area(region, MAILBOX))
            .map_err(|e: MailboxError| Error::Protocol(e.to_string()).into())
    }

    /// Returns whether [`poll`](Self::poll) would find something: one or two loads.
    fn has_mail(&self, region: &Region) -> bool {
        self.state.has_news(area(region, MAILBOX))
    }

    /// Returns whether [`drive`](Self::drive) has something to write, or may have to repeat it.
    fn is_busy(&self) -> bool {
        self.state.is_busy()
    }

    /// Posts the writes that are due on a living rail, with this queue pair, as far as the send
    /// queue has room. On another queue pair than before, all unacknowledged writes are due again.
    /// The last write is signalled as [`Work::Mail`]. Returns the number of writes.
    fn drive(
        &mut self,
        (rail, queue): (usize, &mut SendQueue),
        region: &Region,
        remote: &RemoteMemory,
        chain: &mut Chain,
        now: Instant,
    ) -> Result<usize, NotPosted> {
        if self.is_overdue(rail, queue, now) {
            self.state.resend();
        }
        let staging = area(region, MAILBOX_STAGING);
        let writes = self.state.stage(staging).min(queue.room()).min(MAX_WRITES);
        if writes == 0 {
            return Ok(0);
        }
        let id = queue.signal(Work::Mail, writes);
        chain.clear();
        for left in (0..writes).rev() {
            let Some(span) = self.state.next_write(staging) else { return Err(no_fit()) };
            let from = region.addr((MAILBOX_STAGING + span.offset) / 8) as u64;
            let from = Local { addr: from, len: span.len as u32, lkey: region.mrs()[rail].lkey() };
            let to = Remote { addr: remote.addr + (MAILBOX + span.offset) as u64, rkey: remote.rkeys[rail] };
            if !chain.write(Some(from), to, None, (left == 0).then_some(id)) {
                return Err(no_fit());
            }
        }
        self.last = Some(Posted { rail, qpn: queue.number(), id, at: now });
        queue.post(chain, true).inspect_err(|_| self.state.resend())?;
        Ok(writes)
    }

    /// Returns whether what was written has to be written again, on this queue pair.
    fn is_overdue(&self, rail: usize, queue: &SendQueue, now: Instant) -> bool {
        let Some(last) = &self.last else { return false };
        if (last.rail, last.qpn) != (rail, queue.number()) {
            return true;
        }
        // A queue pair delivers its writes or reports an error: as long as it has done neither, it
        // need not write them again.
        let completed = queue.has_completed(last.id);
        completed && self.state.is_unacknowledged() && now.duration_since(last.at) >= REPEAT_AFTER
    }
}

/// Returns the ring or the staging area at this offset.
fn area(region: &Region, offset: usize) -> &[AtomicU64] {
    &region.words()[offset / 8..][..RING_BYTES / 8]
}

#[cold]
fn no_fit() -> NotPosted {
    NotPosted::internal("the mailbox's writes did not fit into their chain")
}

#[cfg(test)]
#[path = "mailbox_tests.rs"]
mod tests;
