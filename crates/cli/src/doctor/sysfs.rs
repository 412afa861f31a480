//! What the checks of adapters read in sysfs, below a root that tests replace.

use std::{
    fs,
    path::{Path, PathBuf},
};

/// Reads a file's only line.
pub(super) fn line(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Lists a folder, sorted.
pub(super) fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

/// Returns the name that a link ends with.
pub(super) fn target(link: &Path) -> Option<String> {
    Some(fs::read_link(link).ok()?.file_name()?.to_string_lossy().into_owned())
}

/// Returns the folder of an adapter.
pub(super) fn adapter(root: &Path, name: &str) -> PathBuf {
    root.join("sys/class/infiniband").join(name)
}

#[cfg(test)]
use nccl_net_mpib_agent_iface::doctor::{Link, Port, PortState};

/// Makes a port with a device, for tests.
#[cfg(test)]
pub(super) fn port(hca: &str, speed_mbps: u32, pci_path: Option<&Path>) -> Port {
    let state =
        PortState { active: true, link: Link::Ethernet, speed_mbps, mtu: 4096, lid: 0, infiniband: None };
    Port {
        hca: hca.into(),
        port: 1,
        usable: true,
        selected: true,
        device: Some(hca.into()),
        state: Some(state),
        pci_path: pci_path.map(|path| path.to_str().unwrap().to_owned()),
        ..Port::default()
    }
}
