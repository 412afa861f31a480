//! Reads the hint file without trusting it.

use std::fmt;
use std::fs::{self, File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{Ordering, fence};

use nccl_net_mpib_agent_iface::agent::paths::{Refusal, Trust, open_file};
use nccl_net_mpib_agent_iface::agent::{
    self as iface, BadHeader, ENTRIES, ENTRY_SIZE, HEADER_SIZE, HINTS_SIZE, Snapshot, snapshot,
};

use super::list;

/// How often one read of the file retries entries that are being written.
const TRIES: usize = 4;

/// Why there are no hints.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is no file.
    Missing,
    /// The system refuses to read it.
    Unreadable(io::Error),
    /// It, or a folder above it, is not to be trusted.
    Unsafe(String),
    /// It has another size than a hint file.
    Size(u64),
    /// Its header is not that of a hint file.
    Header(BadHeader),
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("no such file; the agent makes it, at the path of MPIB_HINTS"),
            Self::Unreadable(e) => write!(f, "cannot be read: {e}"),
            Self::Unsafe(why) => f.write_str(why),
            Self::Size(found) => write!(f, "{found} bytes, expected {HINTS_SIZE}"),
            Self::Header(bad) => write!(f, "not a hint file: {bad}"),
        }
    }
}

type Bytes = Box<[u8; HINTS_SIZE]>;

/// The open file, and what was last read.
#[derive(Debug)]
pub(super) struct HintFile {
    trust: Trust,
    /// Where the file is looked for, in order.
    paths: Vec<PathBuf>,
    open: Option<Open>,
    copies: [Bytes; 3],
    slots: Box<[Snapshot; ENTRIES]>,
    /// `slots` was decoded from `copies[2]`.
    known: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl HintFile {
    pub(super) fn new(trust: Trust) -> Self {
        Self {
            trust,
            paths: Vec::new(),
            open: None,
            copies: std::array::from_fn(|_| Box::new([0; HINTS_SIZE])),
            slots: Box::new([Snapshot::Changed; ENTRIES]),
            known: false,
        }
    }

    /// Sets where the file may be: first where it is likely.
    pub(super) fn set_paths(&mut self, paths: Vec<PathBuf>) {
        if self.paths != paths {
            (self.paths, self.open, self.known) = (paths, None, false);
        }
    }

    /// Names the open file, or the places where it is looked for.
    pub(super) fn name(&self) -> String {
        match &self.open {
            Some(open) => open.path.display().to_string(),
            None => list(&self.paths),
        }
    }

    /// Returns the current state of all slots. After a fault the next read opens the file again.
    pub(super) fn read(&mut self) -> Result<&[Snapshot; ENTRIES], Fault> {
        if let Err(fault) = self.refresh() {
            (self.open, self.known) = (None, false);
            return Err(fault);
        }
        Ok(&self.slots)
    }

    fn refresh(&mut self) -> Result<(), Fault> {
        // By its path each time: the file may have been replaced or removed.
        let same = |open: &Open| match fs::symlink_metadata(&open.path) {
            Ok(meta) if open.identity == identity(&meta) => Some(meta),
            _ => None,
        };
        match self.open.as_ref().and_then(same) {
            Some(meta) => check(&meta, &self.trust)?,
            None => (self.open, self.known) = (Some(self.find()?), false),
        }
        let Some(Open { file, .. }) = &self.open else { return Err(Fault::Missing) };
        for _ in 0..TRIES {
            copy(file, &mut self.copies[0])?;
            if self.known && self.copies[0] == self.copies[2] {
                return Ok(());
            }
            copy(file, &mut self.copies[1])?;
            copy(file, &mut self.copies[2])?;
            let mut head = [0; HEADER_SIZE];
            head.copy_from_slice(&self.copies[2][..HEADER_SIZE]);
            iface::check_header(&head).map_err(Fault::Header)?;
            for slot in 0..=u8::MAX {
                let [a, b, c] = self.copies.each_ref().map(|bytes| entry(bytes, slot));
                self.slots[usize::from(slot)] = snapshot(&a, &b, &c);
            }
            // Only if all three are equal: otherwise a number may be newer than the fields beside
            // it.
            self.known = self.copies[0] == self.copies[1] && self.copies[1] == self.copies[2];
            if !self.slots.contains(&Snapshot::Changed) {
                break;
            }
        }
        Ok(())
    }

    /// Opens the first of the files that exists.
    fn find(&self) -> Result<Open, Fault> {
        let opened = self.paths.iter().map(|path| open(path, &self.trust));
        opened
            .into_iter()
            .find(|opened| !matches!(opened, Err(Fault::Missing)))
            .unwrap_or(Err(Fault::Missing))
    }
}

fn open(path: &Path, trust: &Trust) -> Result<Open, Fault> {
    let file = open_file(path, trust).map_err(|refusal| match refusal {
        Refusal::Missing => Fault::Missing,
        Refusal::Io(_, e) => Fault::Unreadable(e),
        refusal => Fault::Unsafe(refusal.to_string()),
    })?;
    let meta = file.metadata().map_err(Fault::Unreadable)?;
    check(&meta, trust)?;
    Ok(Open { file, path: path.to_owned(), identity: identity(&meta) })
}

/// Checks what may change while the file is open.
fn check(meta: &Metadata, trust: &Trust) -> Result<(), Fault> {
    if !trust.trusts(meta.uid()) {
        return Err(Fault::Unsafe(trust.distrust(meta.uid())));
    }
    if meta.mode() & 0o022 != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(Fault::Unsafe(format!("has mode {mode:o}: other users may write to it")));
    }
    match meta.len() {
        len if len == HINTS_SIZE as u64 => Ok(()),
        len => Err(Fault::Size(len)),
    }
}

/// Copies the whole file. All of it is read before anything that is read later.
fn copy(file: &File, to: &mut Bytes) -> Result<(), Fault> {
    let mut done = 0;
    while done < HINTS_SIZE {
        match file.read_at(&mut to[done..], done as u64) {
            Ok(0) => return Err(Fault::Size(done as u64)),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(Fault::Unreadable(e)),
        }
    }
    fence(Ordering::Acquire);
    Ok(())
}

fn entry(bytes: &[u8; HINTS_SIZE], slot: u8) -> [u8; ENTRY_SIZE] {
    let at = iface::entry_offset(slot);
    std::array::from_fn(|i| bytes[at + i])
}
