//! The places in which cores run: folders with the plugin in each form, the environment, and a
//! simulated fabric for each run.

use std::{
    collections::BTreeMap,
    env, fs,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering::Relaxed},
};

use tempfile::TempDir;

use crate::{
    elf,
    failure::{Context, Failure, Result},
};

/// The plugin's own name, and NCCL's default name.
pub(crate) const OURS: &str = "libnccl-net-mpib.so";
const PLAIN: &str = "libnccl-net.so";
/// The versions that the plugin's file has.
pub(crate) const VERSIONS: std::ops::RangeInclusive<u32> = 6..=12;
/// Names of the rails in [`Stage::environment`].
pub(crate) const RAILS: [&str; 2] = ["sout", "sup"];

/// A folder with the plugin.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Folder {
    /// As installed, under both names.
    Whole,
    /// Under its own name only.
    OneName,
    /// With these tables only, under both names.
    Only(Vec<u32>),
    /// Without the tables for one-sided transfers, under both names.
    WithoutRma,
}

/// A temporary folder, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct Scratch(TempDir);

impl Scratch {
    pub(crate) fn new() -> Result<Self> {
        tempfile::tempdir().cannot("make a temporary folder").map(Self)
    }

    fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the path of a file for one process.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        self.path().join(format!("{name}-{}", NEXT.fetch_add(1, Relaxed)))
    }
}

/// A temporary folder, removed when dropped.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) home: Scratch,
    plugin: PathBuf,
    softverbs: PathBuf,
}

impl Stage {
    /// Prepares the plugin and softverbs from the folder of "make build".
    pub(crate) fn set(build: &Path) -> Result<Self> {
        let built = |name: &str| {
            let path = build.join(name);
            fs::canonicalize(&path)
                .map_err(|e| Failure::tool(format!("{}: {e}; run \"make build\" first", path.display())))
        };
        let plugin = built(OURS)?;
        let softverbs = built("softverbs/libibverbs.so.1")?;
        let softverbs = softverbs.parent().map(Path::to_owned).unwrap_or_default();
        let home = Scratch::new()?;
        fs::write(home.path().join("nccl.conf"), "").cannot("write an empty nccl.conf")?;
        Ok(Self { home, plugin, softverbs })
    }

    /// Returns the path of a folder, and creates it on the first call.
    pub(crate) fn folder(&self, folder: &Folder) -> Result<PathBuf> {
        let name = match folder {
            Folder::Whole => "whole".to_owned(),
            Folder::OneName => "one-name".to_owned(),
            Folder::WithoutRma => "without-rma".to_owned(),
            Folder::Only(versions) => {
                format!("only{}", versions.iter().map(|v| format!("-{v}")).collect::<String>())
            }
        };
        let path = self.home.path().join(name);
        if path.is_dir() {
            return Ok(path);
        }
        fs::create_dir(&path).cannot(format!("make {}", path.display()))?;
        match folder {
            Folder::Only(versions) => {
                let removed: Vec<u32> = VERSIONS.filter(|v| !versions.contains(v)).collect();
                elf::copy_without(&self.plugin, &path.join(OURS), &removed)?;
            }
            Folder::WithoutRma => elf::copy_without_rma(&self.plugin, &path.join(OURS))?,
            Folder::Whole | Folder::OneName => elf::copy_without(&self.plugin, &path.join(OURS), &[])?,
        }
        if *folder != Folder::OneName {
            symlink(OURS, path.join(PLAIN)).cannot(format!("make {PLAIN}"))?;
        }
        Ok(path)
    }

    /// Returns the plugin's path in a folder.
    pub(crate) fn plugin_in(&self, folder: &Folder) -> Result<PathBuf> {
        Ok(self.folder(folder)?.join(OURS))
    }

    /// Returns the complete environment of a process, or of two that share a fabric: two simulated
    /// rails, and nothing from the user's environment.
    pub(crate) fn environment(&self, folder: &Folder) -> Result<BTreeMap<String, String>> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let fabric = format!("matrix-{}-{}", std::process::id(), NEXT.fetch_add(1, Relaxed));
        let [sout, sup] = RAILS;
        let devices = format!("{sout}:addr=192.168.200.1/24;{sup}:addr=192.168.201.1/24");
        let path = |path: &Path| path.display().to_string();
        let log = self.home.file("nccl-log");
        let set = [
            ("PATH", env::var("PATH").unwrap_or_default()),
            ("HOME", path(self.home.path())),
            ("NCCL_CONF_FILE", path(&self.home.path().join("nccl.conf"))),
            ("LD_LIBRARY_PATH", format!("{}:{}", path(&self.folder(folder)?), path(&self.softverbs))),
            ("NCCL_DEBUG", "INFO".into()),
            ("NCCL_DEBUG_FILE", path(&log)),
            ("NCCL_NET_PLUGIN", "mpib".into()),
            // The core's own InfiniBand transport would also find the simulated rails, and crashes
            // in 2.20 to 2.23 and 2.28.9 if a device has no folder in sysfs. With this setting, the
            // next transport is the sockets.
            ("NCCL_IB_DISABLE", "1".into()),
            ("SOFTVERBS_FABRIC", fabric),
            ("SOFTVERBS_DEVICES", devices),
            ("MPIB_HCA_SOUT", sout.into()),
            ("MPIB_HCA_SUP", sup.into()),
            // A third of each large message uses the second rail.
            ("MPIB_SUP_SHARE", "341".into()),
        ];
        Ok(set.map(|(name, value)| (name.to_owned(), value)).into())
    }
}
