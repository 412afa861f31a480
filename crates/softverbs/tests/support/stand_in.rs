//! Builds `libibverbs.so.1` once, for all test programs and threads.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

/// Returns the folder for `LD_LIBRARY_PATH`.
pub(crate) fn folder() -> &'static Path {
    static FOLDER: OnceLock<PathBuf> = OnceLock::new();
    FOLDER.get_or_init(build)
}

fn build() -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    fs::create_dir_all(&folder).expect("the target folder is writable");
    // Concurrent builds would only wait for the lock of cargo, and hide it.
    let lock = File::create(folder.join("lock")).expect("the target folder is writable");
    // SAFETY: an open file.
    let rc = unsafe { libc::flock(lock.as_raw_fd(), libc::LOCK_EX) };
    assert_eq!(rc, 0, "flock: {}", std::io::Error::last_os_error());
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("build-libibverbs.sh");
    let profile = if cfg!(debug_assertions) { "dev" } else { "release" };
    let out = Command::new(&script).arg(&folder).arg(profile).output().expect("build-libibverbs.sh runs");
    assert!(
        out.status.success(),
        "{} {} {profile}: {}\n{}",
        script.display(),
        folder.display(),
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    folder
}
