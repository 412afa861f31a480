//! A process of the fabric with its mapped segment. One of them is this process.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Release};

use super::dir;
use super::fabric::{files, open_rw};
use super::layout::{
    BOUNCE, BOUNCE_AREA, CQS, CqShared, Header, MAGIC, MRS, MrShared, QPS, QpShared, SEGMENT, SRQS, SrqShared,
};
use super::map::{Mapping, Shared};
use crate::abi::border::{Errno, last_errno};
use crate::limits::{MAX_CQ, MAX_MR, MAX_QP, MAX_SRQ};
use crate::log::fault;

/// See the module.
pub(crate) struct Peer {
    map: Mapping,
    /// Whether it is this process.
    pub(crate) own: bool,
    /// Index in the fabric.
    pub(crate) process: u32,
    /// Identifies the segment.
    pub(crate) nonce: u64,
    /// For process_vm_writev.
    pub(crate) pid: libc::pid_t,
    /// Whether it has ended. The service thread, which watches `pidfd`, sets it.
    pub(crate) dead: AtomicBool,
    /// Becomes readable when the process ends; `None` for this process.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Writing wakes its service thread. Also open for reading: writing to a dead process then
    /// raises no SIGPIPE.
    wake: File,
    /// The segment of this process. Closing it would release the mark of a living process.
    file: Option<File>,
}

fn make_fifo(path: &Path) -> Result<(), Errno> {
    let name = std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno(libc::EINVAL))?;
    // SAFETY: a NUL-terminated path.
    match unsafe { libc::mkfifo(name.as_ptr(), 0o600) } {
        0 => Ok(()),
        _ => Err(last_errno()),
    }
}

fn open_fifo(path: &Path) -> Result<File, Errno> {
    use std::os::unix::fs::OpenOptionsExt;
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_NOFOLLOW)
        .open(path)
        .map_err(|e| Errno(e.raw_os_error().unwrap_or(libc::EIO)))
}

fn pidfd(pid: libc::pid_t) -> Result<OwnedFd, Errno> {
    // SAFETY: takes integers, returns a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).map_err(|_| Errno(libc::EIO))?;
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Peer {
    /// Creates the segment of this process. The directory is locked: no other process sees it
    /// incomplete.
    pub(crate) fn create(path: &Path, process: u32, nonce: u64) -> Result<Self, Errno> {
        let (segment, wake) = files(path, process, nonce);
        let log_error = |e: std::io::Error| {
            fault!("cannot create {} of {} MiB: {e}", segment.display(), SEGMENT >> 20);
            Errno(e.raw_os_error().unwrap_or(libc::EIO))
        };
        let file = open_rw(&segment, true).map_err(log_error)?;
        file.set_len(SEGMENT as u64).map_err(log_error)?;
        dir::claim(&file)?;
        super::heap::back(&file, 0, size_of::<Header>())?;
        super::heap::back(&file, BOUNCE_AREA, BOUNCE)?;
        make_fifo(&wake)?;
        let pid = libc::pid_t::try_from(std::process::id()).map_err(|_| Errno(libc::EIO))?;
        let this = Self {
            map: Mapping::new(&file, SEGMENT)?,
            own: true,
            process,
            nonce,
            pid,
            dead: AtomicBool::new(false),
            pidfd: None,
            wake: open_fifo(&wake)?,
            file: Some(file),
        };
        let header = this.header();
        for lock in [&header.atomics, &header.event_lock, &header.bounce.lock, &header.piece_lock] {
            // SAFETY: no other process has the segment yet.
            unsafe { lock.init() };
        }
        header.magic.store(MAGIC, Release);
        Ok(this)
    }

    /// Maps the segment of another process. Fails with ESRCH if that process has ended, and with
    /// EXDEV if it is in a PID namespace that is not visible from here.
    pub(crate) fn map(path: &Path, process: u32, nonce: u64) -> Result<Self, Errno> {
        let (segment, wake) = files(path, process, nonce);
        let file = open_rw(&segment, false).map_err(|e| match e.raw_os_error() {
            // Removed by its owner, or by a process that cleaned up after it.
            None | Some(libc::ENOENT) => Errno(libc::ESRCH),
            Some(errno) => Errno(errno),
        })?;
        let map = Mapping::new(&file, SEGMENT)?;
        let header: &Header = map.at(0).ok_or(Errno(libc::EPROTO))?;
        if header.magic.load(Acquire) != MAGIC {
            return Err(Errno(libc::EPROTO));
        }
        // The process id in our PID namespace.
        let pid = dir::claimant(&file).ok_or(Errno(libc::ESRCH))?;
        if pid <= 0 {
            return Err(Errno(libc::EXDEV));
        }
        let pidfd = pidfd(pid)?;
        // Checked after the pidfd was opened: if the process lives now, the pidfd refers to it.
        if dir::claimant(&file) != Some(pid) {
            return Err(Errno(libc::ESRCH));
        }
        Ok(Self {
            map,
            own: false,
            process,
            nonce,
            pid,
            dead: AtomicBool::new(false),
            pidfd: Some(pidfd),
            wake: open_fifo(&wake)?,
            file: None,
        })
    }

    /// Returns the start of the segment.
    pub(crate) fn header(&self) -> &Header {
        self.map.at(0).expect("every segment is mapped with its full length")
    }

    /// Wakes its service thread.
    pub(crate) fn kick(&self) {
        // If the pipe is full, a wake-up is pending.
        let _ = (&self.wake).write(&[1]);
    }

    /// Returns the pipe through which other processes wake this one.
    pub(crate) fn wake_fd(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    /// Returns the file of this process's segment.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Returns whether the service thread has seen the process end.
    pub(crate) fn is_dead(&self) -> bool {
        self.dead.load(Acquire)
    }

    /// Asks the kernel whether the process has ended.
    pub(crate) fn has_ended(&self) -> bool {
        let Some(fd) = &self.pidfd else { return false };
        let mut poll = libc::pollfd { fd: fd.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one valid entry.
        unsafe { libc::poll(&raw mut poll, 1, 0) > 0 }
    }

    fn entry<T: Shared>(&self, table: usize, index: u32, len: u32) -> Option<&T> {
        if index >= len {
            return None;
        }
        self.map.at(table + index as usize * size_of::<T>())
    }

    /// Returns an entry of the QP table.
    pub(crate) fn qp(&self, index: u32) -> Option<&QpShared> {
        self.entry(QPS, index, MAX_QP)
    }

    /// Returns an entry of the CQ table.
    pub(crate) fn cq(&self, index: u32) -> Option<&CqShared> {
        self.entry(CQS, index, MAX_CQ)
    }

    /// Returns an entry of the SRQ table.
    pub(crate) fn srq(&self, index: u32) -> Option<&SrqShared> {
        self.entry(SRQS, index, MAX_SRQ)
    }

    /// Returns an entry of the MR table, or `None` if it was never used. Work requests may name any
    /// key, and reading an entry without memory would allocate some in /dev/shm, or raise SIGBUS if
    /// that is full.
    pub(crate) fn mr(&self, index: u32) -> Option<&MrShared> {
        self.entry(MRS, index, self.header().registrations.load(Acquire).min(MAX_MR))
    }

    /// Returns `n` values at `offset` of the segment.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, n: usize) -> Option<&[T]> {
        self.map.slice(offset, n)
    }
}
