//! The memory of the peer.

use mpib_proto::{MAX_RAILS, SCRATCH};

use crate::verbs::Remote;

/// Memory of the peer that this end writes: a sender's CTS FIFO, or a receiver's completion
/// records.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RemoteMemory {
    pub(crate) addr: u64,
    /// By rail of the connection.
    pub(crate) rkeys: [u32; MAX_RAILS],
}

impl RemoteMemory {
    /// Returns the scratch memory, over a rail: the target of writes whose data nobody uses.
    pub(crate) fn scratch(&self, rail: usize) -> Remote {
        Remote { addr: self.addr.wrapping_add(SCRATCH as u64), rkey: self.rkeys[rail] }
    }
}
