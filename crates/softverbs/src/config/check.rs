//! Validation of devices, whether they come from text or from [`configure`](super::configure).

use std::net::IpAddr;

use super::spec::DEFAULT_SUBNET;
use super::{DeviceSpec, LinkLayer, MAX_ADDRS, gid};
use crate::error::Error;
use crate::limits::{MAX_DEVICES, MAX_INLINE, MAX_MSG, MAX_QP_WR, MAX_SRQ_WR};

/// Size of `ibdev_path` without its NUL.
const MAX_PATH: usize = 255;
/// Largest LID mask control.
const MAX_LMC: u8 = 7;
/// Entries of a P_Key table.
const MAX_PKEYS: usize = 16;
/// A larger latency is most likely a wrong unit.
const MAX_LATENCY_NS: u64 = 10_000_000_000;

/// Validates each device and the list as a whole.
pub(super) fn list(devices: &[DeviceSpec]) -> Result<(), Error> {
    if devices.len() > MAX_DEVICES {
        return Err(Error(format!(
            "found {} ports of devices, at most {MAX_DEVICES} are possible",
            devices.len()
        )));
    }
    for (i, device) in devices.iter().enumerate() {
        let before = i.checked_sub(1).map(|before| &devices[before]);
        let checked = one(device).and_then(|()| further_port(before, device));
        checked.map_err(|e| Error(format!("device {:?}: {e}", device.name)))?;
        for other in &devices[..i] {
            pair(other, device)?;
        }
    }
    Ok(())
}

fn one(device: &DeviceSpec) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let name = device.device().as_bytes();
    if !(1..=63).contains(&name.len()) || !name.iter().all(|b| plain(*b)) || name.iter().all(|b| *b == b'.') {
        return Err("expected a name of 1 to 63 letters, digits, '_', '-' or '.'".to_owned());
    }
    match device.link_layer {
        LinkLayer::Ethernet if device.addrs.is_empty() => {
            return Err("found no address, expected at least one, like addr=10.0.0.1/24".to_owned());
        }
        LinkLayer::Ethernet if device.lid.is_some() => {
            return Err("found a LID, which only link=ib has".to_owned());
        }
        LinkLayer::InfiniBand if !device.addrs.is_empty() => {
            return Err("found an address, which only link=roce has".to_owned());
        }
        _ => {}
    }
    addrs(&device.addrs)?;
    infiniband(device)?;
    if device.sysfs.as_ref().is_some_and(|path| path.len() > MAX_PATH) {
        return Err(format!("sysfs= is longer than {MAX_PATH} bytes"));
    }
    if device.max_inline_data > MAX_INLINE {
        return Err(format!("inline={}: expected at most {MAX_INLINE}", device.max_inline_data));
    }
    if !(1..=MAX_QP_WR).contains(&device.max_qp_wr) {
        return Err(format!("max_qp_wr={}: expected 1 to {MAX_QP_WR}", device.max_qp_wr));
    }
    if !(1..=MAX_SRQ_WR).contains(&device.max_srq_wr) {
        return Err(format!("max_srq_wr={}: expected 1 to {MAX_SRQ_WR}", device.max_srq_wr));
    }
    if !(1..=MAX_MSG).contains(&device.max_msg) {
        return Err(format!("max_msg={}: expected 1 to {MAX_MSG}", device.max_msg));
    }
    if device.rate == Some(0) {
        return Err("found a rate of 0, expected a rate above it".to_owned());
    }
    if device.verb_time.slows_posts() {
        return Err("found verb_time of post_send or post_recv, which take no time".to_owned());
    }
    let times = [
        ("latency", device.latency_ns),
        ("cqe_delay", device.cqe_delay_ns),
        ("posted", device.posted_ns),
        ("verb_time", device.verb_time.slowest()),
    ];
    for (key, time) in times {
        if time > MAX_LATENCY_NS {
            return Err(format!("{key} of {time} ns: expected at most {} s", MAX_LATENCY_NS / 1_000_000_000));
        }
    }
    if device.posted_ns > 0 && !device.dmabuf {
        return Err("found posted, which needs dmabuf=on".to_owned());
    }
    for (key, mtu) in [("mtu", device.mtu), ("path_mtu", device.path_mtu.unwrap_or(device.mtu))] {
        if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
            return Err(format!("{key}={mtu}: expected 256, 512, 1024, 2048 or 4096"));
        }
    }
    if !(1..=MAX_PKEYS).contains(&device.pkeys.len()) || device.pkeys.iter().any(|key| key & 0x7fff == 0) {
        return Err(format!(
            "found P_Keys {:x?}, expected 1 to {MAX_PKEYS}, and none of partition 0",
            device.pkeys
        ));
    }
    Ok(())
}

/// Validates a port after the first one of a device; `before` is the one before in the list.
fn further_port(before: Option<&DeviceSpec>, port: &DeviceSpec) -> Result<(), String> {
    if !port.name.contains('/') {
        return Ok(());
    }
    let before = before.filter(|before| {
        before.device() == port.device() && format!("{}/{}", port.device(), before.port() + 1) == port.name
    });
    let Some(first) = before else {
        return Err("expected NAME/2 behind the device NAME, NAME/3 behind that, and so on".to_owned());
    };
    // What belongs to the port.
    let same = DeviceSpec {
        name: port.name.clone(),
        addrs: port.addrs.clone(),
        pkeys: port.pkeys.clone(),
        link_layer: port.link_layer,
        lid: port.lid,
        lmc: port.lmc,
        subnet: port.subnet,
        flid: port.flid,
        grh_required: port.grh_required,
        loopback: port.loopback,
        rate: port.rate,
        latency_ns: port.latency_ns,
        cqe_delay_ns: port.cqe_delay_ns,
        mtu: port.mtu,
        path_mtu: port.path_mtu,
        wire: port.wire,
        max_msg: port.max_msg,
        ..first.clone()
    };
    match same == *port {
        true => Ok(()),
        false => Err(format!("found a key of the device, expected it at {:?} only", port.device())),
    }
}

/// Validates what only an InfiniBand port has.
fn infiniband(device: &DeviceSpec) -> Result<(), String> {
    let other = device.lmc != 0 || device.subnet != DEFAULT_SUBNET || device.flid.is_some();
    if device.link_layer == LinkLayer::Ethernet && (other || device.grh_required) {
        return Err("found lmc, subnet, flid or grh, which only link=ib has".to_owned());
    }
    for (key, lid) in [("lid", device.lid), ("flid", device.flid)] {
        if lid.is_some_and(|lid| !(1..=gid::MAX_LID).contains(&lid)) {
            return Err(format!("{key}={}: expected 1 to {}", lid.unwrap_or(0), gid::MAX_LID));
        }
    }
    if device.lmc > MAX_LMC {
        return Err(format!("lmc={}: expected 0 to {MAX_LMC}", device.lmc));
    }
    let lids = 1 << device.lmc;
    if let Some(lid) = device.lid.filter(|lid| lid % lids != 0) {
        return Err(format!("lid={lid}: expected a multiple of {lids}, since lmc={}", device.lmc));
    }
    if device.subnet == 0 || device.subnet >> 56 == 0xff {
        return Err(format!("subnet={:#x}: expected the prefix of a unicast GID", device.subnet));
    }
    Ok(())
}

/// Validates the addresses of one port.
pub(crate) fn addrs(list: &[(IpAddr, u8)]) -> Result<(), String> {
    if list.len() > MAX_ADDRS {
        return Err(format!("found {} addresses, at most {MAX_ADDRS} are possible", list.len()));
    }
    for (i, &(addr, prefix)) in list.iter().enumerate() {
        address(addr, prefix)?;
        if list[..i].iter().any(|&(earlier, _)| earlier == addr) {
            return Err(format!("found the address {addr} twice"));
        }
    }
    Ok(())
}

fn address(addr: IpAddr, prefix: u8) -> Result<(), String> {
    let bits = if addr.is_ipv4() { 32 } else { 128 };
    if !(1..=bits).contains(&prefix) {
        return Err(format!("{addr}/{prefix}: expected a prefix length of 1 to {bits}"));
    }
    let mapped = matches!(addr, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some());
    let broadcast = matches!(addr, IpAddr::V4(v4) if v4.is_broadcast());
    if addr.is_unspecified() || addr.is_multicast() || broadcast || mapped {
        return Err(format!("{addr}: expected the address of one port (IPv4 in its own form)"));
    }
    Ok(())
}

/// The devices of one process must differ in name and GID.
fn pair(a: &DeviceSpec, b: &DeviceSpec) -> Result<(), Error> {
    if a.name == b.name {
        return Err(Error(format!("device {:?}: found that name twice", b.name)));
    }
    if let Some((addr, _)) = b.addrs.iter().find(|(addr, _)| a.addrs.iter().any(|(other, _)| other == addr)) {
        return Err(Error(format!(
            "device {:?}: the address {addr} is already that of {:?}",
            b.name, a.name
        )));
    }
    let infiniband = [a, b].iter().all(|device| device.link_layer == LinkLayer::InfiniBand);
    if !infiniband || (a.wire, a.subnet) != (b.wire, b.subnet) {
        return Ok(());
    }
    if let Some(lid) = gid::lids(b).find(|lid| gid::lids(a).contains(lid)) {
        return Err(Error(format!(
            "device {:?}: the LID {lid} is already that of {:?}; set lid=",
            b.name, a.name
        )));
    }
    Ok(())
}
