//! NCCL's configuration files. NCCL puts each `NAME=value` line of them into its environment before
//! it loads a plugin. `mpib doctor` and `mpib perf` do the same, or they would report and measure
//! other settings than those of a job.
//!
//! NCCL reads the user's file first and the system's second: the file in `NCCL_CONF_FILE` (from
//! NCCL 2.23 on), or `.nccl.conf` in the user's home without that variable, then `/etc/nccl.conf`.
//! The first value counts, and a variable of the environment counts more than any file. With
//! `NO_HOST_NCCL_CONF` only the file in `NCCL_CONF_FILE` is read.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs,
    io::ErrorKind,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use nccl_net_mpib_agent_iface::environment::{NO_HOST_NCCL_CONF, is_setting, unquoted};
use nix::unistd::{Uid, User};
use schemars::JsonSchema;
use serde::Serialize;

/// Names the user's file.
const VARIABLE: &str = "NCCL_CONF_FILE";
/// The system's file.
const SYSTEM: &str = "/etc/nccl.conf";
/// NCCL cuts names and values to this many bytes.
const LONGEST: usize = 1023;

/// One configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ConfFile {
    pub(crate) path: PathBuf,
    /// Why it cannot be read, although it exists or is named by `NCCL_CONF_FILE`.
    pub(crate) error: Option<String>,
    /// Its settings, in order.
    pub(crate) settings: Vec<ConfSetting>,
    /// Lines that begin with the name of a setting and have no equals sign: NCCL skips them.
    pub(crate) skipped: Vec<Skipped>,
}

/// A line that sets nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct Skipped {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) text: String,
}

/// A line of a configuration file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub(crate) struct ConfSetting {
    /// Number of the line, from 1.
    pub(crate) line: usize,
    pub(crate) name: String,
    pub(crate) value: String,
    /// Why it has no effect. Absent if the variable has this value from here.
    pub(crate) unused: Option<String>,
}

impl ConfFile {
    /// Returns the settings that are in effect.
    pub(crate) fn used(&self) -> impl Iterator<Item = &ConfSetting> {
        self.settings.iter().filter(|setting| setting.unused.is_none())
    }
}

/// Reads the files and puts their settings into the environment of this process and of those that
/// it starts. Returns the files that exist or should.
///
/// Call it in `main`, before any thread is started.
pub(crate) fn apply() -> Vec<ConfFile> {
    let user = env::var_os(VARIABLE).filter(|path| !path.is_empty()).map(PathBuf::from);
    let home = || User::from_uid(Uid::current()).ok().flatten().map(|user| user.dir);
    let places = match env::var_os(NO_HOST_NCCL_CONF) {
        Some(_) => user.into_iter().collect(),
        None => places(user, home()),
    };
    let (files, new) = read(&places, |name| env::var_os(name));
    for (name, value) in new {
        // SAFETY: the process has only this thread: the commands call this function first.
        unsafe { env::set_var(name, value) };
    }
    files
}

/// Returns a line for each file with its settings that are in effect.
pub(crate) fn applied(files: &[ConfFile]) -> Vec<String> {
    let line = |file: &ConfFile| {
        let used: Vec<String> = file.used().map(|s| format!("{}={}", s.name, s.value)).collect();
        (!used.is_empty()).then(|| format!("NCCL sets from {}: {}", file.path.display(), used.join(" ")))
    };
    files.iter().filter_map(line).collect()
}

/// Returns the files in NCCL's order. NCCL takes the home of the user database, not `$HOME`.
fn places(user: Option<PathBuf>, home: Option<PathBuf>) -> Vec<PathBuf> {
    let first = user.or_else(|| Some(home?.join(".nccl.conf")));
    first.into_iter().chain([SYSTEM.into()]).collect()
}

/// Reads the files. Returns what they have, and the variables to set. `var` reads the environment.
fn read(
    places: &[PathBuf],
    var: impl Fn(&OsStr) -> Option<OsString>,
) -> (Vec<ConfFile>, Vec<(OsString, OsString)>) {
    let named = var(OsStr::new(VARIABLE)).map(PathBuf::from);
    let (mut files, mut new) = (Vec::<ConfFile>::new(), Vec::<(OsString, OsString)>::new());
    for path in places {
        let text = match fs::read(path) {
            Ok(text) => text,
            Err(e) if e.kind() == ErrorKind::NotFound && named.as_ref() != Some(path) => continue,
            Err(e) => {
                files.push(ConfFile {
                    path: path.clone(),
                    error: Some(e.to_string()),
                    settings: Vec::new(),
                    skipped: Vec::new(),
                });
                continue;
            }
        };
        let mut settings = Vec::new();
        for (line, name, value) in lines(&text) {
            let unused = objection(name).or_else(|| {
                let before = var(name).map(|old| format!("the environment has {}", assigned(name, &old)));
                before
                    .or_else(|| new.iter().any(|(n, _)| n == name).then(|| "an earlier line sets it".into()))
            });
            if unused.is_none() {
                new.push((name.to_owned(), value.to_owned()));
            }
            let name = name.to_string_lossy().into_owned();
            let value = if is_shown(&name) { value.to_string_lossy().into_owned() } else { HIDDEN.into() };
            settings.push(ConfSetting { line, name, value, unused });
        }
        files.push(ConfFile { path: path.clone(), error: None, settings, skipped: skipped(&text) });
    }
    (files, new)
}

/// Returns number, name and value of each line that NCCL takes: all that have an equals sign and do
/// not begin with `#`. It removes no blanks and no quotes.
fn lines(text: &[u8]) -> impl Iterator<Item = (usize, &OsStr, &OsStr)> {
    let cut = |bytes: &'_ [u8]| -> usize { bytes.len().min(LONGEST) };
    (1..).zip(text.split(|b| *b == b'\n')).filter_map(move |(number, line)| {
        // A C string ends at its first NUL.
        let line = line.split(|b| *b == 0).next().unwrap_or_default();
        let at = line.iter().position(|b| *b == b'=').filter(|_| line[0] != b'#')?;
        let (name, value) = (&line[..at], &line[at + 1..]);
        let (name, value) = (&name[..cut(name)], &value[..cut(value)]);
        Some((number, OsStr::from_bytes(name), OsStr::from_bytes(value)))
    })
}

/// Returns the lines that NCCL skips although they begin with the name of a setting.
fn skipped(text: &[u8]) -> Vec<Skipped> {
    let lines = (1..).zip(text.split(|b| *b == b'\n'));
    let idle = lines.filter(|(_, line)| !line.contains(&b'='));
    let of = |(line, text): (usize, &[u8])| {
        let text = String::from_utf8_lossy(&text[..text.len().min(LONGEST)]).trim().to_owned();
        is_shown(&text).then_some(Skipped { line, text })
    };
    idle.filter_map(of).collect()
}

/// Returns why a name has no effect in a job.
fn objection(name: &OsStr) -> Option<String> {
    if name.is_empty() {
        return Some("it has no name".into());
    }
    // The dynamic linker has read its variables when a process starts.
    name.as_bytes().starts_with(b"LD_").then(|| "the dynamic linker has read its variables before".into())
}

fn assigned(name: &OsStr, value: &OsStr) -> String {
    let name = name.to_string_lossy();
    let value = if is_shown(&name) { value.to_string_lossy() } else { HIDDEN.into() };
    format!("{name}={value}")
}

/// Returns what is probably meant by a name with blanks or quotes, which NCCL takes as they stand.
pub(crate) fn meant(name: &str, value: &str) -> Option<String> {
    let bare = name.trim();
    let bare = bare.strip_prefix("export ").map_or(bare, str::trim);
    let plain = value.trim();
    let plain = unquoted(plain).unwrap_or_else(|| plain.to_owned());
    let is_whole = (bare, &*plain) == (name, value);
    (!is_whole && !bare.is_empty()).then(|| format!("{bare}={plain}"))
}

/// Whether the value of a variable is shown. Other programs' variables may hold secrets.
pub(crate) fn is_shown(name: &str) -> bool {
    let name = name.trim_start().trim_start_matches("export").trim_start();
    is_setting(name)
}

/// Stands for the value of a variable that is not shown.
const HIDDEN: &str = "(not shown)";

/// Names the place of a setting.
pub(crate) fn place(path: &Path, line: usize) -> String {
    format!("line {line} of {}", path.display())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn conf(folder: &Path, name: &str, text: &str) -> PathBuf {
        let path = folder.join(name);
        fs::write(&path, text).unwrap();
        path
    }

    //= doctor.md: NCCL's configuration files are read in NCCL's order
    #[test]
    fn the_users_file_comes_first_and_the_system_has_the_last() {
        let paths =
            |user: Option<&str>, home: Option<&str>| places(user.map(PathBuf::from), home.map(PathBuf::from));
        assert_eq!(paths(Some("/x/c"), Some("/home/u")), ["/x/c", SYSTEM].map(PathBuf::from));
        assert_eq!(paths(None, Some("/home/u")), ["/home/u/.nccl.conf", SYSTEM].map(PathBuf::from));
        assert_eq!(paths(None, None), [PathBuf::from(SYSTEM)]);
    }

    //= doctor.md: the environment counts more than any file, and the first file more than the next
    #[test]
    fn the_first_value_counts() {
        let dir = tempfile::tempdir().unwrap();
        let text = "# NCCL_A=0\nNCCL_A=1\nMPIB_B=2\nMPIB_B=3\nno line\nNCCL_C=x=y\n=4\nLD_PRELOAD=z\nMPIB_E=";
        let first = conf(dir.path(), "a", text);
        let second = conf(dir.path(), "b", "NCCL_A=5\nNCCL_D=6\0=7\nMPIB_E=8\nHF_TOKEN=secret");
        let has = |name: &OsStr| (name == "MPIB_B").then(|| OsString::from(""));
        let (files, new) = read(&[first, second], has);
        let new: Vec<_> =
            new.iter().map(|(n, v)| format!("{}={}", n.to_str().unwrap(), v.to_str().unwrap())).collect();
        assert_eq!(new, ["NCCL_A=1", "NCCL_C=x=y", "MPIB_E=", "NCCL_D=6", "HF_TOKEN=secret"]);
        assert_eq!(files[1].settings[3].value, HIDDEN, "a secret");
        let unused = |file: &ConfFile| {
            let of = |s: &ConfSetting| Some(format!("{} {}: {}", s.line, s.name, s.unused.as_ref()?));
            file.settings.iter().filter_map(of).collect::<Vec<_>>()
        };
        assert_eq!(
            unused(&files[0]),
            [
                "3 MPIB_B: the environment has MPIB_B=",
                "4 MPIB_B: the environment has MPIB_B=",
                "7 : it has no name",
                "8 LD_PRELOAD: the dynamic linker has read its variables before"
            ]
        );
        assert_eq!(
            unused(&files[1]),
            ["1 NCCL_A: an earlier line sets it", "3 MPIB_E: an earlier line sets it"]
        );
    }

    #[test]
    fn a_file_that_is_named_and_not_there_is_an_error() {
        let (missing, other) = (PathBuf::from("/nowhere/nccl.conf"), PathBuf::from("/nowhere/else"));
        let named = missing.clone();
        let var = |name: &OsStr| (name == VARIABLE).then(|| named.clone().into_os_string());
        let (files, new) = read(&[missing.clone(), other], var);
        assert_eq!((files.len(), &files[0].path, new.len()), (1, &missing, 0));
        assert!(files[0].error.as_ref().unwrap().contains("No such file"), "{files:?}");
    }

    #[test]
    fn names_and_values_are_cut_as_by_nccl() {
        let long = "N".repeat(2000);
        let text = format!("{long}={long}\n");
        let (_, name, value) = lines(text.as_bytes()).next().unwrap();
        assert_eq!((name.len(), value.len()), (LONGEST, LONGEST));
    }

    #[test]
    fn blanks_and_quotes_are_what_nccl_does_not_remove() {
        for (name, value) in
            [("A ", "1"), ("A", " 1"), ("export A", "1"), ("A", "\"1\""), ("A", "1\r"), (" A", "'1'")]
        {
            assert_eq!(meant(name, value).as_deref(), Some("A=1"), "{name}={value}");
        }
        assert_eq!(meant("A", "1 2"), None);
        assert_eq!(meant("A", "\"a\",\"b\"").as_deref(), Some("A=a,b"));
        assert_eq!(meant("A", "{\"a\": 1}"), None);
    }
}
