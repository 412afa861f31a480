//! Checks the kernel's side: modules, adapters, device files. All paths are below a root, which
//! tests replace.

use std::{
    fs,
    io::ErrorKind,
    path::{Path, PathBuf},
};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Report};

use super::{provider, sysfs::names};

/// Modules that every adapter needs.
const CORE: [&str; 2] = ["ib_core", "ib_uverbs"];
/// Drivers of adapters, hardware first.
const DRIVERS: [&str; 13] = [
    "mlx5_ib",
    "mlx4_ib",
    "irdma",
    "bnxt_re",
    "efa",
    "erdma",
    "mana_ib",
    "hns_roce_hw_v2",
    "ionic_rdma",
    "qedr",
    "hfi1",
    "rdma_rxe",
    "siw",
];
/// Modules that make GPU memory available to adapters.
const GPU: [&str; 3] = ["nvidia", "nvidia_peermem", "nv_peer_mem"];

/// Checks whether this user's programs can open the kernel's adapters. `softverbs`: it is this
/// process's libibverbs.
pub(super) fn checks(root: &Path, softverbs: bool, report: Option<&Report>) -> Vec<Check> {
    if softverbs {
        let text = "softverbs is this process's libibverbs: it needs no kernel module and no device file, and uses no adapter";
        return vec![Check::new("verbs", Level::Ok, text)];
    }
    let adapters = names(&root.join("sys/class/infiniband"));
    let seen = report.is_some_and(|report| !report.ports.is_empty());
    let mut checks = vec![modules(root, &adapters, seen)];
    if !adapters.is_empty() {
        checks.push(files(root, &adapters));
    }
    let is_open = checks.iter().all(|check| check.level < Level::Fail);
    // MPIB-229: there is no libibverbs that could lack a provider.
    let has_library = |report: &Report| report.checks.iter().all(|c| c.code.as_deref() != Some("MPIB-229"));
    if is_open && !seen && report.is_some_and(has_library) && !adapters.is_empty() {
        checks.push(provider::check(root, &adapters));
    }
    checks
}

/// Returns whether a module is loaded or built into the kernel.
pub(super) fn loaded(root: &Path, name: &str) -> bool {
    let list = fs::read_to_string(root.join("proc/modules")).unwrap_or_default();
    list.lines().any(|line| line.split(' ').next() == Some(name))
        || root.join("sys/module").join(name).is_dir()
}

/// Returns the modules for adapters and GPUs that are loaded.
pub(super) fn all_loaded(root: &Path) -> Vec<&'static str> {
    let all = CORE.iter().chain(&DRIVERS).chain(&GPU).copied();
    all.filter(|name| loaded(root, name)).collect()
}

/// Checks the modules. `seen`: the plugin has found ports, and missing modules do not matter.
fn modules(root: &Path, adapters: &[String], seen: bool) -> Check {
    let id = "modules";
    let all = all_loaded(root);
    let list = if all.is_empty() { "none".into() } else { all.join(", ") };
    let text = format!("loaded kernel modules for RDMA and GPUs: {list}");
    if seen || (!adapters.is_empty() && all.contains(&"ib_uverbs")) {
        return Check::new(id, Level::Ok, text);
    }
    if adapters.is_empty() {
        return Check::new(id, Level::Fail, format!("the kernel has no RDMA adapter (/sys/class/infiniband); {text}")).remedy(
            "load the adapter's driver (modprobe mlx5_ib, or another one); on any Ethernet: modprobe rdma_rxe, \
             then rdma link add rxe0 type rxe netdev eth0",
        );
    }
    let text = format!(
        "the kernel has {}, but ib_uverbs is not loaded, which programs need to open them; {text}",
        adapters.join(", ")
    );
    Check::new(id, Level::Fail, text).remedy("modprobe ib_uverbs")
}

/// Checks that the adapters' device files exist and that this user can open them.
fn files(root: &Path, adapters: &[String]) -> Check {
    let id = "uverbs";
    let folder = root.join("dev/infiniband");
    let files: Vec<PathBuf> = names(&folder)
        .into_iter()
        .filter(|name| name.starts_with("uverbs"))
        .map(|name| folder.join(name))
        .collect();
    if files.is_empty() {
        let text = format!("the kernel has {}, but there is no /dev/infiniband/uverbs*", adapters.join(", "));
        return Check::new(id, Level::Fail, text).remedy(
            "in a container, add the files (--device /dev/infiniband); on a host, modprobe ib_uverbs",
        );
    }
    let refused = |path: &&PathBuf| {
        let opened = fs::OpenOptions::new().read(true).write(true).open(path);
        opened.is_err_and(|e| e.kind() == ErrorKind::PermissionDenied)
    };
    let refused: Vec<String> = files
        .iter()
        .filter(refused)
        .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
        .collect();
    let text = format!(
        "{} of {} files /dev/infiniband/uverbs* are open to this user",
        files.len() - refused.len(),
        files.len()
    );
    if refused.is_empty() {
        return Check::new(id, Level::Ok, text);
    }
    let level = if refused.len() == files.len() { Level::Fail } else { Level::Warn };
    Check::new(id, level, format!("{text}, not {}", refused.join(", ")))
        .remedy("check their permissions (udev's rule sets mode 0666) and the container's devices")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks a root with these files.
    fn checks_below(files: &[(&str, &str)], softverbs: bool) -> Vec<(String, Level, String)> {
        checks_with(files, softverbs, None)
    }

    fn checks_with(
        files: &[(&str, &str)],
        softverbs: bool,
        report: Option<&Report>,
    ) -> Vec<(String, Level, String)> {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        checks(root.path(), softverbs, report).into_iter().map(|c| (c.id, c.level, c.text)).collect()
    }

    const ADAPTER: (&str, &str) = ("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");

    //= doctor.md: missing modules and device files are reported cause first
    #[test]
    fn missing_parts_of_the_system_are_reported_by_first_cause() {
        let none = checks_below(&[], false);
        assert_eq!((none.len(), none[0].1), (1, Level::Fail));
        assert!(none[0].2.contains("no RDMA adapter"), "{none:?}");
        let core = ("proc/modules", "mlx5_ib 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n");
        let shut = checks_below(&[ADAPTER, core], false);
        assert!(shut[0].1 == Level::Fail && shut[0].2.contains("ib_uverbs is not loaded"), "{shut:?}");
        assert!(shut[0].2.ends_with("RDMA and GPUs: ib_core, mlx5_ib"), "{shut:?}");
        let uverbs = ("sys/module/ib_uverbs/refcnt", "0");
        let bare = checks_below(&[ADAPTER, core, uverbs], false);
        assert_eq!((bare[0].1, bare[1].1), (Level::Ok, Level::Fail), "{bare:?}");
        assert!(
            bare[1].2.contains("the kernel has mlx5_0, but there is no /dev/infiniband/uverbs*"),
            "{bare:?}"
        );
        let good = checks_below(&[ADAPTER, core, uverbs, ("dev/infiniband/uverbs0", "")], false);
        assert!(good.iter().all(|c| c.1 == Level::Ok), "{good:?}");
        assert!(good[1].2.starts_with("1 of 1 files"), "{good:?}");
    }

    /// A report without ports, and with this failure.
    fn report(text: &str) -> Report {
        Report {
            format: 0,
            plugin: String::new(),
            protocol: 0,
            host: String::new(),
            settings: Vec::new(),
            ports: Vec::new(),
            devices: Vec::new(),
            control: Vec::new(),
            island: None,
            hello: None,
            checks: vec![Check::new("devices", Level::Fail, text)],
        }
    }

    #[test]
    fn no_provider_is_missed_where_there_is_no_libibverbs() {
        let host = [
            ADAPTER,
            ("proc/modules", "mlx5_ib 1 0 - Live 0x0\nib_core 1 0 - Live 0x0\n"),
            ("sys/module/ib_uverbs/refcnt", "0"),
            ("dev/infiniband/uverbs0", ""),
        ];
        let ids = |text| -> Vec<String> {
            checks_with(&host, false, Some(&report(text))).into_iter().map(|check| check.0).collect()
        };
        assert_eq!(ids("no RDMA device found"), ["modules", "uverbs", "provider"]);
        assert_eq!(ids("libibverbs cannot be used: no such file"), ["modules", "uverbs"]);
    }

    #[test]
    fn softverbs_needs_nothing_of_the_kernel() {
        assert_eq!(checks_below(&[], true)[0].1, Level::Ok);
    }
}
