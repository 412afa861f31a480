//! Reads the hint file without trusting it.

use std::fmt;
use std::fs::{self, File, Metadata, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{Ordering, fence};

use nccl_net_mpib_agent_iface::agent::{
    self as iface, BadHeader, ENTRIES, ENTRY_SIZE, HEADER_SIZE, HINTS_SIZE, Snapshot, snapshot,
};

use super::options::Options;

/// How often one read of the file retries entries that are being written.
const TRIES: usize = 4;

/// Why there are no hints.
#[derive(Debug)]
pub(super) enum Fault {
    /// There is no file.
    Missing,
    /// The system refuses to read it.
    Unreadable(io::Error),
    /// Its owner is not trusted.
    Stranger(String),
    /// It is no regular file.
    Kind,
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
            Self::Stranger(why) => f.write_str(why),
            Self::Kind => f.write_str("not a regular file"),
            Self::Size(found) => write!(f, "{found} bytes, expected {HINTS_SIZE}"),
            Self::Header(bad) => write!(f, "not a hint file: {bad}"),
        }
    }
}

type Bytes = Box<[u8; HINTS_SIZE]>;

/// The open file, and what was last read.
#[derive(Debug)]
pub(super) struct HintFile {
    open: Option<Open>,
    copies: [Bytes; 3],
    slots: Box<[Snapshot; ENTRIES]>,
    /// `slots` was decoded from `copies[2]`.
    known: bool,
}

#[derive(Debug)]
struct Open {
    file: File,
    /// Device and inode.
    identity: (u64, u64),
}

fn identity(meta: &Metadata) -> (u64, u64) {
    (meta.dev(), meta.ino())
}

impl HintFile {
    pub(super) fn new() -> Self {
        Self {
            open: None,
            copies: std::array::from_fn(|_| Box::new([0; HINTS_SIZE])),
            slots: Box::new([Snapshot::Changed; ENTRIES]),
            known: false,
        }
    }

    /// Returns the current state of all slots. After a fault the next read opens the file anew.
    pub(super) fn read(&mut self, options: &Options) -> Result<&[Snapshot; ENTRIES], Fault> {
        if let Err(fault) = self.refresh(options) {
            (self.open, self.known) = (None, false);
            return Err(fault);
        }
        Ok(&self.slots)
    }

    fn refresh(&mut self, options: &Options) -> Result<(), Fault> {
        // By its path each time: the file may have been replaced or removed.
        let meta = fs::metadata(&options.file).map_err(unreadable)?;
        if self.open.as_ref().is_none_or(|open| open.identity != identity(&meta)) {
            (self.open, self.known) = (Some(open(options)?), false);
        } else {
            check(&meta, options)?;
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
}

/// `O_NONBLOCK`: opening a FIFO must not wait for a writer.
fn open(options: &Options) -> Result<Open, Fault> {
    let mut how = OpenOptions::new();
    how.read(true).custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOCTTY);
    let file = how.open(&options.file).map_err(unreadable)?;
    let meta = file.metadata().map_err(unreadable)?;
    check(&meta, options)?;
    Ok(Open { file, identity: identity(&meta) })
}

fn check(meta: &Metadata, options: &Options) -> Result<(), Fault> {
    if !options.trusts(meta.uid()) {
        return Err(Fault::Stranger(options.distrust(meta.uid())));
    }
    if !meta.is_file() {
        return Err(Fault::Kind);
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

fn unreadable(e: io::Error) -> Fault {
    match e.kind() {
        io::ErrorKind::NotFound => Fault::Missing,
        _ => Fault::Unreadable(e),
    }
}
