//! A profiler plugin for NCCL: counts the events of network plugins, each with its start and its stop.
//!
//! NCCL finds the tables in this library if `NCCL_PROFILER_PLUGIN` names it. [`REPORT`] names the
//! file that gets the counts at the end of each communicator. The layouts are those of
//! `src/include/plugin/profiler/profiler_v3.h` to `profiler_v7.h` in NCCL's sources: the fields that
//! are read here lie at the same offsets in all of them.

use std::{
    env,
    ffi::{c_char, c_int, c_void},
    fs, ptr,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// The variable that names the file of the counts.
pub const REPORT: &str = "SOFTCUDA_PROFILE";

/// `ncclProfileNetPlugin`.
const NET_PLUGIN: u64 = 1 << 7;
/// Events of network plugins, and those above them, without which NCCL makes none: groups,
/// collectives, sends and receives, operations and steps of the proxy.
const ACTIVATION: c_int = 0b1001_1111;
/// The queue pairs of the InfiniBand transport: `NCCL_PROFILER_NET_TYPE_IB`, version 1.
const QUEUE_PAIRS: i64 = 1 << 16 | 1;
/// `ncclProfileQp`.
const QUEUE_PAIR: u8 = 1;

static STARTED: AtomicU64 = AtomicU64::new(0);
static STOPPED: AtomicU64 = AtomicU64::new(0);
/// Events of network plugins that are not of queue pairs.
static OTHER: AtomicU64 = AtomicU64::new(0);
/// Stands for an event of another kind.
static IGNORED: AtomicU64 = AtomicU64::new(0);

/// The fields of `ncclProfilerEventDescr_vN_t` that are read here. `type` is a byte up to v4 and
/// eight bytes from v5 on; the first one has all kinds that [`ACTIVATION`] requests.
#[repr(C)]
struct Description {
    kind: u8,
    _parent: *const c_void,
    _rank: c_int,
    /// `netPlugin` of the union.
    id: i64,
    data: *const u8,
}

/// `ncclProfiler_vN_t`: the functions of all versions have these places. Those of `init` differ in
/// their arguments.
#[repr(C)]
struct Table<Init> {
    name: *const c_char,
    init: Init,
    start: extern "C" fn(*mut c_void, *mut *const c_void, *const Description) -> c_int,
    stop: extern "C" fn(*const c_void) -> c_int,
    record: extern "C" fn(*const c_void, c_int, *const c_void) -> c_int,
    finalize: extern "C" fn(*mut c_void) -> c_int,
}

// SAFETY: the table is constant; its name is a string literal.
unsafe impl<Init> Sync for Table<Init> {}

/// `init` up to v4: the other arguments come after the mask.
type Old = extern "C" fn(*mut *const c_void, *mut c_int) -> c_int;
/// `init` from v5 on: the communicator's number comes before the mask.
type New = extern "C" fn(*mut *const c_void, u64, *mut c_int) -> c_int;

const fn table<Init>(init: Init) -> Table<Init> {
    Table { name: c"softcuda".as_ptr(), init, start, stop, record, finalize }
}

/// Exports tables.
macro_rules! tables {
    ($($(#[$about:meta])* $name:ident: $kind:ty = $init:expr;)*) => {$(
        $(#[$about])*
        #[unsafe(no_mangle)]
        #[used]
        static $name: Table<$kind> = table($init);
    )*};
}

tables! {
    /// For NCCL 2.26.
    ncclProfiler_v3: Old = old;
    /// For NCCL 2.27.
    ncclProfiler_v4: Old = old;
    /// For NCCL 2.28.
    ncclProfiler_v5: New = new;
    /// For NCCL 2.29 and 2.30.
    ncclProfiler_v6: New = new;
    /// From NCCL 2.31 on.
    ncclProfiler_v7: New = new;
}

extern "C" fn old(context: *mut *const c_void, mask: *mut c_int) -> c_int {
    // SAFETY: NCCL passes a place for the context and one for the mask.
    unsafe {
        context.write((&raw const IGNORED).cast());
        mask.write(ACTIVATION);
    }
    0
}

extern "C" fn new(context: *mut *const c_void, _: u64, mask: *mut c_int) -> c_int {
    old(context, mask)
}

extern "C" fn start(_: *mut c_void, event: *mut *const c_void, description: *const Description) -> c_int {
    // SAFETY: NCCL passes a description with at least these fields, and sets the first of all kinds.
    let counter = if u64::from(unsafe { (*description).kind }) == NET_PLUGIN {
        // SAFETY: NCCL sets both fields for this kind; the plugin's data begins with a byte.
        let is_queue_pair = unsafe {
            (*description).id == QUEUE_PAIRS
                && !(*description).data.is_null()
                && *(*description).data == QUEUE_PAIR
        };
        if is_queue_pair { &STARTED } else { &OTHER }
    } else {
        &IGNORED
    };
    counter.fetch_add(1, Relaxed);
    // SAFETY: NCCL passes a place for the event's handle.
    unsafe { event.write(ptr::from_ref(counter).cast()) };
    0
}

extern "C" fn stop(event: *const c_void) -> c_int {
    if event == (&raw const STARTED).cast() {
        STOPPED.fetch_add(1, Relaxed);
    }
    0
}

extern "C" fn record(_: *const c_void, _: c_int, _: *const c_void) -> c_int {
    0
}

extern "C" fn finalize(_: *mut c_void) -> c_int {
    let [started, stopped, other] = [&STARTED, &STOPPED, &OTHER].map(|count| count.load(Relaxed));
    let Some(path) = env::var_os(REPORT) else { return 0 };
    let text = format!("{started} {stopped} {other}\n");
    // ncclSystemError, which NCCL logs.
    fs::write(path, text).map_or(2, |()| 0)
}

/// The counts of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Counts {
    /// Events of queue pairs that have begun.
    pub started: u64,
    /// Those of them that have ended.
    pub stopped: u64,
    /// Events of network plugins that are not of queue pairs.
    pub other: u64,
}

impl Counts {
    /// Reads the file of [`REPORT`].
    pub fn parse(text: &str) -> Option<Self> {
        let mut numbers = text.split_whitespace().map(|number| number.parse().ok());
        let counts = Self { started: numbers.next()??, stopped: numbers.next()??, other: numbers.next()?? };
        numbers.next().is_none().then_some(counts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_of_a_queue_pair_has_one_start_and_one_stop() {
        let (mut context, mut mask) = (ptr::null(), 0);
        assert_eq!((ncclProfiler_v7.init)(&mut context, 7, &mut mask), 0);
        assert_eq!(mask & NET_PLUGIN as c_int, NET_PLUGIN as c_int);
        let of = |kind: u64, id, data: &u8| {
            let description = Description {
                kind: kind as u8,
                _parent: ptr::null(),
                _rank: 0,
                id,
                data: ptr::from_ref(data),
            };
            let mut event = ptr::null();
            assert_eq!((ncclProfiler_v3.start)(context.cast_mut(), &mut event, &description), 0);
            assert_eq!((ncclProfiler_v3.stop)(event), 0);
            [&STARTED, &STOPPED, &OTHER].map(|count| count.load(Relaxed))
        };
        assert_eq!(of(NET_PLUGIN, QUEUE_PAIRS, &QUEUE_PAIR), [1, 1, 0]);
        assert_eq!(of(NET_PLUGIN, 2 << 16 | 1, &QUEUE_PAIR), [1, 1, 1]);
        assert_eq!(of(NET_PLUGIN, QUEUE_PAIRS, &2), [1, 1, 2]);
        assert_eq!(of(1, QUEUE_PAIRS, &QUEUE_PAIR), [1, 1, 2]);
    }

    #[test]
    fn a_report_has_three_counts() {
        let counts = Counts { started: 3, stopped: 2, other: 0 };
        assert_eq!(Counts::parse("3 2 0\n"), Some(counts));
        for text in ["", "3 2", "3 2 x", "3 2 0 1"] {
            assert_eq!(Counts::parse(text), None, "{text:?}");
        }
    }
}
