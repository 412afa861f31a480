//! Many processes that connect to each other at the same moment, as the ranks of a job do: how long each
//! connection takes, beside the median of all.

use std::{
    env,
    io::{BufRead, BufReader, Write, stdin, stdout},
    path::PathBuf,
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::atomic::{AtomicBool, Ordering::Relaxed},
    thread,
    time::{Duration, Instant},
};

use clap::Args;

use mpib::failure::{Context, Failure, Kind};
use mpib::output::{
    self,
    table::{Table, left, right},
};
use mpib::plugin;
use mpib::process::{kill, on_softverbs};
use nccl_net_host::{Handle, Listener, Net, RecvComm, SendComm, Settings};

/// The name of a rank's command.
pub(crate) const RANK: &str = "storm-rank";
/// How long the connections of a rank may take.
const LIMIT: Duration = Duration::from_secs(120);
/// Begins each line of a rank: the plugin may print on stdout, too.
const MARK: &str = "rank: ";

/// Lets many processes connect to each other at once, without and with a busy loop on each core, and
/// prints how long the connections take
#[derive(Debug, Clone, Args)]
pub(crate) struct StormArgs {
    /// Processes, each on another adapter
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(2..=128))]
    processes: u16,

    /// How often each is done
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u16).range(1..=1000))]
    rounds: u16,

    /// The plugin's file [default: libnccl-net-mpib.so next to this program]
    #[arg(long, value_name = "PATH")]
    plugin: Option<PathBuf>,

    /// The folder with softverbs' libibverbs.so.1 [default: softverbs next to this
    /// program]
    #[arg(long, value_name = "DIR")]
    softverbs: Option<PathBuf>,
}

/// Options of one process.
#[derive(Debug, Clone, Args)]
pub(crate) struct RankArgs {
    #[arg(long)]
    plugin: PathBuf,
    #[arg(long)]
    rank: usize,
    #[arg(long)]
    ranks: usize,
}

/// Runs the command.
pub(crate) fn main(args: &StormArgs) -> Result<(), Failure> {
    let cores = thread::available_parallelism().tool("count the cores")?.get();
    let ranks = usize::from(args.processes);
    let each = ranks * (ranks - 1);
    let columns = ["median", "99 %", "longest", "longest / median"].map(right);
    let mut table = Table::new([left("ms")].into_iter().chain(columns));
    for (name, busy) in [("quiet", 0), ("a busy loop on each core", cores)] {
        for _ in 0..args.rounds {
            let mut times = beside(busy, || storm(args, ranks))?;
            times.sort_unstable();
            let at = |percent: usize| times[(times.len() - 1) * percent / 100].as_secs_f64() * 1e3;
            let figures = [at(50), at(99), at(100), at(100) / at(50)].map(|figure| format!("{figure:.1}"));
            table.row([name.to_owned()].into_iter().chain(figures));
        }
    }
    table.note(format!("{ranks} processes on {cores} cores, {each} connections at once"));
    output::print(&table.text())
}

/// Runs `f` beside so many busy loops.
pub(crate) fn beside<T>(loops: usize, f: impl FnOnce() -> T) -> T {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        for _ in 0..loops {
            scope.spawn(|| {
                while !done.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let result = f();
        done.store(true, Relaxed);
        result
    })
}

/// A process, which is killed unless it has ended.
struct Rank {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Drop for Rank {
    fn drop(&mut self) {
        kill(&mut self.child);
    }
}

impl Rank {
    fn start(args: &StormArgs, rank: usize, ranks: usize) -> Result<Self, Failure> {
        let program = env::current_exe().tool("find this program")?;
        let near = |name: &str| program.with_file_name(name);
        let plugin = args.plugin.clone().unwrap_or_else(|| near("libnccl-net-mpib.so"));
        let softverbs = args.softverbs.clone().unwrap_or_else(|| near("softverbs"));
        let mut command = Command::new(&program);
        on_softverbs(&mut command, &softverbs, &[]);
        command
            .env("SOFTVERBS_FABRIC", format!("storm-{}", std::process::id()))
            .env("SOFTVERBS_DEVICES", format!("rail0:addr=10.18.0.{}/24", rank + 1))
            .arg(RANK)
            .arg("--plugin")
            .arg(plugin)
            .args(["--rank", &rank.to_string(), "--ranks", &ranks.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut child = command.spawn().tool("start a process")?;
        let pipes = child.stdin.take().zip(child.stdout.take());
        let (to, from) =
            pipes.ok_or_else(|| Failure::new(Kind::Tool, "a process without pipes".to_owned()))?;
        Ok(Self { child, to, from: BufReader::new(from) })
    }

    /// Returns the words of the next line.
    fn read(&mut self) -> Result<Vec<String>, Failure> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.from.read_line(&mut line).tool("read from a process")? == 0 {
                return Err(Failure::new(Kind::Call, "a process has ended early".to_owned()));
            }
            if let Some(words) = line.strip_prefix(MARK) {
                return Ok(words.split_whitespace().map(str::to_owned).collect());
            }
        }
    }

    fn write(&mut self, words: &[&str]) -> Result<(), Failure> {
        writeln!(self.to, "{}", words.join(" ")).tool("write to a process")
    }
}

/// Returns how long each connection took.
fn storm(args: &StormArgs, ranks: usize) -> Result<Vec<Duration>, Failure> {
    let mut all = (0..ranks).map(|rank| Rank::start(args, rank, ranks)).collect::<Result<Vec<_>, _>>()?;
    let handles = all.iter_mut().map(Rank::read).collect::<Result<Vec<_>, _>>()?;
    for (i, rank) in all.iter_mut().enumerate() {
        let to: Vec<&str> = handles.iter().map(|of| &*of[i]).collect();
        rank.write(&to)?;
    }
    let mut times = Vec::new();
    for rank in &mut all {
        for word in rank.read()? {
            times.push(Duration::from_nanos(word.parse().tool("read a time")?));
        }
    }
    // No end closes before all are connected.
    all.iter_mut().try_for_each(|rank| rank.write(&["close"]))?;
    for rank in &mut all {
        rank.read()?;
    }
    Ok(times)
}

/// Runs one process: listens for each other one, and connects to all at once.
pub(crate) fn rank(args: &RankArgs) -> Result<(), Failure> {
    let table = plugin::open_table(&args.plugin, 12, None, None)?;
    let net = Net::init(table, &Settings::default())?;
    net.properties(0)?;
    let listeners = (0..args.ranks).map(|_| net.listen(0)).collect::<Result<Vec<_>, _>>()?;
    say(listeners.iter().map(|listener| hex(listener.handle())))?;
    let handles = hear()?.iter().map(|word| unhex(word)).collect::<Option<Vec<_>>>();
    let handles = handles.filter(|handles| handles.len() == args.ranks);
    let handles =
        handles.ok_or_else(|| Failure::new(Kind::Tool, "handles that cannot be read".to_owned()))?;
    let others = (1..args.ranks).map(|step| (args.rank + step) % args.ranks);
    let mut peers: Vec<_> = others.map(|i| Peer::new(&listeners[i], &handles[i])).collect();
    let began = Instant::now();
    while peers.iter().any(|peer| peer.took.is_none() || peer.recv.is_none()) {
        for peer in &mut peers {
            peer.poll(&net)?;
        }
        if began.elapsed() > LIMIT {
            return Err(Failure::new(Kind::Timeout, format!("the connections took over {LIMIT:?}")));
        }
        thread::yield_now();
    }
    say(peers.iter().filter_map(|peer| peer.took).map(|took| took.as_nanos().to_string()))?;
    hear()?;
    for peer in peers {
        peer.send.map_or(Ok(()), SendComm::close)?;
        peer.recv.map_or(Ok(()), RecvComm::close)?;
    }
    listeners.into_iter().try_for_each(Listener::close)?;
    net.finalize()?;
    say(["closed".to_owned()])
}

/// Both connections with another process.
struct Peer<'a> {
    listener: &'a Listener,
    handle: Handle,
    began: Option<Instant>,
    /// How long `connect` took.
    took: Option<Duration>,
    send: Option<SendComm>,
    recv: Option<RecvComm>,
}

impl<'a> Peer<'a> {
    fn new(listener: &'a Listener, handle: &Handle) -> Self {
        Self { listener, handle: handle.clone(), began: None, took: None, send: None, recv: None }
    }

    fn poll(&mut self, net: &Net) -> Result<(), Failure> {
        let began = *self.began.get_or_insert_with(Instant::now);
        if self.send.is_none() {
            self.send = net.connect(0, &mut self.handle)?;
            self.took = self.send.as_ref().map(|_| began.elapsed());
        }
        if self.recv.is_none() {
            self.recv = self.listener.accept()?;
        }
        Ok(())
    }
}

/// Prints a line for the process that has started this one.
fn say(words: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let words: Vec<String> = words.into_iter().collect();
    let mut out = stdout().lock();
    writeln!(out, "{MARK}{}", words.join(" ")).and_then(|()| out.flush()).tool("write to stdout")
}

/// Returns the words of its next line.
fn hear() -> Result<Vec<String>, Failure> {
    let mut line = String::new();
    match stdin().read_line(&mut line).tool("read from stdin")? {
        0 => Err(Failure::new(Kind::Tool, "stdin has ended".to_owned())),
        _ => Ok(line.split_whitespace().map(str::to_owned).collect()),
    }
}

fn hex(handle: &Handle) -> String {
    handle.0.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(word: &str) -> Option<Handle> {
    let mut handle = Handle::default();
    for (i, byte) in handle.0.iter_mut().enumerate() {
        *byte = u8::from_str_radix(word.get(2 * i..2 * i + 2)?, 16).ok()?;
    }
    Some(handle)
}
