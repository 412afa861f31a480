//! The process's devices: the physical ones first, then those that NCCL has made of them.
//!
//! The list grows while other threads read it. A device once shown is never dropped, so that a listener may keep it.

use std::ffi::c_int;
use std::net::IpAddr;

use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::{Device, enumerate, fuse, lose, selection};
use crate::config::Config;
use crate::error::{Error, Result};

/// What this process has opened.
#[derive(Debug)]
struct List {
    /// The settings by which the devices were chosen.
    first: Config,
    /// In the order of their indices.
    shown: Vec<&'static Device>,
    /// How many of them are physical.
    physical: usize,
    /// Every virtual device that was ever made, so that one that is asked for again takes no more memory.
    made: Vec<&'static Device>,
    /// Contexts that use them.
    held: usize,
}

static LIST: RwLock<Option<List>> = RwLock::new(None);

// The list is whole at every step: a device is made before it is shown.
fn read() -> RwLockReadGuard<'static, Option<List>> {
    LIST.read()
}

fn write() -> RwLockWriteGuard<'static, Option<List>> {
    LIST.write()
}

/// A context's hold on the devices. NCCL makes its virtual devices anew when it has closed the plugin and opens it again,
/// so they go from the list with the last hold. NCCL before v11 makes them once per process, and its context lives as long.
#[derive(Debug)]
pub struct Hold(());

impl Hold {
    /// Opens the devices, unless this process has them.
    pub fn open(config: &Config) -> Result<Self> {
        let mut list = write();
        if let Some(list) = &mut *list {
            let changed = selection::changed(&list.first, config);
            if !changed.is_empty() {
                let what = format!(
                    "changed since this process opened its devices, which stay as they are: {}",
                    changed.join(", ")
                );
                lose(config, what)?;
            }
            list.held += 1;
            return Ok(Self(()));
        }
        let shown: Vec<_> = enumerate(config)?.into_iter().map(keep).collect();
        let physical = shown.len();
        *list = Some(List { first: config.clone(), shown, physical, made: Vec::new(), held: 1 });
        Ok(Self(()))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if let Some(list) = &mut *write() {
            list.held = list.held.saturating_sub(1);
            if list.held == 0 {
                list.shown.truncate(list.physical);
            }
        }
    }
}

/// NCCL may ask for a device as long as the process lives.
fn keep(device: Device) -> &'static Device {
    Box::leak(Box::new(device))
}

/// All devices, by index.
pub fn all() -> Vec<&'static Device> {
    read().as_ref().map(|list| list.shown.clone()).unwrap_or_default()
}

/// IP addresses of the devices' ports, as they are now.
pub fn addrs() -> Vec<IpAddr> {
    // The virtual ones have no others.
    let physical = read().as_ref().map(|list| list.shown[..list.physical].to_vec()).unwrap_or_default();
    let nics = physical.into_iter().flat_map(|d| &d.rails);
    nics.filter_map(|nic| nic.now().ok()).flat_map(|(_, gids)| gids).map(|gid| gid.addr()).collect()
}

/// How many there are.
pub fn count() -> usize {
    read().as_ref().map_or(0, |list| list.shown.len())
}

/// One device.
pub fn get(dev: usize) -> Option<&'static Device> {
    read().as_ref()?.shown.get(dev).copied()
}

/// The index of the virtual device of these physical ones, in this order: made now, unless it is there.
pub fn fused(members: &[c_int]) -> Result<usize> {
    let mut list = write();
    let Some(list) = &mut *list else {
        return Err(Error::Usage("no init has succeeded before this call".into()));
    };
    let same = |device: &&'static Device| device.members == members;
    if let Some(there) = list.shown[list.physical..].iter().position(same) {
        return Ok(list.physical + there);
    }
    let device = match list.made.iter().copied().find(|device| same(device)) {
        Some(device) => device,
        None => {
            let device = keep(fuse::fuse(members, &list.shown, list.physical)?);
            list.made.push(device);
            device
        }
    };
    list.shown.push(device);
    Ok(list.shown.len() - 1)
}
