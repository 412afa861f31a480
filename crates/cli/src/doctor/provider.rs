//! Checks that libibverbs has the library of each adapter's driver. Without it libibverbs lists no
//! adapter, and reports no error.

use std::path::Path;

use nccl_net_mpib_agent_iface::doctor::{Check, Level};

use super::sysfs;

/// The libraries of rdma-core, by the kernel driver of the adapter's PCI device or its module.
const PROVIDERS: [(&str, &str); 15] = [
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("bnxt_en", "bnxt_re"),
    ("efa", "efa"),
    ("erdma", "erdma"),
    ("mana", "mana"),
    ("hns3", "hns"),
    ("ionic", "ionic"),
    ("qede", "qedr"),
    ("hfi1", "hfi1verbs"),
    ("rdma_rxe", "rxe"),
    ("siw", "siw"),
    ("cxgb4", "cxgb4"),
];

/// Folders of libraries, each with a folder `libibverbs` for the providers.
const FOLDERS: [&str; 6] = [
    "usr/lib64",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "lib64",
    "usr/lib",
    "usr/local/lib",
];

/// What to install, by distribution.
const INSTALL: &str = "install the providers of the same rdma-core or OFED as libibverbs, in the container as well: \
     Debian and Ubuntu: apt install ibverbs-providers; RHEL: dnf install libibverbs; \
     SLES: zypper install libibverbs libmlx5-1";

/// Names the provider that is missing. For a host whose kernel has adapters that this user may open
/// and libibverbs does not list.
pub(super) fn check(root: &Path, adapters: &[String]) -> Check {
    let needed: Vec<(&String, Option<&'static str>)> =
        adapters.iter().map(|name| (name, provider(root, name))).collect();
    let installed = installed(root);
    let absent = |(name, provider): &(&String, Option<&'static str>)| {
        let provider = provider.filter(|provider| !installed.iter().any(|file| is_of(file, provider)))?;
        Some(format!("{name} needs lib{provider}-rdmav*.so"))
    };
    let absent: Vec<String> = needed.iter().filter_map(absent).collect();
    let has = match installed.len() {
        0 => "no provider is installed".to_owned(),
        _ => format!("installed are {}", installed.join(", ")),
    };
    let text = match absent.len() {
        0 => format!(
            "the kernel has {}, and libibverbs lists no adapter: it does not load the providers ({has}), as if they \
             were of another release of rdma-core, or it cannot read /sys/class/infiniband_verbs",
            adapters.join(", ")
        ),
        _ => format!(
            "the kernel has {}, and libibverbs lists no adapter, since it has no provider for them: {}; {has}",
            adapters.join(", "),
            absent.join(", ")
        ),
    };
    Check::new("provider", Level::Fail, text).remedy(INSTALL)
}

/// Returns the provider of an adapter, by the driver of its PCI device; software adapters have no
/// device.
fn provider(root: &Path, adapter: &str) -> Option<&'static str> {
    let driver = sysfs::target(&sysfs::adapter(root, adapter).join("device/driver"));
    let of = |name: &str| PROVIDERS.iter().find(|(driver, _)| *driver == name).map(|(_, provider)| *provider);
    match driver {
        Some(driver) => of(&driver),
        None => PROVIDERS.iter().find(|(_, provider)| adapter.starts_with(provider)).map(|(_, p)| *p),
    }
}

/// Lists the files of all providers.
fn installed(root: &Path) -> Vec<String> {
    let files = FOLDERS.iter().flat_map(|folder| sysfs::names(&root.join(folder).join("libibverbs")));
    let mut names: Vec<String> = files.filter(|name| name.contains("-rdmav")).collect();
    names.sort();
    names.dedup();
    names
}

/// Whether a file is this provider, of any release.
fn is_of(file: &str, provider: &str) -> bool {
    file.strip_prefix("lib")
        .and_then(|rest| rest.strip_prefix(provider))
        .is_some_and(|rest| rest.starts_with("-rdmav"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Checks a root with an adapter of mlx5_core and these files.
    fn found(files: &[&str]) -> Check {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("sys/class/infiniband/mlx5_0/device");
        fs::create_dir_all(&device).unwrap();
        std::os::unix::fs::symlink("../../bus/pci/drivers/mlx5_core", device.join("driver")).unwrap();
        for file in files {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, "").unwrap();
        }
        check(root.path(), &["mlx5_0".into()])
    }

    //= doctor.md: a missing provider of libibverbs is named with its package
    #[test]
    fn a_missing_provider_is_named_with_its_packages() {
        let none = found(&[]);
        assert_eq!(none.level, Level::Fail);
        assert!(none.text.ends_with("mlx5_0 needs libmlx5-rdmav*.so; no provider is installed"), "{none:?}");
        let remedy = none.remedy.unwrap();
        for package in ["ibverbs-providers", "dnf install libibverbs", "libmlx5-1"] {
            assert!(remedy.contains(package), "{remedy}");
        }
        let other = found(&["usr/lib64/libibverbs/libmlx4-rdmav34.so"]);
        assert!(other.text.ends_with("libmlx5-rdmav*.so; installed are libmlx4-rdmav34.so"), "{other:?}");
        let there = found(&["usr/lib/x86_64-linux-gnu/libibverbs/libmlx5-rdmav25.so"]);
        assert!(there.text.contains("does not load the providers (installed are libmlx5-rdmav25.so)"));
    }

    #[test]
    fn software_adapters_are_known_by_their_names() {
        let root = Path::new("/nowhere");
        assert_eq!([provider(root, "rxe0"), provider(root, "siw_eth0")], [Some("rxe"), Some("siw")]);
        assert_eq!(provider(root, "unknown0"), None);
    }
}
