//! Collects the report. Changes nothing in the process.

use std::net::IpAddr;
use std::sync::Arc;

use mpib_proto::{
    Claim, GidKind, HEADER_BYTES, Hello, LinkLayer, MAX_OFFERS, Message, Mtu, PROTOCOL_VERSION, RailRole,
    Subnet, UnusableRail,
};
use nccl_net_mpib_agent_iface::doctor::{
    Device, FORMAT, Gid, Infiniband, Kind, Link, Port, PortState, Rail, Report, Setting,
};
use nix::net::if_::if_indextoname;

use super::checks;
use super::loopback::verb_times;
use crate::config::Config;
use crate::control::{Interface, Options, interfaces, reachable};
use crate::device::{self, PortView, Survey, survey};
use crate::error::Result;
use crate::process::Process;
use crate::route::{host_name, prefix_len, rail_info};
use crate::split;
use crate::verbs;

/// Reports on this host, with the settings of this process.
pub(crate) fn report() -> Report {
    let (config, bad) = Config::read_lenient(|name| std::env::var_os(name));
    let networks = interfaces();
    let survey = survey(&config);
    let control = networks.as_ref().map_err(ToString::to_string).and_then(|networks| {
        let adapters = || Process::global().devices.addrs();
        let options = Options { sout: sout_addr(&survey), adapters: &adapters, ..Options::from(&config) };
        reachable(networks, &options).map_err(|e| e.to_string())
    });
    let networks = networks.unwrap_or_default();
    let setting = |(name, value, default): (&str, String, bool)| {
        let alike = Config::ALIKE.iter().find(|(of, _)| *of == name).map(|(_, alike)| alike.clone());
        Setting { name: name.into(), value, default, alike }
    };
    let mut report = Report {
        format: FORMAT,
        plugin: env!("CARGO_PKG_VERSION").into(),
        protocol: PROTOCOL_VERSION,
        host: host_name(),
        settings: config.all().into_iter().map(setting).collect(),
        ports: ports(&survey, &config, &networks),
        devices: devices(&survey, &config),
        control: control.iter().flatten().map(|addr| addr.ip().to_string()).collect(),
        island: island(&survey, &config),
        hello: if bad.is_empty() { hello(&survey, &config, &networks) } else { None },
        checks: Vec::new(),
    };
    if !bad.is_empty() {
        // init fails before it opens any adapter.
        report.devices.clear();
        report.ports.iter_mut().for_each(|port| port.device = None);
    }
    report.checks = checks::all(&config, &bad, &survey, control.as_deref(), &networks, &report);
    report
}

/// Encodes a HELLO with the rails of all devices, as if NCCL had requested each.
fn hello(survey: &Result<Survey>, config: &Config, networks: &[Interface]) -> Option<String> {
    let devices = survey.as_ref().ok()?.devices.as_ref().ok()?;
    let (mut rails, mut unusable) = (Vec::new(), Vec::new());
    for (role, nic) in devices.iter().flat_map(|d| RailRole::all().zip(&d.rails)).take(MAX_OFFERS) {
        match rail_info(nic, role, networks) {
            Ok(rail) => rails.push(rail),
            Err(why) => unusable.push(UnusableRail { name: nic.name().into(), role, requested: true, why }),
        }
    }
    let terms = split::terms(config, devices.first().is_some_and(|d| d.is_sout_sup));
    let hello = Hello {
        claim: Claim::default(),
        pid: std::process::id(),
        host: host_name(),
        terms,
        rotation: 0,
        rails,
        unusable,
        others: false,
        wiring_follows: false,
    };
    let bytes = Message::Hello(hello).encode().ok()?;
    Some(bytes[HEADER_BYTES..].iter().map(|b| format!("{b:02x}")).collect())
}

/// Returns the address of SOUT, whose interface the control connections use.
fn sout_addr(survey: &Result<Survey>) -> Option<IpAddr> {
    let device = survey.as_ref().ok()?.devices.as_ref().ok()?.first().filter(|d| d.is_sout_sup)?;
    let (_, gids) = device.rails.first()?.now().ok()?;
    Some(gids.first()?.addr())
}

fn devices(survey: &Result<Survey>, config: &Config) -> Vec<Device> {
    let Some(devices) = survey.as_ref().ok().and_then(|s| s.devices.as_ref().ok()) else { return Vec::new() };
    let one = |device: &device::Device| Device {
        name: device.name.to_string_lossy().into_owned(),
        speed_mbps: split::speed(device, config),
        pci_path: device.pci.map(|pci| pci.card.to_string_lossy().into_owned()),
        max_connections: split::max_connections(device, config),
        rail_id: device.rail_id,
        plane_id: device.plane_id,
        rails: (0..).zip(&device.rails).map(|(role, nic)| Rail { name: nic.name().into(), role }).collect(),
    };
    devices.iter().map(one).collect()
}

fn ports(survey: &Result<Survey>, config: &Config, networks: &[Interface]) -> Vec<Port> {
    let Ok(survey) = survey else { return Vec::new() };
    let devices = survey.devices.as_ref().map_or(&[][..], Vec::as_slice);
    let one = |view: &PortView| {
        let name = format!("{}:{}", view.hca, view.number);
        let of_rail =
            devices.iter().find_map(|d| Some((d, d.rails.iter().find(|nic: &&Arc<_>| nic.name() == name)?)));
        let (device, nic) = of_rail.unzip();
        Port {
            hca: view.hca.clone(),
            port: view.number,
            usable: view.trouble.is_none(),
            trouble: view.trouble.clone(),
            selected: view.selected,
            device: device.map(|d| d.name.to_string_lossy().into_owned()),
            state: view.state.as_ref().map(|port| state(port, view)),
            pci_path: view.pci_path.clone(),
            wire: view.wire,
            numa: view.pci_path.clone().and_then(|path| device::PciLocation::of(path).numa_node()),
            gids: view.gids.iter().map(|(gid, verdict)| entry(gid, verdict, networks)).collect(),
            hw_counters: nic.map(|nic| nic.context().hw_counters(view.number).to_string_lossy().into_owned()),
            verbs: nic.and_then(|nic| verb_times(config, nic)),
        }
    };
    survey.ports.iter().map(one).collect()
}

fn state(port: &verbs::Port, view: &PortView) -> PortState {
    PortState {
        active: port.active,
        link: match port.link {
            LinkLayer::InfiniBand => Link::Infiniband,
            LinkLayer::Ethernet => Link::Ethernet,
        },
        speed_mbps: port.speed,
        mtu: Mtu::from_raw(port.mtu.into()).map_or(0, Mtu::bytes),
        lid: port.lid,
        infiniband: (port.link == LinkLayer::InfiniBand).then(|| infiniband(port, view)),
    }
}

fn infiniband(port: &verbs::Port, view: &PortView) -> Infiniband {
    let mut used: Vec<_> =
        view.gids.iter().filter_map(|(gid, verdict)| Some((*verdict.as_ref().ok()?, gid))).collect();
    used.sort_by_key(|(rank, _)| *rank);
    Infiniband {
        lmc: port.lmc,
        grh_required: port.grh_required,
        subnet: used.first().map(|(_, gid)| Subnet::of(gid.raw).to_string()),
        flid: used.iter().find_map(|(_, gid)| gid.flid()),
    }
}

fn entry(gid: &verbs::Gid, verdict: &Result<usize, String>, networks: &[Interface]) -> Gid {
    let name = if_indextoname(gid.interface).ok().and_then(|name| name.into_string().ok());
    // An adapter of software names no interface.
    let of_address = || Some(networks.iter().find(|i| i.addr.ip() == gid.addr())?.name.clone());
    let name = name.filter(|name| !name.is_empty()).or_else(of_address);
    let prefix = prefix_len(networks, gid);
    Gid {
        index: gid.index,
        address: gid.addr().to_string(),
        kind: match gid.kind {
            GidKind::Ib => Kind::Ib,
            GidKind::RoceV1 => Kind::RoceV1,
            GidKind::RoceV2 => Kind::RoceV2,
        },
        link_local: gid.is_link_local(),
        interface: name,
        prefix: (prefix > 0).then_some(prefix),
        rank: verdict.as_ref().ok().copied(),
        why_not: verdict.as_ref().err().cloned(),
    }
}

/// Describes the hosts of this host's island, by the rule of [`route::class`](crate::route::class).
/// The address is the one that a connection prefers.
fn island(survey: &Result<Survey>, config: &Config) -> Option<String> {
    let device = survey.as_ref().ok()?.devices.as_ref().ok()?.first().filter(|d| d.is_sout_sup)?;
    let (port, gids) = device.rails.first()?.now().ok()?;
    let gid = gids.first()?;
    Some(match (config.island_prefix_len, port.link, gid.addr()) {
        (0, ..) => "every host".into(),
        (_, LinkLayer::InfiniBand, _) => "hosts of the same InfiniBand subnet".into(),
        _ if gid.is_link_local() => "no other host: SOUT has link-local addresses only".into(),
        (len, _, IpAddr::V4(ip)) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(len)).unwrap_or(0);
            format!("hosts whose SOUT is in {}/{len}", std::net::Ipv4Addr::from_bits(ip.to_bits() & mask))
        }
        (_, _, IpAddr::V6(ip)) => {
            let network = std::net::Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64);
            format!("hosts whose SOUT is in {network}/64")
        }
    })
}
