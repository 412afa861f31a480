//! Both ends of a connection in one process and one thread. Nothing waits for another process: the
//! counts (work requests, completions, instructions) are the same in every run.
//!
//! With `--null` softverbs completes each work request inside its post: the time that is left is
//! the plugin's.

use std::{
    fs,
    mem::ManuallyDrop,
    num::NonZeroUsize,
    path::PathBuf,
    time::{Duration, Instant},
};

use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};

use mpib::failure::{Context, Failure, Kind};
use mpib::region::{Layout, Region};
use mpib::{plugin, rails};
use nccl_net_host::{Mr, Net, RecvComm, SendComm, Settings, Table};

use crate::thin::{LIMIT, MAX_DEPTH, Outcome, Thin};

/// The name of the command.
pub(crate) const COMMAND: &str = "solo";
/// Groups of messages before the time is taken: the plugin has used all its requests and slots.
const WARM_UP: u64 = 300;

/// What is counted and timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Workload {
    /// Messages in groups.
    Messages,
    /// Calls of `test` that find nothing.
    EmptyTest,
    /// Calls of `isend` before the receive is posted.
    EarlyIsend,
    /// Calls of `regMr` and `deregMr` for memory that is registered.
    RegisterAgain,
}

impl Workload {
    /// Returns the name as an option has it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Messages => "messages",
            Self::EmptyTest => "empty-test",
            Self::EarlyIsend => "early-isend",
            Self::RegisterAgain => "register-again",
        }
    }

    /// Returns the function that runs it, by the name that callgrind uses.
    pub(crate) const fn function(self) -> &'static str {
        match self {
            Self::Messages => "mpib_bench::thin::Thin::group",
            Self::EmptyTest => "mpib_bench::thin::Thin::empty_test",
            Self::EarlyIsend => "mpib_bench::thin::Thin::early_isend",
            Self::RegisterAgain => "mpib_bench::thin::Thin::register_again",
        }
    }
}

/// Options of the run.
#[derive(Debug, Clone, Args)]
pub(crate) struct SoloArgs {
    #[arg(long)]
    pub(crate) plugin: PathBuf,
    #[arg(long)]
    pub(crate) table: Option<String>,
    #[arg(long)]
    pub(crate) version: u32,
    #[arg(long, value_delimiter = ',')]
    pub(crate) merge: Vec<i32>,
    #[arg(long)]
    pub(crate) size: usize,
    #[arg(long, value_enum, default_value = "messages")]
    pub(crate) workload: Workload,
    /// Messages of a group.
    #[arg(long, default_value = "1", value_parser = depth)]
    pub(crate) depth: usize,
    /// Connections, which take turns: one group on each.
    #[arg(long, default_value = "1")]
    pub(crate) connections: NonZeroUsize,
    /// Groups of `depth` messages on each connection, or calls.
    #[arg(long)]
    pub(crate) groups: u64,
    /// Repetitions of all of these. The fastest one is reported.
    #[arg(long, default_value_t = 1)]
    pub(crate) repeat: u32,
    /// Time each message, while a second connection always has `depth` messages of this size in
    /// flight.
    #[arg(long, value_name = "SIZE", conflicts_with_all = ["workload", "connections", "repeat", "null"])]
    pub(crate) bulk: Option<usize>,
    /// Receives are optional.
    #[arg(long)]
    pub(crate) optional: bool,
    /// Softverbs completes each work request inside its post.
    #[arg(long)]
    pub(crate) null: bool,
    /// Where to write the counts; the plugin may print on stdout.
    #[arg(long)]
    pub(crate) output: PathBuf,
}

fn depth(text: &str) -> Result<usize, String> {
    let depth = text.parse().ok().filter(|n| (1..=MAX_DEPTH).contains(n));
    depth.ok_or_else(|| format!("expected 1 to {MAX_DEPTH}"))
}

/// What a run reports.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Counts {
    /// Messages, or calls.
    pub(crate) messages: u64,
    /// Nanoseconds of one of them, in the fastest repetition; with `--bulk`, the median.
    pub(crate) nanoseconds: f64,
    /// With `--bulk`, the nearest rank.
    pub(crate) p99: Option<f64>,
    /// Verbs calls of both ends; `None` if the plugin's libibverbs is not softverbs, or with
    /// `--null`.
    pub(crate) verbs: Option<Verbs>,
}

/// Verbs calls of both ends while the messages moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Verbs {
    /// Work requests of send queues.
    pub(crate) work_requests: u64,
    /// Work requests of receive queues.
    pub(crate) receives: u64,
    /// Calls that post to a send queue.
    pub(crate) doorbells: u64,
    /// Polled completions.
    pub(crate) completions: u64,
}

/// Runs the command.
pub(crate) fn main(args: &SoloArgs) -> Result<(), Failure> {
    let table = plugin::open_table(&args.plugin, args.version, args.table.as_deref(), None)?;
    let net = Net::init(table, &Settings::default())?;
    let count = net.devices()?;
    let device = match &args.merge[..] {
        [] if count < 1 => {
            return Err(Failure::new(
                Kind::Load,
                format!("the plugin has no devices (devices returned {count})"),
            ));
        }
        [] => 0,
        several => net.make_vdevice(several)?,
    };
    // NCCL reads the properties before it uses a device.
    net.properties(device)?;
    let sizes = match args.bulk {
        Some(bulk) => vec![args.size, bulk],
        None => vec![args.size; args.connections.get()],
    };
    let connect = |size| Solo::connect(&net, device, size);
    let all: Vec<Solo> = sizes.into_iter().map(connect).collect::<Result<_, _>>()?;
    if args.null {
        // SAFETY: both ends of all connections and their memory are here.
        unsafe { rails::complete_at_once() }?;
    }
    let counts = run(&all, table, args)?;
    all.into_iter().try_for_each(Solo::close)?;
    net.finalize()?;
    let text = serde_json::to_string(&counts).tool("encode the counts")?;
    fs::write(&args.output, text).tool(format!("write {}", args.output.display()))
}

/// A connection to itself, with memory at both ends.
struct Solo {
    /// Bytes of a message.
    size: usize,
    send: SendComm,
    recv: RecvComm,
    from: Mr,
    to: Mr,
    /// Stay mapped after a failure: the plugin may still access them until the process ends.
    regions: [ManuallyDrop<Region>; 2],
}

impl Solo {
    fn connect(net: &Net, device: i32, size: usize) -> Result<Self, Failure> {
        let (send, recv) = net.connect_to_itself(device, LIMIT)?;
        let layout = Layout { size, slots: 1 };
        let mut regions = [Region::new(layout)?, Region::new(layout)?].map(ManuallyDrop::new);
        for (place, value) in regions[0].slot(0).iter_mut().zip((1..=u8::MAX).cycle()) {
            *place = value;
        }
        // SAFETY: `close` unmaps the memory after deregMr, and nothing else does; until then
        // nothing here accesses it.
        let from = unsafe { send.reg_mr(regions[0].addr(), layout.len()) }?;
        // SAFETY: as above.
        let to = unsafe { recv.reg_mr(regions[1].addr(), layout.len()) }?;
        Ok(Self { size, send, recv, from, to, regions })
    }

    /// Returns the calls of the connection.
    ///
    /// # Safety
    /// The table is that of the connection, which is not closed while the result is used.
    unsafe fn thin(&self, table: Table, args: &SoloArgs) -> Thin {
        let ends = ((&self.send, &self.from), (&self.recv, &self.to));
        // SAFETY: the caller's promise.
        unsafe { Thin::new(table, ends.0, ends.1, self.size, args.optional) }
    }

    /// Closes the connection, and checks that the last message arrived.
    fn close(mut self) -> Result<(), Failure> {
        self.send.dereg_mr(self.from)?;
        self.recv.dereg_mr(self.to)?;
        self.send.close()?;
        self.recv.close()?;
        let [from, to] = &mut self.regions;
        if from.slot(0) != to.slot(0) {
            return Err(Failure::new(Kind::Data, "the last message differs from what was sent".to_owned()));
        }
        drop(self.regions.map(ManuallyDrop::into_inner));
        Ok(())
    }
}

/// Runs the workload on all connections.
fn run(all: &[Solo], table: Table, args: &SoloArgs) -> Result<Counts, Failure> {
    // SAFETY: connections of this table, which are closed later.
    let thins: Vec<Thin> = all.iter().map(|solo| unsafe { solo.thin(table, args) }).collect();
    if let [small, bulk] = &thins[..]
        && args.bulk.is_some()
    {
        return beside_bulk(small, bulk, args);
    }
    let each = match args.workload {
        Workload::Messages => thins.len() as u64 * args.depth as u64,
        Workload::EmptyTest | Workload::EarlyIsend | Workload::RegisterAgain => 1,
    };
    let messages = args.groups * each;
    if args.repeat > 1 {
        let warm_up = |thin: &Thin| (0..WARM_UP).try_for_each(|_| thin.group(args.depth));
        thins.iter().try_for_each(warm_up).map_err(|f| *f)?;
    }
    let before = rails::verbs().filter(|_| !args.null);
    let mut best = Duration::MAX;
    for _ in 0..args.repeat {
        best = best.min(repetition(&thins, args).map_err(|f| *f)?);
    }
    let verbs = rails::verbs().zip(before).map(|(now, then)| {
        let new = now.with(&then, u64::wrapping_sub);
        Verbs {
            work_requests: new.writes + new.writes_with_imm + new.sends + new.sends_with_imm + new.reads,
            receives: new.receives,
            doorbells: new.doorbells,
            completions: new.send_cqes + new.recv_cqes,
        }
    });
    let nanoseconds = best.as_secs_f64() * 1e9 / messages.max(1) as f64;
    Ok(Counts { messages, nanoseconds, p99: None, verbs })
}

/// Times the messages of one connection beside those of another one.
fn beside_bulk(small: &Thin, bulk: &Thin, args: &SoloArgs) -> Result<Counts, Failure> {
    let mut times = small.beside(bulk, args.depth, args.groups).map_err(|f| *f)?;
    times.sort_unstable();
    let rank = |percent: usize| {
        let at = (times.len() * percent).div_ceil(100).max(1) - 1;
        times.get(at).map(|time| time.as_secs_f64() * 1e9)
    };
    Ok(Counts { messages: args.groups, nanoseconds: rank(50).unwrap_or(0.0), p99: rank(99), verbs: None })
}

/// Runs the workload once: messages on all connections, calls on the first one. Returns how long it
/// took. At least one message has moved at its end.
fn repetition(thins: &[Thin], args: &SoloArgs) -> Outcome<Duration> {
    let thin = &thins[0];
    match args.workload {
        Workload::Messages => {
            let group = |thin: &Thin| thin.group(args.depth);
            timed(|| (0..args.groups).try_for_each(|_| thins.iter().try_for_each(group)))
        }
        Workload::EmptyTest => {
            let receive = thin.irecv()?;
            let took = timed(|| thin.empty_test(receive, args.groups))?;
            thin.meet(receive)?;
            Ok(took)
        }
        Workload::EarlyIsend => {
            let took = timed(|| thin.early_isend(args.groups))?;
            thin.meet(thin.irecv()?)?;
            Ok(took)
        }
        Workload::RegisterAgain => {
            let took = timed(|| thin.register_again(args.groups))?;
            thin.meet(thin.irecv()?)?;
            Ok(took)
        }
    }
}

/// Returns how long calls take.
fn timed(calls: impl FnOnce() -> Outcome<()>) -> Outcome<Duration> {
    let begin = Instant::now();
    calls()?;
    Ok(begin.elapsed())
}
