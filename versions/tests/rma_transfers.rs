//! iput, iputSignal, iget, iflush, test, rmaProgress: every table with a recording fake.

use std::ffi::c_int;
use std::ptr;

use crate::common;
use crate::common::net::{DATA, Net, Ptr, STALE};
use crate::common::rma::{At, Open, SignalOf, Transfer};
use crate::common::{Act, Fake};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, Refusal};

const NO_PLACE: At = At(ptr::null_mut(), 0);

fn transfer(open: &Open) -> Transfer {
    let (first, second) = (At(open.mr, 11), At(open.other_mr, 1 << 40));
    Transfer { ctx: open.rma, context: 3, first, size: 1 << 33, second, rank: u32::MAX, flags: 0 }
}

fn signal(open: &Open) -> SignalOf {
    SignalOf { at: At(open.other_mr, 24), value: 1 << 50, op: NCCL_NET_SIGNAL_OP_ADD, strong: true }
}

every_rma_version! {
    fn a_put_passes_its_arguments(rig) {
        let open = rig.open();
        // The last flag does not exist.
        for (flags, set) in [(0, false), (ncclRmaOptFlagsAggregateRequests, true), (1 << 31, false)] {
            let more = set && rig.version >= 15;
            let mut request = STALE;
            let call = Transfer { flags, ..transfer(&open) };
            assert_eq!(rig.rma.iput(call, &raw mut request), ncclSuccess);
            let put = "iput ctx=4 context=3 rank=4294967295 size=8589934592 src=5+11 dst=6+1099511627776";
            assert_eq!(rig.record.calls().pop(), Some(format!("{put} more={more} signal=-")));
            assert!(!request.is_null() && request != STALE);

            assert_eq!(rig.rma.iput_signal(call, signal(&open), &raw mut request), ncclSuccess);
            let signal = "6+24 value=1125899906842624 strong=true";
            assert_eq!(rig.record.calls().pop(), Some(format!("{put} more={more} signal={signal}")));
        }
        rig.close(open);
    }
}

every_rma_version! {
    fn a_signal_adds_its_value_or_one(rig) {
        let (open, mut request) = (rig.open(), STALE);
        let nothing = Transfer { first: NO_PLACE, size: 0, second: NO_PLACE, ..transfer(&open) };
        for (op, value) in [(NCCL_NET_SIGNAL_OP_INC, 1_u64), (NCCL_NET_SIGNAL_OP_ADD, 77)] {
            for strong in [false, true] {
                let signal = SignalOf { value: 77, op, strong, ..signal(&open) };
                assert_eq!(rig.rma.iput_signal(nothing, signal, &raw mut request), ncclSuccess);
                let strong = strong || rig.version == 13;
                let signal = format!("signal=6+24 value={value} strong={strong}");
                let call = rig.record.calls().pop().unwrap_or_default();
                assert!(call.ends_with(&signal) && call.contains(" size=0 src=- dst=- "), "{call}");
            }
        }
        let seen = rig.record.calls().len();
        for op in [0, 3, 4, u32::MAX] {
            request = STALE;
            let signal = SignalOf { op, ..signal(&open) };
            assert_eq!(rig.rma.iput_signal(nothing, signal, &raw mut request), ncclInvalidArgument);
            assert!(request.is_null());
            assert_eq!(rig.record.refusal(), Some(("RMA iputSignal", Refusal::SignalOp(op))));
        }
        let signal = SignalOf { at: NO_PLACE, ..signal(&open) };
        assert_eq!(rig.rma.iput_signal(nothing, signal, &raw mut request), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iputSignal", Refusal::Null("signalMhandle"))));
        assert_eq!(rig.record.calls().len(), seen);
        rig.close(open);
    }
}

every_rma_version! {
    fn data_needs_its_registrations(rig) {
        let (open, mut request) = (rig.open(), STALE);
        let seen = rig.record.calls().len();
        for (call, what) in [
            (Transfer { first: NO_PLACE, ..transfer(&open) }, "srcMhandle"),
            (Transfer { second: NO_PLACE, ..transfer(&open) }, "dstMhandle"),
        ] {
            request = STALE;
            assert_eq!(rig.rma.iput(call, &raw mut request), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA iput", Refusal::Null(what))));
            assert!(request.is_null());
        }
        for (call, what) in [
            (Transfer { first: NO_PLACE, size: 0, ..transfer(&open) }, "remoteMhandle"),
            (Transfer { second: NO_PLACE, size: 0, ..transfer(&open) }, "localMhandle"),
        ] {
            request = STALE;
            assert_eq!(rig.rma.iget(call, &raw mut request), ncclInvalidArgument);
            assert_eq!(rig.record.refusal(), Some(("RMA iget", Refusal::Null(what))));
            assert!(request.is_null());
        }
        assert_eq!(rig.record.calls().len(), seen);
        // A registration that comes without data is passed on.
        assert_eq!(rig.rma.iput(Transfer { size: 0, ..transfer(&open) }, &raw mut request), ncclSuccess);
        let call = rig.record.calls().pop().unwrap_or_default();
        assert!(call.contains("size=0 src=5+11 dst=6+1099511627776"), "{call}");
        rig.close(open);
    }
}

every_rma_version! {
    fn a_get_and_a_flush_pass_their_arguments(rig) {
        let (open, mut request) = (rig.open(), STALE);
        for (flags, set) in [(0, false), (ncclRmaOptFlagsAggregateRequests, true)] {
            let more = set && rig.version >= 15;
            let call = Transfer { flags, ..transfer(&open) };
            assert_eq!(rig.rma.iget(call, &raw mut request), ncclSuccess);
            assert!(!request.is_null() && request != STALE);
            let get = "iget ctx=4 context=3 rank=4294967295 size=8589934592 remote=5+11";
            assert_eq!(rig.record.calls().pop(), Some(format!("{get} local=6+1099511627776 more={more}")));
        }
        request = STALE;
        assert_eq!(rig.rma.iflush(open.rma, 2, open.other_mr, 9, &raw mut request), ncclSuccess);
        assert_eq!(rig.record.calls().pop().as_deref(), Some("iflush ctx=4 context=2 mr=6 rank=9"));
        assert!(!request.is_null() && request != STALE);
        // A flush that has nothing to do has no request.
        rig.record.act("iflush", Act::NotNow);
        request = STALE;
        assert_eq!(rig.rma.iflush(open.rma, 2, open.other_mr, 9, &raw mut request), ncclSuccess);
        assert!(request.is_null());
        rig.close(open);
    }
}

every_rma_version! {
    fn a_request_is_tested_until_it_is_done(rig) {
        let (open, mut request, mut done) = (rig.open(), STALE, 7);
        assert_eq!(rig.rma.iput(transfer(&open), &raw mut request), ncclSuccess);
        rig.record.act("test", Act::NotNow);
        assert_eq!(rig.rma.test(open.coll, request, &raw mut done), ncclSuccess);
        assert_eq!(done, 0);
        rig.record.normal("test");
        assert_eq!(rig.rma.test(open.coll, request, &raw mut done), ncclSuccess);
        assert_eq!(done, 1);
        assert_eq!(rig.record.calls_of("test"), ["test coll=3 request=4", "test coll=3 request=4"]);
        assert_eq!(rig.rma.progress(open.rma), ncclSuccess);
        assert_eq!(rig.record.calls().pop().as_deref(), Some("progress ctx=4"));
        rig.close(open);
    }
}

every_rma_version! {
    fn a_failed_transfer_has_no_request(rig) {
        let (open, mut posted) = (rig.open(), STALE);
        assert_eq!(rig.rma.iput(transfer(&open), &raw mut posted), ncclSuccess);
        for (act, code) in [
            (Act::Fail(Failure::Remote), ncclRemoteError),
            (Act::Fail(Failure::System), ncclSystemError),
            (Act::Panic, ncclInternalError),
        ] {
            for call in ["iput", "iget", "iflush", "test", "progress"] {
                rig.record.act(call, act);
            }
            let mut requests = [STALE; 4];
            let [a, b, c, d] = &mut requests;
            assert_eq!(rig.rma.iput(transfer(&open), a), code);
            assert_eq!(rig.rma.iput_signal(transfer(&open), signal(&open), b), code);
            assert_eq!(rig.rma.iget(transfer(&open), c), code);
            assert_eq!(rig.rma.iflush(open.rma, 0, open.mr, 0, d), code);
            assert_eq!(requests, [ptr::null_mut(); 4]);
            let mut done = 7;
            assert_eq!(rig.rma.test(open.coll, posted, &raw mut done), code);
            assert_eq!(done, 0);
            assert_eq!(rig.rma.progress(open.rma), code);
        }
        assert_eq!(
            *common::fake::lock(&rig.record.panics),
            ["RMA iput", "RMA iputSignal", "RMA iget", "RMA iflush", "RMA test", "RMA progress"]
        );
        rig.close(open);
    }
}

/// Calls each transfer with one wrong argument after the other, and `test` and `rmaProgress` too.
fn refused<const ID: u32>(rig: common::rma::Rig<ID>, open: &Open, wrong: Ptr, posted: Ptr) {
    let refused = |rc: ncclResult_t, call: &str, what: &str, expected: &'static str| {
        assert_eq!(rc, ncclInvalidArgument, "{call} {what}");
        let (name, refusal) = rig.record.refusal().expect("there is one");
        assert_eq!(name.strip_prefix("RMA "), Some(call));
        match refusal {
            Refusal::Null(found) => assert!(wrong.is_null() && found == what, "{call} {found}"),
            Refusal::WrongHandle { what: found, expected: kind } => {
                assert_eq!((found, kind), (what, expected), "{call}");
            }
            other => panic!("{call}: {other}"),
        }
        common::fake::lock(&rig.record.refusals).clear();
    };
    let (usual, signal) = (transfer(open), signal(open));
    let mut request = STALE;
    let place = &raw mut request;
    for (call, put, get, kind) in [
        (Transfer { ctx: wrong, ..usual }, "rmaCtx", "rmaCtx", "rmaCtx"),
        (Transfer { first: At(wrong, 0), ..usual }, "srcMhandle", "remoteMhandle", "mhandle"),
        (Transfer { second: At(wrong, 0), ..usual }, "dstMhandle", "localMhandle", "mhandle"),
    ] {
        refused(rig.rma.iput(call, place), "iput", put, kind);
        refused(rig.rma.iput_signal(call, signal, place), "iputSignal", put, kind);
        refused(rig.rma.iget(call, place), "iget", get, kind);
    }
    let at_wrong = SignalOf { at: At(wrong, 0), ..signal };
    refused(rig.rma.iput_signal(usual, at_wrong, place), "iputSignal", "signalMhandle", "mhandle");
    refused(rig.rma.iflush(wrong, 0, open.mr, 0, place), "iflush", "rmaCtx", "rmaCtx");
    refused(rig.rma.iflush(open.rma, 0, wrong, 0, place), "iflush", "mhandle", "mhandle");
    refused(rig.rma.progress(wrong), "progress", "rmaCtx", "rmaCtx");
    let mut done: c_int = 7;
    refused(rig.rma.test(wrong, posted, &raw mut done), "test", "collComm", "collComm");
    refused(rig.rma.test(open.coll, wrong, &raw mut done), "test", "request", "request");
    assert!(done == 0 && request.is_null());
}

every_rma_version! {
    fn wrong_handles_are_refused(rig) {
        let (open, mut posted) = (rig.open(), STALE);
        assert_eq!(rig.rma.iput(transfer(&open), &raw mut posted), ncclSuccess);
        // The same plugin as a network, with a handle of each kind.
        let net = Net::of::<Fake<ID>>(12);
        let (mut ctx, mut send, mut mr, mut sent) = (STALE, STALE, STALE, STALE);
        let mut handle = [0u8; 128];
        let nil = ptr::null_mut();
        assert_eq!(net.init(&raw mut ctx, 0, None, None, None), ncclSuccess);
        let rc = net.connect(ctx, 0, None, handle.as_mut_ptr().cast(), &raw mut send, ptr::null_mut());
        assert_eq!(rc, ncclSuccess);
        assert_eq!(net.reg_mr(send, DATA, 64, NCCL_PTR_HOST, &raw mut mr), ncclSuccess);
        assert_eq!(net.isend(send, DATA, 1, 0, mr, nil, &raw mut sent), ncclSuccess);

        let unaligned = open.mr.wrapping_byte_add(1);
        for wrong in [nil, unaligned, open.ctx, open.listen, ctx, send, mr, sent] {
            rig.forget_reports();
            let seen = rig.record.calls().len();
            refused(rig, &open, wrong, posted);
            assert_eq!(rig.record.calls().len(), seen, "the plugin sees none of these");
        }
        let seen = rig.record.calls().len();
        // The network takes no request of these tables.
        let mut done = 7;
        assert_eq!(net.test(posted, &raw mut done, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal().map(|(call, _)| call), Some("test"));

        let mut request = STALE;
        let negative = Transfer { context: -1, ..transfer(&open) };
        let refusal = Refusal::Negative { what: "context", value: -1 };
        assert_eq!(rig.rma.iput(negative, &raw mut request), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iput", refusal)));
        assert_eq!(rig.rma.iget(negative, &raw mut request), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iget", refusal)));
        assert_eq!(rig.rma.iflush(open.rma, -1, open.mr, 0, &raw mut request), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iflush", refusal)));
        let null = Refusal::Null("request");
        assert_eq!(rig.rma.iput(transfer(&open), ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iput", null)));
        assert_eq!(rig.rma.iget(transfer(&open), ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iget", null)));
        assert_eq!(rig.rma.iflush(open.rma, 0, open.mr, 0, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA iflush", null)));
        assert_eq!(rig.rma.test(open.coll, posted, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("RMA test", Refusal::Null("done"))));
        assert_eq!(rig.record.calls().len(), seen);

        assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
        assert_eq!(net.close_send(send), ncclSuccess);
        assert_eq!(net.finalize(ctx), ncclSuccess);
        rig.close(open);
    }
}
