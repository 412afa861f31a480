//! The layout of the control memory behind its two rings, the same at both ends: scratch memory for
//! probes, then the mailbox of a connection that has one.

use super::mailbox::RING_BYTES;
use super::slot::{FIFO_BYTES, RECORDS_BYTES};

/// Offset of the scratch memory. Before it, a sender has its CTS FIFO and the completion records to
/// send, a receiver the completion records and the CTS entries to send.
pub const SCRATCH: usize = FIFO_BYTES + RECORDS_BYTES;
/// Bytes of the scratch memory: a packet of the largest path MTU. Probes of a new queue pair write
/// from it and into it, and flushes read into it, at any time. Nothing uses its content.
pub(crate) const SCRATCH_BYTES: usize = 4096;
/// Offset of the mailbox's ring, which the peer writes. The chunks to send follow it, in the same
/// layout.
pub(crate) const MAILBOX: usize = SCRATCH + SCRATCH_BYTES;
/// Offset of the mailbox's chunks to send.
pub(crate) const MAILBOX_STAGING: usize = MAILBOX + RING_BYTES;

/// Returns the bytes of control memory whose address an end sends to its peer: all that the peer
/// writes lies in them.
pub const fn written_bytes(has_mailbox: bool) -> usize {
    if has_mailbox { MAILBOX_STAGING } else { MAILBOX }
}

/// Returns the bytes of an end's control memory.
pub const fn memory_bytes(has_mailbox: bool) -> usize {
    if has_mailbox { MAILBOX_STAGING + RING_BYTES } else { MAILBOX }
}
