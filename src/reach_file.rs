//! What connects of this host have found of routes, for its other processes: a file of lines, to which
//! each process appends. It may be removed at any time, and nothing depends on it: a route that it
//! names is tried last.
//!
//! A line has the time in seconds since 1970, the local GID, its type, the peer's GID and host, and the
//! reason; an empty reason means that the route works. Tabs separate the fields.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io::Write;
use std::net::Ipv6Addr;
use std::os::unix::fs::{DirBuilderExt, FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use mpib_proto::{GidKind, printable};
use nccl_net_mpib_agent_iface::agent::paths::{SHARED_FOLDER, Trust, folders, open_log};
use nix::unistd::geteuid;
use parking_lot::Mutex;

use crate::config::Config;
use crate::failover::{EXPIRY, RouteKey};

/// Name of the file in its folder.
const NAME: &str = "reach";

/// How often the file is looked at, at most.
const INTERVAL: Duration = Duration::from_secs(1);

/// The file is emptied before a line would make it longer.
const MAX: u64 = 256 << 10;

/// The most that is read at a time. What is older than the last lines has expired.
const READ: u64 = 2 * MAX;

/// The file of a process.
#[derive(Debug, Default)]
pub(crate) struct ReachFile(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    file: Option<File>,
    looked: Option<Instant>,
    /// How far the file has been read.
    read: u64,
    /// What other processes have found, until this one needs it.
    found: HashMap<RouteKey, Failure>,
}

/// When a route has failed, in seconds since 1970, and why.
type Failure = (u64, String);

impl ReachFile {
    /// Takes what another process has found of a route: when it failed, and why.
    pub(crate) fn take(&self, config: &Config, key: &RouteKey) -> Option<(Instant, String)> {
        let mut state = self.0.lock();
        state.look(config);
        let (at, why) = state.found.remove(key)?;
        let age = Duration::from_secs(seconds().checked_sub(at)?);
        let at = Instant::now().checked_sub(age).filter(|_| age < EXPIRY)?;
        Some((at, why))
    }

    /// Writes for other processes why a route has failed.
    pub(crate) fn failed(&self, config: &Config, key: &RouteKey, why: &str) {
        self.0.lock().append(config, key, why);
    }

    /// Writes for other processes that a route which had failed works.
    pub(crate) fn works(&self, config: &Config, key: &RouteKey) {
        self.0.lock().append(config, key, "");
    }
}

impl State {
    /// Reads what has been appended.
    fn look(&mut self, config: &Config) {
        let now = Instant::now();
        if self.looked.is_some_and(|before| now.saturating_duration_since(before) < INTERVAL) {
            return;
        }
        self.looked = Some(now);
        let Some(len) = self.open(config, false).and_then(|file| Some(file.metadata().ok()?.len())) else {
            return;
        };
        if len < self.read {
            self.forget();
        }
        let from = self.read.max(len.saturating_sub(READ));
        let mut bytes = vec![0; usize::try_from(len - from).unwrap_or(0)];
        let Some(Ok(n)) = self.file.as_ref().map(|file| file.read_at(&mut bytes, from)) else { return };
        // Without a line that is being written.
        let whole = bytes[..n].iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        self.read = from + whole as u64;
        for line in String::from_utf8_lossy(&bytes[..whole]).lines() {
            match parsed(line) {
                Some((key, (_, why))) if why.is_empty() => drop(self.found.remove(&key)),
                Some((key, failure)) => drop(self.found.insert(key, failure)),
                None => {}
            }
        }
    }

    /// Appends a line in one write, which no other one divides.
    fn append(&mut self, config: &Config, key: &RouteKey, why: &str) {
        let line = written(seconds(), key, why);
        let Some(file) = self.open(config, true) else { return };
        let is_full = file.metadata().is_ok_and(|meta| meta.len() + line.len() as u64 > MAX);
        // Nothing depends on the file.
        let _ = if is_full { file.set_len(0) } else { Ok(()) };
        let _ = file.write_all(line.as_bytes());
    }

    /// Forgets what a file had that is not there any more.
    fn forget(&mut self) {
        self.read = 0;
        self.found.clear();
    }

    /// Opens the file, unless it is open and still there. `create`: makes it and its folder.
    fn open(&mut self, config: &Config, create: bool) -> Option<&mut File> {
        let is_there = |file: &mut File| file.metadata().is_ok_and(|meta| meta.nlink() > 0);
        if self.file.as_mut().is_none_or(|file| !is_there(file)) {
            self.forget();
            // That of the agent, if MPIB_AGENT_UID names another user, is not this process's to write.
            let trust = Trust::new(None);
            self.file = paths(config).into_iter().find_map(|path| {
                if create && config.reach_file.is_none() {
                    let _ = DirBuilder::new().mode(0o755).create(path.parent()?);
                }
                open_log(&path, &trust, create).ok()
            });
        }
        self.file.as_mut()
    }
}

/// Returns where the file may lie, in order.
fn paths(config: &Config) -> Vec<PathBuf> {
    if let Some(path) = &config.reach_file {
        return vec![path.clone()];
    }
    // In the folder that every user can create, another user's agent may be expected.
    let folders = folders(config.runtime_dir.as_deref()).into_iter();
    let own = PathBuf::from(format!("/dev/shm/mpib-{}", geteuid()));
    let folders = folders.filter(|folder| folder != Path::new(SHARED_FOLDER)).chain([own]);
    folders.map(|folder| folder.join(NAME)).collect()
}

fn seconds() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_secs()
}

fn written(at: u64, RouteKey { gid, kind, host, peer }: &RouteKey, why: &str) -> String {
    let (gid, peer) = (Ipv6Addr::from(*gid), Ipv6Addr::from(*peer));
    format!("{at}\t{gid}\t{}\t{peer}\t{}\t{}\n", *kind as u8, printable(host), printable(why))
}

/// Reads a line. `None` if it is not one of this file.
fn parsed(line: &str) -> Option<(RouteKey, Failure)> {
    let mut fields = line.splitn(6, '\t');
    let mut next = || fields.next();
    let at = next()?.parse().ok()?;
    let gid = next()?.parse::<Ipv6Addr>().ok()?.octets();
    let kind = GidKind::from_raw(next()?.parse().ok()?)?;
    let peer = next()?.parse::<Ipv6Addr>().ok()?.octets();
    let (host, why) = (next()?.to_owned(), next()?.to_owned());
    Some((RouteKey { gid, kind, host, peer }, (at, why)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_line_is_read_as_it_was_written(
            at: u64,
            gids in any::<[[u8; 16]; 2]>(),
            kind in prop::sample::select(&GidKind::ALL),
            [host, why] in any::<[String; 2]>(),
        ) {
            let [gid, peer] = gids;
            let key = RouteKey { gid, kind, host: printable(&host), peer };
            let line = written(at, &key, &why);
            prop_assert_eq!(line.matches('\n').count(), 1);
            let read = parsed(line.strip_suffix('\n').unwrap());
            prop_assert_eq!(read, Some((key, (at, printable(&why)))));
        }

        #[test]
        fn any_line_is_read_or_not(line: String) {
            let _ = parsed(&line);
        }
    }
}
