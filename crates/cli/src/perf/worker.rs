//! The process that loads the plugin. This program starts it for one run through one table.

use std::{
    os::fd::{FromRawFd, OwnedFd, RawFd},
    path::PathBuf,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    breaker::Outage,
    control::Channel,
    cuda::Gpu,
    link::{Link, Message, Role, expect_message},
    network::NetworkOutage,
    one_sided::OneSided,
    pin::Pin,
    plan::Plan,
    rails,
    report::{Account, Closing, Connections, SizeResult},
    session::{Listener, Session},
    two_sided::TwoSided,
};
use crate::device::Device;
use crate::failure::{Context, Failure, Kind};
use crate::plugin;
use nccl_net_host::{Call, Net, Rma, Settings, Table, Watch, logger};

/// The name of the hidden command.
pub(crate) const COMMAND: &str = "perf-worker";

/// Descriptors that the process inherits.
#[derive(Debug, Args)]
pub(crate) struct WorkerArgs {
    /// To the parent.
    #[arg(long)]
    pub(super) control: RawFd,
    /// To the other worker.
    #[arg(long)]
    pub(super) peer: RawFd,
    /// The page with the current call.
    #[arg(long)]
    pub(super) watch: RawFd,
}

/// The job: the parent's only message.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Job {
    pub(super) plugin: PathBuf,
    pub(super) version: u32,
    /// The table's symbol, if it is not the exported one of its version.
    pub(super) table: Option<String>,
    pub(super) device: i32,
    /// Devices to merge, instead of `device`.
    pub(super) merge: Vec<i32>,
    pub(super) role: Role,
    /// The processors of this worker.
    pub(super) pin: Option<Pin>,
    /// The GPU whose memory has the messages; `None`: the host's.
    pub(super) gpu: Option<i32>,
    pub(super) plan: Plan,
    /// Whether to pass on log lines below WARN.
    pub(super) verbose: bool,
    /// Variables of the process: set, or unset if `None`. Applied when it starts.
    pub(super) env: Vec<(String, Option<String>)>,
    pub(super) trial: Trial,
}

/// What a run does on top for "mpib hwcheck".
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Trial {
    /// Reports the plugin's statistics at its end.
    pub(crate) accounts: bool,
    /// A process that dies in the middle of a round.
    pub(crate) death: Option<Death>,
    /// A rail that is taken out of service and back. The end that leads does so.
    pub(crate) outage: Option<Outage>,
    /// A time without the network between the workers. The end that leads brings it about.
    pub(crate) network: Option<NetworkOutage>,
    /// Receives that are open at each further connection when it is closed. The end that leads
    /// decides.
    pub(crate) open_receives: usize,
}

/// Whose process dies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Death {
    /// This end's.
    Own,
    /// That of the other end: the plugin here has to report it.
    Peer,
}

/// An event for the parent.
#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Event {
    /// A line that the plugin logged.
    Log { level: i32, text: String },
    /// `init` succeeded and the device exists.
    Device { net: String, device: Device },
    /// The result for further connections.
    Connections(Connections),
    /// How long the close of further connections took: here, and there.
    Closed([Closing; 2]),
    /// The result of a size.
    Result(Box<SizeResult>),
    /// The plugin's statistics at the end of a trial.
    Account(Account),
    /// A call failed so many nanoseconds after the expected death of the other end.
    Survived { nanos: u64, failure: Failure },
    /// The run failed.
    Failed(Failure),
    /// The run succeeded; the process is about to exit.
    Done,
}

/// The channel to the parent, shared by the run and the plugin's logging threads.
#[derive(Clone)]
struct Parent(Arc<Mutex<Channel>>);

impl Parent {
    fn send(&self, event: &Event) -> Result<(), Failure> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).send(event)
    }
}

impl Listener for Parent {
    fn device(&mut self, net: &str, device: &Device) -> Result<(), Failure> {
        self.send(&Event::Device { net: net.to_owned(), device: device.clone() })
    }

    fn connections(&mut self, connections: &Connections) -> Result<(), Failure> {
        self.send(&Event::Connections(*connections))
    }

    fn closed(&mut self, closing: [Closing; 2]) -> Result<(), Failure> {
        self.send(&Event::Closed(closing))
    }

    fn result(&mut self, result: &SizeResult) -> Result<(), Failure> {
        self.send(&Event::Result(Box::new(result.clone())))
    }

    fn account(&mut self, account: Account) -> Result<(), Failure> {
        self.send(&Event::Account(account))
    }
}

/// Takes an inherited descriptor, and closes it for programs that the plugin may start.
fn inherit(fd: RawFd) -> Result<OwnedFd, Failure> {
    // SAFETY: fcntl is defined for any number; it fails if nothing is open.
    if fd < 3 || unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } < 0 {
        let error = std::io::Error::last_os_error();
        return Err(error).tool(format!("use descriptor {fd}; only \"mpib perf\" starts this command"));
    }
    // SAFETY: open, and this process is the only owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Runs the worker. Does not return after a failure: the plugin's destructors must not run in an
/// unknown state.
pub(crate) fn main(args: &WorkerArgs) -> Result<(), Failure> {
    let mut control = Channel::new(inherit(args.control)?, "mpib")?;
    let peer = Channel::new(inherit(args.peer)?, "the other end")?;
    let watch = Watch::open(inherit(args.watch)?).tool("map the memory file of the current call")?.leak();
    let job: Job = control.recv(Duration::from_secs(60), || Ok(()))?;
    let mut parent = Parent(Arc::new(Mutex::new(control)));

    let (sink, verbose) = (parent.clone(), job.verbose);
    logger::install(move |line| {
        if line.level == logger::WARN || verbose {
            // The run itself notices a lost parent.
            let _ = sink.send(&Event::Log { level: line.level, text: line.text.clone() });
        }
    });

    let mut link = Link::new(peer, watch, &job.plan, job.role);
    if job.trial.death == Some(Death::Peer) {
        link.expect_death();
    }
    let pinned = job.pin.as_ref().map_or(Ok(()), Pin::apply_at_start);
    let opened = pinned.and_then(|()| Opened::open(&job, watch));
    let table = match opened {
        Ok(table) => table,
        Err(failure) => give_up(&mut link, &parent, failure),
    };
    if let Err(failure) = run(table, &mut link, watch, job, &mut parent) {
        if let Some(since) = link.death().filter(|_| failure.kind == Kind::Call) {
            let nanos = u64::try_from(since.as_nanos()).unwrap_or(u64::MAX);
            parent.send(&Event::Survived { nanos, failure })?;
            // SAFETY: ends the process without running the plugin's destructors.
            unsafe { libc::_exit(0) }
        }
        let failure = link.attribute(failure);
        give_up(&mut link, &parent, failure);
    }
    watch.set(Call::Exit);
    parent.send(&Event::Done)
}

/// The job's table, of the family that its operation needs.
enum Opened {
    Net(Table),
    Rma(Rma),
}

impl Opened {
    fn open(job: &Job, watch: &'static Watch) -> Result<Self, Failure> {
        let Job { plugin: path, version, table, .. } = job;
        let plugin = plugin::open(path, Some(watch))?;
        Ok(match (job.plan.operation.is_one_sided(), table) {
            (false, None) => Self::Net(plugin.table(*version)?),
            (false, Some(symbol)) => Self::Net(plugin.hidden_table(symbol, *version)?),
            (true, None) => Self::Rma(plugin.rma_table(*version)?),
            (true, Some(symbol)) => Self::Rma(plugin.hidden_rma_table(symbol, *version)?),
        })
    }
}

/// Runs the job, from `init` to `finalize`.
fn run(
    table: Opened,
    link: &mut Link,
    watch: &'static Watch,
    job: Job,
    parent: &mut Parent,
) -> Result<(), Failure> {
    let Job { version, device, merge, role, pin, gpu, plan, table: symbol, trial, .. } = job;
    // The context stays this thread's until the process ends, as the memory does after a failure.
    let gpu = gpu.map(|number| Gpu::open(number).map(|gpu| &*Box::leak(Box::new(gpu)))).transpose()?;
    let of_init = |e: nccl_net_host::Error| of_init(e.into(), symbol.as_deref());
    let session = Session { link, watch, role, version, device, pin, gpu, dma_bufs: false, plan, trial };
    match table {
        Opened::Net(table) => {
            let net = Net::init(table, &Settings::default()).map_err(of_init)?;
            let mut ends = TwoSided { net, merge, session };
            ends.run(parent)?;
            ends.net.finalize()?;
        }
        Opened::Rma(rma) => OneSided::init(rma, session).map_err(of_init)?.run(parent)?,
    }
    link.send(&Message::Closed)?;
    expect_message!(link, Message::Closed => ());
    Ok(())
}

/// Adds what NCCL's InfiniBand transport lacks on softverbs, where its init fails without a word.
fn of_init(mut failure: Failure, symbol: Option<&str>) -> Failure {
    const INDEX: &str = "NCCL_IB_GID_INDEX";
    if symbol.is_some() && rails::is_softverbs() && std::env::var_os(INDEX).is_none() {
        failure.message += &format!(
            "; {INDEX} is not set: NCCL's transport then reads the type of each GID from /sys/class/infiniband, \
             which has none of softverbs. Set {INDEX}=3"
        );
    }
    failure
}

/// Sends the failure to both sides, and ends the process at once.
fn give_up(link: &mut Link, parent: &Parent, failure: Failure) -> ! {
    // Either connection may be closed; the other one still gets the failure.
    let _ = link.send(&Message::Failed(failure.clone()));
    let code = failure.kind.exit_code();
    let _ = parent.send(&Event::Failed(failure));
    // SAFETY: ends the process without running the plugin's destructors.
    unsafe { libc::_exit(i32::from(code)) }
}
