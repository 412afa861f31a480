//! Protection domains and memory regions.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_uint};
use std::io;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::{Arc, Once, OnceLock, Weak};

use nix::sys::stat::fstat;
use parking_lot::Mutex;
use rdma_sys as sys;

use crate::error::{Error, Result};
use crate::limits;

use super::region::Pages;
use super::{Blanks, Context, Local, log_failure, make, make_by};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
    /// See [`Mr::retire`].
    retired: Mutex<Vec<RawMr>>,
    /// See [`srq_receives`](Self::srq_receives).
    receives: OnceLock<SrqReceives>,
}

/// Receives for SRQs, and the memory that they name.
#[derive(Debug)]
struct SrqReceives {
    blanks: Arc<Blanks>,
    // Dropped before the memory that it covers.
    _mr: RawMr,
    _memory: Pages,
}

// SAFETY: libibverbs locks inside; objects may be made in one PD from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// Calls `ibv_alloc_pd`.
    pub(crate) fn new(context: &Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open while we hold it.
        let alloc = || unsafe { (context.verbs().ibv_alloc_pd)(context.as_ptr()) };
        Ok(Self {
            raw: make("ibv_alloc_pd", || context.name().to_owned(), alloc)?,
            context: Arc::clone(context),
            retired: Mutex::default(),
            receives: OnceLock::new(),
        })
    }

    /// Returns the device of the PD.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    /// Returns an error if DMA-BUFs cannot be registered in this PD. Probes with an invalid
    /// descriptor: where the call is supported, it fails with another error.
    pub(crate) fn takes_dmabuf(&self) -> io::Result<()> {
        // SAFETY: the PD is live while we hold it.
        match unsafe { self.context.verbs().reg_dmabuf_mr(self.as_ptr(), (-1, 0), (0, 0), 0, false) } {
            Ok(raw) => {
                // SAFETY: just made, and not shared.
                let rc = unsafe { (self.context.verbs().ibv_dereg_mr)(raw.as_ptr()) };
                log_failure("ibv_dereg_mr", self.context.name(), rc);
                Ok(())
            }
            Err(e) => match e.raw_os_error() {
                Some(libc::EOPNOTSUPP | libc::EPROTONOSUPPORT) => Err(e),
                _ => Ok(()),
            },
        }
    }

    /// Returns a chain of `n` receives with this `wr_id` for the SRQs in this PD. Each has one byte
    /// of registered memory that nothing writes. The first call makes the chain, which all later ones
    /// share, and registers the memory until the PD is released.
    pub(crate) fn srq_receives(&self, n: usize, wr_id: u64) -> Result<Arc<Blanks>> {
        if let Some(made) = self.receives.get() {
            return Ok(Arc::clone(&made.blanks));
        }
        let memory = Pages::new(1).map_err(|source| Error::io("memory for receives", source))?;
        // Exposed: devices make pointers of it.
        let addr = memory.start().as_ptr().expose_provenance();
        // SAFETY: the PD is live while we hold it.
        let register =
            || unsafe { self.context.verbs().reg_mr(self.as_ptr(), addr, 8, MrOptions::local(), false) };
        let raw = make_by(|| format!("{} for the memory of receives", self.context.name()), register)?;
        // SAFETY: just made.
        let lkey = unsafe { raw.as_ref().lkey };
        let blanks = Blanks::new(n, wr_id, Some(Local { addr: addr as u64, len: 1, lkey }));
        let mr = RawMr { raw, context: Arc::clone(&self.context) };
        let made = SrqReceives { blanks: Arc::new(blanks), _mr: mr, _memory: memory };
        // Another thread may have been first.
        Ok(Arc::clone(&self.receives.get_or_init(|| made).blanks))
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        self.retired.get_mut().clear();
        self.receives.take();
        // SAFETY: no other owner is left; MRs, SRQs and QPs hold an `Arc` to the PD.
        let rc = unsafe { (self.context.verbs().ibv_dealloc_pd)(self.raw.as_ptr()) };
        log_failure("ibv_dealloc_pd", self.context.name(), rc);
    }
}

/// The DMA-BUFs whose descriptors this process keeps, by device and inode.
static KEPT: Mutex<BTreeMap<(u64, u64), Weak<OwnedFd>>> = Mutex::new(BTreeMap::new());

/// The part of a process's descriptors that is kept for DMA-BUFs at most: one in so many.
const KEPT_SHARE: u64 = 4;

/// Keeps a DMA-BUF that the caller keeps open meanwhile: one descriptor for each, however often its
/// memory is registered. `None` if it is not an open file, or if the process has too few descriptors
/// left: NCCL needs them for its own exports and sockets.
pub(crate) fn keep_dmabuf(fd: c_int) -> Option<Arc<OwnedFd>> {
    if fd < 0 {
        return None;
    }
    // SAFETY: it is used during this call alone, and each use fails if the file is not open.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    let stat = fstat(fd).ok()?;
    let file = (stat.st_dev, stat.st_ino);
    let mut kept = KEPT.lock();
    if let Some(known) = kept.get(&file).and_then(Weak::upgrade) {
        return Some(known);
    }
    let most = usize::try_from(limits::descriptors().0 / KEPT_SHARE).unwrap_or(usize::MAX);
    if kept.len() >= most {
        kept.retain(|_, file| file.strong_count() > 0);
    }
    if kept.len() >= most {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            tracing::info!(
                target: "net",
                "{most} descriptors of DMA-BUFs are kept, a quarter of the limit (ulimit -n): memory beyond them is not \
                 registered again if an adapter is removed and comes back"
            );
        });
        return None;
    }
    let new = Arc::new(fd.try_clone_to_owned().ok()?);
    kept.insert(file, Arc::downgrade(&new));
    Some(new)
}

/// A memory region on one device, for local use and for RDMA writes of the peer.
#[derive(Debug)]
pub(crate) struct Mr {
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

/// How memory is registered. Local work requests and the peer's writes may use it in any case.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct MrOptions {
    /// Permits RDMA reads: those of flushes, which the adapter sends to itself.
    pub(crate) reads: bool,
    /// Requests relaxed ordering on PCIe where the library supports it.
    pub(crate) relaxed: bool,
}

impl MrOptions {
    /// Returns the access of local work requests alone.
    fn local() -> c_uint {
        sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
    }

    fn access(self) -> c_uint {
        let reads = if self.reads { sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0 } else { 0 };
        Self::local() | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0 | reads
    }
}

impl Mr {
    /// Calls `ibv_reg_mr` for `len` bytes at `addr`.
    pub(crate) fn new(pd: &Arc<Pd>, addr: usize, len: usize, options: MrOptions) -> Result<Self> {
        // SAFETY: the PD is live while we hold it.
        let register = || unsafe {
            pd.context.verbs().reg_mr(pd.as_ptr(), addr, len, options.access(), options.relaxed)
        };
        let raw = make_by(|| format!("{} for {len} bytes at {addr:#x}", pd.context.name()), register)?;
        Ok(Self::of(raw, pd))
    }

    /// Calls `ibv_reg_dmabuf_mr` for `len` bytes from `offset` of a DMA-BUF, which work requests
    /// address as `addr`. Offset and address must be equal modulo the page size. The caller may
    /// close the file afterwards.
    pub(crate) fn of_dmabuf(
        pd: &Arc<Pd>,
        (fd, offset): (c_int, u64),
        (addr, len): (usize, usize),
        options: MrOptions,
    ) -> Result<Self> {
        let (access, relaxed) = (options.access(), options.relaxed);
        // SAFETY: the PD is live while we hold it.
        let raw = unsafe {
            pd.context.verbs().reg_dmabuf_mr(pd.as_ptr(), (fd, offset), (addr, len), access, relaxed)
        };
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
    pub(crate) fn keys(&self) -> Keys {
        self.keys
    }

    /// Returns whether it was made in this PD.
    pub(crate) fn is_in(&self, pd: &Arc<Pd>) -> bool {
        Arc::ptr_eq(&self.pd, pd)
    }

    /// Deregisters the memory when the PD is released, after the last queue pair in it: until then
    /// the peers' writes over these queue pairs may use the key.
    pub(crate) fn retire(self) {
        let Self { raw, pd, .. } = self;
        pd.retired.lock().push(raw);
    }
}

impl Drop for RawMr {
    fn drop(&mut self) {
        // SAFETY: no other owner is left.
        let rc = unsafe { (self.context.verbs().ibv_dereg_mr)(self.raw.as_ptr()) };
        log_failure("ibv_dereg_mr", self.context.name(), rc);
    }
}
