//! Both ends of a connection in one process and one thread. Nothing waits for another process: the
//! counts (work requests, completions, instructions) are the same in every run.

use std::{fs, mem::ManuallyDrop, path::PathBuf, time::Duration};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    rails,
    region::{Layout, Region},
};
use crate::failure::{Context, Failure, Kind};
use crate::plugin;
use nccl_net_host::{Mr, Net, Recv, RecvComm, SendComm, Settings, until};

/// The function that moves messages, by the name that callgrind uses.
pub(crate) const MOVES: &str = "mpib::perf::solo::Solo::group";
/// The name of the hidden command.
pub(crate) const COMMAND: &str = "perf-solo";

/// How long a step may take. An instruction counter makes a run some fifty times slower.
const LIMIT: Duration = Duration::from_secs(120);

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
    #[arg(long)]
    pub(crate) depth: usize,
    /// Groups of `depth` messages.
    #[arg(long)]
    pub(crate) groups: u64,
    /// Receives are optional.
    #[arg(long)]
    pub(crate) optional: bool,
    /// Where to write the counts; the plugin may print on stdout.
    #[arg(long)]
    pub(crate) output: PathBuf,
}

/// Verbs calls of both ends while the messages moved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
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
    let solo = Solo::connect(&net, device, args)?;
    let before = rails::verbs();
    for _ in 0..args.groups {
        solo.group(args.depth, args.optional)?;
    }
    let messages = args.groups * args.depth as u64;
    let counts = rails::verbs().zip(before).map(|(now, then)| {
        let new = now.with(&then, u64::wrapping_sub);
        Counts {
            messages,
            work_requests: new.writes + new.writes_with_imm + new.sends + new.sends_with_imm + new.reads,
            receives: new.receives,
            doorbells: new.doorbells,
            completions: new.send_cqes + new.recv_cqes,
        }
    });
    solo.close()?;
    net.finalize()?;
    let text = serde_json::to_string(&counts).tool("encode the counts")?;
    fs::write(&args.output, text).tool(format!("write {}", args.output.display()))
}

/// A connection to itself, with memory at both ends.
struct Solo {
    send: SendComm,
    recv: RecvComm,
    from: Mr,
    to: Mr,
    size: usize,
    /// Stay mapped after a failure: the plugin may still access them until the process ends.
    regions: [ManuallyDrop<Region>; 2],
}

impl Solo {
    fn connect(net: &Net, device: i32, args: &SoloArgs) -> Result<Self, Failure> {
        let (send, recv) = net.connect_to_itself(device, LIMIT)?;
        let layout = Layout { size: args.size, slots: args.depth };
        let regions = [Region::new(layout)?, Region::new(layout)?].map(ManuallyDrop::new);
        // SAFETY: `close` unmaps the memory after deregMr, and nothing else does; nothing here
        // accesses it.
        let from = unsafe { send.reg_mr(regions[0].addr(), layout.len()) }?;
        // SAFETY: as above.
        let to = unsafe { recv.reg_mr(regions[1].addr(), layout.len()) }?;
        Ok(Self { send, recv, from, to, size: args.size, regions })
    }

    /// Moves `depth` messages at once. callgrind counts inside this function, by its name.
    #[inline(never)]
    fn group(&self, depth: usize, optional: bool) -> Result<(), Failure> {
        let mut receives = Vec::with_capacity(depth);
        let mut sends = Vec::with_capacity(depth);
        let group = [Recv { mr: &self.to, offset: 0, len: self.size, tag: 1 }];
        for _ in 0..depth {
            receives.push(until("irecv accepts no receive", LIMIT, || match optional {
                true => self.recv.irecv_optional(&group),
                false => self.recv.irecv(&group),
            })?);
        }
        for _ in 0..depth {
            sends.push(until("isend accepts no send", LIMIT, || {
                self.send.isend(&self.from, 0, self.size, 1)
            })?);
        }
        for mut request in receives {
            self.recv.wait(&mut request, LIMIT)?;
            self.recv.irecv_consumed(&request)?;
        }
        for mut request in sends {
            self.send.wait(&mut request, LIMIT)?;
        }
        Ok(())
    }

    fn close(self) -> Result<(), Failure> {
        self.send.dereg_mr(self.from)?;
        self.recv.dereg_mr(self.to)?;
        self.send.close()?;
        self.recv.close()?;
        drop(self.regions.map(ManuallyDrop::into_inner));
        Ok(())
    }
}
