//! NCCL's profiler callback (v10 and later), behind a safe interface.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use nccl_net_abi as abi;

use crate::callback::UnderWay;

/// The profiler's callback (`ncclProfilerCallback_t`, v10 and later).
#[derive(Debug, Clone, Copy)]
pub struct Profiler(
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> abi::ncclResult_t,
);

/// NCCL's handle of the operation that a request belongs to. Absent before v10 and in bootstrap
/// traffic. Valid until `test` reports the request complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfilerHandle(Option<NonNull<c_void>>);

// SAFETY: only NCCL reads through the handle, and NCCL accepts it from any thread.
unsafe impl Send for ProfilerHandle {}
// SAFETY: as for `Send`.
unsafe impl Sync for ProfilerHandle {}

impl ProfilerHandle {
    /// No handle. No event is recorded for it.
    pub const NONE: Self = Self(None);

    /// Wraps `pHandle`.
    pub(crate) const fn new(handle: *mut c_void) -> Self {
        Self(NonNull::new(handle))
    }

    /// Returns whether there is no operation to record events for.
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

/// A profiler event in progress (`eHandle`). Empty unless the profiler accepted a start.
#[derive(Debug, PartialEq, Eq)]
pub struct ProfilerEvent(*mut c_void);

// SAFETY: only the profiler reads through the event, and it accepts it from any thread.
unsafe impl Send for ProfilerEvent {}
// SAFETY: a shared reference gives no access to the event.
unsafe impl Sync for ProfilerEvent {}

impl ProfilerEvent {
    /// No event.
    pub const NONE: Self = Self(ptr::null_mut());

    /// Returns whether no event is in progress.
    #[inline]
    pub fn is_none(&self) -> bool {
        self.0.is_null()
    }
}

impl Default for ProfilerEvent {
    fn default() -> Self {
        Self::NONE
    }
}

/// One work request on one queue pair (`ncclProfilerNetIbDescr_v1_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpEvent {
    /// Device index.
    pub device: c_int,
    /// Work request id.
    pub wr_id: u64,
    /// Opcode, a value of `enum ibv_wr_opcode`.
    pub opcode: c_int,
    /// Queue pair number.
    pub qp_num: c_int,
    /// Length of the data in bytes.
    pub length: usize,
}

/// Plugin id of the descriptor that [`Profiler::start`] passes.
const IB_V1: i64 = abi::NCCL_PROFILER_NET_TYPE_IB | abi::NCCL_PROFILER_NET_IB_VER as i64;

impl Profiler {
    /// Wraps the callback that NCCL passes to `init`.
    pub(crate) fn new(callback: abi::ncclProfilerCallback_t) -> Option<Self> {
        callback.map(Self)
    }

    /// Starts an event of the operation `handle`. Does nothing without a handle: NCCL would read
    /// through NULL. `slot` is empty afterwards if the profiler did not accept the event.
    #[inline]
    pub fn start(&self, slot: &mut ProfilerEvent, handle: ProfilerHandle, event: &QpEvent) {
        // The profiler may leave the slot unchanged, and an old value is not an event.
        *slot = ProfilerEvent::NONE;
        let Some(handle) = handle.0 else { return };
        let mut descr = abi::ncclProfilerNetIbDescr_v1_t {
            type_: abi::ncclProfileQp,
            qp: abi::ncclProfilerNetIbQpDescr_v1_t {
                device: event.device,
                wr_id: event.wr_id,
                opcode: event.opcode,
                qpNum: event.qp_num,
                length: event.length,
            },
        };
        let _callback = UnderWay::callback();
        // SAFETY: NCCL's callback. The slot and the descriptor are local, the handle is NCCL's own
        // and valid until the request is complete.
        let result = unsafe {
            (self.0)(
                &raw mut slot.0,
                abi::ncclProfilerNetEventStart,
                handle.as_ptr(),
                IB_V1,
                (&raw mut descr).cast(),
            )
        };
        // A failing profiler must not stop the transfer.
        if result != abi::ncclSuccess {
            *slot = ProfilerEvent::NONE;
        }
    }

    /// Stops the event in `slot`, if there is one, and empties the slot.
    #[inline]
    pub fn stop(&self, slot: &mut ProfilerEvent) {
        if slot.is_none() {
            return;
        }
        let _callback = UnderWay::callback();
        // SAFETY: NCCL's callback. The slot holds the event of a start. A stop reads no other
        // argument. The result is ignored: a failing profiler must not stop the transfer.
        let _ = unsafe {
            (self.0)(&raw mut slot.0, abi::ncclProfilerNetEventStop, ptr::null_mut(), 0, ptr::null_mut())
        };
        *slot = ProfilerEvent::NONE;
    }
}
