//! Checks how adapters and ports belong together: functions that share the wire of one port, and bonds.

use std::{collections::BTreeMap, path::Path};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Port};

use super::sysfs::{adapter, line, names, target};

/// Checks for functions of one port and for bonds.
pub(super) fn checks(root: &Path, ports: &[Port]) -> Vec<Check> {
    let mut checks = shared(ports);
    checks.extend(bonds(root, ports));
    checks
}

/// Checks the ports that are known to be one physical port.
fn shared(ports: &[Port]) -> Vec<Check> {
    Port::by_wire(ports.iter()).values().filter_map(|functions| twins(functions)).collect()
}

/// Checks whether all functions of a port are used. Each may have a PCIe link that carries a part of
/// the port's rate only, as on DGX Spark.
fn twins(group: &[&Port]) -> Option<Check> {
    let list = |wanted: bool| {
        let ports = group.iter().filter(|port| port.device.is_some() == wanted && !port.is_virtual());
        ports.map(|port| port.name()).collect::<Vec<_>>()
    };
    let (used, unused) = (list(true), list(false));
    let all: Vec<String> = group.iter().filter(|port| !port.is_virtual()).map(|port| port.name()).collect();
    if used.is_empty() || all.len() < 2 {
        return None;
    }
    if unused.is_empty() {
        let text = format!("{} are PCIe functions of one port, and all are used", all.join(", "));
        return Some(Check::new("twins", Level::Ok, text));
    }
    let why = group.iter().find_map(|port| port.trouble.as_deref());
    let why = why.map_or("the settings do not select it", |why| why.split(": ").next().unwrap_or(why));
    let text = format!(
        "{} are PCIe functions of one port, and {} is not used ({why}): {} alone has a part of the port's rate",
        all.join(", "),
        unused.join(", "),
        used.join(", ")
    );
    Some(Check::new("twins", Level::Warn, text).remedy(
        "give the other function's network interface an address in a subnet of its own (ip addr add), bring it up, and \
         name both in NCCL_IB_HCA",
    ))
}

/// Modes of a bond in which an adapter carries RDMA.
const MODES: [&str; 3] = ["active-backup", "balance-xor", "802.3ad"];

/// Checks the bonds that used adapters belong to.
fn bonds(root: &Path, ports: &[Port]) -> Vec<Check> {
    let mut bonds: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for port in ports.iter().filter(|port| port.device.is_some()) {
        let folder = adapter(root, &port.hca).join("device/net");
        for interface in names(&folder) {
            let master = target(&folder.join(&interface).join("master"));
            let is_bond = |name: &String| root.join("sys/class/net").join(name).join("bonding").is_dir();
            if let Some(master) = master.filter(is_bond) {
                bonds.entry(master).or_default().push(port.name());
            }
        }
    }
    bonds.into_iter().map(|(bond, ports)| one_bond(root, &bond, &ports)).collect()
}

fn one_bond(root: &Path, bond: &str, ports: &[String]) -> Check {
    let folder = root.join("sys/class/net").join(bond).join("bonding");
    let mode = line(&folder.join("mode")).unwrap_or_else(|| "unknown".into());
    let mode = mode.split(' ').next().unwrap_or_default();
    let slaves = line(&folder.join("slaves")).unwrap_or_default();
    let slaves: Vec<&str> = slaves.split_whitespace().collect();
    let is_down = |slave: &&&str| {
        let state = line(&root.join("sys/class/net").join(slave).join("operstate"));
        state.is_some_and(|state| state != "up")
    };
    let down: Vec<&str> = slaves.iter().filter(is_down).copied().collect();
    let text = format!("{} is on the bond {bond} of {} ({mode})", ports.join(", "), slaves.join(", "));
    if !MODES.contains(&mode) {
        let text = format!("{text}: adapters carry RDMA over bonds in the modes {} only", MODES.join(", "));
        return Check::new("bond", Level::Warn, text)
            .remedy("change the bond's mode, or use the ports without a bond, as a rail each");
    }
    if !down.is_empty() {
        let text = format!("{text}: {} is down, and its part of the rate is lost", down.join(", "));
        return Check::new("bond", Level::Warn, text)
            .remedy("check the cable and the switch's port, and bring the interface up (ip link set up)");
    }
    let apart = "or use the ports without a bond, as rails that this plugin splits transfers over";
    if mode == "active-backup" {
        let text = format!("{text}: one link carries all, and another one if it fails");
        return Check::new("bond", Level::Note, text)
            .remedy(format!("balance-xor or 802.3ad uses all; {apart}"));
    }
    let text = format!(
        "{text}: the adapter puts each queue pair on one link of the bond and moves it if the link fails; a connection of one port \
         has one queue pair by default"
    );
    let queue_pairs = slaves.len().clamp(2, 4).next_power_of_two();
    Check::new("bond", Level::Note, text).remedy(format!(
        "NCCL_IB_QPS_PER_CONNECTION={queue_pairs} on all hosts lets a connection use several links; {apart}"
    ))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;
    use crate::doctor::sysfs::port;

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a port of a wire, whose function is physical unless it has a link `physfn`.
    fn on(wire: usize, hca: &str, function: Option<&Path>) -> Port {
        Port { wire: Some(wire), ..port(hca, 200_000, function) }
    }

    //= doctor.md: a second PCIe function of a port that is not used is a warning
    #[test]
    fn a_second_function_of_a_port_is_missed_if_it_is_not_used() {
        let root = tempfile::tempdir().unwrap();
        let mut ports = [
            on(0, "rocep1s0f0", None),
            on(1, "rocep1s0f1", None),
            on(1, "roceP2p1s0f1", None),
            on(2, "other", None),
        ];
        let found = checks(root.path(), &ports);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].level, Level::Ok);
        assert_eq!(
            found[0].text,
            "rocep1s0f1:1, roceP2p1s0f1:1 are PCIe functions of one port, and all are used"
        );
        ports[2].device = None;
        ports[2].trouble = Some("no entry of its GID table can be used: 0 (…)".into());
        let found = checks(root.path(), &ports);
        assert_eq!((found.len(), found[0].level), (1, Level::Warn));
        assert!(
            found[0].text.contains(
                "roceP2p1s0f1:1 is not used (no entry of its GID table can be used): rocep1s0f1:1 alone"
            ),
            "{found:?}"
        );
        // A virtual function that is not used is no loss, nor is a port without a known wire.
        fs::create_dir_all(root.path().join("0002:01:00.1/physfn")).unwrap();
        ports[2].pci_path = root.path().join("0002:01:00.1").to_str().map(str::to_owned);
        assert_eq!(checks(root.path(), &ports), []);
        ports.iter_mut().for_each(|port| port.wire = None);
        assert_eq!(checks(root.path(), &ports), []);
    }

    //= doctor.md: a bond is named with its mode and links
    #[test]
    fn a_bond_is_judged_by_its_mode_and_its_links() {
        let root = tempfile::tempdir().unwrap();
        let at = root.path();
        write(at, "sys/class/infiniband/mlx5_bond_0/device/net/eth0/address", "");
        symlink("../../bond0", at.join("sys/class/infiniband/mlx5_bond_0/device/net/eth0/master")).unwrap();
        write(at, "sys/class/net/bond0/bonding/slaves", "eth0 eth1\n");
        let judged = |mode: &str, second: &str| {
            write(at, "sys/class/net/bond0/bonding/mode", mode);
            write(at, "sys/class/net/eth0/operstate", "up\n");
            write(at, "sys/class/net/eth1/operstate", second);
            let found = checks(at, &[port("mlx5_bond_0", 200_000, None)]);
            assert_eq!(found.len(), 1);
            assert!(
                found[0].text.starts_with("mlx5_bond_0:1 is on the bond bond0 of eth0, eth1 ("),
                "{found:?}"
            );
            let remedy = found[0].remedy.as_deref().unwrap_or_default();
            (found[0].level, format!("{} {remedy}", found[0].text))
        };
        let (level, text) = judged("802.3ad 4\n", "up\n");
        assert!(
            level == Level::Note && text.contains(" NCCL_IB_QPS_PER_CONNECTION=2 on all hosts"),
            "{text}"
        );
        let (level, text) = judged("active-backup 1\n", "up\n");
        assert!(level == Level::Note && text.contains("one link carries all"), "{text}");
        let (level, text) = judged("802.3ad 4\n", "down\n");
        assert!(level == Level::Warn && text.contains("eth1 is down"), "{text}");
        let (level, text) = judged("balance-rr 0\n", "up\n");
        assert!(level == Level::Warn && text.contains("active-backup, balance-xor, 802.3ad only"), "{text}");
        assert_eq!(checks(at, &[port("mlx5_1", 200_000, None)]), []);
    }
}
