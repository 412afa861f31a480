//! Options of "collectives", and the communicators that they stand for.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use softcuda::rank::{Collective, Element, Operator, Test};

use crate::failure::{Failure, Result};

/// Options of a run.
#[derive(Debug, Args)]
pub(crate) struct CollectivesArgs {
    /// Releases of matrix.toml; all if none is named.
    pub(super) releases: Vec<String>,
    /// One release for each table version
    #[arg(long, conflicts_with = "releases")]
    pub(super) short: bool,
    /// Ranks of each communicator
    #[arg(long, default_value_t = 2)]
    pub(super) ranks: u32,
    /// Hosts of the ranks, for instance "a a b b"; without it, each rank has a host of its own
    #[arg(long, value_delimiter = ' ')]
    pub(super) hosts: Vec<String>,
    /// How the plugin presents the two simulated adapters, or NCCL's sockets instead of the plugin
    #[arg(long, value_enum, value_delimiter = ',', default_values_t = [Net::Mpib])]
    pub(super) net: Vec<Net>,
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
    /// Let this rank die in the middle of the last test
    #[arg(long, value_name = "RANK")]
    killed: Option<u32>,
    /// Register the buffers with NCCL (ncclCommRegister)
    #[arg(long)]
    register: bool,
    /// Let NICs reach GPU memory
    #[arg(long)]
    pub(super) gpudirect: bool,
    /// Let NCCL use virtual memory management (cuMem)
    #[arg(long)]
    pub(super) vmm: bool,
    /// Let GPU memory be exported as a DMA-BUF
    #[arg(long)]
    pub(super) dma_buf: bool,
    /// Compute capability times ten; below 90, NCCL flushes received data
    #[arg(long, default_value_t = 90)]
    pub(super) capability: u32,
    /// Settings of NCCL, the plugin or softverbs, as NAME=VALUE
    #[arg(long, value_name = "NAME=VALUE", value_parser = setting)]
    pub(super) set: Vec<(String, String)>,
    /// Seconds without progress after which the ranks are killed
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub(super) silence: u64,
    /// Copy NCCL's log of a communicator that fails to this folder
    #[arg(long, value_name = "FOLDER")]
    pub(super) logs: Option<PathBuf>,
    /// The folder in which "make build" put the plugin and softverbs
    #[arg(long, value_name = "FOLDER", default_value = "build")]
    pub(super) build: PathBuf,
}

/// The network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Net {
    /// One device with both rails (`MPIB_HCA_SOUT` and `MPIB_HCA_SUP`).
    Mpib,
    /// No setting of the plugin.
    Default,
    /// NCCL fuses the two devices.
    Fused,
    /// NCCL's own sockets, the control: what fails there too is not the plugin's fault.
    Socket,
}

/// One communicator.
#[derive(Debug, Clone)]
pub(super) struct Plan {
    pub(super) name: String,
    pub(super) net: Net,
    pub(super) tests: Vec<Test>,
    pub(super) register: bool,
    pub(super) killed: Option<u32>,
}

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
        let hosts = self.hosts.len();
        if self.ranks == 0 || (hosts > 0 && hosts != self.ranks as usize) {
            return Err(Failure::usage(format!("{} ranks and {hosts} hosts", self.ranks)));
        }
        if let Some(rank) = self.killed.filter(|rank| *rank >= self.ranks) {
            return Err(Failure::usage(format!("there is no rank {rank} to kill")));
        }
        let tests = self.all_tests()?;
        let plan = |net: &Net| Plan {
            name: format!("{net:?}, {} ranks", self.ranks).to_lowercase(),
            net: *net,
            tests: tests.clone(),
            register: self.register,
            killed: self.killed,
        };
        Ok(self.net.iter().map(plan).collect())
    }

    fn all_tests(&self) -> Result<Vec<Test>> {
        let collectives: Vec<Collective> = match &self.tests {
            None => Collective::ALL.to_vec(),
            Some(names) if names.iter().all(|name| name == "none") => Vec::new(),
            Some(names) => names.iter().map(|n| named("collective", n)).collect::<Result<_>>()?,
        };
        let elements: Vec<Element> = self.elements.iter().map(|n| named("type", n)).collect::<Result<_>>()?;
        let operators: Vec<Operator> =
            self.operators.iter().map(|n| named("operator", n)).collect::<Result<_>>()?;
        if operators.contains(&Operator::Avg) && !self.ranks.is_power_of_two() {
            return Err(Failure::usage("an average of floats is exact only for 2, 4, 8 … ranks"));
        }
        let mut tests = Vec::new();
        for collective in collectives {
            for &element in &elements {
                for &count in &self.counts {
                    let one = if collective.reduces() { &operators[..] } else { &operators[..1] };
                    let test = |operator| Test { collective, element, operator, count, times: self.times };
                    tests.extend(one.iter().copied().map(test));
                }
            }
        }
        Ok(tests)
    }

    /// Returns the network that NCCL must report.
    pub(super) fn expected_network(&self, plan: &Plan) -> &'static str {
        if plan.net == Net::Socket { "Socket" } else { "MPIB" }
    }
}
