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
use crate::abi::{Library, exports, find};
use crate::failure::{Failure, Kind};

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
    checks.extend(plugin.map(|plugin| found(plugin, variable.as_deref(), release, opened)));
    checks.extend(plugin.and_then(|plugin| other_default(plugin, variable.as_deref(), opened)));
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

/// Returns the file that dlopen opens for a name, if the file is a plugin. NCCL tries the next name
/// if a file cannot be opened. An executable cannot, even if it is the first file of that name.
fn opened(name: &str) -> Option<PathBuf> {
    let path = if name.contains('/') { Some(name.into()) } else { find::by_name(name) };
    path.filter(|path| exports(path).is_ok())
}

/// What a search ends with.
#[derive(Debug)]
enum Outcome {
    /// NCCL does without a plugin.
    Off,
    /// None of these names can be opened.
    Missing(Vec<String>),
    /// Another file.
    Other(PathBuf),
    /// The plugin's file.
    This(PathBuf),
}

/// Returns whether NCCL, started here, would open this very file. Without a known `release` that is
/// said of the newest ones, and of the others if it is different there.
fn found(
    plugin: &Path,
    variable: Option<&str>,
    release: Option<&str>,
    opened: impl Fn(&str) -> Option<PathBuf>,
) -> Check {
    let outcome = |search: &Search| match search.names(variable) {
        None => Outcome::Off,
        Some(names) => match names.iter().find_map(|name| opened(name)) {
            None => Outcome::Missing(names),
            Some(path) if same(&path, plugin) => Outcome::This(path),
            Some(path) => Outcome::Other(path),
        },
    };
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
    let id = "plugin";
    let setting =
        variable.map_or_else(|| "NCCL_NET_PLUGIN not set".into(), |v| format!("NCCL_NET_PLUGIN={v}"));
    match outcome {
        Outcome::Off => {
            let text = format!("NCCL_NET_PLUGIN={:?} means no plugin to NCCL", variable.unwrap_or_default());
            Check::new(id, Level::Fail, text).remedy("set NCCL_NET_PLUGIN=mpib, or unset it")
        }
        Outcome::Missing(names) => {
            let text = format!(
                "NCCL would not find it: no {} on the dynamic linker's path ({setting})",
                names.join(", ")
            );
            Check::new(id, Level::Warn, text).remedy(remedy(plugin))
        }
        Outcome::Other(other) => {
            let text = format!("NCCL would open another file: {} ({setting})", other.display());
            let path = fs::canonicalize(plugin).unwrap_or_else(|_| plugin.to_owned()).display().to_string();
            let takes_path = search.names(Some(&path)).is_some_and(|names| names.contains(&path));
            let by_path = if takes_path {
                format!("NCCL_NET_PLUGIN={path} names this file; or, ")
            } else {
                String::new()
            };
            Check::new(id, Level::Warn, text).remedy(by_path + &remedy(plugin))
        }
        Outcome::This(path) => {
            Check::new(id, Level::Ok, format!("NCCL would open it as {} ({setting})", path.display()))
        }
    }
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
fn other_default(
    plugin: &Path,
    variable: Option<&str>,
    opened: impl Fn(&str) -> Option<PathBuf>,
) -> Option<Check> {
    variable.filter(|list| !matches!(*list, "" | "none"))?;
    let other = opened("libnccl-net.so").filter(|other| !same(other, plugin))?;
    let text = format!(
        "a process without NCCL_NET_PLUGIN would open another plugin, which is first on the dynamic linker's path: {}",
        other.display()
    );
    let check = Check::new("plugin", Level::Note, text);
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
        let at = |name: &str| Some(dir.path().join(name)).filter(|p| p.is_file());
        let path = ours.to_str();
        for (release, variable, level, said) in [
            (None, None, Level::Ok, "libnccl-net.so (NCCL_NET_PLUGIN not set)"),
            (None, Some("mpib"), Level::Ok, "libnccl-net-mpib.so (NCCL_NET_PLUGIN=mpib)"),
            (
                None,
                Some("absent"),
                Level::Warn,
                "no absent, libnccl-net-absent.so on the dynamic linker's path",
            ),
            (None, Some("none"), Level::Fail, "\"none\" means no plugin to NCCL"),
            (None, Some(""), Level::Fail, "; NCCL 2.18 to 2.20 and 2.21 to 2.26 would open this file"),
            (Some("2.26.5"), Some(""), Level::Ok, "libnccl-net.so (NCCL_NET_PLUGIN=)"),
            (None, path, Level::Note, "; NCCL 2.18 to 2.20 and 2.27.3 would not open this file"),
            (Some("2.18.3"), path, Level::Warn, "NCCL would not find it: no libnccl-net-/"),
            (Some("2.27.3"), path, Level::Warn, "NCCL would not find it: no libnccl-net-/"),
            (Some("2.32.3"), path, Level::Ok, "NCCL would open it as /"),
            (Some("2.32.3"), other.to_str(), Level::Warn, "would open another file"),
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
        let at = |name: &str| Some(dir.path().join(name)).filter(|p| p.is_file());
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
