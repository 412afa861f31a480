//! PCI trees, and their form in sysfs, where NCCL and its transports read them.

use std::{
    fmt::Write as _,
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// Attributes of a kind of devices: class, vendor, device and the subsystem's device, as sysfs shows
/// them.
pub(crate) type Identity = [&'static str; 4];

const BRIDGE_CLASS: &str = "0x060400";
const BRIDGE: Identity = [BRIDGE_CLASS, "0x8086", "0x0001", "0x0001"];
/// The two levels of a switch of Broadcom, which NCCL takes for one switch.
pub(crate) const UPPER_SWITCH: Identity = [BRIDGE_CLASS, "0x1000", "0xc030", "0x0072"];
pub(crate) const LOWER_SWITCH: Identity = [BRIDGE_CLASS, "0x1000", "0xc030", "0x1003"];
const GPU: Identity = ["0x030200", "0x10de", "0x2330", "0x2330"];
const NIC: Identity = ["0x020700", "0x15b3", "0x1021", "0x1021"];
/// A virtual function of an mlx5 adapter.
pub(crate) const GUEST_MLX5: Identity = ["0x020700", "0x15b3", "0x101e", "0x101e"];
/// An adapter of Omni-Path.
pub(crate) const HFI1: Identity = ["0x020800", "0x8086", "0x24f0", "0x24f0"];
/// A BCM57508.
pub(crate) const BCM57508: Identity = ["0x020000", "0x14e4", "0x1750", "0x1750"];
/// Entries of a RoCE port's GID table: even ones are of version 1, odd ones of version 2.
const GID_TYPES: [&str; 4] = ["IB/RoCE v1", "RoCE v2", "IB/RoCE v1", "RoCE v2"];

/// Speed and width of a PCI link.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Link {
    speed: &'static str,
    width: u32,
}

pub(crate) const fn link(speed: &'static str, width: u32) -> Link {
    Link { speed, width }
}

const WIDE: Link = link("32.0 GT/s PCIe", 16);

/// A host.
#[derive(Debug, Clone)]
pub(crate) struct Tree {
    pub(crate) name: &'static str,
    /// What the host has, in words.
    pub(crate) what: &'static str,
    /// Settings of the plugin on this host.
    pub(crate) settings: &'static [(&'static str, &'static str)],
    pub(crate) roots: Vec<Root>,
    /// Adapters that are no PCI devices.
    pub(crate) elsewhere: Vec<Pci>,
}

/// A host bridge, as in `pci0000:40`, and its NUMA node.
#[derive(Debug, Clone)]
pub(crate) struct Root {
    bus: String,
    numa_node: i32,
    below: Vec<Pci>,
}

impl Root {
    pub(crate) fn new(bus: &str, numa_node: i32, below: Vec<Pci>) -> Self {
        Self { bus: bus.to_owned(), numa_node, below }
    }
}

/// A function of a PCI device.
#[derive(Debug, Clone)]
pub(crate) struct Pci {
    address: String,
    identity: Identity,
    link: Link,
    below: Vec<Self>,
    /// The address of its physical function, if it is a virtual one.
    physical: Option<String>,
    adapter: Option<Adapter>,
}

/// An RDMA device.
#[derive(Debug, Clone)]
pub(crate) struct Adapter {
    pub(crate) name: String,
    /// Gb/s of its port.
    pub(crate) rate: u32,
    /// GUID of the system image, which the functions of one card share.
    pub(crate) system: u64,
}

impl Pci {
    fn new(address: &str, identity: Identity) -> Self {
        Self {
            address: address.to_owned(),
            identity,
            link: WIDE,
            below: Vec::new(),
            physical: None,
            adapter: None,
        }
    }

    /// Makes a network function without an RDMA device.
    pub(crate) fn plain_nic(address: &str) -> Self {
        Self::new(address, NIC)
    }

    pub(crate) fn with_identity(self, identity: Identity) -> Self {
        Self { identity, ..self }
    }

    pub(crate) fn with_link(self, link: Link) -> Self {
        Self { link, ..self }
    }

    /// Returns the function and all below it.
    fn all(&self) -> Vec<&Self> {
        std::iter::once(self).chain(self.below.iter().flat_map(Self::all)).collect()
    }
}

/// Makes a root port, or a port of a switch.
pub(crate) fn bridge(address: &str, below: Vec<Pci>) -> Pci {
    Pci { below, ..Pci::new(address, BRIDGE) }
}

pub(crate) fn gpu(address: &str) -> Pci {
    Pci::new(address, GPU)
}

/// Makes a function with an RDMA device of one port, whose rate is in Gb/s.
pub(crate) fn nic(address: &str, name: &str, rate: u32, system: u64) -> Pci {
    Pci { adapter: Some(Adapter { name: name.to_owned(), rate, system }), ..Pci::new(address, NIC) }
}

/// As [`nic`], of a virtual function.
pub(crate) fn virtual_function(address: &str, physical: &str, name: &str, rate: u32, system: u64) -> Pci {
    Pci { physical: Some(physical.to_owned()), ..nic(address, name, rate, system) }
}

impl Tree {
    /// Returns a host with one card, whose two functions have these names.
    pub(crate) fn card([first, second]: [&str; 2]) -> Self {
        let functions = vec![nic("0000:42:00.0", first, 100, 1), nic("0000:42:00.1", second, 100, 1)];
        let roots = vec![Root::new("0000:40", 0, vec![bridge("0000:40:01.0", functions)])];
        Self {
            name: "one card",
            what: "one card with two ports",
            settings: &[],
            roots,
            elsewhere: Vec::new(),
        }
    }

    fn functions(&self) -> impl Iterator<Item = &Pci> {
        self.roots.iter().flat_map(|root| &root.below).flat_map(Pci::all).chain(&self.elsewhere)
    }

    /// Returns the NUMA node of each host bridge.
    pub(crate) fn numa_nodes(&self) -> Vec<i32> {
        self.roots.iter().map(|root| root.numa_node).collect()
    }

    /// Returns the PCI addresses of the GPUs.
    pub(crate) fn gpus(&self) -> Vec<String> {
        self.functions().filter(|pci| pci.identity == GPU).map(|pci| pci.address.clone()).collect()
    }

    pub(crate) fn adapters(&self) -> Vec<&Adapter> {
        self.functions().filter_map(|pci| pci.adapter.as_ref()).collect()
    }

    /// Writes the tree to a folder in the form of sysfs: `devices`, `bus`, and `class` with
    /// `pci_bus` and `infiniband`.
    pub(crate) fn write(&self, to: &Path) -> io::Result<()> {
        for class in ["bus/pci", "class/pci_bus", "class/infiniband"] {
            fs::create_dir_all(to.join(class))?;
        }
        for Root { bus, numa_node, below } in &self.roots {
            let root = to.join("devices").join(format!("pci{bus}"));
            write_bus(to, &root, below, *numa_node)?;
        }
        self.elsewhere.iter().filter_map(|pci| pci.adapter.as_ref()).try_for_each(|a| a.write(to, None))
    }
}

impl Tree {
    /// Draws the tree, one line for each function.
    pub(crate) fn picture(&self) -> String {
        let mut text = String::new();
        for root in &self.roots {
            let _ = writeln!(text, "pci{}, NUMA node {}", root.bus, root.numa_node);
            root.below.iter().for_each(|pci| pci.draw(1, &mut text));
        }
        if !self.elsewhere.is_empty() {
            text.push_str("not on PCI\n");
            self.elsewhere.iter().for_each(|pci| pci.draw(1, &mut text));
        }
        text
    }
}

impl Pci {
    fn draw(&self, depth: usize, text: &mut String) {
        let kind = match (self.identity, &self.adapter, &self.physical) {
            ([BRIDGE_CLASS, ..], ..) => "bridge".to_owned(),
            (GPU, ..) => "GPU".to_owned(),
            (_, None, _) => "physical function without an RDMA device".to_owned(),
            (_, Some(Adapter { name, rate, .. }), None) => format!("{name}, {rate} Gb/s"),
            (_, Some(Adapter { name, rate, .. }), Some(of)) => {
                format!("{name}, {rate} Gb/s, a virtual function of {of}")
            }
        };
        let narrow = if self.link.width == WIDE.width {
            String::new()
        } else {
            format!(", link of width {}", self.link.width)
        };
        let space = "  ".repeat(depth);
        let _ = writeln!(text, "{space}{} {kind}{narrow}", self.address);
        self.below.iter().for_each(|pci| pci.draw(depth + 1, text));
    }
}

/// Writes the functions of a bus. `parent` is the folder of its bridge.
fn write_bus(sysfs: &Path, parent: &Path, functions: &[Pci], numa_node: i32) -> io::Result<()> {
    let Some(first) = functions.first() else { return Ok(()) };
    // NCCL looks for a device beside the folder `pci_bus` of its bus.
    let bus = first.address.rsplit_once(':').map_or("", |(bus, _)| bus);
    let folder = parent.join("pci_bus").join(bus);
    fs::create_dir_all(&folder)?;
    link_to(&folder, &sysfs.join("class/pci_bus").join(bus))?;
    for pci in functions {
        let own = parent.join(&pci.address);
        pci.write(sysfs, &own, numa_node)?;
        write_bus(sysfs, &own, &pci.below, numa_node)?;
    }
    Ok(())
}

impl Pci {
    fn write(&self, sysfs: &Path, own: &Path, numa_node: i32) -> io::Result<()> {
        fs::create_dir_all(own)?;
        let [class, vendor, device, subsystem] = self.identity;
        let (width, node) = (self.link.width.to_string(), numa_node.to_string());
        for (name, value) in [
            ("class", class),
            ("vendor", vendor),
            ("device", device),
            ("subsystem_vendor", vendor),
            ("subsystem_device", subsystem),
            ("max_link_speed", self.link.speed),
            ("max_link_width", &width),
            ("numa_node", &node),
        ] {
            fs::write(own.join(name), format!("{value}\n"))?;
        }
        // Marks a PCI device.
        link_to(&sysfs.join("bus/pci"), &own.join("subsystem"))?;
        if let Some(physical) = &self.physical {
            link_to(&own.with_file_name(physical), &own.join("physfn"))?;
        }
        self.adapter.as_ref().map_or(Ok(()), |adapter| adapter.write(sysfs, Some(own)))
    }
}

impl Adapter {
    /// Returns the folder of the adapter in a tree.
    pub(crate) fn folder(&self, sysfs: &Path) -> PathBuf {
        sysfs.join("class/infiniband").join(&self.name)
    }

    fn write(&self, sysfs: &Path, device: Option<&Path>) -> io::Result<()> {
        let folder = self.folder(sysfs);
        let types = folder.join("ports/1/gid_attrs/types");
        fs::create_dir_all(&types)?;
        fs::create_dir_all(folder.join("ports/1/gids"))?;
        for (index, kind) in GID_TYPES.iter().enumerate() {
            fs::write(types.join(index.to_string()), format!("{kind}\n"))?;
        }
        device.map_or(Ok(()), |device| link_to(device, &folder.join("device")))
    }
}

/// Makes a link that may be there already, in a folder that is used again.
fn link_to(to: &Path, at: &Path) -> io::Result<()> {
    match symlink(to, at) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_written_tree_has_the_places_in_which_nccl_looks() {
        let sysfs = tempfile::tempdir().unwrap();
        let card = Tree::card(["a", "b"]);
        card.write(sysfs.path()).unwrap();
        // A tree may be written again.
        card.write(sysfs.path()).unwrap();
        let real = |path: &str| fs::canonicalize(sysfs.path().join(path)).unwrap();
        let function = real("devices/pci0000:40/0000:40:01.0/0000:42:00.1");
        assert_eq!(real("class/pci_bus/0000:42/../../0000:42:00.1"), function);
        assert_eq!(real("class/infiniband/b/device"), function);
        assert_eq!(real("class/pci_bus/0000:40/../../0000:40:01.0"), function.parent().unwrap());
        assert!(real("class/infiniband/a/device/subsystem").ends_with("pci"));
        let read = |path: &str| fs::read_to_string(sysfs.path().join(path)).unwrap();
        assert_eq!(read("class/infiniband/a/device/max_link_width"), "16\n");
        assert_eq!(read("class/infiniband/a/ports/1/gid_attrs/types/3"), "RoCE v2\n");
    }

    #[test]
    fn a_picture_has_a_line_for_each_function() {
        let expected = "pci0000:40, NUMA node 0\n  0000:40:01.0 bridge\n    0000:42:00.0 a, 100 Gb/s\n    \
                        0000:42:00.1 b, 100 Gb/s\n";
        assert_eq!(Tree::card(["a", "b"]).picture(), expected);
    }
}
