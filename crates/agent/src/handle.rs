//! What other threads have of the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use nix::sys::eventfd::{EfdFlags, EventFd};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::http::Nudge;
use crate::page::Page;
use crate::state::{Agent, ProcessId};

/// A door to the agent for other threads, such as the HTTP server's.
#[derive(Debug, Clone)]
pub struct Handle {
    agent: Arc<Mutex<Agent>>,
    wake: Arc<EventFd>,
    stop: Arc<Mutex<bool>>,
    /// Passes of the server's loop so far.
    passes: Arc<AtomicU64>,
    /// Has the statistics of all processes read.
    readings: Arc<Mutex<Weak<Nudge>>>,
    /// Counts how often the configuration was to be read again.
    reloads: Arc<watch::Sender<u64>>,
    /// The pages that processes have passed, by connection.
    pages: Arc<Mutex<BTreeMap<ProcessId, Arc<Page>>>>,
}

impl Handle {
    /// Makes the first handle.
    ///
    /// # Errors
    /// There is no descriptor left.
    pub(crate) fn new(agent: Agent) -> nix::Result<Self> {
        let wake = EventFd::from_flags(EfdFlags::EFD_NONBLOCK | EfdFlags::EFD_CLOEXEC)?;
        let (stop, passes, readings, reloads, pages) = Default::default();
        let agent = Arc::new(Mutex::new(agent));
        Ok(Self { agent, wake: Arc::new(wake), stop, passes, readings, reloads, pages })
    }

    /// Keeps the page of a process, or forgets it.
    pub(crate) fn set_page(&self, id: ProcessId, page: Option<Arc<Page>>) {
        let mut pages = self.pages.lock();
        match page {
            Some(page) => pages.insert(id, page),
            None => pages.remove(&id),
        };
    }

    /// Returns the pages that processes have passed, once each.
    pub(crate) fn pages(&self) -> Vec<Arc<Page>> {
        let pages = self.pages.lock().clone();
        // A process may have several connections.
        let mut files = BTreeSet::new();
        let mut pages: Vec<_> = pages.into_values().filter(|page| files.insert(page.file)).collect();
        pages.sort_by_key(|page| page.pid);
        pages
    }

    /// Returns the agent, locked.
    pub(crate) fn agent(&self) -> MutexGuard<'_, Agent> {
        self.agent.lock()
    }

    /// Returns what [`wake`](Self::wake) wakes the server by.
    pub(crate) fn waker(&self) -> &EventFd {
        &self.wake
    }

    /// Notes a pass of the server's loop. Returns whether the server is to end.
    pub(crate) fn pass(&self) -> bool {
        self.passes.fetch_add(1, Ordering::Relaxed);
        *self.stop.lock()
    }

    /// Sets what is nudged at each change of a rail.
    pub(crate) fn set_readings(&self, nudge: &Arc<Nudge>) {
        *self.readings.lock() = Arc::downgrade(nudge);
    }

    /// Has the statistics of all processes read soon, because a rail of one has changed.
    pub(crate) fn rail_changed(&self) {
        if let Some(nudge) = self.readings.lock().upgrade() {
            nudge.rail_changed();
        }
    }

    /// Has all that is read from files beside the configuration read again.
    pub fn reload(&self) {
        self.reloads.send_modify(|count| *count += 1);
    }

    /// Returns what changes with each of these.
    pub(crate) fn reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Calls `change` on the agent, and has the server pass on what it has changed.
    pub fn change<T>(&self, change: impl FnOnce(&mut Agent) -> T) -> T {
        let result = change(&mut self.agent.lock());
        self.wake();
        result
    }

    /// Calls `read` on the agent.
    pub fn read<T>(&self, read: impl FnOnce(&Agent) -> T) -> T {
        read(&self.agent.lock())
    }

    /// Ends the server.
    pub fn stop(&self) {
        *self.stop.lock() = true;
        self.wake();
    }

    /// Returns how often the server's loop has run so far.
    pub fn passes(&self) -> u64 {
        self.passes.load(Ordering::Relaxed)
    }

    /// Has the server's loop run once more.
    pub fn wake(&self) {
        // Fails only if so many are pending that the server wakes anyway.
        let _ = self.wake.write(1);
    }
}
