//! Send work requests, built in place and posted as one chain.

use std::ffi::{c_int, c_uint};
use std::ptr;

use rdma_sys as sys;

/// Longest chain: one write per receive of a group, and the signalling one.
const MAX: usize = 9;

/// Most bytes of an inline write.
pub const INLINE: usize = 64;

/// Registered memory of ours.
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

/// Up to nine RDMA writes and reads. It is kept and refilled, so that posting allocates nothing.
pub struct Chain {
    wrs: Box<[sys::ibv_send_wr; MAX]>,
    sges: Box<[sys::ibv_sge; MAX]>,
    /// Read by the provider when the chain is posted.
    inline: Box<[u8; INLINE]>,
    inline_used: bool,
    len: usize,
}

// SAFETY: its pointers lead only into its own boxes, and are set anew before each post.
unsafe impl Send for Chain {}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Default for Chain {
    fn default() -> Self {
        // SAFETY: all-zero is a valid work request (integers, null pointers, a union of such).
        let wrs = std::array::from_fn(|_| unsafe { std::mem::zeroed() });
        let sges = [const { sys::ibv_sge { addr: 0, length: 0, lkey: 0 } }; MAX];
        Self {
            wrs: Box::new(wrs),
            sges: Box::new(sges),
            inline: Box::new([0; INLINE]),
            inline_used: false,
            len: 0,
        }
    }
}

impl Chain {
    /// Empties it.
    pub fn clear(&mut self) {
        self.len = 0;
        self.inline_used = false;
    }

    /// Number of work requests.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// An RDMA write from registered memory; no memory is a write of no bytes. `imm` makes it a write with
    /// immediate, `signal` asks for a completion with that `wr_id`. A tenth request is not taken: `false`.
    #[must_use]
    pub fn write(
        &mut self,
        local: Option<Local>,
        remote: Remote,
        imm: Option<u32>,
        signal: Option<u64>,
    ) -> bool {
        let opcode = match imm {
            Some(_) => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE_WITH_IMM,
            None => sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE,
        };
        self.push(opcode, local, remote, imm, signal)
    }

    /// As [`write`](Self::write), with bytes that the work request carries in itself (`IBV_SEND_INLINE`). One to a
    /// chain, of at most [`INLINE`] bytes, else `false`; the QP must take as many.
    #[must_use]
    pub fn write_inline(&mut self, bytes: &[u8], remote: Remote, signal: Option<u64>) -> bool {
        if self.inline_used || bytes.len() > INLINE {
            return false;
        }
        self.inline[..bytes.len()].copy_from_slice(bytes);
        self.inline_used = true;
        // The key of inline bytes is not looked at.
        let local =
            Local { addr: self.inline.as_ptr().expose_provenance() as u64, len: bytes.len() as u32, lkey: 0 };
        let place = self.len;
        let taken = self.push(sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE, Some(local), remote, None, signal);
        if taken {
            self.wrs[place].send_flags |= sys::ibv_send_flags::IBV_SEND_INLINE.0;
        }
        taken
    }

    /// An RDMA read into registered memory, which asks for a completion with that `wr_id`. `false` as for
    /// [`write`](Self::write).
    #[must_use]
    pub fn read(&mut self, local: Local, remote: Remote, signal: u64) -> bool {
        self.push(sys::ibv_wr_opcode::IBV_WR_RDMA_READ, Some(local), remote, None, Some(signal))
    }

    fn push(
        &mut self,
        opcode: c_uint,
        local: Option<Local>,
        remote: Remote,
        imm: Option<u32>,
        signal: Option<u64>,
    ) -> bool {
        let Some(wr) = self.wrs.get_mut(self.len) else { return false };
        if let Some(local) = local {
            self.sges[self.len] = sys::ibv_sge { addr: local.addr, length: local.len, lkey: local.lkey };
        }
        wr.num_sge = c_int::from(local.is_some());
        wr.opcode = opcode;
        wr.imm_data_invalidated_rkey_union.imm_data = imm.unwrap_or(0).to_be();
        wr.send_flags = 0;
        wr.wr_id = 0;
        if let Some(id) = signal {
            wr.wr_id = id;
            wr.send_flags |= sys::ibv_send_flags::IBV_SEND_SIGNALED.0;
        }
        wr.wr.rdma = sys::rdma_t { remote_addr: remote.addr, rkey: remote.rkey };
        self.len += 1;
        true
    }

    /// Links what was pushed; gives the first, or null when there is none.
    pub(super) fn link(&mut self) -> *mut sys::ibv_send_wr {
        if self.len == 0 {
            return ptr::null_mut();
        }
        let wrs = self.wrs.as_mut_ptr();
        let sges = self.sges.as_mut_ptr();
        for i in 0..self.len {
            // SAFETY: `i` is below MAX, the length of both arrays.
            unsafe {
                (*wrs.add(i)).sg_list = sges.add(i);
                (*wrs.add(i)).next = if i + 1 < self.len { wrs.add(i + 1) } else { ptr::null_mut() };
            }
        }
        wrs
    }
}
