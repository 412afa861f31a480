//! The tables of a profiler plugin, one for each version.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::ptr;
use core::sync::atomic::{AtomicI32, Ordering};

use nccl_net_abi::{self as abi, ncclResult_t};

use super::event::Read;
use super::{Communicator, ProfilerPlugin};
use crate::Refusal;
use crate::guard::{Outcome, guard, guard_data};

/// What NCCL is to report: operations, and what its proxy does for them.
const OPERATIONS: i64 = abi::ncclProfileColl | abi::ncclProfileP2p | abi::ncclProfileProxyOp;
/// From v3 on also the messages of network plugins, which belong to steps.
const MESSAGES: i64 = abi::ncclProfileProxyStep | abi::ncclProfileNetPlugin;

type Ptr = *mut c_void;

/// # Safety
/// `context` and `mask` are NULL or writable.
unsafe fn profile<P: ProfilerPlugin>(
    communicator: Communicator<'_>,
    context: *mut Ptr,
    mask: *mut c_int,
) -> Outcome {
    if context.is_null() || mask.is_null() {
        return Err(Refusal::Null(if mask.is_null() { "eActivationMask" } else { "context" }).into());
    }
    let profiled = P::profile(&communicator);
    let wanted = match (profiled, communicator.has_messages()) {
        (None, _) => 0,
        (Some(_), false) => OPERATIONS,
        (Some(_), true) => OPERATIONS | MESSAGES,
    };
    // SAFETY: not NULL, and writable as the caller promises.
    unsafe { context.write(ptr::without_provenance_mut(profiled.unwrap_or(0))) };
    // NCCL has one mask for all communicators of the process: one that is not profiled does not end the
    // profile of another one.
    if wanted != 0 {
        // SAFETY: not NULL, and a C int, aligned as one. Threads of other communicators read and write it
        // meanwhile.
        unsafe { AtomicI32::from_ptr(mask) }.store(wanted as c_int, Ordering::Relaxed);
    }
    Ok(())
}

/// # Safety
/// `event` is NULL or writable, `description` NULL or filled by its type.
unsafe fn start<P: ProfilerPlugin, E: Read>(context: Ptr, event: *mut Ptr, description: *const E) -> Outcome {
    if event.is_null() {
        return Err(Refusal::Null("eHandle").into());
    }
    // SAFETY: not NULL, and writable as the caller promises.
    unsafe { event.write(ptr::null_mut()) };
    // SAFETY: as the caller promises.
    let begun = match unsafe { description.as_ref() } {
        // SAFETY: as the caller promises. The texts are constants of NCCL's, or those of a communicator
        // that stays during the call.
        Some(description) if !context.is_null() => P::begin(context.addr(), &unsafe { description.read() }),
        _ => 0,
    };
    // SAFETY: not NULL, and writable as the caller promises.
    unsafe { event.write(ptr::without_provenance_mut(begun)) };
    Ok(())
}

unsafe extern "C" fn start_event<P: ProfilerPlugin, E: Read>(
    context: Ptr,
    event: *mut Ptr,
    description: *mut E,
) -> ncclResult_t {
    // SAFETY: NCCL passes a place for the handle and a description of this version.
    guard_data::<P>("profiler startEvent", || unsafe { start::<P, E>(context, event, description) })
}

unsafe extern "C" fn stop_event<P: ProfilerPlugin>(event: Ptr) -> ncclResult_t {
    guard_data::<P>("profiler stopEvent", || {
        if !event.is_null() {
            P::end(event.addr());
        }
        Ok(())
    })
}

/// No state of an event is recorded.
unsafe extern "C" fn record_event_state(_: Ptr, _: c_int, _: Ptr) -> ncclResult_t {
    abi::ncclSuccess
}

unsafe extern "C" fn finalize<P: ProfilerPlugin>(context: Ptr) -> ncclResult_t {
    guard::<P>("profiler finalize", || {
        if !context.is_null() {
            P::end_profile(context.addr());
        }
        Ok(())
    })
}

/// Returns a communicator of a version whose events name it.
const fn unnamed(version: u32) -> Communicator<'static> {
    Communicator { version, place: None, name: None }
}

/// Returns a communicator of a version whose `init` names it.
///
/// # Safety
/// `name` is NULL, or ends with NUL and stays for `'a`.
unsafe fn named<'a>(
    version: u32,
    id: u64,
    name: *const c_char,
    rank: c_int,
    ranks: c_int,
) -> Communicator<'a> {
    // SAFETY: as the caller promises.
    let name = (!name.is_null()).then(|| unsafe { CStr::from_ptr(name) });
    Communicator { version, place: Some((id, rank.unsigned_abs(), ranks.unsigned_abs())), name }
}

/// Makes the module of each version, with its table.
macro_rules! profiler_tables {
    ($($(#[$about:meta])+ $module:ident: init($($arg:ident: $ty:ty),*) => $profile:expr;)+) => {$(
        $(#[$about])+
        pub mod $module {
            #[allow(clippy::wildcard_imports, reason = "the arguments of init are written outside")]
            use super::*;
            use abi::$module::{Event, Profiler};

            unsafe extern "C" fn init<P: ProfilerPlugin>($($arg: $ty),*) -> ncclResult_t {
                // SAFETY: NCCL passes places for the results, and a name that stays during the call.
                guard::<P>("profiler init", || unsafe { $profile })
            }

            /// Returns the table of an implementation, for the symbol that NCCL looks up.
            pub const fn table<P: ProfilerPlugin>() -> Profiler {
                Profiler {
                    name: P::NAME.as_ptr(),
                    init: Some(init::<P>),
                    startEvent: Some(start_event::<P, Event>),
                    stopEvent: Some(stop_event::<P>),
                    recordEventState: Some(record_event_state),
                    finalize: Some(finalize::<P>),
                }
            }
        }
    )+};
}

profiler_tables! {
    /// Profiler v1 (NCCL 2.23): names are numbers.
    profiler_v1: init(context: *mut Ptr, mask: *mut c_int) => profile::<P>(unnamed(1), context, mask);
    /// Profiler v2 (NCCL 2.24 and 2.25).
    profiler_v2: init(context: *mut Ptr, mask: *mut c_int) => profile::<P>(unnamed(2), context, mask);
    /// Profiler v3 (NCCL 2.26): messages of network plugins.
    profiler_v3: init(context: *mut Ptr, mask: *mut c_int) => profile::<P>(unnamed(3), context, mask);
    /// Profiler v4 (NCCL 2.27): the communicator is known at its start.
    profiler_v4: init(
        context: *mut Ptr, mask: *mut c_int, name: *const c_char, id: u64, _nodes: c_int, ranks: c_int,
        rank: c_int, _log: abi::ncclDebugLogger_t
    ) => profile::<P>(named(4, id, name, rank, ranks), context, mask);
    /// Profiler v5 (NCCL 2.28).
    profiler_v5: init(
        context: *mut Ptr, id: u64, mask: *mut c_int, name: *const c_char, _nodes: c_int, ranks: c_int,
        rank: c_int, _log: abi::ncclDebugLogger_t
    ) => profile::<P>(named(5, id, name, rank, ranks), context, mask);
    /// Profiler v6 (NCCL 2.29 and 2.30).
    profiler_v6: init(
        context: *mut Ptr, id: u64, mask: *mut c_int, name: *const c_char, _nodes: c_int, ranks: c_int,
        rank: c_int, _log: abi::ncclDebugLogger_t
    ) => profile::<P>(named(6, id, name, rank, ranks), context, mask);
    /// Profiler v7 (NCCL 2.31 and later).
    profiler_v7: init(
        context: *mut Ptr, id: u64, mask: *mut c_int, name: *const c_char, _nodes: c_int, ranks: c_int,
        rank: c_int, _log: abi::ncclDebugLogger_t
    ) => profile::<P>(named(7, id, name, rank, ranks), context, mask);
}
