//! Copies and fills in a stream.

use crate::{
    border::Address,
    state::state,
    status::Answer,
    stream::{Job, StreamId},
};

/// Copies in the order of a stream.
///
/// Memory that no runtime function allocated or registered is pageable: CUDA has read it when the
/// call returns, and NCCL passes addresses of variables on its stack. CUDA has also written it.
pub(crate) fn copy(to: Address, from: Address, len: usize, stream: StreamId) -> Answer {
    let state = state();
    let pageable = |address: Address| state.memory.find(address.get()).is_none();
    let job = if pageable(from) {
        // SAFETY: the caller of the copy keeps the destination until the stream is done.
        unsafe { Job::write(to.get(), from.read(len)) }
    } else {
        // SAFETY: the caller of the copy keeps both ranges until the stream is done.
        unsafe { Job::copy(to.get(), from.get(), len) }
    };
    state.streams.add(stream, job)?;
    if pageable(to) { state.streams.synchronize(stream) } else { Ok(()) }
}

/// Fills bytes in the order of a stream.
pub(crate) fn fill(to: Address, value: u8, len: usize, stream: StreamId) -> Answer {
    // SAFETY: the caller of the fill keeps the range until the stream is done.
    state().streams.add(stream, unsafe { Job::fill(to.get(), value, len) })
}
