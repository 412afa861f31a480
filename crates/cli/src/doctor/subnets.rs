//! Checks ports of this host that are in one IPv4 subnet. By default Linux answers ARP for each of its
//! addresses on every interface, and packets for one port arrive at another one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::Ipv4Addr,
    path::Path,
};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Link, Port};

use super::sysfs::line;

/// Interfaces with their ports, by the subnet that they are in.
type Subnets = BTreeMap<(Ipv4Addr, u8), BTreeMap<String, BTreeSet<String>>>;

/// Notes the RoCE ports that share a subnet while one of their interfaces answers for all.
pub(super) fn checks(root: &Path, ports: &[Port]) -> Vec<Check> {
    let mut subnets = Subnets::new();
    let is_roce = |port: &&Port| port.state.as_ref().is_some_and(|state| state.link == Link::Ethernet);
    for port in ports.iter().filter(|port| port.device.is_some()).filter(is_roce) {
        for gid in port.gids.iter().filter(|gid| gid.rank.is_some()) {
            let (Ok(address), Some(prefix), Some(interface)) =
                (gid.address.parse::<Ipv4Addr>(), gid.prefix, &gid.interface)
            else {
                continue;
            };
            let mask = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0);
            let network = Ipv4Addr::from_bits(address.to_bits() & mask);
            let interfaces = subnets.entry((network, prefix)).or_default();
            interfaces.entry(interface.clone()).or_default().insert(port.name());
        }
    }
    subnets.iter().filter_map(|(subnet, interfaces)| check(root, *subnet, interfaces)).collect()
}

fn check(
    root: &Path,
    (network, prefix): (Ipv4Addr, u8),
    interfaces: &BTreeMap<String, BTreeSet<String>>,
) -> Option<Check> {
    let answers_for_all = interfaces.keys().any(|interface| arp_ignore(root, interface) == Some(0));
    if interfaces.len() < 2 || !answers_for_all {
        return None;
    }
    let shown = |(interface, ports): (&String, &BTreeSet<String>)| {
        let ports: Vec<&str> = ports.iter().map(String::as_str).collect();
        format!("{} ({interface})", ports.join(", "))
    };
    let text = format!(
        "ports in one subnet, {network}/{prefix}: {}. arp_ignore is 0: an interface answers ARP for the addresses of the others, \
         and a port drops packets that are for another one (status 12)",
        interfaces.iter().map(shown).collect::<Vec<_>>().join(", ")
    );
    Some(Check::new("subnet", Level::Note, text).remedy(
        "give each port a subnet, or: sysctl -w net.ipv4.conf.all.arp_ignore=1 net.ipv4.conf.all.arp_announce=2 \
         net.ipv4.conf.all.rp_filter=2",
    ))
}

/// Returns the value in effect: the larger one of the interface's and of all interfaces'.
fn arp_ignore(root: &Path, interface: &str) -> Option<u32> {
    let read = |of: &str| {
        line(&root.join("proc/sys/net/ipv4/conf").join(of).join("arp_ignore"))?.parse::<u32>().ok()
    };
    Some(read(interface)?.max(read("all")?))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use nccl_net_mpib_agent_iface::doctor::{Gid, Kind};

    use super::*;
    use crate::doctor::sysfs;

    fn port(hca: &str, interface: &str, address: &str, prefix: u8) -> Port {
        let gid = |kind| Gid {
            index: 3,
            address: address.into(),
            kind,
            link_local: false,
            interface: Some(interface.into()),
            prefix: Some(prefix),
            rank: Some(0),
            why_not: None,
        };
        Port { gids: vec![gid(Kind::RoceV2), gid(Kind::RoceV1)], ..sysfs::port(hca, 200_000, None) }
    }

    //= doctor.md: RoCE ports of one subnet are a note while their interfaces answer for each other
    #[test]
    fn ports_of_one_subnet_are_noted_unless_each_interface_answers_for_itself() {
        let root = tempfile::tempdir().unwrap();
        let set = |of: &[&str], value: &str| {
            for of in of {
                let folder = root.path().join("proc/sys/net/ipv4/conf").join(of);
                fs::create_dir_all(&folder).unwrap();
                fs::write(folder.join("arp_ignore"), value).unwrap();
            }
        };
        let two = [port("a", "e1", "10.1.0.1", 24), port("b", "e2", "10.1.0.2", 24)];
        assert_eq!(checks(root.path(), &two), [], "the values are not known");
        set(&["all", "e1", "e2"], "0\n");
        let found = checks(root.path(), &two);
        assert_eq!((found.len(), found[0].level), (1, Level::Note));
        assert!(
            found[0].text.starts_with("ports in one subnet, 10.1.0.0/24: a:1 (e1), b:1 (e2). "),
            "{found:?}"
        );
        let apart = [port("a", "e1", "10.1.0.1", 24), port("b", "e2", "10.1.1.2", 24)];
        assert_eq!(checks(root.path(), &apart), []);
        let one = [port("a", "e1", "10.1.0.1", 24), port("b", "e1", "10.1.0.2", 24)];
        assert_eq!(checks(root.path(), &one), [], "two functions of one interface");
        set(&["e1"], "1\n");
        assert_eq!(checks(root.path(), &two).len(), 1, "e2 answers for e1");
        set(&["e2"], "1\n");
        assert_eq!(checks(root.path(), &two), []);
        set(&["e1", "e2"], "0\n");
        set(&["all"], "1\n");
        assert_eq!(checks(root.path(), &two), []);
    }
}
