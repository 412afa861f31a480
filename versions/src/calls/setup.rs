//! init, finalize, devices and what is said about them.

use core::ffi::{c_int, c_void};

use nccl_net_abi as abi;

use super::{CommContext, Out, comm_config, device};
use crate::guard::Outcome;
use crate::handle::{self, Held};
use crate::props::{FromProperties, VirtualDevice, presentable};
use crate::tagged::Kind;
use crate::{CommAttr, CommConfig, Failure, Init, Logger, NetAttr, NetPlugin, Profiler, Refusal, state};

impl<P: NetPlugin> Held for CommContext<P> {
    const KIND: Kind = Kind::Context;
}

/// v6 to v10: the context belongs to the process, and only the first call that succeeds makes one.
pub(crate) fn init_process<P: NetPlugin>(
    version: u32,
    logger: abi::ncclDebugLogger_t,
    profiler: abi::ncclProfilerCallback_t,
) -> Outcome {
    let logger = Logger::new(logger);
    state::keep_logger::<P>(logger);
    P::logger(logger);
    let profiler = Profiler::new(profiler);
    state::init_once::<P>(&Init { version, comm_id: 0, config: CommConfig::default(), logger, profiler })?;
    Ok(())
}

/// v11 and later: a context for each call.
pub(crate) unsafe fn init_comm<P: NetPlugin>(
    version: u32,
    ctx: *mut *mut c_void,
    comm_id: u64,
    config: *const abi::v11::CommConfig,
    logger: abi::ncclDebugLogger_t,
    profiler: abi::ncclProfilerCallback_t,
) -> Outcome {
    let logger = Logger::new(logger);
    state::keep_logger::<P>(logger);
    P::logger(logger);
    // `*ctx` may hold the context of a plugin that NCCL tried before: it must not stay there after a failure.
    // SAFETY: NULL or writable.
    let ctx = unsafe { Out::null("ctx", ctx) }?;
    // SAFETY: NULL or readable.
    let config = unsafe { comm_config(config) };
    let context = P::init(&Init { version, comm_id, config, logger, profiler: Profiler::new(profiler) })?;
    ctx.put(handle::give::<P, _>(CommContext::<P> { context, config }));
    Ok(())
}

/// NCCL 2.28.3 to 2.29.3 finalize after an init that failed, which left NULL: then there is nothing to do.
pub(crate) unsafe fn finalize<P: NetPlugin>(ctx: *mut c_void) -> Outcome {
    if ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the context.
    let held = unsafe { handle::take::<P, CommContext<P>>("ctx", ctx) }?;
    P::finalize(held.context)?;
    Ok(())
}

pub(crate) unsafe fn devices<P: NetPlugin>(ndev: *mut c_int) -> Outcome {
    // SAFETY: NULL or writable.
    let ndev = unsafe { Out::holding("ndev", ndev, 0) }?;
    ndev.put(c_int::try_from(P::devices()?).map_err(|_| Failure::Internal)?);
    Ok(())
}

pub(crate) unsafe fn get_properties<P: NetPlugin, T: FromProperties>(dev: c_int, props: *mut T) -> Outcome {
    // SAFETY: NULL or writable; not initialised, so nothing is read.
    let props = unsafe { Out::new("props", props) }?;
    let found = P::properties(device(dev)?)?;
    props.put(T::from_properties(&presentable::<P>(found, dev)));
    Ok(())
}

pub(crate) unsafe fn make_vdevice<P: NetPlugin, V: VirtualDevice>(d: *mut c_int, props: *mut V) -> Outcome {
    // No device has the index -1; 0 would name one.
    // SAFETY: NULL or writable.
    let d = unsafe { Out::holding("d", d, -1) }?;
    // SAFETY: NULL or readable.
    let props = unsafe { props.as_ref() }.ok_or(Refusal::Null("props"))?;
    let index = P::make_vdevice(&props.devices()?)?;
    d.put(c_int::try_from(index).map_err(|_| Failure::Internal)?);
    Ok(())
}

/// NCCL calls this from two threads beside the data path, so the tag has to do.
pub(crate) unsafe fn set_net_attr<P: NetPlugin>(ctx: *mut c_void, attr: *const abi::v11::NetAttr) -> Outcome {
    // SAFETY: NULL, or a context that is not finalized meanwhile.
    let held: &CommContext<P> = unsafe { handle::tagged(Kind::Context, "ctx", ctx) }?;
    // SAFETY: NULL or readable.
    let attr = unsafe { attr.as_ref() }.ok_or(Refusal::Null("netAttr"))?;
    let comm = |a: &abi::v11::CommAttr| CommAttr {
        max_concurrent_peers: a.maxConcurrentPeers,
        min_concurrent_peers: a.minConcurrentPeers,
        max_flows_per_peer: a.maxFlowsPerPeer,
        min_flows_per_peer: a.minFlowsPerPeer,
    };
    let attr = NetAttr {
        send: comm(&attr.sendCommAttr),
        recv: comm(&attr.recvCommAttr),
        op: attr.op,
        algo: attr.algo,
        proto: attr.proto,
    };
    P::set_net_attr(&held.context, &attr)?;
    Ok(())
}
