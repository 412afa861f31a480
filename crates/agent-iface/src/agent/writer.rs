//! The hint file on the agent's side.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapRaw;

use super::hints::{ENTRIES, HEADER_SIZE, HINTS_SIZE, Hint, SHARE_ONE, header};
use super::seqlock::Entry;

/// The writer of a hint file. A file has one writer.
///
/// Dropping the writer keeps the file: plugins use its hints while the agent restarts. To delete
/// the file, call [`HintsWriter::remove`].
#[derive(Debug)]
pub struct HintsWriter {
    map: MmapRaw,
    path: PathBuf,
    /// Device and inode of the file.
    identity: (u64, u64),
    /// The current content of the file.
    hints: Box<[Hint; ENTRIES]>,
}

impl HintsWriter {
    /// Creates a file without hints at `path` and replaces an existing one atomically. A reader
    /// that has the old file open keeps the old file. The directory must exist. The file has mode
    /// 0644.
    ///
    /// # Errors
    /// The system's error, with the path.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".new.{}", std::process::id()));
        let new = PathBuf::from(new);
        let made = Self::make(&new, path);
        if made.is_err() {
            // Clean up; the file may not exist.
            let _ = fs::remove_file(&new);
        }
        made.map_err(|e| io::Error::new(e.kind(), format!("hint file {}: {e}", path.display())))
    }

    fn make(new: &Path, path: &Path) -> io::Result<Self> {
        // An agent with this process id may have been killed here.
        match fs::remove_file(new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(new)?;
        // Independent of the umask.
        file.set_permissions(fs::Permissions::from_mode(0o644))?;
        let mut bytes = [0; HINTS_SIZE];
        bytes[..HEADER_SIZE].copy_from_slice(&header());
        file.write_all(&bytes)?;
        let writer = Self::map(&file, path)?;
        fs::rename(new, path)?;
        Ok(writer)
    }

    fn map(file: &File, path: &Path) -> io::Result<Self> {
        let map = MmapRaw::map_raw(file)?;
        if map.len() < HINTS_SIZE {
            return Err(io::Error::other(format!("{} bytes, expected {HINTS_SIZE}", map.len())));
        }
        let meta = file.metadata()?;
        let empty = Hint { sup_bw: 0, seq: 0, src: Ipv4Addr::UNSPECIFIED, dst: Ipv4Addr::UNSPECIFIED };
        Ok(Self {
            map,
            path: path.to_owned(),
            identity: (meta.dev(), meta.ino()),
            hints: Box::new([empty; ENTRIES]),
        })
    }

    /// Assigns `slot` to the connections from `src` (the plugin's end) to `dst`, with a share of 0.
    ///
    /// Call this before sending the response with the slot: the plugin ignores a hint with other
    /// addresses.
    pub fn assign(&mut self, slot: u8, src: Ipv4Addr, dst: Ipv4Addr) {
        self.write(slot, Hint { sup_bw: 0, src, dst, ..self.hint(slot) });
    }

    /// Sets the share of SUP in parts per 1024. Values above [`SHARE_ONE`] count as [`SHARE_ONE`].
    pub fn set(&mut self, slot: u8, share: u16) {
        self.write(slot, Hint { sup_bw: share.min(SHARE_ONE).into(), ..self.hint(slot) });
    }

    /// Clears a slot: no addresses, share 0.
    pub fn free(&mut self, slot: u8) {
        self.assign(slot, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
    }

    /// Returns the content of a slot.
    pub fn hint(&self, slot: u8) -> Hint {
        self.hints[usize::from(slot)]
    }

    /// Deletes the file, unless another file has replaced it.
    ///
    /// # Errors
    /// The system's error.
    pub fn remove(self) -> io::Result<()> {
        match fs::symlink_metadata(&self.path) {
            Ok(meta) if (meta.dev(), meta.ino()) == self.identity => fs::remove_file(&self.path),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }

    fn write(&mut self, slot: u8, hint: Hint) {
        let seq = self.entry(slot).write(hint);
        self.hints[usize::from(slot)] = Hint { seq, ..hint };
    }

    fn entry(&self, slot: u8) -> &Entry {
        let at = super::entry_offset(slot);
        // SAFETY: `map` checked that the mapping has HINTS_SIZE bytes, hence the 16 bytes at `at`
        // (at most 4096) lie inside. The mapping is page-aligned and `at` is a multiple of 16.
        // `Entry` consists of atomics, which are valid for any bytes and for memory shared with
        // other processes. The borrow of `self` keeps the mapping alive.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<Entry>() }
    }
}
