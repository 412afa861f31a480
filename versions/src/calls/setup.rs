//! init, finalize, devices, getProperties, makeVDevice, setNetAttr.

use core::ffi::{c_int, c_void};

use nccl_net_abi as abi;

use super::{CommContext, Out, comm_config, index};
use crate::guard::Outcome;
use crate::handle::{self, HandleType};
use crate::props::{FromProperties, VirtualDevice, in_range};
use crate::tagged::{Kind, SharedConfig};
use crate::{
    CommAttr, CommConfig, Failure, Init, Logger, NetAttr, NetPlugin, Plugin, Profiler, Properties, Refusal,
    state,
};

impl<P: NetPlugin> HandleType for CommContext<P> {
    const KIND: Kind = Kind::Context;
    type Front = SharedConfig;
}

/// Passes on the logger of an `init`.
pub(super) fn take_logger<P: Plugin>(logger: abi::ncclDebugLogger_t) -> Logger {
    let logger = Logger::new(logger);
    state::set_logger::<P>(logger);
    P::logger(logger);
    logger
}

/// `init` of v6 to v10: the first successful call creates the context of the process.
pub(crate) fn init_process<P: NetPlugin>(
    version: u32,
    logger: abi::ncclDebugLogger_t,
    profiler: abi::ncclProfilerCallback_t,
) -> Outcome {
    let logger = take_logger::<P>(logger);
    let profiler = Profiler::new(profiler);
    state::init_once::<P>(&Init { version, comm_id: 0, config: CommConfig::default(), logger, profiler })?;
    Ok(())
}

/// `init` of v11 and later: each call creates a context.
pub(crate) unsafe fn init_comm<P: NetPlugin>(
    version: u32,
    ctx: *mut *mut c_void,
    comm_id: u64,
    config: *const abi::v11::CommConfig,
    logger: abi::ncclDebugLogger_t,
    profiler: abi::ncclProfilerCallback_t,
) -> Outcome {
    let logger = take_logger::<P>(logger);
    // `*ctx` may hold the context of a plugin that NCCL tried before, which must not remain after a
    // failure.
    // SAFETY: NULL or writable.
    let ctx = unsafe { Out::null("ctx", ctx) }?;
    // SAFETY: NULL or readable.
    let config = unsafe { comm_config(config) };
    let context = P::init(&Init { version, comm_id, config, logger, profiler: Profiler::new(profiler) })?;
    let front = SharedConfig::new(&config);
    ctx.put(handle::into_raw_behind::<P, _>(front, CommContext::<P> { context, config }));
    Ok(())
}

/// Accepts NULL: NCCL 2.28.3 to 2.29.3 call it after a failed `init`, which left NULL.
pub(crate) unsafe fn finalize<P: NetPlugin>(ctx: *mut c_void) -> Outcome {
    if ctx.is_null() {
        return Ok(());
    }
    // SAFETY: no other call uses the context.
    let held = unsafe { handle::from_raw::<P, CommContext<P>>("ctx", ctx) }?;
    P::finalize(held.context)?;
    Ok(())
}

/// `count` is the implementation's `devices`.
pub(crate) unsafe fn devices(ndev: *mut c_int, count: fn() -> Result<usize, Failure>) -> Outcome {
    // SAFETY: NULL or writable.
    let ndev = unsafe { Out::holding("ndev", ndev, 0) }?;
    ndev.put(c_int::try_from(count()?).map_err(|_| Failure::Internal)?);
    Ok(())
}

/// Returns the properties of a device, without what the tables lack.
pub(crate) fn properties<P: NetPlugin>(dev: usize) -> Result<Properties, Failure> {
    let mut found = P::properties(dev)?;
    if !P::DMABUF {
        found.ptr_support &= !abi::NCCL_PTR_DMABUF;
    }
    Ok(found)
}

/// `of` returns the properties of a device.
pub(crate) unsafe fn get_properties<T: FromProperties>(
    dev: c_int,
    props: *mut T,
    of: fn(usize) -> Result<Properties, Failure>,
) -> Outcome {
    // SAFETY: NULL or writable. The memory is uninitialised and not read.
    let props = unsafe { Out::new("props", props) }?;
    let found = of(index("dev", dev)?)?;
    props.put(T::from_properties(&in_range(found, dev)));
    Ok(())
}

pub(crate) unsafe fn make_vdevice<P: NetPlugin, V: VirtualDevice>(d: *mut c_int, props: *mut V) -> Outcome {
    // After a failure no device may be named: -1 is no index.
    // SAFETY: NULL or writable.
    let d = unsafe { Out::holding("d", d, -1) }?;
    // SAFETY: NULL or readable.
    let props = unsafe { props.as_ref() }.ok_or(Refusal::Null("props"))?;
    let index = P::make_vdevice(&props.devices()?)?;
    d.put(c_int::try_from(index).map_err(|_| Failure::Internal)?);
    Ok(())
}

/// Checks only the tag of the context: NCCL calls it from the progress thread too.
pub(crate) unsafe fn set_net_attr<P: NetPlugin>(ctx: *mut c_void, attr: *const abi::v11::NetAttr) -> Outcome {
    // SAFETY: NULL, or a context that is not finalized meanwhile.
    let held: &CommContext<P> = unsafe { handle::borrow_tagged("ctx", ctx) }?;
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
