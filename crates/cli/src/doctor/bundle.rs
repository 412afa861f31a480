//! `mpib doctor --bundle`: one archive with what a maintainer asks for. It holds no secrets: of the
//! environment and of the kernel's command line it takes what is listed here, and no file of the
//! agent.

use std::{
    env, fs,
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    os::unix::fs::OpenOptionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use flate2::{Compression, write::GzEncoder};
use nccl_net_mpib_agent_iface::memfd;
use tar::{Builder, EntryType, Header};

use super::{Document, sysfs::names, text};
use crate::failure::{Context, Failure, Kind};
use crate::nccl_conf::is_shown;
use crate::process::{ends_with_us, wait};
use crate::version;

/// Most bytes of a file. A longer one is cut.
const LONGEST: u64 = 256 << 10;
/// Most files of /sys.
const MOST_FILES: usize = 20_000;
/// How long a command of this tool may take.
const PATIENCE: Duration = Duration::from_secs(30);
/// Files below the root that are in every bundle, as far as they exist.
const FILES: [&str; 11] = [
    "etc/os-release",
    "proc/version",
    "proc/meminfo",
    "proc/modules",
    "proc/self/limits",
    "proc/self/status",
    "proc/self/cgroup",
    "proc/net/dev",
    "proc/driver/nvidia/version",
    "sys/kernel/security/lockdown",
    "sys/module/nvidia_peermem/version",
];
/// Files of an adapter.
const OF_ADAPTER: [&str; 6] = ["fw_ver", "hca_type", "board_id", "node_type", "node_guid", "sys_image_guid"];
/// Files of an adapter's PCI function.
const OF_FUNCTION: [&str; 11] = [
    "vendor",
    "device",
    "subsystem_vendor",
    "subsystem_device",
    "revision",
    "numa_node",
    "current_link_speed",
    "current_link_width",
    "max_link_speed",
    "max_link_width",
    "local_cpulist",
];
/// Folders of a port whose files are taken.
const OF_PORT: [&str; 7] =
    [".", "counters", "hw_counters", "gids", "gid_attrs/types", "gid_attrs/ndevs", "pkeys"];
/// Files of a network interface, and of its bond.
const OF_INTERFACE: [&str; 8] = [
    "mtu",
    "operstate",
    "speed",
    "carrier_changes",
    "phys_port_name",
    "bonding/mode",
    "bonding/slaves",
    "bonding/mii_status",
];
/// Beginnings of the kernel's options that are taken from its command line.
const OPTIONS: [&str; 10] = [
    "iommu",
    "intel_iommu",
    "amd_iommu",
    "arm-smmu",
    "pci",
    "cma",
    "hugepages",
    "default_hugepagesz",
    "numa",
    "nvidia",
];

/// The archive while it is written.
struct Bundle {
    archive: Builder<GzEncoder<File>>,
    /// Name of the folder in the archive.
    folder: String,
    /// Lines of the list of contents.
    contents: Vec<String>,
    now: u64,
}

/// Checks the path of an archive before there is anything to write: it must not exist, and its folder
/// must.
pub(crate) fn check_name(path: &Path) -> Result<(), Failure> {
    let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
    if !name.ends_with(".tar.gz") && !name.ends_with(".tgz") {
        let text = format!("{} is no name of a bundle; expected FILE.tar.gz", path.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    check_free(path)
}

/// Returns an error unless a new file can have this path.
pub(super) fn check_free(path: &Path) -> Result<(), Failure> {
    if path.symlink_metadata().is_ok() {
        let text = format!("{} exists, and is not replaced; name another file", path.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    if !folder.is_dir() {
        let text = format!("{} cannot be written: {} is no folder", path.display(), folder.display());
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok(())
}

/// Writes the archive, with `more` files by name. Never replaces a file.
pub(crate) fn write(
    path: &Path,
    root: &Path,
    document: &Document,
    more: &[(&str, String)],
) -> Result<(), Failure> {
    check_name(path)?;
    // It names hosts and addresses: readable for its owner only.
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.tool(format!("create {}", path.display()))?;
    let outcome = fill(file, root, document, more).tool(format!("write {}", path.display()));
    if outcome.is_err() {
        // The failure of the write is the one to report.
        let _ = fs::remove_file(path);
    }
    outcome
}

fn fill(file: File, root: &Path, document: &Document, more: &[(&str, String)]) -> io::Result<()> {
    let host = document.report.as_ref().map_or("host", |report| &*report.host);
    let plain = |c: char| if c.is_ascii_alphanumeric() || matches!(c, '-' | '.') { c } else { '_' };
    let mut bundle = Bundle {
        archive: Builder::new(GzEncoder::new(file, Compression::default())),
        folder: format!("mpib-{}", host.chars().map(plain).collect::<String>()),
        contents: Vec::new(),
        now: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
    };
    for (name, text) in more {
        bundle.add(name, anstream::adapter::strip_str(text).to_string().as_bytes())?;
    }
    let json = serde_json::to_vec_pretty(document).map_err(io::Error::other)?;
    bundle.add("doctor.json", &json)?;
    let text = text::text(document, text::Detail::Verbose);
    bundle.add("doctor.txt", anstream::adapter::strip_str(&text).to_string().as_bytes())?;
    bundle.add("version.txt", format!("mpib {}\n", version::LONG.as_str()).as_bytes())?;
    bundle.add("environment.txt", environment(env::vars_os()).as_bytes())?;
    for command in [&["stats", "--json"][..], &["abi", "--json"]] {
        bundle.add(&format!("{}.json", command[0]), &output_of(command))?;
    }
    if let Ok(line) = fs::read_to_string(root.join("proc/cmdline")) {
        bundle.add("kernel-options.txt", options(&line).as_bytes())?;
    }
    bundle.files(root)?;
    let list = bundle.contents.join("\n") + "\n";
    bundle.add("CONTENTS", list.as_bytes())?;
    bundle.archive.into_inner()?.finish()?.flush()
}

impl Bundle {
    fn add(&mut self, name: &str, text: &[u8]) -> io::Result<()> {
        let mut header = Header::new_gnu();
        header.set_entry_type(EntryType::Regular);
        header.set_size(text.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(self.now);
        let path = format!("{}/{name}", self.folder);
        self.archive.append_data(&mut header, path, text)?;
        self.contents.push(format!("{name}  {} bytes", text.len()));
        Ok(())
    }

    /// Adds the files of the root.
    fn files(&mut self, root: &Path) -> io::Result<()> {
        let mut paths: Vec<PathBuf> = FILES.iter().map(PathBuf::from).collect();
        let class = Path::new("sys/class");
        for adapter in names(&root.join(class).join("infiniband")) {
            let folder = class.join("infiniband").join(adapter);
            paths.extend(OF_ADAPTER.iter().map(|file| folder.join(file)));
            paths.extend(OF_FUNCTION.iter().map(|file| folder.join("device").join(file)));
            for port in names(&root.join(&folder).join("ports")) {
                let port = folder.join("ports").join(port);
                for part in OF_PORT {
                    let part = port.join(part);
                    paths.extend(names(&root.join(&part)).into_iter().map(|file| part.join(file)));
                }
            }
        }
        for interface in names(&root.join(class).join("net")) {
            let folder = class.join("net").join(interface);
            paths.extend(OF_INTERFACE.iter().map(|file| folder.join(file)));
        }
        for path in paths.into_iter().take(MOST_FILES) {
            let full = root.join(&path);
            // Attributes of sysfs are files; some of them cannot be read, as empty entries of tables.
            if let Some(text) = full.is_file().then(|| contents(&full).ok()).flatten() {
                // "ports/1/./state" is "ports/1/state".
                let path: PathBuf = path.components().collect();
                self.add(&path.to_string_lossy(), &text)?;
            }
        }
        Ok(())
    }
}

fn contents(path: &Path) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    File::open(path)?.take(LONGEST).read_to_end(&mut text)?;
    Ok(text)
}

/// Returns the variables of this project, of NCCL and of RCCL, and those of the dynamic linker.
fn environment(vars: impl Iterator<Item = (std::ffi::OsString, std::ffi::OsString)>) -> String {
    let vars =
        vars.map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()));
    let is_listed = |name: &str| is_shown(name) || ["LD_LIBRARY_PATH", "LD_PRELOAD"].contains(&name);
    let mut lines: Vec<String> =
        vars.filter(|(name, _)| is_listed(name)).map(|(name, value)| format!("{name}={value}\n")).collect();
    lines.sort();
    lines.concat()
}

/// Returns the options of the kernel's command line that concern adapters and memory.
fn options(line: &str) -> String {
    let is_listed = |word: &&str| OPTIONS.iter().any(|option| word.starts_with(option));
    line.split_whitespace().filter(is_listed).map(|word| format!("{word}\n")).collect()
}

/// Returns the output of a command of this tool, or why there is none.
fn output_of(args: &[&str]) -> Vec<u8> {
    let output = || -> io::Result<Vec<u8>> {
        let mut file = memfd::inherited("output")?;
        let mut command = Command::new(env::current_exe()?);
        command.args(args).stdin(Stdio::null()).stdout(file.try_clone()?).stderr(Stdio::null());
        ends_with_us(&mut command);
        if wait(&mut command.spawn()?, PATIENCE)?.is_none() {
            return Err(io::Error::other(format!("it took longer than {PATIENCE:?}")));
        }
        let mut text = Vec::new();
        io::Seek::rewind(&mut file)?;
        file.take(16 << 20).read_to_end(&mut text)?;
        Ok(text)
    };
    output().unwrap_or_else(|e| format!("mpib {}: {e}\n", args.join(" ")).into_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    //= doctor.md: a bundle has no secrets
    #[test]
    fn only_listed_variables_and_options_are_taken() {
        let vars = [("NCCL_DEBUG", "INFO"), ("HF_TOKEN", "secret"), ("MPIB_MODE", "1"), ("LD_PRELOAD", "x")];
        let vars = vars.map(|(name, value)| (name.into(), value.into())).into_iter();
        assert_eq!(environment(vars), "LD_PRELOAD=x\nMPIB_MODE=1\nNCCL_DEBUG=INFO\n");
        assert_eq!(
            options("root=/dev/x iommu=pt ds=nocloud;password=y pci=realloc"),
            "iommu=pt\npci=realloc\n"
        );
    }

    #[test]
    fn a_bundle_is_named_as_what_it_is() {
        assert!(check_name(Path::new("/a.tar.gz")).is_ok() && check_name(Path::new("a.tgz")).is_ok());
        assert_eq!(check_name(Path::new("a.zip")).unwrap_err().kind, Kind::Usage);
    }
}
