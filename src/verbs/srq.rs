//! Shared receive queues. Data arrives by RDMA write, and a receive takes its immediate.

use std::ptr::{self, NonNull};
use std::sync::Arc;

use rdma_sys as sys;

use crate::error::Result;

use super::{Blanks, Pd, failed, log_failure, non_null};

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
        Ok(Self { raw, pd: Arc::clone(pd) })
    }

    /// Posts `n` of the receives, or all if there are fewer, with one call. Returns how many are
    /// posted: fewer if the provider asks to try again soon.
    pub fn post(&self, blanks: &Blanks, n: usize) -> Result<usize> {
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
        log_failure("ibv_destroy_srq", self.pd.context().name(), unsafe {
            sys::ibv_destroy_srq(self.raw.as_ptr())
        });
    }
}
