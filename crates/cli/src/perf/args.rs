//! The options of `mpib perf`.

use std::{ops::RangeInclusive, path::PathBuf, str::FromStr, time::Duration};

use clap::Args;

use super::{
    pin::Pins,
    plan::{Fault, Operation, Plan},
    sizes::Sizes,
};
use crate::failure::{EXIT_CODES, Failure, Kind};
use crate::quantity::{bytes, time};
use nccl_net_host::{MAX_GROUP, RMA_VERSIONS};

/// The default port of `--listen` and `--connect`.
pub(crate) const PORT: u16 = 18518;

/// Versions of the tables that can be driven.
pub(crate) const TABLES: RangeInclusive<u32> = 6..=12;

/// More connections would show nothing new.
pub(super) const MOST_CONNECTIONS: i64 = 10_000;
/// More handles at a time may not fit into the sockets between the two ends.
pub(super) const MOST_AT_ONCE: i64 = 64;

const PLUGIN: &str = "Plugin and device";
const LOAD: &str = "Messages";
const MACHINES: &str = "Two machines";
const OUTPUT: &str = "Output";

/// Moves data through any NCCL network plugin, between two processes or two machines, and checks
/// every byte
///
/// The plugin is called through its C table as NCCL's core calls it. Without --listen or
/// --connect, this command starts and stops both ends.
#[derive(Debug, Clone, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct PerfArgs {
    /// The plugin's file [default: libnccl-net-mpib.so next to mpib or in ../lib]
    #[arg(help_heading = PLUGIN, long, value_name = "PATH")]
    pub(crate) plugin: Option<PathBuf>,

    /// Tables to drive: v8 or 8, several with commas, or all [default: the newest that the plugin
    /// exports]
    #[arg(help_heading = PLUGIN, long, value_name = "VERSIONS", value_parser = parse_abi, default_value = "newest", hide_default_value = true)]
    pub(crate) abi: Abi,

    /// Use the table at this data symbol of the file, exported or not, such as ncclNetIb of
    /// libnccl.so.2. The symbol has no version: name it with --abi. With --listen and --connect each
    /// end has its own
    #[arg(help_heading = PLUGIN, long, value_name = "SYMBOL")]
    pub(crate) table: Option<String>,

    #[command(flatten)]
    pub(crate) operation: OperationArgs,

    /// Message sizes in bytes: a list (8,4K,1MiB), a range (8..64M), or both. K, M and G are powers
    /// of 1024, as KiB, MiB and GiB; kB, MB and GB are powers of 1000
    #[arg(help_heading = LOAD, long, value_name = "SIZES", default_value = "8..64M")]
    pub(crate) sizes: Sizes,

    /// Factor between the sizes of a range
    #[arg(help_heading = LOAD, long, value_name = "N", default_value_t = 4, value_parser = clap::value_parser!(u32).range(2..))]
    pub(crate) factor: u32,

    /// Measure about this long for each size, filling and checking included. A number is in seconds;
    /// units such as 500ms or 2m are possible
    #[arg(help_heading = LOAD, long, value_name = "TIME", default_value = "0.5", value_parser = time)]
    pub(crate) time: Duration,

    /// Measure exactly this many messages for each size, instead of --time
    #[arg(help_heading = LOAD, long, value_name = "N", conflicts_with = "time", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) iterations: Option<u64>,

    /// Groups in flight. NCCL keeps 8; a plugin must accept 32, or 8 with a v6 table
    #[arg(help_heading = LOAD, long, value_name = "N", default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..=32))]
    pub(crate) depth: u32,

    /// Receives in each irecv, at most the plugin's maxRecvs
    #[arg(help_heading = LOAD, long, value_name = "N", default_value_t = 1,
          value_parser = clap::value_parser!(u32).range(1..=MAX_GROUP as i64))]
    pub(crate) receives: u32,

    /// Post each receive with NCCL's hint that its completion is optional, as NCCL does for its
    /// protocols LL and LL128: the plugin may complete it before the data has arrived. Tables
    /// before v9 get no hint
    #[arg(help_heading = LOAD, long, conflicts_with_all = ["receives", "ping_pong"])]
    pub(crate) optional: bool,

    /// Both ends send and receive at the same time
    #[arg(help_heading = LOAD, long)]
    pub(crate) bidirectional: bool,

    /// One message at a time, there and back (--depth has no effect); the times are half round trips
    #[arg(help_heading = LOAD, long, conflicts_with_all = ["bidirectional", "receives"])]
    pub(crate) ping_pong: bool,

    /// First make this many further connections, one after another, and report their rate and
    /// memory
    #[arg(help_heading = LOAD, long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=MOST_CONNECTIONS))]
    pub(crate) connections: u32,

    /// Make this many of the further connections at a time
    #[arg(help_heading = LOAD, long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=MOST_AT_ONCE))]
    pub(crate) at_once: u32,

    /// Device index, at both ends
    #[arg(help_heading = PLUGIN, long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(i32).range(0..))]
    pub(crate) device: i32,

    /// Device index of the other end, if it differs (not with --listen or --connect: set it there)
    #[arg(help_heading = PLUGIN, long, value_name = "N", value_parser = clap::value_parser!(i32).range(0..),
          conflicts_with_all = ["listen", "connect"])]
    pub(crate) peer_device: Option<i32>,

    /// Merge these devices with the plugin's makeVDevice (v9 and later), and use the result at both
    /// ends; with --listen and --connect at this end
    #[arg(help_heading = PLUGIN, long, value_name = "N,N", value_delimiter = ',', value_parser = clap::value_parser!(i32).range(0..),
          conflicts_with_all = ["device", "peer_device"])]
    pub(crate) merge: Vec<i32>,

    /// Break a rail in the middle of the transfer and repair it, for example sup:link=down, in the
    /// syntax of SOFTVERBS_FAULTS: shows throughput, longest stall and bytes by rail before, while
    /// and after. Needs softverbs
    #[arg(help_heading = LOAD, long, value_name = "DEVICE:FAULT", value_parser = parse_fault,
          conflicts_with_all = ["ping_pong", "listen", "connect", "iterations"])]
    pub(crate) fault: Option<Fault>,

    /// Do not check the received bytes (sizes are still checked)
    #[arg(help_heading = LOAD, long)]
    pub(crate) no_check: bool,

    /// Most memory for messages at each end, and where it is: 64M, cuda (GPU 0), or cuda:1,64M. Fewer
    /// messages are in flight if they would not fit, but always one. With --listen and --connect
    /// each end chooses its GPU
    #[arg(help_heading = LOAD, long, value_name = "BYTES|cuda[:N]", default_value = "256M")]
    pub(crate) memory: Memory,

    /// Give up when nothing completes for this long
    #[arg(help_heading = LOAD, long, value_name = "TIME", default_value = "30", value_parser = time)]
    pub(crate) timeout: Duration,

    /// Serve one run of another machine's --connect, then end
    #[arg(help_heading = MACHINES, long, value_name = "ADDR[:PORT]", num_args = 0..=1, default_missing_value = "", conflicts_with = "connect")]
    pub(crate) listen: Option<String>,

    /// Run against the machine on which --listen waits. This end decides the messages; each end
    /// chooses its plugin, table, devices, processors and GPU
    #[arg(help_heading = MACHINES, long, value_name = "HOST[:PORT]")]
    pub(crate) connect: Option<String>,

    /// With --connect: try again for so long while nobody listens there
    #[arg(help_heading = MACHINES, long, value_name = "TIME", value_parser = time, requires = "connect")]
    pub(crate) wait: Option<Duration>,

    /// Use these processors, such as 0-3,8, or those next to the device, at both ends; after a colon
    /// those of the other end on this machine (2:4). With --listen and --connect each end has its own
    #[arg(help_heading = PLUGIN, long, value_name = "CPUS|device[:CPUS|device]")]
    pub(crate) pin: Option<Pins>,

    /// Print one JSON document instead of the table
    #[arg(help_heading = OUTPUT, long)]
    pub(crate) json: bool,

    /// Print the JSON schema of that document
    #[arg(help_heading = OUTPUT, long, exclusive = true)]
    pub(crate) schema: bool,

    /// Print comma-separated values instead of the table, one line for each size
    #[arg(help_heading = OUTPUT, long, conflicts_with_all = ["json", "fault"])]
    pub(crate) csv: bool,

    /// Also show the plugin's log lines of level INFO (WARN lines are always shown)
    #[arg(help_heading = OUTPUT, long, short)]
    pub(crate) verbose: bool,
}

/// What only messages have.
const OF_MESSAGES: [&str; 6] = ["receives", "optional", "connections", "at_once", "merge", "fault"];

/// One-sided traffic instead of messages, at most one kind.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct OperationArgs {
    /// Put data into a window of the other end, each put with a signal that the other end polls, by
    /// the plugin's RMA table. With --ping-pong the other end answers each. With --listen and
    /// --connect at both ends
    #[arg(help_heading = LOAD, long, conflicts_with_all = OF_MESSAGES)]
    put: bool,

    /// Send signals without data, otherwise as --put
    #[arg(help_heading = LOAD, long, conflicts_with_all = OF_MESSAGES, conflicts_with_all = ["put", "sizes", "factor"])]
    signal: bool,

    /// Get data from a window of the other end, otherwise as --put, without signals
    #[arg(help_heading = LOAD, long, conflicts_with_all = OF_MESSAGES, conflicts_with_all = ["put", "signal", "ping_pong"])]
    get: bool,
}

impl OperationArgs {
    /// Returns what was chosen; messages if nothing was.
    pub(crate) const fn chosen(self) -> Operation {
        match self {
            Self { put: true, .. } => Operation::Put,
            Self { signal: true, .. } => Operation::Signal,
            Self { get: true, .. } => Operation::Get,
            _ => Operation::Messages,
        }
    }
}

/// The tables to drive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Abi {
    Newest,
    All,
    These(Vec<u32>),
}

/// Parses `v8` or `8`: the version of a network table or of an RMA table.
pub fn one_abi(word: &str) -> Result<u32, String> {
    let number = word.strip_prefix('v').unwrap_or(word).parse().ok();
    number.filter(|v| TABLES.contains(v) || RMA_VERSIONS.contains(v)).ok_or_else(|| {
        let [rma_oldest, .., rma_newest] = RMA_VERSIONS;
        format!(
            "{word:?}: expected v{} to v{}, or v{rma_oldest} to v{rma_newest} with --put, --signal or --get",
            TABLES.start(),
            TABLES.end()
        )
    })
}

fn parse_abi(text: &str) -> Result<Abi, String> {
    match text {
        "newest" => return Ok(Abi::Newest),
        "all" => return Ok(Abi::All),
        _ => {}
    }
    let versions = text.split(',').map(|word| one_abi(word.trim())).collect::<Result<_, _>>();
    versions.map(Abi::These).map_err(|e| format!("{e}; several with commas, all or newest"))
}

impl Abi {
    /// Returns the only version that was named, for a table whose symbol has no version.
    pub(crate) fn single(&self, symbol: &str) -> Result<u32, Failure> {
        match self {
            Self::These(versions) if versions.len() == 1 => Ok(versions[0]),
            _ => {
                let text = format!(
                    "--table {symbol} needs --abi with the one version that this table has, as --abi v12"
                );
                Err(Failure::new(Kind::Usage, text))
            }
        }
    }

    /// Returns the versions to run, in order, from the exported ones (newest first).
    pub(crate) fn choose(&self, exported: &[u32], whose: &str) -> Result<Vec<u32>, Failure> {
        match self {
            Self::Newest => Ok(exported.iter().copied().take(1).collect()),
            Self::All => Ok(exported.to_vec()),
            Self::These(wanted) => match wanted.iter().find(|v| !exported.contains(v)) {
                None => Ok(wanted.clone()),
                Some(missing) => {
                    let found: Vec<_> = exported.iter().map(|v| format!("v{v}")).collect();
                    let message = format!("{whose} exports no table v{missing}; found {}", found.join(", "));
                    Err(Failure::new(Kind::Load, message))
                }
            },
        }
    }
}

fn parse_fault(text: &str) -> Result<Fault, String> {
    match text.split_once(':') {
        Some((device, action)) if !device.is_empty() && !action.is_empty() => {
            Ok(Fault { device: device.into(), action: action.into() })
        }
        _ => Err(format!("{text:?}: expected DEVICE:FAULT, for example sup:link=down")),
    }
}

/// The memory for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Memory {
    pub(crate) most: usize,
    /// The GPU; `None`: memory of the host.
    pub(crate) gpu: Option<i32>,
}

impl FromStr for Memory {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut memory = Self { most: 256 << 20, gpu: None };
        for word in text.split(',') {
            let gpu = match word.strip_prefix("cuda") {
                Some("") => Some(0),
                Some(number) => number.strip_prefix(':').and_then(|n| n.parse().ok()).filter(|n| *n >= 0),
                None => {
                    memory.most = bytes(word).map_err(|e| format!("{e}, or cuda, or cuda:N"))?;
                    continue;
                }
            };
            memory.gpu =
                Some(gpu.ok_or_else(|| format!("{word:?}: expected cuda, or cuda:N with a number"))?);
        }
        if memory.most == 0 {
            return Err("expected memory for at least one message".into());
        }
        Ok(memory)
    }
}

impl PerfArgs {
    pub(crate) fn plan(&self) -> Result<Plan, Failure> {
        let operation = self.operation.chosen();
        let sizes = match operation {
            Operation::Signal => vec![0],
            _ => self.sizes.expand(self.factor)?,
        };
        Ok(Plan {
            operation,
            sizes,
            time: self.time,
            iterations: self.iterations,
            depth: self.depth as usize,
            receives: self.receives as usize,
            optional: self.optional,
            bidirectional: self.bidirectional,
            ping_pong: self.ping_pong,
            connections: self.connections as usize,
            at_once: self.at_once as usize,
            check: !self.no_check,
            memory: self.memory.most,
            timeout: self.timeout,
            fault: self.fault.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tables_are_chosen_from_what_is_exported() {
        let exported = [11, 8, 6];
        let choose = |text: &str| parse_abi(text).unwrap().choose(&exported, "the plugin");
        assert_eq!(choose("newest"), Ok(vec![11]));
        assert_eq!(choose("all"), Ok(vec![11, 8, 6]));
        assert_eq!(choose("6,v8"), Ok(vec![6, 8]));
        let failure = choose("v9").unwrap_err();
        assert_eq!(failure.message, "the plugin exports no table v9; found v11, v8, v6");
        assert!(parse_abi("v5").unwrap_err().contains("expected v6 to v12"));
    }

    #[test]
    fn memory_is_of_the_host_or_of_a_gpu() {
        let memory = |text: &str| text.parse::<Memory>().map(|memory| (memory.most, memory.gpu));
        assert_eq!(memory("64M"), Ok((64 << 20, None)));
        assert_eq!(memory("cuda"), Ok((256 << 20, Some(0))));
        assert_eq!(memory("cuda:1,64K"), Ok((64 << 10, Some(1))));
        for bad in ["", "0", "cuda:", "cuda:x", "cuda1", "cuda:-1", "gpu"] {
            assert!(memory(bad).unwrap_err().contains("expected"), "{bad:?}");
        }
    }
}
