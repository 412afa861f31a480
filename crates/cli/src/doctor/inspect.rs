//! Loads the plugin in a separate process. A plugin that hangs or crashes becomes a finding.

use std::{
    env, fs, io,
    os::fd::AsRawFd,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use nccl_net_mpib_agent_iface::{
    doctor::{Check, Level, Report, Routes},
    memfd,
};
use serde::de::DeserializeOwned;

use super::{
    loader::OPENED,
    worker::{COMMAND, Findings},
};
use crate::{
    failure::{Context, Failure},
    output::units::counted,
    process::{Tail, ending, ends_with_us, wait},
};

/// The result of loading the plugin.
pub(super) struct Inspection {
    pub(super) report: Option<Report>,
    pub(super) softverbs: bool,
    pub(super) checks: Vec<Check>,
}

/// Gets the plugin's report on this host, within the limit.
pub(super) fn inspect(plugin: &Path, limit: Duration) -> Result<Inspection, Failure> {
    let (Findings { report, softverbs, init }, stderr) = match run_worker(plugin, limit, &[])? {
        Ok(found) => found,
        Err(what) => {
            // NCCL's dlopen would fail as this one did.
            let id = if what.contains("dlopen failed") { OPENED } else { "plugin" };
            let checks = vec![Check::new(id, Level::Fail, what)];
            return Ok(Inspection { report: None, softverbs: false, checks });
        }
    };
    let mut checks: Vec<Check> = stderr.lines().filter_map(said_by_verbs).collect();
    if report.is_none() {
        let text =
            "it does not export mpib_doctor_v1 (another plugin, or an older one): only its init was checked";
        checks.push(Check::new("plugin", Level::Warn, text));
    }
    checks.extend(init.map(|outcome| match outcome {
        Ok(devices) => {
            let text =
                format!("init succeeds, with {}: {}", counted(devices.len(), "device"), devices.join(", "));
            Check::new("init", Level::Ok, text)
        }
        Err(failure) => Check::new("init", Level::Fail, failure.message),
    }));
    Ok(Inspection { report, softverbs, checks })
}

/// Gets the plugin's routes between two hosts, from the `hello` of each one's report. The inner
/// error is a finding.
pub(super) fn routes(
    plugin: &Path,
    limit: Duration,
    ours: &str,
    theirs: &str,
) -> Result<Result<Routes, String>, Failure> {
    let files = [Passed::new("ours")?, Passed::new("theirs")?];
    for (file, text) in files.iter().zip([ours, theirs]) {
        fs::write(&file.path, text).tool("write to a file in memory")?;
    }
    let found = run_worker(plugin, limit, &files.each_ref().map(|file| &*file.path))?;
    Ok(found.map(|(routes, _)| routes))
}

/// Returns the check for a line of libibverbs' own, which has no other way to say why it lists no
/// device: a provider that cannot be loaded, or a wrong setting of softverbs.
fn said_by_verbs(line: &str) -> Option<Check> {
    if let Some(text) = line.strip_prefix("libibverbs: ") {
        return Some(Check::new("verbs", Level::Warn, format!("libibverbs says: {text}")));
    }
    let (_, text) = line.strip_prefix("softverbs[")?.split_once("]: ")?;
    let variable =
        text.split_once('=').map(|(name, _)| name).filter(|name| name.starts_with("SOFTVERBS_"))?;
    let level = if text.contains("there are no devices") { Level::Fail } else { Level::Warn };
    let remedy = format!("correct {variable}: docs/guide/softverbs.md has its form");
    Some(Check::new("verbs", level, text).remedy(remedy))
}

/// A file in memory for the worker, which inherits it: the host may have no folder that can be written.
struct Passed {
    path: PathBuf,
    _file: fs::File,
}

impl Passed {
    fn new(name: &str) -> Result<Self, Failure> {
        let file = memfd::inherited(name).tool("make a file in memory")?;
        Ok(Self { path: format!("/proc/self/fd/{}", file.as_raw_fd()).into(), _file: file })
    }
}

/// Starts the worker, waits, and reads its findings and its standard error. The inner error describes
/// what the plugin did instead.
fn run_worker<T: DeserializeOwned>(
    plugin: &Path,
    limit: Duration,
    hosts: &[&Path],
) -> Result<Result<(T, String), String>, Failure> {
    let known = |v: &u32| nccl_net_host::VERSIONS.contains(v);
    let table = crate::abi::exports(plugin)?.into_iter().find(known).unwrap_or(0);
    let output = Passed::new("findings")?;
    let mut command = Command::new(env::current_exe().tool("find this program's own file")?);
    command.arg(COMMAND).arg("--plugin").arg(plugin).arg("--output").arg(&output.path);
    command.args(["--table", &table.to_string()]);
    if !hosts.is_empty() {
        command.arg("--hosts").args(hosts);
    }
    // A plugin's own output must not mix with the text or the JSON.
    command.stdin(Stdio::null()).stdout(io::stderr()).stderr(Stdio::piped());
    ends_with_us(&mut command);
    let mut child = command.spawn().tool("start a worker process")?;
    let stderr = child.stderr.take().map(Tail::of);
    let status = wait(&mut child, limit).tool("wait for a worker process")?;
    let stderr = stderr.map(|stderr| stderr.text()).unwrap_or_default();
    let words = last(&stderr);
    let Some(status) = status else {
        return Ok(Err(format!(
            "the plugin's report did not end within {limit:?}; its last line of output: {words}"
        )));
    };
    let findings = fs::read(&output.path).ok().filter(|_| status.success());
    let findings = findings.and_then(|text| serde_json::from_slice(&text).ok());
    Ok(match (findings, status.code()) {
        (Some(findings), _) => Ok((findings, stderr)),
        // The worker has printed the reason.
        (None, Some(_)) if !stderr.is_empty() => Err(words.trim_start_matches("mpib: ").to_owned()),
        _ => Err(format!("the process with the plugin {}; its last line of output: {words}", ending(status))),
    })
}

/// Returns the last line, for a sentence.
fn last(output: &str) -> &str {
    output.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("none")
}
