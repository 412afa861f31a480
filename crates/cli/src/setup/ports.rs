//! The ends that this host has: its Ethernet ports with a link, by their network interfaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;

use mpib_host_view::interfaces_of;
use nccl_net_mpib_agent_iface::doctor::{Link, Port};
use nix::ifaddrs::getifaddrs;
use nix::net::if_::{InterfaceFlags, if_nametoindex};

use super::announcement::End;
use super::net::{Ipv4Net, Mac};
use super::plan::decisive;
use crate::failure::{Context, Failure};

/// Most ends of a host: an announcement has room for so many cables.
const ENDS_MAX: usize = 16;

/// A network interface.
#[derive(Debug, Clone, Default)]
pub(super) struct Interface {
    mac: Option<Mac>,
    nets: Vec<Ipv4Net>,
    is_running: bool,
    is_loopback: bool,
}

/// Reads all network interfaces.
pub(super) fn interfaces() -> Result<BTreeMap<String, Interface>, Failure> {
    let mut all: BTreeMap<String, Interface> = BTreeMap::new();
    for entry in getifaddrs().tool("list the network interfaces")? {
        let interface = all.entry(entry.interface_name).or_default();
        let running = InterfaceFlags::IFF_UP | InterfaceFlags::IFF_RUNNING;
        interface.is_running = entry.flags.contains(running);
        interface.is_loopback = entry.flags.contains(InterfaceFlags::IFF_LOOPBACK);
        let v4 = |storage: Option<nix::sys::socket::SockaddrStorage>| -> Option<Ipv4Addr> {
            storage?.as_sockaddr_in().map(nix::sys::socket::SockaddrIn::ip)
        };
        if let Some(mac) = entry.address.and_then(|address| address.as_link_addr()?.addr()) {
            interface.mac = Some(Mac(mac));
        }
        if let (Some(addr), Some(mask)) = (v4(entry.address), v4(entry.netmask)) {
            interface.nets.extend(Ipv4Net::new(addr, mask.to_bits().leading_ones() as u8));
        }
    }
    Ok(all)
}

/// The ports of this host, and what its other interfaces use.
#[derive(Debug, Default)]
pub(super) struct Own {
    /// The ends with the numbers of their interfaces.
    pub(super) ends: Vec<(End, u32)>,
    /// The networks of the other interfaces, as far as they decide the addresses of the ends.
    pub(super) used: Vec<Ipv4Net>,
    /// Why other ports are no ends.
    pub(super) others: Vec<String>,
}

impl Own {
    pub(super) fn new(ports: &[Port], interfaces: &BTreeMap<String, Interface>) -> Self {
        let mut own = Self::default();
        for port in ports {
            match end(port, interfaces) {
                Ok(end) if own.ends.iter().any(|(other, _)| other.interface == end.interface) => {
                    own.others.push(format!(
                        "{}: another port has its interface {}",
                        port.name(),
                        end.interface
                    ));
                }
                Ok(end) if own.ends.len() == ENDS_MAX => {
                    own.others.push(format!("{}: {ENDS_MAX} ports are looked at, in their order", end.port));
                }
                Ok(end) => {
                    let index = if_nametoindex(end.interface.as_str()).unwrap_or(0);
                    own.ends.push((end, index));
                }
                Err(why) => own.others.push(format!("{}: {why}", port.name())),
            }
        }
        let names: BTreeSet<&str> = own.ends.iter().map(|(end, _)| &*end.interface).collect();
        let others = interfaces.iter().filter(|(name, it)| !names.contains(&***name) && !it.is_loopback);
        let ends: Vec<&End> = own.ends.iter().map(|(end, _)| end).collect();
        own.used = decisive(others.flat_map(|(_, it)| it.nets.clone()), &ends);
        own
    }
}

/// Returns the end of a cable that a port is, or why it is none.
fn end(port: &Port, interfaces: &BTreeMap<String, Interface>) -> Result<End, String> {
    let state = port.state.as_ref();
    if state.is_some_and(|state| state.link == Link::Infiniband) {
        return Err(
            "an InfiniBand port needs no address, and a subnet manager (opensm) at one end of the cable"
                .into(),
        );
    }
    let of_gids = port.gids.iter().find_map(|gid| gid.interface.clone());
    let Some(interface) = of_gids.or_else(|| of_sysfs(port)) else {
        return Err("its network interface is not in sight of this process".into());
    };
    let Some(known) = interfaces.get(&interface) else {
        return Err(format!("its network interface {interface} is not in this network namespace"));
    };
    if !known.is_running {
        return Err(format!(
            "{interface} has no link: is the cable in, and the interface up (ip link set {interface} up)?"
        ));
    }
    let mac = known.mac.ok_or_else(|| format!("{interface} has no hardware address"))?;
    let mtu = fs::read_to_string(format!("/sys/class/net/{interface}/mtu"));
    Ok(End {
        mac,
        port: port.name(),
        speed: state.map_or(0, |state| state.speed_mbps),
        mtu: mtu.ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0),
        wire: port.wire,
        nets: known.nets.clone(),
        interface,
    })
}

/// Returns the network interface of a port that has no GID, as while that is down.
fn of_sysfs(port: &Port) -> Option<String> {
    let mut folders = interfaces_of(Path::new("/sys/class/infiniband"), &port.hca, port.port.into());
    folders.find_map(|folder| Some(folder.file_name()?.to_str()?.to_owned()))
}
