//! init, finalize, devices, virtual devices, attributes: every table with a recording fake.

use std::ffi::c_int;
use std::ptr;
use std::sync::atomic::Ordering;

use crate::common;
use crate::common::fake::lock;
use crate::common::net::STALE;
use crate::common::{Act, Fake, Net, Rig, record};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Failure, Refusal};

every_version! {
    fn init_passes_the_arguments_of_the_version(rig) {
        let mut ctx = STALE;
        assert_eq!(rig.net.init(&raw mut ctx, 7, Some(3), None, None), ncclSuccess);
        let rest = if rig.version < 11 { "id=0 class=None" } else { "id=7 class=Some(3)" };
        assert_eq!(rig.record.calls(), [format!("init v{} {rest}", rig.version)]);
        let comm = rig.listen(ctx);
        assert_eq!(rig.record.calls()[1], "listen ctx=1 dev=0 dirt=0");
        assert_eq!(rig.net.close_listen(comm), ncclSuccess);
        assert_eq!(rig.net.finalize(ctx), ncclSuccess);
    }
}

every_version! {
    fn a_process_has_one_context_before_v11_and_a_communicator_its_own_after(rig) {
        let (first, second) = (rig.init(), rig.init());
        let (a, b) = (rig.listen(first), rig.listen(second));
        let listens = rig.record.calls_of("listen");
        if rig.version < 11 {
            assert_eq!(rig.record.calls_of("init").len(), 1);
            assert_eq!(listens, ["listen ctx=1 dev=0 dirt=0"; 2]);
        } else {
            assert_ne!(first, second);
            assert_eq!(rig.record.calls_of("init").len(), 2);
            assert_eq!(listens, ["listen ctx=1 dev=0 dirt=0", "listen ctx=2 dev=0 dirt=0"]);
        }
        assert_eq!(rig.record.loggers.load(Ordering::Relaxed), 2, "each init brings a logger");
        for comm in [a, b] {
            assert_eq!(rig.net.close_listen(comm), ncclSuccess);
        }
    }
}

every_version! {
    fn init_that_failed_is_tried_again(rig) {
        rig.record.act("init", Act::Fail(Failure::System));
        // NCCL may pass another plugin's context.
        let mut ctx = STALE;
        assert_eq!(rig.net.init(&raw mut ctx, 7, None, None, None), ncclSystemError);
        if rig.version >= 11 {
            assert!(ctx.is_null());
        }
        // As NCCL 2.28.3 to 2.29.3 do.
        assert_eq!(rig.net.finalize(ptr::null_mut()), ncclSuccess);
        rig.record.normal("init");
        let ctx = rig.init();
        assert_eq!(rig.record.calls_of("init").len(), 2);
        assert!(rig.record.calls_of("finalize").is_empty());
        let comm = rig.listen(ctx);
        assert_eq!(rig.net.close_listen(comm), ncclSuccess);
    }
}

every_version! {
    fn no_context_is_an_error(rig) {
        let (mut handle, mut comm) = ([0u8; 128], STALE);
        let expected = if rig.version < 11 { ncclInvalidUsage } else { ncclInvalidArgument };
        for ctx in [ptr::null_mut(), STALE] {
            let rc = rig.net.listen(ctx, 0, handle.as_mut_ptr().cast(), &raw mut comm);
            assert_eq!(rc, expected);
            assert!(comm.is_null());
            comm = STALE;
            let rc = rig.net.connect(
                ctx, 0, None, handle.as_mut_ptr().cast(), &raw mut comm, ptr::null_mut(),
            );
            assert_eq!(rc, expected);
            assert!(comm.is_null());
            comm = STALE;
        }
        assert!(rig.record.calls().is_empty());
    }
}

every_version! {
    fn devices_are_counted(rig) {
        let mut n: c_int = -9;
        assert_eq!(rig.net.devices(&raw mut n), ncclSuccess);
        assert_eq!(n, 2);
        rig.record.act("devices", Act::Fail(Failure::System));
        assert_eq!(rig.net.devices(&raw mut n), ncclSystemError);
        assert_eq!(n, 0);
        assert_eq!(rig.net.devices(ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(rig.record.refusal(), Some(("devices", Refusal::Null("ndev"))));
    }
}

every_version! {
    fn the_name_is_the_plugins(rig) {
        assert_eq!(rig.net.table().name().as_deref(), Some("Fake"));
    }
}

#[test]
fn versions_up_to_10_share_the_context_of_the_process() {
    const ID: u32 = 401;
    let (old, new) = (Rig::<ID> { version: 6, ..Rig::new(6) }, Rig::<ID>::new(10));
    old.init();
    new.init();
    assert_eq!(record(ID).calls_of("init"), ["init v6 id=0 class=None"]);
    let comm = new.listen(ptr::null_mut());
    assert_eq!(record(ID).calls_of("listen"), ["listen ctx=1 dev=0 dirt=0"]);
    assert_eq!(old.net.close_listen(comm), ncclSuccess);
}

#[test]
fn two_plugins_in_one_process_have_a_context_each() {
    let (one, two) = (Rig::<441>::new(8), Rig::<442>::new(8));
    one.init();
    two.record.act("init", Act::Fail(Failure::System));
    assert_eq!(two.net.init(ptr::null_mut(), 0, None, None, None), ncclSystemError);
    let comm = one.listen(ptr::null_mut());
    // A handle of one plugin is invalid for the other.
    assert_eq!(two.net.close_listen(comm), ncclInvalidArgument);
    assert_eq!(one.net.close_listen(comm), ncclSuccess);
}

#[test]
fn threads_that_init_at_once_make_one_context() {
    const ID: u32 = 404;
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                Rig::<ID>::new(9).init();
            });
        }
    });
    assert_eq!(record(ID).calls_of("init").len(), 1);
}

/// The tests of contexts, for v11 and v12.
fn of_communicators<const ID: u32>(version: u32) {
    let rig = Rig::<ID>::new(version);
    let net = rig.net;
    // Both a NULL config and -1 mean undefined.
    for class in [None, Some(-1)] {
        let mut ctx = STALE;
        assert_eq!(net.init(&raw mut ctx, 1, class, None, None), ncclSuccess);
        assert_eq!(rig.record.calls().last(), Some(&format!("init v{version} id=1 class=None")));
        assert_eq!(net.finalize(ctx), ncclSuccess);
    }
    assert_eq!(net.init(ptr::null_mut(), 1, None, None, None), ncclInvalidArgument);
    assert_eq!(rig.record.refusal(), Some(("init", Refusal::Null("ctx"))));
    assert_eq!(rig.record.calls_of("init").len(), 2);

    // finalize accepts each context once, and no other handle.
    let (first, second) = (rig.init(), rig.init());
    let comm = rig.listen(second);
    assert_eq!(net.finalize(first), ncclSuccess);
    assert_eq!(net.finalize(first), ncclInvalidArgument);
    assert_eq!(net.finalize(STALE), ncclInvalidArgument);
    assert_eq!(net.finalize(comm), ncclInvalidArgument);
    assert_eq!(rig.record.calls_of("finalize").len(), 3);
    let wrong = Refusal::WrongHandle { what: "ctx", expected: "context" };
    assert_eq!(rig.record.refusal(), Some(("finalize", wrong)));
    assert_eq!(net.close_listen(comm), ncclSuccess);
    rig.record.act("finalize", Act::Fail(Failure::Remote));
    assert_eq!(net.finalize(second), ncclRemoteError);
    // The context is closed nevertheless.
    assert_eq!(net.finalize(second), ncclInvalidArgument);
}

#[test]
fn v11_contexts() {
    of_communicators::<411>(11);
}

#[test]
fn v12_contexts() {
    of_communicators::<412>(12);
}

fn net_attr() -> v11::NetAttr {
    let side = |x| v11::CommAttr {
        maxConcurrentPeers: x,
        minConcurrentPeers: x + 1,
        maxFlowsPerPeer: x + 2,
        minFlowsPerPeer: -1,
    };
    v11::NetAttr { sendCommAttr: side(10), recvCommAttr: side(20), op: 0x7FFF, algo: u32::MAX, proto: 5 }
}

#[test]
fn attributes_arrive_whole() {
    let mut attr = net_attr();
    let rig = Rig::<405>::new(12);
    let ctx = rig.init();
    for version in [11, 12] {
        let net = Net::of::<Fake<405>>(version);
        assert_eq!(net.set_net_attr(ctx, &raw mut attr), ncclSuccess);
        let call = rig.record.calls().last().cloned().unwrap_or_default();
        assert!(call.starts_with("set_net_attr ctx=1 "), "{call}");
        for part in [
            "send: CommAttr { max_concurrent_peers: 10, min_concurrent_peers: 11, max_flows_per_peer: 12",
            "recv: CommAttr { max_concurrent_peers: 20, min_concurrent_peers: 21, max_flows_per_peer: 22",
            "min_flows_per_peer: -1 }, op: 32767, algo: 4294967295, proto: 5",
        ] {
            assert!(call.contains(part), "{part} in {call}");
        }
        assert_eq!(net.set_net_attr(ctx, ptr::null_mut()), ncclInvalidArgument);
        assert_eq!(net.set_net_attr(ptr::null_mut(), &raw mut attr), ncclInvalidArgument);
    }
    assert_eq!(rig.net.finalize(ctx), ncclSuccess);
}

/// NCCL's host RMA passes the context to its own InfiniBand code, which reads the traffic class at
/// its beginning and writes another one there.
fn a_shared_context<const ID: u32>(version: u32) {
    let rig = Rig::<ID>::new(version);
    for (class, seen) in [(Some(104), 104), (None, NCCL_NET_TRAFFIC_CLASS_UNDEF)] {
        let mut ctx = STALE;
        assert_eq!(rig.net.init(&raw mut ctx, 1, class, None, None), ncclSuccess);
        let front = ctx.cast::<v11::CommConfig>();
        // SAFETY: a context begins with these settings, which others may change.
        assert_eq!(unsafe { (*front).trafficClass }, seen);
        for other in [c_int::MIN, c_int::MAX, 0] {
            // SAFETY: as above.
            unsafe { (*front).trafficClass = other };
            let mut attr = net_attr();
            assert_eq!(rig.net.set_net_attr(ctx, &raw mut attr), ncclSuccess, "{other}");
            let send = rig.send(ctx);
            let connected = rig.record.calls_of("connect").pop().unwrap_or_default();
            assert!(connected.contains(&format!("class={class:?}")), "{connected}");
            assert_eq!(rig.net.close_send(send), ncclSuccess);
        }
        assert_eq!(rig.net.finalize(ctx), ncclSuccess);
    }
    assert_eq!(rig.record.refusal(), None);
}

#[test]
fn what_others_write_to_a_context_of_v11_changes_nothing() {
    a_shared_context::<432>(11);
}

#[test]
fn what_others_write_to_a_context_of_v12_changes_nothing() {
    a_shared_context::<433>(12);
}

#[test]
fn a_wrong_handle_is_reported_once_for_each_argument_until_the_next_init() {
    let rig = Rig::<434>::new(12);
    let reported = || std::mem::take(&mut *lock(&rig.record.refusals));
    let wrong = |call, what, expected| (call, Refusal::WrongHandle { what, expected });
    for _ in 0..2 {
        let ctx = rig.init();
        let comm = rig.listen(ctx);
        for _ in 0..3 {
            assert_eq!(rig.net.finalize(comm), ncclInvalidArgument);
            assert_eq!(rig.net.close_send(comm), ncclInvalidArgument);
            assert_eq!(rig.net.close_send(ptr::null_mut()), ncclInvalidArgument);
        }
        let null = ("closeSend", Refusal::Null("sendComm"));
        assert_eq!(
            reported(),
            [
                wrong("finalize", "ctx", "context"),
                wrong("closeSend", "sendComm", "sendComm"),
                null,
                null,
                null
            ]
        );
        assert_eq!(rig.net.close_listen(comm), ncclSuccess);
        assert_eq!(rig.net.finalize(ctx), ncclSuccess);
    }
}

/// Merges devices through the slot of one version, which has room for `max`.
macro_rules! vdevices {
    ($($test:ident: $number:literal, $version:ident, $id:literal, $max:literal;)+) => {$(
        #[test]
        fn $test() {
            let net = Net::of::<Fake<$id>>($number);
            let make = |d: *mut c_int, props: *mut $version::VDeviceProps| net.make_vdevice(d, props.cast());
            let mut props = $version::VDeviceProps { ndevs: $max, devs: core::array::from_fn(|i| i as c_int) };
            let mut d: c_int = -9;
            assert_eq!(make(&raw mut d, &raw mut props), ncclSuccess);
            assert_eq!(d, 2);
            let all: Vec<c_int> = (0..$max).collect();
            assert_eq!(record($id).calls(), [format!("make_vdevice {all:?}")]);
            for (ndevs, dev) in [(0, 0), (-1, 0), ($max + 1, 0), (c_int::MAX, 0), (c_int::MIN, 0), (1, -1)] {
                props.ndevs = ndevs;
                props.devs[0] = dev;
                d = 5;
                assert_eq!(make(&raw mut d, &raw mut props), ncclInvalidArgument, "{ndevs}");
                assert_eq!(d, -1);
            }
            props = $version::VDeviceProps { ndevs: 1, ..props };
            props.devs[0] = 1;
            // NCCL 2.24 to 2.26 do this for every physical device.
            assert_eq!(make(&raw mut d, &raw mut props), ncclSuccess);
            assert_eq!(make(ptr::null_mut(), &raw mut props), ncclInvalidArgument);
            assert_eq!(make(&raw mut d, ptr::null_mut()), ncclInvalidArgument);
            assert_eq!(record($id).calls().len(), 2);
        }
    )+};
}

vdevices! {
    v9_joins_up_to_four: 9, v9, 420, 4;
    v10_joins_up_to_four: 10, v10, 421, 4;
    v11_joins_up_to_four: 11, v11, 422, 4;
    v12_joins_up_to_eight: 12, v12, 423, 8;
}

#[test]
fn optional_slots_are_null_where_the_plugin_lacks_them() {
    type Full = Fake<430>;
    type Plain = Fake<430, false>;
    for version in 6..=12 {
        assert!(Net::of::<Full>(version).has_reg_mr_dma_buf(), "v{version}");
        assert!(!Net::of::<Plain>(version).has_reg_mr_dma_buf(), "v{version}");
    }
    assert!(nccl_net_versions::v9::table::<Plain>().makeVDevice.is_none());
    assert!(nccl_net_versions::v10::table::<Plain>().makeVDevice.is_none());
    assert!(nccl_net_versions::v11::table::<Plain>().makeVDevice.is_none());
    assert!(nccl_net_versions::v12::table::<Plain>().makeVDevice.is_none());
}

#[test]
fn device_side_slots_are_null_and_the_others_are_not() {
    macro_rules! slots {
        ($($version:ident)+) => {$(
            let table = nccl_net_versions::$version::table::<Fake<431>>();
            assert!(table.getDeviceMr.is_none() && table.irecvConsumed.is_none(), stringify!($version));
        )+};
    }
    slots!(v7 v8 v9 v10 v11 v12);
    assert!(nccl_net_versions::v11::table::<Fake<431, false>>().finalize.is_some());
    assert!(nccl_net_versions::v12::table::<Fake<431, false>>().finalize.is_some());
}
