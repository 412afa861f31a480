//! Checks the host's agent, by the rules of the plugin: where it is, who may be trusted, and which
//! places are not used.

use std::env;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use nccl_net_mpib_agent_iface::agent::paths::{HINTS_NAME, Refusal, SOCKET_NAME, Trust, folders, open_file};
use nccl_net_mpib_agent_iface::agent::{HEADER_SIZE, HINTS_SIZE, NoAgent, check_header, connect};
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Report};

/// The settings of the agent.
struct Settings {
    /// Connections need hints (`MPIB_MODE=1`).
    hinted: bool,
    strict: bool,
    /// How a message is split without a hint (`MPIB_SPLIT`).
    split: String,
    sockets: Vec<PathBuf>,
    files: Vec<PathBuf>,
    trust: Trust,
}

impl Settings {
    fn of(report: &Report) -> Self {
        let value =
            |name: &str| report.settings.iter().find(|s| s.name == name).map_or("", |s| s.value.as_str());
        let in_each = |name: &str| {
            let folders = folders(env::var_os("XDG_RUNTIME_DIR").as_deref());
            folders.into_iter().map(|folder| folder.join(name)).collect()
        };
        let paths = |variable: &str, name: &str| match value(variable) {
            "unset" | "" => in_each(name),
            path => vec![PathBuf::from(path)],
        };
        Self {
            hinted: value("MPIB_MODE") == "1" && value("MPIB_SUP_SHARE") == "unset",
            strict: value("MPIB_STRICT") == "1",
            split: value("MPIB_SPLIT").to_owned(),
            sockets: paths("MPIB_AGENT_SOCKET", SOCKET_NAME),
            files: paths("MPIB_HINTS", HINTS_NAME),
            trust: Trust::new(value("MPIB_AGENT_UID").parse().ok()),
        }
    }

    /// The level of a missing agent, and what it costs.
    fn cost(&self) -> (Level, String) {
        match (self.strict, &*self.split) {
            (true, _) => (Level::Fail, "connections without a hint fail (MPIB_STRICT=1)".into()),
            (false, "share") => (Level::Warn, "without hints all data uses SOUT (MPIB_SPLIT=share)".into()),
            (false, split) => (Level::Note, format!("without hints MPIB_SPLIT={split} decides")),
        }
    }
}

/// Returns the checks of the agent. If no connection needs one, only what is not used is named.
pub(super) fn checks(report: &Report) -> Vec<Check> {
    let settings = Settings::of(report);
    let mut checks = Vec::new();
    let mut found = None;
    let mut missing = Vec::new();
    for path in &settings.sockets {
        match connect(path, &settings.trust) {
            Ok(_) => {
                found = Some(path.clone());
                break;
            }
            Err(NoAgent::Unsafe(why)) => checks.push(unused("agent", path, &why)),
            Err(NoAgent::Nobody(e)) => {
                missing.push(format!("{}: nothing listens there: {e}", path.display()))
            }
            Err(other) => missing.push(format!("{}: {other}", path.display())),
        }
    }
    if let Some(path) = &found {
        checks.push(Check::new("agent", Level::Ok, format!("{}: an agent listens", path.display())));
    }
    if settings.hinted {
        if found.is_none() {
            let (level, cost) = settings.cost();
            let remedy = "start \"mpib agent\", or set MPIB_AGENT_SOCKET; in a container, mount the folder";
            let text = format!("{}; {cost}", missing.join("; "));
            checks.push(Check::new("agent", level, text).remedy(remedy));
        }
        checks.extend(hints(&settings, found.as_deref()));
    }
    checks
}

fn unused(id: &str, path: &Path, why: &str) -> Check {
    let remedy = "give the path an owner and a mode that other users cannot change, or remove it";
    Check::new(id, Level::Warn, format!("{}: not used: {why}", path.display())).remedy(remedy)
}

/// Checks the hint file. An agent with memory files needs none.
fn hints(settings: &Settings, socket: Option<&Path>) -> Vec<Check> {
    let (level, cost) = settings.cost();
    let beside = socket.and_then(Path::parent).map(|folder| folder.join(HINTS_NAME));
    let explicit = settings.files.len() == 1;
    let paths: Vec<_> = beside.filter(|_| !explicit).into_iter().chain(settings.files.clone()).collect();
    let mut checks = Vec::new();
    for path in &paths {
        let bad = match open_file(path, &settings.trust) {
            Ok(file) => match hint_file(file) {
                Ok(()) => {
                    checks.push(Check::new("hints", Level::Ok, format!("{}: present", path.display())));
                    return checks;
                }
                Err(why) => why,
            },
            Err(Refusal::Missing) => continue,
            Err(refusal) => {
                checks.push(unused("hints", path, &refusal.to_string()));
                continue;
            }
        };
        let remedy = "the agent creates this file; MPIB_HINTS has its path";
        checks.push(Check::new("hints", level, format!("{}: {bad}; {cost}", path.display())).remedy(remedy));
        return checks;
    }
    // Without an agent its check says what is missing. Whether this one passes memory files is known
    // only after a registration.
    if socket.is_some() {
        let places: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
        let text =
            format!("{}: No such file; an agent that passes memory files needs none", places.join(", "));
        checks.push(Check::new("hints", Level::Ok, text));
    }
    checks
}

fn hint_file(mut file: File) -> Result<(), String> {
    let len = file.metadata().map_err(|e| e.to_string())?.len();
    if len != HINTS_SIZE as u64 {
        return Err(format!("{len} bytes, expected {HINTS_SIZE}"));
    }
    let mut head = [0; HEADER_SIZE];
    file.read_exact(&mut head).map_err(|e| e.to_string())?;
    check_header(&head).map_err(|bad| format!("not a hint file: {bad}"))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use nccl_net_mpib_agent_iface::agent::{HintsWriter, header};

    #[test]
    fn a_hint_file_is_one_by_its_size_and_its_head() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hints");
        let judged = || hint_file(File::open(&path).unwrap());
        fs::write(&path, header()).unwrap();
        assert_eq!(judged().unwrap_err(), "16 bytes, expected 4112");
        fs::write(&path, [0; HINTS_SIZE]).unwrap();
        assert!(judged().unwrap_err().starts_with("not a hint file: magic"));
        fs::remove_file(&path).unwrap();
        let _writer = HintsWriter::create(&path).unwrap();
        assert_eq!(judged(), Ok(()));
    }
}
