//! NCCL's operations in the statistics page: its profiler table, called as NCCL does, joined with the
//! messages that the network table sends.

use std::ffi::{c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::atomic::{AtomicUsize, Ordering};

use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::table::{Ptr, set_profiler, set_profiler_handles, table};
use mpib_tests::{here, isolated, mpib};
use nccl_net_abi as abi;
use nccl_net_abi::profiler_v7::{Event, Profiler};
use nccl_net_mpib::ncclProfiler_v7 as PROFILER;
use nccl_net_mpib_agent_iface::stats::{Communicator, STATS_OPERATIONS, StatsPage, pages_of};

const ON: (&str, &str) = ("NCCL_PROFILER_PLUGIN", "mpib");
/// What the plugin is to be asked for: operations, parts, steps, and messages of network plugins.
const MASK: c_int = 0b1001_1110;
const MIB: usize = 1 << 20;

/// The context of the profiler's communicator, for [`callback`].
static CONTEXT: AtomicUsize = AtomicUsize::new(0);

/// NCCL's callback for network plugins: passes events on to the profiler. `handle` is that of a step.
///
/// # Safety
/// As NCCL's.
unsafe extern "C" fn callback(
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
fn stop(event: Ptr) {
    // SAFETY: an event of a start.
    assert_eq!(unsafe { PROFILER.stopEvent.unwrap()(event) }, abi::ncclSuccess);
}

fn description(kind: i64, parent: Ptr) -> Event {
    // SAFETY: zero is a value of each field.
    let mut event: Event = unsafe { std::mem::zeroed() };
    event.type_ = kind.try_into().unwrap();
    event.parentObj = parent;
    event
}

/// A communicator as NCCL profiles it.
struct Profiled(Ptr);

impl Profiled {
    /// Returns it, or the mask if the profiler wants nothing.
    fn new(profiler: &Profiler) -> Result<Self, c_int> {
        let (mut context, mut mask) = (null_mut(), 0);
        // SAFETY: places for the results, and a name.
        let result = unsafe {
            profiler.init.unwrap()(
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

    fn operation(&self, sequence: u64) -> Ptr {
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
    fn part(&self, operation: Ptr, process: u32) -> Ptr {
        let mut event = description(abi::ncclProfileProxyOp, operation);
        event.event.proxyOp.pid = process.cast_signed();
        self.start(event)
    }

    /// Sends a message for a step of a part.
    fn message(&self, pair: &Pair, part: Ptr, bytes: usize) {
        let step = self.start(description(abi::ncclProfileProxyStep, part));
        set_profiler_handles(Some([step; 8]));
        pair.message(bytes, bytes, 1);
        set_profiler_handles(None);
        stop(step);
    }

    fn close(self) {
        // SAFETY: a context of init.
        assert_eq!(unsafe { PROFILER.finalize.unwrap()(self.0) }, abi::ncclSuccess);
    }
}

/// Reads what the page of this process has.
fn page() -> (StatsPage, Vec<Communicator>) {
    let page = pages_of(std::process::id()).unwrap().remove(0);
    let communicators = page.communicators();
    (page, communicators)
}

#[test]
fn an_operation_has_what_its_messages_have_sent_on_each_rail() {
    isolated(here!(), &mpib("256", &[ON]), || {
        set_profiler(Some(callback));
        let ctx = init(table(12));
        let world = Profiled::new(&PROFILER).unwrap();
        let pair = connect(table(12), ctx, 0);
        let quiet = world.operation(1);
        let operation = world.operation(2);
        // Its kernel is launched.
        stop(operation);
        let parts = [0; 2].map(|_| world.part(operation, std::process::id()));
        assert!(world.part(operation, 1).is_null(), "an operation of another process");
        world.message(&pair, parts[0], MIB);
        stop(parts[0]);
        let running = page().1[0].operations[1].clone();
        assert!(running.is_running && running.took().is_none(), "{running:?}");
        world.message(&pair, parts[1], MIB);
        stop(parts[1]);
        pair.message(MIB, MIB, 1);

        let (page, communicators) = page();
        let [communicator] = &communicators[..] else { panic!("{communicators:?}") };
        let Communicator { id, rank, ranks, begun, dropped, .. } = *communicator;
        assert_eq!((id, rank, ranks, begun, dropped), (0xc0ffee, 3, 8, 2, 0));
        assert_eq!(communicator.name, "world");
        let [first, done] = &communicator.operations[..] else { panic!("{communicator:?}") };
        assert_eq!((first.sequence, first.begun, first.took()), (1, None, None));
        assert_eq!((done.sequence, done.bytes, done.channels), (2, 4 << 20, 2));
        assert_eq!([&done.name, &done.algorithm, &done.protocol], ["AllReduce", "RING", "SIMPLE"]);
        assert!(done.took().is_some_and(|took| took > 0), "{done:?}");
        let ports = page.ports();
        let rails: Vec<_> = done.rails.iter().map(|r| (ports[r.port].name.as_str(), r.bytes)).collect();
        assert_eq!(rails, [("soft0:1", 3 << 19), ("soft1:1", 1 << 19)]);
        assert!(done.rails.iter().all(|rail| rail.in_flight > 0), "{done:?}");
        assert!(!quiet.is_null());
        world.close();
        assert_eq!(page.communicators(), []);
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
        assert_eq!(take_warnings(), Vec::<String>::new());
    });
}

#[test]
fn an_operation_that_was_overwritten_counts_nothing() {
    isolated(here!(), &mpib("256", &[ON]), || {
        set_profiler(Some(callback));
        let ctx = init(table(12));
        let world = Profiled::new(&PROFILER).unwrap();
        let pair = connect(table(12), ctx, 0);
        let old = world.operation(1);
        (2..=STATS_OPERATIONS as u64 + 1).for_each(|n| assert!(!world.operation(n).is_null()));
        assert!(world.part(old, std::process::id()).is_null());
        // The place of one that is under way is not taken.
        let busy = world.operation(500);
        let part = world.part(busy, std::process::id());
        let left = (0..STATS_OPERATIONS as u64).filter(|n| world.operation(501 + n).is_null());
        assert_eq!(left.count(), 1);
        world.message(&pair, part, MIB);
        stop(part);
        let communicators = page().1;
        assert_eq!((communicators[0].begun, communicators[0].dropped), (STATS_OPERATIONS as u64 * 2 + 2, 1));
        let sent: Vec<_> = communicators[0].operations.iter().filter(|o| !o.rails.is_empty()).collect();
        assert_eq!(sent.iter().map(|o| o.sequence).collect::<Vec<_>>(), [500]);
        // It is the slowest one of those that are overwritten from here on.
        (0..STATS_OPERATIONS as u64).for_each(|n| assert!(!world.operation(1000 + n).is_null()));
        let slowest = page().1.remove(0).slowest;
        assert_eq!(slowest.iter().map(|o| o.sequence).collect::<Vec<_>>(), [500]);
        assert_eq!(slowest[0].rails, sent[0].rails);
        world.close();
        pair.close();
        assert_eq!(table(12).finalize(ctx), Success);
    });
}

#[test]
fn without_the_variable_nothing_is_reported() {
    isolated(here!(), &mpib("256", &[]), || {
        let ctx = init(table(12));
        assert_eq!(Profiled::new(&PROFILER).map(drop), Err(0));
        assert_eq!(page().1, []);
        assert_eq!(table(12).finalize(ctx), Success);
    });
}
