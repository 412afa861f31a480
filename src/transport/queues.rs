//! The completion queues of a connection: one for each adapter, shared by the rails on it.

use std::sync::Arc;

use crate::error::Fast;
use crate::proto::rails;
use crate::transport::rail::Rail;
use crate::transport::send_queue::SendQueue;
use crate::verbs::{Batch, Completion, Cq};

/// The CQs of a connection, in the order of the rails that use them first.
#[derive(Debug)]
pub(crate) struct CompletionQueues {
    queues: Box<[CompletionQueue]>,
    /// Where the next poll for any of them begins.
    next: usize,
}

/// A CQ and the rails that use it.
#[derive(Debug)]
struct CompletionQueue {
    cq: Arc<Cq>,
    /// Mask of the rails.
    rails: u8,
    /// The lowest rail.
    first: usize,
    /// The number of each queue pair of the other rails, with its rail.
    others: Box<[(u32, usize)]>,
}

impl CompletionQueues {
    pub(crate) fn new(all: &[Rail]) -> Self {
        let mut queues: Vec<CompletionQueue> = Vec::new();
        for (i, rail) in all.iter().enumerate() {
            if !queues.iter().any(|queue| Arc::ptr_eq(&queue.cq, &rail.cq)) {
                queues.push(CompletionQueue::new(i, all));
            }
        }
        Self { queues: queues.into(), next: 0 }
    }

    #[inline(always)]
    pub(crate) fn len(&self) -> usize {
        self.queues.len()
    }

    /// Polls a CQ once. Returns whether it had anything.
    #[inline]
    pub(crate) fn poll(&self, queue: usize, batch: &mut Batch) -> Fast<bool> {
        self.queues[queue].cq.poll(batch)
    }

    /// Returns the CQ if there is only one.
    #[inline(always)]
    pub(crate) fn only(&self) -> Option<&Cq> {
        match &*self.queues {
            [only] => Some(&only.cq),
            _ => None,
        }
    }

    /// Returns whether a rail of the mask uses a CQ.
    #[inline]
    pub(crate) fn serves(&self, queue: usize, rails: u8) -> bool {
        self.queues[queue].rails & rails != 0
    }

    /// Returns the rail of a CQ that serves only one.
    #[inline(always)]
    pub(crate) fn only_rail(&self, queue: usize) -> Option<usize> {
        let CompletionQueue { first, others, .. } = &self.queues[queue];
        others.is_empty().then_some(*first)
    }

    /// Returns the rail of a completion.
    #[inline(never)]
    pub(crate) fn rail(&self, queue: usize, completion: &Completion) -> usize {
        let (CompletionQueue { first, others, .. }, qpn) = (&self.queues[queue], completion.qpn());
        others.iter().find(|(number, _)| *number == qpn).map_or(*first, |(_, rail)| *rail)
    }

    /// Returns the CQ to begin with in a poll for any of them.
    #[inline]
    pub(crate) fn begin(&self) -> usize {
        self.next
    }

    /// Lets the next poll begin with this CQ.
    #[inline]
    pub(crate) fn begin_with(&mut self, queue: usize) {
        self.next = queue;
    }
}

impl CompletionQueue {
    /// Collects what uses the CQ of rail `first`, the lowest one that uses it.
    fn new(first: usize, all: &[Rail]) -> Self {
        let cq = &all[first].cq;
        let shared = |rail: &usize| Arc::ptr_eq(&all[*rail].cq, cq);
        let users = (0..all.len()).filter(shared);
        let others = users.clone().filter(|rail| *rail != first).flat_map(|rail| {
            let qps = all[rail].send_queues.iter().chain(&all[rail].flush);
            qps.map(SendQueue::number).map(move |number| (number, rail))
        });
        let mask = users.clone().fold(0, |mask, rail| mask | 1 << rail);
        debug_assert!(rails(mask).eq(users));
        Self { cq: Arc::clone(cq), rails: mask, first, others: others.collect() }
    }
}
