//! The pages of a process, found in `/proc`.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::{BadPage, MEMFD_NAME, StatsPage};

/// Why a process shows no statistics.
#[derive(Debug, thiserror::Error)]
pub enum NoPage {
    /// There is no such process, or none that this user may see.
    #[error("no such process")]
    NoProcess,
    /// It belongs to another user, or to a program with capabilities that this one lacks.
    #[error("not permitted: the process is of another user, or may not be looked into")]
    NotPermitted,
    /// No plugin with statistics.
    #[error(
        "it has no statistics page: the plugin is not in it, has not been initialised, or was told MPIB_STATS=0"
    )]
    None,
    /// A page that cannot be read.
    #[error("its statistics page {fd} cannot be read: {why}")]
    Bad {
        /// Where it is.
        fd: String,
        /// What is wrong with it.
        why: BadPage,
    },
    /// The system says so.
    #[error("{path}: {source}")]
    Io {
        /// What was read.
        path: String,
        /// errno.
        source: io::Error,
    },
}

/// The pages of a process: one for each plugin file that is loaded in it, never none.
///
/// # Errors
/// Why there is none that can be read.
pub fn pages_of(pid: u32) -> Result<Vec<StatsPage>, NoPage> {
    let here = format!("/proc/{pid}");
    let trouble = |path: &str, source: io::Error| match source.kind() {
        io::ErrorKind::NotFound => NoPage::NoProcess,
        io::ErrorKind::PermissionDenied => NoPage::NotPermitted,
        // ESRCH: it ended while it was read.
        _ if source.raw_os_error() == Some(libc::ESRCH) => NoPage::NoProcess,
        _ => NoPage::Io { path: path.to_owned(), source },
    };
    let status = format!("{here}/status");
    let own = fs::read_to_string(&status).map_err(|e| trouble(&status, e))?;
    // One that has ended and was not waited for has nothing left but its number.
    if own.lines().any(|line| line.starts_with("State:\tZ") || line.starts_with("State:\tX")) {
        return Err(NoPage::NoProcess);
    }
    let own = innermost_pid(&own).unwrap_or(pid);
    let fds = format!("{here}/fd");
    let (mut pages, mut seen, mut bad) = (Vec::new(), Vec::new(), None);
    for fd in fs::read_dir(&fds).map_err(|e| trouble(&fds, e))? {
        let fd = fd.map_err(|e| trouble(&fds, e))?.path();
        match page(&fd) {
            // A page that was inherited by a process without exec is its parent's.
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

/// All process ids that there are now.
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

/// What getpid gives in the process itself, which may be in a namespace of its own.
fn innermost_pid(status: &str) -> Option<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    line.split_whitespace().last()?.parse().ok()
}

/// A page and its inode, since a process may have several descriptors of it. `None` for what is no page, has just been
/// closed, or is not finished yet.
fn page(fd: &Path) -> Result<Option<(StatsPage, u64)>, BadPage> {
    let Ok(link) = fs::read_link(fd) else { return Ok(None) };
    let name = link.to_str().and_then(|link| link.strip_prefix("/memfd:")?.strip_prefix(MEMFD_NAME));
    if !matches!(name, Some("" | " (deleted)")) {
        return Ok(None);
    }
    // Whatever hides behind the name, opening it does not wait.
    let opened = OpenOptions::new().read(true).custom_flags(libc::O_NONBLOCK | libc::O_NOCTTY).open(fd);
    let file: File = match opened {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened?,
    };
    match StatsPage::open(&file) {
        // Its maker is between two steps.
        Err(BadPage::Magic(0)) => Ok(None),
        other => Ok(Some((other?, file.metadata()?.ino()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_number_is_the_process_own() {
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\t12\t1\nNSpgid:\t4711\n"), Some(1));
        assert_eq!(innermost_pid("Name:\tx\nNSpid:\t4711\n"), Some(4711));
        assert_eq!(innermost_pid("Name:\tx\n"), None);
    }
}
