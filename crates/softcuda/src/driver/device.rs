//! Devices, versions, errors.

use std::ffi::{c_char, c_int, c_uint};

use crate::{
    border::Out,
    patch::EntryPoint,
    state::state,
    status::{Status, code},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuInit", init as *const ()),
    ("cuDriverGetVersion", get_version as *const ()),
    ("cuDeviceGet", get as *const ()),
    ("cuDeviceGetCount", get_count as *const ()),
    ("cuDeviceGetAttribute", get_attribute as *const ()),
    ("cuDeviceGetUuid", get_uuid as *const ()),
    ("cuGetErrorString", get_error_string as *const ()),
    ("cuGetErrorName", get_error_string as *const ()),
];

pub(super) extern "C" fn init(_flags: c_uint) -> Status {
    // Ends the rank if softcuda is not attached yet.
    if state().devices.count() == 0 { Status::INVALID_DEVICE } else { Status::SUCCESS }
}

pub(super) extern "C" fn get_version(version: Out<c_int>) -> Status {
    code(version.set(state().devices.settings().driver_version))
}

extern "C" fn get(device: Out<c_int>, index: c_int) -> Status {
    code(device.set_answer(state().devices.check(index).map(u32::cast_signed)))
}

pub(super) extern "C" fn get_count(count: Out<c_int>) -> Status {
    code(count.set(state().devices.count().cast_signed()))
}

extern "C" fn get_attribute(value: Out<c_int>, attribute: c_int, device: c_int) -> Status {
    let devices = &state().devices;
    code(value.set_answer(devices.check(device).map(|device| devices.attribute(attribute, device))))
}

extern "C" fn get_uuid(uuid: Out<[u8; 16]>, device: c_int) -> Status {
    let devices = &state().devices;
    code(uuid.set_answer(devices.check(device).map(|device| devices.uuid(device))))
}

pub(super) extern "C" fn get_error_string(status: Status, text: Out<*const c_char>) -> Status {
    code(text.set(status.text().as_ptr()))
}
