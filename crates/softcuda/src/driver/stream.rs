//! Operations of a stream on values in memory.

use std::ffi::c_uint;

use crate::{
    border::{Address, Out},
    patch::EntryPoint,
    state::state,
    status::{Status, code},
    stream::{Condition, Job, StreamId},
    unknown::{Unknown, end_rank},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuStreamWaitValue32", wait_value32 as *const ()),
    ("cuStreamWaitValue64", wait_value::<64> as *const ()),
    ("cuStreamWriteValue32", write_value32 as *const ()),
    ("cuStreamWriteValue64", write_value::<64> as *const ()),
];

/// Reads `CUstreamWaitValue_flags`. The option of flushing remote writes (bit 30) has no effect: the
/// memory is the host's.
fn condition(flags: c_uint) -> Condition {
    match flags & !(1 << 30) {
        0 => Condition::GreaterOrEqual,
        1 => Condition::Equal,
        2 => Condition::And,
        3 => Condition::Nor,
        unknown => end_rank(&Unknown::new("condition of cuStreamWaitValue", unknown)),
    }
}

extern "C" fn wait_value<const BITS: u32>(
    stream: StreamId,
    at: Address,
    value: u64,
    flags: c_uint,
) -> Status {
    // SAFETY: the caller keeps the memory until the stream is done; CUDA requires the alignment.
    let job = unsafe { Job::until::<BITS>(at.get(), value, condition(flags)) };
    code(state().streams.add(stream, job))
}

extern "C" fn wait_value32(stream: StreamId, at: Address, value: u32, flags: c_uint) -> Status {
    wait_value::<32>(stream, at, u64::from(value), flags)
}

/// The option (no barrier before the write) has no effect: a barrier is always right.
extern "C" fn write_value<const BITS: u32>(
    stream: StreamId,
    to: Address,
    value: u64,
    _flags: c_uint,
) -> Status {
    // SAFETY: as in `wait_value`.
    code(state().streams.add(stream, unsafe { Job::store::<BITS>(to.get(), value) }))
}

extern "C" fn write_value32(stream: StreamId, to: Address, value: u32, flags: c_uint) -> Status {
    write_value::<32>(stream, to, u64::from(value), flags)
}

pub(super) extern "C" fn create(stream: Out<StreamId>, _flags: c_uint) -> Status {
    code(stream.set(state().streams.create()))
}

pub(super) extern "C" fn destroy(stream: StreamId) -> Status {
    code(state().streams.destroy(stream))
}

pub(super) extern "C" fn query(stream: StreamId) -> Status {
    let idle = state().streams.is_idle(stream);
    code(idle.and_then(|idle| if idle { Ok(()) } else { Err(Status::NOT_READY) }))
}

pub(super) extern "C" fn synchronize(stream: StreamId) -> Status {
    code(state().streams.synchronize(stream))
}
