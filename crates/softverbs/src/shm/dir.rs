//! The directory of a fabric: `/dev/shm/softverbs-UID/NAME`, private to one user.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::abi::border::Errno;
use crate::log::fault;

/// A locked fabric directory. Dropping it releases the lock.
pub(crate) struct Locked {
    file: File,
    /// Path of the directory.
    pub(crate) path: PathBuf,
}

fn base() -> PathBuf {
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    PathBuf::from(format!("/dev/shm/softverbs-{uid}"))
}

fn log_error(what: &str, path: &Path, error: &std::io::Error) -> Errno {
    fault!("{what} {}: {error}", path.display());
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Creates the directory if necessary. Rejects one that other users can access.
fn private_dir(path: &Path) -> Result<(), Errno> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(log_error("cannot create", path, &e));
        }
        _ => {}
    }
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // The last process of the fabric has removed it; the caller retries.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Errno(libc::ENOENT)),
        Err(e) => return Err(log_error("cannot stat", path, &e)),
    };
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    if !meta.is_dir() || meta.uid() != uid || meta.permissions().mode() & 0o077 != 0 {
        fault!(
            "{} must be a directory of user {uid} with mode 0700, found owner {} and mode {:o}; remove it",
            path.display(),
            meta.uid(),
            meta.permissions().mode()
        );
        return Err(Errno(libc::EACCES));
    }
    Ok(())
}

fn flock(file: &File, operation: i32) -> std::io::Result<()> {
    // SAFETY: an open file.
    while unsafe { libc::flock(file.as_raw_fd(), operation) } != 0 {
        let error = std::io::Error::last_os_error();
        if error.kind() != std::io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(())
}

fn same_file(file: &File, path: &Path) -> bool {
    match (file.metadata(), fs::symlink_metadata(path)) {
        (Ok(a), Ok(b)) => (a.dev(), a.ino()) == (b.dev(), b.ino()),
        _ => false,
    }
}

static CHOSEN: OnceLock<String> = OnceLock::new();

/// Sets the fabric of this process, instead of `SOFTVERBS_FABRIC`. `name` has 1 to 64 letters,
/// digits, `-` or `_`; with another name every verbs call that needs the fabric fails with EINVAL.
///
/// Call it before the process creates its first verbs object; later it has no effect. Returns
/// `false` and does nothing if a fabric was already set with this function.
pub fn set_fabric(name: &str) -> bool {
    CHOSEN.set(name.to_owned()).is_ok()
}

fn is_name(name: &str) -> bool {
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    (1..=64).contains(&name.len()) && name.chars().all(good)
}

/// Returns the name of this process's fabric: as set, else `SOFTVERBS_FABRIC`, else `default`.
pub(crate) fn fabric_name() -> Result<String, Errno> {
    let from_env = || std::env::var("SOFTVERBS_FABRIC").unwrap_or_else(|_| String::from("default"));
    let name = CHOSEN.get().cloned().unwrap_or_else(from_env);
    if !is_name(&name) {
        fault!("SOFTVERBS_FABRIC={name:?}: expected 1 to 64 letters, digits, '-' or '_'");
        return Err(Errno(libc::EINVAL));
    }
    Ok(name)
}

/// Locks the directory of fabric `name`. Returns `None` if it does not exist.
pub(crate) fn existing(name: &str) -> Result<Option<Locked>, Errno> {
    if is_name(name) { Locked::existing(&base().join(name)) } else { Ok(None) }
}

/// Returns the path of this process's fabric.
pub(crate) fn fabric_path() -> Result<PathBuf, Errno> {
    fabric_name().map(|name| base().join(name))
}

impl Locked {
    /// Creates and locks the directory of fabric `name`.
    pub(crate) fn new(name: &str) -> Result<Self, Errno> {
        let path = base().join(name);
        loop {
            private_dir(&base())?;
            match private_dir(&path) {
                Ok(()) => {}
                Err(Errno(libc::ENOENT)) => continue,
                Err(e) => return Err(e),
            }
            if let Some(locked) = Self::existing(&path)? {
                return Ok(locked);
            }
        }
    }

    /// Locks the directory at `path`. Returns `None` if it does not exist.
    pub(crate) fn existing(path: &Path) -> Result<Option<Self>, Errno> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(log_error("cannot open", path, &e)),
        };
        flock(&file, libc::LOCK_EX).map_err(|e| log_error("cannot lock", path, &e))?;
        // The last process of a fabric removes the directory while it holds the lock.
        let locked = Self { file, path: path.to_owned() };
        Ok(same_file(&locked.file, path).then_some(locked))
    }

    /// Removes the directory if it is empty.
    pub(crate) fn remove_if_empty(&self) {
        // Usually it is not empty.
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Explicit: a child that was forked meanwhile shares the open file.
        let _ = flock(&self.file, libc::LOCK_UN);
    }
}

/// Returns the directories of all fabrics of this user except `name`.
pub(crate) fn others(name: &str) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(base()) else { return Vec::new() };
    entries.flatten().filter(|e| e.file_name() != name).map(|e| e.path()).collect()
}

fn record(kind: i32) -> libc::flock {
    libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(0),
        l_whence: 0,
        l_start: 0,
        l_len: 0,
        l_pid: 0,
    }
}

/// Marks the segment as that of a living process. This is a record lock: unlike `flock`, a forked
/// child does not inherit it, which would make a dead parent look alive.
pub(crate) fn claim(file: &File) -> Result<(), Errno> {
    let lock = record(libc::F_WRLCK);
    // SAFETY: an open file and a `flock` that is only read.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(crate::abi::border::last_errno()),
    }
}

/// Returns the living process that holds the mark, unless it is this one. The process id is 0 if
/// that process is in a PID namespace that is not visible from here.
pub(crate) fn claimant(file: &File) -> Option<libc::pid_t> {
    let mut lock = record(libc::F_WRLCK);
    // SAFETY: an open file and a writable `flock`.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (rc == 0 && i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid)
}
