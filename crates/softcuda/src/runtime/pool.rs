//! Memory pools. NCCL creates one, although the devices report no support for pools, and allocates
//! from it in the order of a stream. A pool here is only a handle.

use std::ffi::{c_int, c_void};

use super::reply;
use crate::{
    border::{Address, Out},
    device,
    memory::Kind,
    patch::EntryPoint,
    state::state,
    status::Status,
    stream::{Job, StreamId},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaMemPoolCreate", create as *const ()),
    ("cudaMemPoolDestroy", destroy as *const ()),
    ("cudaMemPoolSetAttribute", set_attribute as *const ()),
    ("cudaMallocFromPoolAsync", malloc_async as *const ()),
    ("cudaFreeAsync", free_async as *const ()),
];

/// The handle of every pool.
const POOL: usize = 1;

extern "C" fn create(pool: Out<usize>, _properties: *const c_void) -> Status {
    reply(pool.set(POOL))
}

fn check(pool: usize) -> Result<(), Status> {
    if pool == POOL { Ok(()) } else { Err(Status::INVALID_VALUE) }
}

extern "C" fn destroy(pool: usize) -> Status {
    reply(check(pool))
}

/// Attributes only govern when a pool returns memory to the system.
extern "C" fn set_attribute(pool: usize, _attribute: c_int, _value: *mut c_void) -> Status {
    reply(check(pool))
}

/// Memory that is allocated early is valid in the order of any stream.
extern "C" fn malloc_async(address: Out<usize>, len: usize, pool: usize, _stream: StreamId) -> Status {
    let allocated = check(pool).and_then(|()| state().memory.allocate(len, Kind::Device, device::current()));
    reply(address.set_answer(allocated))
}

extern "C" fn free_async(address: Address, stream: StreamId) -> Status {
    let state = state();
    if address.get() != 0 && state.memory.find(address.get()).is_none_or(|r| r.base != address.get()) {
        return reply(Err(Status::INVALID_VALUE));
    }
    // A second free before this job runs is an error of the program that the job cannot return.
    reply(state.streams.add(
        stream,
        Job::run(move || {
            let _ = state.memory.free(address.get());
        }),
    ))
}
