//! Merges devices to a virtual one for NCCL's makeVDevice. Pure: makes no verbs object.

use std::ffi::c_int;

use super::net_device::{Device, leak};
use crate::error::{Error, Result};
use crate::proto::MAX_RAILS;

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
        card_place: first.card_place,
        shown: first.shown,
        rails: parts.iter().flat_map(|part| part.rails.iter().cloned()).collect(),
        is_sout_sup: false,
        members: members.to_vec(),
        rail_id: one(|d| d.rail_id),
        plane_id: one(|d| d.plane_id),
    })
}

fn name(device: &Device) -> std::borrow::Cow<'_, str> {
    device.name.to_string_lossy()
}
