//! The process that loads the plugin. It is started by this same program, does one run through one table, and ends.

use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    args::Plan,
    control::Channel,
    link::{Link, Role, Say, hear_one},
    report::{Connections, SizeResult},
    session::{Listener, Session},
};
use crate::failure::{Context, Failure};
use crate::plugin;
use mpib::device::Device;
use nccl_net_host::{Call, Net, Settings, Table, Watch, logger};

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "perf-worker";

/// Descriptors that the parent left open.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// To the parent.
    #[arg(long)]
    pub(super) control: RawFd,
    /// To the other worker.
    #[arg(long)]
    pub(super) peer: RawFd,
    /// The page that the parent watches.
    #[arg(long)]
    pub(super) watch: RawFd,
}

/// What a worker is to do: the parent's only message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) plugin: PathBuf,
    pub(super) version: u32,
    /// The table's symbol, where it is not the exported one of its version.
    pub(super) table: Option<String>,
    pub(super) device: i32,
    /// Devices to make one of, instead of `device`.
    pub(super) merge: Vec<i32>,
    pub(super) role: Role,
    pub(super) plan: Plan,
    /// Log lines of this level or more severe ones: WARN is 2, INFO 3.
    pub(super) verbose: bool,
    /// Variables of the process: set, or taken away. Applied when it starts.
    pub(super) env: Vec<(String, Option<String>)>,
}

/// What a worker tells its parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// A line of the plugin.
    Log { level: i32, text: String },
    /// `init` is done and the device is there.
    Device { net: String, device: Device },
    /// The further connections were made.
    Connections(Connections),
    /// A size is measured.
    Result(Box<SizeResult>),
    /// The run ended with a failure.
    Failed(Failure),
    /// The run ended well; only the process's exit is to come.
    Done,
}

/// The way to the parent, for the run and for the plugin's threads that log.
#[derive(Clone)]
struct Parent(Arc<Mutex<Channel>>);

impl Parent {
    fn tell(&self, event: &Event) -> Result<(), Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(event)
    }
}

impl Listener for Parent {
    fn device(&mut self, net: &str, device: &Device) -> Result<(), Failure> {
        self.tell(&Event::Device { net: net.to_owned(), device: device.clone() })
    }

    fn connections(&mut self, connections: &Connections) -> Result<(), Failure> {
        self.tell(&Event::Connections(*connections))
    }

    fn result(&mut self, result: &SizeResult) -> Result<(), Failure> {
        self.tell(&Event::Result(Box::new(result.clone())))
    }
}

/// Takes a descriptor that the parent passed, and keeps it from programs that the plugin may start.
fn take(fd: RawFd) -> Result<OwnedFd, Failure> {
    // SAFETY: fcntl on any number is defined; it fails where nothing is open.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).tool(format!("use descriptor {fd}; only \"mpib perf\" starts this command"));
    }
    // SAFETY: open, and the parent made it for this process's sole use.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// The worker's main. It does not return after a failure, as the plugin's destructors must not run in a state that
/// nobody knows.
pub(crate) fn main(args: &WorkerArgs) -> Result<(), Failure> {
    let mut control = Channel::new(take(args.control)?, "mpib")?;
    let peer = Channel::new(take(args.peer)?, "the other end")?;
    let watch = Watch::open(take(args.watch)?).tool("map the memory file of the current call")?.leak();
    let job: Job = control.recv(Duration::from_secs(60), || Ok(()))?;
    let mut parent = Parent(Arc::new(Mutex::new(control)));

    let (sink, verbose) = (parent.clone(), job.verbose);
    logger::install(move |line| {
        if line.level == logger::WARN || verbose {
            // The run itself notices a lost parent.
            let _ = sink.tell(&Event::Log { level: line.level, text: line.text.clone() });
        }
    });

    let mut link = Link::new(peer, watch, &job.plan, job.role);
    let table = match plugin::open_table(&job.plugin, job.version, job.table.as_deref(), Some(watch)) {
        Ok(table) => table,
        Err(failure) => give_up(&mut link, &parent, failure),
    };
    if let Err(failure) = run(table, &mut link, watch, job, &mut parent) {
        let failure = link.blame(failure);
        give_up(&mut link, &parent, failure);
    }
    watch.set(Call::Exit);
    parent.tell(&Event::Done)
}

/// Does the job, from `init` to `finalize`.
fn run(
    table: Table,
    link: &mut Link,
    watch: &'static Watch,
    job: Job,
    parent: &mut Parent,
) -> Result<(), Failure> {
    let Job { version, device, merge, role, plan, .. } = job;
    let net = Net::init(table, &Settings::default())?;
    let mut session = Session { net, link, watch, role, version, device, merge, plan };
    session.run(parent)?;
    session.net.finalize()?;
    link.say(&Say::Closed)?;
    hear_one!(link, Say::Closed => ());
    Ok(())
}

/// Tells both sides, and ends the process at once.
fn give_up(link: &mut Link, parent: &Parent, failure: Failure) -> ! {
    // Either may be gone; the other is told all the same.
    let _ = link.say(&Say::Failed(failure.clone()));
    let code = failure.kind.exit_code();
    let _ = parent.tell(&Event::Failed(failure));
    // SAFETY: ends the process without running destructors of the plugin.
    unsafe { libc::_exit(i32::from(code)) }
}
