//! The process's devices: the physical ones first, then the virtual ones that NCCL has made.
//!
//! The list grows while other threads read it. A device once shown is never dropped: NCCL keeps
//! names, and a listener keeps its device.

use std::ffi::c_int;
use std::net::IpAddr;
use std::sync::Arc;

use parking_lot::RwLock;

use super::discovery::{degraded, enumerate};
use super::net_device::{self, Device};
use super::nic::Nic;
use super::selection;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::warned::Warned;

/// The devices that a process has opened.
#[derive(Debug)]
pub struct Devices {
    list: RwLock<Option<List>>,
    warned: Arc<Warned>,
}

#[derive(Debug)]
struct List {
    /// The settings by which the devices were chosen.
    first: Config,
    /// In the order of their indices.
    shown: Vec<&'static Device>,
    /// How many of them are physical.
    physical: usize,
    /// Every virtual device that was ever made: one that is requested again takes no more memory.
    made: Vec<&'static Device>,
    /// Contexts that use them.
    holds: usize,
}

impl List {
    fn physical(&self) -> &[&'static Device] {
        &self.shown[..self.physical]
    }
}

/// A context's hold on the devices.
///
/// NCCL makes its virtual devices again when it has closed the plugin and opens it again, so the
/// last hold removes them from the list. NCCL before v11 makes them once per process, and its
/// context lives as long.
#[derive(Debug)]
pub struct Hold(Arc<Devices>);

impl Devices {
    pub(crate) fn new(warned: Arc<Warned>) -> Self {
        Self { list: RwLock::default(), warned }
    }

    /// Opens the devices, unless the process has them.
    ///
    /// # Errors
    /// No adapter can be used; or, with `MPIB_STRICT=1`, the settings ask for what is missing.
    pub fn open(self: &Arc<Self>, config: &Config) -> Result<Hold> {
        let mut list = self.list.write();
        if let Some(list) = &mut *list {
            list.physical().iter().flat_map(|d| &d.rails).try_for_each(|nic| nic.check_partition(config))?;
            let changed = selection::changed(&list.first, config);
            if !changed.is_empty() {
                let what = format!(
                    "changed since this process opened its devices, which stay as they are: {}",
                    changed.join(", ")
                );
                degraded(config, what)?;
            }
            list.holds += 1;
            return Ok(Hold(Arc::clone(self)));
        }
        let shown: Vec<_> = enumerate(config, &self.warned)?.into_iter().map(keep).collect();
        let physical = shown.len();
        *list = Some(List { first: config.clone(), shown, physical, made: Vec::new(), holds: 1 });
        Ok(Hold(Arc::clone(self)))
    }

    /// Returns all devices, by index.
    pub(crate) fn all(&self) -> Vec<&'static Device> {
        self.list.read().as_ref().map(|list| list.shown.clone()).unwrap_or_default()
    }

    /// Returns how many devices there are.
    pub(crate) fn count(&self) -> usize {
        self.list.read().as_ref().map_or(0, |list| list.shown.len())
    }

    /// Returns one device.
    pub fn get(&self, dev: usize) -> Option<&'static Device> {
        self.list.read().as_ref()?.shown.get(dev).copied()
    }

    /// Returns the current IP addresses of the devices' ports.
    pub(crate) fn addrs(&self) -> Vec<IpAddr> {
        let nics = self.nics();
        nics.iter()
            .filter_map(|nic| nic.known().ok())
            .flat_map(|(_, gids)| gids)
            .map(|gid| gid.addr())
            .collect()
    }

    /// Returns the open ports, each once.
    pub(crate) fn nics(&self) -> Vec<Arc<Nic>> {
        // The virtual devices have no other ports.
        let physical = |list: &List| list.physical().to_vec();
        let physical = self.list.read().as_ref().map(physical).unwrap_or_default();
        physical.into_iter().flat_map(|device| &device.rails).cloned().collect()
    }

    /// Returns the plane of a device as NCCL 2.30.7 and later expect it.
    pub(crate) fn plane_id(&self, device: &Device) -> Option<i16> {
        net_device::plane_id(device, self.list.read().as_ref()?.physical())
    }

    /// Returns the index of the virtual device of these physical ones, in the order of their planes.
    /// Makes the device if it is not in the list.
    pub(crate) fn merge(&self, members: &[c_int]) -> Result<usize> {
        let mut list = self.list.write();
        let Some(list) = &mut *list else {
            return Err(Error::Usage("no init has succeeded before this call".into()));
        };
        let members = &net_device::sorted(members, list.physical())[..];
        let same = |device: &&'static Device| device.members == members;
        if let Some(there) = list.shown[list.physical..].iter().position(same) {
            return Ok(list.physical + there);
        }
        let device = match list.made.iter().copied().find(|device| same(device)) {
            Some(device) => device,
            None => {
                let device = keep(net_device::merge(members, &list.shown, list.physical)?);
                list.made.push(device);
                device
            }
        };
        list.shown.push(device);
        Ok(list.shown.len() - 1)
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(list) = &mut *self.0.list.write() {
            list.holds = list.holds.saturating_sub(1);
            if list.holds == 0 {
                list.shown.truncate(list.physical);
            }
        }
    }
}

/// Keeps a device for as long as the process lives: NCCL may use it at any time.
fn keep(device: Device) -> &'static Device {
    Box::leak(Box::new(device))
}
