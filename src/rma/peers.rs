//! The ranks that a rank has to do with.

use nccl_net_versions::Failure;

use super::incoming::Incoming;
use super::outgoing::Outgoing;

/// What a rank has with another one.
#[derive(Debug)]
pub(super) struct Peer {
    pub(super) outgoing: Outgoing,
    pub(super) incoming: Incoming,
    pub(super) failed: Option<Failure>,
}

/// The peers of a rank: of thousands, it usually has to do with a few.
#[derive(Debug)]
pub(super) struct Peers {
    by_rank: Vec<Option<Box<Peer>>>,
    /// The ranks that have one.
    ranks: Vec<usize>,
}

impl Peers {
    pub(super) fn new(ranks: usize) -> Self {
        Self { by_rank: (0..ranks).map(|_| None).collect(), ranks: Vec::new() }
    }

    /// Returns how many ranks there are.
    pub(super) fn len(&self) -> usize {
        self.by_rank.len()
    }

    /// Returns the rank of a peer by its index, `None` if there are not so many.
    pub(super) fn rank(&self, index: usize) -> Option<usize> {
        self.ranks.get(index).copied()
    }

    /// Returns a peer if there is one for this rank.
    pub(super) fn get(&mut self, rank: usize) -> Option<&mut Peer> {
        self.by_rank[rank].as_deref_mut()
    }

    /// Returns the peer of a rank, which is one of this group.
    pub(super) fn of(&mut self, rank: usize) -> &mut Peer {
        let Self { by_rank, ranks } = self;
        by_rank[rank].get_or_insert_with(|| {
            ranks.push(rank);
            Box::new(Peer { outgoing: Outgoing::new(), incoming: Incoming::new(rank), failed: None })
        })
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Peer> {
        self.by_rank.iter_mut().flatten().map(|peer| &mut **peer)
    }

    pub(super) fn into_peers(self) -> impl Iterator<Item = Peer> {
        self.by_rank.into_iter().flatten().map(|peer| *peer)
    }
}
