//! The rails that one end offers in its HELLO.

use std::collections::HashMap;
use std::ffi::CStr;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use nix::net::if_::if_indextoname;

use crate::config::Config;
use crate::control::{Interface, interfaces};
use crate::device::{self, Device, Nic};
use crate::error::{Error, Result};
use crate::policy;
use crate::proto::{
    Addr, Handle, Hello, MAX_OFFERS, MAX_RAIL_ADDRS, Mtu, Nonce, RailAddr, RailInfo, RailRole, RoutePolicy,
    UnusableRail,
};
use crate::verbs::{Gid, Port};

/// A port that can be used now.
#[derive(Debug, Clone)]
pub(crate) struct LocalRail {
    pub(crate) nic: Arc<Nic>,
    pub(crate) port: Port,
    /// The addresses in HELLO, the best first: 1 to [`MAX_RAIL_ADDRS`].
    pub(crate) gids: Vec<Gid>,
    /// Rail index in its device.
    pub(crate) role: RailRole,
    /// Whether it is of the device that NCCL requested.
    requested: bool,
}

/// Returns the rails of this end and its HELLO: first the rails of the device, then, if substitutes
/// are allowed, the ports of the other devices of the process. `rotation` is the field of HELLO.
///
/// # Errors
/// No rail can be used. The text has the reason for each.
pub(crate) fn prepare(config: &Config, device: &Device, rotation: u32) -> Result<(Vec<LocalRail>, Hello)> {
    let terms = policy::terms(config, device.is_mpib);
    let own = RailRole::all().zip(&device.rails).map(|(role, nic)| (role, nic, true));
    let others = || {
        let mut others: Vec<(RailRole, &Arc<Nic>, bool)> = Vec::new();
        for (role, nic) in device::all().into_iter().flat_map(|other| RailRole::all().zip(&other.rails)) {
            let known = device.rails.iter().chain(others.iter().map(|(_, nic, _)| *nic));
            if known.into_iter().all(|known| known.name() != nic.name()) {
                others.push((role, nic, false));
            }
        }
        others
    };
    // No port substitutes SOUT or SUP.
    let others = if terms.fused || config.route == RoutePolicy::Strict { Vec::new() } else { others() };
    let (mut usable, mut unusable) = (Vec::new(), Vec::new());
    for (role, nic, requested) in own.chain(others) {
        match nic.now() {
            Ok(_) if usable.len() == MAX_OFFERS => too_many(),
            Ok((port, gids)) => usable.push(local(nic, port, gids, role, requested)),
            Err(why) if unusable.len() < MAX_OFFERS => {
                unusable.push(UnusableRail { name: nic.name().to_owned(), role, requested, why });
            }
            Err(_) => {}
        }
    }
    if usable.is_empty() {
        let why: Vec<_> = unusable.iter().map(|l| format!("our {}: {}", l.name, l.why)).collect();
        return Err(Error::Usage(format!("rails that cannot be used: {}", why.join("; "))));
    }
    let networks = interfaces()?;
    let rails = usable.iter().map(|local| local.info(&networks)).collect::<Result<_>>()?;
    let (nonce, token) = (Nonce::default(), Nonce::default());
    let hello =
        Hello { nonce, token, pid: std::process::id(), host: host_name(), terms, rotation, rails, unusable };
    Ok((usable, hello))
}

fn local(nic: &Arc<Nic>, port: Port, mut gids: Vec<Gid>, role: RailRole, requested: bool) -> LocalRail {
    if gids.len() > MAX_RAIL_ADDRS {
        let (name, n) = (nic.name(), gids.len());
        tracing::info!(target: "net", "{name} has {n} addresses; HELLO contains {MAX_RAIL_ADDRS} of them");
        gids.truncate(MAX_RAIL_ADDRS);
    }
    LocalRail { nic: Arc::clone(nic), port, gids, role, requested }
}

/// Logs once: the line would be the same for every connection.
fn too_many() {
    static TOLD: AtomicBool = AtomicBool::new(false);
    if !TOLD.swap(true, Ordering::Relaxed) {
        tracing::info!(
            target: "net",
            "this process has more than {MAX_OFFERS} ports; HELLO contains those of the device and the first others"
        );
    }
}

/// Returns the description of a port in HELLO, as if NCCL had requested the port. The error is the
/// reason why it cannot be used.
pub(crate) fn rail_info(nic: &Arc<Nic>, role: RailRole, networks: &[Interface]) -> Result<RailInfo, String> {
    let (port, gids) = nic.now()?;
    local(nic, port, gids, role, true).info(networks).map_err(|e| e.to_string())
}

impl LocalRail {
    /// Returns the description of the rail in HELLO.
    fn info(&self, networks: &[Interface]) -> Result<RailInfo> {
        let addr = |gid: &Gid| RailAddr {
            gid: gid.raw,
            gid_index: gid.index,
            gid_kind: gid.kind,
            prefix_len: prefix_len(networks, gid),
        };
        let (name, port) = (self.nic.name(), &self.port);
        let mtu = Mtu::from_raw(port.mtu.into());
        Ok(RailInfo {
            name: name.to_owned(),
            port: port.number,
            link_layer: port.link,
            mtu: mtu.ok_or_else(|| Error::Internal(format!("{name} has MTU number {}", port.mtu)))?,
            lid: port.lid,
            addrs: self.gids.iter().map(addr).collect(),
            speed_mbps: port.speed,
            role: self.role,
            requested: self.requested,
        })
    }
}

/// Returns the prefix length of the network of a GID: that of the GID's interface, or else of any
/// interface with the same address. 0 if there is none, as in a container that has the adapter and
/// not its interface.
pub(crate) fn prefix_len(networks: &[Interface], gid: &Gid) -> u8 {
    let name = if_indextoname(gid.interface).ok().and_then(|name| name.into_string().ok());
    let with_address = || networks.iter().filter(|i| i.addr.ip() == gid.addr());
    let own = with_address().find(|i| Some(&i.name) == name.as_ref());
    own.or_else(|| with_address().next()).map_or(0, |i| i.addr.prefix())
}

/// Connections begun from a device to a host.
type ConnectionCounts = HashMap<(&'static CStr, Option<IpAddr>), u32>;

/// Returns the number of connections that this process has begun from this device to the host of
/// the handle, plus the index of the device. Connections of one device rotate over equal routes,
/// and those of different devices begin with different ones.
pub(crate) fn rotation(device: &Device, handle: &Handle) -> u32 {
    static BEGUN: LazyLock<Mutex<ConnectionCounts>> = LazyLock::new(Mutex::default);
    let place = device::all().iter().position(|d| d.name == device.name).unwrap_or(0);
    let host = handle.addrs().first().map(Addr::ip);
    // Each use is one addition, which a panic does not interrupt.
    let mut begun = BEGUN.lock().unwrap_or_else(PoisonError::into_inner);
    let count = begun.entry((device.name, host)).or_default();
    let rotation = *count;
    *count = count.wrapping_add(1);
    rotation.wrapping_add(u32::try_from(place).unwrap_or(0))
}

/// Returns the name of this host, for logs.
pub(crate) fn host_name() -> String {
    std::fs::read_to_string("/proc/sys/kernel/hostname").map_or_else(|_| "?".into(), |n| n.trim().to_owned())
}
