//! Protection domains, registrations, and memory of our own that peers write into.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use rdma_sys as sys;

use crate::error::{Error, Result};

use super::{Context, gone, non_null, shim};

/// A protection domain.
#[derive(Debug)]
pub struct Pd {
    raw: NonNull<sys::ibv_pd>,
    context: Arc<Context>,
}

// SAFETY: libibverbs locks inside; objects may be made in one PD from any thread.
unsafe impl Send for Pd {}
// SAFETY: as above.
unsafe impl Sync for Pd {}

impl Pd {
    /// `ibv_alloc_pd`
    pub fn new(context: &Arc<Context>) -> Result<Self> {
        // SAFETY: the context is open while we hold it.
        let raw = unsafe { sys::ibv_alloc_pd(context.as_ptr()) };
        Ok(Self {
            raw: non_null("ibv_alloc_pd", || context.name().to_owned(), raw)?,
            context: Arc::clone(context),
        })
    }

    /// The device that it belongs to.
    pub fn context(&self) -> &Arc<Context> {
        &self.context
    }

    pub(super) fn as_ptr(&self) -> *mut sys::ibv_pd {
        self.raw.as_ptr()
    }
}

impl Drop for Pd {
    fn drop(&mut self) {
        // SAFETY: ours alone; MRs, SRQs and QPs hold an `Arc` to us.
        gone("ibv_dealloc_pd", self.context.name(), unsafe { sys::ibv_dealloc_pd(self.raw.as_ptr()) });
    }
}

/// A registration on one device, for local use and for RDMA writes from the peer.
#[derive(Debug)]
pub struct Mr {
    raw: NonNull<sys::ibv_mr>,
    lkey: u32,
    rkey: u32,
    pd: Arc<Pd>,
}

// SAFETY: a registration is only read after it is made; releasing it is the owner's.
unsafe impl Send for Mr {}
// SAFETY: as above.
unsafe impl Sync for Mr {}

impl Mr {
    /// `ibv_reg_mr` of `len` bytes at `addr`; `relaxed` asks for relaxed PCIe ordering where the library can.
    pub fn new(pd: &Arc<Pd>, addr: usize, len: usize, relaxed: bool) -> Result<Self> {
        let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0
            | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0;
        // SAFETY: the PD is live while we hold it.
        let (call, raw) = unsafe { shim::reg_mr(pd.as_ptr(), addr, len, access, relaxed) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verbs(
                call,
                io::Error::last_os_error(),
                format!("{} for {len} bytes at {addr:#x}", pd.context.name()),
            )
        })?;
        // SAFETY: just made.
        let (lkey, rkey) = unsafe { (raw.as_ref().lkey, raw.as_ref().rkey) };
        Ok(Self { raw, lkey, rkey, pd: Arc::clone(pd) })
    }

    /// Key for our own work requests.
    pub fn lkey(&self) -> u32 {
        self.lkey
    }

    /// Key for the peer's.
    pub fn rkey(&self) -> u32 {
        self.rkey
    }

    /// Where it was made.
    pub fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        // SAFETY: ours alone.
        gone("ibv_dereg_mr", self.pd.context.name(), unsafe { sys::ibv_dereg_mr(self.raw.as_ptr()) });
    }
}

/// Memory of our own, registered on several devices. Peers write into it at any time, so it is only ever
/// seen as atomic words.
#[derive(Debug)]
pub struct Region {
    // Registrations go before the memory they name.
    mrs: Vec<Mr>,
    memory: Memory,
}

/// Zeroed, page-aligned words.
#[derive(Debug)]
struct Memory {
    start: NonNull<AtomicU64>,
    words: usize,
}

// SAFETY: it is the only owner of plain memory, which is reached as atomics only.
unsafe impl Send for Memory {}
// SAFETY: as above.
unsafe impl Sync for Memory {}

impl Memory {
    const ALIGN: usize = 4096;

    fn layout(words: usize) -> Option<Layout> {
        Layout::from_size_align(words.checked_mul(8)?, Self::ALIGN).ok().filter(|l| l.size() > 0)
    }

    fn new(words: usize) -> Option<Self> {
        // SAFETY: `layout` gives sizes above zero only.
        let start = unsafe { alloc_zeroed(Self::layout(words)?) };
        Some(Self { start: NonNull::new(start.cast())?, words })
    }

    fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` zeroed words, aligned to a page, live as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = Self::layout(self.words) {
            // SAFETY: allocated with this very layout.
            unsafe { dealloc(self.start.as_ptr().cast(), layout) };
        }
    }
}

impl Region {
    /// `words` zeroed 64-bit words, registered in each of `pds`.
    pub fn new(pds: &[Arc<Pd>], words: usize) -> Result<Self> {
        let memory = Memory::new(words).ok_or_else(|| {
            Error::io(format!("{words} words of control memory"), io::Error::from_raw_os_error(libc::ENOMEM))
        })?;
        let addr = memory.start.as_ptr().expose_provenance();
        // Control memory is polled: its order on the bus must hold, so never relaxed.
        let mrs = pds.iter().map(|pd| Mr::new(pd, addr, words * 8, false)).collect::<Result<_, _>>()?;
        Ok(Self { mrs, memory })
    }

    /// The memory.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Address of word `index`.
    pub fn addr(&self, index: usize) -> usize {
        // Exposed: devices make pointers of it.
        self.memory.start.as_ptr().expose_provenance() + index * 8
    }

    /// The registrations, in the order of the PDs.
    pub fn mrs(&self) -> &[Mr] {
        &self.mrs
    }

    /// Forgets the registrations whose place in the list is not wanted.
    pub fn retain(&mut self, mut wanted: impl FnMut(usize) -> bool) {
        let mut index = 0;
        self.mrs.retain(|_| {
            index += 1;
            wanted(index - 1)
        });
    }
}
