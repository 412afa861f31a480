//! HCAs, ports and GIDs, and the devices that NCCL sees.
//!
//! Ports are opened once per process and stay open across `finalize` and the next `init`: NCCL
//! keeps the names of devices and expects to find the same devices again.

mod capabilities;
mod discovery;
mod gid;
mod gpu;
mod merge;
mod mr_cache;
mod pci;
mod registry;
mod selection;

use std::ffi::{CStr, CString, c_int};
use std::sync::{Arc, OnceLock};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::proto::Mtu;
use crate::verbs::{Context, DeviceLimits, Gid, Pd, Port};
use crate::warned::{Subject, Warned};
use discovery::{Adapter, Seen};
use gid::Wanted;
use mr_cache::Registrations;
use selection::{Plan, Trouble};

pub use capabilities::{dmabuf, findings};
pub use discovery::{PortView, Survey, survey};
pub use gpu::Gpu;
pub(crate) use mr_cache::{Memory, Registration};
pub use registry::{Devices, Hold};

/// One port of one HCA.
#[derive(Debug)]
pub struct Nic {
    name: String,
    pd: Arc<Pd>,
    limits: DeviceLimits,
    port: Port,
    wanted: Wanted,
    /// Registrations of NCCL's memory, shared by all comms.
    registrations: Registrations,
    /// Whether it registers DMA-BUFs, or why not, once that was tried.
    dmabuf: OnceLock<Result<(), String>>,
}

/// A device as NCCL sees it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Unique among the physical devices. A virtual device of a single one has the same name.
    pub name: &'static CStr,
    /// sysfs path of the first rail's PCI device.
    pub pci_path: Option<&'static CStr>,
    /// Its ports, rail 0 first: at most eight.
    pub rails: Vec<Arc<Nic>>,
    /// Whether its rails are SOUT and SUP, for which `policy` has its own rules.
    pub is_sout_sup: bool,
    /// Number of devices before it on the same PCI card. Ports of one adapter have one GUID, and
    /// most are separate PCI functions with port number 1: NCCL's topology search needs different
    /// port numbers.
    pub card_place: u8,
    /// The physical devices that it consists of: only itself for a physical one.
    pub members: Vec<c_int>,
    /// Rail of the network, if the settings name one.
    pub rail_id: Option<i16>,
    /// Plane of the network, if the settings name one.
    pub plane_id: Option<i16>,
}

impl Nic {
    /// Returns `hca:port`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the protection domain of everything on this port.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Returns the limits of the HCA.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Returns the port as it was when it was opened.
    pub fn port(&self) -> &Port {
        &self.port
    }

    /// Returns the port and the GIDs that a connection may use, the best first, as they are now:
    /// tables are renumbered when a link flaps. The error is the reason why the port cannot be
    /// used.
    pub fn now(&self) -> Result<(Port, Vec<Gid>), String> {
        usable(self.pd.context(), &self.limits, self.port.number, &self.wanted)
            .map_err(|trouble| trouble.to_string())
    }

    /// Whether connections that receive on it can flush: by the setting, else if it reaches GPU
    /// memory.
    pub fn flushes(&self, config: &Config) -> bool {
        config.flush.unwrap_or_else(|| Gpu::here().is_direct() || self.takes_dmabuf().is_ok())
    }

    /// Returns the index of the configured partition in the port's P_Key table, as the table is
    /// now.
    ///
    /// # Errors
    /// `NCCL_IB_PKEY_VALUE` is not in the table. The error lists what is.
    pub fn pkey_index(&self, config: &Config) -> Result<u16> {
        let Some(value) = config.pkey_value else { return Ok(config.pkey_index) };
        let context = self.pd.context();
        let port = context.port(self.port.number)?;
        let keys: Vec<u16> = (0..port.pkeys).map(|i| context.pkey(port.number, i)).collect::<Result<_>>()?;
        // The top bit is not part of the partition's number: it marks full members.
        let found = keys.iter().position(|key| key & 0x7fff == value & 0x7fff);
        found.and_then(|i| u16::try_from(i).ok()).ok_or_else(|| {
            let keys: Vec<_> = keys.iter().map(|key| format!("{key:#06x}")).collect();
            Error::config(
                "NCCL_IB_PKEY_VALUE",
                format!("{value:#06x}"),
                format!("a partition of {}, whose P_Keys are {}", self.name, keys.join(", ")),
            )
        })
    }

    /// Returns the present index of a GID in the port's table. The error is the reason why it
    /// cannot be used.
    pub fn place_of(&self, gid: &Gid) -> Result<u8, String> {
        let port = self.pd.context().port(self.port.number).map_err(|e| e.to_string())?;
        let gids = self.pd.context().gids(&port);
        let found = gids.iter().filter(|g| (g.raw, g.kind) == (gid.raw, gid.kind));
        // The table may have the same address for several interfaces.
        let found = found.min_by_key(|g| (g.interface != gid.interface, g.index != gid.index));
        found.map(|g| g.index).ok_or_else(|| {
            format!(
                "{} ({:?}), which was advertised to the peer, is no longer in the GID table of {}, which has {}",
                gid.addr(),
                gid.kind,
                self.name,
                gid::list(&gids, |_| None)
            )
        })
    }
}

impl Device {
    /// Returns its first rail's port number plus its place among the devices of one PCI card.
    pub fn port(&self) -> c_int {
        let number = self.rails.first().map_or(0, |nic| nic.port.number);
        c_int::from(number) + c_int::from(self.card_place)
    }

    fn pci_address(&self) -> Option<pci::Address> {
        pci::Address::of(self.pci_path?.to_str().ok()?)
    }

    /// Whether each of its ports registers DMA-BUFs.
    pub fn takes_dmabuf(&self) -> bool {
        self.rails.iter().all(|nic| nic.takes_dmabuf().is_ok())
    }
}

/// Returns the port and the GIDs that connections may use, or why the port cannot be used.
fn usable(
    context: &Context,
    limits: &DeviceLimits,
    number: u8,
    wanted: &Wanted,
) -> Result<(Port, Vec<Gid>), Trouble> {
    let port = context.port(number);
    if port.as_ref().is_ok_and(|port| !port.active) {
        return Err(Trouble::Inactive);
    }
    if let Some(why) = limits.unfit() {
        return Err(Trouble::Fault(why));
    }
    let mut port = port.map_err(|e| Trouble::Fault(e.to_string()))?;
    if Mtu::from_raw(port.mtu.into()).is_none() {
        let why = format!("its active MTU is number {}: expected 1 to 5 (256 to 4096 bytes)", port.mtu);
        return Err(Trouble::Fault(why));
    }
    port.speed = wanted.speed.unwrap_or(port.speed);
    let gids = gid::candidates(&context.gids(&port), port.link, wanted).map_err(Trouble::Fault)?;
    Ok((port, gids))
}

/// Logs what the user requested and does not get; an error with `MPIB_STRICT=1`.
fn degraded(config: &Config, what: String) -> Result<()> {
    tracing::warn!(target: "init", "{}", config.degraded(what)?);
    Ok(())
}

fn enumerate(config: &Config, warned: &Warned) -> Result<Vec<Device>> {
    let seen = discovery::discover(config)?;
    if let Some(e) = &seen.fork_unsafe
        && warned.once(Subject::ForkInit)
    {
        tracing::warn!(
            target: "init",
            "{e}. Connections hang or carry old data if this process forks children that do not exec at once. \
             EINVAL: another library of the process had registered memory before; RDMAV_FORK_SAFE=1 lets libibverbs see to it from \
             its beginning"
        );
    }
    let plans = selection::plan(config, &seen.found)?;
    let left_out = selection::left_out(config, &seen.found);
    if let Some(lost) = left_out.lost_text() {
        degraded(config, lost)?;
    }
    if let Some(idle) = left_out.idle_text() {
        tracing::info!(target: "init", "{idle}");
    }
    build(config, plans, &seen)
}

/// Makes the devices of these plans.
fn build(config: &Config, plans: Vec<Plan>, seen: &Seen) -> Result<Vec<Device>> {
    let mut devices = Vec::with_capacity(plans.len());
    for plan in plans {
        let mut rails = Vec::with_capacity(plan.rails.len());
        for &i in &plan.rails {
            let Some(Adapter { context, limits, port: Some(port) }) = &seen.adapters[i] else { continue };
            rails.push(Arc::new(Nic {
                name: format!("{}:{}", context.name(), port.number),
                pd: Arc::new(Pd::new(context)?),
                limits: *limits,
                port: *port,
                wanted: Wanted::new(config, context.name(), port.number),
                registrations: Registrations::new(),
                dmabuf: OnceLock::new(),
            }));
        }
        let pci_path = rails.first().and_then(|n| n.pd.context().pci_path());
        let address = pci_path.as_deref().and_then(pci::Address::of);
        let on_card = |other: &&Device| {
            address.zip(other.pci_address()).is_some_and(|(ours, theirs)| ours.is_of_card(&theirs))
        };
        let card_place = u8::try_from(devices.iter().filter(on_card).count()).unwrap_or(u8::MAX);
        let index = c_int::try_from(devices.len()).map_err(|_| Error::Internal("too many devices".into()))?;
        devices.push(Device {
            name: leak(plan.name),
            pci_path: pci_path.map(leak),
            card_place,
            is_sout_sup: rails.len() > 1,
            rails,
            members: vec![index],
            rail_id: plan.ids.0,
            plane_id: plan.ids.1,
        });
    }
    Ok(devices)
}

/// Leaks a string: NCCL keeps it for as long as the process lives.
fn leak(text: String) -> &'static CStr {
    Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str())
}
