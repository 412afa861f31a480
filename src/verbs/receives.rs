//! Receives for the immediates of the peer, and shared queues of them. Data arrives by RDMA write, so
//! nothing is written where a receive points.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys as sys;

use crate::error::Result;

use super::{Local, Pd, failed, is_put_off, log_failure, make};

/// A chain of receives. Any number of them is posted with one call, to any queue of its kind.
pub struct Blanks {
    chain: NonNull<[sys::ibv_recv_wr]>,
    /// The entry of all receives.
    entry: Option<NonNull<sys::ibv_sge>>,
}

// SAFETY: chain and entry belong to this object, point nowhere else, and are never written.
unsafe impl Send for Blanks {}
// SAFETY: as above.
unsafe impl Sync for Blanks {}

impl std::fmt::Debug for Blanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Blanks").field(&self.chain.len()).finish()
    }
}

impl Blanks {
    /// Makes a chain of `n`, all with this `wr_id`, and with this memory as their only entry.
    ///
    /// The receives of a queue pair's own queue need none: every provider takes those. In an SRQ
    /// they need one of at least one byte: bnxt_re writes an SRQ receive without an entry as a
    /// header alone (`bnxt_re_build_srqe`, rdma-core, providers/bnxt_re/verbs.c), which the adapter
    /// refuses when an immediate consumes it, and mlx5 takes a length of 0 for 2 GiB.
    pub fn new(n: usize, wr_id: u64, memory: Option<Local>) -> Self {
        let entry = memory.map(|Local { addr, len, lkey }| {
            NonNull::from(Box::leak(Box::new(sys::ibv_sge { addr, length: len, lkey })))
        });
        let sg_list = entry.map_or(ptr::null_mut(), NonNull::as_ptr);
        let num_sge = i32::from(entry.is_some());
        let blank = |_| sys::ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list, num_sge };
        let chain: Box<[sys::ibv_recv_wr]> = (0..n).map(blank).collect();
        let chain = NonNull::from(Box::leak(chain));
        let start = chain.cast::<sys::ibv_recv_wr>().as_ptr();
        for i in 1..n {
            // SAFETY: both indices are below the length.
            unsafe { (*start.add(i - 1)).next = start.add(i) };
        }
        Self { chain, entry }
    }

    /// Posts the last `n` receives, which are a chain, or all if there are fewer, with one call of
    /// `post`: it takes the first one and a place for the first one that it has not posted, and
    /// returns an errno. Returns the number of posted receives: fewer than `n` if the provider asks
    /// to try again soon (EAGAIN), as `ionic_post_recv` may (providers/ionic/ionic_verbs.c).
    ///
    /// # Errors
    /// Any other errno.
    pub(super) fn post(
        &self,
        n: usize,
        post: impl FnOnce(*mut sys::ibv_recv_wr, *mut *mut sys::ibv_recv_wr) -> i32,
    ) -> Result<usize, i32> {
        let n = n.min(self.chain.len());
        if n == 0 {
            return Ok(0);
        }
        // SAFETY: `n` is at least 1 and at most the length.
        let first = unsafe { self.chain.cast::<sys::ibv_recv_wr>().as_ptr().add(self.chain.len() - n) };
        let mut bad = ptr::null_mut();
        match post(first, &raw mut bad) {
            0 => Ok(n),
            rc if is_put_off(rc) => Ok(self.before(first, bad).unwrap_or(0)),
            rc => Err(rc),
        }
    }

    /// Returns the number of receives from `first` up to `bad`. `None` if that is none of them.
    fn before(&self, first: *mut sys::ibv_recv_wr, bad: *mut sys::ibv_recv_wr) -> Option<usize> {
        let bytes = bad.addr().checked_sub(first.addr())?;
        let before = bytes / size_of::<sys::ibv_recv_wr>();
        (before < self.chain.len()).then_some(before)
    }
}

impl Drop for Blanks {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once.
        drop(unsafe { Box::from_raw(self.chain.as_ptr()) });
        if let Some(entry) = self.entry {
            // SAFETY: as above.
            drop(unsafe { Box::from_raw(entry.as_ptr()) });
        }
    }
}

/// A shared receive queue.
#[derive(Debug)]
pub struct Srq {
    raw: NonNull<sys::ibv_srq>,
    pd: Arc<Pd>,
}

// SAFETY: providers lock the queue.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl Srq {
    /// Returns an id that is unique while the SRQ lives. Asynchronous events carry it.
    pub(crate) fn id(&self) -> usize {
        self.raw.addr().get()
    }

    /// Calls `ibv_create_srq` for `depth` receives, at least 1.
    pub(crate) fn new(pd: &Arc<Pd>, depth: u32) -> Result<Self> {
        let attr = sys::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = sys::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        let on = || format!("{} for {depth} receives", pd.context().name());
        // SAFETY: live PD, filled struct.
        let raw = make("ibv_create_srq", on, || unsafe {
            (pd.context().verbs().ibv_create_srq)(pd.as_ptr(), &raw mut init)
        })?;
        Ok(Self { raw, pd: Arc::clone(pd) })
    }

    /// Posts `n` of the receives, or all if there are fewer, with one call. Returns how many are
    /// posted: fewer if the provider asks to try again soon.
    pub(crate) fn post(&self, blanks: &Blanks, n: usize) -> Result<usize> {
        // SAFETY: live SRQ, and a chain that the provider reads and does not write.
        let posted =
            blanks.post(n, |first, bad| unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), first, bad) });
        posted.map_err(|rc| failed("ibv_post_srq_recv", rc, || self.pd.context().name().to_owned()))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: no other owner is left; QPs hold an `Arc` to the SRQ.
        let rc = unsafe { (self.pd.context().verbs().ibv_destroy_srq)(self.raw.as_ptr()) };
        log_failure("ibv_destroy_srq", self.pd.context().name(), rc);
    }
}
