//! The fabric file: member processes, owners of QP numbers, and clocks of links.

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use super::dir::{self, Locked};
use super::layout::{FabricShared, LINKS, LinkSlot, MAGIC, PROCESSES, ProcessSlot, QPNS, QpnSlot};
use super::map::Mapping;
use super::mutex::Guard;
use crate::abi::border::{Errno, last_errno};
use crate::log::fault;

/// QP numbers 0 and 1 are reserved. Like hardware, the fabric also skips the next ones.
const FIRST_QPN: usize = 16;
/// Distance of the first slots of two adapters in the table of QP numbers: far and without a pattern.
const STRIDE: usize = 40503;

/// An open fabric.
pub(crate) struct Fabric {
    /// Path of the directory.
    pub(crate) path: PathBuf,
    map: Mapping,
}

/// Location of a QP.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Index of the process.
    pub(crate) process: u32,
    /// Identifies the segment, together with the index.
    pub(crate) nonce: u64,
    /// Index in the QP table of the segment.
    pub(crate) index: u32,
}

fn fabric_file(path: &Path) -> PathBuf {
    path.join(format!("fabric-{MAGIC:x}"))
}

/// Returns the paths of a process: its segment, and the pipe that wakes its service thread.
pub(crate) fn files(path: &Path, process: u32, nonce: u64) -> (PathBuf, PathBuf) {
    (path.join(format!("segment-{process}-{nonce:x}")), path.join(format!("wake-{process}-{nonce:x}")))
}

/// Opens a file for reading and writing, without following a symbolic link.
pub(crate) fn open_rw(path: &Path, create: bool) -> std::io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(create)
        .truncate(false)
        .mode(0o600)
        .custom_flags(libc::O_NOFOLLOW | libc::O_CLOEXEC)
        .open(path)
}

/// Returns the start time of process `pid` in kernel ticks; 0 if there is no such process.
pub(crate) fn start_time(pid: u32) -> u64 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name in parentheses may contain anything. The start time is field 22, the 20th after the
    // name.
    let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
    after.split_whitespace().nth(19).and_then(|field| field.parse().ok()).unwrap_or(0)
}

impl Fabric {
    /// Opens or creates the fabric file in a locked directory, and removes dead processes.
    pub(crate) fn open(dir: &Locked) -> Result<Self, Errno> {
        let path = fabric_file(&dir.path);
        let log_error = |e: std::io::Error| {
            fault!("cannot open {}: {e}", path.display());
            Errno(e.raw_os_error().unwrap_or(libc::EIO))
        };
        let file = open_rw(&path, true).map_err(log_error)?;
        super::heap::back(&file, 0, size_of::<FabricShared>())?;
        let this = Self { path: dir.path.clone(), map: Mapping::new(&file, size_of::<FabricShared>())? };
        let shared = this.shared();
        if shared.magic.load(Acquire) != MAGIC {
            // SAFETY: the directory is locked and the file is not yet in use.
            unsafe { shared.lock.init() };
            shared.magic.store(MAGIC, Release);
        }
        this.reap();
        Ok(this)
    }

    /// Like [`Fabric::open`]; `None` if there is no fabric file of this layout.
    pub(crate) fn open_existing(dir: &Locked) -> Result<Option<Self>, Errno> {
        match fabric_file(&dir.path).exists() {
            true => Self::open(dir).map(Some),
            false => Ok(None),
        }
    }

    fn shared(&self) -> &FabricShared {
        self.map.at(0).expect("the mapping was made with this length")
    }

    /// Removes dead processes. The directory is locked.
    fn reap(&self) {
        for (i, slot) in (0..).zip(&self.shared().processes) {
            if slot.nonce.load(Acquire) != 0 && !self.alive(i, slot) {
                self.remove(i);
            }
        }
    }

    fn alive(&self, index: u32, slot: &ProcessSlot) -> bool {
        let (pid, started) = (slot.pid.load(Relaxed), slot.started.load(Relaxed));
        if pid == std::process::id() && started == start_time(pid) {
            // Another copy of this library in this process. Its record lock is not visible here,
            // and closing its file would release it.
            return true;
        }
        open_rw(&files(&self.path, index, slot.nonce.load(Relaxed)).0, false)
            .is_ok_and(|file| dir::claimant(&file).is_some())
    }

    /// Adds a process and returns its slot. The directory is locked.
    pub(crate) fn join(&self, nonce: u64) -> Result<u32, Errno> {
        for (i, slot) in (0..).zip(&self.shared().processes) {
            if slot.nonce.load(Relaxed) == 0 {
                let pid = std::process::id();
                slot.pid.store(pid, Relaxed);
                slot.started.store(start_time(pid), Relaxed);
                slot.nonce.store(nonce, Release);
                return Ok(i);
            }
        }
        fault!(
            "fabric {}: more than {PROCESSES} processes; use another SOFTVERBS_FABRIC",
            self.path.display()
        );
        Err(Errno(libc::EMFILE))
    }

    /// Removes a process: its slot, QP numbers and files. The directory is locked.
    pub(crate) fn remove(&self, process: u32) {
        let shared = self.shared();
        let Some(slot) = shared.processes.get(process as usize) else { return };
        for qpn in &shared.qpns {
            // Acquire: a number that another process has just allocated is seen with its new owner.
            if qpn.qpn.load(Acquire) != 0 && qpn.process.load(Relaxed) == process {
                qpn.qpn.store(0, Release);
            }
        }
        let (segment, wake) = files(&self.path, process, slot.nonce.load(Relaxed));
        for path in [segment, wake] {
            // The file may be missing if the process died early.
            let _ = fs::remove_file(path);
        }
        slot.nonce.store(0, Release);
    }

    /// Removes the fabric if it has no living process. The directory is locked.
    pub(crate) fn remove_if_unused(&self, dir: &Locked) {
        self.reap();
        if self.shared().processes.iter().all(|slot| slot.nonce.load(Relaxed) == 0) {
            // Not in use: joining requires the lock of the directory.
            let _ = fs::remove_file(fabric_file(&self.path));
            remove_counters(dir);
            dir.remove_if_empty();
        }
    }

    /// Allocates a QP number of the adapter with link `adapter`, for entry `index` of process `process`:
    /// the lowest free one, which may have been another QP's a moment ago, or one that comes back as late
    /// as possible. Each adapter starts with the same number.
    pub(crate) fn alloc_qpn(
        &self,
        adapter: u32,
        process: u32,
        index: u32,
        lowest: bool,
    ) -> Result<u32, Errno> {
        let shared = self.shared();
        let next = &self.link(adapter).ok_or(Errno(libc::EIO))?.next_qpn;
        let _guard = shared.lock.lock();
        let start = if lowest { 0 } else { next.load(Relaxed) as usize };
        let usable = QPNS - FIRST_QPN;
        for step in 0..usable {
            let at = FIRST_QPN + (start + step) % usable;
            let Some(slot) = self.qpn_slot(adapter, at) else { continue };
            if slot.qpn.load(Relaxed) != 0 {
                continue;
            }
            let uses = if lowest { 0 } else { slot.uses.load(Relaxed).wrapping_add(1) & 0xff };
            let qpn = (uses << 16) | u32::try_from(at).unwrap_or(0);
            slot.uses.store(uses, Relaxed);
            slot.adapter.store(adapter, Relaxed);
            slot.process.store(process, Relaxed);
            slot.index.store(index, Relaxed);
            slot.qpn.store(qpn, Release);
            if !lowest {
                next.store(u32::try_from(at + 1 - FIRST_QPN).unwrap_or(0), Relaxed);
            }
            return Ok(qpn);
        }
        fault!("fabric {}: all {usable} QP numbers are in use", self.path.display());
        Err(Errno(libc::ENOMEM))
    }

    /// Returns the slot of a number of an adapter, by the low 16 bits of the number. Adapters share the
    /// slots, so an adapter skips the numbers whose slots others use.
    fn qpn_slot(&self, adapter: u32, low: usize) -> Option<&QpnSlot> {
        self.shared().qpns.get((low + adapter as usize * STRIDE) % QPNS)
    }

    /// Frees a QP number of the adapter with link `adapter`.
    pub(crate) fn free_qpn(&self, adapter: u32, qpn: u32) {
        let _guard = self.shared().lock.lock();
        if let Some(slot) = self.used_slot(adapter, qpn) {
            slot.qpn.store(0, Release);
        }
    }

    fn used_slot(&self, adapter: u32, qpn: u32) -> Option<&QpnSlot> {
        let is_it = |slot: &&QpnSlot| {
            qpn != 0 && slot.qpn.load(Acquire) == qpn && slot.adapter.load(Relaxed) == adapter
        };
        self.qpn_slot(adapter, qpn as usize % QPNS).filter(is_it)
    }

    /// Returns the locations of all QPs with this number, one on each adapter that has one.
    pub(crate) fn places(&self, qpn: u32) -> impl Iterator<Item = Place> {
        self.links().filter_map(move |(adapter, _)| self.find(adapter, qpn))
    }

    /// Returns the location of QP `qpn` of the adapter with link `adapter`, or `None` if there is no such
    /// QP.
    pub(crate) fn find(&self, adapter: u32, qpn: u32) -> Option<Place> {
        let slot = self.used_slot(adapter, qpn)?;
        let process = slot.process.load(Relaxed);
        let nonce = self.shared().processes.get(process as usize)?.nonce.load(Acquire);
        let place = Place { process, nonce, index: slot.index.load(Relaxed) };
        (nonce != 0 && slot.qpn.load(Acquire) == qpn).then_some(place)
    }

    /// Returns the link of the device with this first GID. Creates it at first use.
    pub(crate) fn link_of(&self, gid: [u64; 2], label: &str) -> Result<u32, Errno> {
        let shared = self.shared();
        let _guard = shared.lock.lock();
        for (i, slot) in (0..).zip(&shared.links) {
            let have = [slot.high.load(Relaxed), slot.low.load(Relaxed)];
            if have == [0, 0] {
                slot.high.store(gid[0], Relaxed);
                slot.low.store(gid[1], Relaxed);
                slot.set_label(label);
            } else if have != gid {
                continue;
            }
            return Ok(i);
        }
        fault!("fabric {}: more than {LINKS} devices; use another SOFTVERBS_FABRIC", self.path.display());
        Err(Errno(libc::ENOMEM))
    }

    /// Returns slot and nonce of all current processes.
    pub(crate) fn processes(&self) -> impl Iterator<Item = (u32, u64)> {
        let slots = (0..).zip(&self.shared().processes);
        slots.map(|(i, slot)| (i, slot.nonce.load(Acquire))).filter(|(_, nonce)| *nonce != 0)
    }

    /// Locks the fabric, for reading or writing a GID table.
    pub(crate) fn lock(&self) -> Guard<'_> {
        self.shared().lock.lock()
    }

    /// Returns all links in use, with their index.
    pub(crate) fn links(&self) -> impl Iterator<Item = (u32, &LinkSlot)> {
        let used = |slot: &LinkSlot| [slot.high.load(Relaxed), slot.low.load(Relaxed)] != [0, 0];
        (0..).zip(&self.shared().links).take_while(move |(_, slot)| used(slot))
    }

    /// Returns a link by index.
    pub(crate) fn link(&self, index: u32) -> Option<&LinkSlot> {
        self.shared().links.get(index as usize)
    }
}

/// Removes the directories with counters of devices.
fn remove_counters(dir: &Locked) {
    let entries = fs::read_dir(&dir.path).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_name().to_string_lossy().starts_with("sysfs-")) {
        // One that cannot be removed keeps the directory of the fabric.
        let _ = fs::remove_dir_all(entry.path());
    }
}

/// Removes the files of a directory without a fabric file of any layout: no process can use them.
fn remove_orphans(dir: &Locked) {
    let Ok(entries) = fs::read_dir(&dir.path) else { return };
    let files: Vec<_> =
        entries.flatten().map(|e| (e.file_name().to_string_lossy().into_owned(), e.path())).collect();
    if files.iter().any(|(name, _)| name.starts_with("fabric-")) {
        return;
    }
    for (_, path) in
        files.iter().filter(|(name, _)| name.starts_with("segment-") || name.starts_with("wake-"))
    {
        // A file that cannot be removed keeps the directory.
        let _ = fs::remove_file(path);
    }
    remove_counters(dir);
    dir.remove_if_empty();
}

/// Removes other fabrics without living processes, such as those of killed tests.
pub(crate) fn sweep_others(name: &str) {
    for path in dir::others(name) {
        let Ok(Some(dir)) = Locked::existing(&path) else { continue };
        if !fabric_file(&path).exists() {
            remove_orphans(&dir);
            continue;
        }
        if let Ok(fabric) = Fabric::open(&dir) {
            fabric.remove_if_unused(&dir);
        }
    }
}

/// Returns a random number, which identifies the segment.
pub(crate) fn nonce() -> Result<u64, Errno> {
    let mut bytes = [0_u8; 8];
    // The system call: glibc has the function since 2.25 only.
    // SAFETY: a writable buffer of the length given.
    let n = unsafe { libc::syscall(libc::SYS_getrandom, bytes.as_mut_ptr(), bytes.len(), 0) };
    if n != 8 {
        return Err(last_errno());
    }
    Ok(u64::from_ne_bytes(bytes) | 1)
}
