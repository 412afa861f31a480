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
    image::Image,
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

/// Names that have an older signature up to CUDA 12, where the newer one has a suffix.
const RENAMED: [&str; 2] = ["cudaGetDeviceProperties", "cudaStreamGetCaptureInfo"];

/// Returns the functions by name that have the signatures of a library's runtime.
pub(crate) fn functions(image: &Image) -> Vec<EntryPoint> {
    let groups: [&[EntryPoint]; 7] = [
        device::FUNCTIONS,
        errors::FUNCTIONS,
        memory::FUNCTIONS,
        pool::FUNCTIONS,
        stream::FUNCTIONS,
        event::FUNCTIONS,
        launch::FUNCTIONS,
    ];
    let mut functions = groups.concat();
    if image.address_of("cudaGetDeviceProperties_v2").is_some() {
        // CUDA 12: a call by an older signature ends the rank.
        functions.retain(|(name, _)| !RENAMED.contains(name));
    }
    functions
}
