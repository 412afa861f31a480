//! Operations of a stream on values in memory.

use std::ffi::c_uint;

use crate::{
    border::{Address, Out, Words},
    patch::EntryPoint,
    state::state,
    status::{Answer, Status, code},
    stream::{Condition, Job, StreamId},
    unknown::{Unknown, end_rank},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuStreamWaitValue32", wait_value32 as *const ()),
    ("cuStreamWaitValue64", wait_value::<64> as *const ()),
    ("cuStreamWriteValue32", write_value32 as *const ()),
    ("cuStreamWriteValue64", write_value::<64> as *const ()),
    ("cuStreamBatchMemOp", batch_mem_op as *const ()),
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

/// Words of a `CUstreamBatchMemOpParams`: operation; address; value; flags; an alias that nobody
/// reads; one that is reserved.
const OPERATION_WORDS: usize = 6;

/// Decodes an operation of a batch. A batch's barrier has no job: the operations of a stream run one
/// after the other, and each one is visible before the next one begins.
fn operation(words: [usize; OPERATION_WORDS]) -> Option<Job> {
    let [operation, at, value, flags, ..] = words;
    let (value, flags) = (value as u64, flags as c_uint);
    // SAFETY: as in `wait_value`.
    unsafe {
        match operation as u32 {
            1 => Some(Job::until::<32>(at, value & u64::from(u32::MAX), condition(flags))),
            2 => Some(Job::store::<32>(at, value)),
            4 => Some(Job::until::<64>(at, value, condition(flags))),
            5 => Some(Job::store::<64>(at, value)),
            6 => None,
            unknown => end_rank(&Unknown::new("operation of cuStreamBatchMemOp", unknown)),
        }
    }
}

fn batch(stream: StreamId, count: c_uint, operations: Words) -> Answer {
    if operations.is_null() && count > 0 {
        return Err(Status::INVALID_VALUE);
    }
    let words = |index: usize| std::array::from_fn(|word| operations.at(index * OPERATION_WORDS + word));
    let jobs: Vec<_> = (0..count as usize).filter_map(|index| operation(words(index))).collect();
    jobs.into_iter().try_for_each(|job| state().streams.add(stream, job))
}

extern "C" fn batch_mem_op(stream: StreamId, count: c_uint, operations: Words, flags: c_uint) -> Status {
    if flags != 0 {
        end_rank(&Unknown::new("flags of cuStreamBatchMemOp", flags));
    }
    code(batch(stream, count, operations))
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
