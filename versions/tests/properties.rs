//! getProperties of every version: each field has the plugin's value, within the ranges that NCCL
//! accepts.

use std::ffi::{CStr, c_int};
use std::mem::MaybeUninit;
use std::ptr;

use crate::common;
use crate::common::fake::{lock, properties};
use crate::common::{Fake, record};
use nccl_net_versions::abi::*;
use nccl_net_versions::{Properties, Refusal, VDevs};

/// Calls a version's table with memory that is not zero, as NCCL's may be.
macro_rules! get {
    ($version:ident, $id:expr, $dev:expr, $fake:ty) => {{
        let get = nccl_net_versions::$version::table::<$fake>().getProperties.expect("never NULL");
        let mut props = MaybeUninit::<$version::Props>::uninit();
        // SAFETY: a local variable.
        unsafe { ptr::write_bytes(props.as_mut_ptr(), 0xFF, 1) };
        // SAFETY: writable properties of this version.
        let rc = unsafe { get($dev, props.as_mut_ptr()) };
        // SAFETY: written above, and every bit pattern is valid for these fields.
        (rc, unsafe { props.assume_init() })
    }};
}

/// Compares every field of a version with the fake's values.
macro_rules! fields {
    ($($test:ident: $version:ident, $id:literal, { $($extra:ident: $value:expr),* $(,)? };)+) => {$(
        #[test]
        fn $test() {
            lock(&record($id).properties).vdevs = VDevs::new(&[1, 0]).expect("two");
            let (rc, got) = get!($version, $id, 1, Fake<$id>);
            assert_eq!(rc, ncclSuccess);
            // A pattern without `..`: a field that is not compared does not compile.
            let $version::Props {
                name, pciPath, guid, ptrSupport, speed, port, latency, maxComms, maxRecvs, $($extra,)*
            } = got;
            // SAFETY: both strings are static.
            unsafe {
                assert_eq!(CStr::from_ptr(name), c"fake0");
                assert_eq!(CStr::from_ptr(pciPath), c"/sys/devices/fake0");
            }
            assert_eq!(guid, 0x1122_3344_5566_7788);
            assert_eq!((ptrSupport, speed, port, latency), (7, 400_000, 3, 1.5));
            assert_eq!((maxComms, maxRecvs), (1024, 5));
            $(assert_eq!($extra, $value, stringify!($extra));)*
            assert_eq!(record($id).calls(), ["properties dev=1"]);
        }
    )+};
}

/// `vProps` in a comparable form.
#[derive(Debug, PartialEq)]
struct V(Vec<c_int>);

impl PartialEq<V> for v9::VDeviceProps {
    fn eq(&self, other: &V) -> bool {
        other.0[0] == self.ndevs && other.0[1..] == self.devs
    }
}

impl PartialEq<V> for v12::VDeviceProps {
    fn eq(&self, other: &V) -> bool {
        other.0[0] == self.ndevs && other.0[1..] == self.devs
    }
}

fields! {
    v6_fields: v6, 506, {};
    v7_fields: v7, 507, { netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9 };
    v8_fields: v8, 508, { regIsGlobal: 1, netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9 };
    v9_fields: v9, 509, {
        regIsGlobal: 1, forceFlush: 1, netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9,
        vProps: V(vec![2, 1, 0, 0, 0]), maxP2pBytes: 4096, maxCollBytes: 8192,
    };
    v10_fields: v10, 510, {
        regIsGlobal: 1, forceFlush: 1, netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9,
        vProps: V(vec![2, 1, 0, 0, 0]), maxP2pBytes: 4096, maxCollBytes: 8192,
    };
    v11_fields: v11, 511, {
        regIsGlobal: 1, forceFlush: 1, netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9,
        vProps: V(vec![2, 1, 0, 0, 0]), maxP2pBytes: 4096, maxCollBytes: 8192, maxMultiRequestSize: 11,
    };
    v12_fields: v12, 512, {
        regIsGlobal: 1, forceFlush: 1, netDeviceType: ncclNetDeviceType(1), netDeviceVersion: 9,
        vProps: V(vec![2, 1, 0, 0, 0, 0, 0, 0, 0]), maxP2pBytes: 4096, maxCollBytes: 8192,
        maxMultiRequestSize: 11, railId: 12, planeId: 13,
    };
}

/// Runs `$check` on the properties of every listed version.
macro_rules! on {
    ($($version:ident)+, $fake:ty, $got:ident => $check:expr) => {$(
        let (rc, $got) = get!($version, 0, 1, $fake);
        assert_eq!(rc, ncclSuccess);
        assert!($check, "{}: {:?}", stringify!($version), $got);
    )+};
}

#[test]
fn a_virtual_device_is_cut_to_the_room_of_the_version() {
    type P = Fake<520>;
    lock(&record(520).properties).vdevs = VDevs::new(&[0, 1, 2, 3, 4, 5, 6, 7]).expect("eight");
    on!(v9 v10 v11, P, p => p.vProps.ndevs == 4 && p.vProps.devs == [0, 1, 2, 3]);
    on!(v12, P, p => p.vProps.ndevs == 8 && p.vProps.devs == [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn a_physical_device_consists_of_itself() {
    type P = Fake<521>;
    on!(v9 v10 v11, P, p => p.vProps.ndevs == 1 && p.vProps.devs == [1, 0, 0, 0]);
    on!(v12, P, p => p.vProps.ndevs == 1 && p.vProps.devs[0] == 1);
}

#[test]
fn sizes_are_limited_to_what_test_reports() {
    type P = Fake<522>;
    for (size, limited) in
        [(0, 1), (1, 1), (1 << 30, 1 << 30), ((1 << 30) + 1, 1 << 30), (usize::MAX, 1 << 30)]
    {
        *lock(&record(522).properties) =
            Properties { max_p2p_bytes: size, max_coll_bytes: size, ..properties() };
        on!(v9 v10 v11 v12, P, p => p.maxP2pBytes == limited && p.maxCollBytes == limited);
    }
}

#[test]
fn groups_are_limited_to_what_irecv_accepts() {
    type P = Fake<523>;
    for (number, limited) in [(-1, 1), (0, 1), (8, 8), (9, 8), (c_int::MAX, 8)] {
        lock(&record(523).properties).max_recvs = number;
        on!(v6 v7 v8 v9 v10 v11 v12, P, p => p.maxRecvs == limited);
    }
}

#[test]
fn no_dma_buf_without_its_call() {
    type P = Fake<524, false>;
    on!(v6 v7 v8 v9 v10 v11 v12, P, p => p.ptrSupport == NCCL_PTR_HOST | NCCL_PTR_CUDA);
}

#[test]
fn absent_values_are_reported_as_absent() {
    type P = Fake<525>;
    *lock(&record(525).properties) =
        Properties { pci_path: None, reg_is_global: false, force_flush: false, ..properties() };
    on!(v6 v7 v8 v9 v10 v11 v12, P, p => p.pciPath.is_null());
    on!(v8 v9 v10 v11 v12, P, p => p.regIsGlobal == 0);
    on!(v9 v10 v11 v12, P, p => p.forceFlush == 0);
}

#[test]
fn unknown_devices_are_errors() {
    macro_rules! unknown {
        ($($version:ident)+) => {$(
            assert_eq!(get!($version, 526, 2, Fake<526>).0, ncclInvalidArgument);
            assert_eq!(get!($version, 526, c_int::MAX, Fake<526>).0, ncclInvalidArgument);
            let before = record(526).calls().len();
            for dev in [-1, c_int::MIN] {
                assert_eq!(get!($version, 526, dev, Fake<526>).0, ncclInvalidArgument);
                let refusal = Refusal::Negative { what: "dev", value: dev };
                assert_eq!(record(526).refusal(), Some(("getProperties", refusal)));
            }
            let get = nccl_net_versions::$version::table::<Fake<526>>().getProperties.expect("never NULL");
            // SAFETY: NULL is refused.
            assert_eq!(unsafe { get(0, ptr::null_mut()) }, ncclInvalidArgument);
            assert_eq!(record(526).calls().len(), before, "the plugin sees none of these");
        )+};
    }
    unknown!(v6 v7 v8 v9 v10 v11 v12);
}

every_version! {
    fn unknown_devices_are_errors_to_listen_and_connect(rig) {
        let ctx = rig.init();
        let mut handle = [0u8; 128];
        let handle = handle.as_mut_ptr().cast();
        for dev in [-1, c_int::MIN, 2, c_int::MAX] {
            let mut comm = common::net::STALE;
            assert_eq!(rig.net.listen(ctx, dev, handle, &raw mut comm), ncclInvalidArgument);
            assert!(comm.is_null());
            comm = common::net::STALE;
            let rc = rig.net.connect(ctx, dev, None, handle, &raw mut comm, ptr::null_mut());
            assert_eq!(rc, ncclInvalidArgument);
            assert!(comm.is_null());
        }
    }
}
