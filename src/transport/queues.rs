//! The CQs of a connection. The stripes of a rail share a CQ, and so do rails on one adapter. Then
//! the number of a completion's queue pair names the rail.

use std::sync::Arc;

use crate::transport::rail::Rail;
use crate::verbs::Cq;

/// The CQs of a connection, each once.
#[derive(Debug)]
pub(crate) struct CompletionQueues {
    /// The CQ of a connection whose only rail shares it with no other route.
    pub(crate) only: Option<Arc<Cq>>,
    pub(crate) all: Vec<CompletionQueue>,
}

/// One CQ and the rails that use it.
#[derive(Debug)]
pub(crate) struct CompletionQueue {
    pub(crate) cq: Arc<Cq>,
    /// The mask of these rails.
    pub(crate) rails: u8,
    owners: Owners,
}

/// Where the rail of a completion comes from.
#[derive(Debug)]
enum Owners {
    /// All completions belong to this rail.
    One(usize),
    /// The numbers of the queue pairs, in order, each with its rail.
    ByNumber(Vec<(u32, usize)>),
}

impl CompletionQueues {
    pub(crate) fn new(rails: &[Rail]) -> Self {
        let mut all: Vec<CompletionQueue> = Vec::with_capacity(rails.len());
        for (i, rail) in rails.iter().enumerate() {
            // A rail that is given up has none.
            let Some(cq) = &rail.cq else { continue };
            match all.iter_mut().find(|queue| queue.cq.id() == cq.id()) {
                Some(queue) => queue.add(i, rail),
                None => all.push(CompletionQueue::new(i, rail, cq)),
            }
        }
        let only = match rails {
            [Rail { cq, shares_cq: false, .. }] => cq.clone(),
            _ => None,
        };
        Self { only, all }
    }
}

impl CompletionQueue {
    fn new(i: usize, rail: &Rail, cq: &Arc<Cq>) -> Self {
        let owners = if rail.shares_cq { Owners::ByNumber(Vec::new()) } else { Owners::One(i) };
        let mut queue = Self { cq: Arc::clone(cq), rails: 0, owners };
        queue.add(i, rail);
        queue
    }

    fn add(&mut self, i: usize, rail: &Rail) {
        self.rails |= 1 << i;
        if let Owners::ByNumber(numbers) = &mut self.owners {
            numbers.extend(rail.queue_pairs().map(|queue| (queue.number(), i)));
            numbers.sort_unstable();
        }
    }

    /// Returns the rail if all completions belong to it.
    #[inline]
    pub(crate) fn one_rail(&self) -> Option<usize> {
        match self.owners {
            Owners::One(rail) => Some(rail),
            Owners::ByNumber(_) => None,
        }
    }

    /// Returns the rail of the queue pair with this number. `None` if the connection has not kept
    /// the queue pair: some providers keep completions of a queue pair that is destroyed.
    #[inline]
    pub(crate) fn rail_of(&self, qpn: u32) -> Option<usize> {
        self.owners.rail_of(qpn)
    }
}

impl Owners {
    #[inline]
    fn rail_of(&self, qpn: u32) -> Option<usize> {
        match self {
            Self::One(rail) => Some(*rail),
            Self::ByNumber(numbers) => {
                let at = numbers.binary_search_by_key(&qpn, |(number, _)| *number).ok()?;
                Some(numbers[at].1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_a_queue_pair_names_the_rail_of_a_shared_cq() {
        let shared = Owners::ByNumber(vec![(7, 2), (8, 0), (20, 2)]);
        let found = [7, 8, 20, 9, 0, 21].map(|qpn| shared.rail_of(qpn));
        assert_eq!(found, [Some(2), Some(0), Some(2), None, None, None], "others are destroyed");
        assert_eq!(Owners::One(2).rail_of(9), Some(2));
    }
}
