//! Options of "collectives", and the communicators that they stand for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use softcuda::{
    DataType,
    rank::{Collective, Operator, Test},
};

use super::{fault::Fault, suite::Entry, watch};
use crate::{
    failure::{Failure, Result},
    matrix::{AfterDeath, Release},
};

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct CollectivesArgs {
    /// Releases of matrix.toml; all if none is named.
    pub(super) releases: Vec<String>,
    /// One release for each table version
    #[arg(long, conflicts_with = "releases")]
    pub(super) short: bool,
    /// Instead of the communicators of the other options, a suite: default, fused and MPIB profile,
    /// a slow rail, two hosts of two GPUs, GPUDirect with flushes and registered buffers, a killed
    /// rank, and links that go down
    #[arg(long, conflicts_with_all = ["net", "ranks", "hosts", "register", "slow", "killed", "fault"])]
    pub(super) suite: bool,
    /// How the plugin presents the two simulated adapters, or NCCL's sockets instead of the plugin
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Net::Mpib])]
    net: Vec<Net>,
    #[command(flatten)]
    variant: Variant,
    #[command(flatten)]
    wanted: Wanted,
    /// Instead of checks, measure this plugin, NCCL's InfiniBand transport (with --tree) and sockets
    /// on the same rails, and write a table to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suite", "net"])]
    pub(super) figures: Option<PathBuf>,
    /// Alternating rounds of --figures
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) rounds: u32,
    /// MB/s of a rail of --figures; the faster one of unequal rails has three times as much
    #[arg(long, value_name = "MB/S", default_value_t = 200)]
    pub(super) unit: u32,
    #[command(flatten)]
    pub(super) common: Common,
    /// Remove each release's library after its communicators (otherwise it stays in the cache)
    #[arg(long)]
    pub(super) drop: bool,
    /// Do not fail if a release cannot be fetched
    #[arg(long)]
    pub(super) allow_missing: bool,
}

/// What does not depend on the communicator.
#[derive(Debug, Clone, Args)]
pub(crate) struct Common {
    /// The wheels of this major version of CUDA; 13 from 2.27 on, in a cache beside the other one
    #[arg(long, default_value_t = 12, value_parser = clap::value_parser!(u32).range(12..=13))]
    pub(super) cuda: u32,
    /// The folder in which "make build" put the plugin and softverbs
    #[arg(long, value_name = "FOLDER", default_value = "build")]
    pub(super) build: PathBuf,
    /// A folder for the adapters' PCI devices, to which /sys/class/infiniband links
    #[arg(long, value_name = "FOLDER")]
    pub(super) tree: Option<PathBuf>,
    /// Settings of NCCL, the plugin or softverbs, as NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(super) set: Vec<(String, String)>,
    /// Seconds without progress after which the ranks are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(super) silence: u64,
    /// Let the ranks write each launch of a kernel to their stderr
    #[arg(long)]
    pub(super) launches: bool,
    /// Copy NCCL's logs and the ranks' stderr of a communicator that fails to this folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) logs: Option<PathBuf>,
}

impl Common {
    /// Returns the defaults of the options, with this limit.
    pub(crate) fn with_silence(silence: u64) -> Self {
        Self {
            cuda: 12,
            build: "build".into(),
            tree: None,
            set: Vec::new(),
            silence,
            launches: false,
            logs: None,
        }
    }
}

/// The ranks of a communicator, their hosts and GPUs.
#[derive(Debug, Clone, Args)]
pub(super) struct Variant {
    /// Ranks of each communicator
    #[arg(long, default_value_t = 2)]
    pub(super) ranks: u32,
    /// Hosts of the ranks, for instance "a a b b"; without it, each rank has another host
    #[arg(long, value_delimiter = ' ')]
    pub(super) hosts: Vec<String>,
    /// Let this rank die in the middle of the last test
    #[arg(long, value_name = "RANK")]
    pub(super) killed: Option<u32>,
    /// Let rails fail while the tests run. The tests are repeated until the faults are over
    #[arg(long, value_enum, conflicts_with = "killed")]
    pub(super) fault: Option<Fault>,
    /// Faults one after the other, each on another rail
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) strikes: u32,
    /// Let NCCL use this number of channels
    #[arg(long, value_name = "N")]
    pub(super) channels: Option<u32>,
    /// Query NCCL's RAS while the ranks run (from 2.24 on)
    #[arg(long, conflicts_with_all = ["killed", "fault"])]
    pub(super) ras: bool,
    /// Let NCCL's profiler count the plugin's events (from 2.26 on)
    #[arg(long, conflicts_with_all = ["killed", "fault"])]
    pub(super) profiler: bool,
    /// Register the buffers with NCCL (ncclCommRegister, from 2.24 on)
    #[arg(long)]
    pub(super) register: bool,
    /// Let the second rail be slow: its data arrives later than that of the first
    #[arg(long)]
    pub(super) slow: bool,
    /// Let NICs reach GPU memory
    #[arg(long)]
    pub(super) gpudirect: bool,
    /// Let NCCL use virtual memory management (cuMem)
    #[arg(long)]
    pub(super) vmm: bool,
    /// Let GPU memory be exported as a DMA-BUF, and let the adapters register it
    #[arg(long)]
    pub(super) dma_buf: bool,
    /// Compute capability times ten; below 90, NCCL flushes received data
    #[arg(long, default_value_t = 90)]
    pub(super) capability: u32,
}

impl Variant {
    /// Two ranks on two hosts.
    pub(super) const PLAIN: Self = Self {
        ranks: 2,
        hosts: Vec::new(),
        killed: None,
        fault: None,
        strikes: 1,
        channels: None,
        ras: false,
        profiler: false,
        register: false,
        slow: false,
        gpudirect: false,
        vmm: false,
        dma_buf: false,
        capability: 90,
    };

    /// Returns the host of each rank.
    pub(super) fn hosts(&self) -> Vec<String> {
        match self.hosts.is_empty() {
            true => (0..self.ranks).map(|rank| format!("host{rank}")).collect(),
            false => self.hosts.clone(),
        }
    }

    /// Returns whether the ranks must get an asynchronous error.
    pub(super) fn ends_in_error(&self) -> bool {
        self.killed.is_some() || self.fault == Some(Fault::NoRail)
    }

    fn check(&self) -> Result<()> {
        let hosts = self.hosts.len();
        if self.ranks == 0 || (hosts > 0 && hosts != self.ranks as usize) {
            return Err(Failure::usage(format!("{} ranks and {hosts} hosts", self.ranks)));
        }
        if let Some(rank) = self.killed.filter(|rank| *rank >= self.ranks) {
            return Err(Failure::usage(format!("there is no rank {rank} to kill")));
        }
        if self.killed.is_some() && self.ranks == 1 {
            return Err(Failure::usage("a killed rank needs another one, which gets the error"));
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let killed = self.killed.map(|rank| format!("rank {rank} killed"));
        let switches = [
            (!self.hosts.is_empty()).then(|| format!("hosts {}", self.hosts.join(" "))),
            self.gpudirect.then(|| "GPUDirect".into()),
            (self.capability < 90).then(|| "flush".into()),
            self.dma_buf.then(|| "DMA-BUF".into()),
            self.vmm.then(|| "VMM".into()),
            self.register.then(|| "registered".into()),
            self.slow.then(|| "slow rail".into()),
            self.channels.map(|channels| format!("{channels} channels")),
            self.ras.then(|| "RAS".into()),
            self.profiler.then(|| "profiler".into()),
            killed,
            self.fault.map(|fault| fault.describe().into()),
            (self.strikes > 1).then(|| format!("{} times", self.strikes)),
        ];
        let all = [Some(format!("{} ranks", self.ranks))].into_iter().chain(switches);
        all.flatten().collect::<Vec<_>>().join(", ")
    }
}

/// The tests of a communicator.
#[derive(Debug, Args)]
struct Wanted {
    /// Collectives, with commas, or none; all if the option is absent
    #[arg(long, value_delimiter = ',')]
    tests: Option<Vec<String>>,
    /// Types of elements, with commas
    #[arg(long, value_delimiter = ',', default_value = "f32")]
    elements: Vec<String>,
    /// Operators of reductions, with commas
    #[arg(long, value_delimiter = ',', default_value = "sum")]
    operators: Vec<String>,
    /// Elements of each rank, with commas
    #[arg(long, value_delimiter = ',', default_value = "1,1000003")]
    counts: Vec<usize>,
    /// Repetitions of each test
    #[arg(long, default_value_t = 2)]
    times: u32,
}

/// The network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub(crate) enum Net {
    /// One device with both rails (`MPIB_HCA_SOUT` and `MPIB_HCA_SUP`).
    Mpib,
    /// No setting of the plugin.
    Default,
    /// The two devices are functions of one card, which NCCL fuses from 2.24 on.
    Fused,
    /// NCCL's own InfiniBand transport, with the adapters of `Fused`. It finds them only below
    /// /sys/class/infiniband (scripts/bench-collectives.sh).
    Ib,
    /// NCCL's own sockets, the control: what fails there too is not the plugin's fault.
    Socket,
}

/// One communicator.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    pub(super) net: Net,
    pub(super) variant: Variant,
    pub(super) tests: Vec<Test>,
    /// MB/s of each rail if the tests are timed.
    pub(super) rates: Option<[u32; 2]>,
}

impl Plan {
    /// Returns what the communicator is, in words.
    pub(super) fn name(&self) -> String {
        format!("{}, {}", format!("{:?}", self.net).to_lowercase(), self.variant.describe())
    }

    /// Returns whether NCCL uses this plugin.
    pub(super) fn uses_plugin(&self) -> bool {
        self.network() == PLUGIN
    }

    /// Returns whether the plugin must flush received data in every rank: NCCL requests it for what
    /// arrives in GPU memory by the protocol Simple, which it uses for large tests.
    pub(super) fn flushes(&self) -> bool {
        let large = |test: &Test| test.count * test.element.size() >= FLUSHED;
        let variant = &self.variant;
        let receives = variant.gpudirect && variant.capability < 90 && variant.ranks > 1;
        receives && self.uses_plugin() && !variant.ends_in_error() && self.tests.iter().any(large)
    }

    /// Returns the same communicator over NCCL's sockets: what fails there too is the core's fault.
    /// `None` if sockets cannot run it.
    pub(crate) fn control(&self) -> Option<Self> {
        if self.net == Net::Socket || self.variant.fault.is_some() {
            return None;
        }
        // The network sees host memory only.
        let variant = Variant { gpudirect: false, dma_buf: false, ..self.variant.clone() };
        Some(Self { net: Net::Socket, variant, ..self.clone() })
    }

    /// Returns the network that NCCL must report.
    pub(super) fn network(&self) -> &'static str {
        match self.net {
            Net::Socket => "Socket",
            Net::Ib => "IB",
            Net::Mpib | Net::Default | Net::Fused => PLUGIN,
        }
    }

    /// Returns why a release cannot run the communicator, if so.
    pub(crate) fn unfit(&self, release: &Release) -> Option<&'static str> {
        match release.after_death {
            _ if self.variant.register && release.table < REGISTERS => {
                Some("the release does not register user buffers by DMA-BUF")
            }
            _ if self.variant.ras && !watch::has_ras(release) => Some("the release has no RAS"),
            _ if !self.variant.ends_in_error() => None,
            AfterDeath::Error => None,
            AfterDeath::NoError => Some("the release drops errors of its network"),
            AfterDeath::NoAbort => Some("ncclCommAbort does not return after an error"),
        }
    }
}

/// The plugin's name in NCCL's log.
const PLUGIN: &str = "MPIB";
/// Bytes of a rank from which on NCCL uses the protocol Simple.
const FLUSHED: usize = 1 << 20;
/// Elements in the suite's tests with faults: 4 MB of floats, in many messages.
const LARGE: usize = 1_000_003;
/// Elements in the suite's tests with a slow rail: 12 MB of floats. A connection of NCCL has eight
/// buffers of 512 KiB; with more data, each is used again as soon as the plugin reports it as sent.
const LONG: usize = 3_000_017;
/// Collectives of those tests: a root that sends all it has, reductions, and pairs.
const STREAMS: [Collective; 3] = [Collective::AllReduce, Collective::Broadcast, Collective::SendRecv];
/// Elements in the suite's tests of types and operators.
const KINDS_COUNTS: [usize; 1] = [30_011];
/// Table of the first release that registers user buffers by DMA-BUF (2.24). From 2.19 on there is
/// `ncclCommRegister`, which passes addresses only. Without the module nvidia-peermem no adapter can
/// register them: 2.22 and 2.23 log "on 0 net devices", older ones log nothing, and all copy.
const REGISTERS: u32 = 9;

fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads a name of an enumeration of the rank program.
fn named<T: serde::de::DeserializeOwned>(what: &str, name: &str) -> Result<T> {
    serde_json::from_value(serde_json::Value::String(name.to_owned()))
        .map_err(|e| Failure::usage(format!("{what} {name:?}: {e}")))
}

impl CollectivesArgs {
    /// Returns the communicators of the options.
    pub(super) fn plans(&self) -> Result<Vec<Plan>> {
        if self.suite {
            return self.suite_plans();
        }
        self.variant.check()?;
        if self.variant.fault.is_some() && self.net.contains(&Net::Socket) {
            return Err(Failure::usage("faults strike rails, which sockets do not use"));
        }
        let tests = self.wanted.tests(self.variant.ranks, &self.wanted.counts)?;
        let plan =
            |net: &Net| Plan { net: *net, variant: self.variant.clone(), tests: tests.clone(), rates: None };
        Ok(self.net.iter().map(plan).collect())
    }

    fn suite_plans(&self) -> Result<Vec<Plan>> {
        let plan = |entry: &Entry| {
            let (net, variant) = entry.communicator();
            Ok(Plan { net, tests: self.suite_tests(*entry, &variant)?, variant, rates: None })
        };
        Entry::SUITE.iter().map(plan).collect()
    }

    fn suite_tests(&self, entry: Entry, variant: &Variant) -> Result<Vec<Test>> {
        let wanted = &self.wanted;
        let counts = if variant.fault.is_some() { &[LARGE][..] } else { &wanted.counts };
        match entry {
            Entry::SlowRail => {
                let mut tests = wanted.tests(variant.ranks, &[LONG])?;
                tests.retain(|test| STREAMS.contains(&test.collective));
                Ok(tests)
            }
            Entry::Mpib => {
                let plain = wanted.tests(variant.ranks, counts)?;
                Ok([plain, wanted.of_all_kinds().tests(variant.ranks, &KINDS_COUNTS)?].concat())
            }
            _ => wanted.tests(variant.ranks, counts),
        }
    }
}

impl Wanted {
    /// Returns the same collectives with every operator and with types of each size, each twice.
    fn of_all_kinds(&self) -> Self {
        let all = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
        Self {
            tests: self.tests.clone(),
            elements: all(&["u8", "f16", "bf16", "i32", "u64", "f64"]),
            operators: all(&["sum", "prod", "max", "min", "avg"]),
            counts: Vec::new(),
            times: 2,
        }
    }

    fn tests(&self, ranks: u32, counts: &[usize]) -> Result<Vec<Test>> {
        let collectives: Vec<Collective> = match &self.tests {
            None => Collective::ALL.to_vec(),
            Some(names) if names.iter().all(|name| name == "none") => Vec::new(),
            Some(names) => names.iter().map(|n| named("collective", n)).collect::<Result<_>>()?,
        };
        let elements: Vec<DataType> =
            self.elements.iter().map(|n| named("type", n)).collect::<Result<_>>()?;
        let operators: Vec<Operator> =
            self.operators.iter().map(|n| named("operator", n)).collect::<Result<_>>()?;
        if operators.contains(&Operator::Avg) && !ranks.is_power_of_two() {
            return Err(Failure::usage("an average of floats is exact only for 2, 4, 8 … ranks"));
        }
        let mut tests = Vec::new();
        for collective in collectives {
            for &element in &elements {
                for &count in counts {
                    let used = if collective.reduces() { &operators[..] } else { &operators[..1] };
                    let test = |operator| Test { collective, element, operator, count, times: self.times };
                    tests.extend(used.iter().copied().map(test));
                }
            }
        }
        Ok(tests)
    }
}
