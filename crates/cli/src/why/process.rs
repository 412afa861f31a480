//! A process of this host: what it waits for, and its pages.

use mpib_host_view::{Awaited, Communicator, Connection, Host, Port, Waiter, Waits};

/// A process with a page in the last look. One with several copies of the plugin has several pages.
#[derive(Debug)]
pub(super) struct Process<'a> {
    /// What it does over all looks.
    pub(super) waiter: &'a Waiter,
    /// The connections of the last look.
    pub(super) connections: Vec<&'a Connection>,
    /// Its ports in the last look.
    pub(super) ports: Vec<&'a Port>,
    /// Its communicators in the last look.
    pub(super) communicators: Vec<&'a Communicator>,
}

impl<'a> Process<'a> {
    /// Returns the processes of the last look, by number.
    pub(super) fn all(last: &'a Host, waits: &'a Waits) -> Vec<Self> {
        let process = |waiter: &'a Waiter| {
            let pages = || last.processes.iter().filter(|page| page.pid == waiter.pid);
            Self {
                waiter,
                connections: pages().flat_map(|page| &page.connections).collect(),
                ports: pages().flat_map(|page| &page.ports).collect(),
                communicators: pages().flat_map(|page| &page.communicators).collect(),
            }
        };
        waits.processes.iter().map(process).collect()
    }

    pub(super) fn pid(&self) -> u32 {
        self.waiter.pid
    }

    /// Returns whether it waits for a rail, since it has none left.
    pub(super) fn lacks_all_rails(&self) -> bool {
        self.waiter.wait.as_ref().is_some_and(|wait| wait.is_long() && wait.r#for == Awaited::Rail)
    }
}
