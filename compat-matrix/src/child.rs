//! Starts processes that load a core, and ends them. The result is an account or a failure, even if
//! the process crashes or hangs.

use std::{
    collections::BTreeMap,
    env, fs, io,
    os::{
        fd::{AsRawFd, OwnedFd},
        unix::{
            net::UnixStream,
            process::{CommandExt, ExitStatusExt},
        },
    },
    path::PathBuf,
    process::{Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use softcuda::world::ends_with_us;

use crate::{
    failure::{Context, Failure, Kind, Result},
    script::{Account, Job, Role},
    stage::Scratch,
};

/// The hidden command of this program.
pub(crate) const COMMAND: &str = "worker";

/// How a process ended.
#[derive(Debug)]
pub(crate) struct Ending {
    /// `None` if the process ended before it wrote one.
    pub(crate) account: Option<Account>,
    /// `None` if the process was killed at the deadline.
    pub(crate) status: Option<ExitStatus>,
    /// The last step that began, and the last line of output.
    last_step: String,
    said: String,
    deadline: Duration,
}

impl Ending {
    /// Returns the signal that ended the process, unless it was killed at the deadline.
    pub(crate) fn signal(&self) -> Option<i32> {
        self.status?.signal()
    }

    /// Returns the account of a process that completed all steps.
    pub(crate) fn account(self) -> Result<Account> {
        let at = if self.last_step.is_empty() { String::new() } else { format!(" at {}", self.last_step) };
        let Some(status) = self.status else {
            return Err(Failure::wrong(format!("did not end in {:?}{at}", self.deadline)));
        };
        let said = if self.said.is_empty() {
            String::new()
        } else {
            format!("; its last line of output: {}", self.said)
        };
        if let Some(signal) = status.signal() {
            return Err(Failure::wrong(format!("died of signal {signal}{at}{said}")));
        }
        let Some(account) = self.account else {
            return Err(Failure::tool(format!("{status} without an account{at}{said}")));
        };
        match &account.failure {
            Some(failure) => Err(Failure { message: format!("{}{at}", failure.message), ..failure.clone() }),
            None if !status.success() => Err(Failure::wrong(format!("{status} after its last step{said}"))),
            None => Ok(account),
        }
    }
}

/// Runs one process, or two that are connected.
pub(crate) struct Runner<'a> {
    pub(crate) scratch: &'a Scratch,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) deadline: Duration,
}

impl Runner<'_> {
    pub(crate) fn alone(&self, job: &Job) -> Result<Ending> {
        let mut running = [self.start(job, None)?];
        wait(&mut running, self.deadline);
        let [running] = running;
        Ok(running.ending(self.deadline))
    }

    /// Runs one end of a pair; `peer` is the connection to the other end.
    pub(crate) fn end(&self, job: &Job, role: Role, peer: OwnedFd) -> Result<Account> {
        let mut running = [self.start(job, Some((role, peer)))?];
        wait(&mut running, self.deadline);
        let [running] = running;
        running.ending(self.deadline).account()
    }

    /// Runs the same job on both ends; returns the accounts of the sender and of the receiver.
    pub(crate) fn pair(&self, job: &Job) -> Result<[Account; 2]> {
        let (a, b) = UnixStream::pair().cannot("make a socket pair")?;
        let sender = self.start(job, Some((Role::Sender, a.into())))?;
        let receiver = self.start(job, Some((Role::Receiver, b.into())))?;
        let mut running = [sender, receiver];
        wait(&mut running, self.deadline);
        let ends = running.map(|running| running.ending(self.deadline));
        let mut accounts = Vec::new();
        let mut failures = Vec::new();
        for (who, end) in ["sender", "receiver"].into_iter().zip(ends) {
            match end.account() {
                Ok(account) => accounts.push(account),
                Err(e) => failures.push(Failure { message: format!("{who}: {}", e.message), ..e }),
            }
        }
        failures.sort_by_key(|failure| failure.kind == Kind::Peer);
        match (accounts.try_into(), failures.into_iter().next()) {
            (Ok(accounts), None) => Ok(accounts),
            (_, Some(failure)) => Err(failure),
            (Err(_), None) => Err(Failure::tool("a process gave neither an account nor a failure")),
        }
    }

    fn start(&self, job: &Job, peer: Option<(Role, OwnedFd)>) -> Result<Running> {
        let file = |name| self.scratch.file(name);
        let (input, output, errors) = (file("job"), file("account"), file("stderr"));
        let fd = peer.as_ref().map(|(_, fd)| fd.as_raw_fd());
        let job = Job { peer: peer.as_ref().map(|(role, fd)| (*role, fd.as_raw_fd())), ..job.clone() };
        let text = serde_json::to_vec(&job).cannot("write a job")?;
        fs::write(&input, text).cannot(format!("write {}", input.display()))?;
        let file = fs::File::create(&errors).cannot(format!("write {}", errors.display()))?;
        let mut command = Command::new(env::current_exe().cannot("find this program's file")?);
        command.arg(COMMAND).arg(&input).arg(&output);
        command.env_clear().envs(&self.environment);
        if let Some((role, _)) = job.peer {
            // NCCL refuses two ranks with one GPU on one host: this makes it see two hosts.
            command.env("NCCL_HOSTID", format!("{role:?}"));
        }
        command.stdin(Stdio::null()).stdout(file.try_clone().cannot("share a file")?).stderr(file);
        ends_with_us(&mut command);
        if let Some(fd) = fd {
            // SAFETY: between fork and exec only fcntl is called, which is async-signal-safe. No
            // memory is allocated; the error value holds a number.
            unsafe {
                command.pre_exec(move || match libc::fcntl(fd, libc::F_SETFD, 0) {
                    0.. => Ok(()),
                    _ => Err(io::Error::last_os_error()),
                })
            };
        }
        let child = command.spawn().cannot("start a process")?;
        Ok(Running { child, status: None, output, errors })
    }
}

/// A process. Dropping it kills it.
struct Running {
    child: Child,
    status: Option<ExitStatus>,
    output: PathBuf,
    errors: PathBuf,
}

/// Waits until all have ended or the deadline has passed. If one fails, the other one gets a moment
/// to end.
fn wait<const N: usize>(running: &mut [Running; N], deadline: Duration) {
    const MOMENT: Duration = Duration::from_secs(2);
    let mut end = Instant::now() + deadline;
    while Instant::now() < end {
        let mut all = true;
        for one in &mut *running {
            let before = one.status;
            one.status = one.status.or_else(|| one.child.try_wait().ok().flatten());
            all &= one.status.is_some();
            if before.is_none() && one.status.is_some() && !one.succeeded() {
                end = end.min(Instant::now() + MOMENT);
            }
        }
        if all {
            return;
        }
        thread::sleep(Duration::from_millis(5));
    }
}

impl Running {
    fn account(&self) -> Option<Account> {
        serde_json::from_slice(&fs::read(&self.output).ok()?).ok()
    }

    fn succeeded(&self) -> bool {
        self.status.is_some_and(|status| status.success())
            && self.account().is_some_and(|account| account.failure.is_none())
    }

    /// Kills the process if it still runs.
    fn ending(mut self, deadline: Duration) -> Ending {
        if self.status.is_none() {
            self.kill();
        }
        let said = fs::read(&self.errors).unwrap_or_default();
        let said = String::from_utf8_lossy(&said);
        let mut steps = said.lines().filter(|line| line.starts_with("step "));
        let mut words = said.lines().filter(|line| !line.starts_with("step "));
        Ending {
            account: self.account(),
            status: self.status,
            last_step: steps.next_back().unwrap_or_default().to_owned(),
            said: words.next_back().unwrap_or_default().to_owned(),
            deadline,
        }
    }

    fn kill(&mut self) {
        // Both calls fail only if the process has been waited for already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.kill();
    }
}
