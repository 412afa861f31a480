//! The hint file as its agent holds it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::net::Ipv4Addr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use memmap2::MmapRaw;

use super::hints::{ENTRIES, HEADER_SIZE, HINTS_SIZE, Hint, SHARE_ONE, header};
use super::seqlock::Entry;

/// A hint file of this process, which alone writes it.
///
/// Dropping it leaves the file, so that plugins go on with its hints while the agent is restarted; see [`HintsWriter::remove`].
#[derive(Debug)]
pub struct HintsWriter {
    map: MmapRaw,
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    /// What stands in the file.
    hints: Box<[Hint; ENTRIES]>,
}

impl HintsWriter {
    /// Puts a new file with no hints at `path`, in one step: nobody ever sees half a file, and whoever has the old one
    /// open keeps it. Its folder must be there. Anybody may read the file, and only its owner write it.
    ///
    /// # Errors
    /// What the system says, with the path.
    pub fn create(path: impl AsRef<Path>) -> io::Result<Self> {
        let path = path.as_ref();
        let mut new = path.as_os_str().to_owned();
        new.push(format!(".new.{}", std::process::id()));
        let new = PathBuf::from(new);
        let made = Self::make(&new, path);
        if made.is_err() {
            // What a failed try leaves nobody wants; it may not even be there.
            let _ = fs::remove_file(&new);
        }
        made.map_err(|e| io::Error::new(e.kind(), format!("hint file {}: {e}", path.display())))
    }

    fn make(new: &Path, path: &Path) -> io::Result<Self> {
        // One that a killed agent of this process id left.
        match fs::remove_file(new) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = OpenOptions::new().read(true).write(true).create_new(true).mode(0o644).open(new)?;
        // Whatever the umask says.
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

    /// Gives `slot` to the connections from `src`, the plugin's end, to `dst`, with a share of 0. To be done before
    /// the plugin is told the slot: it takes no hint of a slot with other addresses.
    pub fn assign(&mut self, slot: u8, src: Ipv4Addr, dst: Ipv4Addr) {
        self.write(slot, Hint { sup_bw: 0, src, dst, ..self.hint(slot) });
    }

    /// Sets the share of SUP in parts per 1024; above [`SHARE_ONE`] means all.
    pub fn set(&mut self, slot: u8, share: u16) {
        self.write(slot, Hint { sup_bw: share.min(SHARE_ONE).into(), ..self.hint(slot) });
    }

    /// Takes a slot back: no addresses, share 0.
    pub fn free(&mut self, slot: u8) {
        self.assign(slot, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED);
    }

    /// What stands in a slot.
    pub fn hint(&self, slot: u8) -> Hint {
        self.hints[usize::from(slot)]
    }

    /// Takes the file away, unless another has taken its place.
    ///
    /// # Errors
    /// What the system says.
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
        // SAFETY: `map` saw that the mapping has HINTS_SIZE bytes, so the 16 at `at` (at most 4096) are in it; it starts on a
        // page and `at` is a multiple of 16. All of `Entry` is atomics, valid for any bytes and for memory that other
        // processes read, and the borrow of `self` keeps the mapping.
        unsafe { &*self.map.as_mut_ptr().add(at).cast::<Entry>() }
    }
}
