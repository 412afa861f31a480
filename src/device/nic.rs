//! One port of one HCA, as connections use it: its addresses, its partition, its receive queues.
//!
//! ionic, irdma (E810), erdma and others have no shared receive queues. There each queue pair has a
//! receive queue, which `transport::recv::receives` fills.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use mpib_proto::{GidKind, Mtu};
use nix::errno::Errno;
use parking_lot::{Mutex, RwLock};

use super::gid::{self, Wanted};
use super::gpu::Gpu;
use super::mr_cache::Registrations;
use super::pci::PciLocation;
use super::port_meter::{HwCounters, PortMeter};
use super::selection::Trouble;
use super::wires::Wire;
use crate::config::Config;
use crate::error::{Error, Result, errno};
use crate::failover::PortHealth;
use crate::verbs::{Context, Cq, DeviceLimits, Gid, Pd, Port, Qp, QpOptions, Srq};
use crate::worker::Worker;

/// One port of one HCA.
#[derive(Debug)]
pub struct Nic {
    name: String,
    /// On the present context of the HCA. Those who make objects keep what they have read.
    pub(super) pd: RwLock<Arc<Pd>>,
    limits: DeviceLimits,
    pub(super) port: Port,
    wanted: Wanted,
    wire: Wire,
    /// Registrations of NCCL's memory, shared by all comms.
    pub(super) registrations: Registrations,
    /// What [`known`](Self::known) has read.
    known: Mutex<Option<Known>>,
    /// Whether it registers DMA-BUFs, or why not, once that was tried.
    pub(super) dmabuf: OnceLock<Result<(), String>>,
    /// Whether it has SRQs, or why not, once that was tried.
    srq: OnceLock<Result<(), String>>,
    /// Why its SRQs do not work, although it has them, once that was seen.
    srq_failed: OnceLock<String>,
    pub(super) health: PortHealth,
    meter: Arc<PortMeter>,
    /// For verbs that block.
    worker: Worker,
}

/// How long [`Nic::known`] is used without an event: a change of the MTU raises none.
const FRESH: Duration = Duration::from_secs(1);

/// A usable port as it was read, with [`Context::changes`] from before.
#[derive(Debug)]
struct Known {
    since: Instant,
    changes: u64,
    port: Port,
    gids: Vec<Gid>,
    /// Index of `NCCL_IB_PKEY_VALUE` in the P_Key table.
    pkey_index: Option<u16>,
}

impl Nic {
    /// Makes the port. Nothing was tried or measured on it yet.
    pub(super) fn new(pd: Pd, limits: DeviceLimits, port: Port, wanted: Wanted, wire: Wire) -> Self {
        Self {
            name: format!("{}:{}", pd.context().name(), port.number),
            pd: RwLock::new(Arc::new(pd)),
            limits,
            port,
            wanted,
            wire,
            registrations: Registrations::new(),
            known: Mutex::default(),
            dmabuf: OnceLock::new(),
            srq: OnceLock::new(),
            srq_failed: OnceLock::new(),
            health: PortHealth::default(),
            meter: Arc::default(),
            worker: Worker::new("mpib-verbs"),
        }
    }

    /// Returns `hca:port`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the name of the HCA when it was first opened.
    pub(crate) fn adapter(&self) -> &str {
        self.name.rsplit_once(':').map_or(&self.name, |(adapter, _)| adapter)
    }

    /// Returns the protection domain of everything that is made on this port from now on. It
    /// changes if the HCA is opened again.
    pub fn pd(&self) -> Arc<Pd> {
        Arc::clone(&self.pd.read())
    }

    /// Returns the present context of the HCA.
    pub(crate) fn context(&self) -> Arc<Context> {
        Arc::clone(self.pd.read().context())
    }

    /// Returns the limits of the HCA.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Returns the port's state at the time when it was opened.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the wire of the port, as NCCL sees it.
    pub(crate) fn wire(&self) -> &Wire {
        &self.wire
    }

    /// Returns the health of the port and its routes, which all its connections share.
    pub(crate) fn health(&self) -> &PortHealth {
        &self.health
    }

    /// Returns the threads for verbs of the port that block.
    pub(crate) fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Returns what the port's connections have measured, and the operator's scale.
    pub(crate) fn meter(&self) -> &Arc<PortMeter> {
        &self.meter
    }

    /// Reads the adapter's counters of lost packets. `None` if it has none.
    pub(crate) fn hw_counters(&self) -> Option<HwCounters> {
        HwCounters::read(&self.context().hw_counters(self.port.number))
    }

    /// Returns whether any entry of the port's table is this GID; `None` if the port cannot be
    /// queried.
    pub(crate) fn has_gid(&self, raw: [u8; 16], kind: GidKind) -> Option<bool> {
        let context = self.context();
        let port = context.port(self.port.number).ok()?;
        let same = |gid: &Gid| (gid.raw, gid.kind) == (raw, kind);
        Some(context.gids(&port).ok()?.iter().any(same))
    }

    /// Queries the port and the GIDs that a connection may use now, the best first: GID tables are
    /// renumbered when a link flaps. The error is the reason why the port cannot be used.
    pub fn now(&self) -> Result<(Port, Vec<Gid>), String> {
        self.now_on(&self.context())
    }

    /// Returns a port that is not active and has no other fault, with the GIDs that its table has. A
    /// port without a link keeps the addresses of its interface.
    pub(crate) fn down(&self) -> Option<(Port, Vec<Gid>)> {
        let found = present(&self.context(), &self.limits, self.port.number, &self.wanted);
        found.ok().filter(|(port, _)| !port.active)
    }

    fn now_on(&self, context: &Context) -> Result<(Port, Vec<Gid>), String> {
        usable(context, &self.limits, self.port.number, &self.wanted).map_err(|trouble| trouble.to_string())
    }

    /// Returns whether the HCA was removed or has failed as a whole: the present context never works
    /// again.
    pub(crate) fn has_dead_context(&self) -> bool {
        self.context().is_dead(self.port.number)
    }

    /// As [`now`](Self::now). Queries once a second at most, but for an event of the adapter or a
    /// [`forget`](Self::forget), or while the port cannot be used. An event may come late: the
    /// user of a table's entry compares the entry first.
    pub(crate) fn known(&self) -> Result<(Port, Vec<Gid>), String> {
        // Under the lock: what was read on an earlier context must not be kept.
        let mut place = self.known.lock();
        let context = self.context();
        let changes = context.changes();
        let is_fresh = |known: &&Known| Some(known.changes) == changes && known.since.elapsed() < FRESH;
        if let Some(known) = place.as_ref().filter(is_fresh) {
            return Ok((known.port, known.gids.clone()));
        }
        let (port, gids) = self.now_on(&context)?;
        let since = Instant::now();
        *place = changes.map(|changes| Known { since, changes, port, gids: gids.clone(), pkey_index: None });
        Ok((port, gids))
    }

    /// Whether [`known`](Self::known) has read the port, and the result is kept.
    #[cfg(test)]
    pub(crate) fn is_known(&self) -> bool {
        self.known.lock().is_some()
    }

    /// Forgets what was read: a connection over this port could not be set up.
    pub(crate) fn forget(&self) {
        *self.known.lock() = None;
    }

    /// Whether connections that receive on it can flush: by the setting, else if it reaches GPU
    /// memory.
    pub(crate) fn flushes(&self, config: &Config) -> bool {
        config.flush.unwrap_or_else(|| self.takes_gpu_memory())
    }

    /// Whether NCCL may register GPU memory on it.
    pub(crate) fn takes_gpu_memory(&self) -> bool {
        Gpu::here().is_direct() || self.takes_dmabuf().is_ok()
    }

    /// Returns how many of `bytes` a queue pair carries inline: all, or none if the adapter has no
    /// room for them. Makes a queue pair.
    pub(crate) fn inline_room(&self, bytes: u32) -> Result<u32> {
        let pd = self.pd();
        let cq = Arc::new(Cq::new(pd.context(), 1)?);
        let options = QpOptions { send_depth: 1, inline: bytes, receives: 1 };
        Ok(Qp::new(&pd, &cq, None, options)?.inline())
    }

    /// Whether the adapter has shared receive queues that work, as far as is known. Their creation
    /// is tried once. The error is the reason.
    pub fn has_srq(&self) -> Result<(), &str> {
        if let Some(why) = self.srq_failed.get() {
            return Err(why);
        }
        let found = self.srq.get_or_init(|| self.try_srq());
        found.as_ref().copied().map_err(String::as_str)
    }

    /// Some drivers report a limit although their library has no calls for SRQs. Any other failure is
    /// that of the moment: a connection then reports it.
    fn try_srq(&self) -> Result<(), String> {
        if self.limits.max_srq == 0 || self.limits.max_srq_wr == 0 {
            return Err("max_srq of ibv_devinfo -v is 0".into());
        }
        match Srq::new(&self.pd(), 1) {
            Err(Error::Verbs { source, .. })
                if matches!(errno(&source), Errno::EOPNOTSUPP | Errno::ENOSYS) =>
            {
                Err(format!("ibv_create_srq: {source}"))
            }
            _ => Ok(()),
        }
    }

    /// Notes why receives in the adapter's shared queues do not work. Returns whether that is new.
    pub(crate) fn set_srq_failed(&self, why: &str) -> bool {
        self.srq_failed.set(why.to_owned()).is_ok()
    }

    /// Describes the receive queues of the adapter.
    pub(crate) fn receive_queues(&self) -> String {
        describe_queues(self.adapter(), self.has_srq().err())
    }

    /// Returns its place in the PCI tree; `None` for software devices.
    pub(crate) fn place(&self) -> Option<PciLocation> {
        self.context().pci_path().map(PciLocation::of)
    }

    /// Returns the index of the configured partition in the port's P_Key table, as the table is
    /// now.
    ///
    /// # Errors
    /// `NCCL_IB_PKEY_VALUE` is not in the table. The error lists what is.
    pub(crate) fn pkey_index(&self, config: &Config) -> Result<u16> {
        let Some(value) = config.pkey_value else { return Ok(config.pkey_index) };
        let context = self.context();
        let last = self.known.lock().as_ref().and_then(|known| known.pkey_index);
        if let Some(index) = last
            && is_of(context.pkey(self.port.number, index)?, value)
        {
            return Ok(index);
        }
        let found = self.partition(config, &context)?;
        self.known.lock().iter_mut().for_each(|known| known.pkey_index = Some(found));
        Ok(found)
    }

    /// Checks that the port has the partition of a later communicator's settings.
    pub(super) fn check_partition(&self, config: &Config) -> Result<()> {
        self.partition(config, &self.context()).map(drop)
    }

    fn partition(&self, config: &Config, context: &Context) -> Result<u16> {
        let port = context.port(self.port.number)?;
        let name = &self.name;
        partition(context, &port, config).map_err(|why| Error::Usage(format!("{name}: {why}")))
    }

    /// Returns the present index of a GID in the port's table. The error is the reason why it
    /// cannot be used.
    pub fn place_of(&self, gid: &Gid) -> Result<u8> {
        let same = |g: &Gid| (g.raw, g.kind) == (gid.raw, gid.kind);
        let context = self.context();
        let entry = context.gid_at(self.port.number, gid.index);
        if entry.is_some_and(|g| same(&g) && g.interface == gid.interface) {
            return Ok(gid.index);
        }
        let port = context.port(self.port.number)?;
        let gids = context.gids(&port)?;
        let found = gids.iter().filter(|g| same(g));
        // The table may have the same address for several interfaces.
        let found = found.min_by_key(|g| (g.interface != gid.interface, g.index != gid.index));
        found.map(|g| g.index).ok_or_else(|| {
            Error::Usage(format!(
                "the address of the route has been removed: {} ({}), which was advertised to the peer, is no longer in the GID table of {}, which has {}",
                gid.addr(),
                gid.kind,
                self.name,
                gid::list(&gids, |_| None)
            ))
        })
    }
}

/// Returns the port and the GIDs that connections may use, or why the port cannot be used.
pub(super) fn usable(
    context: &Context,
    limits: &DeviceLimits,
    number: u8,
    wanted: &Wanted,
) -> Result<(Port, Vec<Gid>), Trouble> {
    // A port that is down may have other faults, which end with that.
    match context.port(number) {
        Ok(port) if !port.active => Err(Trouble::Inactive),
        _ => present(context, limits, number, wanted),
    }
}

/// As [`usable`], also of a port that is not active.
fn present(
    context: &Context,
    limits: &DeviceLimits,
    number: u8,
    wanted: &Wanted,
) -> Result<(Port, Vec<Gid>), Trouble> {
    if let Some(why) = limits.unfit() {
        return Err(Trouble::Fault(why));
    }
    let mut port = context.port(number).map_err(|e| Trouble::Fault(e.to_string()))?;
    if Mtu::from_raw(port.mtu.into()).is_none() {
        let why = format!("its active MTU is number {}: expected 1 to 5 (256 to 4096 bytes)", port.mtu);
        return Err(Trouble::Fault(why));
    }
    port.speed = wanted.speed.unwrap_or(port.speed);
    let table = context.gids(&port).map_err(|e| Trouble::Fault(e.to_string()))?;
    let gids = gid::candidates(&table, port.link, wanted).map_err(Trouble::Fault)?;
    Ok((port, gids))
}

/// The number of the partition in a P_Key. The top bit marks full members.
const NUMBER: u16 = 0x7fff;

/// Whether the P_Key is of the partition with this number.
fn is_of(key: u16, value: u16) -> bool {
    key & NUMBER == value & NUMBER
}

/// Returns the index of the configured partition in the port's P_Key table, as the table is now. The
/// error is the reason why the port cannot be used.
pub(super) fn partition(context: &Context, port: &Port, config: &Config) -> Result<u16, String> {
    let wanted = match (config.pkey_value, config.pkey_index) {
        // A port always has the first entry.
        (None, 0) => return Ok(0),
        (None, index) => format!("NCCL_IB_PKEY={index} is not an entry of its P_Key table"),
        (Some(value), _) => format!("NCCL_IB_PKEY_VALUE={value:#06x} is not in its P_Key table"),
    };
    let fits = |index: u16, key: u16| match config.pkey_value {
        Some(value) => is_of(key, value),
        None => index == config.pkey_index && key & NUMBER != 0,
    };
    let mut others = Vec::new();
    for index in 0..port.pkeys {
        match context.pkey(port.number, index).map_err(|e| e.to_string())? {
            key if fits(index, key) => return Ok(index),
            key if key & NUMBER == 0 => {}
            key => others.push(format!("{key:#06x} at {index}")),
        }
    }
    Err(format!("{wanted}, which has {}", others.join(", ")))
}

/// Describes the receive queues of adapters, with the reason if they have no shared ones.
pub(super) fn describe_queues(adapters: &str, lacks: Option<&str>) -> String {
    match lacks {
        None => format!("shared receive queues on {adapters}: the queue pairs of a rail receive from one"),
        Some(why) => {
            format!("no shared receive queues on {adapters} ({why}): each queue pair receives from its own")
        }
    }
}
