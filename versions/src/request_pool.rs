//! A ready pool for the requests of a comm.

use core::ops::Deref;
#[cfg(not(all(test, loom)))]
use core::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

#[cfg(all(test, loom))]
use loom::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crate::{Slab, Tagged};

/// A fixed pool of requests, for a comm to own.
///
/// NCCL holds a request by its address, from `isend`, `irecv` or `iflush` until `test` reports it
/// complete. The address must therefore stay valid as long as the comm. A pool allocates all
/// requests when it is created and never moves them; [`acquire`](Self::acquire) and
/// [`release`](Pooled::release) allocate nothing, take no lock and may be called from any thread.
///
/// NCCL keeps up to `NCCL_NET_MAX_REQUESTS` (32) requests of a comm in flight. A sending comm needs
/// `maxRecvs` times as many. With an empty pool, `isend` and `irecv` return `Ok(None)` and NCCL
/// calls them again.
///
/// ```
/// use std::sync::atomic::{AtomicUsize, Ordering};
/// use nccl_net_versions::{Failure, Pooled, RequestPool, Sizes};
///
/// struct Comm { requests: RequestPool<AtomicUsize> }
/// type Request = Pooled<AtomicUsize>; // NetPlugin::Request
///
/// let comm = Comm { requests: RequestPool::new(32, |_| AtomicUsize::new(0)) };
///
/// // isend: acquire a request, fill it in, return it.
/// let request = comm.requests.acquire().expect("all 32 are free");
/// request.store(4096, Ordering::Relaxed);
///
/// // test: report the sizes, then release the request.
/// fn test(request: &Request, sizes: &mut Sizes) -> Result<bool, Failure> {
///     if !request.is_in_use() {
///         return Err(Failure::InvalidArgument);
///     }
///     sizes.set(0, request.load(Ordering::Relaxed))?;
///     request.release();
///     Ok(true)
/// }
/// assert_eq!(test(request, &mut Sizes::IGNORED), Ok(true));
/// assert_eq!(test(request, &mut Sizes::IGNORED), Err(Failure::InvalidArgument));
/// ```
#[derive(Debug)]
pub struct RequestPool<T> {
    requests: Slab<Pooled<T>>,
    /// Where the next search starts. Requests mostly complete in order, so the first one tried is
    /// free.
    next: AtomicUsize,
}

/// A request of a [`RequestPool`]. Dereferences to the value that the pool was created with.
#[derive(Debug)]
pub struct Pooled<T> {
    in_use: AtomicBool,
    value: T,
}

/// Makes requests that are not in use.
fn free<T>(mut value: impl FnMut(usize) -> T) -> impl FnMut(usize) -> Pooled<T> {
    move |index| Pooled { in_use: AtomicBool::new(false), value: value(index) }
}

impl<T> RequestPool<T> {
    /// Allocates `len` requests. `value` creates the content of each one from its index.
    pub fn new(len: usize, value: impl FnMut(usize) -> T) -> Self {
        Self { requests: Slab::new(len, free(value)), next: AtomicUsize::new(0) }
    }

    /// Like [`RequestPool::new`], for [`RmaPlugin`](crate::RmaPlugin): the tables of networks do not
    /// take these requests, and those for RMA take no others.
    pub fn rma(len: usize, value: impl FnMut(usize) -> T) -> Self {
        Self { requests: Slab::rma(len, free(value)), next: AtomicUsize::new(0) }
    }

    /// Returns a free request and marks it as in use, or `None` if all are.
    #[inline]
    pub fn acquire(&self) -> Option<&Tagged<Pooled<T>>> {
        let start = self.next.load(Ordering::Relaxed);
        let (before, after) = self.requests.split_at(start.min(self.requests.len()));
        let (offset, request) =
            after.iter().chain(before).enumerate().find(|(_, request)| request.try_acquire())?;
        self.next.store((start + offset + 1) % self.requests.len(), Ordering::Relaxed);
        Some(request)
    }

    /// Returns the number of requests, free and in use.
    pub fn capacity(&self) -> usize {
        self.requests.len()
    }
}

impl<T> Pooled<T> {
    fn try_acquire(&self) -> bool {
        // Acquire pairs with `release`: the previous user's accesses to the value are complete.
        self.in_use.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_ok()
    }

    /// Returns the request to its pool, which may hand it out again at once.
    #[inline]
    pub fn release(&self) {
        self.in_use.store(false, Ordering::Release);
    }

    /// Returns whether the request is in use. `test` refuses a request that is not.
    #[inline]
    pub fn is_in_use(&self) -> bool {
        self.in_use.load(Ordering::Acquire)
    }
}

impl<T> Deref for Pooled<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use core::ptr;
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_request_is_handed_out_once_until_it_is_released() {
        let pool = RequestPool::new(5, |index| index);
        let all: Vec<_> = (0..5).map(|_| pool.acquire().expect("a free request")).collect();
        assert_eq!(all.iter().map(|request| ****request).collect::<BTreeSet<_>>(), (0..5).collect());
        assert!(pool.acquire().is_none());
        for request in [3, 0, 4] {
            all[request].release();
            assert!(!all[request].is_in_use());
            let again = pool.acquire().expect("the one that was released");
            assert!(ptr::eq(again, all[request]), "its address is unchanged");
            assert!(again.is_in_use() && pool.acquire().is_none());
        }
        assert_eq!(pool.capacity(), 5);
        assert!(RequestPool::new(0, |index| index).acquire().is_none());
    }
}

/// Every schedule of two threads, by `make check-loom`.
#[cfg(all(test, loom))]
mod model {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// Content that loom watches for concurrent and for unordered accesses.
    struct Content(UnsafeCell<u32>);

    // SAFETY: only the thread that holds the request accesses the content, which the model checks.
    unsafe impl Sync for Content {}

    fn acquire_and_release(pool: &RequestPool<Content>) {
        if let Some(request) = pool.acquire() {
            // SAFETY: this thread holds the request.
            request.0.with_mut(|content| unsafe { *content += 1 });
            request.release();
        }
    }

    #[test]
    fn no_two_threads_hold_one_request() {
        loom::model(|| {
            let pool = Arc::new(RequestPool::new(1, |_| Content(UnsafeCell::new(0))));
            let other = {
                let pool = pool.clone();
                thread::spawn(move || acquire_and_release(&pool))
            };
            acquire_and_release(&pool);
            other.join().expect("no panic");
            assert!(pool.acquire().is_some(), "free");
            assert!(pool.acquire().is_none(), "in use");
        });
    }
}
