//! What the checks of adapters read in sysfs, below a root that tests replace.

use std::{
    fs,
    path::{Path, PathBuf},
};

use nccl_net_mpib_agent_iface::doctor::Port;

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

/// Returns the name of a port, as in `mlx5_0:1`.
pub(super) fn name(port: &Port) -> String {
    format!("{}:{}", port.hca, port.port)
}

/// Makes a port with a device, for tests.
#[cfg(test)]
pub(super) fn port(hca: &str, speed_mbps: u32, pci_path: Option<&Path>) -> Port {
    use nccl_net_mpib_agent_iface::doctor::{Link, PortState};
    let state =
        PortState { active: true, link: Link::Ethernet, speed_mbps, mtu: 4096, lid: 0, infiniband: None };
    Port {
        hca: hca.into(),
        port: 1,
        usable: true,
        trouble: None,
        selected: true,
        device: Some(hca.into()),
        state: Some(state),
        pci_path: pci_path.map(|path| path.to_str().unwrap().to_owned()),
        wire: None,
        numa: None,
        gids: Vec::new(),
        hw_counters: None,
        verbs: None,
    }
}
