//! init, connect, createContext, regMrSym and the other calls off the data path: every table of
//! one-sided transfers with a recording fake.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use crate::common;
use crate::common::fake::lock;
use crate::common::net::{DATA, Net, Ptr, STALE};
use crate::common::rma::{Config, Open, Rig, Rma};
use crate::common::{Act, Fake};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, Refusal};

const CONFIG: Config = Config { contexts: 4, class: 106, stride: 2 };

every_rma_version! {
    fn a_life_passes_every_handle(rig) {
        let open = rig.open();
        let loggers = &rig.record.loggers;
        assert_eq!(loggers.load(std::sync::atomic::Ordering::Relaxed), 1);
        let mut error = false;
        assert_eq!(rig.rma.query_last_error(open.rma, &raw mut error), ncclSuccess);
        assert!(error);
        rig.record.act("has_error", Act::NotNow);
        assert_eq!(rig.rma.query_last_error(open.rma, &raw mut error), ncclSuccess);
        assert!(!error);
        for (wrong, refusal) in [
            (ptr::null_mut(), Refusal::Null("rmaCtx")),
            (open.ctx, Refusal::WrongHandle { what: "rmaCtx", expected: "rmaCtx" }),
        ] {
            error = true;
            assert_eq!(rig.rma.query_last_error(wrong, &raw mut error), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA queryLastError", refusal)));
            assert!(!error);
        }
        rig.close(open);
        assert_eq!(rig.record.calls(), [
            format!("init v{} id=7", rig.version),
            "listen ctx=1 dev=0 dirt=0".into(),
            "connect listen=2 rank=0 [(165, 0)]".into(),
            "create_context coll=3 RmaConfig { contexts: 4, traffic_class: None, rank_stride: 1 }".into(),
            "reg_mr coll=3 4096+64 Host None so=false grows=false".into(),
            "reg_mr coll=3 4096+64 Host None so=false grows=false".into(),
            "has_error ctx=4".into(),
            "has_error ctx=4".into(),
            "dereg_mr coll=3 mr=5".into(),
            "dereg_mr coll=3 mr=6".into(),
            "destroy_context ctx=4".into(),
            "close_coll coll=3".into(),
            "close_listen listen=2".into(),
            "finalize ctx=1".into(),
        ]);
    }
}

every_rma_version! {
    fn a_device_is_a_gin_proxy(rig) {
        let mut n = -1;
        assert_eq!(rig.rma.devices(&raw mut n), ncclSuccess);
        assert_eq!(n, 2);
        let mut props = MaybeUninit::<v12::Props>::uninit();
        assert_eq!(rig.rma.properties(1, props.as_mut_ptr()), ncclSuccess);
        // SAFETY: the call has written every field.
        let props = unsafe { props.assume_init() };
        // SAFETY: a name lives as long as the program.
        assert_eq!(unsafe { CStr::from_ptr(props.name) }, c"fake0");
        assert_eq!(props.netDeviceType, NCCL_NET_DEVICE_GIN_PROXY);
        assert_eq!((props.netDeviceVersion, props.ptrSupport, props.maxRecvs), (9, 7, 5));
        assert_eq!((props.speed, props.port, props.railId, props.planeId), (400_000, 3, 12, 13));
        assert_eq!((props.vProps.ndevs, props.vProps.devs[0]), (1, 1));
        assert_eq!(rig.record.calls(), ["devices ", "properties dev=1"]);

        let mut props = MaybeUninit::<v12::Props>::uninit();
        assert_eq!(rig.rma.properties(-1, props.as_mut_ptr()), ncclInvalidArgument);
        let refusal = Refusal::Negative { what: "dev", value: -1 };
        assert_eq!(rig.record.refusal(), Some(("RMA getProperties", refusal)));
        assert_eq!(rig.rma.properties(0, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.rma.devices(ptr::null_mut()), ncclInvalidArgument);
    }
}

#[test]
fn v16_asks_for_the_properties_of_a_group() {
    let rig = Rig::<701>::new(16);
    let open = rig.open();
    let Rma::V16(table) = rig.rma else { panic!("v16") };
    let ask = table.getRmaProperties.expect("never NULL");
    for (act, flushes) in [(None, true), (Some(Act::NotNow), false)] {
        act.into_iter().for_each(|act| rig.record.act("coll_properties", act));
        let mut props = MaybeUninit::uninit();
        // SAFETY: a live group, and a writable place.
        assert_eq!(unsafe { ask(open.coll, props.as_mut_ptr()) }, ncclSuccess);
        // SAFETY: the call has written it.
        assert_eq!(unsafe { props.assume_init() }.flushesAllPutsOnAnySignal, flushes);
        assert_eq!(rig.record.calls().pop().as_deref(), Some("coll_properties coll=3"));
    }
    let mut props = MaybeUninit::uninit();
    // SAFETY: the adapters refuse both calls.
    unsafe {
        assert_eq!(ask(open.coll, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(ask(open.ctx, props.as_mut_ptr()), ncclInvalidArgument);
    }
    let refusal = Refusal::WrongHandle { what: "collComm", expected: "collComm" };
    assert_eq!(rig.record.refusal(), Some(("RMA getRmaProperties", refusal)));
    rig.close(open);
}

every_rma_version! {
    fn connect_passes_all_handles_and_no_context(rig) {
        let open = rig.open();
        let net = Net::of::<Fake<ID>>(12);
        let mut network = STALE;
        assert_eq!(net.init(&raw mut network, 0, None, None, None), ncclSuccess);
        let mut handles = [[0u8; 128]; 3];
        for (i, handle) in handles.iter_mut().enumerate() {
            (handle[0], handle[127]) = (10 + i as u8, 20 + i as u8);
        }
        let mut places = handles.each_mut().map(|handle| handle.as_mut_ptr().cast());
        // NCCL passes its network context for ncclPutSignal.
        for ctx in [open.ctx, network, ptr::null_mut(), STALE] {
            let mut coll = STALE;
            let rc = rig.rma.connect(ctx, places.as_mut_ptr(), 3, 2, open.listen, &raw mut coll);
            assert_eq!(rc, ncclSuccess);
            let seen = "connect listen=2 rank=2 [(10, 20), (11, 21), (12, 22)]";
            assert_eq!(rig.record.calls().pop().as_deref(), Some(seen));
            assert_eq!(rig.rma.close_coll(coll), ncclSuccess);
        }

        let seen = rig.record.calls().len();
        let mut torn = places;
        torn[1] = ptr::null_mut();
        for (places, nranks, rank, listen, refusal) in [
            (ptr::null_mut(), 3, 0, open.listen, Refusal::Null("handles")),
            (torn.as_mut_ptr(), 3, 0, open.listen, Refusal::Null("handle")),
            (places.as_mut_ptr(), -1, 0, open.listen, Refusal::Negative { what: "nranks", value: -1 }),
            (places.as_mut_ptr(), 3, -2, open.listen, Refusal::Negative { what: "rank", value: -2 }),
            (places.as_mut_ptr(), 3, 0, ptr::null_mut(), Refusal::Null("listenComm")),
            (
                places.as_mut_ptr(), 3, 0, open.coll,
                Refusal::WrongHandle { what: "listenComm", expected: "listenComm" },
            ),
        ] {
            let mut coll = STALE;
            let rc = rig.rma.connect(open.ctx, places, nranks, rank, listen, &raw mut coll);
            assert_eq!(rc, ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA connect", refusal)));
            assert!(coll.is_null());
        }
        let rc = rig.rma.connect(open.ctx, places.as_mut_ptr(), 3, 0, open.listen, ptr::null_mut());
        assert_eq!(rc, ncclInvalidArgument);
        assert_eq!(rig.record.calls().len(), seen);
        assert_eq!(net.finalize(network), ncclSuccess);
        rig.close(open);
    }
}

every_rma_version! {
    fn the_handle_of_listen_is_clean(rig) {
        let open = rig.open();
        let (mut handle, mut comm) = ([0xFF_u8; 128], STALE);
        let place: Ptr = handle.as_mut_ptr().cast();
        assert_eq!(rig.rma.listen(open.ctx, 1, place, &raw mut comm), ncclSuccess);
        assert_eq!(rig.record.calls().pop().as_deref(), Some("listen ctx=1 dev=1 dirt=0"));
        assert_eq!(rig.rma.close_listen(comm), ncclSuccess);
        for (ctx, dev, handle, refusal) in [
            (open.ctx, -1, place, Refusal::Negative { what: "dev", value: -1 }),
            (open.ctx, 0, ptr::null_mut(), Refusal::Null("handle")),
            (ptr::null_mut(), 0, place, Refusal::Null("ctx")),
            (open.coll, 0, place, Refusal::WrongHandle { what: "ctx", expected: "context" }),
        ] {
            comm = STALE;
            assert_eq!(rig.rma.listen(ctx, dev, handle, &raw mut comm), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA listen", refusal)));
            assert!(comm.is_null());
        }
        assert_eq!(rig.rma.listen(open.ctx, 0, place, ptr::null_mut()), ncclInvalidArgument);
        rig.close(open);
    }
}

every_rma_version! {
    fn a_context_has_its_settings(rig) {
        let open = rig.open();
        for (class, given) in [
            (106, "Some(106)"),
            (NCCL_RMA_TRAFFIC_CLASS_UNDEF, "None"),
            (NCCL_NET_TRAFFIC_CLASS_UNDEF, "None"),
        ] {
            let mut ctx = STALE;
            let config = Config { class, ..CONFIG };
            assert_eq!(rig.rma.create_context(open.coll, Some(config), &raw mut ctx), ncclSuccess);
            let stride = if rig.version == 13 { 1 } else { 2 };
            assert_eq!(
                rig.record.calls().pop(),
                Some(format!(
                    "create_context coll=3 RmaConfig {{ contexts: 4, traffic_class: {given}, \
                     rank_stride: {stride} }}"
                ))
            );
            assert_eq!(rig.rma.destroy_context(ctx), ncclSuccess);
        }
        let mut refused = vec![
            (open.coll, None, Refusal::Null("config")),
            (
                open.coll,
                Some(Config { contexts: -1, ..CONFIG }),
                Refusal::Negative { what: "nContexts", value: -1 },
            ),
            (open.ctx, Some(CONFIG), Refusal::WrongHandle { what: "collComm", expected: "collComm" }),
        ];
        if rig.version > 13 {
            let config = Config { stride: -3, ..CONFIG };
            refused.push((open.coll, Some(config), Refusal::Negative { what: "rankStride", value: -3 }));
        }
        let seen = rig.record.calls().len();
        for (coll, config, refusal) in refused {
            let mut ctx = STALE;
            assert_eq!(rig.rma.create_context(coll, config, &raw mut ctx), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA createContext", refusal)));
            assert!(ctx.is_null());
        }
        assert_eq!(rig.rma.create_context(open.coll, Some(CONFIG), ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.calls().len(), seen);
        rig.close(open);
    }
}

every_rma_version! {
    fn what_a_failed_call_left_is_no_error(rig) {
        let open = rig.open();
        // NCCL 2.32.3 destroys the context that createContext did not make.
        rig.record.act("create_context", Act::Fail(Failure::Remote));
        let mut ctx = STALE;
        assert_eq!(rig.rma.create_context(open.coll, Some(CONFIG), &raw mut ctx), ncclRemoteError);
        assert!(ctx.is_null());
        rig.record.act("init", Act::Fail(Failure::System));
        let mut context = STALE;
        assert_eq!(rig.rma.init(&raw mut context, 1, None), ncclSystemError);
        assert!(context.is_null());
        rig.record.act("reg_mr", Act::Fail(Failure::System));
        let mut mhandle = STALE;
        let rc = rig.rma.reg_mr(open.coll, DATA, 64, NCCL_PTR_HOST, 0, &raw mut mhandle);
        assert_eq!(rc, ncclSystemError);
        assert!(mhandle.is_null());

        let seen = rig.record.calls().len();
        assert_eq!(rig.rma.destroy_context(ctx), ncclSuccess);
        assert_eq!(rig.rma.finalize(context), ncclSuccess);
        assert_eq!(rig.rma.dereg_mr(open.coll, mhandle), ncclSuccess);
        assert_eq!(rig.record.calls().len(), seen);
        assert_eq!(rig.rma.init(ptr::null_mut(), 1, None), ncclInvalidArgument);
        rig.close(open);
    }
}

every_rma_version! {
    fn a_registration_passes_its_memory_and_flags(rig) {
        let open = rig.open();
        for (mem, kind) in [(NCCL_PTR_HOST, "Host"), (NCCL_PTR_CUDA, "Cuda"), (NCCL_PTR_DMABUF, "DmaBuf")] {
            // The last flag does not exist.
            for (flags, given) in [
                (0, "so=false grows=false"),
                (NCCL_NET_MR_FLAG_FORCE_SO, "so=true grows=false"),
                (NCCL_NET_MR_FLAG_SIGNAL_NEVER_RESET, "so=false grows=true"),
                (3 | 1 << 63, "so=true grows=true"),
            ] {
                let mut mhandle = STALE;
                let rc = rig.rma.reg_mr(open.coll, DATA, 1 << 33, mem, flags, &raw mut mhandle);
                assert_eq!(rc, ncclSuccess);
                let call = format!("reg_mr coll=3 4096+8589934592 {kind} None {given}");
                assert_eq!(rig.record.calls().pop(), Some(call));
                assert_eq!(rig.rma.dereg_mr(open.coll, mhandle), ncclSuccess);

                mhandle = STALE;
                let rc = rig.rma.reg_mr_dma_buf(open.coll, mem, 1 << 40, 6, flags, &raw mut mhandle);
                assert_eq!(rc, ncclSuccess);
                let dma_buf = "Some(DmaBuf { offset: 1099511627776, fd: 6 })";
                let call = format!("reg_mr coll=3 4096+64 {kind} {dma_buf} {given}");
                assert_eq!(rig.record.calls().pop(), Some(call));
                assert_eq!(rig.rma.dereg_mr(open.coll, mhandle), ncclSuccess);
            }
        }
        rig.close(open);
    }
}

every_rma_version! {
    fn unusable_memory_is_refused(rig) {
        let open = rig.open();
        let seen = rig.record.calls().len();
        let foreign = Refusal::WrongHandle { what: "collComm", expected: "collComm" };
        for (coll, data, size, mem, refusal) in [
            (open.coll, DATA, 1, 0, Refusal::MemKind(0)),
            (open.coll, DATA, 1, 3, Refusal::MemKind(3)),
            (open.coll, ptr::null_mut(), 1, NCCL_PTR_HOST, Refusal::Null("data")),
            (open.rma, DATA, 1, NCCL_PTR_HOST, foreign),
        ] {
            let mut mhandle = STALE;
            let rc = rig.rma.reg_mr(coll, data, size, mem, 0, &raw mut mhandle);
            assert_eq!(rc, ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA regMrSym", refusal)));
            assert!(mhandle.is_null());
        }
        for (mem, fd, refusal) in [
            (NCCL_PTR_CUDA, -1, Refusal::Negative { what: "fd", value: -1 }),
            (8, 6, Refusal::MemKind(8)),
        ] {
            let mut mhandle = STALE;
            let rc = rig.rma.reg_mr_dma_buf(open.coll, mem, 0, fd, 0, &raw mut mhandle);
            assert_eq!(rc, ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA regMrSymDmaBuf", refusal)));
            assert!(mhandle.is_null());
        }
        let rc = rig.rma.reg_mr(open.coll, DATA, 1, NCCL_PTR_HOST, 0, ptr::null_mut());
        assert_eq!(rc, ncclInvalidArgument);
        assert_eq!(rig.rma.dereg_mr(open.rma, open.mr), ncclInvalidArgument);
        assert_eq!(rig.rma.dereg_mr(open.coll, open.rma), ncclInvalidArgument);
        let refusal = Refusal::WrongHandle { what: "mhandle", expected: "mhandle" };
        assert_eq!(rig.record.refusal(), Some(("RMA deregMrSym", refusal)));
        assert_eq!(rig.record.calls().len(), seen);
        rig.close(open);
    }
}

/// Makes each call that writes a result fail by `act`, and expects `code` and an empty result.
fn without_results<const ID: u32>(rig: Rig<ID>, open: &Open, act: Act, code: ncclResult_t) {
    for call in
        ["init", "devices", "properties", "listen", "connect", "create_context", "reg_mr", "has_error"]
    {
        rig.record.act(call, act);
    }
    let mut handle = [0u8; 128];
    let mut place: Ptr = handle.as_mut_ptr().cast();
    let mut out = [STALE; 6];
    let [a, b, c, d, e, f] = &mut out;
    let (mut n, mut error, mut props): (c_int, _, _) = (7, true, MaybeUninit::uninit());
    assert_eq!(rig.rma.init(a, 0, None), code);
    assert_eq!(rig.rma.devices(&raw mut n), code);
    assert_eq!(rig.rma.properties(0, props.as_mut_ptr()), code);
    assert_eq!(rig.rma.listen(open.ctx, 0, place, b), code);
    assert_eq!(rig.rma.connect(open.ctx, &raw mut place, 1, 0, open.listen, c), code);
    assert_eq!(rig.rma.create_context(open.coll, Some(CONFIG), d), code);
    assert_eq!(rig.rma.reg_mr(open.coll, DATA, 1, NCCL_PTR_HOST, 0, e), code);
    assert_eq!(rig.rma.reg_mr_dma_buf(open.coll, NCCL_PTR_CUDA, 0, 1, 0, f), code);
    assert_eq!(rig.rma.query_last_error(open.rma, &raw mut error), code);
    assert_eq!((out, n, error), ([ptr::null_mut(); 6], 0, false));
}

every_rma_version! {
    //= faults.md: 72
    fn a_failure_or_a_panic_leaves_no_result(rig) {
        let open = rig.open();
        without_results(rig, &open, Act::Fail(Failure::Remote), ncclRemoteError);
        assert!(lock(&rig.record.panics).is_empty());
        without_results(rig, &open, Act::Panic, ncclInternalError);
        assert_eq!(*lock(&rig.record.panics), [
            "RMA init", "RMA devices", "RMA getProperties", "RMA listen", "RMA connect",
            "RMA createContext", "RMA regMrSym", "RMA regMrSymDmaBuf", "RMA queryLastError",
        ]);
        // A close that panics or fails has closed its handle.
        for (call, act) in [
            ("dereg_mr", Act::Panic),
            ("destroy_context", Act::Fail(Failure::Internal)),
            ("close_coll", Act::Panic),
            ("close_listen", Act::Fail(Failure::Internal)),
            ("finalize", Act::Panic),
        ] {
            rig.record.act(call, act);
        }
        for rc in [ncclInternalError, ncclInvalidArgument] {
            assert_eq!(rig.rma.dereg_mr(open.coll, open.mr), rc);
            assert_eq!(rig.rma.dereg_mr(open.coll, open.other_mr), rc);
        }
        for rc in [ncclInternalError, ncclInvalidArgument] {
            assert_eq!(rig.rma.destroy_context(open.rma), rc);
            assert_eq!(rig.rma.close_coll(open.coll), rc);
            assert_eq!(rig.rma.close_listen(open.listen), rc);
            assert_eq!(rig.rma.finalize(open.ctx), rc);
        }
    }
}
