//! The tables of a profiler, called as NCCL does.

use std::collections::BTreeMap;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::{null, null_mut, without_provenance_mut};
use std::sync::{Mutex, MutexGuard, PoisonError};

use nccl_net_versions::abi::{self, ncclInternalError, ncclInvalidArgument, ncclSuccess};
use nccl_net_versions::{Communicator, Event, Plugin, ProfilerPlugin};

type Ptr = *mut c_void;

/// A profiler that notes its calls; V distinguishes those of the tests. `PROFILES`: it wants events.
struct Noted<const V: u32, const PROFILES: bool>;

static NOTES: Mutex<BTreeMap<u32, Vec<String>>> = Mutex::new(BTreeMap::new());

fn notes() -> MutexGuard<'static, BTreeMap<u32, Vec<String>>> {
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

fn note<const V: u32>(what: String) {
    notes().entry(V).or_default().push(what);
}

impl<const V: u32, const PROFILES: bool> Plugin for Noted<V, PROFILES> {
    const NAME: &'static CStr = c"Noted";

    fn on_panic(call: &'static str) {
        note::<V>(format!("a panic in {call}"));
    }
}

impl<const V: u32, const PROFILES: bool> ProfilerPlugin for Noted<V, PROFILES> {
    fn profile(communicator: &Communicator<'_>) -> Option<usize> {
        note::<V>(format!("{:?} {:?}", communicator.place, communicator.name));
        PROFILES.then_some(0x51)
    }

    fn end_profile(context: usize) {
        note::<V>(format!("end of {context:#x}"));
    }

    fn begin(context: usize, event: &Event<'_>) -> usize {
        note::<V>(format!("{context:#x} {event:?}"));
        match event {
            Event::Operation(operation) if operation.name == "panic" => panic!("wanted by the test"),
            Event::Operation(_) => 0x61,
            Event::Part { .. } => 0x62,
            Event::Step { .. } => 0x63,
            _ => 0,
        }
    }

    fn end(event: usize) {
        note::<V>(format!("end of event {event:#x}"));
    }
}

/// Operations of the net of each version, and of a network plugin from v3 on.
const OPERATIONS: c_int = 0b1110;
const MESSAGES: c_int = 0b1001_0000;

/// Makes a test of a version. `named`: its events name the communicator, else its init does. A list of
/// fields has what the version lacks in others.
macro_rules! version {
    ($name:ident, $module:ident, $version:literal, $init:expr, $func:expr, $p2p:expr, $type:expr, $algo:expr, $proto:expr,
     $channels:ident, [$($named:ident)?], $mask:expr) => {
        #[test]
        fn $name() {
            use abi::$module::Event as Description;
            const ON: abi::$module::Profiler =
                nccl_net_versions::$module::table::<Noted<$version, true>>();
            let description = |kind, parent: usize| {
                // SAFETY: zero is a value of each field.
                let mut event: Description = unsafe { std::mem::zeroed() };
                event.type_ = kind;
                event.rank = 3;
                event.parentObj = without_provenance_mut(parent);
                event
            };
            let start = |mut event: Description| {
                let mut handle = without_provenance_mut(0xbad);
                // SAFETY: a place for the handle, and a description of this version.
                let result = unsafe {
                    ON.startEvent.unwrap()(without_provenance_mut(0x51), &raw mut handle, &raw mut event)
                };
                assert_eq!(result, ncclSuccess);
                handle.addr()
            };
            let init: fn(&abi::$module::Profiler, *mut Ptr, *mut c_int) -> abi::ncclResult_t = $init;
            let (mut context, mut mask) = (null_mut(), 0);
            assert_eq!(init(&ON, &raw mut context, &raw mut mask), ncclSuccess);
            assert_eq!((context.addr(), mask), (0x51, $mask));

            assert_eq!(start(description(1, 0)), 0);
            let mut coll = description(2, 0);
            coll.event.coll.func = $func;
            coll.event.coll.datatype = $type;
            coll.event.coll.algo = $algo;
            coll.event.coll.proto = $proto;
            coll.event.coll.seqNumber = 9;
            coll.event.coll.count = 1000;
            coll.event.coll.$channels = 4;
            $(coll.event.coll.$named = 0xc0; coll.event.coll.name = c"world".as_ptr();)?
            assert_eq!(start(coll), 0x61);
            let mut p2p = description(4, 0);
            p2p.event.p2p.func = $p2p;
            p2p.event.p2p.datatype = $type;
            p2p.event.p2p.count = 10;
            assert_eq!(start(p2p), 0x61);
            let mut part = description(8, 0x61);
            part.event.proxyOp.pid = 77;
            assert_eq!(start(part), 0x62);
            assert_eq!(start(description(16, 0x62)), 0x63);
            assert_eq!(start(description(32, 0x62)), 0);
            // SAFETY: handles are numbers here.
            unsafe {
                assert_eq!(ON.stopEvent.unwrap()(without_provenance_mut(0x62)), ncclSuccess);
                assert_eq!(ON.stopEvent.unwrap()(null_mut()), ncclSuccess);
                assert_eq!(ON.recordEventState.unwrap()(without_provenance_mut(0x62), 9, null_mut()), ncclSuccess);
                assert_eq!(ON.finalize.unwrap()(context), ncclSuccess);
            }
            let named: &[&str] = &[$(stringify!($named))?];
            let (in_init, in_event) = match named.is_empty() {
                true => ("Some((192, 3, 8)) Some(\"world\")", "None"),
                false => ("None None", "Some((192, \"world\"))"),
            };
            let in_p2p = if in_event == "None" { "None" } else { "Some((0, \"\"))" };
            let operation = |communicator, sequence, name, how: [&str; 2], bytes, channels| format!(
                "0x51 Operation(Operation {{ communicator: {communicator}, rank: 3, sequence: {sequence}, \
                 name: {name:?}, algorithm: {:?}, protocol: {:?}, bytes: {bytes}, channels: {channels} }})",
                how[0], how[1],
            );
            assert_eq!(notes().remove(&$version).unwrap(), [
                in_init.to_owned(),
                "0x51 Group".into(),
                operation(in_event, 9, "AllReduce", ["RING", "SIMPLE"], 4000, 4),
                operation(in_p2p, 0, "Send", ["", ""], 40, 0),
                "0x51 Part { operation: 97, pid: 77 }".into(),
                "0x51 Step { part: 98 }".into(),
                "0x51 Other".into(),
                "end of event 0x62".into(),
                "end of 0x51".into(),
            ]);

            const OFF: abi::$module::Profiler =
                nccl_net_versions::$module::table::<Noted<{ $version + 100 }, false>>();
            let (mut context, mut mask) = (without_provenance_mut(0xbad), 0);
            assert_eq!(init(&OFF, &raw mut context, &raw mut mask), ncclSuccess);
            assert_eq!((context.addr(), mask), (0, 0));
            assert_eq!(init(&OFF, null_mut(), &raw mut mask), ncclInvalidArgument);
            assert_eq!(init(&OFF, &raw mut context, null_mut()), ncclInvalidArgument);
            let mut handle = without_provenance_mut(0xbad);
            // SAFETY: a place for the handle; without a context nothing else is read.
            let result = unsafe { OFF.startEvent.unwrap()(context, &raw mut handle, null_mut()) };
            assert_eq!((result, handle.addr()), (ncclSuccess, 0));
        }
    };
}

macro_rules! numbers {
    ($name:ident, $module:ident, $version:literal) => {
        version!(
            $name,
            $module,
            $version,
            |table, context, mask| {
                // SAFETY: places, or NULL.
                unsafe { table.init.unwrap()(context, mask) }
            },
            4,
            6,
            7,
            1,
            2,
            nMaxChannels,
            [commHash],
            OPERATIONS
        );
    };
}

macro_rules! texts {
    ($name:ident, $module:ident, $version:literal, $channels:ident, [$($named:ident)?], $mask:expr, $init:expr) => {
        version!($name, $module, $version, $init, c"AllReduce".as_ptr(), c"Send".as_ptr(),
            c"ncclFloat32".as_ptr(), c"RING".as_ptr(), c"SIMPLE".as_ptr(), $channels, [$($named)?], $mask);
    };
}

/// Makes the test of a version whose init has the number of the communicator behind the context.
macro_rules! newest {
    ($($name:ident, $module:ident, $version:literal;)+) => {$(
        texts!($name, $module, $version, nChannels, [], OPERATIONS | MESSAGES, |table, context, mask| {
            let name = c"world".as_ptr();
            // SAFETY: places, or NULL; a name.
            unsafe { table.init.unwrap()(context, 0xc0, mask, name, 2, 8, 3, None) }
        });
    )+};
}

numbers!(v1_has_numbers, profiler_v1, 1);
texts!(v2_has_names, profiler_v2, 2, nMaxChannels, [commHash], OPERATIONS, |table, context, mask| {
    // SAFETY: places, or NULL.
    unsafe { table.init.unwrap()(context, mask) }
});
texts!(
    v3_has_messages,
    profiler_v3,
    3,
    nMaxChannels,
    [commHash],
    OPERATIONS | MESSAGES,
    |table, context, mask| {
        // SAFETY: places, or NULL.
        unsafe { table.init.unwrap()(context, mask) }
    }
);
texts!(
    v4_names_the_communicator,
    profiler_v4,
    4,
    nChannels,
    [],
    OPERATIONS | MESSAGES,
    |table, context, mask| {
        // SAFETY: places, or NULL; a name.
        unsafe { table.init.unwrap()(context, mask, c"world".as_ptr(), 0xc0, 2, 8, 3, None) }
    }
);
newest! {
    v5_has_its_number_first, profiler_v5, 5;
    v6_is_like_v5, profiler_v6, 6;
    v7_is_like_v6, profiler_v7, 7;
}

#[test]
fn a_panic_stays_within() {
    use abi::profiler_v7::Event as Description;
    const TABLE: abi::profiler_v7::Profiler = nccl_net_versions::profiler_v7::table::<Noted<1000, true>>();
    // SAFETY: zero is a value of each field.
    let mut event: Description = unsafe { std::mem::zeroed() };
    event.type_ = 2;
    event.event.coll.func = c"panic".as_ptr();
    event.event.coll.datatype = null();
    let mut handle = null_mut();
    // SAFETY: a place for the handle, and a description of this version.
    let result =
        unsafe { TABLE.startEvent.unwrap()(without_provenance_mut(1), &raw mut handle, &raw mut event) };
    assert_eq!((result, handle.addr()), (ncclInternalError, 0));
    assert_eq!(notes().remove(&1000).unwrap().pop().unwrap(), "a panic in profiler startEvent");
}
