//! Finds the pages of a process in `/proc`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{BadPage, MEMFD_NAME, StatsPage};

/// Why the statistics of a process cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum NoPage {
    /// There is no such process, or this user may not see it.
    #[error("no such process")]
    NoProcess,
    /// The process belongs to another user, or has capabilities that the caller does not have.
    #[error("not permitted: the process belongs to another user, or is not dumpable")]
    NotPermitted,
    /// The process has no plugin with statistics.
    #[error("it has no statistics page: the plugin is not loaded or not initialised, or MPIB_STATS=0 is set")]
    None,
    /// The page is invalid.
    #[error("its statistics page {fd} cannot be read: {why}")]
    Bad {
        /// Path of the descriptor in `/proc`.
        fd: String,
        /// The reason.
        why: BadPage,
    },
    /// A system call failed.
    #[error("{path}: {source}")]
    Io {
        /// The path that was read.
        path: String,
        /// The error.
        source: io::Error,
    },
}

/// Most descriptors with the name of a page that are opened. A process has one for each copy of the
/// plugin that it has loaded, and one of its parent. One with thousands cannot keep its readers busy.
const MAX_PAGES: usize = 8;

/// Most descriptors of a process that are looked at, in ascending order. The plugin opens its page
/// with the first communicator, before a process has many.
const MAX_DESCRIPTORS: usize = 65_536;

/// Returns the pages of a process, one for each copy of the plugin loaded in it, at most 8. The list
/// is never empty. Only the process's first 65,536 descriptors are searched.
///
/// # Errors
/// [`NoPage`] if there is no page that can be read.
pub fn pages_of(pid: u32) -> Result<Vec<StatsPage>, NoPage> {
    let here = format!("/proc/{pid}");
    let trouble = |path: &str, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => NoPage::NoProcess,
        io::ErrorKind::PermissionDenied => NoPage::NotPermitted,
        // ESRCH: the process ended meanwhile.
        _ if source.raw_os_error() == Some(libc::ESRCH) => NoPage::NoProcess,
        _ => NoPage::Io { path: path.to_owned(), source },
    };
    let status = format!("{here}/status");
    let own = fs::read_to_string(&status).map_err(|e| trouble(&status, e))?;
    // A zombie has no descriptors any more.
    if own.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")) {
        return Err(NoPage::NoProcess);
    }
    let own = innermost_pid(&own).unwrap_or(pid);
    let fds = format!("{here}/fd");
    let (mut pages, mut seen, mut bad) = (Vec::new(), Vec::new(), None);
    let all = fs::read_dir(&fds).map_err(|e| trouble(&fds, e))?.take(MAX_DESCRIPTORS);
    let all = all.map(|fd| fd.map(|fd| fd.path()));
    for fd in all.filter(|fd| fd.as_ref().map_or(true, |fd| is_named(fd))).take(MAX_PAGES) {
        let fd = fd.map_err(|e| trouble(&fds, e))?;
        match page(&fd) {
            // A process that was forked without exec has the descriptor of its parent's page.
            Ok(Some((page, inode))) if page.summary().pid == own && !seen.contains(&inode) => {
                pages.push(page);
                seen.push(inode);
            }
            Ok(_) => {}
            Err(why) => bad = Some(NoPage::Bad { fd: fd.display().to_string(), why }),
        }
    }
    match bad {
        Some(bad) if pages.is_empty() => Err(bad),
        _ if pages.is_empty() => Err(NoPage::None),
        _ => Ok(pages),
    }
}

/// Returns the ids of all processes, in ascending order.
///
/// # Errors
/// `/proc` cannot be read.
pub fn processes() -> io::Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        pids.extend(entry?.file_name().to_str().and_then(|name| name.parse::<u32>().ok()));
    }
    pids.sort_unstable();
    Ok(pids)
}

/// Returns the process id in the innermost PID namespace, which is what `getpid` returns in the
/// process.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// Returns whether a descriptor has the name of a page.
fn is_named(fd: &Path) -> bool {
    let Ok(link) = fs::read_link(fd) else { return false };
    let name = link.to_str().and_then(|link| link.strip_prefix("/memfd:")?.strip_prefix(MEMFD_NAME));
    matches!(name, Some("" | " (deleted)"))
}

/// Opens a page and returns it with its inode, because a process may have several descriptors of
/// one page. Returns `None` if the descriptor is not a page, was just closed, or its page is not
/// yet complete.
fn page(fd: &Path) -> Result<Option<(StatsPage, u64)>, BadPage> {
    let file: File = match open_regular(fd) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        // Somebody has a lease on it (fcntl, F_SETLEASE), which no plugin takes.
        Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(None),
        opened => match opened? {
            Some(file) => file,
            None => return Ok(None),
        },
    };
    match StatsPage::open(&file) {
        // The writer stores the magic last.
        Err(BadPage::Magic(0)) => Ok(None),
        other => Ok(Some((other?, file.metadata()?.ino()))),
    }
}

/// Opens a regular file for reading; `None` if the path leads to something else. Anything may have
/// the name of a page, a device among them, and is not opened before its kind is known. Waits for
/// nobody's lease.
fn open_regular(path: &Path) -> io::Result<Option<File>> {
    let handle = OpenOptions::new().read(true).custom_flags(libc::O_PATH).open(path)?;
    if !handle.metadata()?.is_file() {
        return Ok(None);
    }
    let same = format!("/proc/self/fd/{}", handle.as_raw_fd());
    OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK).open(same).map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_regular_file_is_opened() {
        assert!(open_regular(Path::new("/dev/null")).unwrap().is_none());
        assert!(open_regular(Path::new("/proc/self")).unwrap().is_none());
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(open_regular(file.path()).unwrap().is_some());
        assert!(open_regular(Path::new("/nowhere/at/all")).is_err());
    }

    #[test]
    fn the_last_number_is_the_process_own() {
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\t12\t1\nNSpgid:\t4711\n"), Some(1));
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }
}
