//! Send work requests: those of a [`Chain`] are built in place and posted together. Those of small
//! messages are built once, and each post fills in only what differs from the one before.

use std::ffi::{c_int, c_uint};
use std::ptr::{self, NonNull};

use rdma_sys as sys;

/// Longest chain: one write per receive of a group, and the signalled one.
const MAX: usize = 9;

/// `opcode` of an RDMA write.
pub(crate) const WRITE: c_uint = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;

/// `opcode` of one with immediate.
pub(crate) const WRITE_WITH_IMM: c_uint = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM;

const SIGNALED: u32 = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINED: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

/// Registered local memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Local {
    /// Start.
    pub addr: u64,
    /// Bytes.
    pub len: u32,
    /// Key of its registration.
    pub lkey: u32,
}

/// Registered memory of the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remote {
    /// Start.
    pub addr: u64,
    /// Key of its registration.
    pub rkey: u32,
}

/// Up to nine RDMA writes and reads. A chain is reused, so posting allocates nothing.
pub struct Chain {
    /// Owned by this chain and reached through this pointer only: the work requests point at each
    /// other and at the rest.
    parts: NonNull<Parts>,
    len: usize,
}

struct Parts {
    /// Each with its entry of `sges`, or with none. Some providers read the first entry of a list
    /// although `num_sge` is 0, such as `irdma_uk_rdma_write` (rdma-core, providers/irdma/uk.c).
    wrs: [sys::ibv_send_wr; MAX],
    sges: [sys::ibv_sge; MAX],
}

// SAFETY: the chain owns what it points to.
unsafe impl Send for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Default for Chain {
    fn default() -> Self {
        // SAFETY: all-zero is a valid value: integers, null pointers, a union of such.
        let parts: Box<Parts> = Box::new(unsafe { std::mem::zeroed() });
        Self { parts: NonNull::from(Box::leak(parts)), len: 0 }
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        // SAFETY: leaked by `default`, and freed once.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
    }
}

impl Chain {
    /// Empties the chain.
    #[inline]
    pub(crate) fn clear(&mut self) {
        self.len = 0;
    }

    /// Returns the number of work requests.
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns whether the chain has no room for another work request.
    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == MAX
    }

    /// Adds an RDMA write from registered memory; without memory, a write of zero bytes. `imm`
    /// makes it a write with immediate, `signal` a signalled one with that `wr_id`. Returns `false`
    /// if the chain is full.
    #[must_use]
    #[inline]
    pub fn write(
        &mut self,
        local: Option<Local>,
        remote: Remote,
        imm: Option<u32>,
        signal: Option<u64>,
    ) -> bool {
        let opcode = if imm.is_some() { WRITE_WITH_IMM } else { WRITE };
        self.push(opcode, local, remote, imm, signal)
    }

    /// Adds a signalled RDMA read into registered memory. Returns `false` if the chain is full.
    #[must_use]
    pub fn read(&mut self, local: Local, remote: Remote, signal: u64) -> bool {
        self.push(sys::ibv_wr_opcode::IBV_WR_RDMA_READ, Some(local), remote, None, Some(signal))
    }

    #[inline]
    fn push(
        &mut self,
        opcode: c_uint,
        local: Option<Local>,
        remote: Remote,
        imm: Option<u32>,
        signal: Option<u64>,
    ) -> bool {
        let i = self.len;
        if i >= MAX {
            return false;
        }
        let parts = self.parts.as_ptr();
        let signalled = if signal.is_some() { SIGNALED } else { 0 };
        // SAFETY: exclusive while `self` is borrowed, and `i` is below the length of both arrays.
        unsafe {
            let wr = &raw mut (*parts).wrs[i];
            (*wr).sg_list = match local {
                None => ptr::null_mut(),
                Some(Local { addr, len, lkey }) => {
                    (*parts).sges[i] = sys::ibv_sge { addr, length: len, lkey };
                    &raw mut (*parts).sges[i]
                }
            };
            (*wr).num_sge = c_int::from(local.is_some());
            (*wr).opcode = opcode;
            (*wr).imm_data_invalidated_rkey_union.imm_data = imm.unwrap_or(0).to_be();
            (*wr).send_flags = signalled;
            (*wr).wr_id = signal.unwrap_or(0);
            (*wr).wr.rdma = sys::rdma_t { remote_addr: remote.addr, rkey: remote.rkey };
            (*wr).next = ptr::null_mut();
            if i > 0 {
                (*parts).wrs[i - 1].next = wr;
            }
        }
        self.len += 1;
        true
    }

    /// Returns the first work request of the linked chain; null if there is none.
    #[inline]
    pub(super) fn first(&mut self) -> *mut sys::ibv_send_wr {
        if self.len == 0 {
            return ptr::null_mut();
        }
        // SAFETY: exclusive while `self` is borrowed.
        unsafe { &raw mut (*self.parts.as_ptr()).wrs }.cast()
    }
}

/// Bytes of a [`WordsWrite`].
const INLINE: usize = 64;

/// A signalled RDMA write with immediate, of one piece of memory.
#[derive(Debug)]
pub(crate) struct ImmWrite(Prepared);

/// An RDMA write of [`INLINE`] bytes that it contains. It keeps the bytes of the last `N`
/// writes, by place.
#[derive(Debug)]
pub(crate) struct WordsWrite<const N: usize> {
    prepared: Prepared,
    kept: Box<[[u64; INLINE / 8]; N]>,
}

/// A work request with one entry.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Owned by this object and reached through this pointer only: the work request points at the
    /// rest.
    parts: NonNull<One>,
}

struct One {
    wr: sys::ibv_send_wr,
    sge: sys::ibv_sge,
}

// SAFETY: the object owns what it points to.
unsafe impl Send for Prepared {}

impl Prepared {
    fn new(opcode: u32, flags: u32) -> Self {
        // SAFETY: all-zero is a valid value: integers, null pointers, a union of such.
        let parts: Box<One> = Box::new(unsafe { std::mem::zeroed() });
        let parts = NonNull::from(Box::leak(parts));
        let p = parts.as_ptr();
        // SAFETY: nothing else refers to the parts.
        unsafe {
            (*p).wr.opcode = opcode;
            (*p).wr.send_flags = flags;
            (*p).wr.sg_list = &raw mut (*p).sge;
            (*p).wr.num_sge = 1;
        }
        Self { parts }
    }

    /// Sets the memory of the peer and the identifier.
    #[inline(always)]
    fn address(&mut self, remote: Remote, wr_id: u64) {
        let p = self.parts.as_ptr();
        // SAFETY: exclusive while `self` is borrowed.
        unsafe {
            (*p).wr.wr_id = wr_id;
            (*p).wr.wr.rdma = sys::rdma_t { remote_addr: remote.addr, rkey: remote.rkey };
        }
    }

    #[inline]
    pub(super) fn as_ptr(&mut self) -> *mut sys::ibv_send_wr {
        // SAFETY: exclusive while `self` is borrowed.
        unsafe { &raw mut (*self.parts.as_ptr()).wr }
    }
}

impl Drop for Prepared {
    fn drop(&mut self) {
        // SAFETY: leaked by `new`, and freed once.
        drop(unsafe { Box::from_raw(self.parts.as_ptr()) });
    }
}

impl ImmWrite {
    /// Builds the work request.
    pub(crate) fn new() -> Self {
        Self(Prepared::new(WRITE_WITH_IMM, SIGNALED))
    }

    /// Sets everything that differs between two messages. `inline`: the provider copies the data
    /// when the write is posted. The memory must then be readable by this process.
    #[inline(always)]
    pub(crate) fn set(&mut self, local: Local, inline: bool, remote: Remote, imm: u32, wr_id: u64) {
        self.0.address(remote, wr_id);
        let flags = if inline { SIGNALED | INLINED } else { SIGNALED };
        let p = self.0.parts.as_ptr();
        // SAFETY: exclusive while `self` is borrowed.
        unsafe {
            (*p).wr.send_flags = flags;
            (*p).sge = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey };
            (*p).wr.imm_data_invalidated_rkey_union.imm_data = imm.to_be();
        }
    }

    #[inline]
    pub(super) fn prepared(&mut self) -> &mut Prepared {
        &mut self.0
    }
}

impl<const N: usize> WordsWrite<N> {
    /// Builds the work request.
    pub(crate) fn new() -> Self {
        Self { prepared: Prepared::new(WRITE, INLINED), kept: Box::new([[0; INLINE / 8]; N]) }
    }

    /// Sets everything that differs between two writes, and keeps the bytes in a place below `N`.
    /// `signal` makes it a signalled one with that `wr_id`.
    #[inline(always)]
    pub(crate) fn set(
        &mut self,
        place: usize,
        words: [u64; INLINE / 8],
        remote: Remote,
        signal: Option<u64>,
    ) {
        self.kept[place % N] = words;
        let addr = (&raw const self.kept[place % N]).expose_provenance() as u64;
        let flags = if signal.is_some() { SIGNALED | INLINED } else { INLINED };
        self.prepared.address(remote, signal.unwrap_or(0));
        let p = self.prepared.parts.as_ptr();
        // SAFETY: exclusive while `self` is borrowed.
        unsafe {
            // The provider ignores the key of inline bytes.
            (*p).sge = sys::ibv_sge { addr, length: INLINE as u32, lkey: 0 };
            (*p).wr.send_flags = flags;
        }
    }

    /// Returns the bytes that a place keeps.
    pub(crate) fn kept(&self, place: usize) -> &[u64; INLINE / 8] {
        &self.kept[place % N]
    }

    #[inline]
    pub(super) fn prepared(&mut self) -> &mut Prepared {
        &mut self.prepared
    }
}
