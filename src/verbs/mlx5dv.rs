//! mlx5's direct verbs (libmlx5), by which an adapter's Data Direct interface is recognised. The
//! library is opened at run time: hosts with other adapters may lack it, and versions without
//! symbols of MLX5_1.25 lack the call.

use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use rdma_sys as sys;

/// Vendor id of the adapters that mlx5 drives.
const MELLANOX: &str = "0x15b3";
/// Room for a path, as the kernel limits it.
const PATH_MAX: usize = 4096;

/// `mlx5dv_is_supported(3)`
type IsSupported = unsafe extern "C" fn(*mut sys::ibv_device) -> bool;
/// `mlx5dv_get_data_direct_sysfs_path(3)`
type DataDirectPath = unsafe extern "C" fn(*mut sys::ibv_context, *mut c_char, usize) -> c_int;

/// The calls of the library.
struct Mlx5dv {
    is_supported: IsSupported,
    data_direct_path: DataDirectPath,
}

/// Returns the calls; `None` if there is no libmlx5, or if it is too old. Looked up once.
fn mlx5dv() -> Option<&'static Mlx5dv> {
    static CALLS: OnceLock<Option<Mlx5dv>> = OnceLock::new();
    let found = || {
        // SAFETY: libibverbs uses the same file as the driver of these adapters.
        let library = unsafe { Library::open(Some("libmlx5.so.1"), RTLD_NOW | RTLD_LOCAL) }.ok()?;
        // Never closed: the calls may be used until the process ends.
        let library = ManuallyDrop::new(library);
        Some(Mlx5dv {
            // SAFETY: the function of this name has this type (mlx5dv.h).
            is_supported: *unsafe { library.get(c"mlx5dv_is_supported") }.ok()?,
            // SAFETY: as above.
            data_direct_path: *unsafe { library.get(c"mlx5dv_get_data_direct_sysfs_path") }.ok()?,
        })
    };
    CALLS.get_or_init(found).as_ref()
}

/// Returns the path of the Data Direct interface of an adapter: a second PCI function, near the
/// GPUs. `sysfs` is the adapter's folder. `None` if the adapter has none, or if that cannot be
/// found out.
///
/// # Safety
/// `context` is open.
pub(super) unsafe fn data_direct(context: *mut sys::ibv_context, sysfs: &str) -> Option<String> {
    // The library is opened for adapters only that it may know.
    let vendor = std::fs::read_to_string(format!("{sysfs}/device/vendor")).ok()?;
    let calls = mlx5dv().filter(|_| vendor.trim() == MELLANOX)?;
    // SAFETY: the caller passes an open context, which has a device.
    if !unsafe { (calls.is_supported)((*context).device) } {
        return None;
    }
    let mut path = [0_u8; PATH_MAX];
    // SAFETY: an open context, and room for as many bytes as the call is given, less one: the last
    // byte stays 0.
    let rc = unsafe { (calls.data_direct_path)(context, path.as_mut_ptr().cast(), PATH_MAX - 1) };
    let path = CStr::from_bytes_until_nul(&path).ok().filter(|_| rc == 0)?;
    // The library's path begins below sysfs.
    Some(format!("/sys{}", path.to_string_lossy()))
}
