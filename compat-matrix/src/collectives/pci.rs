//! A tree of PCI devices in the form of sysfs, for simulated adapters that NCCL is to find there.

use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// A root port and an adapter behind it: bus number, class, vendor and device as sysfs shows them.
const ROOT: &str = "devices/pci0000:40/0000:40:01.0";
const BRIDGE: [(&str, &str); 3] = [("class", "0x060400"), ("vendor", "0x8086"), ("device", "0x0001")];
const ADAPTER: [(&str, &str); 3] = [("class", "0x020700"), ("vendor", "0x15b3"), ("device", "0x101b")];
/// Attributes of every device that NCCL's topology search reads.
const COMMON: [(&str, &str); 3] =
    [("numa_node", "0"), ("max_link_speed", "16.0 GT/s PCIe"), ("max_link_width", "16")];

/// Makes a link that may be there already, in a tree that is used again.
fn link(to: &Path, at: &Path) -> io::Result<()> {
    match symlink(to, at) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        done => done,
    }
}

/// Makes the folder of a device. Its link `subsystem` marks it as a PCI device.
fn device(tree: &Path, path: &Path, attributes: [(&str, &str); 3]) -> io::Result<()> {
    fs::create_dir_all(path)?;
    for (name, value) in attributes.into_iter().chain(COMMON) {
        fs::write(path.join(name), format!("{value}\n"))?;
    }
    link(&tree.join("bus/pci"), &path.join("subsystem"))
}

/// Makes one card with a function for each name. Returns the folders that replace the adapters'
/// folders in sysfs (`sysfs=` of softverbs), in the order of names.
pub(super) fn one_card(tree: &Path, names: &[&str]) -> io::Result<Vec<PathBuf>> {
    fs::create_dir_all(tree.join("bus/pci"))?;
    let root = tree.join(ROOT);
    device(tree, &root, BRIDGE)?;
    let adapter = |(function, name): (usize, &&str)| {
        let path = root.join(format!("0000:42:00.{function}"));
        device(tree, &path, ADAPTER)?;
        let folder = tree.join(name);
        fs::create_dir_all(&folder)?;
        link(&path, &folder.join("device"))?;
        Ok(folder)
    };
    names.iter().enumerate().map(adapter).collect()
}
