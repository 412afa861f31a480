//! Shared receive queues. All receives are alike and have no memory: data arrives by RDMA write,
//! and a receive only makes room for one immediate.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys as sys;

use crate::error::Result;

use super::{Pd, log_failure, non_null, zero};

/// A shared receive queue, and a chain of blank receives to fill it.
pub struct Srq {
    raw: NonNull<sys::ibv_srq>,
    /// Linked in order: the last `n` are a chain of `n`.
    blanks: NonNull<[sys::ibv_recv_wr]>,
    pd: Arc<Pd>,
}

// SAFETY: providers lock the queue. `blanks` belongs to this object, points only into itself, and
// is never written.
unsafe impl Send for Srq {}
// SAFETY: as above.
unsafe impl Sync for Srq {}

impl std::fmt::Debug for Srq {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Srq")
            .field("raw", &self.raw)
            .field("depth", &self.blanks.len())
            .finish_non_exhaustive()
    }
}

impl Srq {
    /// Returns an id that is unique while the SRQ lives. Asynchronous events carry it.
    pub fn id(&self) -> usize {
        self.raw.addr().get()
    }

    /// Calls `ibv_create_srq` for `depth` receives, at least 1.
    pub fn new(pd: &Arc<Pd>, depth: u32) -> Result<Self> {
        let attr = sys::ibv_srq_attr { max_wr: depth, max_sge: 1, srq_limit: 0 };
        let mut init = sys::ibv_srq_init_attr { srq_context: ptr::null_mut(), attr };
        // SAFETY: live PD, filled struct.
        let raw = unsafe { sys::ibv_create_srq(pd.as_ptr(), &raw mut init) };
        let raw =
            non_null("ibv_create_srq", || format!("{} for {depth} receives", pd.context().name()), raw)?;
        let blank =
            |_| sys::ibv_recv_wr { wr_id: 0, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let blanks: Box<[sys::ibv_recv_wr]> = (0..depth).map(blank).collect();
        let blanks = NonNull::from(Box::leak(blanks));
        let start = blanks.cast::<sys::ibv_recv_wr>().as_ptr();
        for i in 1..blanks.len() {
            // SAFETY: both indices are below the length.
            unsafe { (*start.add(i - 1)).next = start.add(i) };
        }
        Ok(Self { raw, blanks, pd: Arc::clone(pd) })
    }

    /// Returns the depth.
    pub fn depth(&self) -> usize {
        self.blanks.len()
    }

    /// Posts `n` receives, at most [`depth`](Self::depth), with one call.
    pub fn post(&self, n: usize) -> Result<()> {
        let n = n.min(self.blanks.len());
        if n == 0 {
            return Ok(());
        }
        // SAFETY: `n` is at least 1 and at most the length.
        let first = unsafe { self.blanks.cast::<sys::ibv_recv_wr>().as_ptr().add(self.blanks.len() - n) };
        let mut bad = ptr::null_mut();
        // SAFETY: live SRQ, and a chain of `n` receives that the provider reads and does not write.
        let rc = unsafe { sys::ibv_post_srq_recv(self.raw.as_ptr(), first, &raw mut bad) };
        zero("ibv_post_srq_recv", rc, || self.pd.context().name().to_owned())
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_srq {
        self.raw.as_ptr()
    }
}

impl Drop for Srq {
    fn drop(&mut self) {
        // SAFETY: no other owner is left; QPs hold an `Arc` to the SRQ.
        log_failure("ibv_destroy_srq", self.pd.context().name(), unsafe {
            sys::ibv_destroy_srq(self.raw.as_ptr())
        });
        // SAFETY: leaked by `new`, and freed once.
        drop(unsafe { Box::from_raw(self.blanks.as_ptr()) });
    }
}
