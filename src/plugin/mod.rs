//! The plugin behind NCCL's tables: a few lines for each call.

mod devices;
mod profile;

use std::borrow::Borrow;
use std::ffi::{CStr, c_int};
use std::fmt;
use std::mem::ManuallyDrop;
use std::sync::Arc;

use mpib_proto::{Mode, PROTOCOL_VERSION, Release};
use nccl_net_versions::{
    Buffer, CommConfig, DmaBuf, Failure, HandleBuf, Init, Logger, MemKind, NetPlugin, Profiler,
    ProfilerHandle, Properties, RecvBuffer, Refusal, Sizes, Tagged, VDevs, in_callback,
};
use parking_lot::RwLock;

use crate::async_events::EventThread;
use crate::config::Config;
use crate::connect::local_route::not_inline;
use crate::connect::{Listening, PendingConnects};
use crate::control::{Options, interfaces, reachable};
use crate::device::{self, Hold};
use crate::error::{Error, Result};
use crate::process::Process;
use crate::stats::Traffic;
use crate::transport::{Mr, RecvComm, Request, SendComm, Settings};
use crate::{agent, fork_guard, limits, log, nccl};
pub(crate) use devices::describe;
pub(crate) use devices::device;
use devices::{latest, make_vdevice, properties, unmerged};

/// The first table with `finalize`.
const FIRST_WITH_FINALIZE: u32 = 11;

/// The network table that releases with an RMA table use.
const RMA_BEGAN_WITH: u32 = 12;

/// A table of NCCL's, by its version.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Table {
    Net(u32),
    Rma(u32),
}

impl Table {
    /// Returns what its connections are for.
    fn traffic(self) -> Traffic {
        match self {
            Self::Net(_) => Traffic::Messages,
            Self::Rma(_) => Traffic::Windows,
        }
    }
}

impl fmt::Display for Table {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Net(version) => write!(f, "table v{version}"),
            Self::Rma(version) => write!(f, "RMA table v{version}"),
        }
    }
}

/// The implementation of [`NetPlugin`].
#[derive(Debug)]
pub struct Plugin;

/// A network context, as `init` makes it.
#[derive(Debug)]
pub struct Context {
    /// The profiler is replaced when a table without contexts calls `init` again.
    settings: RwLock<Arc<Settings>>,
    pending: PendingConnects,
    _events: Arc<EventThread>,
    _devices: Hold,
    /// Dropped last: what ends may be logged.
    _log: log::Hold,
}

impl Context {
    pub(crate) fn settings(&self) -> Arc<Settings> {
        Arc::clone(&self.settings.read())
    }
}

/// Logs a failure once, where it leaves the plugin.
#[inline]
pub(crate) fn logged<T, E: Borrow<Error>>(call: &'static str, result: Result<T, E>) -> Result<T, Failure> {
    result.map_err(|e| reported(call, e.borrow()))
}

#[cold]
fn reported(call: &'static str, e: &Error) -> Failure {
    if matches!(e, Error::Closed { .. }) && !in_callback() {
        // Another thread may have found why, and NCCL prints the last line that it has.
        log::flush();
    }
    e.report(call)
}

/// Reports a call in a forked child.
#[cold]
#[inline(never)]
pub(crate) fn in_child(call: &'static str) -> Failure {
    fork_guard::check().err().map_or(Failure::Internal, |e| reported(call, &e))
}

/// Like [`logged`], for a call that must do nothing in a forked child.
#[inline]
pub(crate) fn here<T, E: Borrow<Error> + From<Error>>(
    call: &'static str,
    body: impl FnOnce() -> Result<T, E>,
) -> Result<T, Failure> {
    logged(call, fork_guard::check().map_err(E::from).and_then(|()| body()))
}

/// Like [`here`], for calls that release `it`. A forked child leaks it: it is the parent's.
pub(crate) fn end<T>(call: &'static str, it: T, body: impl FnOnce(T) -> Result<()>) -> Result<(), Failure> {
    let it = ManuallyDrop::new(it);
    here(call, || body(ManuallyDrop::into_inner(it)))
}

/// Makes the context of a table, with NCCL's traffic class and profiler for its connections.
pub(crate) fn open(
    process: &Arc<Process>,
    config: Config,
    table: Table,
    traffic_class: Option<c_int>,
    profiler: Option<Profiler>,
) -> Result<Context> {
    let config = Arc::new(config);
    fork_guard::watch()?;
    let hold = process.devices.open(&config)?;
    check_control(&config)?;
    let mut findings = config.findings(std::env::vars_os());
    let devices = process.devices.all();
    findings.extend(device::findings(&config, &devices));
    findings.extend(device::data_direct(&config, &devices));
    // A queue pair that cannot be made fails the first connection, with its reason.
    findings.extend(process.devices.nics().iter().find_map(|nic| not_inline(&config, nic).ok()?));
    for finding in findings.iter().filter(|f| f.degraded) {
        config.degraded(finding.text.clone())?;
    }
    process.stats.init(&config, &process.warned)?;
    // With hints the first REGISTER does the same. Agents that give nothing but hints know no ATTACH.
    if config.mode != Mode::Advanced {
        process.agent.attach(|| agent::Options::from(&*config))?;
    }
    let events = process.events.start(&config, || process.devices.nics())?;
    let is_first = match table {
        Table::Net(version) => process.set_latest(Arc::clone(&config), version),
        // NCCL asks for an RMA table after it has begun with a network table, if it uses that.
        Table::Rma(_) => {
            process.latest().is_none() && process.set_latest(Arc::clone(&config), RMA_BEGAN_WITH)
        }
    };
    if is_first {
        let all: Vec<String> = process.devices.all().into_iter().map(describe).collect();
        let plural = if all.len() == 1 { "" } else { "s" };
        let set = config.differing();
        let set = if set.is_empty() { String::new() } else { format!("; settings: {}", set.join(" ")) };
        tracing::info!(
            target: "init",
            "{}, protocol {PROTOCOL_VERSION}, {table}, {} device{plural}: {}{set}",
            Release::ours(), all.len(), all.join(", ")
        );
        for found in findings {
            match found.degraded {
                true => tracing::warn!(target: "init", "{}", found.text),
                false => tracing::info!(target: "init", "{}", found.text),
            }
        }
    }
    // The tables before v11 have no finalize, so lines may come as long as the process lives.
    if matches!(table, Table::Net(version) if version < FIRST_WITH_FINALIZE) {
        log::keep_logger();
    }
    let settings = Settings {
        traffic: table.traffic(),
        ..Settings::new(Arc::clone(process), config, traffic_class, profiler)
    };
    let settings = RwLock::new(Arc::new(settings));
    Ok(Context {
        settings,
        pending: PendingConnects::default(),
        _events: events,
        _devices: hold,
        _log: log::Hold::new(),
    })
}

/// Checks that listeners will have an address. If the interfaces cannot be read here, the first
/// listener says why.
fn check_control(config: &Config) -> Result<()> {
    match interfaces() {
        Ok(all) => reachable(&all, &Options::from(config)).map(drop),
        Err(_) => Ok(()),
    }
}

/// Returns the name of the call.
fn reg_mr(dmabuf: Option<DmaBuf>) -> &'static str {
    if dmabuf.is_some() { "regMrDmaBuf" } else { "regMr" }
}

impl nccl_net_versions::Plugin for Plugin {
    const NAME: &'static CStr = c"MPIB";

    fn on_panic(call: &'static str) {
        tracing::warn!(target: "net", "{call}: internal error, please report it: a panic was caught");
    }

    fn on_refused(call: &'static str, why: &Refusal) {
        tracing::warn!(target: "net", "{call}: {why}");
    }

    fn leaving() {
        log::leave();
    }

    fn logger(logger: Logger) {
        log::install(logger);
        if let Some(release) = logger.address().and_then(nccl::release) {
            Process::global().set_release(release);
        }
    }
}

impl NetPlugin for Plugin {
    const VDEVICES: bool = true;
    const DMABUF: bool = true;

    type Context = Context;
    type Listen = Listening;
    type Send = SendComm;
    type Recv = RecvComm;
    type Mr = Mr;
    type Request = Request;

    fn init(args: &Init) -> Result<Context, Failure> {
        here("init", || {
            // Before anything is sized by it.
            limits::raise_descriptors();
            let (config, table) = (Config::from_env()?, Table::Net(args.version));
            open(Process::global(), config, table, args.config.traffic_class, args.profiler)
        })
    }

    fn reinit(ctx: &Context, args: &Init) -> Result<(), Failure> {
        Process::global().set_table(args.version);
        // Only these tables bring a callback, and handles for its events.
        if args.version >= 10 {
            let mut settings = ctx.settings.write();
            Arc::make_mut(&mut settings).profiler = args.profiler;
        }
        Ok(())
    }

    fn finalize(ctx: Context) -> Result<(), Failure> {
        end("finalize", ctx, |ctx| {
            ctx.pending.abandon();
            Ok(())
        })
    }

    fn devices() -> Result<usize, Failure> {
        let process = Process::global();
        here("devices", || latest(process).map(|_| process.devices.count()))
    }

    fn properties(dev: usize) -> Result<Properties, Failure> {
        here("getProperties", || properties(Process::global(), dev))
    }

    fn make_vdevice(devs: &VDevs) -> Result<usize, Failure> {
        let process = Process::global();
        let config = here("makeVDevice", || latest(process))?;
        let Some(why) = unmerged(&config, &process.devices, devs.as_slice()) else {
            return logged("makeVDevice", make_vdevice(&process.devices, devs));
        };
        // No fault, hence no warning. Not the code of a usage error: NCCL 2.24 and 2.25 fail the
        // communicator for that one. With any other code they continue with the physical devices.
        tracing::info!(target: "init", "devices {:?} are not joined: {why}", devs.as_slice());
        Err(Failure::InvalidArgument)
    }

    fn listen(ctx: &Context, dev: usize, handle: &mut HandleBuf) -> Result<Listening, Failure> {
        here("listen", || {
            let settings = ctx.settings();
            let (_, device) = device(&settings.process, dev)?;
            Listening::open(&settings, device, handle)
        })
    }

    fn connect(
        ctx: &Context,
        dev: usize,
        config: &CommConfig,
        handle: &mut HandleBuf,
    ) -> Result<Option<SendComm>, Failure> {
        here("connect", || {
            let mut settings = ctx.settings();
            let (_, device) = device(&settings.process, dev)?;
            // v10 passes the traffic class here, later versions pass it at init.
            if config.traffic_class.is_some() && settings.comm_traffic_class != config.traffic_class {
                Arc::make_mut(&mut settings).comm_traffic_class = config.traffic_class;
            }
            ctx.pending.connect(&settings, device, handle)
        })
    }

    fn accept(listen: &Listening) -> Result<Option<RecvComm>, Failure> {
        here("accept", || listen.accept())
    }

    fn reg_mr_send(
        comm: &SendComm,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Mr, Failure> {
        here(reg_mr(dmabuf), || comm.register(buffer, kind, dmabuf))
    }

    fn reg_mr_recv(
        comm: &RecvComm,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
    ) -> Result<Mr, Failure> {
        here(reg_mr(dmabuf), || comm.register(buffer, kind, dmabuf))
    }

    fn dereg_mr(mr: Mr) -> Result<(), Failure> {
        end("deregMr", mr, |mr| {
            drop(mr);
            Ok(())
        })
    }

    #[inline(always)]
    fn may_send(comm: &SendComm) -> bool {
        fork_guard::is_child() || comm.may_send()
    }

    #[inline(always)]
    fn isend<'a>(
        comm: &'a SendComm,
        buffer: Buffer,
        tag: c_int,
        mr: Option<&Mr>,
        profiler: ProfilerHandle,
    ) -> Result<Option<&'a Tagged<Request>>, Failure> {
        if fork_guard::is_child() {
            return Err(in_child("isend"));
        }
        logged("isend", comm.send(buffer, tag, mr, profiler))
    }

    #[inline(always)]
    fn irecv<'a>(
        comm: &'a RecvComm,
        buffers: &[RecvBuffer<'_, Self>],
        optional_completion: bool,
    ) -> Result<Option<&'a Tagged<Request>>, Failure> {
        if fork_guard::is_child() {
            return Err(in_child("irecv"));
        }
        logged(
            "irecv",
            match optional_completion {
                false => comm.receive::<_, false>(buffers),
                true => comm.receive::<_, true>(buffers),
            },
        )
    }

    fn iflush<'a>(
        comm: &'a RecvComm,
        buffers: &[(Buffer, Option<&Mr>)],
    ) -> Result<Option<&'a Tagged<Request>>, Failure> {
        here("iflush", || comm.flush(buffers))
    }

    #[inline(always)]
    fn collect(request: &Request) -> Option<c_int> {
        if fork_guard::is_child() { None } else { request.collect_one() }
    }

    #[inline(always)]
    fn test(request: &Request, sizes: &mut Sizes) -> Result<bool, Failure> {
        if fork_guard::is_child() {
            return Err(in_child("test"));
        }
        logged("test", request.test(sizes))
    }

    fn close_send(comm: SendComm) -> Result<(), Failure> {
        end("closeSend", comm, SendComm::close)
    }

    fn close_recv(comm: RecvComm) -> Result<(), Failure> {
        end("closeRecv", comm, RecvComm::close)
    }

    fn close_listen(listen: Listening) -> Result<(), Failure> {
        end("closeListen", listen, |listen| {
            drop(listen);
            Ok(())
        })
    }
}
