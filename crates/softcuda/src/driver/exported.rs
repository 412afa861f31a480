//! The functions that are looked up in the library itself: by NCCL up to 2.20, which then uses
//! `cuGetProcAddress`, and by the rank program, which runs on a real driver too.

use std::ffi::{c_char, c_int, c_uint, c_ulonglong};

use super::{context, context::Context, device, entry_point, memory, stream};
use crate::{
    border::{Address, Out, Text},
    status::{Answer, Status, code},
    stream::StreamId,
};

/// `CU_GET_PROC_ADDRESS_SUCCESS`, `CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND`.
const FOUND: c_int = 0;
const NOT_FOUND: c_int = 1;

fn proc_address(name: Text<'_>, function: Out<*const ()>, version: c_int) -> Answer {
    let version = u32::try_from(version).map_err(|_| Status::INVALID_VALUE)?;
    function.set_answer(entry_point(name.get()?, Some(version)).ok_or(Status::NOT_FOUND))
}

/// `cuGetProcAddress`, the version of CUDA 11.
#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress(
    name: Text<'_>,
    function: Out<*const ()>,
    version: c_int,
    _flags: c_ulonglong,
) -> Status {
    code(proc_address(name, function, version))
}

/// `cuGetProcAddress_v2`, the version of CUDA 12.
#[unsafe(no_mangle)]
extern "C" fn cuGetProcAddress_v2(
    name: Text<'_>,
    function: Out<*const ()>,
    version: c_int,
    _flags: c_ulonglong,
    result: Out<c_int>,
) -> Status {
    let answer = proc_address(name, function, version);
    result.set_if_wanted(if answer.is_ok() { FOUND } else { NOT_FOUND });
    code(answer)
}

macro_rules! export {
    ($($name:ident($($argument:ident: $kind:ty),*) = $function:path;)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "`.")]
            #[unsafe(no_mangle)]
            extern "C" fn $name($($argument: $kind),*) -> Status {
                $function($($argument),*)
            }
        )*
    };
}

export! {
    cuInit(flags: c_uint) = device::init;
    cuDriverGetVersion(version: Out<c_int>) = device::get_version;
    cuDeviceGetCount(count: Out<c_int>) = device::get_count;
    cuGetErrorName(status: Status, text: Out<*const c_char>) = device::get_error_string;
    cuDevicePrimaryCtxRetain(context: Out<Context>, device: c_int) = context::primary_retain;
    cuCtxSetCurrent(context: Context) = context::set_current;
    cuMemAlloc_v2(address: Out<usize>, len: usize) = memory::alloc;
    cuMemFree_v2(address: Address) = memory::free;
    cuMemcpyHtoD_v2(to: Address, from: Address, len: usize) = memory::copy;
    cuMemcpyDtoH_v2(to: Address, from: Address, len: usize) = memory::copy;
    cuMemcpyDtoDAsync_v2(to: Address, from: Address, len: usize, stream: StreamId) = memory::copy_async;
    cuMemsetD8Async(to: Address, value: u8, len: usize, stream: StreamId) = memory::fill_async;
    cuStreamCreate(stream: Out<StreamId>, flags: c_uint) = stream::create;
    cuStreamDestroy_v2(stream: StreamId) = stream::destroy;
    cuStreamQuery(stream: StreamId) = stream::query;
    cuStreamSynchronize(stream: StreamId) = stream::synchronize;
}
