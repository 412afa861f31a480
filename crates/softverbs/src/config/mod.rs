//! Which devices exist: what the program says by [`configure`], else what `SOFTVERBS_DEVICES` says, else two
//! RoCE devices. Decided once, when the devices are first asked for.

pub(crate) mod gid;
mod parse;
mod quantity;

use std::fmt;
use std::net::IpAddr;
use std::sync::{Mutex, OnceLock};

use crate::limits::{MAX_DEVICES, MAX_GIDS, MAX_INLINE};
use crate::log::write_always;

/// The variable that lists the devices.
pub const DEVICES_VAR: &str = "SOFTVERBS_DEVICES";
/// Addresses of a RoCE port: each takes two places of the GID table, and the link-local one as well.
pub const MAX_ADDRS: usize = MAX_GIDS / 2 - 1;

/// What a port speaks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LinkLayer {
    /// RoCE.
    Ethernet,
    /// Subnet with LIDs.
    InfiniBand,
}

/// What nearly every adapter has, and some do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Capability {
    /// `transport_type` is iWARP's.
    IbTransport,
    /// `link_layer` is 0, as that of adapters which speak neither InfiniBand nor RoCE.
    LinkLayer,
    /// There are no shared receive queues.
    Srq,
    /// `active_mtu` is 0.
    ActiveMtu,
}

/// One device as configured: what makes it that device, and how its port is shaped.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceSpec {
    /// Device name: 1 to 63 letters, digits, `_`, `-` or `.`.
    pub name: String,
    /// Addresses of the port with their prefix lengths. Only RoCE has them.
    pub addrs: Vec<(IpAddr, u8)>,
    /// What the port speaks.
    pub link_layer: LinkLayer,
    /// The port's LID, 1 to 0xBFFF. Only InfiniBand has one; `None` derives it from the name.
    pub lid: Option<u16>,
    /// Bytes per second and direction; `None` is as fast as memory.
    pub rate: Option<u64>,
    /// One-way latency in nanoseconds.
    pub latency_ns: u64,
    /// Path MTU of the port in bytes: 256, 512, 1024, 2048 or 4096.
    pub mtu: u32,
    /// The largest path MTU that the network behind the port lets through, from the same list; `None` is `mtu`.
    pub path_mtu: Option<u32>,
    /// The cable or switch that the port is on: ports on different ones do not reach each other, whatever their addresses.
    pub wire: u32,
    /// The port's P_Key table, 1 to 16 entries.
    pub pkeys: Vec<u16>,
    /// Options of enhanced connection establishment that the device has, as bits; `None` is a device that knows nothing of it.
    pub ece: Option<u32>,
    /// Whether the device registers DMA-BUFs, for which any file serves that can be mapped. It reaches no GPU's memory by them.
    pub dmabuf: bool,
    /// The directory that stands for the device in sysfs (`ibdev_path`), with what its owner has put there; `None` is one that does
    /// not exist.
    pub sysfs: Option<String>,
    /// What it has not.
    pub without: Vec<Capability>,
    /// Bytes of inline data that a queue pair can be asked for, at most.
    pub max_inline_data: u32,
}

/// Why a list of devices is not accepted, as a sentence without the variable's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error(pub(crate) String);

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Error {}

impl DeviceSpec {
    /// A RoCE device without a limit of rate, without latency, and with an MTU of 4096.
    pub fn roce(name: &str, addrs: &[(IpAddr, u8)]) -> Self {
        Self {
            name: name.to_owned(),
            addrs: addrs.to_vec(),
            link_layer: LinkLayer::Ethernet,
            lid: None,
            rate: None,
            latency_ns: 0,
            mtu: 4096,
            path_mtu: None,
            wire: 0,
            // Full member of the default partition.
            pkeys: vec![0xffff],
            ece: None,
            dmabuf: false,
            sysfs: None,
            without: Vec::new(),
            max_inline_data: MAX_INLINE,
        }
    }

    /// An InfiniBand device, otherwise as [`roce`](Self::roce) makes it. Its LID comes from its name.
    pub fn infiniband(name: &str) -> Self {
        Self { link_layer: LinkLayer::InfiniBand, ..Self::roce(name, &[]) }
    }

    /// Reads a list in the form of `SOFTVERBS_DEVICES` (docs/softverbs.md).
    pub fn parse_list(text: &str) -> Result<Vec<Self>, Error> {
        let devices = parse::list(text)?;
        check(&devices)?;
        Ok(devices)
    }
}

/// The devices that a process has when nobody says otherwise.
pub fn default_devices() -> Vec<DeviceSpec> {
    (0..2)
        .map(|i| DeviceSpec::roce(&format!("soft{i}"), &[(IpAddr::from([192, 168, 200 + i, 1]), 24)]))
        .collect()
}

static CHOSEN: Mutex<Option<Vec<DeviceSpec>>> = Mutex::new(None);
static DEVICES: OnceLock<Vec<DeviceSpec>> = OnceLock::new();

/// Sets the devices of this process in place of `SOFTVERBS_DEVICES`. For programs that have this crate linked
/// in. Fails on a list that makes no sense, and once the devices were asked for, unless they are the same.
pub fn configure(devices: Vec<DeviceSpec>) -> Result<(), Error> {
    check(&devices)?;
    let mut chosen = CHOSEN.lock().unwrap_or_else(|e| e.into_inner());
    match DEVICES.get() {
        Some(used) if *used != devices => {
            Err(Error("the devices of this process are in use already and are others".to_owned()))
        }
        Some(_) => Ok(()),
        None => {
            *chosen = Some(devices);
            Ok(())
        }
    }
}

/// The configured devices; the same at every call.
pub(crate) fn devices() -> &'static [DeviceSpec] {
    // Locked around the whole, so that `configure` is either before or after.
    let mut chosen = CHOSEN.lock().unwrap_or_else(|e| e.into_inner());
    DEVICES.get_or_init(|| {
        crate::control::report::arrange();
        chosen.take().unwrap_or_else(|| {
            let value = std::env::var_os(DEVICES_VAR).map(|v| v.to_string_lossy().into_owned());
            from_text(value.as_deref()).unwrap_or_else(|line| {
                write_always(format_args!("{line}"));
                Vec::new()
            })
        })
    })
}

/// What a value of the variable means, or the line that says what is wrong with it.
fn from_text(text: Option<&str>) -> Result<Vec<DeviceSpec>, String> {
    let Some(text) = text else { return Ok(default_devices()) };
    DeviceSpec::parse_list(text).map_err(|e| {
        // Debug form: a line break in the value must not make two lines of one.
        format!("{DEVICES_VAR}={text:?}: {e}; there are no devices (expected form: {})", parse::FORM)
    })
}

/// What a single device or the list as a whole may not be, whoever made it.
fn check(devices: &[DeviceSpec]) -> Result<(), Error> {
    if devices.len() > MAX_DEVICES {
        return Err(Error(format!("found {} devices, at most {MAX_DEVICES} are possible", devices.len())));
    }
    for (i, device) in devices.iter().enumerate() {
        check_one(device).map_err(|e| Error(format!("device {:?}: {e}", device.name)))?;
        for other in &devices[..i] {
            check_pair(other, device)?;
        }
    }
    Ok(())
}

fn check_one(device: &DeviceSpec) -> Result<(), String> {
    let plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'-' | b'.');
    let name = device.name.as_bytes();
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
    check_addrs(&device.addrs)?;
    if device.lid.is_some_and(|lid| !(1..=gid::MAX_LID).contains(&lid)) {
        return Err(format!("lid={}: expected 1 to {}", device.lid.unwrap_or(0), gid::MAX_LID));
    }
    if device.sysfs.as_ref().is_some_and(|path| path.len() > MAX_PATH) {
        return Err(format!("sysfs= is longer than {MAX_PATH} bytes"));
    }
    if device.rate == Some(0) {
        return Err("found a rate of 0, expected a rate above it".to_owned());
    }
    if device.latency_ns > MAX_LATENCY_NS {
        return Err(format!(
            "latency of {} ns: expected at most {} s",
            device.latency_ns,
            MAX_LATENCY_NS / 1_000_000_000
        ));
    }
    for (key, mtu) in [("mtu", device.mtu), ("path_mtu", device.path_mtu.unwrap_or(device.mtu))] {
        if ![256, 512, 1024, 2048, 4096].contains(&mtu) {
            return Err(format!("{key}={mtu}: expected 256, 512, 1024, 2048 or 4096"));
        }
    }
    if !(1..=MAX_PKEYS).contains(&device.pkeys.len()) || device.pkeys.iter().any(|key| key & 0x7fff == 0) {
        return Err(format!(
            "found P_Keys {:x?}, expected 1 to {MAX_PKEYS}, of which none names partition 0",
            device.pkeys
        ));
    }
    Ok(())
}

/// Room in `ibdev_path`.
const MAX_PATH: usize = 255;

/// Entries of a P_Key table.
const MAX_PKEYS: usize = 16;

/// A latency above this is a slip of the unit.
const MAX_LATENCY_NS: u64 = 10_000_000_000;

/// The addresses of one port.
pub(crate) fn check_addrs(addrs: &[(IpAddr, u8)]) -> Result<(), String> {
    if addrs.len() > MAX_ADDRS {
        return Err(format!("found {} addresses, at most {MAX_ADDRS} are possible", addrs.len()));
    }
    for (i, &(addr, prefix)) in addrs.iter().enumerate() {
        check_addr(addr, prefix)?;
        if addrs[..i].iter().any(|&(earlier, _)| earlier == addr) {
            return Err(format!("found the address {addr} twice"));
        }
    }
    Ok(())
}

fn check_addr(addr: IpAddr, prefix: u8) -> Result<(), String> {
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

/// Devices of one process must be told apart by name and by GID.
fn check_pair(a: &DeviceSpec, b: &DeviceSpec) -> Result<(), Error> {
    if a.name == b.name {
        return Err(Error(format!("device {:?}: found that name twice", b.name)));
    }
    if let Some((addr, _)) = b.addrs.iter().find(|(addr, _)| a.addrs.iter().any(|(other, _)| other == addr)) {
        return Err(Error(format!(
            "device {:?}: the address {addr} is already that of {:?}",
            b.name, a.name
        )));
    }
    if a.link_layer == LinkLayer::InfiniBand && b.link_layer == a.link_layer && gid::lid(a) == gid::lid(b) {
        let lid = gid::lid(a);
        return Err(Error(format!(
            "device {:?}: the LID {lid} is already that of {:?}; say lid=",
            b.name, a.name
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
