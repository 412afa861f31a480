//! Files in memory.

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd, RawFd};

/// Makes a file in memory that can be sealed and is closed by exec.
pub(crate) fn sealable(name: &str) -> io::Result<File> {
    make(name, libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING)
}

/// Makes a file in memory that programs started from now on inherit, under the same descriptor.
///
/// # Errors
/// The process has no descriptor or memory left.
pub fn inherited(name: &str) -> io::Result<File> {
    make(name, 0)
}

/// By the system call: glibc has the function since 2.27 only.
fn make(name: &str, flags: u32) -> io::Result<File> {
    let name = CString::new(name)?;
    // SAFETY: a NUL-terminated name; the call takes no other pointer.
    let fd = unsafe { libc::syscall(libc::SYS_memfd_create, name.as_ptr(), flags) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is new and has no other owner.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as RawFd) }.into())
}
