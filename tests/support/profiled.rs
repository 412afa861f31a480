//! The plugin as NCCL's profiler: its newest table, called as NCCL does.
#![expect(clippy::not_unsafe_ptr_arg_deref, reason = "an event is a number to the plugin, which looks it up")]

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use nccl_net_abi as abi;
use nccl_net_abi::profiler_v7::Event;
use nccl_net_mpib::ncclProfiler_v7 as PROFILER;

use crate::table::Ptr;

/// The setting with which NCCL finds it.
pub const ON: (&str, &str) = ("NCCL_PROFILER_PLUGIN", "mpib");
/// What the plugin is to be asked for: operations, parts, steps, and messages of network plugins.
const MASK: c_int = 0b1001_1110;
const MIB: usize = 1 << 20;

/// The context of the newest communicator, for [`callback`].
static CONTEXT: AtomicUsize = AtomicUsize::new(0);

/// NCCL's callback for network plugins: passes events on to the profiler. `handle` is that of a step.
///
/// # Safety
/// As NCCL's.
pub unsafe extern "C" fn callback(
    event: *mut Ptr,
    kind: c_int,
    handle: Ptr,
    id: i64,
    data: *mut c_void,
) -> abi::ncclResult_t {
    if kind != abi::ncclProfilerNetEventStart {
        // SAFETY: an event of a start.
        return unsafe { PROFILER.stopEvent.unwrap()(*event) };
    }
    let mut description = description(abi::ncclProfileNetPlugin, handle);
    description.event.netPlugin.id = id;
    description.event.netPlugin.data = data;
    let context = without_provenance_mut(CONTEXT.load(Ordering::Relaxed));
    // SAFETY: a place for the event, and a description of its type.
    unsafe { PROFILER.startEvent.unwrap()(context, event, &raw mut description) }
}

/// Ends an event of a start.
pub fn stop(event: Ptr) {
    // SAFETY: an event of a start.
    assert_eq!(unsafe { PROFILER.stopEvent.unwrap()(event) }, abi::ncclSuccess);
}

/// Reports a state of an event.
pub fn record_state(event: Ptr) {
    // SAFETY: an event of a start. No table reads the arguments of this state.
    let result = unsafe { PROFILER.recordEventState.unwrap()(event, 0, null_mut()) };
    assert_eq!(result, abi::ncclSuccess);
}

fn description(kind: i64, parent: Ptr) -> Event {
    // SAFETY: zero is a value of each field.
    let mut event: Event = unsafe { std::mem::zeroed() };
    event.type_ = kind.try_into().unwrap();
    event.parentObj = parent;
    event
}

/// A communicator as NCCL profiles it.
pub struct Profiled(Ptr);

impl Profiled {
    /// Returns it, or the mask if the profiler wants nothing.
    pub fn new() -> Result<Self, c_int> {
        let (mut context, mut mask) = (null_mut(), 0);
        // SAFETY: places for the results, and a name.
        let result = unsafe {
            PROFILER.init.unwrap()(
                &raw mut context,
                0xc0ffee,
                &raw mut mask,
                c"world".as_ptr(),
                2,
                8,
                3,
                None,
            )
        };
        assert_eq!(result, abi::ncclSuccess);
        CONTEXT.store(context.addr(), Ordering::Relaxed);
        if context.is_null() {
            return Err(mask);
        }
        assert_eq!(mask, MASK);
        Ok(Self(context))
    }

    fn start(&self, mut event: Event) -> Ptr {
        let mut handle = without_provenance_mut(0xbad);
        // SAFETY: a place for the event, and a description of its type.
        let result = unsafe { PROFILER.startEvent.unwrap()(self.0, &raw mut handle, &raw mut event) };
        assert_eq!(result, abi::ncclSuccess);
        handle
    }

    pub fn operation(&self, sequence: u64) -> Ptr {
        let mut event = description(abi::ncclProfileColl, null_mut());
        event.event.coll.func = c"AllReduce".as_ptr();
        event.event.coll.datatype = c"ncclFloat32".as_ptr();
        event.event.coll.algo = c"RING".as_ptr();
        event.event.coll.proto = c"SIMPLE".as_ptr();
        event.event.coll.count = MIB;
        event.event.coll.nChannels = 2;
        event.event.coll.seqNumber = sequence;
        self.start(event)
    }

    /// Begins what a channel of an operation of a process does.
    pub fn part(&self, operation: Ptr, process: u32) -> Ptr {
        let mut event = description(abi::ncclProfileProxyOp, operation);
        event.event.proxyOp.pid = process.cast_signed();
        self.start(event)
    }

    /// Begins a message of a part.
    pub fn step(&self, part: Ptr) -> Ptr {
        self.start(description(abi::ncclProfileProxyStep, part))
    }

    pub fn close(self) {
        // SAFETY: a context of init.
        assert_eq!(unsafe { PROFILER.finalize.unwrap()(self.0) }, abi::ncclSuccess);
    }
}
