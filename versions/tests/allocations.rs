//! The data path of every version of the network table allocates nothing. That of one-sided transfers is
//! in `rma_example`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::ffi::c_int;
use std::ptr;

use crate::common::Net;
use crate::common::least::Least;
use crate::common::net::{DATA, STALE};
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

/// Returns the number of allocations of `f` in this thread.
pub(crate) fn allocations(f: impl FnOnce()) -> usize {
    let before = COUNT.get();
    f();
    COUNT.get() - before
}

/// Connects, then counts over `isend`, `irecv`, `iflush` and `test` of one table.
fn count(version: u32) {
    let net = Net::of::<Least>(version);
    let (mut ctx, mut send, mut listener, mut recv, mut mr) = (STALE, STALE, STALE, STALE, STALE);
    let (mut handle, nil) = ([0u8; 128], ptr::null_mut());
    let place = handle.as_mut_ptr().cast();
    assert_eq!(net.init(&raw mut ctx, 0, None, None, None), ncclSuccess);
    assert_eq!(net.connect(ctx, 0, None, place, &raw mut send, ptr::null_mut()), ncclSuccess);
    assert_eq!(net.listen(ctx, 0, place, &raw mut listener), ncclSuccess);
    assert_eq!(net.accept(listener, &raw mut recv, ptr::null_mut()), ncclSuccess);
    assert_eq!(net.reg_mr(send, DATA, 64, abi::NCCL_PTR_HOST, &raw mut mr), ncclSuccess);

    let (mut data, mut tags, mut mrs, mut sizes) = ([DATA; 8], [0; 8], [mr; 8], [64 as c_int; 8]);
    let (data, tags, mrs) = (data.as_mut_ptr(), tags.as_mut_ptr(), mrs.as_mut_ptr());
    let sizes = sizes.as_mut_ptr();
    let (mut a, mut b, mut c, mut done) = (STALE, STALE, STALE, 0);
    let n = allocations(|| {
        for _ in 0..100 {
            assert_eq!(net.isend(send, DATA, 64, 1, mr, nil, &raw mut a), ncclSuccess);
            let lengths = Some(&[64; 8][..]);
            let rc = net.irecv(recv, 8, data, lengths, tags, mrs, ptr::null_mut(), &raw mut b);
            assert_eq!(rc, ncclSuccess);
            assert_eq!(net.iflush(recv, 8, data, sizes, mrs, &raw mut c), ncclSuccess);
            for request in [a, b, c] {
                assert_eq!(net.test(request, &raw mut done, sizes), ncclSuccess);
                assert_eq!(done, 1);
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

macro_rules! versions {
    ($($name:ident: $version:literal),+) => {$(
        #[test]
        fn $name() {
            count($version);
        }
    )+};
}

versions! { v6: 6, v7: 7, v8: 8, v9: 9, v10: 10, v11: 11, v12: 12 }

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
