//! Where an agent's socket and files may lie, and whether a path there can be trusted.
//!
//! Plugin, agent and doctor use these rules alike. A path is walked from `/`, one component at a
//! time, by descriptors that open nothing (`O_PATH | O_NOFOLLOW`). Nothing at the path is opened
//! before all its components are good:
//!
//! - a folder belongs to a trusted user, and only its owner may write to it; others may if it is
//!   sticky, as `/tmp` is, because they cannot rename or remove what belongs to somebody else there
//! - no component is a symbolic link
//! - a socket belongs to a trusted user; a file, too, and only its owner may write to it
//!
//! Trusted users are root, the process's own, and one more that the caller may name. The overflow
//! user id stands for every user that has no id in this user namespace. It is never trusted.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Component, Path, PathBuf};

use nix::errno::Errno;
use nix::fcntl::{AtFlags, OFlag, open, openat, readlinkat};
use nix::sys::stat::{FileStat, Mode, SFlag, fstat, fstatat};
use nix::unistd::geteuid;

/// Name of the agent's socket in its folder.
pub const SOCKET_NAME: &str = "agent.sock";
/// Name of the hint file in the agent's folder.
pub const HINTS_NAME: &str = "hints";
/// Folder of an agent of the whole host.
pub const SYSTEM_FOLDER: &str = "/run/mpib";
/// Folder where agents were expected first. Every user can create it, so it may be a stranger's.
pub const SHARED_FOLDER: &str = "/tmp/mpib";

/// The kernel's default for the id of users that a user namespace does not know.
const DEFAULT_OVERFLOW_UID: u32 = 65_534;

/// Returns the folders in which an agent is looked for, in order: `/run/mpib`, the user's
/// `$XDG_RUNTIME_DIR/mpib`, and `/tmp/mpib`. `runtime` is the value of `XDG_RUNTIME_DIR`.
pub fn folders(runtime: Option<&OsStr>) -> Vec<PathBuf> {
    let runtime = runtime.map(Path::new).filter(|path| path.is_absolute());
    let user = runtime.map(|path| path.join("mpib"));
    [Some(SYSTEM_FOLDER.into()), user, Some(SHARED_FOLDER.into())].into_iter().flatten().collect()
}

/// The users who may own a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trust {
    own: u32,
    extra: Option<u32>,
    overflow: u32,
}

impl Trust {
    /// Trusts root, the process's own user, and `extra`.
    pub fn new(extra: Option<u32>) -> Self {
        let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid");
        let overflow = overflow.ok().and_then(|text| text.trim().parse().ok());
        Self { own: geteuid().as_raw(), extra, overflow: overflow.unwrap_or(DEFAULT_OVERFLOW_UID) }
    }

    /// Whether this user is trusted.
    pub fn trusts(&self, uid: u32) -> bool {
        uid != self.overflow && (uid == 0 || uid == self.own || self.extra == Some(uid))
    }

    /// Describes an owner that is not trusted.
    pub fn distrust(&self, uid: u32) -> String {
        if uid == self.overflow {
            return format!(
                "belongs to user {uid}, which stands for every user without an id in this user namespace; map \
                 the agent's user into the namespace"
            );
        }
        format!(
            "belongs to user {uid}, expected root or user {}; set MPIB_AGENT_UID={uid} if that is the agent's user",
            self.own
        )
    }
}

/// Why a path is not used.
#[derive(Debug)]
pub enum Refusal {
    /// There is nothing at the path.
    Missing,
    /// The path is not absolute, or has `..` in it.
    Form,
    /// A component cannot be examined.
    Io(PathBuf, io::Error),
    /// A component may not be trusted: which one, what is wrong with it, and whether the path ends
    /// with it.
    Unsafe {
        /// The component.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
        /// Whether it is the last component of the path.
        last: bool,
    },
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such file"),
            Self::Form => f.write_str("not an absolute path without \"..\""),
            Self::Io(path, e) => write!(f, "{}: {e}", path.display()),
            Self::Unsafe { why, last: true, .. } => f.write_str(why),
            Self::Unsafe { path, why, last: false } => write!(f, "its folder {} {why}", path.display()),
        }
    }
}

/// Examines the path of an agent's socket without connecting.
///
/// # Errors
/// [`Refusal`] with the component that is at fault.
pub fn check_socket(path: &Path, trust: &Trust) -> Result<(), Refusal> {
    let (folder, name) = walk(path, trust)?;
    let stat = stat_at(&folder, &name, path)?;
    let refuse = |why| Refusal::Unsafe { path: path.to_owned(), why, last: true };
    check_owner(&stat, trust).map_err(refuse)?;
    if kind(&stat) != SFlag::S_IFSOCK {
        return Err(refuse(String::from("is not a socket")));
    }
    Ok(())
}

/// Opens a regular file for reading, after each component of its path was examined.
///
/// # Errors
/// [`Refusal`] with the component that is at fault.
pub fn open_file(path: &Path, trust: &Trust) -> Result<File, Refusal> {
    open_regular(path, trust, OFlag::O_RDONLY)
}

/// Opens a regular file for reading, and for writing at its end, after each component of its path was
/// examined. `create`: makes it if it does not exist.
///
/// # Errors
/// [`Refusal`] with the component that is at fault.
pub fn open_log(path: &Path, trust: &Trust, create: bool) -> Result<File, Refusal> {
    let create = if create { OFlag::O_CREAT } else { OFlag::empty() };
    open_regular(path, trust, OFlag::O_RDWR | OFlag::O_APPEND | create)
}

fn open_regular(path: &Path, trust: &Trust, how: OFlag) -> Result<File, Refusal> {
    let (folder, name) = walk(path, trust)?;
    let refuse = |why| Refusal::Unsafe { path: path.to_owned(), why, last: true };
    match stat_at(&folder, &name, path) {
        Ok(stat) => check_file(&stat, trust).map_err(refuse)?,
        Err(Refusal::Missing) if how.contains(OFlag::O_CREAT) => {}
        Err(refusal) => return Err(refusal),
    }
    // O_NONBLOCK: if the owner replaces the file by a FIFO now, opening must not wait for its other end.
    let flags = how | OFlag::O_NOFOLLOW | OFlag::O_NONBLOCK | OFlag::O_CLOEXEC | OFlag::O_NOCTTY;
    let mode = Mode::from_bits_truncate(0o644);
    let file = openat(&folder, name.as_os_str(), flags, mode).map_err(|e| io(path, e))?;
    let stat = fstat(&file).map_err(|e| io(path, e))?;
    check_file(&stat, trust).map_err(refuse)?;
    Ok(file.into())
}

/// Examines a folder and all folders above it.
///
/// # Errors
/// [`Refusal`] with the component that is at fault.
pub fn check_folder(path: &Path, trust: &Trust) -> Result<(), Refusal> {
    // The walk ends before the last component: any name below the folder does.
    walk(&path.join("x"), trust).map(drop).map_err(|refusal| match refusal {
        Refusal::Unsafe { path: at, why, .. } if at == path => Refusal::Unsafe { path: at, why, last: true },
        other => other,
    })
}

/// Opens the folder of `path` by examined components. Returns it and the last component's name.
fn walk(path: &Path, trust: &Trust) -> Result<(OwnedFd, OsString), Refusal> {
    let mut names = Vec::new();
    let mut components = path.components();
    if components.next() != Some(Component::RootDir) {
        return Err(Refusal::Form);
    }
    for component in components {
        let Component::Normal(name) = component else { return Err(Refusal::Form) };
        names.push(name);
    }
    let last = names.pop().ok_or(Refusal::Form)?;
    let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC;
    let mut at = PathBuf::from("/");
    let mut folder = open(&at, flags, Mode::empty()).map_err(|e| io(&at, e))?;
    check_step(&folder, &at, trust)?;
    for name in names {
        at.push(name);
        folder = match openat(&folder, name, flags, Mode::empty()) {
            Ok(folder) => folder,
            // ENOTDIR: a link, or something else that is no folder.
            Err(Errno::ENOTDIR | Errno::ELOOP) => {
                let stat = fstatat(&folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|e| io(&at, e))?;
                let why = match kind(&stat) {
                    SFlag::S_IFLNK => link(&folder, name),
                    _ => String::from("is not a folder"),
                };
                return Err(Refusal::Unsafe { path: at, why, last: false });
            }
            Err(e) => return Err(io(&at, e)),
        };
        check_step(&folder, &at, trust)?;
    }
    Ok((folder, last.to_owned()))
}

fn check_step(folder: &OwnedFd, at: &Path, trust: &Trust) -> Result<(), Refusal> {
    let stat = fstat(folder).map_err(|e| io(at, e))?;
    let sticky = stat.st_mode & libc::S_ISVTX != 0;
    let checked = check_owner(&stat, trust).and_then(|()| match stat.st_mode & 0o022 {
        0 => Ok(()),
        _ if sticky => Ok(()),
        _ => Err(format!("has mode {:o}: other users may write to it", stat.st_mode & 0o7777)),
    });
    checked.map_err(|why| Refusal::Unsafe { path: at.to_owned(), why, last: false })
}

fn check_owner(stat: &FileStat, trust: &Trust) -> Result<(), String> {
    if trust.trusts(stat.st_uid) { Ok(()) } else { Err(trust.distrust(stat.st_uid)) }
}

fn check_file(stat: &FileStat, trust: &Trust) -> Result<(), String> {
    if kind(stat) != SFlag::S_IFREG {
        return Err(String::from("not a regular file"));
    }
    check_owner(stat, trust)?;
    match stat.st_mode & 0o022 {
        0 => Ok(()),
        _ => Err(format!("has mode {:o}: other users may write to it", stat.st_mode & 0o7777)),
    }
}

fn stat_at(folder: &OwnedFd, name: &OsStr, path: &Path) -> Result<FileStat, Refusal> {
    let stat = fstatat(folder, name, AtFlags::AT_SYMLINK_NOFOLLOW).map_err(|e| io(path, e))?;
    match kind(&stat) {
        SFlag::S_IFLNK => Err(Refusal::Unsafe { path: path.to_owned(), why: link(folder, name), last: true }),
        _ => Ok(stat),
    }
}

fn link(folder: impl AsFd, name: &OsStr) -> String {
    let target = readlinkat(folder, name).unwrap_or_default();
    format!("is a symbolic link to {}; use the path without links", target.display())
}

fn kind(stat: &FileStat) -> SFlag {
    SFlag::from_bits_truncate(stat.st_mode & SFlag::S_IFMT.bits())
}

fn io(path: &Path, e: Errno) -> Refusal {
    match e {
        Errno::ENOENT => Refusal::Missing,
        e => Refusal::Io(path.to_owned(), e.into()),
    }
}

#[cfg(test)]
mod tests;
