//! One rail of a connection: its queue pairs and the queues that they share.

use std::sync::Arc;

use mpib_proto::{GidKind, MAX_RECVS, RailRole, SPLIT_ALIGN};

use crate::async_events::{Queues, RailPath};
use crate::device::Nic;
use crate::error::{Error, FailedCompletion, Result};
use crate::route::gid_addr;
use crate::transport::recv::receives::Receives;
use crate::transport::send_queue::{NotPosted, SendQueue, SendQueues, Work};
use crate::verbs::{Completion, Cq, Path};

/// A connected rail.
#[derive(Debug)]
pub(crate) struct Rail {
    // The queue pairs are dropped before the memory that they write.
    pub(crate) send_queues: SendQueues,
    /// The queue pair that is connected to itself, at a receiver that can flush.
    pub(crate) flush: Option<SendQueue>,
    /// Why there is none, if the receiver flushes and the adapter does not reach itself.
    pub(crate) no_flush: Option<String>,
    /// The path of that queue pair to itself.
    pub(crate) flush_path: Option<Box<Path>>,
    pub(crate) receives: Option<Receives>,
    /// Shared by all queue pairs of the rail, for both directions. `None` if the rail is given up.
    pub(crate) cq: Option<Arc<Cq>>,
    /// Whether the queue pairs of other routes use the CQ, or did before they were destroyed.
    pub(crate) shares_cq: bool,
    pub(crate) nic: Arc<Nic>,
    /// The rail's place in the device.
    pub(crate) role: RailRole,
    /// In Mb/s: the port of this end, and the peer's.
    pub(crate) speeds: (u32, u32),
    pub(crate) names: Names,
    /// Numbers of the queue pairs that it has had in earlier lives, the last [`FORMER`] of them.
    pub(crate) former: Vec<u32>,
}

/// Of so many former queue pairs a rail does not use the numbers again. A packet is not under way for
/// longer: each life of a rail lasts half a second at least.
const FORMER: usize = 128;

/// The queue pairs of a rail that is given up, and their queues.
#[derive(Debug)]
pub(crate) struct RailQueues {
    queue_pairs: Vec<SendQueue>,
    receives: Option<Receives>,
    cq: Option<Arc<Cq>>,
}

impl RailQueues {
    /// Destroys them.
    ///
    /// # Errors
    /// A queue pair could not be destroyed: its packets may still read or write memory.
    pub(crate) fn destroy(self) -> Result<()> {
        let Self { queue_pairs, receives, cq } = self;
        let destroyed: Vec<_> = queue_pairs.into_iter().map(SendQueue::destroy).collect();
        drop((receives, cq));
        destroyed.into_iter().collect()
    }
}

/// What an error message names of a rail.
#[derive(Debug, Clone)]
pub(crate) struct Names {
    pub(crate) local_gid: [u8; 16],
    pub(crate) remote_gid: [u8; 16],
    pub(crate) gid_kind: GidKind,
    pub(crate) peer: Arc<str>,
}

impl Rail {
    /// Returns the send queue of a slot's queue pair.
    #[inline(always)]
    pub(crate) fn send_queue(&self, slot: u8) -> &SendQueue {
        self.send_queues.of_slot(slot)
    }

    /// Like [`send_queue`](Self::send_queue).
    #[inline(always)]
    pub(crate) fn send_queue_mut(&mut self, slot: u8) -> &mut SendQueue {
        self.send_queues.of_slot_mut(slot)
    }

    /// Makes a rail without queue pairs: one that is dead from the beginning.
    pub(crate) fn dead(nic: &Arc<Nic>, role: RailRole, speeds: (u32, u32), names: Names) -> Self {
        let (send_queues, nic) = (std::iter::empty().collect(), Arc::clone(nic));
        Self {
            send_queues,
            flush: None,
            no_flush: None,
            flush_path: None,
            receives: None,
            cq: None,
            shares_cq: true,
            nic,
            role,
            speeds,
            names,
            former: Vec::new(),
        }
    }

    /// Returns whether the rail has queue pairs: it is not given up.
    pub(crate) fn is_alive(&self) -> bool {
        self.cq.is_some()
    }

    /// Takes all queue pairs and their queues, to be destroyed. Once they are, no packet of the rail
    /// reads or writes memory any more. No account of its requests is left. Returns the work requests
    /// that were in flight.
    pub(crate) fn take_queues(&mut self) -> (RailQueues, u32) {
        let in_flight = self.queue_pairs().map(SendQueue::in_flight).sum();
        let numbers: Vec<_> = self.queue_pairs().map(SendQueue::number).collect();
        self.former.extend(numbers);
        self.former.drain(..self.former.len().saturating_sub(FORMER));
        let queue_pairs = self.send_queues.take().into_iter().chain(self.flush.take()).collect();
        (RailQueues { queue_pairs, receives: self.receives.take(), cq: self.cq.take() }, in_flight)
    }

    /// Returns whether the other rail is a stripe of this one: it joins the same two ports.
    pub(crate) fn joins_the_ports_of(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.nic, &other.nic) && self.names.remote_gid == other.names.remote_gid
    }

    /// Returns the queues of all queue pairs.
    pub(crate) fn queue_pairs(&self) -> impl Iterator<Item = &SendQueue> {
        self.send_queues.iter().chain(&self.flush)
    }

    /// Returns how many work requests the peer's adapter has acknowledged and how many immediates have
    /// come from it, in all, modulo 2^32.
    pub(crate) fn signs_of_life(&self) -> u32 {
        let arrived = self.receives.as_ref().map_or(0, Receives::consumed);
        self.send_queues.iter().map(SendQueue::completed).fold(arrived, u32::wrapping_add)
    }

    /// Returns the work requests in flight on all queue pairs for data.
    pub(crate) fn in_flight(&self) -> u32 {
        self.send_queues.iter().map(SendQueue::in_flight).sum()
    }

    /// Returns the largest write of the rail's adapter in bytes, a multiple of [`SPLIT_ALIGN`].
    pub(crate) fn largest_write(&self) -> usize {
        (self.nic.port().max_message as usize / SPLIT_ALIGN * SPLIT_ALIGN).max(SPLIT_ALIGN)
    }

    /// Returns the largest send in bytes: eight such sends, one for each receive of a group, fit
    /// into the send queue with the write that carries the immediate.
    pub(crate) fn longest_send(&self) -> usize {
        let depth = self.send_queues.iter().map(SendQueue::send_depth).min().unwrap_or(0) as usize;
        self.largest_write().saturating_mul(depth.saturating_sub(1) / MAX_RECVS)
    }

    /// Names HCA, port and both addresses, for the log.
    pub(crate) fn describe(&self) -> String {
        let Names { local_gid, remote_gid, gid_kind, .. } = &self.names;
        let version = match gid_kind {
            GidKind::Ib => String::new(),
            roce => format!(" ({roce})"),
        };
        let (ours, theirs) = (gid_addr(*local_gid), gid_addr(*remote_gid));
        format!("{} from {ours} to {theirs}{version}", self.nic.name())
    }

    /// Returns what an asynchronous event may concern.
    pub(crate) fn queues(&self) -> Queues {
        Queues {
            route: RailPath {
                nic: Arc::clone(&self.nic),
                local: (self.names.local_gid, self.names.gid_kind),
                peer: self.names.remote_gid,
            },
            context: self.cq.as_ref().map_or(0, |cq| cq.context().id()),
            qps: self.queue_pairs().map(SendQueue::number).collect(),
            cq: self.cq.as_ref().map(|cq| cq.id()),
            srq: self.receives.as_ref().and_then(|receives| receives.srq()).map(|srq| srq.id()),
        }
    }

    /// Returns whether the queue pair with this number is the one for flushes.
    pub(crate) fn is_loopback(&self, qpn: u32) -> bool {
        self.flush.as_ref().is_some_and(|queue| queue.number() == qpn)
    }

    /// Counts the receive that an immediate for `slot` has consumed. Returns `false` if the
    /// immediate arrived on the wrong queue pair.
    #[inline]
    pub(crate) fn arrived(&mut self, completion: &Completion, slot: u8) -> bool {
        // The usual case first.
        self.receives.as_mut().is_some_and(Receives::consumed_shared) || self.arrived_own(completion, slot)
    }

    /// Like [`arrived`](Self::arrived), for a rail without an SRQ.
    #[inline(never)]
    fn arrived_own(&mut self, completion: &Completion, slot: u8) -> bool {
        match &mut self.receives {
            Some(receives) => receives.consumed_own(slot, completion, &self.send_queues),
            None => true,
        }
    }

    /// Replaces consumed receives if few are left. `outstanding`: slots whose data is outstanding.
    /// Returns how many more slots may be used.
    pub(crate) fn refill(&mut self, outstanding: usize) -> Result<usize, NotPosted> {
        let Some(receives) = &mut self.receives else { return Ok(0) };
        receives.refill(outstanding, &self.send_queues)?;
        Ok(receives.credit(outstanding))
    }

    /// Fills the queues of receives.
    pub(crate) fn fill(&mut self) -> Result<(), NotPosted> {
        match &mut self.receives {
            Some(receives) => receives.fill(&self.send_queues),
            None => Ok(()),
        }
    }

    /// Describes a failed completion, but for the state of its port: a query may block.
    #[cold]
    pub(crate) fn failed(&self, rail: usize, completion: &Completion) -> Error {
        let loopback = self.is_loopback(completion.qpn());
        let (remote_gid, peer) = match loopback {
            true => (self.names.local_gid, "this adapter (loopback)"),
            false => (self.names.remote_gid, &*self.names.peer),
        };
        let remote_qpn =
            self.queue_pairs().find(|l| l.number() == completion.qpn()).map_or(0, |l| l.remote_qpn);
        Error::Completion(Box::new(FailedCompletion {
            port: None,
            loopback,
            status: completion.status(),
            vendor_err: completion.vendor_err(),
            operation: Work::of(completion.wr_id()).name(),
            rail,
            device: self.nic.name().to_owned(),
            local_gid: self.names.local_gid,
            remote_gid,
            local_qpn: completion.qpn(),
            remote_qpn,
            peer: peer.to_owned(),
        }))
    }
}
