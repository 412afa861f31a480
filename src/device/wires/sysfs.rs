//! Reads the facts of a function.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::{Function, Interface};
use crate::device::pci;
use crate::verbs::Context;

impl Function {
    /// Reads what is known of a port of an adapter whose system image has this GUID. The plugin
    /// counts it with a speed of `speed` Mb/s.
    pub(in crate::device) fn read(context: &Context, image: u64, number: u8, speed: u32) -> Self {
        let physical = context.pci_path().and_then(|path| pci::physical(&path));
        let interface = physical.as_ref().map(|path| Interface::read(Path::new(path), number));
        let reported = context.port(number).map_or(0, |port| port.speed);
        let (node, interface) = (context.node_guid(), interface.unwrap_or_default());
        Self { physical, number, image, node, interface, speed, reported }
    }
}

/// Virtual functions of mlx5. In a guest they look like physical ones, and their function number is
/// not that of the port (`mlx5_core_pci_table`, drivers/net/ethernet/mellanox/mlx5/core/main.c).
const VIRTUAL_MLX5: [&str; 8] =
    ["0x1012", "0x1014", "0x1016", "0x1018", "0x101a", "0x101c", "0x101e", "0xa2d3"];

/// Returns the name of the port of an mlx5 function, as the driver makes it of the function number
/// (`mlx5_get_dev_index`): InfiniBand has no named ports, and a container may not see the interface.
fn port_of_mlx5(physical: &Path) -> Option<String> {
    let device = line(&physical.join("device"))?;
    let is_mlx5 = line(&physical.join("vendor"))? == "0x15b3" && !VIRTUAL_MLX5.contains(&&*device);
    let (_, function) = physical.to_str()?.rsplit_once('.')?;
    is_mlx5.then(|| format!("p{function}"))
}

impl Interface {
    /// Reads the attributes of the interfaces of a port of a physical function. In an adapter that
    /// switches packets itself, there are interfaces for its virtual functions, too.
    fn read(physical: &Path, number: u8) -> Self {
        let entries = fs::read_dir(physical.join("net")).into_iter().flatten().flatten();
        let of_port = |folder: &PathBuf| {
            // Counts the ports of a function from 0.
            let port = line(&folder.join("dev_port")).and_then(|port| port.parse::<u8>().ok());
            port.is_none_or(|port| port == number.saturating_sub(1))
        };
        let folders: Vec<_> = entries.map(|entry| entry.path()).filter(of_port).collect();
        let one = |name: &str, fits: fn(&str) -> bool| {
            let values = folders.iter().filter_map(|folder| line(&folder.join(name)));
            let mut values: BTreeSet<_> = values.filter(|value| fits(value)).collect();
            values.pop_first().filter(|_| values.is_empty())
        };
        Self {
            port_id: one("phys_port_id", |_| true),
            port_name: one("phys_port_name", is_physical).or_else(|| port_of_mlx5(physical)),
            switch_id: one("phys_switch_id", |_| true),
        }
    }
}

/// Whether the name is of a physical port: `p0`, or `p0s1` for a part of a split one. Names as
/// `pf0vf1` are of virtual functions.
fn is_physical(name: &str) -> bool {
    name.strip_prefix('p').is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Reads an attribute. The kernel fails the read where the driver has no value.
fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(folder: &Path, name: &str, attributes: &[(&str, &str)]) {
        let folder = folder.join("net").join(name);
        fs::create_dir_all(&folder).unwrap();
        attributes.iter().for_each(|(name, value)| fs::write(folder.join(name), value).unwrap());
    }

    #[test]
    fn interfaces_of_virtual_functions_and_of_other_ports_are_left_out() {
        let function = tempfile::tempdir().unwrap();
        let at = function.path();
        assert_eq!(Interface::read(at, 1), Interface::default());
        let switch = ("phys_switch_id", "42d8\n");
        interface(at, "enp1s0f0np0", &[("phys_port_name", "p0\n"), ("dev_port", "0\n"), switch]);
        interface(at, "eth4", &[("phys_port_name", "pf0vf1\n"), ("dev_port", "0\n"), switch]);
        interface(at, "eth1", &[("phys_port_name", "p1\n"), ("dev_port", "1\n"), ("phys_port_id", "0a\n")]);
        let some = |text: &str| Some(text.to_owned());
        let first = Interface { port_id: None, port_name: some("p0"), switch_id: some("42d8") };
        assert_eq!(Interface::read(at, 1), first);
        let second = Interface { port_id: some("0a"), port_name: some("p1"), switch_id: None };
        assert_eq!(Interface::read(at, 2), second);
        // Two that differ say nothing.
        interface(at, "eth2", &[("phys_port_name", "p2\n")]);
        assert_eq!(Interface::read(at, 1).port_name, None);
    }

    #[test]
    fn a_physical_function_of_mlx5_has_the_port_of_its_number() {
        let bus = tempfile::tempdir().unwrap();
        let function = bus.path().join("0000:01:00.1");
        fs::create_dir(&function).unwrap();
        let named = |vendor: &str, device: &str| {
            fs::write(function.join("vendor"), vendor).unwrap();
            fs::write(function.join("device"), device).unwrap();
            Interface::read(&function, 1).port_name
        };
        assert_eq!(named("0x15b3\n", "0x1021\n").as_deref(), Some("p1"));
        assert_eq!(named("0x15b3\n", "0x101e\n"), None);
        assert_eq!(named("0x434e\n", "0x0001\n"), None);
        interface(&function, "enp1s0f1np0", &[("phys_port_name", "p0\n")]);
        assert_eq!(named("0x15b3\n", "0x1021\n").as_deref(), Some("p0"), "the interface's comes first");
    }
}
