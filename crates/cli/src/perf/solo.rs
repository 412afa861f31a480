//! Both ends of a connection in one process and one thread, a message at a time or several: no waiting for another
//! process, so what is counted (work requests, completions, instructions) is the same in every run.

use std::{
    fs,
    path::PathBuf,
    rc::Rc,
    time::{Duration, Instant},
};

use clap::Args;
use serde::{Deserialize, Serialize};

use super::{
    rails,
    region::{Layout, Region},
};
use crate::failure::{Context, Failure, Kind};
use crate::plugin::{self, Comm, HANDLE_BYTES, Handle, Net, Recv, Request, watch::Watch};

/// The function in which messages move, as callgrind knows it.
pub(crate) const MOVES: &str = "mpib::perf::solo::Solo::group";
/// The name of the hidden command.
pub(crate) const COMMAND: &str = "perf-solo";

/// Longest that a step may take. A run under an instruction counter is some fifty times slower than without.
const LIMIT: Duration = Duration::from_secs(120);

/// What to run.
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
    /// Where the counts go; the plugin may print on stdout.
    #[arg(long)]
    pub(crate) output: PathBuf,
}

/// What the verbs were asked for while the messages moved, at both ends together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Counts {
    pub(crate) messages: u64,
    /// Work requests of send queues.
    pub(crate) work_requests: u64,
    /// Work requests of receive queues.
    pub(crate) receives: u64,
    /// Calls that posted to a send queue.
    pub(crate) doorbells: u64,
    /// Completions taken.
    pub(crate) completions: u64,
}

/// The command.
pub(crate) fn main(args: &SoloArgs) -> Result<(), Failure> {
    let watch = Rc::new(Watch::new()?);
    let mut net = plugin::open(&args.plugin, args.version, args.table.as_deref(), watch)?;
    net.init()?;
    let count = net.devices()?;
    let device = match &args.merge[..] {
        [] if count < 1 => {
            return Err(Failure::new(
                Kind::Load,
                format!("the plugin has no devices (devices gives {count})"),
            ));
        }
        [] => 0,
        several => net.make_vdevice(several)?,
    };
    // As NCCL does before it uses a device.
    net.properties(device)?;
    let solo = Solo::connect(&*net, device, args)?;
    let before = rails::verbs();
    for _ in 0..args.groups {
        solo.group(&*net, args.depth, args.optional)?;
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
    solo.close(&*net)?;
    net.finalize()?;
    let text = serde_json::to_string(&counts).tool("encode the counts")?;
    fs::write(&args.output, text).tool(format!("write {}", args.output.display()))
}

/// A connection to itself.
struct Solo {
    send: Comm,
    recv: Comm,
    out: Recv,
    back: Recv,
    _regions: [Region; 2],
}

impl Solo {
    fn connect(net: &dyn Net, device: i32, args: &SoloArgs) -> Result<Self, Failure> {
        let mut handle = Handle([0; HANDLE_BYTES]);
        let listen = net.listen(device, &mut handle)?;
        let (mut send, mut recv) = (None, None);
        let (send, recv) = until("the connection is not made", || {
            if send.is_none() {
                send = net.connect(device, &mut handle)?;
            }
            if recv.is_none() {
                recv = net.accept(listen)?;
            }
            Ok(send.zip(recv))
        })?;
        net.close_listen(listen)?;
        let layout = Layout { size: args.size, slots: args.depth };
        let regions = [Region::new(layout)?, Region::new(layout)?];
        let end = |comm: Comm, region: &Region| -> Result<Recv, Failure> {
            let mr = net.reg_mr(comm, region.addr(), layout.len())?;
            Ok(Recv { addr: region.addr(), len: args.size, tag: 1, mr })
        };
        Ok(Self {
            send,
            recv,
            out: end(send, &regions[0])?,
            back: end(recv, &regions[1])?,
            _regions: regions,
        })
    }

    /// `depth` messages at once. What is counted happens in here, so it keeps its name.
    #[inline(never)]
    fn group(&self, net: &dyn Net, depth: usize, optional: bool) -> Result<(), Failure> {
        let mut receives = Vec::with_capacity(depth);
        let mut sends = Vec::with_capacity(depth);
        for _ in 0..depth {
            receives
                .push(until("irecv takes no request", || net.irecv_as(self.recv, &[self.back], optional))?);
        }
        for _ in 0..depth {
            let Recv { addr, len, tag, mr } = self.out;
            sends.push(until("isend takes no request", || net.isend(self.send, addr, len, tag, mr))?);
        }
        for request in receives {
            wait(net, request)?;
            net.irecv_consumed(self.recv, 1, request)?;
        }
        sends.into_iter().try_for_each(|request| wait(net, request))
    }

    fn close(self, net: &dyn Net) -> Result<(), Failure> {
        net.dereg_mr(self.send, self.out.mr)?;
        net.dereg_mr(self.recv, self.back.mr)?;
        net.close_send(self.send)?;
        net.close_recv(self.recv)
    }
}

fn wait(net: &dyn Net, request: Request) -> Result<(), Failure> {
    let mut sizes = [0; 64];
    until("a request does not complete", || Ok(net.test(request, &mut sizes)?.then_some(())))
}

/// Polls until there is something. No look at the clock where the first poll succeeds: that would be counted.
fn until<T>(state: &str, mut poll: impl FnMut() -> Result<Option<T>, Failure>) -> Result<T, Failure> {
    let mut since = None;
    loop {
        if let Some(value) = poll()? {
            return Ok(value);
        }
        std::thread::yield_now();
        if since.get_or_insert_with(Instant::now).elapsed() > LIMIT {
            return Err(Failure::new(Kind::Timeout, format!("{state} for {LIMIT:?}")));
        }
    }
}
