//! The agent's client: registers connections, and keeps the last good hint of each for the send
//! path.
//!
//! One background thread talks to the agent's socket and reads its hint file. It starts with the
//! first [`Subscription`] and ends with the last. The agent is optional at any time: without it
//! [`Subscription::share`] is the last good hint, or 0 (all on SOUT) if there never was one. A
//! fault is logged once when it begins and once when it is over.
//!
//! The file is read with `pread`, never mapped: truncating a mapped file kills the process that
//! reads it.

mod client;
mod conn_id;
mod fault_log;
mod file;
mod link;
mod table;

use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::config::Config;
use crate::error::Result;
use client::Client;
use conn_id::{ConnId, ConnIds};

/// What the client needs of the settings. Subscriptions with equal options share one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the agent listens.
    pub socket: PathBuf,
    /// Where the hint file is.
    pub file: PathBuf,
    /// How often the file is read.
    pub poll: Duration,
    /// A user, besides root and this process's own, who may own the socket and the file.
    pub agent_uid: Option<u32>,
    /// How long the agent may take for one answer.
    pub answer_timeout: Duration,
    /// How long an entry may be half-written, or have other addresses, before that counts as a
    /// fault.
    pub settle_timeout: Duration,
    /// Wait before the first reconnect. It doubles with each failure, up to 20 times this.
    pub reconnect: Duration,
    /// Wait before a refused connection is registered again.
    pub refused_again: Duration,
    /// Least time between two log lines on one subject.
    pub report_gap: Duration,
}

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        Self {
            socket: config.agent_socket.clone(),
            file: config.hints.clone(),
            poll: Duration::from_micros(config.hint_poll_us.into()),
            agent_uid: config.agent_uid,
            answer_timeout: Duration::from_secs(5),
            settle_timeout: Duration::from_secs(1),
            reconnect: Duration::from_millis(100),
            refused_again: Duration::from_secs(10),
            report_gap: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Returns how long a connection that must have a hint waits for it: the time of one answer and
    /// of one whole entry.
    pub fn patience(&self) -> Duration {
        self.answer_timeout + self.settle_timeout
    }

    /// Whether this user may own the socket and the file: the process's user, root, and the
    /// configured one.
    fn trusts(&self, uid: u32) -> bool {
        uid == 0 || uid == nix::unistd::geteuid().as_raw() || self.agent_uid == Some(uid)
    }

    /// Describes an owner that is not trusted.
    fn distrust(&self, uid: u32) -> String {
        format!(
            "belongs to user {uid}, expected root or user {}; set MPIB_AGENT_UID={uid} if that is the agent's user",
            nix::unistd::geteuid()
        )
    }
}

/// The addresses of a connection, as REGISTER has them. The source is this end, whichever way the
/// data goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addresses {
    /// This end on SOUT.
    pub sout_src: Ipv4Addr,
    /// The other end on SOUT.
    pub sout_dst: Ipv4Addr,
    /// This end on SUP.
    pub sup_src: Ipv4Addr,
    /// The other end on SUP.
    pub sup_dst: Ipv4Addr,
}

/// The clients of a process: one for each different [`Options`].
#[derive(Debug, Default)]
pub struct Clients {
    running: Mutex<Vec<(Options, Weak<Client>)>>,
    ids: ConnIds,
}

impl Clients {
    /// Returns the running client of these options, or starts one.
    fn get(&self, options: &Options) -> Result<Arc<Client>> {
        let mut running = self.running.lock();
        running.retain(|(_, client)| client.strong_count() > 0);
        if let Some(client) = running.iter().find(|r| r.0 == *options).and_then(|r| r.1.upgrade()) {
            return Ok(client);
        }
        let client = Arc::new(Client::start(options.clone())?);
        running.push((options.clone(), Arc::downgrade(&client)));
        Ok(client)
    }
}

/// The latest good hint of a connection. The client writes it, the send path reads it.
#[derive(Debug, Default)]
struct LatestHint {
    share: AtomicU16,
    /// There was a good hint, possibly 0.
    hinted: AtomicBool,
}

/// A registered connection. Dropping it deregisters it.
#[derive(Debug)]
pub struct Subscription {
    hint: Arc<LatestHint>,
    id: Arc<ConnId>,
    client: Arc<Client>,
}

impl Subscription {
    /// Registers the connection in the background. Never waits for the agent.
    ///
    /// # Errors
    /// The thread, or the descriptor that wakes it, cannot be made. The agent never makes this
    /// fail.
    pub fn open(clients: &Clients, options: &Options, addresses: Addresses) -> Result<Self> {
        let client = clients.get(options)?;
        let id = Arc::new(clients.ids.reserve());
        let hint = Arc::default();
        client.open(Arc::clone(&id), addresses, Arc::clone(&hint));
        Ok(Self { hint, id, client })
    }

    /// Returns the last good hint: the part of a transfer that goes on SUP, 0 to 1024, and 0
    /// without a hint. One relaxed load.
    #[inline]
    pub fn share(&self) -> u16 {
        self.hint.share.load(Ordering::Relaxed)
    }

    /// Whether there was a good hint: an agent has registered the connection, and its file has an
    /// entry for it.
    pub fn hinted(&self) -> bool {
        self.hint.hinted.load(Ordering::Relaxed)
    }

    /// Describes what is wrong with the agent or its file, if anything is known to be.
    pub fn fault(&self) -> Option<String> {
        self.client.fault()
    }

    /// Returns the identifier by which the agent knows this connection.
    pub fn conn_id(&self) -> u32 {
        self.id.get()
    }
}

impl crate::policy::HintSource for Subscription {
    fn share(&self) -> u16 {
        Self::share(self)
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.client.close(self.id.get());
    }
}
