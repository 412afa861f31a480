//! The two work requests of small messages, built once. Each post fills in only what differs from
//! the one before.

use std::ptr::NonNull;

use rdma_sys as sys;

use super::{Local, Remote, WRITE, WRITE_WITH_IMM};

/// Bytes of a [`WordsWrite`].
pub(crate) const INLINE: usize = 64;

const SIGNALED: u32 = sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
const INLINED: u32 = sys::ibv_send_flags::IBV_SEND_INLINE.0;

/// A signalled RDMA write with immediate, of one piece of memory.
#[derive(Debug)]
pub struct ImmWrite(Prepared);

/// An RDMA write of [`INLINE`] bytes that it contains. It keeps the bytes of the last `N`
/// writes, by place.
#[derive(Debug)]
pub struct WordsWrite<const N: usize> {
    prepared: Prepared,
    kept: Box<[[u64; INLINE / 8]; N]>,
}

/// A work request with one entry.
#[derive(Debug)]
pub(super) struct Prepared {
    /// Owned by this object and reached through this pointer only: the work request points at the
    /// rest.
    parts: NonNull<Parts>,
}

struct Parts {
    wr: sys::ibv_send_wr,
    sge: sys::ibv_sge,
}

// SAFETY: the object owns what it points to.
unsafe impl Send for Prepared {}

impl Prepared {
    fn new(opcode: u32, flags: u32) -> Self {
        // SAFETY: all-zero is a valid value: integers, null pointers, a union of such.
        let parts: Box<Parts> = Box::new(unsafe { std::mem::zeroed() });
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
    pub fn new() -> Self {
        Self(Prepared::new(WRITE_WITH_IMM, SIGNALED))
    }

    /// Sets everything that differs between two messages. `inline`: the provider copies the data
    /// when the write is posted. The memory must then be readable by this process.
    #[inline(always)]
    pub fn set(&mut self, local: Local, inline: bool, remote: Remote, imm: u32, wr_id: u64) {
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
    pub fn new() -> Self {
        Self { prepared: Prepared::new(WRITE, INLINED), kept: Box::new([[0; INLINE / 8]; N]) }
    }

    /// Sets everything that differs between two writes, and keeps the bytes in a place below `N`.
    /// `signal` makes it a signalled one with that `wr_id`.
    #[inline(always)]
    pub fn set(&mut self, place: usize, words: [u64; INLINE / 8], remote: Remote, signal: Option<u64>) {
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
    pub fn kept(&self, place: usize) -> &[u64; INLINE / 8] {
        &self.kept[place % N]
    }

    #[inline]
    pub(super) fn prepared(&mut self) -> &mut Prepared {
        &mut self.prepared
    }
}
