//! The switch to the null data path.

use std::ffi::c_int;

use crate::api::null;
use crate::error::Error;
use crate::log::fault;

/// Completes the work requests between the queue pairs of this process inside `ibv_post_send` from
/// now on, by a copy and a completion, in tens of instructions. What remains is the cost of the
/// program that posts and polls.
///
/// Applies to the queue pairs that are in state RTS now, each connected to a queue pair of this
/// process, and to their queues. Receives that are posted and completions that are not polled stay.
/// RDMA WRITE, with and without an immediate, and RDMA READ are supported. Nothing else of this
/// crate applies to these queue pairs any more: no keys are checked, and there are no rates,
/// counters, faults, retries, events or notifications. A write with an immediate for which no
/// receive is posted fails with EAGAIN.
///
/// The calling thread drives these queue pairs. What other threads post is executed with its next post
/// or poll, and their polls find nothing.
///
/// # Safety
/// The memory that each work request names, local and remote, is valid in this process at that
/// address, until its completion or the end of its queue pair.
///
/// # Errors
/// A queue pair is connected to another process or has work requests that are not executed yet.
/// Nothing has changed then.
pub unsafe fn complete_at_once() -> Result<(), Error> {
    null::join_all()
}

/// [`complete_at_once`] for other languages: 0, or -1 after an error.
///
/// # Safety
/// As for [`complete_at_once`].
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softverbs_complete_at_once() -> c_int {
    match std::panic::catch_unwind(null::join_all) {
        Ok(Ok(())) => 0,
        Ok(Err(error)) => {
            fault!("softverbs_complete_at_once: {error}");
            -1
        }
        Err(_) => -1,
    }
}
