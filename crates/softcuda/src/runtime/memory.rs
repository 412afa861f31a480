//! Memory: allocations, host memory, copies, IPC handles.

use std::ffi::{c_int, c_uint};

use super::reply;
use crate::{
    border::{Address, Out, Words},
    device,
    memory::{Kind, ipc::IpcHandle},
    patch::EntryPoint,
    state::state,
    status::{Answer, Status},
    stream::StreamId,
    transfer,
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cudaMalloc", malloc as *const ()),
    ("cudaFree", free as *const ()),
    ("cudaHostAlloc", host_alloc as *const ()),
    ("cudaFreeHost", free as *const ()),
    ("cudaHostRegister", host_register as *const ()),
    ("cudaHostUnregister", host_unregister as *const ()),
    ("cudaHostGetDevicePointer", host_get_device_pointer as *const ()),
    ("cudaMemcpy", memcpy as *const ()),
    ("cudaMemcpyAsync", memcpy_async as *const ()),
    ("cudaMemcpyBatchAsync", memcpy_batch_async as *const ()),
    ("cudaMemset", memset as *const ()),
    ("cudaMemsetAsync", memset_async as *const ()),
    ("cudaIpcGetMemHandle", ipc_get_mem_handle as *const ()),
    ("cudaIpcOpenMemHandle", ipc_open_mem_handle as *const ()),
    ("cudaIpcCloseMemHandle", free as *const ()),
    ("cudaPointerGetAttributes", pointer_get_attributes as *const ()),
];

/// The stream of functions without one.
const DEFAULT_STREAM: StreamId = 0;

extern "C" fn malloc(address: Out<usize>, len: usize) -> Status {
    reply(address.set_answer(state().memory.allocate(len, Kind::Device, device::current())))
}

extern "C" fn free(address: Address) -> Status {
    reply(state().memory.free(address.get()))
}

extern "C" fn host_alloc(address: Out<usize>, len: usize, _flags: c_uint) -> Status {
    reply(address.set_answer(state().memory.allocate(len, Kind::Host, device::current())))
}

extern "C" fn host_register(address: Address, len: usize, _flags: c_uint) -> Status {
    reply(state().memory.register(address.get(), len, device::current()))
}

extern "C" fn host_unregister(address: Address) -> Status {
    reply(state().memory.unregister(address.get()))
}

/// The device reaches host memory at the host's addresses.
extern "C" fn host_get_device_pointer(device: Out<Address>, host: Address, _flags: c_uint) -> Status {
    let known = state().memory.find(host.get()).map(|_| host).ok_or(Status::INVALID_VALUE);
    reply(device.set_answer(known))
}

/// The direction is not used: it follows from the addresses.
extern "C" fn memcpy(to: Address, from: Address, len: usize, _direction: c_int) -> Status {
    let copied = transfer::copy(to, from, len, DEFAULT_STREAM);
    reply(copied.and_then(|()| state().streams.synchronize(DEFAULT_STREAM)))
}

extern "C" fn memcpy_async(
    to: Address,
    from: Address,
    len: usize,
    _direction: c_int,
    stream: StreamId,
) -> Status {
    reply(transfer::copy(to, from, len, stream))
}

/// The first version of CUDA whose batches have no place for the index of a failed copy.
const WITHOUT_FAILED_INDEX: c_int = 13_000;

/// Copies in their order. The attributes are hints, but for when a source is read: in the order of the
/// stream, which holds for every copy here.
///
/// Up to CUDA 12 the stream is the ninth argument, behind the place for an index. From 13 on it is the
/// eighth one, and the ninth is a word of the caller's stack that nobody uses.
extern "C" fn memcpy_batch_async(
    to: Words,
    from: Words,
    lens: Words,
    count: usize,
    _attributes: Address,
    _attribute_places: Address,
    _attribute_count: usize,
    failed_or_stream: usize,
    stream: usize,
) -> Status {
    let has_place = state().devices.settings().driver_version < WITHOUT_FAILED_INDEX;
    let stream = if has_place { stream } else { failed_or_stream } as StreamId;
    let copy = |index| -> Answer {
        let (to, from) = (Address::at(to.at(index)), Address::at(from.at(index)));
        transfer::copy(to, from, lens.at(index), stream)
    };
    reply((0..count).try_for_each(copy))
}

extern "C" fn memset(to: Address, value: c_int, len: usize) -> Status {
    let filled = transfer::fill(to, value as u8, len, DEFAULT_STREAM);
    reply(filled.and_then(|()| state().streams.synchronize(DEFAULT_STREAM)))
}

extern "C" fn memset_async(to: Address, value: c_int, len: usize, stream: StreamId) -> Status {
    reply(transfer::fill(to, value as u8, len, stream))
}

extern "C" fn ipc_get_mem_handle(handle: Out<IpcHandle>, address: Address) -> Status {
    reply(handle.set_answer(state().memory.export_ipc(address.get())))
}

extern "C" fn ipc_open_mem_handle(address: Out<usize>, handle: IpcHandle, _flags: c_uint) -> Status {
    reply(address.set_answer(state().memory.open_ipc(&handle)))
}

/// `cudaPointerAttributes`. CUDA 13 has reserved words behind it, which nobody reads.
#[repr(C)]
struct PointerAttributes {
    kind: c_int,
    device: c_int,
    device_address: usize,
    host_address: usize,
}

/// `cudaMemoryType`.
const UNREGISTERED: c_int = 0;
const HOST: c_int = 1;
const DEVICE: c_int = 2;
/// The device of memory that is not CUDA's.
const INVALID_DEVICE: c_int = -2;

extern "C" fn pointer_get_attributes(attributes: Out<PointerAttributes>, address: Address) -> Status {
    let address = address.get();
    let found = match state().memory.find(address) {
        Some(range) if range.kind == Kind::Device => PointerAttributes {
            kind: DEVICE,
            device: range.device.cast_signed(),
            device_address: address,
            host_address: 0,
        },
        Some(range) => PointerAttributes {
            kind: HOST,
            device: range.device.cast_signed(),
            device_address: address,
            host_address: address,
        },
        None => PointerAttributes {
            kind: UNREGISTERED,
            device: INVALID_DEVICE,
            device_address: 0,
            host_address: address,
        },
    };
    reply(attributes.set(found))
}
