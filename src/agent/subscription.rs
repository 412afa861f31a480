//! A connection's registration with the agent.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::agent::paths::check_socket;
use parking_lot::Mutex;

use super::client::Client;
use super::conn_id::{ConnId, ConnIds};
use super::hint::{Addresses, LatestHint, Reader};
use super::options::Options;
use super::ports::PortScales;
use crate::error::Result;

/// How often [`Clients::attach`] looks for an agent.
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

    /// Connects the process with the host's agent, if there is one, for the scales of ports. For
    /// processes without hints: those that register connections have the scales anyway. The client
    /// then runs until the process ends.
    ///
    /// # Errors
    /// The thread, or the descriptor that wakes it, cannot be made.
    pub fn attach(&self, options: &Options) -> Result<()> {
        let mut attached = self.attached.lock();
        let now = Instant::now();
        if attached.client.is_some() || attached.looked.is_some_and(|at| now < at + LOOK_EVERY) {
            return Ok(());
        }
        attached.looked = Some(now);
        let trust = options.trust();
        if options.sockets.iter().any(|socket| check_socket(socket, &trust).is_ok()) {
            let client = self.get(options)?;
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
    pub fn hinted(&self) -> bool {
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
    pub fn into_source(self) -> Source {
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
pub struct Source {
    reader: Reader,
    _subscription: Subscription,
}

impl crate::split::HintSource for Source {
    #[inline]
    fn share(&self) -> Option<u16> {
        self.reader.hint()
    }
}
