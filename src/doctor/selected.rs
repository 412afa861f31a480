//! What the filters of adapters and interfaces select beside what was probably meant.

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Link, Port, Report};

use crate::config::{Broad, Config, HcaFilter};
use crate::control::Interface;

/// Names the items of `NCCL_IB_HCA` that are the name of one adapter and hit others, too.
pub(super) fn adapters(config: &Config, report: &Report) -> Vec<Check> {
    // With SOUT and SUP the filter has no effect.
    let Some(filter) = config.ib_hca.as_ref().filter(|_| config.hca_sout.is_none()) else {
        return Vec::new();
    };
    let ports: Vec<(&str, u8)> = report.ports.iter().map(|port| (&*port.hca, port.port)).collect();
    let check = |item: Broad<'_>| broad("ports", "NCCL_IB_HCA", filter.names(), &item, &filter.exact());
    filter.broad(&ports).into_iter().map(check).collect()
}

/// The same for the filter of interfaces for control connections.
pub(super) fn interfaces(config: &Config, networks: &[Interface]) -> Vec<Check> {
    let Some((variable, filter)) = config.oob_filter() else { return Vec::new() };
    let names: Vec<&str> = networks.iter().map(|interface| &*interface.name).collect();
    let check = |item: Broad<'_>| broad("control", variable, filter.names(), &item, &filter.exact());
    filter.broad(&names).into_iter().map(check).collect()
}

fn broad(id: &str, variable: &str, names: bool, item: &Broad<'_>, exact: &dyn std::fmt::Display) -> Check {
    let text = format!(
        "{} in {variable} {} {}: items are beginnings of names",
        item.item,
        if names { "selects" } else { "excludes" },
        item.names.join(", ")
    );
    let remedy =
        format!("if {} alone is meant: {variable}={exact}, in which items are whole names", item.whole);
    Check::new(id, Level::Note, text).remedy(remedy)
}

/// Names the devices of ports that have less than half of the fastest port's speed, or another link
/// layer: often those of a management or storage network.
pub(super) fn unequal(config: &Config, report: &Report) -> Option<Check> {
    let used = report.ports.iter().filter(|port| port.device.is_some());
    let used: Vec<(&Port, Link, u32)> = used.filter_map(|port| facts(config, port)).collect();
    let &(_, link, speed) = used.iter().rev().max_by_key(|(.., speed)| *speed)?;
    let (like, unlike): (Vec<_>, Vec<_>) =
        used.iter().partition(|(_, l, s)| *l == link && u64::from(*s) * 2 >= u64::from(speed));
    // SOUT and SUP are named one by one.
    if unlike.is_empty() || config.hca_sout.is_some() {
        return None;
    }
    let name = |(port, link, speed): &&(&Port, Link, u32)| {
        format!("{}:{} ({})", port.hca, port.port, kind(*link, *speed))
    };
    let text = format!(
        "beside ports of {}, NCCL gets slower ones or those of another link layer: {}",
        kind(link, speed),
        unlike.iter().map(name).collect::<Vec<_>>().join(", ")
    );
    let like = like.into_iter().map(|(port, ..)| *port);
    Some(Check::new("ports", Level::Note, text).remedy(format!("to leave them out: {}", only(config, like))))
}

/// Returns the setting that selects these ports alone.
fn only<'a>(config: &Config, ports: impl Iterator<Item = &'a Port>) -> String {
    let ports: Vec<(&str, u8)> = ports.map(|port| (&*port.hca, port.port)).collect();
    format!("NCCL_IB_HCA={}", HcaFilter::only(&ports, config.ib_hca.as_ref()))
}

/// Names the ports with virtual functions that are used beside another function of theirs.
pub(super) fn functions(config: &Config, ports: &[Port]) -> Vec<Check> {
    let used = ports.iter().filter(|port| port.device.is_some());
    let mut wires = Port::by_wire(used.clone());
    wires.retain(|_, functions| functions.len() > 1 && functions.iter().any(|port| port.is_virtual()));
    // The physical function stays, or else the first one.
    wires.values_mut().for_each(|functions| functions.sort_by_key(|port| port.is_virtual()));
    let is_extra = |port: &&Port| wires.values().any(|functions| functions[1..].contains(port));
    let remedy = match config.hca_sout {
        None => format!("leave one of them: {}", only(config, used.filter(|port| !is_extra(port)))),
        Some(_) => "name one of them alone in MPIB_HCA_SOUT and MPIB_HCA_SUP".to_owned(),
    };
    wires.values().map(|functions| of_one_port(functions).remedy(&*remedy)).collect()
}

/// `functions`: the one that stays, and virtual ones of its port.
fn of_one_port(functions: &[&Port]) -> Check {
    let names: Vec<String> = functions.iter().map(|port| port.name()).collect();
    let (level, text) = match (functions[0].is_virtual(), names.split_first()) {
        (false, Some((first, rest))) => {
            let rest = rest.join(", ");
            let text = format!(
                "{first} is a physical function, and {rest} are virtual ones of it: they are one port"
            );
            (Level::Warn, text)
        }
        _ => (Level::Note, format!("{} are virtual functions of one port", names.join(", "))),
    };
    let text = format!(
        "{text}, whose speed counts once; each takes queue pairs and registrations, and adds no rate"
    );
    Check::new("virtual", level, text)
}

/// Returns link layer and speed of a port, as NCCL is shown it.
fn facts<'a>(config: &Config, port: &'a Port) -> Option<(&'a Port, Link, u32)> {
    let state = port.state.as_ref()?;
    let set = config.rail_speed.as_ref().and_then(|speeds| speeds.of(&port.hca, port.port));
    Some((port, state.link, set.unwrap_or(state.speed_mbps)))
}

fn kind(link: Link, mbps: u32) -> String {
    let link = match link {
        Link::Infiniband => "InfiniBand",
        Link::Ethernet => "RoCE",
    };
    format!("{} Gb/s {link}", f64::from(mbps) / 1000.0)
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// A port of a wire, with a device.
    fn on(wire: usize, hca: &str, pci_path: Option<&Path>) -> Port {
        Port {
            hca: hca.into(),
            port: 1,
            usable: true,
            selected: true,
            device: Some(hca.into()),
            pci_path: pci_path.map(|path| path.to_str().unwrap().to_owned()),
            wire: Some(wire),
            ..Port::default()
        }
    }

    //= doctor.md: a physical function beside virtual ones of it is a warning with the list that leaves one
    #[test]
    fn virtual_functions_beside_another_of_their_port_are_named() {
        let root = tempfile::tempdir().unwrap();
        let virtual_one = root.path().join("0000:17:00.2");
        fs::create_dir_all(virtual_one.join("physfn")).unwrap();
        let mut ports = [
            on(0, "mlx5_4", Some(&virtual_one)),
            on(0, "mlx5_0", Some(root.path())),
            on(0, "mlx5_5", Some(&virtual_one)),
            on(1, "mlx5_1", None),
            on(2, "mlx5_2", Some(&virtual_one)),
        ];
        let checked = |ports: &[Port], config: &Config| {
            let mut found = functions(config, ports);
            assert!(found.len() < 2, "{found:?}");
            found.pop().map(|check| (check.level, check.text, check.remedy.unwrap()))
        };
        let plain = Config::default();
        let (level, text, remedy) = checked(&ports, &plain).unwrap();
        let expected = "mlx5_0:1 is a physical function, and mlx5_4:1, mlx5_5:1 are virtual ones of it: they are one port";
        assert!(level == Level::Warn && text.starts_with(expected), "{text}");
        assert_eq!(remedy, "leave one of them: NCCL_IB_HCA==mlx5_0:1,mlx5_1:1,mlx5_2:1");
        // As the filter has them: rails and planes.
        let numbered = Config { ib_hca: Some("mlx5:1:3".parse().unwrap()), ..Config::default() };
        let (.., remedy) = checked(&ports, &numbered).unwrap();
        assert_eq!(remedy, "leave one of them: NCCL_IB_HCA==mlx5_0:1:3,mlx5_1:1:3,mlx5_2:1:3");
        ports[1].device = None;
        let (level, text, remedy) = checked(&ports, &plain).unwrap();
        assert!(
            level == Level::Note && text.starts_with("mlx5_4:1, mlx5_5:1 are virtual functions"),
            "{text}"
        );
        assert_eq!(remedy, "leave one of them: NCCL_IB_HCA==mlx5_4:1,mlx5_1:1,mlx5_2:1");
        ports[2].device = None;
        assert_eq!(checked(&ports, &plain), None, "one is used");
    }
}
