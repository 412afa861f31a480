//! listen, connect, accept and the closes: every table with a recording fake.

use std::ptr;

use crate::common;
use crate::common::Act;
use crate::common::net::{Ptr, STALE};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, Refusal};

every_version! {
    fn listen_writes_the_whole_handle(rig) {
        let ctx = rig.init();
        let (mut handle, mut comm) = ([0xFFu8; 128], ptr::null_mut());
        let rc = rig.net.listen(ctx, 1, handle.as_mut_ptr().cast(), &raw mut comm);
        assert_eq!(rc, ncclSuccess);
        assert!(!comm.is_null());
        // The plugin found it empty and wrote one byte.
        assert_eq!(rig.record.calls()[1], "listen ctx=1 dev=1 dirt=0");
        assert_eq!(handle[0], 0xA5);
        assert!(handle[1..].iter().all(|&b| b == 0));
        assert_eq!(rig.net.close_listen(comm), ncclSuccess);
        assert_eq!(rig.record.calls()[2], "close_listen listen=2");
    }
}

every_version! {
    fn connect_is_polled_with_one_buffer(rig) {
        let ctx = rig.init();
        let (mut handle, mut comm) = ([0u8; 128], STALE);
        handle[0] = 0xA5;
        rig.record.act("connect", Act::NotNow);
        let mut connect = |class, comm: &mut Ptr| {
            rig.net.connect(ctx, 1, class, handle.as_mut_ptr().cast(), comm, ptr::null_mut())
        };
        // Without settings, as in NCCL's probes; with the undefined class; with a class.
        assert_eq!(connect(None, &mut comm), ncclSuccess);
        assert!(comm.is_null());
        assert_eq!(connect(Some(-1), &mut comm), ncclSuccess);
        assert!(comm.is_null());
        rig.record.normal("connect");
        assert_eq!(connect(Some(106), &mut comm), ncclSuccess);
        assert!(!comm.is_null());
        let last = if rig.version == 10 { "Some(106)" } else { "None" };
        assert_eq!(rig.record.calls_of("connect"), [
            "connect ctx=1 dev=1 class=None first=0xa5 poll=1".to_owned(),
            "connect ctx=1 dev=1 class=None first=0xa5 poll=2".to_owned(),
            format!("connect ctx=1 dev=1 class={last} first=0xa5 poll=3"),
        ]);
        assert_eq!(rig.net.close_send(comm), ncclSuccess);
        assert_eq!(rig.record.calls_of("close_send"), ["close_send comm=4"]);
    }
}

#[test]
fn from_v11_on_connections_take_the_class_of_their_communicator() {
    fn check<const ID: u32>(version: u32) {
        let rig = common::Rig::<ID>::new(version);
        for (class, seen) in [(Some(5), "Some(5)"), (None, "None"), (Some(0), "Some(0)")] {
            let mut ctx = ptr::null_mut();
            assert_eq!(rig.net.init(&raw mut ctx, 1, class, None, None), ncclSuccess);
            let comm = rig.send(ctx);
            let call = rig.record.calls().pop().expect("connect");
            assert!(call.contains(&format!("class={seen} ")), "{call}");
            assert_eq!(rig.net.close_send(comm), ncclSuccess);
            assert_eq!(rig.net.finalize(ctx), ncclSuccess);
        }
    }
    check::<311>(11);
    check::<312>(12);
}

every_version! {
    fn accept_is_polled(rig) {
        let listener = rig.listen(rig.init());
        let mut comm = STALE;
        rig.record.act("accept", Act::NotNow);
        assert_eq!(rig.net.accept(listener, &raw mut comm, ptr::null_mut()), ncclSuccess);
        assert!(comm.is_null());
        rig.record.normal("accept");
        assert_eq!(rig.net.accept(listener, &raw mut comm, ptr::null_mut()), ncclSuccess);
        assert!(!comm.is_null());
        assert_eq!(rig.record.calls_of("accept"), ["accept listen=2"; 2]);
        // As NCCL does right after accept.
        assert_eq!(rig.net.close_listen(listener), ncclSuccess);
        assert_eq!(rig.net.close_recv(comm), ncclSuccess);
        assert_eq!(rig.record.calls_of("close_recv"), ["close_recv comm=4"]);
    }
}

every_version! {
    fn device_handles_stay_unchanged(rig) {
        let ctx = rig.init();
        let listener = rig.listen(ctx);
        let mut handle = [0u8; 128];
        for before in [ptr::null_mut(), STALE.cast()] {
            let (mut dev, mut send, mut recv) = (before, STALE, STALE);
            let place = handle.as_mut_ptr().cast();
            let rc = rig.net.connect(ctx, 0, None, place, &raw mut send, &raw mut dev);
            assert_eq!(rc, ncclSuccess);
            assert_eq!(dev, before);
            let rc = rig.net.accept(listener, &raw mut recv, &raw mut dev);
            assert_eq!(rc, ncclSuccess);
            assert_eq!(dev, before);
            assert_eq!(rig.net.close_send(send), ncclSuccess);
            assert_eq!(rig.net.close_recv(recv), ncclSuccess);
        }
        assert_eq!(rig.net.close_listen(listener), ncclSuccess);
    }
}

every_version! {
    fn a_failure_leaves_null_and_its_code(rig) {
        let ctx = rig.init();
        let listener = rig.listen(ctx);
        let mut handle = [0u8; 128];
        for (failure, code) in [
            (Failure::System, ncclSystemError),
            (Failure::Internal, ncclInternalError),
            (Failure::InvalidArgument, ncclInvalidArgument),
            (Failure::InvalidUsage, ncclInvalidUsage),
            (Failure::Remote, ncclRemoteError),
        ] {
            for call in ["listen", "connect", "accept"] {
                rig.record.act(call, Act::Fail(failure));
            }
            let (mut a, mut b, mut c) = (STALE, STALE, STALE);
            let place = handle.as_mut_ptr().cast();
            assert_eq!(rig.net.listen(ctx, 0, place, &raw mut a), code);
            assert_eq!(rig.net.connect(ctx, 0, None, place, &raw mut b, ptr::null_mut()), code);
            assert_eq!(rig.net.accept(listener, &raw mut c, ptr::null_mut()), code);
            assert!(a.is_null() && b.is_null() && c.is_null());
        }
        // The plugin reports its own failures.
        assert_eq!(rig.record.refusal(), None);
        assert_eq!(rig.net.close_listen(listener), ncclSuccess);
    }
}

every_version! {
    fn null_pointers_are_errors(rig) {
        let ctx = rig.init();
        let listener = rig.listen(ctx);
        let (mut handle, mut out) = ([0u8; 128], STALE);
        let (place, nil) = (handle.as_mut_ptr().cast(), ptr::null_mut::<std::ffi::c_void>());
        let net = rig.net;
        let before = rig.record.calls().len();

        assert_eq!(net.listen(ctx, 0, nil, &raw mut out), ncclInvalidArgument);
        assert!(out.is_null());
        assert_eq!(net.listen(ctx, 0, place, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("listen", Refusal::Null("listenComm"))));
        out = STALE;
        assert_eq!(net.connect(ctx, 0, None, nil, &raw mut out, ptr::null_mut()), ncclInvalidArgument);
        assert!(out.is_null());
        assert_eq!(rig.record.refusal(), Some(("connect", Refusal::Null("handle"))));
        let rc = net.connect(ctx, 0, None, place, ptr::null_mut(), ptr::null_mut());
        assert_eq!(rc, ncclInvalidArgument);
        out = STALE;
        assert_eq!(net.accept(nil, &raw mut out, ptr::null_mut()), ncclInvalidArgument);
        assert!(out.is_null());
        assert_eq!(net.accept(listener, ptr::null_mut(), ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("accept", Refusal::Null("recvComm"))));
        assert_eq!(net.close_send(nil), ncclInvalidArgument);
        assert_eq!(net.close_recv(nil), ncclInvalidArgument);
        assert_eq!(net.close_listen(nil), ncclInvalidArgument);

        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(net.close_listen(listener), ncclSuccess);
    }
}

every_version! {
    fn a_close_accepts_its_own_kind_once(rig) {
        let ctx = rig.init();
        let (listener, send, recv) = (rig.listen(ctx), rig.send(ctx), rig.recv(ctx));
        let mr = rig.mr(send);
        let net = rig.net;
        let mut stranger = [0u64; 8];
        let stranger: Ptr = stranger.as_mut_ptr().cast();
        let before = rig.record.calls().len();
        for wrong in [recv, listener, mr, stranger, STALE, ctx] {
            assert_eq!(net.close_send(wrong), ncclInvalidArgument);
        }
        for wrong in [send, listener, mr, stranger, STALE, ctx] {
            assert_eq!(net.close_recv(wrong), ncclInvalidArgument);
        }
        for wrong in [send, recv, mr, stranger, STALE, ctx] {
            assert_eq!(net.close_listen(wrong), ncclInvalidArgument);
            let mut out = STALE;
            assert_eq!(net.accept(wrong, &raw mut out, ptr::null_mut()), ncclInvalidArgument);
            assert!(out.is_null());
        }
        assert_eq!(rig.record.calls().len(), before, "the plugin sees none of these");
        assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
        // All handles are still open, and close once.
        for rc in [ncclSuccess, ncclInvalidArgument] {
            assert_eq!(net.close_send(send), rc);
            assert_eq!(net.close_recv(recv), rc);
            assert_eq!(net.close_listen(listener), rc);
        }
        assert_eq!(rig.record.calls().len(), before + 4);
    }
}

every_version! {
    fn a_close_that_fails_has_closed(rig) {
        let send = rig.send(rig.init());
        rig.record.act("close_send", Act::Fail(Failure::Remote));
        assert_eq!(rig.net.close_send(send), ncclRemoteError);
        assert_eq!(rig.net.close_send(send), ncclInvalidArgument);
        assert_eq!(rig.record.calls_of("close_send").len(), 1);
    }
}
