//! The data path of every version allocates nothing.

#[macro_use]
mod common;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use common::Net;
use common::least::Least;
use common::net::{DATA, STALE};
use nccl_net_versions::RequestPool;
use nccl_net_versions::abi::{self, ncclSuccess};

/// Counts the allocations of each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: passes every call to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.set(COUNT.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

fn allocations(f: impl FnOnce()) -> usize {
    let before = COUNT.get();
    f();
    COUNT.get() - before
}

/// Connects, then counts over `isend`, `irecv`, `iflush` and `test` of one table.
macro_rules! count {
    ($($version:ident: $number:literal, $size:ty, ($($phandle:expr)?), ($($phandles:expr)?);)+) => {$(
        #[test]
        fn $version() {
            let net = Net::of::<Least>($number);
            let (mut ctx, mut send, mut listener, mut recv, mut mr) = (STALE, STALE, STALE, STALE, STALE);
            let mut handle = [0u8; 128];
            let place = handle.as_mut_ptr().cast();
            assert_eq!(net.init(&raw mut ctx, 0, None, None, None), ncclSuccess);
            assert_eq!(net.connect(ctx, 0, None, place, &raw mut send, ptr::null_mut()), ncclSuccess);
            assert_eq!(net.listen(ctx, 0, place, &raw mut listener), ncclSuccess);
            assert_eq!(net.accept(listener, &raw mut recv, ptr::null_mut()), ncclSuccess);
            assert_eq!(net.reg_mr(send, DATA, 64, abi::NCCL_PTR_HOST, &raw mut mr), ncclSuccess);

            let table = nccl_net_versions::$version::table::<Least>();
            let (isend, irecv) = (table.isend.expect("never NULL"), table.irecv.expect("never NULL"));
            let (iflush, test) = (table.iflush.expect("never NULL"), table.test.expect("never NULL"));
            let (mut data, mut tags, mut mrs) = ([DATA; 8], [0; 8], [mr; 8]);
            let (mut lengths, mut flushed) = ([64 as $size; 8], [64 as c_int; 8]);
            let (mut a, mut b, mut c, mut done) = (STALE, STALE, STALE, 0);
            let n = allocations(|| {
                // SAFETY: live handles, arrays of eight, results in local variables.
                unsafe {
                    for _ in 0..100 {
                        assert_eq!(isend(send, DATA, 64, 1, mr, $($phandle,)? &raw mut a), ncclSuccess);
                        assert_eq!(
                            irecv(
                                recv, 8, data.as_mut_ptr(), lengths.as_mut_ptr(), tags.as_mut_ptr(),
                                mrs.as_mut_ptr(), $($phandles,)? &raw mut b,
                            ),
                            ncclSuccess
                        );
                        let flushed = flushed.as_mut_ptr();
                        assert_eq!(
                            iflush(recv, 8, data.as_mut_ptr(), flushed, mrs.as_mut_ptr(), &raw mut c),
                            ncclSuccess
                        );
                        for request in [a, b, c] {
                            assert_eq!(test(request, &raw mut done, flushed), ncclSuccess);
                            assert_eq!(done, 1);
                        }
                    }
                }
            });
            assert_eq!(n, 0);
            assert_eq!(net.dereg_mr(send, mr), ncclSuccess);
            assert_eq!(net.close_send(send), ncclSuccess);
            assert_eq!(net.close_recv(recv), ncclSuccess);
            assert_eq!(net.close_listen(listener), ncclSuccess);
            assert_eq!(net.finalize(ctx), ncclSuccess);
        }
    )+};
}

count! {
    v6: 6, c_int, (), ();
    v7: 7, c_int, (), ();
    v8: 8, c_int, (), ();
    v9: 9, usize, (), ();
    v10: 10, usize, (ptr::null_mut()), (ptr::null_mut());
    v11: 11, usize, (ptr::null_mut()), (ptr::null_mut());
    v12: 12, usize, (ptr::null_mut()), (ptr::null_mut());
}

#[test]
fn a_request_pool_allocates_only_when_it_is_created() {
    let mut pool = None;
    let created = allocations(|| pool = Some(RequestPool::new(32, |_| [0u8; 64])));
    assert_eq!(created, 1);
    let pool = pool.expect("created above");
    let used = allocations(|| {
        for _ in 0..100 {
            let requests: [_; 32] = std::array::from_fn(|_| pool.acquire().expect("a free request"));
            assert!(pool.acquire().is_none());
            requests.iter().for_each(|request| request.release());
        }
    });
    assert_eq!(used, 0);
}

#[test]
fn the_counter_counts() {
    assert_eq!(allocations(|| drop(std::hint::black_box(Box::new(1)))), 1);
}
