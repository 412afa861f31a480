//! NCCL's profiler callback (v10 and later) without its traps.

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use nccl_net_abi as abi;

/// The profiler's callback (`ncclProfilerCallback_t`, v10 and later).
#[derive(Debug, Clone, Copy)]
pub struct Profiler(
    unsafe extern "C" fn(*mut *mut c_void, c_int, *mut c_void, i64, *mut c_void) -> abi::ncclResult_t,
);

/// NCCL's handle of the operation that a request belongs to; absent before v10 and in bootstrap traffic.
/// Valid until NCCL is told that the request is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ProfilerHandle(Option<NonNull<c_void>>);

// SAFETY: the handle is a token that only NCCL looks behind; NCCL takes it from any thread.
unsafe impl Send for ProfilerHandle {}
// SAFETY: as above.
unsafe impl Sync for ProfilerHandle {}

impl ProfilerHandle {
    /// No handle: no event is ever recorded for it.
    pub const NONE: Self = Self(None);

    /// Wraps `pHandle`.
    pub(crate) const fn new(handle: *mut c_void) -> Self {
        Self(NonNull::new(handle))
    }

    /// Whether there is no operation to record events for.
    #[inline]
    pub const fn is_none(&self) -> bool {
        self.0.is_none()
    }
}

/// A profiler event under way (`eHandle`); empty until a start that the profiler took.
#[derive(Debug, PartialEq, Eq)]
pub struct ProfilerEvent(*mut c_void);

// SAFETY: a token that only the profiler looks behind; it takes it from any thread.
unsafe impl Send for ProfilerEvent {}
// SAFETY: shared references give no access to what is behind it.
unsafe impl Sync for ProfilerEvent {}

impl ProfilerEvent {
    /// No event.
    pub const NONE: Self = Self(ptr::null_mut());

    /// Whether no event is under way.
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

/// One work request on one queue pair, as the profiler shows it (`ncclProfilerNetIbDescr_v1_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct QpEvent {
    /// Device index.
    pub device: c_int,
    /// Work request id.
    pub wr_id: u64,
    /// `ibv_wr_opcode`
    pub opcode: c_int,
    /// Queue pair number.
    pub qp_num: c_int,
    /// Bytes.
    pub length: usize,
}

/// Plugin id of the descriptor that [`Profiler::start`] gives.
const IB_V1: i64 = abi::NCCL_PROFILER_NET_TYPE_IB | abi::NCCL_PROFILER_NET_IB_VER as i64;

impl Profiler {
    /// Wraps what NCCL hands to `init`.
    pub(crate) fn new(callback: abi::ncclProfilerCallback_t) -> Option<Self> {
        callback.map(Self)
    }

    /// Begins an event of the operation `handle`. Without a handle nothing is called: NCCL would read
    /// through NULL. `slot` is empty afterwards where the profiler did not take the event.
    #[inline]
    pub fn start(&self, slot: &mut ProfilerEvent, handle: ProfilerHandle, event: &QpEvent) {
        // The profiler may leave the slot as it is, so what it held before must not be taken for an event.
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
        // SAFETY: NCCL's callback; the slot and the descriptor are ours for the call, the handle is NCCL's own
        // and valid until the request is done.
        let result = unsafe {
            (self.0)(
                &raw mut slot.0,
                abi::ncclProfilerNetEventStart,
                handle.as_ptr(),
                IB_V1,
                (&raw mut descr).cast(),
            )
        };
        // A profiler that fails must not stop the data: there is no event then.
        if result != abi::ncclSuccess {
            *slot = ProfilerEvent::NONE;
        }
    }

    /// Ends the event in `slot`, if there is one, and empties the slot.
    #[inline]
    pub fn stop(&self, slot: &mut ProfilerEvent) {
        if slot.is_none() {
            return;
        }
        // SAFETY: NCCL's callback; the slot holds what a start left there. A stop reads no other argument.
        // What a failed stop means for the data is nothing, so its result is not used.
        let _ = unsafe {
            (self.0)(&raw mut slot.0, abi::ncclProfilerNetEventStop, ptr::null_mut(), 0, ptr::null_mut())
        };
        *slot = ProfilerEvent::NONE;
    }
}
