//! The directory of a fabric: `/dev/shm/softverbs-UID/NAME`, private to one user.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::abi::border::Errno;
use crate::log::fault;

/// A locked fabric directory; unlocks when dropped.
pub(crate) struct Locked {
    file: File,
    /// Where it is.
    pub(crate) path: PathBuf,
}

fn base() -> PathBuf {
    // SAFETY: cannot fail.
    let uid = unsafe { libc::geteuid() };
    PathBuf::from(format!("/dev/shm/softverbs-{uid}"))
}

fn told(what: &str, path: &Path, error: &std::io::Error) -> Errno {
    fault!("{what} {}: {error}", path.display());
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}

/// Makes the directory if it is not there, and refuses one that others can reach.
fn private_dir(path: &Path) -> Result<(), Errno> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(e) if e.kind() != std::io::ErrorKind::AlreadyExists => return Err(told("cannot make", path, &e)),
        _ => {}
    }
    let meta = match fs::symlink_metadata(path) {
        Ok(meta) => meta,
        // Removed again by the last process of the fabric; the caller tries once more.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Err(Errno(libc::ENOENT)),
        Err(e) => return Err(told("cannot look at", path, &e)),
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

/// Chooses the fabric of this process in place of `SOFTVERBS_FABRIC`, for programs that have this
/// crate linked in. `false` if one was chosen before; no effect once a verbs object was made.
pub fn set_fabric(name: &str) -> bool {
    CHOSEN.set(name.to_owned()).is_ok()
}

/// The name of this process's fabric: `SOFTVERBS_FABRIC`, or `default`.
pub(crate) fn fabric_name() -> Result<String, Errno> {
    let from_env = || std::env::var("SOFTVERBS_FABRIC").unwrap_or_else(|_| String::from("default"));
    let name = CHOSEN.get().cloned().unwrap_or_else(from_env);
    let good = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if name.is_empty() || name.len() > 64 || !name.chars().all(good) {
        fault!("SOFTVERBS_FABRIC={name:?}: expected 1 to 64 letters, digits, '-' or '_'");
        return Err(Errno(libc::EINVAL));
    }
    Ok(name)
}

impl Locked {
    /// Makes and locks the directory of fabric `name`.
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

    /// Locks the directory at `path`; `None` if it went away.
    pub(crate) fn existing(path: &Path) -> Result<Option<Self>, Errno> {
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_CLOEXEC;
        let file = match OpenOptions::new().read(true).custom_flags(flags).open(path) {
            Ok(file) => file,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(told("cannot open", path, &e)),
        };
        flock(&file, libc::LOCK_EX).map_err(|e| told("cannot lock", path, &e))?;
        // The last process out removes the directory while it holds the lock.
        let locked = Self { file, path: path.to_owned() };
        Ok(same_file(&locked.file, path).then_some(locked))
    }

    /// Removes the directory if nothing is left in it.
    pub(crate) fn remove_if_empty(&self) {
        // Not empty is the normal case.
        let _ = fs::remove_dir(&self.path);
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // Explicit, since a child forked meanwhile holds the same open file.
        let _ = flock(&self.file, libc::LOCK_UN);
    }
}

/// All fabrics of this user but `name`.
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

/// Marks the segment as that of a living process. A record lock, because unlike `flock` it is not
/// inherited by a forked child, which would keep a dead parent alive.
pub(crate) fn claim(file: &File) -> Result<(), Errno> {
    let lock = record(libc::F_WRLCK);
    // SAFETY: an open file and a `flock` that is only read.
    match unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &raw const lock) } {
        0 => Ok(()),
        _ => Err(crate::abi::border::last_errno()),
    }
}

/// The living process, other than this, that holds the mark, by the number that it has here: 0 if
/// it has none, being in a PID namespace that cannot be seen from ours.
pub(crate) fn claimant(file: &File) -> Option<libc::pid_t> {
    let mut lock = record(libc::F_WRLCK);
    // SAFETY: an open file and a writable `flock`.
    let rc = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLK, &raw mut lock) };
    (rc == 0 && i32::from(lock.l_type) != libc::F_UNLCK).then_some(lock.l_pid)
}
