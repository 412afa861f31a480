//! Planes of fused devices, numbered like those of NCCL's own transport. Pure.
//!
//! A network of several planes has one switch layer for each, and data does not cross between them.
//! `NCCL_IB_HCA` names the plane of each port. NCCL sorts ports by plane and compares the planes of
//! its devices, so a fused device has to say which planes it is on. NCCL 2.30.7 and later mark such
//! a device with a bit, and set one bit for each plane (seen in `ncclNetIb` of 2.30.7 to 2.32.3).

use std::ffi::c_int;

use super::net_device::Device;
use crate::config::PLANE_END;

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
