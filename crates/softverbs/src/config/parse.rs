//! The text format of a list of devices.

use std::net::IpAddr;

use super::{Capability, DeviceSpec, LinkLayer, Order, Quirks, VerbTime, quantity};
use crate::error::Error;
use crate::limits::MAX_INLINE;

/// Appended to every error.
pub(super) const FORM: &str = "NAME:KEY=VALUE,...;NAME:... with addr=10.0.0.1/24+fd00::1/64, link=roce|ib, lid=1, \
     lmc=0, subnet=0xfe80000000000001, flid=2, grh=on|off, loopback=on|off, rate=4GB|100Gb, latency=2us, cqe_delay=3ms, mtu=4096, path_mtu=1024, wire=1, pkey=0xffff+0x8001, ece=0x7, dmabuf=on, posted=3ms, order=late, system=0x5001, sysfs=/DIR, counters=on, without=srq+mtu, quirks=irdma, inline=0, max_qp_wr=64, max_srq_wr=64, max_msg=65536, verb_time=destroy_qp:5ms+modify_rtr:1s";

/// Parses devices separated by semicolons. An empty text is an error: most likely it is an unset
/// variable of a script.
pub(super) fn list(text: &str) -> Result<Vec<DeviceSpec>, Error> {
    let parts: Vec<&str> = text.split(';').map(str::trim).collect();
    let parts = match parts.split_last() {
        Some((&"", rest)) if !rest.is_empty() => rest, // a trailing semicolon is allowed
        _ => &parts,
    };
    let mut list = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let spec = device(part, i + 1, list.last())?;
        list.push(spec);
    }
    Ok(list)
}

/// Parses a device, or a port of the device `before`, which has the keys of that but for addresses.
fn device(text: &str, number: usize, before: Option<&DeviceSpec>) -> Result<DeviceSpec, Error> {
    let (name, settings) = text.split_once(':').map_or((text, ""), |(name, rest)| (name.trim(), rest));
    if name.is_empty() {
        return Err(Error(format!("device {number}: found {text:?}, expected a name")));
    }
    let mut spec = DeviceSpec::roce(name, &[]);
    if let Some(before) = before.filter(|before| name.contains('/') && before.device() == spec.device()) {
        spec = DeviceSpec { name: spec.name, addrs: Vec::new(), lid: None, flid: None, ..before.clone() };
    }
    let mut seen = Vec::new();
    for setting in settings.split(',').map(str::trim).filter(|s| !s.is_empty()) {
        let bad = |why: String| Error(format!("device {name:?}: {}: {why}", setting.escape_debug()));
        let (key, value) = setting.split_once('=').ok_or_else(|| bad("expected KEY=VALUE".to_owned()))?;
        let (key, value) = (key.trim(), value.trim());
        if seen.contains(&key) {
            return Err(bad(format!("found {}= twice", key.escape_debug())));
        }
        seen.push(key);
        set(&mut spec, key, value).map_err(bad)?;
    }
    Ok(spec)
}

fn set(spec: &mut DeviceSpec, key: &str, value: &str) -> Result<(), String> {
    match key {
        "addr" => spec.addrs = value.split('+').map(address).collect::<Result<_, _>>()?,
        "rate" => spec.rate = Some(quantity::rate(value)?),
        "latency" | "lat" => spec.latency_ns = quantity::nanoseconds(value)?,
        "cqe_delay" => spec.cqe_delay_ns = quantity::nanoseconds(value)?,
        "mtu" => spec.mtu = value.parse().map_err(|_| "expected 256, 512, 1024, 2048 or 4096")?,
        "path_mtu" => {
            spec.path_mtu = Some(value.parse().map_err(|_| "expected 256, 512, 1024, 2048 or 4096")?);
        }
        "wire" => spec.wire = value.parse().map_err(|_| "expected a number")?,
        "pkey" => spec.pkeys = value.split('+').map(pkey).collect::<Result<_, _>>()?,
        "dmabuf" => spec.dmabuf = switch(value)?,
        "verb_time" => spec.verb_time = VerbTime::parse(value)?,
        "posted" => spec.posted_ns = quantity::nanoseconds(value)?,
        "order" => spec.order = Some(Order::parse(value)?),
        "loopback" => spec.loopback = switch(value)?,
        "grh" => spec.grh_required = switch(value)?,
        "ece" => {
            let options = hex(value).and_then(|bits| bits.try_into().ok());
            spec.ece = Some(options.ok_or("expected options such as 0x7")?);
        }
        "subnet" => spec.subnet = hex(value).ok_or("expected a prefix such as 0xfe80000000000001")?,
        "lmc" => spec.lmc = value.parse().map_err(|_| "expected a number from 0 to 7")?,
        "flid" => spec.flid = Some(value.parse().map_err(|_| "expected a number from 1 to 49151")?),
        "system" => spec.system = Some(hex(value).ok_or("expected a GUID such as 0x5001")?),
        "sysfs" => match value.starts_with('/') {
            true => spec.sysfs = Some(value.to_owned()),
            false => return Err("expected an absolute path".to_owned()),
        },
        "counters" => spec.hw_counters = switch(value)?,
        "without" => spec.without = value.split('+').map(capability).collect::<Result<_, _>>()?,
        "quirks" => spec.quirks = Some(Quirks::parse(value)?),
        "inline" => {
            let bytes = value.parse().ok().filter(|bytes| *bytes <= MAX_INLINE);
            spec.max_inline_data =
                bytes.ok_or_else(|| format!("expected a number of bytes, at most {MAX_INLINE}"))?;
        }
        "max_qp_wr" => spec.max_qp_wr = value.parse().map_err(|_| "expected a number from 1 to 16384")?,
        "max_srq_wr" => spec.max_srq_wr = value.parse().map_err(|_| "expected a number from 1 to 65536")?,
        "max_msg" => spec.max_msg = value.parse().map_err(|_| "expected a number of bytes")?,
        "lid" => spec.lid = Some(value.parse().map_err(|_| "expected a number from 1 to 49151")?),
        "link" => {
            spec.link_layer = match value {
                "roce" => LinkLayer::Ethernet,
                "ib" => LinkLayer::InfiniBand,
                _ => return Err("expected roce or ib".to_owned()),
            }
        }
        _ => {
            return Err(
                "expected one of the keys addr, link, lid, lmc, subnet, flid, grh, loopback, rate, latency, cqe_delay, mtu, path_mtu, wire, pkey, ece, dmabuf, posted, order, system, sysfs, counters, without, quirks, inline, max_qp_wr, max_srq_wr, max_msg, verb_time"
                    .to_owned(),
            );
        }
    }
    Ok(())
}

fn pkey(text: &str) -> Result<u16, String> {
    let key = hex(text.trim()).and_then(|key| key.try_into().ok());
    key.ok_or_else(|| format!("found {text:?}, expected a P_Key such as 0x8001"))
}

fn capability(text: &str) -> Result<Capability, String> {
    match text.trim() {
        "transport" => Ok(Capability::IbTransport),
        "link" => Ok(Capability::LinkLayer),
        "srq" => Ok(Capability::Srq),
        "srq_calls" => Ok(Capability::SrqCalls),
        "mtu" => Ok(Capability::ActiveMtu),
        "retries" => Ok(Capability::Retries),
        _ => Err(format!("found {text:?}, expected transport, link, srq, srq_calls, mtu or retries")),
    }
}

fn switch(text: &str) -> Result<bool, String> {
    match text {
        "on" => Ok(true),
        "off" => Ok(false),
        _ => Err("expected on or off".to_owned()),
    }
}

pub(crate) fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

pub(crate) fn address(text: &str) -> Result<(IpAddr, u8), String> {
    let text = text.trim();
    let expected = || {
        format!("found {text:?}, expected an address with its prefix length, like 10.0.0.1/24 or fd00::1/64")
    };
    let (addr, prefix) = text.split_once('/').ok_or_else(expected)?;
    let addr: IpAddr = addr.parse().map_err(|_| expected())?;
    let prefix: u8 = prefix.parse().map_err(|_| expected())?;
    Ok((addr, prefix))
}
