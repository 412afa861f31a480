//! Breaks a rail in the middle of a transfer and repairs it: by a script of softverbs, by commands of
//! the operator, or by the operator's hand.

use std::{
    cell::RefCell,
    io,
    os::unix::process::CommandExt,
    process::{Child, ChildStdin, Command, Stdio},
    rc::Rc,
    time::Duration,
};

use serde::{Deserialize, Serialize};

use super::{plan::Fault, rails};
use crate::failure::{Context, Failure, Kind};
use crate::process::{ending, ends_with_us};

/// Longest wait for the rail's return after a script, unless the plan's limit is shorter.
const RETURN: Duration = Duration::from_secs(20);
/// Longest wait after a command: a driver takes some seconds to find its adapter.
const RETURN_OF_DEVICE: Duration = Duration::from_secs(60);
/// Bytes of a rail that are data, not CTS writes or probes.
pub(super) const DATA: u64 = 1 << 20;

/// Commands that take a rail out of service and back. Only the operator of this machine names them:
/// they are no part of a plan.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Outage {
    /// `hca:port`
    pub(crate) rail: String,
    pub(crate) down: String,
    pub(crate) up: String,
    /// The operator runs the commands.
    pub(crate) by_hand: bool,
    /// Seconds after which the rail is restored, if the connection has no other one: nothing
    /// completes until then, so the end that leads cannot do it later.
    pub(crate) restores_after: Option<f64>,
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
        // The counters of softverbs are those of a device, the kernel's those of a port.
        let names = [rail.as_str(), rail.split(':').next().unwrap_or(rail)];
        if let Some(name) = names.into_iter().find(|name| known.contains_key(*name)) {
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
                    if let Some(pause) = outage.restores_after {
                        eprintln!("mpib: and {pause} s later: {}", outage.up);
                    }
                    return Ok(());
                }
                let mut running = running.borrow_mut();
                let pause = outage.restores_after.map_or(String::new(), |pause| format!("sleep {pause}; "));
                let guard =
                    Guard::start(&(pause + &outage.up)).tool("start the process that restores the rail")?;
                let guard = running.guard.insert(guard);
                let mut command = shell(&outage.down);
                ends_with_us(&mut command);
                let mut down = command.spawn().tool(format!("run {:?}", outage.down))?;
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
                    None if outage.restores_after.is_none() => eprintln!("mpib: now run: {}", outage.up),
                    None => {}
                }
                Ok(())
            }),
        }
    }

    /// Returns whether the rail is out of service: the command has ended, or the rail has carried
    /// nothing since the last call. Fails if the command has.
    pub(super) fn is_broken(&self) -> Result<bool, Failure> {
        let Means::Commands(outage, running) = &self.means else { return Ok(true) };
        let mut running = running.borrow_mut();
        if outage.by_hand {
            let now = rails::read().and_then(|all| all.get(&self.rail).copied()).unwrap_or(0);
            let grown = now.saturating_sub(std::mem::replace(&mut running.seen, now));
            return Ok(grown < DATA / 16);
        }
        let Some(down) = running.down.as_mut() else { return Ok(false) };
        ended(&outage.down, down)
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

/// Returns whether a command has ended; fails if it has not succeeded.
fn ended(text: &str, child: &mut Child) -> Result<bool, Failure> {
    let Some(status) = child.try_wait().tool(format!("wait for {text:?}"))? else { return Ok(false) };
    if status.success() {
        return Ok(true);
    }
    let text = format!("{text:?} {}: run it by hand to see why; it may need root", ending(status));
    Err(Failure::new(Kind::Usage, text))
}

/// A process that runs a command when its input ends: when this process lets it, or ends in any way.
/// It is in a session without a terminal: Ctrl-C does not reach it.
#[derive(Debug)]
struct Guard {
    child: Child,
    input: Option<ChildStdin>,
}

impl Guard {
    fn start(command: &str) -> io::Result<Self> {
        let mut shell = shell("while read -r _; do :; done; eval \"$1\"");
        shell.args(["mpib", command]).stdin(Stdio::piped());
        // SAFETY: between fork and exec only setsid runs, which is async-signal-safe.
        unsafe {
            shell.pre_exec(|| if libc::setsid() < 0 { Err(io::Error::last_os_error()) } else { Ok(()) })
        };
        let mut child = shell.spawn()?;
        let input = child.stdin.take();
        Ok(Self { child, input })
    }

    fn restore(&mut self) {
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
        let mut guard = Guard::start(&format!("touch {}", path.display())).unwrap();
        assert!(guard.child.try_wait().unwrap().is_none() && !path.exists());
        guard.restore();
        assert!(guard.child.wait().unwrap().success() && path.exists());
    }

    #[test]
    fn a_command_that_fails_is_named() {
        let mut child = shell("exit 3").spawn().unwrap();
        child.wait().unwrap();
        let why = ended("ip link", &mut child).unwrap_err().message;
        assert!(why.starts_with("\"ip link\" exited with status 3"), "{why}");
    }
}
