//! Libraries that are opened at run time and stay open.

use std::{
    ffi::{CStr, CString, c_void},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use crate::Result;

/// An open library.
#[derive(Debug)]
pub(crate) struct Library {
    path: PathBuf,
    handle: *mut c_void,
}

fn message() -> String {
    // SAFETY: dlerror returns null or a C string, which is copied before the next loader call.
    let text = unsafe { libc::dlerror() };
    if text.is_null() {
        return "no message".into();
    }
    // SAFETY: not null.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

impl Library {
    /// Opens a library by path or, without a slash, by the loader's search.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let name = CString::new(path.as_os_str().as_bytes())?;
        // SAFETY: a C string. The constructors are those of NCCL or softcuda.
        let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err(format!("cannot load {}: {}", path.display(), message()).into());
        }
        Ok(Self { path: path.to_owned(), handle })
    }

    /// Returns a function.
    ///
    /// # Safety
    ///
    /// `F` must be the type of a pointer to the function of this name.
    pub(crate) unsafe fn function<F: Copy>(&self, name: &CStr) -> Result<F> {
        // SAFETY: an open library and a C string.
        let symbol = unsafe { libc::dlsym(self.handle, name.as_ptr()) };
        if symbol.is_null() {
            return Err(format!("{} has no function {}", self.path.display(), name.to_string_lossy()).into());
        }
        assert_eq!(size_of::<F>(), size_of::<*mut c_void>());
        // SAFETY: `F` is a function pointer of the right type (caller), as large as the symbol.
        Ok(unsafe { std::mem::transmute_copy(&symbol) })
    }
}
