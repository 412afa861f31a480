//! The memory file: hints and port scales that the send path of a plugin reads directly.
//!
//! An agent makes one file per socket connection (`memfd_create`) and passes it to the plugin over
//! that connection, so a process sees only what concerns it. The file is sealed against shrinking
//! and growing: unlike a mapped plain file, it cannot kill its reader by SIGBUS.
//!
//! | offset | bytes | what |
//! |---|---|---|
//! | 0 | 4 | magic, 0x4D50494D |
//! | 4 | 4 | version, 1 |
//! | 8 | 4 | number of flow entries, 256 |
//! | 12 | 4 | number of port entries, 64 |
//! | 16 | 48 | zero |
//! | 64 + 16 i | 16 | flow entry i: as in the hint file |
//! | 4160 + 72 i | 4 | port entry i: scale, parts per 1024 |
//! | 4164 + 72 i | 4 | `seq`: odd while the entry is being written |
//! | 4168 + 72 i | 64 | HCA and port, followed by zeros; empty: the entry is free |
//!
//! All integers are little-endian.

use std::fs::File;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

use memmap2::{MmapOptions, MmapRaw};
use nix::fcntl::{FallocateFlags, FcntlArg, SealFlag, fallocate, fcntl};

use super::hints::{ENTRIES, Hint, SHARE_ONE};
use super::seqlock::{Entry, PortEntry, PortScale};
use crate::memfd;

/// First word of a memory file.
pub const MEMORY_MAGIC: u32 = 0x4D50_494D;
/// Version of the layout.
pub const MEMORY_VERSION: u32 = 1;
/// Number of port entries.
pub const PORTS: usize = 64;
/// Size of the file in bytes.
pub const MEMORY_SIZE: usize = size_of::<Layout>();

/// The name that `/proc/PID/fd` shows.
const MEMFD_NAME: &str = "mpib-agent";

#[derive(Debug)]
#[repr(C)]
struct Layout {
    header: [AtomicU32; 16],
    flows: [Entry; ENTRIES],
    ports: [PortEntry; PORTS],
}

const HEADER: [u32; 4] = [MEMORY_MAGIC, MEMORY_VERSION, ENTRIES as u32, PORTS as u32];

/// Why a descriptor is not a memory file.
#[derive(Debug, thiserror::Error)]
pub enum BadMemory {
    /// A system call failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// Its size may change, which makes mapping it unsafe.
    #[error("a memory file that is not sealed against shrinking and growing (F_SEAL_SHRINK, F_SEAL_GROW)")]
    Unsealed,
    /// Another size.
    #[error("a memory file of {0} bytes, expected {MEMORY_SIZE}")]
    Size(u64),
    /// Not a memory file.
    #[error("a memory file with magic {0:#010x}, expected {MEMORY_MAGIC:#010x}")]
    Magic(u32),
    /// Another version.
    #[error(
        "a memory file of version {0}, expected {MEMORY_VERSION}: agent and plugin are of different releases"
    )]
    Version(u32),
    /// Other numbers of entries.
    #[error("a memory file of {0} flows and {1} ports, expected {ENTRIES} and {PORTS}")]
    Entries(u32, u32),
}

/// A memory file as a plugin reads it.
#[derive(Debug)]
pub struct Memory(MmapRaw);

impl Memory {
    /// Checks and maps a file that an agent has passed.
    ///
    /// # Errors
    /// [`BadMemory`] with what was found.
    pub fn open(file: OwnedFd) -> Result<Self, BadMemory> {
        let file = File::from(file);
        let needed = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let seals = fcntl(&file, FcntlArg::F_GET_SEALS).map(SealFlag::from_bits_retain);
        if !seals.is_ok_and(|seals| seals.contains(needed)) {
            return Err(BadMemory::Unsealed);
        }
        let size = file.metadata()?.len();
        if size != MEMORY_SIZE as u64 {
            return Err(BadMemory::Size(size));
        }
        let memory = Self(MmapOptions::new().len(MEMORY_SIZE).map_raw_read_only(&file)?);
        let word = |i: usize| u32::from_le(layout(&memory.0).header[i].load(Ordering::Relaxed));
        match std::array::from_fn(word) {
            HEADER => Ok(memory),
            [MEMORY_MAGIC, MEMORY_VERSION, flows, ports] => Err(BadMemory::Entries(flows, ports)),
            [MEMORY_MAGIC, version, ..] => Err(BadMemory::Version(version)),
            [magic, ..] => Err(BadMemory::Magic(magic)),
        }
    }

    /// Returns the entry of a flow.
    #[inline]
    pub fn flow(&self, slot: u8) -> &Entry {
        &layout(&self.0).flows[usize::from(slot)]
    }

    /// Returns the scales of all ports that have one; `None` while an entry is being written. The agent
    /// sends a message after that.
    pub fn ports(&self) -> Option<Vec<PortScale>> {
        const TRIES: usize = 4;
        let read = |entry: &PortEntry| (0..TRIES).find_map(|_| entry.read());
        let ports: Option<Vec<_>> = layout(&self.0).ports.iter().map(read).collect();
        ports.map(|ports| ports.into_iter().filter(|port| !port.name.is_empty()).collect())
    }
}

/// A memory file as an agent writes it. A file has one writer.
#[derive(Debug)]
pub struct MemoryWriter {
    file: File,
    map: MmapRaw,
    flows: Box<[Hint; ENTRIES]>,
    /// The sequence number and the content of each port entry.
    ports: Vec<(u32, PortScale)>,
}

impl MemoryWriter {
    /// Makes an empty file.
    ///
    /// # Errors
    /// The system's error: memory, descriptors.
    pub fn create() -> io::Result<Self> {
        let file = memfd::sealable(MEMFD_NAME)?;
        // Allocated now: later a reader's or writer's access to a missing page could fail.
        fallocate(&file, FallocateFlags::empty(), 0, MEMORY_SIZE as libc::off_t)?;
        let map = MmapOptions::new().len(MEMORY_SIZE).map_raw(&file)?;
        for (to, word) in layout(&map).header.iter().zip(HEADER) {
            to.store(word.to_le(), Ordering::Relaxed);
        }
        let size = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        // Forbids writes except through this mapping; kernels before 5.1 do not have this seal.
        if fcntl(&file, FcntlArg::F_ADD_SEALS(size | SealFlag::F_SEAL_FUTURE_WRITE)).is_err() {
            fcntl(&file, FcntlArg::F_ADD_SEALS(size))?;
        }
        let empty = Hint { sup_bw: 0, seq: 0, src: Ipv4Addr::UNSPECIFIED, dst: Ipv4Addr::UNSPECIFIED };
        let port = PortScale { name: String::new(), scale: SHARE_ONE };
        Ok(Self { file, map, flows: Box::new([empty; ENTRIES]), ports: vec![(0, port); PORTS] })
    }

    /// Returns the descriptor to pass to the plugin.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }

    /// Assigns `slot` to the connections from `src` (the plugin's end) to `dst`, with this share of
    /// SUP in parts per 1024.
    pub fn assign(&mut self, slot: u8, src: Ipv4Addr, dst: Ipv4Addr, share: u16) {
        let at = usize::from(slot);
        let hint = Hint { sup_bw: share.min(SHARE_ONE).into(), src, dst, ..self.flows[at] };
        self.flows[at] = Hint { seq: layout(&self.map).flows[at].write(hint), ..hint };
    }

    /// Changes the share of a slot.
    pub fn set(&mut self, slot: u8, share: u16) {
        let Hint { src, dst, .. } = self.flows[usize::from(slot)];
        self.assign(slot, src, dst, share);
    }

    /// Clears a slot: no addresses, share 0.
    pub fn free(&mut self, slot: u8) {
        self.assign(slot, Ipv4Addr::UNSPECIFIED, Ipv4Addr::UNSPECIFIED, 0);
    }

    /// Writes the scales of ports; the other entries become free. A port keeps its entry while it has
    /// a scale: a reader never misses it. Of more than [`PORTS`], some are left out. Returns whether
    /// an entry has changed.
    pub fn set_ports(&mut self, ports: &[PortScale]) -> bool {
        let mut changed = false;
        for at in 0..PORTS {
            let name = &self.ports[at].1.name;
            let scale = ports.iter().find(|port| port.name == *name).map(|port| port.scale);
            let new = match scale {
                Some(scale) => PortScale { name: name.clone(), scale },
                None => PortScale { name: String::new(), scale: SHARE_ONE },
            };
            changed |= self.write_port(at, new);
        }
        for port in ports {
            let has = self.ports.iter().any(|(_, known)| known.name == port.name);
            let free = self.ports.iter().position(|(_, known)| known.name.is_empty());
            if let (false, Some(at)) = (has, free) {
                changed |= self.write_port(at, port.clone());
            }
        }
        changed
    }

    fn write_port(&mut self, at: usize, new: PortScale) -> bool {
        let (seq, old) = &mut self.ports[at];
        let changed = *old != new;
        if changed {
            *seq = layout(&self.map).ports[at].write(*seq, &new);
            *old = new;
        }
        changed
    }
}

fn layout(map: &MmapRaw) -> &Layout {
    // SAFETY: both makers of such a mapping gave it MEMORY_SIZE bytes of a file that is sealed
    // against shrinking, or not yet shared, and a mapping is page-aligned. `Layout` consists of
    // atomics, which are valid for any bytes and for memory shared with other processes; a reader's
    // mapping is read-only, and a reader only loads. The borrow keeps the mapping alive.
    unsafe { &*map.as_ptr().cast::<Layout>() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use nix::sys::memfd::{MFdFlags, memfd_create};

    use super::*;

    fn reader(writer: &MemoryWriter) -> Memory {
        Memory::open(writer.descriptor().try_clone_to_owned().unwrap()).unwrap()
    }

    fn port(name: &str, scale: u16) -> PortScale {
        PortScale { name: name.into(), scale }
    }

    //= agent-interface.md: the memory file: layout, and what a writer writes is what a reader reads
    #[test]
    fn a_reader_sees_what_the_writer_writes() {
        assert_eq!(MEMORY_SIZE, 8768);
        let mut writer = MemoryWriter::create().unwrap();
        let memory = reader(&writer);
        let [src, dst] = [Ipv4Addr::new(10, 0, 0, 1), Ipv4Addr::new(10, 0, 0, 2)];
        writer.assign(255, src, dst, 341);
        let hint = memory.flow(255).read().unwrap();
        assert_eq!((hint.src, hint.dst, hint.share(), hint.seq), (src, dst, 341, 2));
        writer.set(255, 2000);
        assert_eq!(memory.flow(255).read().unwrap().share(), 1024);
        writer.free(255);
        assert_eq!(memory.flow(255).read().unwrap().src, Ipv4Addr::UNSPECIFIED);

        assert_eq!(memory.ports(), Some(vec![]));
        let long = "x".repeat(64);
        let two = [port("mlx5_0:1", 0), port(&long, 1024)];
        assert!(writer.set_ports(&two) && !writer.set_ports(&two));
        assert_eq!(memory.ports().unwrap(), two);
        assert!(writer.set_ports(&two[1..]));
        assert_eq!(memory.ports().unwrap(), two[1..]);
        let many: Vec<_> = (0..70).map(|i| port(&format!("p{i}:1"), i)).collect();
        assert!(writer.set_ports(&many));
        assert_eq!(memory.ports().unwrap().len(), PORTS);
        // An agent that stops in the middle of a change.
        layout(&writer.map).ports[5].begin(4);
        assert_eq!(memory.ports(), None);
    }

    //= agent-interface.md: a memory file that is not sealed, or of another layout, is refused
    #[test]
    fn a_descriptor_that_is_no_memory_file_is_refused() {
        let made = |len: u64, word: (usize, u32), seals: SealFlag| {
            let file = File::from(memfd_create("x", MFdFlags::MFD_ALLOW_SEALING).unwrap());
            file.set_len(len).unwrap();
            let mut header = HEADER;
            header[word.0] = word.1;
            let bytes = header.map(u32::to_le_bytes);
            std::os::unix::fs::FileExt::write_all_at(&file, bytes.as_flattened(), 0).unwrap();
            fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
            Memory::open(file.as_fd().try_clone_to_owned().unwrap()).map(drop).map_err(|e| e.to_string())
        };
        let both = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW;
        let (size, magic) = (MEMORY_SIZE as u64, (0, HEADER[0]));
        assert_eq!(made(size, magic, both), Ok(()));
        for (len, word, seals, why) in [
            (size, magic, SealFlag::F_SEAL_GROW, "not sealed"),
            (size, magic, SealFlag::F_SEAL_SHRINK, "not sealed"),
            (size - 1, magic, both, "8767 bytes, expected 8768"),
            (size, (0, 7), both, "magic 0x00000007"),
            (size, (1, 2), both, "version 2"),
            (size, (3, 65), both, "256 flows and 65 ports"),
        ] {
            let refused = made(len, word, seals).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
        let null = File::open("/dev/null").unwrap();
        assert!(matches!(Memory::open(null.into()), Err(BadMemory::Unsealed)));
    }
}
