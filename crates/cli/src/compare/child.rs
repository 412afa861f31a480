//! Runs one child process in the environment of a scenario.

use std::{
    env, fs,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use super::{contestant::Contestant, measure::Work, scenario::Scenario};
use crate::failure::{Context, Failure, Kind};

/// How long one child may take.
const LIMIT: Duration = Duration::from_secs(600);

impl Work<'_> {
    /// Runs a child in the scenario's environment; returns its stdout. If the child fails, the
    /// failure has the same kind and the child's last output.
    pub(super) fn child(
        &self,
        command: Command,
        scenario: &Scenario,
        one: &Contestant,
        rated: bool,
    ) -> Result<(ExitStatus, String), Failure> {
        let Ended { status, out, err } = self.run(command, scenario, one, rated)?;
        if status.success() {
            return Ok((status, out));
        }
        let last: Vec<_> = err.lines().filter(|l| !l.is_empty()).collect();
        let last = last[last.len().saturating_sub(3)..].join("\n");
        let place = format!("{}, {}", one.name, scenario.name);
        let text = format!("{place}: a run {}: {last}", crate::process::ending(status));
        Err(Failure::new(Kind::Call, text))
    }

    /// Runs a child in the scenario's environment to its end.
    pub(super) fn run(
        &self,
        mut command: Command,
        scenario: &Scenario,
        one: &Contestant,
        rated: bool,
    ) -> Result<Ended, Failure> {
        for (name, _) in env::vars_os() {
            let text = name.to_string_lossy();
            if ["MPIB_", "NCCL_", "SOFTVERBS_"].iter().any(|prefix| text.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        let mut path = self.softverbs.as_os_str().to_owned();
        if let Some(more) = env::var_os("LD_LIBRARY_PATH").filter(|more| !more.is_empty()) {
            path.push(":");
            path.push(more);
        }
        let fabric = format!("compare-{}", std::process::id());
        command.env("LD_LIBRARY_PATH", path).envs(scenario.environment(&fabric, rated));
        command.envs(one.env.iter().map(|(name, value)| (name, value)));
        let dir = tempfile::tempdir().tool("make a temporary folder")?;
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let file = |path: &Path| fs::File::create(path).tool("make a temporary file");
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?);
        let program = command.get_program().to_string_lossy().into_owned();
        let status = ended(command.spawn().tool(format!("start {program}"))?);
        let read = |path: &Path| fs::read(path).map(|text| String::from_utf8_lossy(&text).into_owned());
        let place = format!("{}, {}", one.name, scenario.name);
        let status = status.map_err(|f| f.at(&place))?;
        let [out, err] = [read(&out), read(&err)].map(|text| text.tool("read a temporary file"));
        Ok(Ended { status, out: out?, err: err? })
    }
}

/// A child that has ended, and its output.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) out: String,
    pub(super) err: String,
}

/// Waits up to [`LIMIT`].
fn ended(mut child: std::process::Child) -> Result<ExitStatus, Failure> {
    let since = Instant::now();
    loop {
        if let Some(status) = child.try_wait().tool("wait for a child")? {
            return Ok(status);
        }
        if since.elapsed() > LIMIT {
            // Both calls fail only if the child has just ended.
            let _ = child.kill();
            let _ = child.wait();
            return Err(Failure::new(Kind::Timeout, format!("a run did not end within {LIMIT:?}")));
        }
        thread::sleep(Duration::from_millis(5));
    }
}
