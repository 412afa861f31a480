//! What the plugin keeps for as long as the process lives, whichever communicators come and go.
//!
//! Nothing else in this crate is a mutable static, apart from what concerns the operating system's
//! process and not one instance of the plugin: the log's destination, the list of threads, the mark
//! of a forked child, and lookups whose result cannot change.

use std::collections::HashMap;
use std::ffi::CStr;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, RwLock};

use crate::agent::{Clients, PortScales};
use crate::async_events::{AsyncEvents, PortScaler};
use crate::config::Config;
use crate::control::Control;
use crate::device::Devices;
use crate::grace::Grace;
use crate::housekeeping::Housekeeping;
use crate::reach_file::ReachFile;
use crate::stats::Stats;
use crate::warned::Warned;

/// How long receivers wait that close, and the least time of each of several.
const CLOSING: Duration = Duration::from_millis(200);
const LEAST_CLOSING: Duration = Duration::from_millis(1);

/// The state that all communicators of a process share.
///
/// The plugin's tables use [`Process::global`]. A test may make several.
#[derive(Debug)]
pub struct Process {
    /// The devices that NCCL was shown.
    pub devices: Arc<Devices>,
    /// The thread of the control connections.
    pub control: Control,
    /// The threads of the agent's clients.
    pub agent: Clients,
    /// The thread of the adapters' events, and the comms that it marks.
    pub(crate) events: AsyncEvents,
    /// The jobs that run when no call of NCCL's does their work.
    pub(crate) housekeeping: Arc<Housekeeping>,
    /// Whether events are counted in the statistics page.
    pub(crate) stats: Arc<Stats>,
    /// What was logged once.
    pub(crate) warned: Arc<Warned>,
    /// Connections begun, which number the next one.
    pub(crate) begun: ConnectionCounts,
    /// What connects of all processes of the host have found.
    pub(crate) reach: ReachFile,
    /// Whether a profiler has ever accepted an event. NCCL passes handles with or without one.
    pub(crate) profiler_seen: Arc<AtomicBool>,
    /// What closing receivers wait for immediates, which come right after the data that NCCL has seen.
    pub(crate) closing: Arc<Grace>,
    /// The settings of the latest init.
    latest: RwLock<Option<Arc<Config>>>,
    /// The version of the table whose init was the latest.
    table: AtomicU32,
    /// The release of NCCL, as `ncclGetVersion` reports it; 0 if it is not known.
    release: AtomicU32,
}

impl PortScales for PortScaler {
    fn set_port_scale(&self, port: &str, scale: u16) {
        self.set(port, scale);
    }
}

impl Process {
    /// Makes an instance without devices and without threads.
    pub(crate) fn new() -> Arc<Self> {
        let (warned, stats) = (Arc::<Warned>::default(), Arc::<Stats>::default());
        let housekeeping = Arc::<Housekeeping>::default();
        let control = Control::new(Arc::clone(&warned), Arc::<Stats>::clone(&stats));
        let events = AsyncEvents::new(Arc::clone(&stats), Arc::clone(&housekeeping));
        Arc::new(Self {
            devices: Arc::new(Devices::new(Arc::clone(&warned))),
            control,
            agent: Clients::new(events.scaler()),
            events,
            housekeeping,
            stats,
            warned,
            begun: ConnectionCounts::default(),
            reach: ReachFile::default(),
            profiler_seen: Arc::default(),
            closing: Arc::new(Grace::new(CLOSING, LEAST_CLOSING)),
            latest: RwLock::default(),
            table: AtomicU32::new(0),
            release: AtomicU32::new(0),
        })
    }

    /// Returns the instance behind the plugin's tables. A static: `devices` and `getProperties`
    /// bring no context, and neither does `init`.
    pub fn global() -> &'static Arc<Self> {
        static GLOBAL: OnceLock<Arc<Process>> = OnceLock::new();
        GLOBAL.get_or_init(Self::new)
    }

    /// Returns the settings of the latest init; `None` before the first one.
    pub(crate) fn latest(&self) -> Option<Arc<Config>> {
        self.latest.read().clone()
    }

    /// Returns whether this NCCL expects ports of one card to have one PCI path, as its own
    /// transport has it. NCCL 2.24 to 2.26, by tables v9 and v10, compare all but the last digit of
    /// the paths to find ports of one card, and use no device made of ports with one path.
    pub(crate) fn expects_cards(&self) -> bool {
        const FIRST_OF_V10: u32 = 22700;
        match self.table.load(Ordering::Relaxed) {
            9 => false,
            10 => self.release.load(Ordering::Relaxed) >= FIRST_OF_V10,
            _ => true,
        }
    }

    /// Returns whether this NCCL expects a fused device to have the planes of all its members, as
    /// its own transport has it.
    pub(crate) fn expects_planes(&self) -> bool {
        const FIRST: u32 = 23007;
        let release = self.release.load(Ordering::Relaxed);
        release == 0 || release >= FIRST
    }

    /// Stores the release of NCCL.
    pub(crate) fn set_release(&self, release: u32) {
        self.release.store(release, Ordering::Relaxed);
    }

    /// Stores the version of the table whose init is the latest.
    pub(crate) fn set_table(&self, version: u32) {
        self.table.store(version, Ordering::Relaxed);
    }

    /// Stores the settings of an init by the table with this version. Returns `true` for the first
    /// one.
    pub(crate) fn set_latest(&self, config: Arc<Config>, table: u32) -> bool {
        self.set_table(table);
        self.latest.write().replace(config).is_none()
    }
}

/// How many connections were begun from each device to each host.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts(Mutex<HashMap<(&'static CStr, Option<IpAddr>), u32>>);

impl ConnectionCounts {
    /// Counts one more connection. Returns the number of those before it.
    pub(crate) fn next(&self, device: &'static CStr, host: Option<IpAddr>) -> u32 {
        let mut counts = self.0.lock();
        let count = counts.entry((device, host)).or_default();
        let before = *count;
        *count = count.wrapping_add(1);
        before
    }

    /// Returns the number of all connections begun.
    #[cfg(test)]
    pub(crate) fn total(&self) -> u32 {
        self.0.lock().values().sum()
    }
}
