//! Contexts. A device has one primary context, and each created one is as good.

use std::{
    cell::Cell,
    ffi::{c_int, c_uint, c_void},
    sync::atomic::{AtomicUsize, Ordering},
};

use crate::{
    border::Out,
    device,
    patch::EntryPoint,
    state::state,
    status::{Answer, Status, code},
};

pub(super) const FUNCTIONS: &[EntryPoint] = &[
    ("cuCtxCreate", create as *const ()),
    ("cuCtxDestroy", destroy as *const ()),
    ("cuCtxGetCurrent", get_current as *const ()),
    ("cuCtxSetCurrent", set_current as *const ()),
    ("cuCtxGetDevice", get_device as *const ()),
    ("cuDevicePrimaryCtxRetain", primary_retain as *const ()),
    ("cuDevicePrimaryCtxRelease", primary_release as *const ()),
];

/// A context: its number, and the device in the lowest bits. Zero is none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(crate) struct Context(usize);

const DEVICE_BITS: u32 = 16;

impl Context {
    const NONE: Self = Self(0);

    /// Returns the primary context of a device. Created contexts have the numbers from 2 on.
    fn primary(device: u32) -> Self {
        Self::numbered(1, device)
    }

    fn numbered(number: usize, device: u32) -> Self {
        Self(number << DEVICE_BITS | device as usize)
    }

    fn device(self) -> Option<u32> {
        (self != Self::NONE).then_some((self.0 & ((1 << DEVICE_BITS) - 1)) as u32)
    }
}

thread_local! {
    static CURRENT: Cell<Context> = const { Cell::new(Context::NONE) };
}

/// Makes a device's primary context current on this thread.
pub(crate) fn use_primary(device: u32) {
    CURRENT.set(Context::primary(device));
}

/// The third version of the function, by whose signature NCCL calls it: affinity parameters and
/// their number come before flags and device.
extern "C" fn create(
    context: Out<Context>,
    _affinity: *mut c_void,
    _count: c_int,
    _flags: c_uint,
    device: c_int,
) -> Status {
    static NEXT: AtomicUsize = AtomicUsize::new(2);
    let created = state().devices.check(device).map(|device| {
        let created = Context::numbered(NEXT.fetch_add(1, Ordering::Relaxed), device);
        CURRENT.set(created);
        device::set_current(device);
        created
    });
    code(context.set_answer(created))
}

/// A context has nothing to free: memory and streams belong to the process.
extern "C" fn destroy(context: Context) -> Status {
    if CURRENT.get() == context {
        CURRENT.set(Context::NONE);
    }
    code(context.device().map(drop).ok_or(Status::INVALID_CONTEXT))
}

extern "C" fn get_current(context: Out<Context>) -> Status {
    code(context.set(CURRENT.get()))
}

pub(super) extern "C" fn set_current(context: Context) -> Status {
    CURRENT.set(context);
    if let Some(device) = context.device() {
        device::set_current(device);
    }
    Status::SUCCESS
}

extern "C" fn get_device(device: Out<c_int>) -> Status {
    let current: Answer<u32> = CURRENT.get().device().ok_or(Status::INVALID_CONTEXT);
    code(device.set_answer(current.map(u32::cast_signed)))
}

pub(super) extern "C" fn primary_retain(context: Out<Context>, device: c_int) -> Status {
    code(context.set_answer(state().devices.check(device).map(Context::primary)))
}

extern "C" fn primary_release(device: c_int) -> Status {
    code(state().devices.check(device).map(drop))
}
