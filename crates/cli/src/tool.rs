//! Programs of others that a check starts, such as ib_write_bw: found in PATH, ended after a while, and
//! with their last output. What they print is bad input until it is checked.

use std::{
    env, io,
    os::unix::{fs::PermissionsExt, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use nix::{
    sys::{
        signal::{Signal, killpg},
        wait::{Id, WaitPidFlag, WaitStatus, waitid},
    },
    unistd::Pid,
};
use serde::{Deserialize, Serialize};

use crate::failure::{Context, Failure, printable};
use crate::process::{Tail, ending, ends_with_us};

/// How long a program may take to end after SIGTERM: mpirun ends its processes on other hosts.
const GRACE: Duration = Duration::from_secs(5);
/// How long one may take to end after SIGKILL: in a driver's call that hangs it does not.
const KILLED: Duration = Duration::from_secs(5);
/// How often to look at a running program.
const LOOK: Duration = Duration::from_millis(10);
/// Lines of output in a sentence about a failure, and the characters of each.
const LINES: usize = 3;
const LONGEST: usize = 200;

/// Returns the file of a program in a folder, or in one of PATH.
pub(crate) fn find(name: &str, folder: Option<&Path>) -> Option<PathBuf> {
    let runs =
        |file: &PathBuf| file.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0);
    match folder {
        Some(folder) => Some(folder.join(name)).filter(runs),
        None => env::split_paths(&env::var_os("PATH")?).map(|folder| folder.join(name)).find(runs),
    }
}

/// A program that runs, with the processes that it starts. Dropping it ends them.
#[derive(Debug)]
pub(crate) struct Running {
    child: Child,
    output: Tail,
    is_reaped: bool,
}

/// A program that has ended.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Ended {
    /// How, unless it succeeded.
    pub(crate) failure: Option<String>,
    /// The last part of its stdout and stderr.
    pub(crate) output: String,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Result<Self, Failure> {
        let what = format!("start {}", command.get_program().display());
        let (reader, writer) = io::pipe().tool("make a pipe")?;
        command.stdin(Stdio::null()).stdout(writer.try_clone().tool("share a pipe")?).stderr(writer);
        command.process_group(0);
        ends_with_us(&mut command);
        let child = command.spawn().tool(what)?;
        Ok(Self { child, output: Tail::of(reader), is_reaped: false })
    }

    /// Whether it has ended. It is not reaped: until then no other group of processes gets its number.
    pub(crate) fn has_ended(&self) -> bool {
        let flags = WaitPidFlag::WEXITED | WaitPidFlag::WNOHANG | WaitPidFlag::WNOWAIT;
        waitid(Id::Pid(self.pid()), flags) != Ok(WaitStatus::StillAlive)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id().cast_signed())
    }

    /// Waits for its end, at most for this time. Calls `alive` meanwhile, whose error ends it, too.
    pub(crate) fn end(
        mut self,
        limit: Duration,
        mut alive: impl FnMut() -> Result<(), Failure>,
    ) -> Result<Ended, Failure> {
        let end = Instant::now() + limit;
        while !self.has_ended() && Instant::now() < end {
            alive()?;
            thread::sleep(LOOK);
        }
        let is_late = !self.has_ended();
        let failure = match self.stop() {
            _ if is_late => Some(format!("did not end within {:.0} s", limit.as_secs_f64())),
            Some(status) if status.success() => None,
            Some(status) => Some(ending(status)),
            None => Some("ended in a way that is not known".into()),
        };
        Ok(Ended { failure, output: self.output.text() })
    }

    /// Ends it with all of its group. Returns how it ended, unless it hangs.
    fn stop(&mut self) -> Option<ExitStatus> {
        // Once it was reaped, its number may be another group's.
        if self.is_reaped {
            return None;
        }
        if !self.has_ended() {
            let _ = killpg(self.pid(), Signal::SIGTERM);
            self.wait(GRACE);
        }
        // What it has left, too. There may be nothing.
        let _ = killpg(self.pid(), Signal::SIGKILL);
        self.wait(KILLED);
        let status = self.child.try_wait().ok().flatten();
        self.is_reaped = status.is_some();
        status
    }

    fn wait(&self, patience: Duration) {
        let end = Instant::now() + patience;
        while !self.has_ended() && Instant::now() < end {
            thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.stop();
    }
}

impl Ended {
    /// Returns its last lines, for a sentence.
    pub(crate) fn last_lines(&self) -> String {
        let is_text = |line: &&str| line.chars().any(char::is_alphanumeric);
        let mut lines: Vec<String> =
            self.output.lines().rev().filter(is_text).take(LINES).map(shortened).collect();
        lines.reverse();
        if lines.is_empty() {
            "it printed nothing".into()
        } else {
            format!("its last lines: {}", lines.join(" | "))
        }
    }
}

fn shortened(line: &str) -> String {
    printable(line.trim()).chars().take(LONGEST).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::Kind;

    const LONG: Duration = Duration::from_secs(600);

    fn shell(script: &str) -> Running {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]);
        Running::start(command).unwrap()
    }

    #[test]
    fn the_last_lines_of_a_program_that_fails_are_kept() {
        let script =
            "echo early; yes | head -n 100000; echo; printf 'a\\033[31m\\n---\\n'; echo b >&2; exit 3";
        let ended = shell(script).end(LONG, || Ok(())).unwrap();
        assert_eq!(ended.failure.as_deref(), Some("exited with status 3"));
        assert_eq!(ended.last_lines(), "its last lines: y | a [31m | b");
        assert!(!ended.output.contains("early"));
        let silent = shell("").end(LONG, || Ok(())).unwrap();
        assert_eq!((silent.failure.clone(), silent.last_lines()), (None, "it printed nothing".into()));
    }

    #[test]
    fn a_program_that_hangs_ends_with_what_it_has_started() {
        for script in ["sleep 1000 & sleep 1000", "yes"] {
            let ended = shell(script).end(Duration::ZERO, || Ok(())).unwrap();
            assert_eq!(ended.failure.as_deref(), Some("did not end within 0 s"), "{script}");
        }
        let lost = shell("sleep 1000").end(LONG, || Err(Failure::new(Kind::Peer, "lost")));
        assert_eq!(lost.unwrap_err().message, "lost");
    }

    #[test]
    fn what_a_program_leaves_behind_ends_with_it() {
        let ended = shell("sleep 1000 >/dev/null 2>&1 & echo $!").end(LONG, || Ok(())).unwrap();
        assert_eq!(ended.failure, None);
        let stat = format!("/proc/{}/stat", ended.output.trim());
        // Its new parent may not have reaped it.
        while std::fs::read_to_string(&stat).is_ok_and(|stat| !stat.contains(") Z ")) {
            thread::sleep(LOOK);
        }
    }

    #[test]
    fn a_program_that_ignores_the_request_to_end_is_killed() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("ignores");
        let running = shell(&format!("trap '' TERM; touch {}; while :; do sleep 0.01; done", file.display()));
        while !file.exists() {
            assert!(!running.has_ended());
            thread::sleep(LOOK);
        }
        let ended = running.end(Duration::ZERO, || Ok(())).unwrap();
        assert_eq!(ended.failure.as_deref(), Some("did not end within 0 s"));
    }

    #[test]
    fn a_program_is_found_by_its_name() {
        assert!(find("sh", None).is_some_and(|file| file.is_absolute()));
        assert_eq!(find("no such program", None), None);
        // A folder, and a file that is no program.
        assert_eq!(
            (find("etc", Some(Path::new("/"))), find("passwd", Some(Path::new("/etc")))),
            (None, None)
        );
    }
}
