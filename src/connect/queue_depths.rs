//! The depths of the queues of one route at one end.

use crate::device::Nic;
use crate::error::{Error, Result};
use crate::proto::{MAX_RECVS, MAX_WRITES, Role, SLOTS};
use crate::transport::Settings;
use crate::transport::recv::flush::FLUSHES;
use crate::transport::recv::receives::{MAX_DEPTH, slots_per_queue};

/// Work requests of all groups in flight: a write and the signaled write on each rail.
const SEND_DEPTH: u32 = 2 * SLOTS as u32;
/// CTS writes: those of all groups in flight, and as many before them whose completion is not known
/// yet, because one in half the depth is signalled.
const CTS_DEPTH: u32 = 2 * SLOTS as u32;
/// One read for each flush.
const FLUSH_DEPTH: u32 = FLUSHES as u32;
/// The longest chain of a group.
pub(crate) const MIN_DEPTH: u32 = MAX_RECVS as u32 + 1;

// The first queue pair of each rail also carries the writes of the mailbox, as it has room.
const _: () = assert!(MAX_WRITES <= MIN_DEPTH as usize);

/// Entries of the queues of one rail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Depths {
    /// SRQ of a receiver; 0 if the adapter has none.
    pub(crate) srq: u32,
    /// Receive queue of each queue pair of a receiver; 0 if they share an SRQ.
    pub(crate) receives: u32,
    /// Send queue of the first queue pair.
    first: u32,
    /// Send queue of each other queue pair.
    others: u32,
    /// Send queue of the queue pair for flushes; 0 if there is none.
    pub(crate) flush: u32,
}

impl Depths {
    /// Returns the depths for `n` queue pairs, within the limits of the device. The groups of a
    /// sender use its queue pairs in rotation. The CTS writes of a receiver are all on the first
    /// queue pair of one rail, which may be any; the other queue pairs carry a probe and nothing
    /// else.
    pub(crate) fn new(role: Role, settings: &Settings, nic: &Nic, n: u32, leads: bool) -> Result<Self> {
        let limits = nic.limits();
        let too_small = |what: &str, has: u32, needs: u32| {
            Error::Usage(format!("{}: {what} of {has} entries, and a connection needs {needs}", nic.name()))
        };
        let allowed = settings.queue_depth.min(limits.max_qp_wr);
        let depths = match role {
            Role::Connector => {
                let wanted = SEND_DEPTH.div_ceil(n).max(MIN_DEPTH);
                let each = wanted.min(allowed).min(limits.max_cqe / n);
                Self { srq: 0, receives: 0, first: each, others: each, flush: 0 }
            }
            Role::Acceptor => {
                let shared = MAX_DEPTH.min(limits.max_srq_wr).min(limits.max_cqe / 2);
                let own = (2 * slots_per_queue(n)).min(limits.max_qp_wr).min(limits.max_cqe / 2 / n);
                let (srq, receives) = if nic.has_srq().is_ok() { (shared, 0) } else { (0, own) };
                let flush = if leads && nic.flushes(&settings.config) { FLUSH_DEPTH } else { 0 };
                let first = CTS_DEPTH
                    .min(allowed)
                    .min(limits.max_cqe.saturating_sub(srq + n * receives + flush + n - 1));
                Self { srq, receives, first, others: 1, flush }
            }
        };
        if depths.first < MIN_DEPTH {
            return Err(too_small("a send or completion queue", depths.first, MIN_DEPTH));
        }
        if depths.flush > limits.max_qp_wr {
            return Err(too_small("a send queue", limits.max_qp_wr, depths.flush));
        }
        if role == Role::Acceptor && depths.srq + depths.receives == 0 {
            return Err(too_small("a receive queue", 0, 1));
        }
        Ok(depths)
    }

    pub(crate) fn send(&self, queue: u32) -> u32 {
        if queue == 0 { self.first } else { self.others }
    }

    /// Returns the depth of the completion queue: after a failure every request completes, signaled
    /// or not.
    pub(crate) fn completions(&self, n: u32) -> u32 {
        self.srq + n * self.receives + self.first + (n - 1) * self.others + self.flush
    }
}
