//! The functions of the CUDA runtime that NCCL calls, by subject.
//!
//! Every other function ends the rank (see `patch`). The functions for graphs are not here: they are
//! used only while a stream is captured, and no stream ever is.

mod device;
mod errors;
mod event;
mod launch;
mod memory;
mod pool;
mod stream;

use std::cell::Cell;

use crate::{
    patch::EntryPoint,
    status::{Answer, Status, code},
};

thread_local! {
    static LAST_ERROR: Cell<Status> = const { Cell::new(Status::SUCCESS) };
}

/// Returns the code of an answer, and keeps an error for `cudaGetLastError`.
fn reply(answer: Answer) -> Status {
    let status = code(answer);
    // "Not ready" is an answer and no error.
    if status != Status::SUCCESS && status != Status::NOT_READY {
        LAST_ERROR.set(status);
    }
    status
}

/// Returns all functions by name.
pub(crate) fn functions() -> Vec<EntryPoint> {
    let groups: [&[EntryPoint]; 7] = [
        device::FUNCTIONS,
        errors::FUNCTIONS,
        memory::FUNCTIONS,
        pool::FUNCTIONS,
        stream::FUNCTIONS,
        event::FUNCTIONS,
        launch::FUNCTIONS,
    ];
    groups.concat()
}
