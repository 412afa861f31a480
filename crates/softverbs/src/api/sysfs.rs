//! Calls about the system: sysfs and `fork`.

use core::ffi::{CStr, c_char, c_int, c_void};
use core::{ptr, slice};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32};

use crate::abi::border::{self, Errno, last_errno};

/// `ibv_get_sysfs_path`: the mount point of sysfs, which contains nothing of softverbs.
#[unsafe(no_mangle)]
extern "C" fn ibv_get_sysfs_path() -> *const c_char {
    c"/sys".as_ptr()
}

/// `ibv_read_sysfs_file`: reads `dir/file` without its newline. Returns the length, or -1 with
/// `errno`.
///
/// # Safety
/// `dir` and `file` are C strings, `buf` has room for `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_read_sysfs_file(
    dir: *const c_char,
    file: *const c_char,
    buf: *mut c_char,
    size: usize,
) -> c_int {
    let mut length = 0;
    let rc = border::minus_one("ibv_read_sysfs_file", || {
        if dir.is_null() || file.is_null() || buf.is_null() || size == 0 {
            return Err(Errno(libc::EINVAL));
        }
        // SAFETY: guaranteed by the caller.
        let (dir, file) = unsafe { (CStr::from_ptr(dir), CStr::from_ptr(file)) };
        // SAFETY: guaranteed by the caller; cleared before a reference to it exists.
        let buf = unsafe {
            ptr::write_bytes(buf, 0, size);
            slice::from_raw_parts_mut(buf.cast::<u8>(), size)
        };
        let path = Path::new(OsStr::from_bytes(dir.to_bytes())).join(OsStr::from_bytes(file.to_bytes()));
        length = read_line(&path, buf).map_err(|e| e.raw_os_error().map_or_else(last_errno, Errno))?;
        Ok(())
    });
    if rc == 0 { c_int::try_from(length).unwrap_or(c_int::MAX) } else { rc }
}

/// Fills `buf` with the text of the file. A NUL replaces the final newline.
fn read_line(path: &Path, buf: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    let mut len = 0;
    while len < buf.len() {
        match file.read(&mut buf[len..])? {
            0 => break,
            n => len += n,
        }
    }
    match len {
        0 => Ok(0),
        n if buf[n - 1] == b'\n' => {
            buf[n - 1] = 0;
            Ok(n - 1)
        }
        n if n < buf.len() => Ok(n), // the rest is zero already
        _ => Err(io::Error::from_raw_os_error(libc::EOVERFLOW)),
    }
}

/// Calls of `ibv_fork_init` before the first list of devices, and after it.
static FORK_INIT: [AtomicU32; 2] = [const { AtomicU32::new(0) }; 2];
static LISTED: AtomicBool = AtomicBool::new(false);
static FORK_INIT_FAILS: AtomicI32 = AtomicI32::new(0);

/// See [`crate::fork_init_calls`].
pub(crate) fn fork_init_calls() -> (u32, u32) {
    (FORK_INIT[0].load(Relaxed), FORK_INIT[1].load(Relaxed))
}

/// See [`crate::fail_fork_init`].
pub(crate) fn set_fork_init_error(errno: c_int) {
    FORK_INIT_FAILS.store(errno, Relaxed);
}

/// Records that the devices were listed.
pub(crate) fn mark_listed() {
    LISTED.store(true, Relaxed);
}

/// `ibv_fork_init`: only counts. No device accesses the memory, hence copy-on-write after `fork`
/// does no harm.
#[unsafe(no_mangle)]
extern "C" fn ibv_fork_init() -> c_int {
    FORK_INIT[usize::from(LISTED.load(Relaxed))].fetch_add(1, Relaxed);
    FORK_INIT_FAILS.load(Relaxed)
}

/// `ibv_is_fork_initialized`: `IBV_FORK_UNNEEDED`; `IBV_FORK_DISABLED` if [`ibv_fork_init`] must
/// fail.
#[unsafe(no_mangle)]
extern "C" fn ibv_is_fork_initialized() -> c_int {
    if FORK_INIT_FAILS.load(Relaxed) == 0 { 2 } else { 0 }
}

/// `ibv_dontfork_range`
#[unsafe(no_mangle)]
extern "C" fn ibv_dontfork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

/// `ibv_dofork_range`
#[unsafe(no_mangle)]
extern "C" fn ibv_dofork_range(_base: *mut c_void, _size: usize) -> c_int {
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(file: &CStr, room: usize) -> (c_int, Vec<u8>) {
        let mut buf = vec![b'x'; room];
        // SAFETY: C strings, and a buffer of that size.
        let n = unsafe {
            ibv_read_sysfs_file(c"/proc/self".as_ptr(), file.as_ptr(), buf.as_mut_ptr().cast(), room)
        };
        (n, buf)
    }

    #[test]
    fn a_line_comes_without_its_newline() {
        let name = std::fs::read_to_string("/proc/self/comm").unwrap();
        let (n, buf) = read(c"comm", 64);
        assert_eq!(&buf[..usize::try_from(n).unwrap()], name.trim_end().as_bytes());
        assert_eq!(buf[usize::try_from(n).unwrap()], 0);
    }

    #[test]
    fn a_missing_file_and_a_short_buffer_are_errors() {
        assert_eq!(read(c"no-such-file", 64).0, -1);
        assert_eq!(read(c"comm", 2).0, -1);
        assert_eq!(read(c"comm", 0).0, -1);
    }
}
