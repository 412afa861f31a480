//! A process of the fabric as another one sees it: its segment mapped here. One of them is
//! ourselves.

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
    /// Names the segment.
    pub(crate) nonce: u64,
    /// For process_vm_writev.
    pub(crate) pid: libc::pid_t,
    /// It has ended. Set by the service thread, which watches `pidfd`.
    pub(crate) dead: AtomicBool,
    /// Becomes readable when the process ends; none for ourselves.
    pub(crate) pidfd: Option<OwnedFd>,
    /// Writing wakes its service thread. Open for reading too, so that writing to a dead one raises
    /// no SIGPIPE.
    wake: File,
    /// Our own segment; closing it would drop the mark that says that we live.
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
    // SAFETY: takes integers, gives a new descriptor or -1.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    let fd = i32::try_from(fd).map_err(|_| Errno(libc::EIO))?;
    if fd < 0 {
        return Err(last_errno());
    }
    // SAFETY: just opened, and nobody else has it.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

impl Peer {
    /// Makes our own segment. The directory is locked, so nobody sees it half made.
    pub(crate) fn create(path: &Path, process: u32, nonce: u64) -> Result<Self, Errno> {
        let (segment, wake) = files(path, process, nonce);
        let told = |e: std::io::Error| {
            fault!("cannot make {} of {} MiB: {e}", segment.display(), SEGMENT >> 20);
            Errno(e.raw_os_error().unwrap_or(libc::EIO))
        };
        let file = open_rw(&segment, true).map_err(told)?;
        file.set_len(SEGMENT as u64).map_err(told)?;
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
        for lock in [&header.atomics, &header.event_lock, &header.bounce.lock] {
            // SAFETY: nobody knows of the segment yet.
            unsafe { lock.init() };
        }
        header.magic.store(MAGIC, Release);
        Ok(this)
    }

    /// Maps another process's segment; ESRCH if that process has ended, EXDEV if it is in a PID
    /// namespace that cannot be seen from here.
    pub(crate) fn map(path: &Path, process: u32, nonce: u64) -> Result<Self, Errno> {
        let (segment, wake) = files(path, process, nonce);
        let file = open_rw(&segment, false).map_err(|e| match e.raw_os_error() {
            // Its owner, or who swept up after it, removed it.
            None | Some(libc::ENOENT) => Errno(libc::ESRCH),
            Some(errno) => Errno(errno),
        })?;
        let map = Mapping::new(&file, SEGMENT)?;
        let header: &Header = map.at(0).ok_or(Errno(libc::EPROTO))?;
        if header.magic.load(Acquire) != MAGIC {
            return Err(Errno(libc::EPROTO));
        }
        // The number that it has here: in another PID namespace it knows itself by another.
        let pid = dir::claimant(&file).ok_or(Errno(libc::ESRCH))?;
        if pid <= 0 {
            return Err(Errno(libc::EXDEV));
        }
        let pidfd = pidfd(pid)?;
        // Asked after the pidfd was opened: if it lives now, the pidfd is its.
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

    /// Start of the segment.
    pub(crate) fn header(&self) -> &Header {
        self.map.at(0).expect("every segment is mapped with its full length")
    }

    /// Wakes its service thread.
    pub(crate) fn kick(&self) {
        // A full pipe means that a wake-up is under way.
        let _ = (&self.wake).write(&[1]);
    }

    /// The pipe that others write to.
    pub(crate) fn wake_fd(&self) -> i32 {
        self.wake.as_raw_fd()
    }

    /// Our own segment's file.
    pub(crate) fn file(&self) -> Option<&File> {
        self.file.as_ref()
    }

    /// Whether the process was seen to end.
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

    /// An entry of the table of QPs.
    pub(crate) fn qp(&self, index: u32) -> Option<&QpShared> {
        self.entry(QPS, index, MAX_QP)
    }

    /// An entry of the table of CQs.
    pub(crate) fn cq(&self, index: u32) -> Option<&CqShared> {
        self.entry(CQS, index, MAX_CQ)
    }

    /// An entry of the table of SRQs.
    pub(crate) fn srq(&self, index: u32) -> Option<&SrqShared> {
        self.entry(SRQS, index, MAX_SRQ)
    }

    /// An entry of the table of registrations. None beyond those that were used: any key may be
    /// asked for, and to look at an entry without memory would take some from /dev/shm, or end the
    /// process where that is full.
    pub(crate) fn mr(&self, index: u32) -> Option<&MrShared> {
        self.entry(MRS, index, self.header().registrations.load(Acquire).min(MAX_MR))
    }

    /// Values on the heap.
    pub(crate) fn slice<T: Shared>(&self, offset: usize, n: usize) -> Option<&[T]> {
        self.map.slice(offset, n)
    }
}
