//! The libnccl that uses the plugin.

use std::ffi::{CStr, c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr::NonNull;

/// `ncclGetVersion`
type GetVersion = unsafe extern "C" fn(*mut c_int) -> c_int;

/// Opens the library once more that has `address`. `None` if the address is in no library.
fn library(address: *const c_void, flags: c_int) -> Option<NonNull<c_void>> {
    let mut info = MaybeUninit::<libc::Dl_info>::zeroed();
    // SAFETY: any address is allowed, and `info` is writable.
    if unsafe { libc::dladdr(address, info.as_mut_ptr()) } == 0 {
        return None;
    }
    // SAFETY: zeroed, then written by the call; pointers only.
    let info = unsafe { info.assume_init() };
    if info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the name of a loaded file, NUL-terminated.
    let file = unsafe { CStr::from_ptr(info.dli_fname) };
    // SAFETY: with this flag no file is loaded: the call only counts one more user.
    NonNull::new(unsafe { libc::dlopen(file.as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD | flags) })
}

/// Keeps the library loaded that has `address`, until the process ends.
pub(crate) fn keep_loaded(address: *const c_void) {
    library(address, libc::RTLD_NODELETE);
}

/// Returns the release of the libnccl that has `address`, as `ncclGetVersion` reports it: 22707 for
/// 2.27.7. `None` if the address is in no library with that function.
pub(crate) fn release(address: *const c_void) -> Option<u32> {
    let library = library(address, 0)?.as_ptr();
    // SAFETY: an open library, and the name is NUL-terminated.
    let symbol = unsafe { libc::dlsym(library, c"ncclGetVersion".as_ptr()) };
    let mut version = 0;
    let rc = (!symbol.is_null()).then(|| {
        // SAFETY: the function of this name has this type (nccl.h).
        let get = unsafe { std::mem::transmute::<*mut c_void, GetVersion>(symbol) };
        // SAFETY: a writable number.
        unsafe { get(&raw mut version) }
    });
    // SAFETY: opened above, and not used any more.
    unsafe { libc::dlclose(library) };
    (rc == Some(0)).then(|| u32::try_from(version).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_of_an_address_has_the_release() {
        let folder = tempfile::tempdir().unwrap();
        let (source, object) = (folder.path().join("nccl.c"), folder.path().join("libnccl.so.2"));
        std::fs::write(&source, "int ncclGetVersion(int *v) { *v = 22707; return 0; } int place;").unwrap();
        let mut compiler = std::process::Command::new("cc");
        compiler.args(["-shared", "-fPIC", "-o"]).args([&object, &source]);
        assert!(compiler.status().unwrap().success(), "{compiler:?}");
        let path = std::ffi::CString::new(object.to_str().unwrap()).unwrap();
        // SAFETY: the name is NUL-terminated, and the library has no constructors.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null());
        // SAFETY: an open library, and the name is NUL-terminated.
        let place = unsafe { libc::dlsym(library, c"place".as_ptr()) };
        assert_eq!(release(place), Some(22707));
        // A library without the function, and no library.
        assert_eq!(release(libc::getpid as *const c_void), None);
        assert_eq!(release(std::ptr::null()), None);
    }
}
