//! Events.

use std::ffi::c_uint;

use super::reply;
use crate::{border::Out, patch::EntryPoint, state::state, status::Status, stream::StreamId};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaEventCreate", create as *const ()),
    ("cudaEventCreateWithFlags", create_with_flags as *const ()),
    ("cudaEventDestroy", destroy as *const ()),
    ("cudaEventRecord", record as *const ()),
    ("cudaEventQuery", query as *const ()),
    ("cudaEventSynchronize", synchronize as *const ()),
];

extern "C" fn create(event: Out<u64>) -> Status {
    reply(event.set(state().streams.create_event()))
}

/// The flags concern timing and how a thread waits.
extern "C" fn create_with_flags(event: Out<u64>, _flags: c_uint) -> Status {
    create(event)
}

extern "C" fn destroy(event: u64) -> Status {
    reply(state().streams.destroy_event(event))
}

extern "C" fn record(event: u64, stream: StreamId) -> Status {
    reply(state().streams.record(event, stream))
}

extern "C" fn query(event: u64) -> Status {
    let reached = state().streams.is_reached(event);
    reply(reached.and_then(|reached| if reached { Ok(()) } else { Err(Status::NOT_READY) }))
}

extern "C" fn synchronize(event: u64) -> Status {
    reply(state().streams.synchronize_event(event))
}
