//! A fabric from outside: faults in running processes, without being one of them.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use crate::error::Error;
use crate::fault::failure;
use crate::fault::script;
use crate::fault::site::Site;
use crate::fault::{self, Only};
use crate::process;
use crate::process::hw_counters::{self, HwCounters};
use crate::shm::dir;
use crate::shm::fabric::Fabric;
use crate::shm::link_state::{DOWN, REMOVED, SILENT_IN, SILENT_OUT};
use crate::shm::peer::Peer;

/// A running fabric, for `softverbs-ctl` and for tests whose processes are not their own.
///
/// ```no_run
/// let control = softverbs::Control::open("default")?;
/// control.fault("soft0", "silence=both", None)?;
/// control.fault("soft0", "heal", None)?;
/// # Ok::<(), softverbs::Error>(())
/// ```
pub struct Control {
    fabric: Fabric,
}

/// A device of a fabric and the faults in effect.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceState {
    /// `NAME@ADDRESS`, with the first configured address, or the LID of an InfiniBand port.
    pub label: String,
    /// Whether the link is down.
    pub down: bool,
    /// Whether packets to the device are swallowed.
    pub silent_in: bool,
    /// Whether packets from the device are swallowed.
    pub silent_out: bool,
    /// Whether the device is removed.
    pub removed: bool,
    /// Whether the link goes down and up by itself.
    pub flapping: bool,
    /// Its hardware counters.
    pub hw_counters: HwCounters,
    /// The processes that have the device.
    pub processes: Vec<ProcessState>,
}

/// A process that has a device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct ProcessState {
    /// Process id.
    pub pid: u32,
    /// Work requests posted to the device.
    pub posted: u64,
    /// Of these, WRITEs with and without an immediate.
    pub writes: u64,
    /// Faults that wait for a work request or a call.
    pub armed: u32,
    /// Faults that have struck a work request or a call.
    pub struck: u64,
}

impl Control {
    /// Opens the fabric with this name.
    ///
    /// # Errors
    /// No process is in a fabric with this name, or it cannot be opened.
    pub fn open(fabric: &str) -> Result<Self, Error> {
        let none = || Error(format!("no process is in fabric {fabric:?}"));
        let failed = |_| Error(format!("fabric {fabric:?} cannot be opened"));
        let dir = dir::existing(fabric).map_err(failed)?.ok_or_else(none)?;
        let fabric = Fabric::open_existing(&dir).map_err(failed)?.ok_or_else(none)?;
        Ok(Self { fabric })
    }

    fn peers(&self) -> Vec<Arc<Peer>> {
        // A process of the fabric must not open its own segment again.
        if let Some(own) = process::joined().filter(|own| own.fabric.path == self.fabric.path) {
            return own.all_peers();
        }
        let map = |(process, nonce)| Peer::map(&self.fabric.path, process, nonce).ok();
        self.fabric.processes().filter_map(map).map(Arc::new).collect()
    }

    /// Returns the devices of all processes.
    pub fn devices(&self) -> Vec<DeviceState> {
        let peers = self.peers();
        let sites = self.fabric.links().filter_map(|(i, _)| Site::new(&self.fabric, i, peers.clone()));
        sites.map(|site| state(&site)).filter(|state| !state.processes.is_empty()).collect()
    }

    /// Returns the one device with this name or label.
    fn site(&self, device: &str) -> Result<Site<'_>, Error> {
        let peers = self.peers();
        let mut found = Vec::new();
        for (index, link) in self.fabric.links() {
            let label = link.label();
            let Some(site) = Site::new(&self.fabric, index, peers.clone()) else { continue };
            let name = label.rsplit_once('@').map_or("", |(name, _)| name);
            if (device == label || device == name) && site.owners().next().is_some() {
                found.push((label, site));
            }
        }
        if found.len() > 1 {
            let labels: Vec<_> = found.into_iter().map(|(label, _)| label).collect();
            return Err(Error(format!("device {device:?}: expected one of {}", labels.join(", "))));
        }
        let site = found.pop().map(|(_, site)| site);
        site.ok_or_else(|| Error(format!("no process has a device {device:?}")))
    }

    /// Runs what follows `DEVICE:` in the syntax of `SOFTVERBS_FAULTS`, for example
    /// `lost_ack,at=3`, on the device with this name, or with this label if the name is not unique. A
    /// fault that waits for a work request waits for one in each process that has the device, or only
    /// in process `pid`.
    ///
    /// # Errors
    /// The text is malformed, or there is no such device or process.
    pub fn fault(&self, device: &str, fault: &str, pid: Option<u32>) -> Result<(), Error> {
        let action =
            script::action(fault).map_err(|e| Error(format!("{e} (expected form: {})", script::FORM)))?;
        let arms = |peer: &Peer| pid.is_none_or(|pid| pid == peer.pid.unsigned_abs());
        self.site(device)?.run(&action, arms).map_err(|e| Error(format!("device {device:?}: {e}")))
    }

    /// Ends the faults of all devices.
    pub fn clear(&self) {
        let peers = self.peers();
        for (index, _) in self.fabric.links() {
            if let Some(site) = Site::new(&self.fabric, index, peers.clone()) {
                site.heal();
            }
        }
    }
}

fn state(site: &Site<'_>) -> DeviceState {
    let (link, flags) = (site.link(), site.link().flags());
    let processes = site.owners().map(|(peer, device)| ProcessState {
        pid: peer.pid.unsigned_abs(),
        posted: fault::posted(device, Only::ALL),
        writes: fault::posted(device, Only::WRITES),
        armed: device.armed.load(Relaxed) + failure::armed(&device.calls),
        struck: device.struck.load(Relaxed),
    });
    DeviceState {
        label: link.label(),
        down: flags & DOWN != 0,
        silent_in: flags & SILENT_IN != 0,
        silent_out: flags & SILENT_OUT != 0,
        removed: flags & REMOVED != 0,
        flapping: link.flap_seed.load(Relaxed) != 0,
        hw_counters: hw_counters::of(link),
        processes: processes.collect(),
    }
}
