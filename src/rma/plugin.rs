//! The calls of NCCL's RMA tables.

use std::sync::Arc;

use nccl_net_versions::{
    Buffer, DmaBuf, Failure, Get, HandleBuf, MemKind, MrFlags, NetPlugin, Place, Properties, Put, RmaConfig,
    RmaInit, RmaPlugin, RmaProperties, Tagged,
};

use parking_lot::Mutex;

use super::connector::Terms;
use super::group::{self, Group};
use super::requests::Request;
use super::window::{self, Window};
use crate::config::Config;
use crate::connect::{Listening, PendingConnects};
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::plugin::{Context, Plugin, Table, device, end, here, in_child, logged, open};
use crate::process::Process;
use crate::transport::Settings;
use crate::{fork_guard, limits};

/// A listening end of a rank.
#[derive(Debug)]
pub struct Listen {
    settings: Arc<Settings>,
    device: &'static Device,
    listening: Arc<Listening>,
}

/// The contexts of one `createContext`. Puts of all of them go over the same connections.
#[derive(Debug)]
pub struct Contexts {
    group: Arc<Group>,
    count: usize,
}

impl Contexts {
    fn check(&self, context: usize) -> Result<()> {
        if context < self.count {
            return Ok(());
        }
        let count = self.count;
        Err(Error::Argument(format!(
            "context {context}: expected one below {count}, as createContext had it"
        )))
    }
}

fn place<'a>(place: Place<'a, Arc<Window>>) -> group::WindowOffset<'a> {
    group::WindowOffset { window: place.mr, offset: place.offset }
}

/// Returns a number that all ranks with these handles have.
fn group_number(handles: &[&HandleBuf]) -> u64 {
    let bytes = handles.iter().flat_map(|handle| handle.iter());
    // FNV-1a: it separates groups whose links were mixed up, and nobody has to trust it.
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl RmaPlugin for Plugin {
    type Context = Context;
    type Listen = Listen;
    type Coll = Arc<Group>;
    type RmaContext = Contexts;
    type Mr = Arc<Window>;
    type Request = Request;

    fn init(args: &RmaInit) -> Result<Context, Failure> {
        let mut config = here("init", Config::from_env)?;
        // The queue pairs of flushes also write to GPU memory, with MPIB_FLUSH=0, too.
        config.flush = config.flush.filter(|flush| *flush);
        if !config.rma {
            // No fault, hence no warning. After the error NCCL takes its own code.
            tracing::info!(target: "init", "MPIB_RMA=0: one-sided traffic is left to NCCL's own code");
            return Err(Failure::InvalidUsage);
        }
        let process = Process::global();
        let ctx = here("init", || {
            limits::raise_descriptors();
            open(process, config, Table::Rma(args.version), None, None)
        })?;
        match device::unreached(&process.devices.all()) {
            None => Ok(ctx),
            Some(why) => {
                // NCCL's own code refuses, too (its src/transport/net_ib/gin.cc). With a network that
                // cannot register signals of a GPU, ncclCommWindowRegister fails.
                tracing::info!(target: "init", "no windows and no ncclPutSignal between hosts: {why}");
                drop(ctx);
                Err(Failure::InvalidUsage)
            }
        }
    }

    fn finalize(ctx: Context) -> Result<(), Failure> {
        end("finalize", ctx, |ctx| {
            drop(ctx);
            Ok(())
        })
    }

    fn devices() -> Result<usize, Failure> {
        <Self as NetPlugin>::devices()
    }

    fn properties(dev: usize) -> Result<Properties, Failure> {
        <Self as NetPlugin>::properties(dev)
    }

    fn listen(ctx: &Context, dev: usize, handle: &mut HandleBuf) -> Result<Listen, Failure> {
        here("listen", || -> Result<_> {
            let settings = ctx.settings();
            let (_, device) = device(&settings.process, dev)?;
            let listening = Arc::new(Listening::open(&settings, device, handle)?);
            Ok(Listen { settings, device, listening })
        })
    }

    fn connect(listen: &Listen, handles: &[&HandleBuf], rank: usize) -> Result<Arc<Group>, Failure> {
        here("connect", || {
            if rank >= handles.len() {
                let ranks = handles.len();
                return Err(Error::Argument(format!(
                    "rank {rank}: expected one below {ranks}, the number of ranks"
                )));
            }
            let terms = Terms {
                settings: Mutex::new(Arc::clone(&listen.settings)),
                device: listen.device,
                pending: PendingConnects::default(),
                handles: handles.iter().map(|handle| **handle).collect(),
                rank,
                group: group_number(handles),
            };
            Ok(Arc::new(Group::new(terms, Arc::clone(&listen.listening))))
        })
    }

    /// A signal proves the earlier puts of its rank, of any context, and no others.
    fn coll_properties(_: &Arc<Group>) -> Result<RmaProperties, Failure> {
        Ok(RmaProperties { flushes_all_puts_on_any_signal: false })
    }

    fn close_coll(group: Arc<Group>) -> Result<(), Failure> {
        end("closeColl", group, |group| {
            let contexts = || Error::Argument("closeColl before destroyContext of its contexts".into());
            Arc::into_inner(group).ok_or_else(contexts)?.close()
        })
    }

    fn create_context(group: &Arc<Group>, config: &RmaConfig) -> Result<Contexts, Failure> {
        // Peers connect at their first put, which comes later.
        if let Some(class) = config.traffic_class {
            group.set_traffic_class(class);
        }
        Ok(Contexts { group: Arc::clone(group), count: config.contexts })
    }

    fn reg_mr(
        group: &Arc<Group>,
        buffer: Buffer,
        kind: MemKind,
        dmabuf: Option<DmaBuf>,
        flags: MrFlags,
    ) -> Result<Arc<Window>, Failure> {
        let call = if dmabuf.is_some() { "regMrSymDmaBuf" } else { "regMrSym" };
        let request = window::Request { buffer, kind, dmabuf, never_reset: flags.never_reset };
        here(call, || group.register(request))
    }

    fn dereg_mr(group: &Arc<Group>, window: Arc<Window>) -> Result<(), Failure> {
        end("deregMrSym", window, |window| {
            group.deregister(window.number);
            Ok(())
        })
    }

    fn iput<'a>(contexts: &'a Contexts, put: &Put<'_, Self>) -> Result<&'a Tagged<Request>, Failure> {
        let call = if put.signal.is_some() { "iputSignal" } else { "iput" };
        if fork_guard::is_child() {
            return Err(in_child(call));
        }
        let Put { rank, size, .. } = *put;
        let data = put.src.zip(put.dst).map(|(from, to)| (place(from), place(to)));
        let signal = put.signal.as_ref().map(|signal| (place(signal.place), signal.value));
        let begun = contexts.check(put.context);
        logged(call, begun.and_then(|()| contexts.group.put(group::Put { rank, size, data, signal })))
    }

    fn iget<'a>(contexts: &'a Contexts, get: &Get<'_, Self>) -> Result<&'a Tagged<Request>, Failure> {
        if fork_guard::is_child() {
            return Err(in_child("iget"));
        }
        let begun = contexts.check(get.context);
        let get = || contexts.group.get(get.rank, get.size, place(get.remote), place(get.local));
        logged("iget", begun.and_then(|()| get()))
    }

    fn test(group: &Arc<Group>, request: &Request) -> Result<bool, Failure> {
        if fork_guard::is_child() {
            return Err(in_child("test"));
        }
        match logged("test", group.test(request))? {
            None => Ok(false),
            Some(ended) => ended.map(|()| true),
        }
    }

    fn progress(contexts: &Contexts) -> Result<(), Failure> {
        if fork_guard::is_child() {
            return Err(in_child("rmaProgress"));
        }
        contexts.group.progress()
    }

    fn has_error(contexts: &Contexts) -> Result<bool, Failure> {
        Ok(contexts.group.has_failed())
    }
}
