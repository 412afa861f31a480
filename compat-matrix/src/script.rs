//! The job of a process that loads a core, and the account that it writes.

use std::{collections::BTreeMap, fmt, path::PathBuf};

use mpib::device::Device;
use nccl_net_host::Properties;
use serde::{Deserialize, Serialize};

use crate::{facts::Facts, failure::Failure, seen::Seen};

/// A step. Communicators are numbered in the order of their opening.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Step {
    /// Gives a new communicator its network, as the core does at its creation.
    Open,
    /// Reads all devices through the communicator's table.
    Describe(usize),
    /// Reads a device with a wrong number through the communicator's table.
    Misuse(usize),
    /// Merges devices through the communicator's table.
    Fuse(usize, Vec<i32>),
    /// Moves data to or from the other process through the communicator's table, from listen to the
    /// last close.
    Exchange(usize, Plan),
    /// Removes the communicator's network, as the core does at its end.
    Close(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Open => f.write_str("open a communicator"),
            Self::Describe(comm) => write!(f, "read the devices of communicator {comm}"),
            Self::Misuse(comm) => write!(f, "read device -1 of communicator {comm}"),
            Self::Fuse(comm, devices) => write!(f, "make one of devices {devices:?} of communicator {comm}"),
            Self::Exchange(comm, _) => write!(f, "move data on communicator {comm}"),
            Self::Close(comm) => write!(f, "close communicator {comm}"),
        }
    }
}

/// The data to move on one connection.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Device index of the plugin.
    pub(crate) device: i32,
    /// Bytes of a message, and receives in an irecv.
    pub(crate) sizes: Vec<(usize, usize)>,
    /// Groups in flight for each entry of `sizes`.
    pub(crate) depth: usize,
}

impl Plan {
    /// Returns every kind of size, alone and in the largest group.
    pub(crate) fn whole() -> Self {
        let groups = [1, 129, 4097, 65_536, 1 << 20].map(|size| (size, 8));
        let mut plan = Self::alone();
        plan.sizes.extend(groups);
        plan
    }

    /// Every kind of size, one receive per group.
    pub(crate) fn alone() -> Self {
        let alone = [1, 127, 128, 129, 4096, 65_537, 1 << 20, 8 << 20].map(|size| (size, 1));
        Self { device: 0, sizes: alone.into(), depth: 4 }
    }

    /// Returns enough data to check a connection on both rails.
    pub(crate) fn brief() -> Self {
        Self { device: 0, sizes: vec![(1, 1), (1 << 20, 1), (4097, 8)], depth: 2 }
    }

    /// Returns one message of more than 1 GiB.
    pub(crate) fn large() -> Self {
        Self { device: 0, sizes: vec![((1 << 30) + 4097, 1)], depth: 1 }
    }
}

/// The two ends of an exchange.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
pub(crate) enum Role {
    Sender,
    Receiver,
}

/// The job of a process.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Job {
    pub(crate) library: PathBuf,
    pub(crate) facts: Facts,
    /// Version of the core's own table.
    pub(crate) table: u32,
    pub(crate) opens: Vec<String>,
    pub(crate) closes: Vec<String>,
    pub(crate) steps: Vec<Step>,
    /// The role, and the descriptor of the socket to the other process.
    pub(crate) peer: Option<(Role, i32)>,
}

/// A function of the core and the `ncclResult_t` that it returned.
pub(crate) type Called = (String, i32);

/// The result of a step.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum StepResult {
    Opened {
        called: Vec<Called>,
        /// The name of the communicator's network, if it has one.
        net: Option<String>,
        /// The address of its table.
        table: usize,
    },
    Described(Vec<Described>),
    /// The plugin refused the call.
    Refused,
    /// The index of the merged device.
    Fused(i32),
    Exchanged(Tally),
    Closed(Vec<Called>),
}

/// A device as the core reads it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Described {
    pub(crate) device: Device,
    /// `maxComms`
    pub(crate) max_comms: i32,
    /// `regIsGlobal`, from v8 on.
    pub(crate) reg_is_global: Option<bool>,
}

impl From<Properties> for Described {
    fn from(properties: Properties) -> Self {
        let Properties { max_comms, reg_is_global, .. } = properties;
        Self { device: properties.into(), max_comms, reg_is_global }
    }
}

/// The data moved on one connection.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Tally {
    pub(crate) messages: usize,
    pub(crate) bytes: u64,
    /// Bytes that each rail of this process sent meanwhile.
    pub(crate) rails: BTreeMap<String, u64>,
}

/// Everything that a process reports.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Account {
    /// `ncclGetVersion`
    pub(crate) version: i32,
    /// One entry for each completed step.
    pub(crate) results: Vec<StepResult>,
    pub(crate) seen: Vec<Seen>,
    /// Why the process stopped.
    pub(crate) failure: Option<Failure>,
}

impl Account {
    /// Returns for each `Open` the functions' results and the network's name.
    pub(crate) fn opened(&self) -> Vec<(&[Called], Option<&str>)> {
        let opened = |result: &'_ StepResult| matches!(result, StepResult::Opened { .. });
        let all = self.results.iter().filter(|result| opened(result));
        all.map(|result| match result {
            StepResult::Opened { called, net, .. } => (&called[..], net.as_deref()),
            _ => (&[][..], None),
        })
        .collect()
    }

    /// Returns the plugin's tables that the core looked up, in order: version and address (0 if
    /// there is none).
    pub(crate) fn tables(&self) -> Vec<(u32, usize)> {
        let version = |symbol: &str| symbol.strip_prefix("ncclNetPlugin_v")?.parse().ok();
        let looked = |seen: &Seen| match seen {
            Seen::LookedUp { symbol, address } => Some((version(symbol)?, *address)),
            _ => None,
        };
        self.seen.iter().filter_map(looked).collect()
    }
}
