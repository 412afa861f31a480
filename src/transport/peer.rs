//! The peer of an established connection, as the control channel shows it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use mpib_proto::Message;

use crate::async_events::CommWatch;
use crate::control::{Channel, ChannelEvent, ChannelObserver, ChannelState};
use crate::error::{Error, Result};
use crate::transport::life::{Life, Signs, Turn};

/// How long data of a peer that has ended may still arrive: its last completions and its BYE travel on
/// different networks. The connection is over in any case.
const GRACE: Duration = Duration::from_millis(200);

/// The peer of a comm.
#[derive(Debug)]
pub(crate) struct Peer {
    /// `None` once this end has closed the channel.
    channel: Option<Channel>,
    name: Arc<str>,
    lost_since: Option<Instant>,
    /// A check after [`GRACE`] has asked for one more poll.
    polls_last: bool,
    /// Why the peer has given the connection up.
    refused: Option<String>,
    life: Life,
}

impl Peer {
    pub(crate) fn new(channel: Channel) -> Self {
        // Fails only if the thread has ended, and then the channel has failed, too.
        let _ = channel.end_handshake();
        let (name, life) = (channel.describe(), Life::new(channel.wait().unwrap_or_default()));
        Self { channel: Some(channel), name, lost_since: None, polls_last: false, refused: None, life }
    }

    /// Returns the peer's name, for messages.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Returns whether the control channel is open: one atomic load.
    #[inline]
    pub(crate) fn is_connected(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.state() == ChannelState::Open)
    }

    /// Returns whether the control connection is broken and dialled again.
    #[inline]
    pub(crate) fn is_broken(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.state() == ChannelState::Broken)
    }

    /// Looks for signs of life in what the rails show, while [`is_broken`](Self::is_broken). Returns
    /// whether a ping is to ask for one. Logs that the peer is silent, once, and that it is heard
    /// again. `rails` describes what the rails show.
    pub(crate) fn look_for_life(&mut self, signs: Signs, rails: impl FnOnce() -> String) -> bool {
        let Some(channel) = &self.channel else { return false };
        // It may have been resumed meanwhile.
        let Some(broke) = channel.broken() else { return false };
        let is_due = self.life.look(Instant::now(), broke.since, signs);
        match self.life.turn() {
            Some(Turn::Silent) => {
                let (silence, limit) = (self.life.silence(), self.life.limit(broke.is_refused()));
                let setting = match broke.is_refused() {
                    true => "its host refuses connections".into(),
                    false => format!("MPIB_FAILOVER_WAIT={}", limit.as_secs()),
                };
                tracing::warn!(
                    target: "net",
                    "{} is silent: no sign of life for {:.1} s; its control connection has been broken for \
                     {:.1} s: {broke}; {}; the connection fails in {:.0} s ({setting}) unless the peer is \
                     heard again",
                    self.name,
                    silence.as_secs_f64(),
                    broke.since.elapsed().as_secs_f64(),
                    rails(),
                    limit.saturating_sub(silence).as_secs_f64(),
                );
            }
            turn => self.report_heard(turn),
        }
        is_due
    }

    /// Returns whether it was logged that the peer is silent, and not that it is heard again.
    #[inline]
    pub(crate) fn is_reported_silent(&self) -> bool {
        self.life.is_reported()
    }

    /// Logs the end of a silence that was logged: the control connection works.
    #[cold]
    pub(crate) fn report_works_again(&mut self) {
        let turn = self.life.end_of_silence();
        self.report_heard(turn);
    }

    fn report_heard(&self, turn: Option<Turn>) {
        if let Some(Turn::Heard(lasted)) = turn {
            let (name, lasted) = (&self.name, lasted.as_secs_f64());
            tracing::info!(target: "net", "{name} is heard again, after {lasted:.1} s without a sign of life");
        }
    }

    /// Records that a frame of the peer has come over a rail.
    pub(crate) fn heard(&mut self) {
        self.life.seen();
    }

    /// Returns whether the peer has closed the connection in order.
    pub(crate) fn has_closed(&self) -> bool {
        self.channel.as_ref().is_some_and(|channel| channel.state() == ChannelState::ByePeer)
    }

    /// Calls `hook` on each event of the control connection. What happened before is not reported.
    pub(crate) fn observe(&self, hook: Arc<dyn ChannelObserver>) {
        if let Some(channel) = &self.channel {
            channel.observe(hook);
        }
    }

    /// Returns an error if the peer is dead and `what` can no longer complete. Called when a poll
    /// has found nothing; one atomic load while the peer lives.
    pub(crate) fn check(&mut self, what: &str) -> Result<()> {
        match &self.channel {
            Some(channel) => match channel.state() {
                ChannelState::Open => Ok(()),
                ChannelState::Broken => self.broken(what),
                ChannelState::ByePeer | ChannelState::Lost => self.lost(what),
            },
            None => Ok(()),
        }
    }

    /// Returns whether a message has come that is not handled yet.
    pub(crate) fn has_message(&self) -> bool {
        self.channel.as_ref().is_some_and(Channel::has_message)
    }

    /// Returns whether the control connection has news.
    pub(crate) fn has_news(&self) -> bool {
        self.channel.as_ref().is_some_and(Channel::has_news)
    }

    /// Returns the next message of an episode. [`check_refused`](Self::check_refused) reports a
    /// REFUSE.
    pub(crate) fn next_message(&mut self) -> Option<Message> {
        match self.channel.as_ref()?.received() {
            Ok(Some(Message::Refuse { reason })) => {
                self.refused = Some(reason);
                None
            }
            Ok(message) => message,
            // `check` reports the end of the channel, after the time in which data may still arrive.
            Err(_) => None,
        }
    }

    /// Returns whether the peer has given the connection up.
    pub(crate) fn has_refused(&self) -> bool {
        self.refused.is_some()
    }

    /// Returns an error if the peer has given the connection up.
    pub(crate) fn check_refused(&self) -> Result<()> {
        match &self.refused {
            Some(reason) => Err(Error::Peer(format!("{} gave the connection up: {reason}", self.name))),
            None => Ok(()),
        }
    }

    /// Sends a message of an episode.
    pub(crate) fn send(&self, message: &Message) {
        if let Some(channel) = &self.channel {
            // `check` reports the end of the channel.
            let _ = channel.send(message);
        }
    }

    /// Returns an error if the control connection is broken, and there has been no sign of life for
    /// [`Life::limit`]. `MPIB_PEER_TIMEOUT_MS` of silence come before: a connection breaks after them.
    #[cold]
    fn broken(&self, what: &str) -> Result<()> {
        // No limit is shorter.
        if self.life.silence() < self.life.limit(true) {
            return Ok(());
        }
        let Some(channel) = &self.channel else { return Ok(()) };
        // It may have been resumed meanwhile.
        let broke = channel.broken_if(|broke| self.life.is_lost(broke.since, broke.is_refused()));
        let Some(broke) = broke else { return Ok(()) };
        let (name, limit) = (&self.name, self.life.limit(broke.is_refused()).as_secs_f64());
        let why = match broke.is_refused() {
            true => format!(
                "its host refuses connections and no rail has answered for {limit} s: its process has ended"
            ),
            false => format!(
                "neither an address of its host nor a rail has answered for {limit} s (MPIB_FAILOVER_WAIT)"
            ),
        };
        Err(Error::Peer(format!("{name} was lost with {what} outstanding: {broke}; {why}")))
    }

    /// Returns whether the peer has ended, and nothing of it arrives any more.
    pub(crate) fn is_over(&mut self) -> bool {
        let has_ended = |state| matches!(state, ChannelState::ByePeer | ChannelState::Lost);
        self.channel.as_ref().is_some_and(|channel| has_ended(channel.state()))
            && self.lost_since.get_or_insert_with(Instant::now).elapsed() >= GRACE
    }

    #[cold]
    fn lost(&mut self, what: &str) -> Result<()> {
        self.check_refused()?;
        let is_over = self.is_over();
        let Some(channel) = &self.channel else { return Ok(()) };
        let last = loop {
            match channel.received() {
                Ok(Some(Message::Refuse { reason })) => {
                    return Err(Error::Peer(format!("{} gave the connection up: {reason}", self.name)));
                }
                Ok(Some(_)) => {}
                Ok(None) => break String::new(),
                Err(e) => break e.to_string(),
            }
        };
        if !is_over {
            return Ok(());
        }
        // This process may have paused since the poll before this check.
        if !std::mem::replace(&mut self.polls_last, true) {
            return Ok(());
        }
        let how = if channel.state() == ChannelState::ByePeer { "closed the connection" } else { "was lost" };
        let detail = if last.is_empty() { last } else { format!(": {last}") };
        Err(Error::Peer(format!("{} {how} with {what} outstanding{detail}", self.name)))
    }

    /// Sends REFUSE with the reason, and closes the channel.
    pub(crate) fn refuse(&mut self, why: &Error) {
        if let Some(channel) = self.channel.take() {
            // The peer may have closed the channel already.
            let _ = channel.send(&Message::Refuse { reason: why.to_string() });
            channel.close();
        }
    }

    /// Sends BYE and closes the channel.
    pub(crate) fn close(&mut self) {
        if let Some(channel) = self.channel.take() {
            channel.close();
        }
    }
}

/// Makes calls on a comm look closer when its control connection has news.
#[derive(Debug)]
pub(crate) struct Notifier {
    watch: Arc<CommWatch>,
    /// A new TCP connection has replaced a broken one: what was sent last may be lost.
    resumed: AtomicBool,
}

impl Notifier {
    pub(crate) fn new(watch: Arc<CommWatch>) -> Arc<Self> {
        Arc::new(Self { watch, resumed: AtomicBool::new(false) })
    }

    /// Returns whether the last messages must be repeated, once for each new TCP connection.
    pub(crate) fn take_resumed(&self) -> bool {
        self.resumed.swap(false, Ordering::AcqRel)
    }
}

impl ChannelObserver for Notifier {
    fn on_event(&self, event: ChannelEvent) {
        if event == ChannelEvent::Resumed {
            self.resumed.store(true, Ordering::Release);
        }
        match event {
            // It is for NCCL's next call. Housekeeping finds it at its next tick, if it has to.
            ChannelEvent::Ended => self.watch.mark(),
            _ => self.watch.notify(),
        }
    }
}
