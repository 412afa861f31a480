//! A profiler plugin for NCCL, which counts the events of each kind: NCCL loads this library as one
//! if `NCCL_PROFILER_PLUGIN` is its path. The counts are written to the file that the variable
//! [`FILE`] names when a communicator's profiler ends.

use std::{
    env,
    ffi::{c_char, c_int, c_void},
    fs,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

use serde::{Deserialize, Serialize};

/// The variable with the name of the file.
pub const FILE: &str = "SOFTCUDA_PROFILE";

/// The kinds of events, in the order of their bits in the type of an event (`ncclProfileGroup` …).
pub const KINDS: [&str; 8] =
    ["group", "collective", "send or receive", "operation", "step", "proxy", "kernel", "network"];

/// What happened to the events of one kind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Events {
    /// One of [`KINDS`].
    pub kind: String,
    /// Events that began.
    pub started: u64,
    /// Events that ended.
    pub stopped: u64,
}

struct Count {
    started: AtomicU64,
    stopped: AtomicU64,
}

static COUNTS: [Count; KINDS.len()] =
    [const { Count { started: AtomicU64::new(0), stopped: AtomicU64::new(0) } }; KINDS.len()];

/// `ncclSuccess`.
const SUCCESS: c_int = 0;

type Init = unsafe extern "C" fn(*mut *mut c_void, *mut c_int) -> c_int;
type InitV4 = unsafe extern "C" fn(
    *mut *mut c_void,
    *mut c_int,
    *const c_char,
    u64,
    c_int,
    c_int,
    c_int,
    *const c_void,
) -> c_int;

/// `ncclProfiler_v2_t` to `ncclProfiler_v4_t`, which differ in the type of `init`.
#[repr(C)]
struct Table<I> {
    name: *const c_char,
    init: I,
    start: unsafe extern "C" fn(*mut c_void, *mut *mut c_void, *const u8) -> c_int,
    stop: unsafe extern "C" fn(*mut c_void) -> c_int,
    record: unsafe extern "C" fn(*mut c_void, c_int, *const c_void) -> c_int,
    finalize: unsafe extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: a table has pointers to functions and to constant text, and is never written.
unsafe impl<I> Sync for Table<I> {}

const fn table<I>(init: I) -> Table<I> {
    Table { name: c"softcuda".as_ptr(), init, start, stop, record, finalize }
}

/// NCCL 2.24 and 2.25.
#[unsafe(no_mangle)]
static ncclProfiler_v2: Table<Init> = table(init as Init);
/// NCCL 2.26.
#[unsafe(no_mangle)]
static ncclProfiler_v3: Table<Init> = table(init as Init);
/// NCCL 2.27 and later.
#[unsafe(no_mangle)]
static ncclProfiler_v4: Table<InitV4> = table(init_v4 as InitV4);

/// Requests the events of all kinds.
unsafe extern "C" fn init(_context: *mut *mut c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL passes the address of an int, or null.
    if let Some(mask) = unsafe { mask.as_mut() } {
        *mask = (1 << KINDS.len()) - 1;
    }
    SUCCESS
}

unsafe extern "C" fn init_v4(
    context: *mut *mut c_void,
    mask: *mut c_int,
    _name: *const c_char,
    _hash: u64,
    _nodes: c_int,
    _ranks: c_int,
    _rank: c_int,
    _log: *const c_void,
) -> c_int {
    // SAFETY: the same pointers, under the same conditions.
    unsafe { init(context, mask) }
}

/// Counts an event. Its handle is the place of the count.
unsafe extern "C" fn start(_context: *mut c_void, handle: *mut *mut c_void, event: *const u8) -> c_int {
    // SAFETY: NCCL passes an event, whose first member is its type: one byte with one bit.
    let kind = unsafe { *event }.trailing_zeros() as usize;
    let count = COUNTS.get(kind);
    if let Some(count) = count {
        count.started.fetch_add(1, Relaxed);
    }
    let place = count.map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: NCCL passes the address of a handle.
    unsafe { *handle = place.cast::<c_void>().cast_mut() };
    SUCCESS
}

unsafe extern "C" fn stop(handle: *mut c_void) -> c_int {
    // SAFETY: a handle of `start`, which is the address of a static, or null.
    if let Some(count) = unsafe { handle.cast::<Count>().as_ref() } {
        count.stopped.fetch_add(1, Relaxed);
    }
    SUCCESS
}

unsafe extern "C" fn record(_handle: *mut c_void, _state: c_int, _args: *const c_void) -> c_int {
    SUCCESS
}

unsafe extern "C" fn finalize(_context: *mut c_void) -> c_int {
    let Some(file) = env::var_os(FILE) else { return SUCCESS };
    let events = |(kind, count): (&&str, &Count)| Events {
        kind: (*kind).to_owned(),
        started: count.started.load(Relaxed),
        stopped: count.stopped.load(Relaxed),
    };
    let all: Vec<_> = KINDS.iter().zip(&COUNTS).map(events).collect();
    let written =
        serde_json::to_vec(&all).map_err(std::io::Error::other).and_then(|text| fs::write(&file, text));
    if let Err(e) = written {
        eprintln!("softcuda: cannot write {}: {e}", file.display());
    }
    SUCCESS
}
