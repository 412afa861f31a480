//! The cost of the adapters: `isend` and `test` through each version's table and called directly.
//!
//! Run by `cargo bench -p nccl-net-versions`. Each figure is the minimum of many rounds, in
//! nanoseconds per call: disturbances only ever make a round longer.

#[path = "../tests/common/least.rs"]
#[allow(dead_code, unreachable_pub)]
mod least;

use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::ptr;
use std::time::Instant;

use least::{Least, comm};

use nccl_net_versions::abi::{NCCL_PTR_HOST, ncclSuccess};
use nccl_net_versions::*;

/// Nanoseconds per call of `call`.
fn time(mut call: impl FnMut()) -> f64 {
    const CALLS: u32 = 10_000;
    (0..200)
        .map(|_| {
            let start = Instant::now();
            for _ in 0..CALLS {
                call();
            }
            start.elapsed().as_secs_f64() * 1e9 / f64::from(CALLS)
        })
        .fold(f64::INFINITY, f64::min)
}

type Ptr = *mut c_void;

/// A connected comm with a registration, through a table.
macro_rules! connected {
    ($t:ident, ($($init:expr),*), ($($before:expr),*), ($($after:expr),*)) => {{
        let (mut handle, mut comm, mut mr) = ([0u8; 128], ptr::null_mut(), ptr::null_mut());
        // SAFETY: the calls of a table in their order, with pointers to local variables.
        unsafe {
            let init = $t.init.expect("never NULL")($($init),*);
            assert_eq!(init, ncclSuccess);
            let handle = handle.as_mut_ptr().cast();
            let connect = $t.connect.expect("never NULL");
            assert_eq!(connect($($before,)* handle, &raw mut comm $(, $after)*), ncclSuccess);
            let reg = $t.regMr.expect("never NULL");
            assert_eq!(reg(comm, ptr::without_provenance_mut(64), 64, NCCL_PTR_HOST, &raw mut mr), ncclSuccess);
        }
        (comm, mr)
    }};
}

/// Times `isend` and `test` through one version's table.
macro_rules! measure {
    ($version:ident, $t:ident => $connected:expr, ($($phandle:expr)?)) => {{
        let $t = black_box(nccl_net_versions::$version::table::<Least>());
        let (comm, mr): (Ptr, Ptr) = $connected;
        let data: Ptr = ptr::without_provenance_mut(64);
        let mut request: Ptr = ptr::null_mut();
        let isend = $t.isend.expect("never NULL");
        let isend = time(|| {
            // SAFETY: a live comm and registration.
            let rc = unsafe { isend(comm, data, black_box(64), 1, mr, $($phandle,)? &raw mut request) };
            assert_eq!(rc, ncclSuccess);
        });
        let (mut done, mut size) = (0, 0);
        let test = $t.test.expect("never NULL");
        let test = time(|| {
            // SAFETY: a live request.
            let rc = unsafe { test(black_box(request), &raw mut done, &raw mut size) };
            assert_eq!(rc, ncclSuccess);
            assert_eq!(black_box(done), 1);
        });
        (stringify!($version), isend, test)
    }};
}

fn main() {
    let comm = comm();
    // The direct calls store their results too, as the adapters do.
    let (mut request, mut done): (Ptr, c_int) = (ptr::null_mut(), 0);
    let direct_isend = time(|| {
        let buffer = Buffer { addr: 64, len: black_box(64) };
        match Least::isend(black_box(&comm), buffer, 1, Some(&()), ProfilerHandle::NONE) {
            Ok(Some(posted)) => request = ptr::from_ref(posted).cast_mut().cast(),
            other => panic!("{other:?}"),
        }
        black_box(request);
    });
    let mut sizes = Sizes::IGNORED;
    let direct_test = time(|| {
        match Least::test(black_box(&*comm.0[0]), &mut sizes) {
            Ok(true) => done = 1,
            other => panic!("{other:?}"),
        }
        black_box(done);
    });

    let mut ctx: Ptr = ptr::null_mut();
    let nil = ptr::null_mut();
    let rows = [
        measure!(v6, t => connected!(t, (None), (0), ()), ()),
        measure!(v7, t => connected!(t, (None), (0), (ptr::null_mut())), ()),
        measure!(v8, t => connected!(t, (None), (0), (ptr::null_mut())), ()),
        measure!(v9, t => connected!(t, (None), (0), (ptr::null_mut())), ()),
        measure!(v10, t => connected!(t, (None, None), (0, ptr::null_mut()), (ptr::null_mut())), (nil)),
        measure!(v11, t => connected!(t, (&raw mut ctx, 0, ptr::null_mut(), None, None), (ctx, 0), (ptr::null_mut())), (nil)),
        measure!(v12, t => connected!(t, (&raw mut ctx, 0, ptr::null_mut(), None, None), (ctx, 0), (ptr::null_mut())), (nil)),
    ];
    println!("| call through | isend ns | ratio | test ns | ratio |");
    println!("|---|---|---|---|---|");
    println!("| direct | {direct_isend:.2} | 1.00 | {direct_test:.2} | 1.00 |");
    for (version, isend, test) in rows {
        let (isend_ratio, test_ratio) = (isend / direct_isend, test / direct_test);
        println!("| {version} | {isend:.2} | {isend_ratio:.2} | {test:.2} | {test_ratio:.2} |");
    }
}
