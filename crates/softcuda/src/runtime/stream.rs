//! Streams.

use std::ffi::{c_int, c_uint, c_ulonglong, c_void};

use super::reply;
use crate::{
    border::Out,
    patch::EntryPoint,
    state::state,
    status::{Answer, Status},
    stream::{HostFunction, Job, StreamId},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaStreamCreateWithFlags", create_with_flags as *const ()),
    ("cudaStreamDestroy", destroy as *const ()),
    ("cudaStreamSynchronize", synchronize as *const ()),
    ("cudaStreamQuery", query as *const ()),
    ("cudaStreamWaitEvent", wait_event as *const ()),
    ("cudaStreamGetId", get_id as *const ()),
    ("cudaStreamIsCapturing", is_capturing as *const ()),
    ("cudaStreamGetCaptureInfo_v2", get_capture_info_v2 as *const ()),
    ("cudaStreamGetCaptureInfo_v3", get_capture_info_v3 as *const ()),
    // The third version has lost its suffix in CUDA 13.
    ("cudaStreamGetCaptureInfo", get_capture_info_v3 as *const ()),
    ("cudaThreadExchangeStreamCaptureMode", exchange_capture_mode as *const ()),
    ("cudaLaunchHostFunc", launch_host_func as *const ()),
];

/// `cudaStreamCaptureStatusNone`.
const NOT_CAPTURING: c_int = 0;

extern "C" fn create_with_flags(stream: Out<StreamId>, _flags: c_uint) -> Status {
    reply(stream.set(state().streams.create()))
}

extern "C" fn destroy(stream: StreamId) -> Status {
    reply(state().streams.destroy(stream))
}

extern "C" fn synchronize(stream: StreamId) -> Status {
    reply(state().streams.synchronize(stream))
}

fn ready(idle: bool) -> Answer {
    if idle { Ok(()) } else { Err(Status::NOT_READY) }
}

extern "C" fn query(stream: StreamId) -> Status {
    reply(state().streams.is_idle(stream).and_then(ready))
}

extern "C" fn wait_event(stream: StreamId, event: u64, _flags: c_uint) -> Status {
    reply(state().streams.wait_event(stream, event))
}

extern "C" fn get_id(stream: StreamId, id: Out<c_ulonglong>) -> Status {
    reply(id.set(stream))
}

extern "C" fn is_capturing(_stream: StreamId, status: Out<c_int>) -> Status {
    reply(status.set(NOT_CAPTURING))
}

extern "C" fn get_capture_info_v2(
    _stream: StreamId,
    status: Out<c_int>,
    id: Out<c_ulonglong>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    count: Out<usize>,
) -> Status {
    id.set_if_wanted(0);
    [graph, dependencies, count].into_iter().for_each(|place| place.set_if_wanted(0));
    reply(status.set(NOT_CAPTURING))
}

extern "C" fn get_capture_info_v3(
    stream: StreamId,
    status: Out<c_int>,
    id: Out<c_ulonglong>,
    graph: Out<usize>,
    dependencies: Out<usize>,
    edges: Out<usize>,
    count: Out<usize>,
) -> Status {
    edges.set_if_wanted(0);
    get_capture_info_v2(stream, status, id, graph, dependencies, count)
}

/// No stream is captured, so the mode has no effect; the old one is returned.
extern "C" fn exchange_capture_mode(mode: Out<c_int>) -> Status {
    thread_local! {
        /// `cudaStreamCaptureModeGlobal`.
        static MODE: std::cell::Cell<c_int> = const { std::cell::Cell::new(0) };
    }
    reply(mode.get().and_then(|new| mode.set(MODE.replace(new))))
}

extern "C" fn launch_host_func(
    stream: StreamId,
    function: Option<unsafe extern "C" fn(*mut c_void)>,
    argument: *mut c_void,
) -> Status {
    let Some(function) = function else { return reply(Err(Status::INVALID_VALUE)) };
    reply(state().streams.add(stream, Job::Host(HostFunction { function, argument })))
}
