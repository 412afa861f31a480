//! Protection domains, memory regions, and the control memory that peers write.

use std::ffi::{c_int, c_uint};
use std::io;
use std::ops::Deref;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use rdma_sys as sys;

use crate::error::{Error, Result};

use super::{Context, log_failure, non_null, shim};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
    /// See [`Mr::retire`].
    retired: Mutex<Vec<RawMr>>,
}

// SAFETY: libibverbs locks inside; objects may be made in one PD from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Calls `ibv_alloc_pd`.
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open while we hold it.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_ptr()) };
        Ok(Self {
            raw: non_null("ibv_alloc_pd", || context.name().to_owned(), raw)?,
            context: Arc::clone(context),
            retired: Mutex::default(),
        })
    }

    /// Returns the device of the PD.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns an error if DMA-BUFs cannot be registered in this PD. Probes with an invalid
    /// descriptor: where the call is supported, it fails with another error.
    pub fn takes_dmabuf(&self) -> io::Result<()> {
        // SAFETY: the PD is live while we hold it.
        match unsafe { shim::reg_dmabuf_mr(self.as_ptr(), (-1, 0), (0, 0), 0, false) } {
            Ok(raw) => {
                // SAFETY: just made, and not shared.
                let rc = unsafe { sys::ibv_dereg_mr(raw.as_ptr()) };
                log_failure("ibv_dereg_mr", self.context.name(), rc);
                Ok(())
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Err(e),
                _ => Ok(()),
            },
        }
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.retired.get_mut().clear();
        // SAFETY: no other owner is left; MRs, SRQs and QPs hold an `Arc` to the PD.
        log_failure("ibv_dealloc_pd", self.context.name(), unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
    }
}

/// Returns the page size of this system in bytes.
pub fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: the call takes an integer.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // The smallest page size there is. It divides every other.
        usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Duplicates the descriptor of a DMA-BUF that the caller keeps open meanwhile. `None` if it is not
/// an open file, or if the process has no descriptor left.
pub fn keep_dmabuf(fd: c_int) -> Option<OwnedFd> {
    if fd < 0 {
        return None;
    }
    // SAFETY: the duplicate is made during this call, and fails if the file is not open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()
}

/// A memory region on one device, for local use and for RDMA writes of the peer.
#[derive(Debug)]
pub struct Mr {
    // Dropped before the PD.
    raw: RawMr,
    keys: Keys,
    pd: Arc<Pd>,
}

/// The memory region itself. Its owner keeps its PD.
#[derive(Debug)]
struct RawMr {
    raw: NonNull<sys::ibv_mr>,
    context: Arc<Context>,
}

/// The keys of a memory region, valid while it lives.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Keys {
    local: u32,
    remote: u32,
}

impl Keys {
    /// Returns the key for local work requests.
    #[inline]
    pub fn lkey(self) -> u32 {
        self.local
    }

    /// Returns the key for the peer's work requests.
    #[inline]
    pub fn rkey(self) -> u32 {
        self.remote
    }
}

// SAFETY: a memory region is not changed after it is made, and only its owner releases it.
unsafe impl Send for RawMr {}
// SAFETY: as above.
unsafe impl Sync for RawMr {}

/// The access of every registration.
const ACCESS: c_uint = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
    | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;

impl Mr {
    /// Calls `ibv_reg_mr` for `len` bytes at `addr`. `relaxed` requests relaxed PCIe ordering where
    /// the library supports it.
    pub fn new(pd: &Arc<Pd>, addr: usize, len: usize, relaxed: bool) -> Result<Self> {
        // SAFETY: the PD is live while we hold it.
        let (call, raw) = unsafe { shim::reg_mr(pd.as_ptr(), addr, len, ACCESS, relaxed) };
        let raw = non_null(call, || format!("{} for {len} bytes at {addr:#x}", pd.context.name()), raw)?;
        Ok(Self::of(raw, pd))
    }

    /// Calls `ibv_reg_dmabuf_mr` for `len` bytes from `offset` of a DMA-BUF, which work requests
    /// address as `addr`. Offset and address must be equal modulo the page size. The caller may
    /// close the file afterwards.
    pub fn of_dmabuf(
        pd: &Arc<Pd>,
        (fd, offset): (c_int, u64),
        (addr, len): (usize, usize),
        relaxed: bool,
    ) -> Result<Self> {
        // SAFETY: the PD is live while we hold it.
        let raw = unsafe { shim::reg_dmabuf_mr(pd.as_ptr(), (fd, offset), (addr, len), ACCESS, relaxed) };
        let raw = raw.map_err(|e| {
            let name = pd.context.name();
            let detail = format!("{name} for {len} bytes at {addr:#x}, from offset {offset} of file {fd} on");
            Error::verbs("ibv_reg_dmabuf_mr", e, detail)
        })?;
        Ok(Self::of(raw, pd))
    }

    /// Wraps a memory region that was just made in `pd`.
    fn of(raw: NonNull<sys::ibv_mr>, pd: &Arc<Pd>) -> Self {
        // SAFETY: just made.
        let (local, remote) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        let raw = RawMr { raw, context: Arc::clone(&pd.context) };
        Self { raw, keys: Keys { local, remote }, pd: Arc::clone(pd) }
    }

    /// Returns the keys.
    pub fn keys(&self) -> Keys {
        self.keys
    }

    /// Returns whether it was made in this PD.
    pub fn is_in(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    /// Deregisters the memory when the PD is released, after the last queue pair in it: until then
    /// the peers' writes over these queue pairs may use the key.
    pub fn retire(self) {
        let Self { raw, pd, .. } = self;
        pd.retired.lock().push(raw);
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        // SAFETY: no other owner is left.
        log_failure("ibv_dereg_mr", self.context.name(), unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// Control memory, registered on several devices. Peers write it at any time, so it is only
/// accessed as atomic words. A clone is the same memory, which lives as long as any of them.
#[derive(Debug, Clone)]
pub struct Region {
    // The registrations are dropped before the memory that they cover.
    mrs: Vec<Arc<Mr>>,
    /// The keys of each registration.
    keys: Vec<Keys>,
    memory: Arc<Memory>,
}

/// The words of a [`Region`], which they keep mapped.
#[derive(Debug)]
pub struct Words {
    // Copied: the data path reads the words through one pointer.
    start: NonNull<AtomicU64>,
    words: usize,
    _memory: Arc<Memory>,
}

// SAFETY: plain memory that is accessed as atomics only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: as in `Memory::words`; the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

/// Zeroed words in pages that hold nothing else: `ibv_fork_init` may withhold registered pages from
/// forked children, with all that lies in them.
#[derive(Debug)]
struct Memory {
    start: NonNull<AtomicU64>,
    words: usize,
    /// Whole pages.
    bytes: usize,
}

// SAFETY: the only owner of plain memory that is accessed as atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    fn new(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(8).and_then(|bytes| bytes.checked_next_multiple_of(page_size()));
        let bytes = bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, where the kernel has room.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        match NonNull::new(start.cast()) {
            Some(found) if start != libc::MAP_FAILED => Ok(Self { start: found, words, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` zeroed words at the start of a page, mapped as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: the mapping from `new`, which nothing borrows any more.
        let rc = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        log_failure("munmap", "control memory", if rc == 0 { 0 } else { -1 });
    }
}

impl Region {
    /// Allocates `words` zeroed 64-bit words and registers them in each of `pds`, once for a PD
    /// that occurs several times.
    pub fn new(pds: &[Arc<Pd>], words: usize) -> Result<Self> {
        let memory = Memory::new(words)
            .map_err(|source| Error::io(format!("{words} words of control memory"), source))?;
        let mut region = Self { mrs: Vec::new(), keys: Vec::new(), memory: Arc::new(memory) };
        pds.iter().try_for_each(|pd| region.add(pd))?;
        Ok(region)
    }

    /// Registers the memory in one more PD, unless it is registered there.
    fn add(&mut self, pd: &Arc<Pd>) -> Result<()> {
        let mr = match self.mrs.iter().find(|mr| mr.is_in(pd)) {
            Some(mr) => Arc::clone(mr),
            // Control memory is polled, so its writes must stay in order on the bus: never relaxed.
            None => Arc::new(Mr::new(pd, self.addr(0), self.memory.words * 8, false)?),
        };
        self.keys.push(mr.keys());
        self.mrs.push(mr);
        Ok(())
    }

    /// Replaces all registrations by those in one PD.
    pub fn move_to(&mut self, pd: &Arc<Pd>) -> Result<()> {
        let mut moved = self.clone();
        for _ in &self.mrs {
            moved.add(pd)?;
        }
        let before = self.mrs.len();
        moved.retain(|i| i >= before);
        *self = moved;
        Ok(())
    }

    /// Replaces a registration by one of a clone.
    pub fn adopt(&mut self, index: usize, from: &Self, place: usize) {
        (self.mrs[index], self.keys[index]) = (Arc::clone(&from.mrs[place]), from.keys[place]);
    }

    /// Returns the memory.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Returns the memory as an object that does not borrow the region.
    pub fn share(&self) -> Words {
        let memory = &self.memory;
        Words { start: memory.start, words: memory.words, _memory: Arc::clone(memory) }
    }

    /// Returns the address of word `index`.
    pub fn addr(&self, index: usize) -> usize {
        // Exposed: devices make pointers of it.
        self.memory.start.as_ptr().expose_provenance() + index * 8
    }

    /// Returns the keys of the registrations, in the order of the PDs.
    pub fn mrs(&self) -> &[Keys] {
        &self.keys
    }

    /// Drops the registrations whose index in the list is not `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(usize) -> bool) {
        let wanted = |i: &usize| wanted(*i);
        self.keys = (0..self.keys.len()).filter(wanted).map(|i| self.keys[i]).collect();
        self.mrs = (0..self.mrs.len()).filter(wanted).map(|i| Arc::clone(&self.mrs[i])).collect();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Returns whether the page at this address is mapped.
    fn mapped(start: usize) -> bool {
        // SAFETY: touches nothing; fails where nothing is mapped.
        unsafe { libc::msync(ptr::without_provenance_mut(start), 1, libc::MS_ASYNC) == 0 }
    }

    /// Returns the number of the first check that fails.
    fn wrong(words: usize, page: usize) -> i32 {
        let Ok(memory) = Memory::new(words) else { return 1 };
        let (start, pages) = (memory.start.as_ptr().addr(), (words * 8).div_ceil(page));
        let last = start + (pages - 1) * page;
        if start % page != 0 || !mapped(start) || !mapped(last) {
            return 2;
        }
        if memory.words().len() != words || memory.words().iter().any(|word| word.load(Relaxed) != 0) {
            return 3;
        }
        drop(memory);
        // Another object in one of the pages would have kept it.
        if mapped(start) || mapped(last) { 4 } else { 0 }
    }

    #[test]
    fn control_memory_shares_its_pages_with_nothing_and_goes_with_them() {
        let page = page_size();
        for words in [1, page / 8, page / 8 + 1, 40_000] {
            // The child has one thread, so nothing is mapped meanwhile.
            // SAFETY: the child accesses memory and exits.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(wrong(words, page)) };
            }
            let mut status = 0;
            // SAFETY: a child of this process, which no one else waits for.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "{words} words");
        }
        assert!(Memory::new(usize::MAX).is_err());
    }
}
