//! Options of "collectives".

use std::path::PathBuf;

use clap::Args;
use softcuda::{
    DataType,
    rank::{Collective, Operator, Test},
};

use super::{
    plan::{Net, Plan, Protocol, Variant},
    suite::{Entry, counts},
    why::Situation,
};
use crate::failure::{Failure, Result};

/// Elements in the suite's tests with a slow rail: 12 MB of floats. A connection of NCCL has eight
/// buffers of 512 KiB; with more data, each is used again as soon as the plugin reports it as sent.
const LONG: usize = 3_000_017;
/// Collectives of those tests: a root that sends all it has, reductions, and pairs.
const STREAMS: [Collective; 3] = [Collective::AllReduce, Collective::Broadcast, Collective::SendRecv];
/// Repetitions of those tests with two slow rails. A whole message that was reported as sent too
/// early is wrong only if its buffer is used again before it has left.
const REPEATED: u32 = 2;
/// Collectives of the suite behind one-sided transfers, in the same communicator.
const AFTER_ONE_SIDED: [Collective; 2] = [Collective::AllReduce, Collective::SendRecv];
/// Elements in the suite's tests of types and operators.
const KINDS_COUNTS: [usize; 1] = [30_011];

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct CollectivesArgs {
    /// Releases of matrix.toml; all if none is named.
    pub(super) releases: Vec<String>,
    /// One release for each table version
    #[arg(long, conflicts_with = "releases")]
    pub(super) short: bool,
    /// Instead of the communicators of the other options, a suite: default, fused and MPIB profile,
    /// slow rails, two hosts of two GPUs, GPUDirect with flushes and registered buffers, windows and
    /// one-sided transfers, a killed rank, and links that go down
    #[arg(long, conflicts_with_all = ["net", "ranks", "hosts", "register", "window", "one_sided", "crossed", "slow", "slow_rails", "killed", "fault"])]
    pub(super) suite: bool,
    /// How the plugin presents the two simulated adapters, or NCCL's sockets instead of the plugin
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Net::Mpib])]
    net: Vec<Net>,
    /// Protocols of NCCL's kernels, each with its own communicator; NCCL's choice if the option is
    /// absent
    #[arg(long, value_enum, value_delimiter = ',', conflicts_with = "suite")]
    protocols: Vec<Protocol>,
    #[command(flatten)]
    variant: Variant,
    #[command(flatten)]
    wanted: Wanted,
    /// Instead of checks, measure this plugin, NCCL's InfiniBand transport (with --tree) and sockets
    /// on the same rails, and write a table to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["suite", "net"])]
    pub(super) figures: Option<PathBuf>,
    /// Instead of checks, stage these situations between two hosts and compare what "mpib why" says
    /// with the cause; all of them without a name
    #[arg(
        long, value_enum, value_name = "NAME", value_delimiter = ',', num_args = 0.., require_equals = true,
        conflicts_with_all = ["suite", "net", "figures"]
    )]
    pub(super) why: Option<Vec<Situation>>,
    /// Instead of checks, measure all-reduces with this setting and without it, and print how much
    /// longer they take
    #[arg(
        long, value_name = "NAME=VALUE", value_parser = setting,
        conflicts_with_all = ["suite", "net", "figures", "why"]
    )]
    pub(super) cost_of: Option<(String, String)>,
    /// Alternating rounds of --figures and --cost-of
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
    /// The release's libnccl.so.2, instead of the one in the cache
    #[arg(long, value_name = "FILE")]
    pub(super) library: Option<PathBuf>,
    /// Run on this machine's GPUs instead of softcuda. Ranks of different hosts share the first ones.
    /// Exit code 77: the machine has too few
    #[arg(long, conflicts_with_all = ["suite", "gpudirect", "dma_buf", "vmm"])]
    pub(super) gpu: bool,
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
            library: None,
            gpu: false,
            build: "build".into(),
            tree: None,
            set: Vec::new(),
            silence,
            launches: false,
            logs: None,
        }
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

fn setting(text: &str) -> std::result::Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Reads a name of an enumeration of the rank program.
pub(super) fn named<T: serde::de::DeserializeOwned>(what: &str, name: &str) -> Result<T> {
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
        let protocols: Vec<_> = match self.protocols.is_empty() {
            true => vec![None],
            false => self.protocols.iter().copied().map(Some).collect(),
        };
        let plan = |net, protocol| {
            let variant = Variant { protocol, ..self.variant.clone() };
            Plan { net, variant, tests: tests.clone(), rates: None }
        };
        let of_net = |net| protocols.iter().map(move |protocol| plan(net, *protocol));
        Ok(self.net.iter().copied().flat_map(of_net).collect())
    }

    fn suite_plans(&self) -> Result<Vec<Plan>> {
        let plan = |entry: &Entry| {
            let (net, variant) = entry.communicator();
            Ok(Plan { net, tests: self.suite_tests(*entry, &variant)?, variant, rates: None })
        };
        // It takes seconds, and the short form must stay under three minutes.
        let left_out = |entry: &Entry| self.short && *entry == Entry::SlowRails;
        Entry::SUITE.iter().filter(|entry| !left_out(entry)).map(plan).collect()
    }

    fn suite_tests(&self, entry: Entry, variant: &Variant) -> Result<Vec<Test>> {
        let wanted = &self.wanted;
        let counts = counts(variant, &wanted.counts);
        match entry {
            Entry::SlowRail | Entry::SlowRails => {
                let mut tests = wanted.tests(variant.ranks, &[LONG])?;
                tests.retain(|test| STREAMS.contains(&test.collective));
                let least = if entry == Entry::SlowRails { REPEATED } else { 0 };
                tests.iter_mut().for_each(|test| test.times = test.times.max(least));
                Ok(tests)
            }
            _ if !variant.one_sided.is_empty() => {
                let mut tests = wanted.tests(variant.ranks, counts)?;
                tests.retain(|test| AFTER_ONE_SIDED.contains(&test.collective));
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
