//! Checks from the plugin's file and NCCL's whether they would find each other. No code of either
//! file runs.

use std::{
    env, fs,
    path::{Path, PathBuf},
};

use nccl_net_mpib_agent_iface::doctor::{Check, Level};
use schemars::JsonSchema;
use serde::Serialize;

use super::search::{self, Search};
use crate::abi::{Library, exports, find, is_library};
use crate::failure::{Failure, Kind};

/// Name of the checks whether NCCL would open this plugin.
pub(super) const OPENED: &str = "opened";

/// A libnccl, and the table that it would take from the plugin.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Nccl {
    #[serde(flatten)]
    library: Library,
    /// Absent if they do not fit.
    picked: Option<u32>,
}

impl Nccl {
    /// Returns the release, if the file names it.
    pub(super) fn release(&self) -> Option<&str> {
        self.library.release.as_deref()
    }
}

/// Checks that there is a plugin, that NCCL would find it, and which table NCCL would take.
pub(super) fn checks(
    plugin: Option<&Path>,
    tables: &Result<Vec<u32>, Failure>,
    nccl: Option<&Path>,
) -> (Option<Nccl>, Vec<Check>) {
    let tables = match tables {
        Ok(tables) => tables,
        Err(failure) => return (None, vec![Check::new("plugin", Level::Fail, &failure.message)]),
    };
    let mut checks = vec![Check::new("plugin", Level::Ok, format!("its tables are {}", versions(tables)))];
    let variable = env::var("NCCL_NET_PLUGIN").ok();
    let library =
        nccl.map(Path::to_owned).map_or_else(find::library, Ok).and_then(|path| Library::read(&path));
    let release = library.as_ref().ok().and_then(|library| library.release.as_deref());
    checks.extend(plugin.map(|plugin| found(plugin, variable.as_deref(), release, Opened::of)));
    checks.extend(plugin.and_then(|plugin| other_default(plugin, variable.as_deref(), Opened::of)));
    checks.push(net(env::var("NCCL_NET").ok().as_deref()));
    let (nccl, check) = fit(library, tables);
    checks.push(check);
    (nccl, checks)
}

fn versions(list: &[u32]) -> String {
    list.iter().map(|v| format!("v{v}")).collect::<Vec<_>>().join(", ")
}

fn fit(library: Result<Library, Failure>, exports: &[u32]) -> (Option<Nccl>, Check) {
    let library = match library {
        Ok(library) => library,
        // Not a fault: programs often have their own NCCL.
        Err(failure) if failure.kind == Kind::Usage => {
            let check = Check::new("nccl", Level::Note, failure.message)
                .remedy("name the one that the job uses with --nccl PATH");
            return (None, check);
        }
        Err(failure) => return (None, Check::new("nccl", Level::Fail, failure.message)),
    };
    let picked = library.looks_up.iter().copied().find(|v| exports.contains(v));
    let release = library.release.as_deref().unwrap_or("of an unknown release");
    let whose = format!("NCCL {release} ({})", library.path.display());
    let check = match picked {
        Some(version) => Check::new("nccl", Level::Ok, format!("{whose} takes table v{version}")),
        None => Check::new(
            "nccl",
            Level::Fail,
            format!(
                "{whose} looks for {} and knows none of the plugin's tables",
                versions(&library.looks_up)
            ),
        )
        .remedy("use NCCL 2.18 or later"),
    };
    (Some(Nccl { library, picked }), check)
}

/// What dlopen makes of a name.
#[derive(Debug)]
enum Opened {
    /// A file with tables.
    Plugin(PathBuf),
    /// A library without one. NCCL opens it.
    NoTable(PathBuf),
    /// A file that is no library for this machine, or a program. NCCL tries the next name.
    Refused(PathBuf),
    /// There is no such file.
    Nothing,
}

impl Opened {
    fn of(name: &str) -> Self {
        let path = if name.contains('/') { Some(name.into()) } else { find::by_name(name) };
        match path.filter(|path: &PathBuf| path.exists()) {
            None => Self::Nothing,
            Some(path) if !is_library(&path) => Self::Refused(path),
            Some(path) if exports(&path).is_err() => Self::NoTable(path),
            Some(path) => Self::Plugin(path),
        }
    }
}

/// What a search ends with.
#[derive(Debug)]
enum Outcome {
    /// NCCL does without a plugin.
    Off,
    /// None of these names can be opened. The files of these names are no libraries.
    Missing(Vec<String>, Vec<PathBuf>),
    /// A library without a table.
    NoTable(PathBuf),
    /// Another file.
    Other(PathBuf),
    /// The plugin's file.
    This(PathBuf),
}

impl Outcome {
    /// Follows a search.
    fn of(search: &Search, variable: Option<&str>, plugin: &Path, opened: impl Fn(&str) -> Opened) -> Self {
        let Some(words) = search.names(variable) else { return Self::Off };
        let (mut bare, mut refused) = (None, Vec::new());
        for names in &words {
            for name in names {
                match opened(name) {
                    Opened::Plugin(path) if same(&path, plugin) => return Self::This(path),
                    Opened::Plugin(path) => return Self::Other(path),
                    Opened::NoTable(path) => {
                        bare = bare.or(Some(path));
                        break;
                    }
                    Opened::Refused(path) => refused.push(path),
                    Opened::Nothing => {}
                }
            }
        }
        bare.map_or_else(|| Self::Missing(words.concat(), refused), Self::NoTable)
    }
}

/// Returns whether NCCL, started here, would open this very file. Without a known `release` that is
/// said of the newest ones, and of the others if it is different there.
fn found(
    plugin: &Path,
    variable: Option<&str>,
    release: Option<&str>,
    opened: impl Fn(&str) -> Opened,
) -> Check {
    let outcome = |search: &Search| Outcome::of(search, variable, plugin, &opened);
    let (newest, older) = search::of(release);
    let verdict = outcome(newest);
    let is_this = |outcome: &Outcome| matches!(outcome, Outcome::This(_));
    let is_found = is_this(&verdict);
    let differ = older.iter().filter(|search| is_this(&outcome(search)) != is_found);
    let others: Vec<&str> = differ.map(|search| search.releases).collect();
    let mut check = judged(plugin, variable, newest, &verdict);
    if !others.is_empty() {
        let not = if is_found { " not" } else { "" };
        check.text += &format!("; NCCL {} would{not} open this file", others.join(" and "));
        if is_found {
            check = Check::new(&check.id, Level::Note, check.text);
            check.remedy = Some(remedy(plugin));
        }
    }
    check
}

/// Describes the outcome of the search of one release.
fn judged(plugin: &Path, variable: Option<&str>, search: &Search, outcome: &Outcome) -> Check {
    let setting =
        variable.map_or_else(|| "NCCL_NET_PLUGIN not set".into(), |v| format!("NCCL_NET_PLUGIN={v}"));
    let fail = |text: String| Check::new(OPENED, Level::Fail, text);
    match outcome {
        Outcome::Off => {
            let text = format!("NCCL_NET_PLUGIN={:?} means no plugin to NCCL", variable.unwrap_or_default());
            fail(text).remedy("set NCCL_NET_PLUGIN=mpib, or unset it")
        }
        Outcome::Missing(names, refused) => {
            let files: Vec<String> = refused.iter().map(|path| path.display().to_string()).collect();
            let files = match &files[..] {
                [] => String::new(),
                files => format!("; the linker cannot load {}", files.join(", ")),
            };
            let text = format!(
                "NCCL would not find it: no {} on the dynamic linker's path ({setting}){files}",
                names.join(", ")
            );
            fail(text).remedy(remedy(plugin))
        }
        Outcome::NoTable(other) => {
            let text = format!(
                "NCCL would open {}, which has no table of a plugin, and do without one ({setting})",
                other.display()
            );
            fail(text).remedy(by_path(plugin, search) + &remedy(plugin))
        }
        Outcome::Other(other) => {
            let text = format!("NCCL would open another file: {} ({setting})", other.display());
            fail(text).remedy(by_path(plugin, search) + &remedy(plugin))
        }
        Outcome::This(path) => {
            Check::new(OPENED, Level::Ok, format!("NCCL would open it as {} ({setting})", path.display()))
        }
    }
}

/// Makes a note of a check whether NCCL would open this plugin.
pub(super) fn noted(check: &mut Check) {
    check.level = check.level.min(Level::Note);
    check.code = None;
}

/// Names this file by its path, if the release takes one.
fn by_path(plugin: &Path, search: &Search) -> String {
    let path = fs::canonicalize(plugin).unwrap_or_else(|_| plugin.to_owned()).display().to_string();
    let takes_path = search.names(Some(&path)).is_some_and(|words| words.concat().contains(&path));
    if takes_path { format!("NCCL_NET_PLUGIN={path} names this file; or, ") } else { String::new() }
}

/// Says how every release finds the plugin.
fn remedy(plugin: &Path) -> String {
    let folder = fs::canonicalize(plugin).ok().and_then(|p| p.parent().map(|f| f.display().to_string()));
    format!(
        "for the job, LD_LIBRARY_PATH={} and NCCL_NET_PLUGIN=mpib; for all jobs of the host, mpib enable with a folder that \
         the linker searches",
        folder.unwrap_or_default()
    )
}

/// Names the plugin that a job without `NCCL_NET_PLUGIN` would open, if it is another one. Images
/// with HPC-X have a `libnccl-net.so` on the path.
fn other_default(plugin: &Path, variable: Option<&str>, opened: impl Fn(&str) -> Opened) -> Option<Check> {
    variable.filter(|list| !matches!(*list, "" | "none"))?;
    let (Opened::Plugin(other) | Opened::NoTable(other)) = opened("libnccl-net.so") else { return None };
    if same(&other, plugin) {
        return None;
    }
    let text = format!(
        "a process without NCCL_NET_PLUGIN would open another plugin, which is first on the dynamic linker's path: {}",
        other.display()
    );
    let check = Check::new(OPENED, Level::Note, text);
    Some(check.remedy("set NCCL_NET_PLUGIN for every rank, or in /etc/nccl.conf for all jobs of this host"))
}

fn same(a: &Path, b: &Path) -> bool {
    matches!((fs::canonicalize(a), fs::canonicalize(b)), (Ok(a), Ok(b)) if a == b)
}

/// Checks whether NCCL may silently use another transport.
fn net(variable: Option<&str>) -> Check {
    let id = "transport";
    match variable {
        Some(name) if name.eq_ignore_ascii_case("MPIB") => {
            Check::new(id, Level::Ok, "NCCL_NET=MPIB: NCCL fails instead of using another transport")
        }
        None | Some("") => Check::new(
            id,
            Level::Note,
            "NCCL_NET is not set: if this plugin fails to start, NCCL uses another transport and logs that at INFO only",
        )
        .remedy("NCCL_NET=MPIB makes that an error"),
        Some(other) => {
            Check::new(id, Level::Fail, format!("NCCL_NET={other}: NCCL uses only a transport of this name, and this plugin's name is MPIB"))
                .remedy("set NCCL_NET=MPIB, or unset it")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= doctor.md: whether NCCL opens the file depends on its release
    #[test]
    fn the_file_that_nccl_would_open_is_compared_with_the_one_at_hand() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let (ours, other) = (file("libnccl-net-mpib.so"), file("other.so"));
        let link = dir.path().join("libnccl-net.so");
        std::os::unix::fs::symlink(&ours, &link).unwrap();
        let at = |name: &str| match dir.path().join(name) {
            path if path.ends_with("bare.so") => Opened::NoTable(path),
            path if path.ends_with("program") => Opened::Refused(path),
            path if path.is_file() => Opened::Plugin(path),
            _ => Opened::Nothing,
        };
        let path = ours.to_str();
        for (release, variable, level, said) in [
            (None, None, Level::Ok, "libnccl-net.so (NCCL_NET_PLUGIN not set)"),
            (None, Some("mpib"), Level::Ok, "libnccl-net-mpib.so (NCCL_NET_PLUGIN=mpib)"),
            (
                None,
                Some("absent"),
                Level::Fail,
                "no absent, libnccl-net-absent.so on the dynamic linker's path",
            ),
            (None, Some("none"), Level::Fail, "\"none\" means no plugin to NCCL"),
            (None, Some(""), Level::Fail, "; NCCL 2.18 to 2.20 and 2.21 to 2.26 would open this file"),
            (Some("2.26.5"), Some(""), Level::Ok, "libnccl-net.so (NCCL_NET_PLUGIN=)"),
            (None, path, Level::Note, "; NCCL 2.18 to 2.20 and 2.27.3 would not open this file"),
            (Some("2.18.3"), path, Level::Fail, "NCCL would not find it: no libnccl-net-/"),
            (Some("2.27.3"), path, Level::Fail, "NCCL would not find it: no libnccl-net-/"),
            (Some("2.32.3"), path, Level::Ok, "NCCL would open it as /"),
            (Some("2.32.3"), other.to_str(), Level::Fail, "would open another file"),
            (
                None,
                Some("bare.so"),
                Level::Fail,
                "bare.so, which has no table of a plugin, and do without one",
            ),
            (None, Some("program"), Level::Fail, "; the linker cannot load "),
            // A word that cannot be opened, or has no table, gives way to the next one.
            (None, Some("program,mpib"), Level::Note, "libnccl-net-mpib.so"),
            (None, Some("bare.so,mpib"), Level::Note, "libnccl-net-mpib.so"),
        ] {
            let check = found(&ours, variable, release, at);
            assert_eq!(check.level, level, "{check:?}");
            assert!(check.text.contains(said), "{check:?}");
            assert_eq!(check.remedy.is_some(), level != Level::Ok, "{check:?}");
        }
    }

    //= doctor.md: another libnccl-net.so first in the search is named
    #[test]
    fn the_plugin_of_a_process_without_the_variable_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs::write(&path, name).unwrap();
            path
        };
        let (ours, hpcx) = (file("libnccl-net-mpib.so"), file("libnccl-net.so"));
        let at = |name: &str| match dir.path().join(name) {
            path if path.is_file() => Opened::Plugin(path),
            _ => Opened::Nothing,
        };
        let check = other_default(&ours, Some("mpib"), at).unwrap();
        assert!(check.level == Level::Note && check.text.contains(hpcx.to_str().unwrap()), "{check:?}");
        assert_eq!(other_default(&ours, None, at), None);
        assert_eq!(other_default(&hpcx, Some("mpib"), at), None);
    }

    #[test]
    fn a_transport_of_another_name_shuts_this_one_out() {
        for (variable, level) in [
            (None, Level::Note),
            (Some("mpib"), Level::Ok),
            (Some(""), Level::Note),
            (Some("Socket"), Level::Fail),
        ] {
            assert_eq!(net(variable).level, level, "{variable:?}");
        }
    }
}
