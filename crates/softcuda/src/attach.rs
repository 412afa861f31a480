//! `softcuda_attach`, by which a rank program puts softcuda below a loaded libnccl.so.2.

use std::{
    ffi::{CStr, OsStr, c_char, c_int},
    os::unix::ffi::OsStrExt,
    path::Path,
};

use crate::{
    device::Devices,
    driver,
    image::Image,
    memory::Memory,
    nvml, patch, runtime,
    settings::Settings,
    state::{self, State},
    stream::Streams,
};

/// Name of the function for `dlsym`.
pub const ATTACH: &CStr = c"softcuda_attach";

/// Type of the function: the path of the loaded library, and [`Settings`] as JSON. It returns 0, or
/// 1 after a line on stderr with the reason.
pub type Attach = unsafe extern "C" fn(*const c_char, *const c_char) -> c_int;

/// Attaches softcuda to the library at `path`.
///
/// # Safety
///
/// Both arguments must be C strings. The process must have loaded the library, and no thread may
/// run code of the library during the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn softcuda_attach(path: *const c_char, settings: *const c_char) -> c_int {
    // SAFETY: C strings (caller).
    let (path, settings) = unsafe { (CStr::from_ptr(path), CStr::from_ptr(settings)) };
    let path = Path::new(OsStr::from_bytes(path.to_bytes()));
    // SAFETY: no thread runs code of the library (caller).
    match unsafe { attach(path, settings.to_bytes()) } {
        Ok(()) => 0,
        Err(why) => {
            eprintln!("softcuda: cannot attach to {}: {why}", path.display());
            1
        }
    }
}

/// Attaches, or returns the reason why not.
///
/// # Safety
///
/// No thread may run code of the library during the call.
unsafe fn attach(path: &Path, settings: &[u8]) -> Result<(), String> {
    let settings: Settings = serde_json::from_slice(settings).map_err(|e| format!("settings: {e}"))?;
    let devices = Devices::new(settings)?;
    let image = Image::of_loaded(path).map_err(|e| e.to_string())?;
    let lacking = nvml::lacking(&image);
    if !lacking.is_empty() {
        return Err(format!(
            "softcuda lacks functions of NVML that the library looks up: {}",
            lacking.join(", ")
        ));
    }
    let streams = Streams::start().map_err(|e| format!("cannot start a thread: {e}"))?;
    let state = State { image, devices, memory: Memory::default(), streams };
    let state = state::set(state)?;
    // SAFETY: no thread runs code of the library (caller).
    let redirected = unsafe { patch::redirect(&state.image, &runtime::functions(&state.image)) };
    let redirected = redirected.map_err(|e| e.to_string())?;
    if state.devices.settings().log {
        eprintln!(
            "softcuda[{}]: {} runtime functions redirected, {} end the rank, {} driver functions",
            std::process::id(),
            redirected.own,
            redirected.unknown,
            driver::count(),
        );
    }
    Ok(())
}
