//! Receives without buffers. Each takes one immediate of the peer.

use std::ptr::{self, NonNull};

use rdma_sys as sys;

/// A chain of receives without buffers. Any number of them is posted with one call, to any queue.
pub struct Blanks(NonNull<[sys::ibv_recv_wr]>);

// SAFETY: the chain belongs to this object, points only into itself, and is never written.
unsafe impl Send for Blanks {}
// SAFETY: as above.
unsafe impl Sync for Blanks {}

impl std::fmt::Debug for Blanks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Blanks").field(&self.0.len()).finish()
    }
}

impl Blanks {
    /// Makes a chain of `n`, all with this `wr_id`.
    pub fn new(n: usize, wr_id: u64) -> Self {
        let blank =
            |_| sys::ibv_recv_wr { wr_id, next: ptr::null_mut(), sg_list: ptr::null_mut(), num_sge: 0 };
        let chain: Box<[sys::ibv_recv_wr]> = (0..n).map(blank).collect();
        let chain = NonNull::from(Box::leak(chain));
        let start = chain.cast::<sys::ibv_recv_wr>().as_ptr();
        for i in 1..n {
            // SAFETY: both indices are below the length.
            unsafe { (*start.add(i - 1)).next = start.add(i) };
        }
        Self(chain)
    }

    /// Returns the first of the last `n` receives, which are a chain, or of all if there are fewer.
    /// NULL if `n` is 0.
    pub(super) fn last(&self, n: usize) -> *mut sys::ibv_recv_wr {
        let n = n.min(self.0.len());
        if n == 0 {
            return ptr::null_mut();
        }
        // SAFETY: `n` is at least 1 and at most the length.
        unsafe { self.0.cast::<sys::ibv_recv_wr>().as_ptr().add(self.0.len() - n) }
    }
}

impl Drop for Blanks {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}
