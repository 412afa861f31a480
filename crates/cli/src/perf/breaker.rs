//! Breaks a rail in the middle of a transfer and repairs it: by a script of softverbs, by commands of
//! the operator, or by the operator's hand.

use std::{
    cell::RefCell,
    io,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    rc::Rc,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use super::{
    plan::Fault,
    rails::{self, DATA},
};
use crate::failure::{Context, Failure, Kind};
use crate::process::{ending, ends_with_us};

/// Longest wait for the rail's return after a script, unless the plan's limit is shorter.
const RETURN: Duration = Duration::from_secs(20);
/// Longest wait after a command: a driver takes some seconds to find its adapter.
const RETURN_OF_DEVICE: Duration = Duration::from_secs(60);
/// Longest wait, after a command has ended, for the rail to carry nothing.
const QUIET: Duration = Duration::from_secs(2);

/// Commands that take a rail out of service and back. Only the operator of this machine names them:
/// they are no part of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outage {
    /// `hca:port`
    pub(crate) rail: String,
    pub(crate) down: String,
    pub(crate) up: String,
    /// The operator runs the commands, of a connection with another rail.
    pub(crate) by_hand: bool,
    /// Seconds after which the rail is restored, if the connection has no other one: nothing
    /// completes until then, so the end that leads cannot do it later.
    pub(crate) restores_after: Option<f64>,
    /// Seconds after which the rail is restored in any case: this process may hang in a driver.
    pub(crate) at_most: f64,
}

/// Runs in the middle of a round.
pub(super) type Act = Box<dyn FnOnce() -> Result<(), Failure>>;

/// What breaks the rail.
#[derive(Debug, Clone)]
enum Means {
    Script(Fault),
    Commands(Outage, Rc<RefCell<Running>>),
}

/// The processes of an outage.
#[derive(Debug, Default)]
struct Running {
    down: Option<Child>,
    /// When `down` was first seen to have ended.
    ended: Option<Instant>,
    guard: Option<Guard>,
    /// Bytes of the rail when they were last read.
    seen: u64,
}

/// Breaks and repairs one rail.
#[derive(Debug, Clone)]
pub(super) struct Breaker {
    /// The rail's name in the counters.
    pub(super) rail: String,
    means: Means,
}

impl Breaker {
    /// Makes the breaker of a fault or an outage. The counters must have its rail.
    pub(super) fn new(fault: Option<&Fault>, outage: Option<&Outage>) -> Result<Option<Self>, Failure> {
        let (rail, means) = match (fault, outage) {
            (Some(fault), _) => (&fault.device, Means::Script(fault.clone())),
            (None, Some(outage)) => (&outage.rail, Means::Commands(outage.clone(), Rc::default())),
            (None, None) => return Ok(None),
        };
        let known = rails::read().unwrap_or_default();
        if let Some(name) = rails::names(rail).into_iter().find(|name| known.contains_key(*name)) {
            return Ok(Some(Self { rail: name.to_owned(), means }));
        }
        let found: Vec<_> = known.into_keys().collect();
        let what =
            fault.map_or_else(|| format!("an outage of {rail}"), |f| format!("--fault {}", f.script()));
        let text = format!("{what}: no such device; found {}", found.join(", "));
        Err(Failure::new(Kind::Usage, text))
    }

    /// Returns what breaks the rail. The bytes of a round end before a command has had its effect:
    /// [`Breaker::is_broken`] returns whether it has.
    pub(super) fn breaks(&self) -> Act {
        match self.means.clone() {
            Means::Script(fault) => Box::new(move || rails::run_faults(&fault.script())),
            Means::Commands(outage, running) => Box::new(move || {
                if outage.by_hand {
                    eprintln!("mpib: now run: {}", outage.down);
                    return Ok(());
                }
                let mut running = running.borrow_mut();
                let pause = outage.restores_after.unwrap_or(0.0);
                let (mut down, guard) = take_out(&outage.down, &outage.up, pause, outage.at_most)?;
                let guard = running.guard.insert(guard);
                if outage.restores_after.is_some() {
                    down.wait().tool(format!("wait for {:?}", outage.down))?;
                    guard.restore();
                }
                running.down = Some(down);
                Ok(())
            }),
        }
    }

    /// Returns what repairs the rail.
    pub(super) fn repairs(&self) -> Act {
        match self.means.clone() {
            Means::Script(fault) => Box::new(move || rails::run_faults(&fault.repair())),
            Means::Commands(outage, running) => Box::new(move || {
                match running.borrow_mut().guard.as_mut() {
                    Some(guard) => guard.restore(),
                    None => eprintln!("mpib: now run: {}", outage.up),
                }
                Ok(())
            }),
        }
    }

    /// Returns whether the rail is out of service: the command has ended, and the rail has carried
    /// nothing since the last call. Some commands end before they have had their effect; if the rail
    /// still carries data a while later, the next stage shows it. Fails if the command has.
    pub(super) fn is_broken(&self) -> Result<bool, Failure> {
        let Means::Commands(outage, running) = &self.means else { return Ok(true) };
        let mut running = running.borrow_mut();
        let now = rails::read().and_then(|all| all.get(&self.rail).copied()).unwrap_or(0);
        let is_quiet = now.saturating_sub(std::mem::replace(&mut running.seen, now)) < DATA / 16;
        if outage.by_hand {
            return Ok(is_quiet);
        }
        let Some(down) = running.down.as_mut() else { return Ok(false) };
        if !ended(&outage.down, down)? {
            return Ok(false);
        }
        let since = *running.ended.get_or_insert_with(Instant::now);
        // The only rail of a connection has been restored already.
        Ok(is_quiet || outage.restores_after.is_some() || since.elapsed() >= QUIET)
    }

    /// Fails if the command that restores the rail has failed.
    pub(super) fn check_repair(&self) -> Result<(), Failure> {
        let Means::Commands(outage, running) = &self.means else { return Ok(()) };
        match running.borrow_mut().guard.as_mut() {
            Some(guard) => ended(&outage.up, &mut guard.child).map(drop),
            None => Ok(()),
        }
    }

    /// Returns the longest wait for the rail's return.
    pub(super) const fn patience(&self) -> Duration {
        match self.means {
            Means::Script(_) => RETURN,
            Means::Commands(..) => RETURN_OF_DEVICE,
        }
    }
}

fn shell(script: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", script]).stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Runs the command that takes something out of service, once a [`Guard`] of the one that restores it
/// watches.
pub(super) fn take_out(down: &str, up: &str, pause: f64, at_most: f64) -> Result<(Child, Guard), Failure> {
    let guard = Guard::start(up, pause, at_most).tool(format!("start the process that runs {up:?}"))?;
    let mut command = shell(down);
    ends_with_us(&mut command);
    Ok((command.spawn().tool(format!("run {down:?}"))?, guard))
}

/// Returns whether a command has ended; fails if it has not succeeded.
pub(super) fn ended(text: &str, child: &mut Child) -> Result<bool, Failure> {
    let Some(status) = child.try_wait().tool(format!("wait for {text:?}"))? else { return Ok(false) };
    if status.success() {
        return Ok(true);
    }
    let text = format!("{text:?} {}: run it by hand to see why; it may need root", ending(status));
    Err(Failure::new(Kind::Tool, text))
}

/// The script of [`Guard`]: $1 is the command, $2 the pause before it, $3 the deadline. While a driver
/// still lets go of an adapter, a bind fails: the command is run until it succeeds, at most 30 times.
/// Only the last time has its errors on stderr.
/// A system without timeout (status 127) has no deadline.
const GUARD: &str = r#"
timeout -s KILL "$3" cat >/dev/null 2>&1
[ $? -ne 127 ] || while read -r _; do :; done
sleep "$2"
n=1
while [ "$n" -lt 30 ]; do
    ( eval "$1" ) 2>/dev/null && exit
    n=$((n + 1))
    sleep 1
done
eval "$1""#;

/// A process that runs a command when its input ends: when this process lets it, or ends in any way;
/// and after its deadline, if this process can do neither. It is in a session without a terminal, and
/// ignores the signals of a shell that ends its jobs.
#[derive(Debug)]
pub(super) struct Guard {
    pub(super) child: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    /// Starts it. After the end of its input it waits for `pause` seconds; its deadline is `at_most`
    /// seconds from now.
    fn start(command: &str, pause: f64, at_most: f64) -> io::Result<Self> {
        let mut shell = shell(GUARD);
        shell.args(["mpib", command, &pause.to_string(), &at_most.to_string()]).stdin(Stdio::piped());
        // SAFETY: between fork and exec only setsid and signal run, which are async-signal-safe.
        unsafe {
            shell.pre_exec(|| {
                let mut is_done = libc::setsid() >= 0;
                for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
                    is_done &= libc::signal(signal, libc::SIG_IGN) != libc::SIG_ERR;
                }
                if is_done { Ok(()) } else { Err(io::Error::last_os_error()) }
            })
        };
        let mut child = shell.spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    pub(super) fn restore(&mut self) {
        self.input = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guard_runs_its_command_when_its_input_ends() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("restored");
        let mut guard = Guard::start(&format!("touch {}", path.display()), 0.0, 600.0).unwrap();
        // A shell that ends its jobs does not end the guard.
        let pid = i32::try_from(guard.child.id()).unwrap();
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the process is this one's child, and has not been waited for.
            assert_eq!(unsafe { libc::kill(pid, signal) }, 0);
        }
        assert!(guard.child.try_wait().unwrap().is_none() && !path.exists());
        guard.restore();
        assert!(guard.child.wait().unwrap().success() && path.exists());
    }

    #[test]
    fn the_guard_runs_its_command_again_if_it_fails() {
        let dir = tempfile::tempdir().unwrap();
        let (tried, done) = (dir.path().join("tried"), dir.path().join("done"));
        let (tried, text) = (tried.display(), done.display());
        let command = format!("[ -e {tried} ] || {{ touch {tried}; exit 1; }}; touch {text}");
        let mut guard = Guard::start(&command, 0.0, 600.0).unwrap();
        guard.restore();
        assert!(guard.child.wait().unwrap().success() && done.exists());
    }

    #[test]
    fn the_guard_runs_its_command_after_its_deadline() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("restored");
        let mut guard = Guard::start(&format!("touch {}", path.display()), 0.0, 0.1).unwrap();
        assert!(guard.child.wait().unwrap().success() && path.exists());
        assert!(guard.input.is_some());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let mut child = shell("exit 3").spawn().unwrap();
        child.wait().unwrap();
        let why = ended("ip link", &mut child).unwrap_err().message;
        assert!(why.starts_with("\"ip link\" exited with status 3"), "{why}");
    }
}
