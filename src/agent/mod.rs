//! The agent's client: registers connections, and gives the send path the hint of each.
//!
//! One background thread talks to the agent's socket, and passes the process's statistics page to the
//! agent. It starts with the first [`Subscription`] and ends with the last; without hints it starts at
//! init and ends with the process. An agent passes a memory file over the socket: the send path reads the hint
//! there at each transfer, and the thread sleeps until a message comes. The file is sealed, so its
//! size cannot change. From an agent without one, the thread reads the hint file at an interval,
//! with `pread`: truncating a mapped file kills the process that reads it.
//!
//! The agent is optional at any time: without it a connection has its last good hint, and
//! `MPIB_SPLIT` decides if there never was one. A fault is logged once when it begins and once when
//! it is over.

mod client;
mod fault_log;
mod file;
mod hint;
mod link;
mod ports;
mod table;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::agent::paths::{HINTS_NAME, SOCKET_NAME, Trust, folders};
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::Result;

use client::Client;
pub use hint::Addresses;
use hint::{LatestHint, Reader};
#[cfg(any(test, feature = "simulation"))]
pub use link::simulated;
pub use ports::PortScales;
use table::{ConnId, ConnIds};

/// What the client needs of the settings. Subscriptions with equal options share one thread.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Options {
    /// Where the agent is looked for, in this order.
    pub sockets: Vec<PathBuf>,
    /// Where the hint file is looked for, in this order, if it is not beside the socket.
    pub files: Vec<PathBuf>,
    /// How often the file is read.
    pub poll: Duration,
    /// A user, besides root and this process's own, who may own the socket and the file.
    pub agent_uid: Option<u32>,
    /// How long the agent may take for one answer: [`ANSWER_TIMEOUT`].
    pub answer_timeout: Duration,
    /// How long an entry may be half-written, or have other addresses, before that counts as a
    /// fault: [`SETTLE_TIMEOUT`].
    pub settle_timeout: Duration,
    /// Wait before the first reconnect. It doubles with each failure, up to 20 times this.
    pub reconnect: Duration,
    /// Wait before a refused connection is registered again.
    pub refused_again: Duration,
    /// Least time between two log lines on one subject.
    pub report_gap: Duration,
}

const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
const SETTLE_TIMEOUT: Duration = Duration::from_secs(1);
/// How long a connection that must have a hint waits for it: the time of one answer and of one whole
/// entry.
pub(crate) const PATIENCE: Duration = ANSWER_TIMEOUT.saturating_add(SETTLE_TIMEOUT);

impl From<&Config> for Options {
    fn from(config: &Config) -> Self {
        let folders = folders(config.runtime_dir.as_deref());
        let in_each = |name: &str| folders.iter().map(|folder| folder.join(name)).collect();
        let one_or = |path: &Option<PathBuf>, name| match path {
            Some(path) => vec![path.clone()],
            None => in_each(name),
        };
        Self {
            sockets: one_or(&config.agent_socket, SOCKET_NAME),
            files: one_or(&config.hints, HINTS_NAME),
            poll: Duration::from_micros(config.hint_poll_us.into()),
            agent_uid: config.agent_uid,
            answer_timeout: ANSWER_TIMEOUT,
            settle_timeout: SETTLE_TIMEOUT,
            reconnect: Duration::from_millis(100),
            refused_again: Duration::from_secs(10),
            report_gap: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Returns where the hint file of the agent on `socket` may lie, likely places first. If
    /// several files are possible, the one beside the socket is the agent's.
    pub(super) fn files_of(&self, socket: Option<&Path>) -> Vec<PathBuf> {
        match (self.files.as_slice(), socket.and_then(Path::parent)) {
            ([file], _) => vec![file.clone()],
            (files, Some(folder)) => {
                let beside = folder.join(HINTS_NAME);
                let others = files.iter().filter(|file| **file != beside).cloned();
                [beside.clone()].into_iter().chain(others).collect()
            }
            (files, None) => files.to_vec(),
        }
    }

    /// Returns who may own the socket and the file.
    pub(super) fn trust(&self) -> Trust {
        Trust::new(self.agent_uid)
    }

    /// Names the places of the socket, for messages.
    pub(crate) fn sockets_text(&self) -> String {
        list(&self.sockets)
    }
}

/// Joins paths for a message.
pub(super) fn list(paths: &[PathBuf]) -> String {
    paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ")
}

/// How often [`Clients::attach`] looks for the folder of an agent.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The clients of a process: one for each different [`Options`].
#[derive(Debug)]
pub struct Clients {
    running: Mutex<Vec<(Options, Weak<Client>)>>,
    attached: Mutex<Attached>,
    ids: ConnIds,
    scales: Arc<dyn PortScales>,
}

/// The client of a process whose connections have no hints.
#[derive(Debug, Default)]
struct Attached {
    client: Option<Arc<Client>>,
    looked: Option<Instant>,
}

impl Clients {
    /// Makes the clients of a process. None runs yet. `scales` applies the scales of ports.
    pub fn new(scales: Arc<dyn PortScales>) -> Self {
        Self { running: Mutex::default(), attached: Mutex::default(), ids: ConnIds::default(), scales }
    }

    /// Returns the running client of these options, or starts one.
    fn get(&self, options: &Options) -> Result<Arc<Client>> {
        let mut running = self.running.lock();
        running.retain(|(_, client)| client.upgrade().is_some_and(|client| client.is_alive()));
        if let Some(client) = running.iter().find(|r| r.0 == *options).and_then(|r| r.1.upgrade()) {
            return Ok(client);
        }
        let client = Arc::new(Client::start(options.clone(), Arc::clone(&self.scales))?);
        running.push((options.clone(), Arc::downgrade(&client)));
        Ok(client)
    }

    /// Connects the process with the host's agent, for the scales of ports and to pass its statistics
    /// page. For processes without hints: those that register connections have the scales anyway. The
    /// client then runs until the process ends, and connects whenever an agent begins to listen. Where
    /// the folder of the socket is missing, no agent has run on this host.
    ///
    /// # Errors
    /// The thread, or the descriptor that wakes it, cannot be made.
    pub(crate) fn attach(&self, options: impl FnOnce() -> Options) -> Result<()> {
        let mut attached = self.attached.lock();
        let now = Instant::now();
        if attached.client.is_some() || attached.looked.is_some_and(|at| now < at + LOOK_EVERY) {
            return Ok(());
        }
        attached.looked = Some(now);
        let options = options();
        if options.sockets.iter().filter_map(|socket| socket.parent()).any(Path::is_dir) {
            let client = self.get(&options)?;
            client.attach();
            attached.client = Some(client);
        }
        Ok(())
    }
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
    /// without a hint. The send path has [`Source`] instead, which takes no lock.
    pub fn share(&self) -> u16 {
        self.hint.now()
    }

    /// Whether there was a good hint: an agent has registered the connection, and has an entry for
    /// it.
    pub(crate) fn hinted(&self) -> bool {
        self.hint.now();
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

    /// Returns the registration as the send path uses it.
    pub(crate) fn into_source(self) -> Source {
        Source { reader: Reader::new(Arc::clone(&self.hint)), _subscription: self }
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.client.close(self.id.get());
    }
}

/// A registered connection's hint, read at each transfer.
#[derive(Debug)]
pub(crate) struct Source {
    reader: Reader,
    _subscription: Subscription,
}

impl crate::split::HintSource for Source {
    #[inline]
    fn share(&self) -> Option<u16> {
        self.reader.hint()
    }
}
