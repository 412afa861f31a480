//! The GPUs of this machine.

use std::ffi::{c_int, c_uint};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};

use crate::failure::{Failure, Result};

type Init = unsafe extern "C" fn(c_uint) -> c_int;
type Count = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Checks that the driver has this many GPUs.
pub(super) fn check(needed: u32) -> Result<()> {
    let none = |why: String| Failure::unfit(format!("no GPU: {why}"));
    match count().map_err(none)? {
        0 => Err(none("the driver has no device".into())),
        found if found < needed => {
            Err(Failure::unfit(format!("the ranks of one host need {needed} GPUs, but there are {found}")))
        }
        _ => Ok(()),
    }
}

fn count() -> std::result::Result<u32, String> {
    // libloading has dlerror's text in the source.
    let reason = |e: libloading::Error| {
        std::error::Error::source(&e).map_or_else(|| e.to_string(), ToString::to_string)
    };
    // SAFETY: the driver's library, whose constructors every CUDA program runs.
    let driver = unsafe { Library::open(Some("libcuda.so.1"), RTLD_NOW | RTLD_LOCAL) }.map_err(reason)?;
    // SAFETY: functions of cuda.h with these signatures.
    let (init, devices) = unsafe {
        (
            *driver.get::<Init>(b"cuInit").map_err(reason)?,
            *driver.get::<Count>(b"cuDeviceGetCount").map_err(reason)?,
        )
    };
    // Threads of the driver may run its code until the process ends.
    std::mem::forget(driver);
    let mut count = 0;
    // SAFETY: no flags; a place for a number. The library stays loaded.
    for (call, code) in unsafe { [("cuInit", init(0)), ("cuDeviceGetCount", devices(&raw mut count))] } {
        if code != 0 {
            return Err(format!("{call} returned {code}"));
        }
    }
    Ok(count.unsigned_abs())
}
