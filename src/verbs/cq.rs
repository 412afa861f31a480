//! Completion queues.

use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};
use std::slice;
use std::sync::Arc;

use rdma_sys as sys;

use crate::error::{Error, Fast, Result};

use super::{Context, log_failure, make};

/// A completion queue.
#[derive(Debug)]
pub struct Cq {
    raw: NonNull<sys::ibv_cq>,
    /// The provider's `ibv_poll_cq`, which never changes while the context is open.
    poll: Poll,
    context: Arc<Context>,
}

/// A provider's `ibv_poll_cq`.
type Poll = unsafe extern "C" fn(*mut sys::ibv_cq, i32, *mut sys::ibv_wc) -> i32;

// SAFETY: providers lock their queues; a CQ may be polled from any thread.
unsafe impl Send for Cq {}
// SAFETY: as above.
unsafe impl Sync for Cq {}

/// What completed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A work request of this end, by its `wr_id`.
    Sent,
    /// A write of the peer with this immediate, which consumed one receive.
    Arrived(u32),
    /// An `opcode` that the plugin never posts.
    Other(u32),
}

/// One entry of a CQ, as the library wrote it. Of a failed completion providers write only `wr_id`,
/// `status`, `qp_num` and `vendor_err`, and a reference to the whole would be undefined behaviour.
#[repr(transparent)]
pub struct Completion(MaybeUninit<sys::ibv_wc>);

impl Completion {
    /// Returns the `wr_id` of the work request.
    #[inline]
    pub fn wr_id(&self) -> u64 {
        // SAFETY: written in every completion.
        unsafe { (*self.0.as_ptr()).wr_id }
    }

    /// Returns the `enum ibv_wc_status`; 0 is success.
    #[inline]
    pub fn status(&self) -> u32 {
        // SAFETY: written in every completion.
        unsafe { (*self.0.as_ptr()).status }
    }

    /// Returns whether the work request was in a queue of a queue pair that has failed, and did
    /// nothing.
    pub(crate) fn is_flushed(&self) -> bool {
        self.status() == sys::ibv_wc_status::IBV_WC_WR_FLUSH_ERR
    }

    /// Returns the vendor's code for a failure. Valid only if the status is not success.
    pub(crate) fn vendor_err(&self) -> u32 {
        // SAFETY: written in every completion that has failed, and any bits are a number.
        unsafe { (*self.0.as_ptr()).vendor_err }
    }

    /// Returns the number of the local QP.
    pub(crate) fn qpn(&self) -> u32 {
        // SAFETY: written in every completion.
        unsafe { (*self.0.as_ptr()).qp_num }
    }

    /// Returns what completed. Valid only if the status is success.
    #[inline]
    pub(crate) fn kind(&self) -> Kind {
        // SAFETY: written in every completion that has succeeded.
        match unsafe { (*self.0.as_ptr()).opcode } {
            sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM => {
                // SAFETY: written with this opcode; both views of the union are 32 plain bits.
                let imm = unsafe { (*self.0.as_ptr()).imm_data_invalidated_rkey_union.imm_data };
                Kind::Arrived(u32::from_be(imm))
            }
            sys::ibv_wc_opcode::IBV_WC_RDMA_WRITE | sys::ibv_wc_opcode::IBV_WC_RDMA_READ => Kind::Sent,
            other => Kind::Other(other),
        }
    }
}

/// Most completions that one [`Cq::poll`] returns.
const BATCH: usize = 16;

/// Room for the completions of one [`Cq::poll`].
pub struct Batch([MaybeUninit<Completion>; BATCH]);

impl Batch {
    /// Makes room for a batch. Writes nothing.
    #[inline]
    pub fn new() -> Self {
        Self([const { MaybeUninit::uninit() }; BATCH])
    }
}

impl Default for Batch {
    fn default() -> Self {
        Self::new()
    }
}

impl Cq {
    /// Returns an id that is unique while the CQ lives. Asynchronous events carry it.
    pub(crate) fn id(&self) -> usize {
        self.raw.addr().get()
    }

    /// Calls `ibv_create_cq` for `entries` entries.
    pub fn new(context: &Arc<Context>, entries: u32) -> Result<Self> {
        let n = i32::try_from(entries).unwrap_or(i32::MAX);
        // SAFETY: open context.
        let poll = unsafe { (*context.as_ptr()).ops.poll_cq }
            .ok_or_else(|| Error::Internal(format!("{} has no ibv_poll_cq", context.name())))?;
        // SAFETY: open context; no channel, no cookie, vector 0.
        let create = || unsafe {
            (context.verbs().ibv_create_cq)(context.as_ptr(), n, ptr::null_mut(), ptr::null_mut(), 0)
        };
        let raw = make("ibv_create_cq", || format!("{} for {n} entries", context.name()), create)?;
        Ok(Self { raw, poll, context: Arc::clone(context) })
    }

    /// Polls at most sixteen completions, and returns them in order. They lie in the caller's
    /// batch: moving a batch costs more than a poll. Allocates nothing.
    #[inline(always)]
    pub fn poll<'b>(&self, batch: &'b mut Batch) -> Fast<&'b [Completion]> {
        // SAFETY: the CQ is alive and belongs to the function's provider, and the batch has room for
        // BATCH entries.
        let n = unsafe { (self.poll)(self.raw.as_ptr(), BATCH as i32, batch.0.as_mut_ptr().cast()) };
        // Most polls end here.
        if n == 0 {
            return Ok(&[]);
        }
        // A negative number becomes a large one.
        let Some(completions) = batch.0.get(..n as u32 as usize) else { return Err(self.failed(n)) };
        // SAFETY: the provider wrote these entries.
        Ok(unsafe { slice::from_raw_parts(completions.as_ptr().cast(), completions.len()) })
    }

    #[cold]
    fn failed(&self, n: i32) -> Box<Error> {
        let source = std::io::Error::from_raw_os_error(n.saturating_abs());
        Error::verbs("ibv_poll_cq", source, format!("{} returned {n}", self.context.name())).into()
    }

    /// Returns the device.
    pub(crate) fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_cq {
        self.raw.as_ptr()
    }
}

impl Drop for Cq {
    fn drop(&mut self) {
        // SAFETY: no other owner is left; QPs hold an `Arc` to the CQ.
        let rc = unsafe { (self.context.verbs().ibv_destroy_cq)(self.raw.as_ptr()) };
        log_failure("ibv_destroy_cq", self.context.name(), rc);
    }
}
