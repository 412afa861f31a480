//! Panics, profiler events, log lines and symbols.

use std::ffi::{CStr, c_int, c_void};
use std::ptr;
use std::sync::Mutex;

use crate::common;
use crate::common::fake::lock;
use crate::common::net::{DATA, STALE};
use crate::common::{Act, Fake, Rig};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Level, Logger, Profiler, ProfilerEvent, ProfilerHandle, QpEvent};

every_version! {
    //= faults.md: 72
    fn a_panic_is_an_internal_error_with_its_results_written(rig) {
        let ctx = rig.init();
        let (listener, send, recv) = (rig.listen(ctx), rig.send(ctx), rig.recv(ctx));
        let (mr, net, nil) = (rig.mr(send), rig.net, ptr::null_mut());
        let (mut handle, mut data, mut tag, mut size) = ([0u8; 128], DATA, 0, 1);
        let place = handle.as_mut_ptr().cast();
        let mut request = STALE;
        assert_eq!(net.isend(send, DATA, 1, 0, nil, nil, &raw mut request), ncclSuccess);
        for call in [
            "devices", "properties", "listen", "connect", "accept", "reg_mr_send", "isend", "irecv", "iflush",
            "test", "dereg_mr", "close_send", "close_recv", "close_listen", "finalize", "init",
        ] {
            rig.record.act(call, Act::Panic);
        }
        // The report of a panic may panic too.
        for report_panics in [false, true] {
            if report_panics {
                rig.record.act("on_panic", Act::Panic);
            }
            let mut n = -9;
            assert_eq!(net.devices(&raw mut n), ncclInternalError);
            assert_eq!(n, 0);
            let mut out = [STALE; 8];
            let [a, b, c, d, e, f, g, h] = &mut out;
            assert_eq!(net.listen(ctx, 0, place, a), ncclInternalError);
            assert_eq!(net.connect(ctx, 0, None, place, b, ptr::null_mut()), ncclInternalError);
            assert_eq!(net.accept(listener, c, ptr::null_mut()), ncclInternalError);
            assert_eq!(net.reg_mr(send, DATA, 1, NCCL_PTR_HOST, d), ncclInternalError);
            assert_eq!(net.reg_mr_dma_buf(send, DATA, 1, NCCL_PTR_CUDA, 0, 1, e), ncclInternalError);
            assert_eq!(net.isend(send, DATA, 1, 0, nil, nil, f), ncclInternalError);
            let rc = net.irecv(
                recv, 1, &raw mut data, Some(&[1]), &raw mut tag, ptr::null_mut(), ptr::null_mut(), g,
            );
            assert_eq!(rc, ncclInternalError);
            let rc = net.iflush(recv, 1, &raw mut data, &raw mut size, ptr::null_mut(), h);
            assert_eq!(rc, ncclInternalError);
            assert_eq!(out, [nil; 8]);
            let mut done = -9;
            assert_eq!(net.test(request, &raw mut done, ptr::null_mut()), ncclInternalError);
            assert_eq!(done, 0);
            assert_eq!(*lock(&rig.record.panics), [
                "devices", "listen", "connect", "accept", "regMr", "regMrDmaBuf", "isend", "irecv", "iflush",
                "test",
            ]);
            lock(&rig.record.panics).clear();
        }
        // A panicking close has closed its handle.
        for rc in [ncclInternalError, ncclInvalidArgument] {
            assert_eq!(net.dereg_mr(send, mr), rc);
        }
        for rc in [ncclInternalError, ncclInvalidArgument] {
            assert_eq!(net.close_send(send), rc);
            assert_eq!(net.close_recv(recv), rc);
            assert_eq!(net.close_listen(listener), rc);
            if rig.version >= 11 {
                assert_eq!(net.finalize(ctx), rc);
            }
        }
        if rig.version >= 11 {
            let mut ctx = STALE;
            assert_eq!(net.init(&raw mut ctx, 0, None, None, None), ncclInternalError);
            assert!(ctx.is_null());
        }
    }
}

//= faults.md: 72
#[test]
fn init_succeeds_after_a_panic_in_the_first_init() {
    let rig = Rig::<101>::new(8);
    rig.record.act("init", Act::Panic);
    assert_eq!(rig.net.init(ptr::null_mut(), 0, None, None, None), ncclInternalError);
    rig.record.normal("init");
    let ctx = rig.init();
    let comm = rig.listen(ctx);
    assert_eq!(rig.net.close_listen(comm), ncclSuccess);
}

/// One call of the profiler: type, handle, plugin id, content of the slot, descriptor of a start.
type Event = (c_int, usize, i64, usize, Option<(u8, c_int, u64, c_int, c_int, usize)>);

static EVENTS: Mutex<Vec<Event>> = Mutex::new(Vec::new());

/// Accepts events with an even handle. Leaves the slot unchanged otherwise, as with an event mask.
unsafe extern "C" fn profiler(
    event: *mut *mut c_void,
    kind: c_int,
    handle: *mut c_void,
    plugin: i64,
    data: *mut c_void,
) -> ncclResult_t {
    // SAFETY: the adapters pass a slot, and a descriptor with a start.
    unsafe {
        let descr = data
            .cast::<ncclProfilerNetIbDescr_v1_t>()
            .as_ref()
            .map(|d| (d.type_, d.qp.device, d.qp.wr_id, d.qp.opcode, d.qp.qpNum, d.qp.length));
        lock(&EVENTS).push((kind, handle.addr(), plugin, (*event).addr(), descr));
        if kind == 0 && handle.addr().is_multiple_of(2) {
            *event = ptr::without_provenance_mut(0xE0);
        }
    }
    ncclSuccess
}

#[test]
fn profiler_events_start_and_stop_safely() {
    let rig = Rig::<102>::new(12);
    let mut ctx = STALE;
    assert_eq!(rig.net.init(&raw mut ctx, 0, None, None, Some(profiler)), ncclSuccess);
    let given: Profiler = lock(&rig.record.init).and_then(|i| i.profiler).expect("v12 has one");
    let send = rig.send(ctx);
    let handle_of = |p: usize| {
        let (nil, mut request) = (ptr::null_mut(), STALE);
        let p = ptr::without_provenance_mut(p);
        assert_eq!(rig.net.isend(send, DATA, 1, 0, nil, p, &raw mut request), ncclSuccess);
        *lock(&rig.record.profiler)
    };
    let qp = QpEvent { device: 1, wr_id: 2, opcode: 3, qp_num: 4, length: 5 };
    let mut slot = ProfilerEvent::default();

    // Without a handle there is no call: NCCL would read through NULL.
    assert_eq!(handle_of(0), ProfilerHandle::NONE);
    given.start(&mut slot, handle_of(0), &qp);
    given.stop(&mut slot);
    assert!(lock(&EVENTS).is_empty() && slot.is_none());

    given.start(&mut slot, handle_of(0x40), &qp);
    assert!(!slot.is_none());
    assert_eq!(lock(&EVENTS).pop(), Some((0, 0x40, 0x10001, 0, Some((1, 1, 2, 3, 4, 5)))));
    // A new start clears the old event from the slot.
    given.start(&mut slot, handle_of(0x41), &qp);
    assert_eq!(lock(&EVENTS).pop(), Some((0, 0x41, 0x10001, 0, Some((1, 1, 2, 3, 4, 5)))));
    // The profiler did not accept the event, so there is nothing to stop.
    assert!(slot.is_none());
    given.stop(&mut slot);
    assert!(lock(&EVENTS).is_empty());
    given.start(&mut slot, handle_of(0x42), &qp);
    given.stop(&mut slot);
    assert_eq!(lock(&EVENTS).pop(), Some((1, 0, 0, 0xE0, None)));
    given.stop(&mut slot);
    assert_eq!(lock(&EVENTS).len(), 1, "the start only");
    assert_eq!(rig.net.close_send(send), ncclSuccess);
    assert_eq!(rig.net.finalize(ctx), ncclSuccess);
}

#[test]
fn only_v10_and_later_have_a_profiler() {
    fn given<const ID: u32>(version: u32) -> bool {
        let rig = Rig::<ID>::new(version);
        let mut ctx = STALE;
        assert_eq!(rig.net.init(&raw mut ctx, 0, None, None, Some(profiler)), ncclSuccess);
        assert_eq!(rig.net.finalize(ctx), ncclSuccess);
        lock(&rig.record.init).expect("init came through").profiler.is_some()
    }
    assert!(!given::<126>(6) && !given::<127>(7) && !given::<128>(8) && !given::<129>(9));
    assert!(given::<130>(10) && given::<131>(11) && given::<132>(12));
}

#[test]
fn a_logger_in_rust_receives_every_argument() {
    static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
    fn log(level: Level, file: &CStr, line: c_int, text: &CStr) {
        lock(&LINES).push(format!("{level:?} {file:?} {line} {text:?}"));
    }
    Logger::from_fn(log).log(Level::Info(NCCL_INIT | NCCL_NET), c"f", 3, c"100% of %s");
    assert_eq!(*lock(&LINES), [r#"Info(17) "f" 3 "100% of %s""#]);
}

mod symbols {
    use super::*;
    nccl_net_versions::export!(Fake<103>);

    /// The tables by their symbols, as the linker sees them.
    mod by_name {
        use super::*;
        macro_rules! names {
            ($($version:ident: $plugin:ident $alias:ident;)+) => {
                #[allow(clashing_extern_declarations)]
                unsafe extern "C" {
                    $(pub(super) safe static $plugin: $version::Net;)+
                    $(pub(super) safe static $alias: $version::Net;)+
                }
                #[test]
                #[cfg_attr(miri, ignore = "miri has no extern statics")]
                fn every_version_is_exported_under_both_names() {
                    $(for table in [&$plugin, &$alias] {
                        let made = nccl_net_versions::$version::table::<Fake<103>>();
                        // SAFETY: a table's name lives as long as the program.
                        assert_eq!(unsafe { CStr::from_ptr(table.name) }, c"Fake");
                        assert_eq!(table.closeListen.map(|f| f as usize), made.closeListen.map(|f| f as usize));
                        let mut n: c_int = 0;
                        let devices = table.devices.expect("never NULL");
                        // SAFETY: a writable int.
                        assert_eq!(unsafe { devices(&raw mut n) }, ncclSuccess);
                        assert_eq!(n, 2);
                    })+
                }
            };
        }
        names! {
            v6: ncclNetPlugin_v6 ncclNet_v6;
            v7: ncclNetPlugin_v7 ncclNet_v7;
            v8: ncclNetPlugin_v8 ncclNet_v8;
            v9: ncclNetPlugin_v9 ncclNet_v9;
            v10: ncclNetPlugin_v10 ncclNet_v10;
            v11: ncclNetPlugin_v11 ncclNet_v11;
            v12: ncclNetPlugin_v12 ncclNet_v12;
        }
    }
}
