//! Handshakes whose control connection breaks: the connector begins another one, and the acceptor
//! waits for it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::Handle;

use crate::agent::Subscription;
use crate::config::Config;
use crate::connect::handshake::Handshake;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::transport::Settings;
use crate::transport::comm::Comm;

/// The pause before the second handshake. Doubles with each one ...
const PAUSE: Duration = Duration::from_millis(50);
/// ... up to this.
const PAUSE_MAX: Duration = Duration::from_secs(2);

/// The handshakes of a connector with one listener, one at a time.
#[derive(Debug)]
pub(super) struct Connecting {
    handshake: Handshake,
    listener: Handle,
    /// Present once a handshake broke.
    breaks: Option<Breaks>,
}

#[derive(Debug)]
struct Breaks {
    /// Why the last one broke.
    why: String,
    count: u32,
    /// No other handshake begins later.
    until: Instant,
    /// When the next one begins, until it has.
    next: Option<Instant>,
}

impl Connecting {
    pub(super) fn start(settings: &Arc<Settings>, device: &'static Device, listener: Handle) -> Result<Self> {
        let handshake = Handshake::connect(settings, device, &listener)?;
        Ok(Self { handshake, listener, breaks: None })
    }

    /// As [`Handshake::poll`]. If the control connection breaks, another handshake begins, over
    /// another address if there is one: the break says nothing of the peer.
    ///
    /// # Errors
    /// A handshake has failed otherwise, or handshakes have broken for as long as one may take.
    pub(super) fn poll(
        &mut self,
        settings: &Arc<Settings>,
        device: &'static Device,
    ) -> Result<Option<(Comm, Option<Subscription>)>> {
        if let Some(next) = self.breaks.as_ref().and_then(|breaks| breaks.next) {
            if Instant::now() < next {
                return Ok(None);
            }
            self.handshake = Handshake::connect(settings, device, &self.listener)?;
            self.breaks.iter_mut().for_each(|breaks| breaks.next = None);
        }
        match (self.handshake.poll(), self.handshake.broke_at()) {
            (Err(e), Some(address)) => {
                settings.process.control.prefer_next(&self.listener, address);
                self.begin_again(e, &settings.config).map(|()| None)
            }
            (Err(e), None) => Err(self.after_breaks(e)),
            (done, _) => done,
        }
    }

    fn begin_again(&mut self, e: Error, config: &Config) -> Result<()> {
        let (now, why) = (Instant::now(), e.to_string());
        let breaks = self.breaks.get_or_insert_with(|| Breaks {
            why: String::new(),
            count: 0,
            until: now + config.connect_timeout,
            next: None,
        });
        let pause = PAUSE.saturating_mul(1 << breaks.count.min(16)).min(PAUSE_MAX);
        breaks.count += 1;
        if now + pause >= breaks.until {
            return Err(self.after_breaks(e));
        }
        tracing::info!(target: "net", "connect: {why}; the handshake begins again");
        (breaks.why, breaks.next) = (why, Some(now + pause));
        Ok(())
    }

    /// Adds what happened before to an error.
    fn after_breaks(&self, e: Error) -> Error {
        match &self.breaks {
            Some(Breaks { why, count, .. }) if !why.is_empty() => Error::Peer(format!(
                "{e}; {count} handshakes before broke within MPIB_CONNECT_TIMEOUT_MS, the last one since {why}"
            )),
            _ => e,
        }
    }
}

/// A handshake of an acceptor that broke.
#[derive(Debug)]
pub(super) struct Broken {
    why: Error,
    /// Until when the connector may begin another one.
    until: Instant,
}

impl Broken {
    pub(super) fn new(why: Error, config: &Config) -> Self {
        tracing::info!(target: "net", "accept: {why}; the peer may begin another handshake");
        Self { why, until: Instant::now() + config.connect_timeout }
    }

    /// Returns whether no other handshake is waited for any more.
    pub(super) fn is_over(&self) -> bool {
        Instant::now() >= self.until
    }

    pub(super) fn into_error(self) -> Error {
        let why = self.why;
        Error::Peer(format!("{why}; no other handshake came within MPIB_CONNECT_TIMEOUT_MS"))
    }
}
