//! A connection's registration with the agent.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::client::Client;
use super::conn_id::{ConnId, ConnIds};
use super::hint::{Addresses, LatestHint};
use super::options::Options;
use crate::error::Result;

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
    fn share(&self) -> Option<u16> {
        self.hinted().then(|| Self::share(self))
    }
}

impl Drop for Subscription {
    fn drop(&mut self) {
        self.client.close(self.id.get());
    }
}
