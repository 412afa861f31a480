//! What a good host has (`--record`), and how another one differs from it (`--expect`). Names,
//! addresses and GUIDs are left out: one file serves a fleet of equal hosts.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::Write as _;
use std::path::Path;

use nccl_net_mpib_agent_iface::doctor::{Check, Kind as GidKind, Level, Link, Port, Report};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::sysfs::{adapter, line, target};
use super::{Document, Verdict, bundle, system};
use crate::failure::{Context, Failure, Kind};
use crate::output::document;
use crate::output::units::port_rate;

/// Value of [`Expected::format`].
const FORMAT: u32 = 1;

/// The file of `mpib doctor --record` and `--expect`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct Expected {
    /// Version of this file, 1.
    format: u32,
    /// All ports of all adapters, in the order of the plugin.
    ports: Vec<ExpectedPort>,
    /// Limit on locked memory in bytes; null: unlimited.
    locked_memory: Option<u64>,
    /// Hard limit on open files.
    open_files: u64,
    /// Kernel modules for RDMA and GPUs that are loaded.
    modules: Vec<String>,
    /// Settings of the plugin that are not the defaults.
    settings: BTreeMap<String, String>,
    /// Versions by name: kernel, plugin, nccl, nvidia, and drivers of adapters.
    versions: BTreeMap<String, String>,
}

/// A port.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct ExpectedPort {
    /// Whether its link is up.
    active: bool,
    /// Whether a connection can use it.
    usable: bool,
    /// Absent, as speed and MTU, if the adapter cannot be queried.
    link: Option<Link>,
    /// In Mb/s.
    speed_mbps: Option<u32>,
    /// In bytes.
    mtu: Option<u32>,
    /// Kinds of the GIDs that a connection may use.
    gids: Vec<GidKind>,
    /// Version of the adapter's firmware; absent if it has none.
    firmware: Option<String>,
}

/// Writes what this host has to a new file.
pub(super) fn record(path: &Path, root: &Path, document: &Document) -> Result<(), Failure> {
    bundle::check_free(path)?;
    if document.verdict >= Verdict::NotUsed {
        let text = "this host is unusable, and no example for others: nothing was recorded";
        return Err(Failure::new(Kind::Usage, text));
    }
    let Some(expected) = Expected::of(root, document) else {
        return Err(Failure::new(Kind::Load, "the plugin gives no report: nothing was recorded"));
    };
    let text = document::text(&expected)?;
    let file = OpenOptions::new().write(true).create_new(true).open(path);
    let mut file = file.tool(format!("create {}", path.display()))?;
    file.write_all(text.as_bytes()).tool(format!("write {}", path.display()))
}

/// Reads a file of [`record`].
pub(super) fn read(path: &Path) -> Result<Expected, Failure> {
    #[derive(Deserialize)]
    struct Head {
        format: u32,
    }
    let text = fs::read_to_string(path).tool(format!("read {}", path.display()))?;
    let bad = |why: String| {
        let text = format!("{}: {why}; expected a file of \"mpib doctor --record FILE\"", path.display());
        Failure::new(Kind::Usage, text)
    };
    let head: Head = serde_json::from_str(&text).map_err(|e| bad(e.to_string()))?;
    if head.format != FORMAT {
        return Err(bad(format!("format {}, and this mpib knows format {FORMAT}", head.format)));
    }
    serde_json::from_str(&text).map_err(|e| bad(e.to_string()))
}

/// Returns a failure for each difference, or the check that there is none.
pub(super) fn checks(path: &Path, root: &Path, document: &Document) -> Result<Vec<Check>, Failure> {
    let expected = read(path)?;
    let place = path.display();
    let Some((found, report)) = Expected::of(root, document).zip(document.report.as_ref()) else {
        let text = format!("not compared with {place}: the plugin gives no report");
        return Ok(vec![Check::new("expect", Level::Fail, text)]);
    };
    let differences = expected.differences(&found, &report.ports);
    if differences.is_empty() {
        return Ok(vec![Check::new("expect", Level::Ok, format!("as {place} expects it"))]);
    }
    let remedy = format!("correct this host, or record {place} again on a good one");
    let check = |text: String| Check::new("expect", Level::Fail, text).remedy(&*remedy);
    Ok(differences.into_iter().map(check).collect())
}

impl Expected {
    /// Describes a host; `None` if the plugin gave no report.
    fn of(root: &Path, document: &Document) -> Option<Self> {
        let report = document.report.as_ref()?;
        let limit = |resource| getrlimit(resource).unwrap_or((RLIM_INFINITY, RLIM_INFINITY));
        let set = report.settings.iter().filter(|setting| !setting.default);
        Some(Self {
            format: FORMAT,
            ports: report.ports.iter().map(|port| ExpectedPort::of(root, port)).collect(),
            locked_memory: Some(limit(Resource::RLIMIT_MEMLOCK).0).filter(|limit| *limit != RLIM_INFINITY),
            open_files: limit(Resource::RLIMIT_NOFILE).1,
            modules: system::all_loaded(root).into_iter().map(str::to_owned).collect(),
            settings: set.map(|setting| (setting.name.clone(), setting.value.clone())).collect(),
            versions: versions(root, document, report),
        })
    }

    /// Names every difference with both values. `ports`: those of `found`, for their names.
    fn differences(&self, found: &Self, ports: &[Port]) -> Vec<String> {
        let mut out = Vec::new();
        let (has, wanted) = (found.ports.len(), self.ports.len());
        let names: Vec<String> = ports.iter().map(Port::name).collect();
        if has != wanted {
            out.push(format!("the number of ports is {has} ({}), expected {wanted}", names.join(", ")));
        }
        let mut differ = |what: &str, here: String, expected: String| {
            if here != expected {
                out.push(format!("{what} is {here}, expected {expected}"));
            }
        };
        // Without one of them it is not known which is which.
        let pairs = found.ports.iter().zip(&self.ports).zip(&names).filter(|_| has == wanted);
        for ((here, expected), name) in pairs {
            for ((what, here), (_, expected)) in here.shown().into_iter().zip(expected.shown()) {
                differ(&format!("{what} of {name}"), here, expected);
            }
        }
        let memory =
            |limit: Option<u64>| limit.map_or("unlimited".into(), |bytes| format!("{} KiB", bytes >> 10));
        differ("the limit on locked memory", memory(found.locked_memory), memory(self.locked_memory));
        differ("the limit on open files", found.open_files.to_string(), self.open_files.to_string());
        let loaded = |modules: &[String], name| if modules.contains(name) { "loaded" } else { "not loaded" };
        for name in found.modules.iter().chain(&self.modules).collect::<BTreeSet<_>>() {
            differ(
                &format!("the module {name}"),
                loaded(&found.modules, name).into(),
                loaded(&self.modules, name).into(),
            );
        }
        for (here, expected, what, none) in [
            (&found.settings, &self.settings, "", "the default"),
            (&found.versions, &self.versions, "the version of ", "none"),
        ] {
            let value =
                |of: &BTreeMap<String, String>, name| of.get(name).map_or(none, String::as_str).to_owned();
            for name in here.keys().chain(expected.keys()).collect::<BTreeSet<_>>() {
                differ(&format!("{what}{name}"), value(here, name), value(expected, name));
            }
        }
        out
    }
}

impl ExpectedPort {
    fn of(root: &Path, port: &Port) -> Self {
        let state = port.state.as_ref();
        let mut gids: Vec<GidKind> =
            port.gids.iter().filter(|gid| gid.rank.is_some()).map(|gid| gid.kind).collect();
        gids.sort_by_key(word);
        gids.dedup();
        Self {
            active: state.is_some_and(|state| state.active),
            usable: port.usable,
            link: state.map(|state| state.link),
            speed_mbps: state.map(|state| state.speed_mbps),
            mtu: state.map(|state| state.mtu),
            gids,
            firmware: line(&adapter(root, &port.hca).join("fw_ver")),
        }
    }

    /// Returns what is compared, as text.
    fn shown(&self) -> [(&'static str, String); 7] {
        let unknown = || "unknown".to_owned();
        let gids: Vec<String> = self.gids.iter().map(word).collect();
        [
            ("the link", if self.active { "up" } else { "down" }.into()),
            ("the state", if self.usable { "usable" } else { "not usable" }.into()),
            ("the link layer", self.link.as_ref().map_or_else(unknown, word)),
            ("the speed", self.speed_mbps.map_or_else(unknown, port_rate)),
            ("the MTU", self.mtu.map_or_else(unknown, |mtu| mtu.to_string())),
            ("the kinds of GIDs", if gids.is_empty() { "none".into() } else { gids.join(", ") }),
            ("the firmware", self.firmware.clone().unwrap_or_else(|| "none".into())),
        ]
    }
}

/// Returns the word of a value in the file.
fn word(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default().trim_matches('"').to_owned()
}

/// Returns the versions of what a host runs.
fn versions(root: &Path, document: &Document, report: &Report) -> BTreeMap<String, String> {
    let mut all = BTreeMap::from([("plugin".to_owned(), report.plugin.clone())]);
    let nccl = document.nccl.as_ref().and_then(|nccl| nccl.release()).map(str::to_owned);
    let nvidia = fs::read_to_string(root.join("proc/driver/nvidia/version")).ok();
    let number = |text: String| text.split_whitespace().find(|word| is_version(word)).map(str::to_owned);
    for (name, version) in [
        ("kernel", line(&root.join("proc/sys/kernel/osrelease"))),
        ("nccl", nccl),
        ("nvidia", nvidia.and_then(number)),
    ] {
        all.extend(version.map(|version| (name.to_owned(), version)));
    }
    for port in &report.ports {
        let Some(driver) = target(&adapter(root, &port.hca).join("device/driver/module")) else { continue };
        let version = line(&root.join("sys/module").join(&driver).join("version"));
        all.insert(driver, version.unwrap_or_else(|| "that of the kernel".into()));
    }
    all
}

/// Whether a word is numbers between dots.
fn is_version(word: &str) -> bool {
    word.contains('.')
        && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::sysfs;

    fn host(root: &Path) -> (Expected, Vec<Port>) {
        let ports: Vec<Port> = ["m0", "m1"].map(|hca| sysfs::port(hca, 400_000, None)).into();
        let expected = Expected {
            format: FORMAT,
            ports: ports.iter().map(|port| ExpectedPort::of(root, port)).collect(),
            locked_memory: None,
            open_files: 65536,
            modules: vec!["ib_core".into(), "mlx5_ib".into()],
            settings: BTreeMap::from([("MPIB_MODE".into(), "1".into())]),
            versions: BTreeMap::from([("kernel".into(), "6.8.0".into())]),
        };
        (expected, ports)
    }

    //= fleet.md: every difference to the file of --expect is a failure with both values
    #[test]
    fn every_difference_has_both_values() {
        let dir = tempfile::tempdir().unwrap();
        let (expected, ports) = host(dir.path());
        assert_eq!(expected.differences(&expected, &ports), [""; 0]);
        let found = |change: &dyn Fn(&mut Expected)| {
            let mut found = expected.clone();
            change(&mut found);
            expected.differences(&found, &ports).join("; ")
        };
        type Case<'a> = (&'a dyn Fn(&mut Expected), &'a str);
        let cases: [Case<'_>; 12] = [
            (&|host| host.ports[1].mtu = Some(1024), "the MTU of m1:1 is 1024, expected 4096"),
            (&|host| host.ports[0].active = false, "the link of m0:1 is down, expected up"),
            (&|host| host.ports[0].usable = false, "the state of m0:1 is not usable, expected usable"),
            (
                &|host| host.ports[0].link = Some(Link::Infiniband),
                "the link layer of m0:1 is infiniband, expected ethernet",
            ),
            (&|host| host.ports[0].speed_mbps = None, "the speed of m0:1 is unknown, expected 400 Gb/s"),
            (
                &|host| host.ports[0].gids = vec![GidKind::RoceV1],
                "the kinds of GIDs of m0:1 is roce-v1, expected none",
            ),
            (
                &|host| host.ports[0].firmware = Some("28.1".into()),
                "the firmware of m0:1 is 28.1, expected none",
            ),
            (
                &|host| host.locked_memory = Some(8 << 20),
                "the limit on locked memory is 8192 KiB, expected unlimited",
            ),
            (&|host| host.open_files = 64, "the limit on open files is 64, expected 65536"),
            (
                &|host| host.modules = vec!["ib_core".into()],
                "the module mlx5_ib is not loaded, expected loaded",
            ),
            (&|host| host.settings.clear(), "MPIB_MODE is the default, expected 1"),
            (&|host| host.versions.clear(), "the version of kernel is none, expected 6.8.0"),
        ];
        for (change, said) in cases {
            assert_eq!(found(change), said);
        }
        // A missing port says nothing of the others.
        let one = Expected { ports: expected.ports[1..].to_vec(), ..expected.clone() };
        assert_eq!(expected.differences(&one, &ports[1..]), ["the number of ports is 1 (m1:1), expected 2"]);
    }

    //= fleet.md: a file of another form is an error that names it
    #[test]
    fn a_file_of_another_form_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("expect.json");
        let (expected, _) = host(dir.path());
        let good = document::text(&expected).unwrap();
        fs::write(&path, &good).unwrap();
        assert_eq!(read(&path).unwrap(), expected);
        for (text, why) in [
            (String::new(), "EOF while parsing"),
            ("[]".into(), "expected struct Head"),
            (good.replace("\"format\": 1", "\"format\": 2"), "format 2, and this mpib knows format 1"),
            (good.replace("\"open_files\"", "\"open_flies\""), "unknown field `open_flies`"),
            (good.replace("65536", "\"many\""), "invalid type"),
        ] {
            fs::write(&path, text).unwrap();
            let error = read(&path).unwrap_err().message;
            assert!(error.contains(why) && error.contains("expect.json: "), "{why}: {error}");
            assert!(error.ends_with("expected a file of \"mpib doctor --record FILE\""), "{error}");
        }
        assert!(read(&dir.path().join("none")).unwrap_err().message.contains("none"));
    }

    #[test]
    fn versions_are_those_of_sysfs() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        let folder = adapter(root, "m0");
        fs::create_dir_all(folder.join("device/driver")).unwrap();
        fs::create_dir_all(root.join("sys/module/mlx5_core")).unwrap();
        fs::write(root.join("sys/module/mlx5_core/version"), "24.10-1\n").unwrap();
        std::os::unix::fs::symlink(root.join("sys/module/mlx5_core"), folder.join("device/driver/module"))
            .unwrap();
        fs::write(folder.join("fw_ver"), "28.42.1000\n").unwrap();
        let port = ExpectedPort::of(root, &sysfs::port("m0", 1, None));
        assert_eq!(port.firmware.as_deref(), Some("28.42.1000"));
        assert_eq!(target(&folder.join("device/driver/module")).as_deref(), Some("mlx5_core"));
        assert!(is_version("570.86.15") && !is_version("x86_64") && !is_version("7") && !is_version("a.b"));
    }

    #[test]
    fn the_guide_has_the_schema_of_the_file() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/expect.schema.json");
        let schema = document::schema::<Expected>();
        if std::env::var_os("WRITE_MANUAL").is_some() {
            fs::write(path, &schema).unwrap();
        }
        let hint = "docs/guide/expect.schema.json differs: WRITE_MANUAL=1 cargo test -p mpib";
        assert!(fs::read_to_string(path).unwrap() == schema, "{hint}");
    }
}
