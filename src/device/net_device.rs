//! Devices as NCCL sees them: physical ones, and virtual ones that makeVDevice joins of them. Planes
//! are numbered like those of NCCL's own transport.
//!
//! A network of several planes has one switch layer for each, and data does not cross between them.
//! `NCCL_IB_HCA` names the plane of each port. NCCL sorts ports by plane and compares the planes of
//! its devices, so a fused device has to say which planes it is on. NCCL 2.30.7 and later mark such
//! a device with a bit, and set one bit for each plane (seen in `ncclNetIb` of 2.30.7 to 2.32.3).

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_int};
use std::sync::Arc;

use mpib_proto::{MAX_RAILS, RailSet};

use super::nic::Nic;
use super::pci;
use crate::config::PLANE_END;
use crate::error::{Error, Result};

/// A device as NCCL sees it.
#[derive(Debug, Clone)]
pub struct Device {
    /// Unique among the physical devices. A virtual device of a single one has the same name.
    pub(crate) name: &'static CStr,
    /// Where the rail `shown` is on PCI, if it is.
    pub(crate) pci: Option<PciPaths>,
    /// Its ports, rail 0 first: at most eight.
    pub rails: Vec<Arc<Nic>>,
    /// Index of the rail by which NCCL knows where the device is: PCI path, GUID and port.
    pub(crate) shown: usize,
    /// Whether its rails are SOUT and SUP, for which `policy` has its own rules.
    pub is_sout_sup: bool,
    /// The physical devices that it consists of: only itself for a physical one.
    pub(crate) members: Vec<c_int>,
    /// Rail of the network, if the settings name one.
    pub(crate) rail_id: Option<i16>,
    /// Plane of the network, if the settings name one.
    pub(crate) plane_id: Option<i16>,
}

/// sysfs paths of a PCI device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct PciPaths {
    /// The function's own path.
    pub(crate) own: &'static CStr,
    /// The path of its card, which is function 0.
    pub(crate) card: &'static CStr,
}

impl Device {
    /// Returns the PCI path that NCCL sees: that of the card, or the port's own.
    pub(crate) fn pci_path(&self, of_card: bool) -> Option<&'static CStr> {
        self.pci.map(|paths| if of_card { paths.card } else { paths.own })
    }

    /// Whether its first rail is a PCI device.
    pub(crate) fn is_on_pci(&self) -> bool {
        self.pci.is_some_and(|paths| paths.own.to_str().is_ok_and(|path| pci::Address::of(path).is_some()))
    }

    /// Returns the port by which NCCL knows where the device is.
    pub(crate) fn shown(&self) -> Option<&Nic> {
        self.rails.get(self.shown).map(|nic| &**nic)
    }

    /// Returns what the wires of these rails carry together, in Mb/s: each wire counts once.
    pub(crate) fn speed_of(&self, rails: RailSet) -> u32 {
        let wires = rails.iter().filter_map(|rail| self.rails.get(rail)).map(|nic| nic.wire());
        let wires: BTreeMap<_, _> = wires.map(|wire| (wire.index, wire.speed)).collect();
        wires.into_values().fold(0, u32::saturating_add)
    }

    /// Whether each of its ports registers DMA-BUFs.
    pub(crate) fn takes_dmabuf(&self) -> bool {
        self.rails.iter().all(|nic| nic.takes_dmabuf().is_ok())
    }
}

/// Leaks a string: NCCL keeps it for as long as the process lives.
pub(super) fn leak(text: String) -> &'static CStr {
    Box::leak(CString::new(text).unwrap_or_default().into_boxed_c_str())
}

/// Makes the device of `members`, which are indices among the first `physical` of `devices`. It has
/// their rails, in order.
///
/// # Errors
/// [`Error::Argument`], not [`Error::Usage`]: for the latter's code NCCL 2.24 and 2.25 fail the
/// communicator. With any other code they continue with the physical devices.
pub(super) fn merge(members: &[c_int], devices: &[&Device], physical: usize) -> Result<Device> {
    let refuse = |why: String| Err(Error::Argument(why));
    if members.is_empty() || members.len() > MAX_RAILS {
        return refuse(format!("{} devices: expected 1 to {MAX_RAILS}", members.len()));
    }
    let mut parts = Vec::with_capacity(members.len());
    for (i, &dev) in members.iter().enumerate() {
        let index = usize::try_from(dev).unwrap_or(usize::MAX);
        match devices.get(index) {
            Some(part) if index < physical => parts.push(*part),
            Some(part) => {
                return refuse(format!(
                    "device {dev} ({}) is itself made of others: expected physical devices, which are 0 to {}",
                    name(part),
                    physical.saturating_sub(1)
                ));
            }
            None => {
                return refuse(format!(
                    "device {dev}: expected 0 to {}, which are the physical devices of this process",
                    physical.saturating_sub(1)
                ));
            }
        }
        if members[..i].contains(&dev) {
            return refuse(format!("device {dev} ({}) is named twice: expected each once", name(parts[i])));
        }
    }
    let [first, others @ ..] = &parts[..] else { return Err(Error::Internal("no device".into())) };
    let joined = parts.iter().map(|part| name(part)).collect::<Vec<_>>().join("+");
    if others.is_empty() {
        return Ok(Device { members: members.to_vec(), ..(*first).clone() });
    }
    if let Some(part) = parts.iter().find(|part| part.is_sout_sup) {
        return refuse(format!("{} is SOUT and SUP already: it is not joined with others", name(part)));
    }
    let link = |part: &Device| part.rails.first().map(|nic| nic.port().link);
    if let Some(other) = others.iter().find(|other| link(other) != link(first)) {
        let describe = |part: &Device| {
            part.rails
                .first()
                .map_or_else(String::new, |nic| format!("{} is {:?}", nic.name(), nic.port().link))
        };
        return refuse(format!(
            "{joined}: {}, {}: expected ports of one kind; NCCL_IB_HCA can leave the others out",
            describe(first),
            describe(other)
        ));
    }
    let one =
        |id: fn(&Device) -> Option<i16>| id(first).filter(|_| others.iter().all(|o| id(o) == id(first)));
    Ok(Device {
        name: leak(joined),
        pci: first.pci,
        shown: first.shown,
        rails: parts.iter().flat_map(|part| part.rails.iter().cloned()).collect(),
        is_sout_sup: false,
        members: members.to_vec(),
        rail_id: one(|d| d.rail_id),
        plane_id: one(|d| d.plane_id),
    })
}

fn name(device: &Device) -> Cow<'_, str> {
    device.name.to_string_lossy()
}

/// Marks the plane of a device that is made of several.
const FUSED: i16 = PLANE_END;
/// Planes that a mask has room for. Bit 0 stands for ports without a plane.
const MOST: usize = 13;

/// Returns the plane of a device as NCCL 2.30.7 and later expect it: the port's own, or the planes
/// of a fused device's members as a mask. `None` if a port has no plane, and for a mask that has no
/// room for all `physical` devices' planes.
pub(super) fn plane_id(device: &Device, physical: &[&Device]) -> Option<i16> {
    if device.members.len() < 2 {
        return device.plane_id;
    }
    let planes = planes(physical);
    let bit = |member: &c_int| {
        let plane = physical.get(usize::try_from(*member).ok()?)?.plane_id;
        let index = match plane {
            Some(plane) => 1 + planes.iter().position(|known| *known == plane)?,
            None => 0,
        };
        (index <= MOST).then(|| 1 << index)
    };
    device.members.iter().try_fold(FUSED, |mask, member| Some(mask | bit(member)?))
}

/// Returns the planes that these devices are on, in the order of their first devices.
fn planes(devices: &[&Device]) -> Vec<i16> {
    let mut planes = Vec::new();
    for plane in devices.iter().filter_map(|device| device.plane_id) {
        if !planes.contains(&plane) {
            planes.push(plane);
        }
    }
    planes
}

/// Returns devices in the order of their planes, those without one first. Both ends of a connection
/// then have their rails in the same order, although NCCL orders ports by their place on PCI.
pub(super) fn sorted(members: &[c_int], physical: &[&Device]) -> Vec<c_int> {
    let mut sorted = members.to_vec();
    let plane = |member: &c_int| usize::try_from(*member).ok().and_then(|dev| physical.get(dev)?.plane_id);
    sorted.sort_by_key(plane);
    sorted
}
