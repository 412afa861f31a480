//! Access checks: which memory a key gives a work request.

use std::fmt;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use crate::shm::peer::Peer;

pub(crate) const LOCAL_WRITE: u32 = 1;
pub(crate) const REMOTE_WRITE: u32 = 1 << 1;
pub(crate) const REMOTE_READ: u32 = 1 << 2;
pub(crate) const REMOTE_ATOMIC: u32 = 1 << 3;
pub(crate) const RELAXED_ORDERING: u32 = 1 << 20;

/// Why a key does not grant access.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Denied {
    /// The key does not exist.
    Key,
    /// The key belongs to another PD.
    Pd,
    /// The access exceeds this registered range.
    Bounds(u64, u64),
    /// The memory region has only these access flags.
    Access(u32),
}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key => {
                write!(f, "no memory is registered with this key (deregistered, or of another process?)")
            }
            Self::Pd => write!(f, "the memory region is in another protection domain than the QP"),
            Self::Bounds(from, to) => write!(f, "outside the memory region, which is {from:#x}..{to:#x}"),
            Self::Access(have) => write!(f, "the memory region allows only access {have:#x}"),
        }
    }
}

/// Checks that key `key` of `peer` grants `access` to `len` bytes at `addr`. Returns the address in
/// the memory of the peer.
pub(crate) fn check(peer: &Peer, key: u32, pd: u32, addr: u64, len: u64, access: u32) -> Result<u64, Denied> {
    let mr = peer.mr(key >> 16).ok_or(Denied::Key)?;
    if key == 0 || mr.key.load(Acquire) != key {
        return Err(Denied::Key);
    }
    if mr.pd.load(Relaxed) != pd {
        return Err(Denied::Pd);
    }
    let (iova, size) = (mr.iova.load(Relaxed), mr.len.load(Relaxed));
    let offset = addr.wrapping_sub(iova);
    if addr < iova || offset > size || len > size - offset {
        return Err(Denied::Bounds(iova, iova.saturating_add(size)));
    }
    let have = mr.access.load(Relaxed);
    if have & access != access {
        return Err(Denied::Access(have));
    }
    Ok(mr.addr.load(Relaxed).wrapping_add(offset))
}
