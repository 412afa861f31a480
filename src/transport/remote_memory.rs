//! The memory of the peer.

use crate::proto::MAX_RAILS;

/// Memory of the peer that this end writes: a sender's CTS FIFO, or a receiver's completion
/// records.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RemoteMemory {
    pub(crate) addr: u64,
    /// By rail of the connection.
    pub(crate) rkeys: [u32; MAX_RAILS],
}
