//! Runs one child process in the environment of a scenario.

use std::{
    fs,
    path::Path,
    process::{Command, ExitStatus, Stdio},
    time::Duration,
};

use super::{contestant::Contestant, measure::Work, scenario::Scenario};
use mpib::failure::{Context, Failure, Kind};
use mpib::process::{ending, on_softverbs, wait};

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
        let text = format!("{place}: a run {}: {last}", ending(status));
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
        on_softverbs(&mut command, self.softverbs, &[]);
        let fabric = format!("compare-{}", std::process::id());
        command.envs(scenario.environment(&fabric, rated));
        command.envs(one.env.iter().map(|(name, value)| (name, value)));
        let dir = tempfile::tempdir().tool("make a temporary folder")?;
        let (out, err) = (dir.path().join("out"), dir.path().join("err"));
        let file = |path: &Path| fs::File::create(path).tool("make a temporary file");
        command.stdin(Stdio::null()).stdout(file(&out)?).stderr(file(&err)?);
        let program = command.get_program().to_string_lossy().into_owned();
        let mut child = command.spawn().tool(format!("start {program}"))?;
        let status = wait(&mut child, LIMIT).tool("wait for a child").and_then(|status| {
            let text = || format!("a run did not end within {LIMIT:?}");
            status.ok_or_else(|| Failure::new(Kind::Timeout, text()))
        });
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
