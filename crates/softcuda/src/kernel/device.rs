//! The communicator and its channels in device memory, as the host has written them for kernels.

use std::sync::{Arc, atomic::Ordering};

use crate::{
    Unknown,
    address::Address,
    layout::{Field, Layout},
    protocol::{Direction, Protocol},
};

/// Steps of a connection's buffers.
const STEPS: usize = 8;
/// Children of a rank in a tree, at most.
const CHILDREN: usize = 3;
/// Ranks of a communicator, at most. More are a sign of a wrong layout.
const RANKS: usize = 1 << 20;

/// A communicator. It outlives the kernels that the host has launched for it.
#[derive(Debug, Clone)]
pub(crate) struct Communicator {
    layout: Arc<Layout>,
    address: Address,
    /// This rank.
    pub(crate) rank: usize,
    /// Number of ranks.
    pub(crate) ranks: usize,
    /// Bytes of the buffers by protocol.
    buffers: [usize; 3],
    /// Bytes of a step of send and receive, if the release has them.
    p2p_chunk: Option<usize>,
    abort_flag: Address,
    work_consumed: Address,
}

impl Communicator {
    /// Reads a communicator.
    ///
    /// # Safety
    /// A communicator with this layout is at the address. It stays while this value lives.
    pub(crate) unsafe fn at(address: Address, layout: Arc<Layout>) -> Result<Self, Unknown> {
        if address.is_null() {
            return Err(Unknown::new("communicator", "null"));
        }
        let fields = &layout.communicator;
        // SAFETY: the caller's promise. The channels follow the communicator's other members.
        let bytes = unsafe { address.bytes(fields.channels) };
        let buffer = |i: usize| Field::whole(fields.buffer_sizes + 4 * i, 4).size(&bytes);
        let pointer = |field: Option<Field>| Address::new(field.map_or(0, |field| field.size(&bytes)));
        let (rank, ranks) = (fields.rank.size(&bytes), fields.ranks.size(&bytes));
        if rank >= ranks || ranks > RANKS {
            return Err(Unknown::new("communicator with rank", format!("{rank} of {ranks}")));
        }
        Ok(Self {
            address,
            rank,
            ranks,
            buffers: [buffer(0), buffer(1), buffer(2)],
            p2p_chunk: fields.p2p_chunk.map(|field| field.size(&bytes)),
            abort_flag: pointer(Some(fields.abort_flag)),
            work_consumed: pointer(fields.work_consumed),
            layout,
        })
    }

    pub(crate) fn layout(&self) -> &Arc<Layout> {
        &self.layout
    }

    /// Returns the bytes of a step of a protocol's buffers.
    pub(crate) const fn step_bytes(&self, protocol: Protocol) -> usize {
        self.buffers[protocol as usize] / STEPS
    }

    /// Returns the bytes of a step of sends and receives in Simple.
    pub(crate) fn p2p_step_bytes(&self) -> usize {
        // 2.18 has no member for it and uses the collectives' step.
        self.p2p_chunk.unwrap_or_else(|| self.step_bytes(Protocol::Simple))
    }

    /// Returns whether the host wants running kernels to end.
    pub(crate) fn is_aborted(&self) -> bool {
        if self.abort_flag.is_null() {
            return false;
        }
        // SAFETY: the communicator's flag of 32 bits, which lives as long as the communicator.
        unsafe { self.abort_flag.half_word() }.load(Ordering::Acquire) != 0
    }

    /// Frees the work FIFO up to a channel's last work: 2.22 to 2.26.
    pub(crate) fn consume(&self, channel: usize, end: u32) {
        if !self.work_consumed.is_null() {
            // SAFETY: one counter for each channel, which live as long as the communicator.
            let consumed = unsafe { self.work_consumed.plus(4 * channel).half_word() };
            consumed.store(end, Ordering::Release);
        }
    }

    /// Returns the address of the entry of a channel in one of the communicator's tables, if the
    /// communicator has the table.
    pub(crate) fn entry(&self, table: Field, channel: usize, size: usize) -> Option<Address> {
        // SAFETY: a pointer in the communicator.
        let table = Address::new(unsafe { self.address.plus(table.offset).read::<usize>() });
        (!table.is_null()).then(|| table.plus(channel * size))
    }

    /// Reads a channel.
    pub(crate) fn channel(&self, index: usize) -> Result<Channel, Unknown> {
        let fields = &self.layout.channel;
        let address = self.address.plus(self.layout.communicator.channels + index * fields.size);
        // SAFETY: the communicator has as many channels as the channel mask has bits.
        let bytes = unsafe { address.bytes(fields.size) };
        let down = (0..CHILDREN).map(|i| Field::whole(fields.down + 4 * i, 4).signed(&bytes));
        let user_ranks = self.user_ranks(Address::new(fields.user_ranks.size(&bytes)))?;
        Ok(Channel {
            layout: Arc::clone(&self.layout),
            address,
            index,
            peers: Address::new(fields.peers.size(&bytes)),
            fifo_done: Address::new(fields.fifo_done.size(&bytes)),
            ranks: self.ranks,
            ring: Ring {
                previous: fields.previous.size(&bytes),
                next: fields.next.size(&bytes),
                index: fields.index.size(&bytes),
                ranks: user_ranks,
            },
            tree: Tree {
                up: usize::try_from(fields.up.signed(&bytes)).ok(),
                down: down.map_while(|rank| usize::try_from(rank).ok()).collect(),
            },
        })
    }

    /// Reads the ranks of a ring. A channel that only sends and receives may have none.
    fn user_ranks(&self, address: Address) -> Result<Vec<usize>, Unknown> {
        if address.is_null() {
            return Ok(Vec::new());
        }
        // SAFETY: one `int` for each rank, in memory of the communicator.
        let bytes = unsafe { address.bytes(4 * self.ranks) };
        let ranks = (0..self.ranks).map(|i| Field::whole(4 * i, 4).size(&bytes)).collect::<Vec<_>>();
        match ranks.iter().find(|rank| **rank >= self.ranks) {
            Some(rank) => Err(Unknown::new("rank of a ring", rank)),
            None => Ok(ranks),
        }
    }
}

/// A channel's ring.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ring {
    pub(crate) previous: usize,
    pub(crate) next: usize,
    /// This rank's place.
    pub(crate) index: usize,
    /// All ranks in the order of the ring, this one first.
    pub(crate) ranks: Vec<usize>,
}

/// A channel's tree.
#[derive(Debug, Clone, Default)]
pub(crate) struct Tree {
    pub(crate) up: Option<usize>,
    pub(crate) down: Vec<usize>,
}

/// A channel of a [`Communicator`].
#[derive(Debug, Clone)]
pub(crate) struct Channel {
    layout: Arc<Layout>,
    address: Address,
    pub(crate) index: usize,
    peers: Address,
    fifo_done: Address,
    ranks: usize,
    pub(crate) ring: Ring,
    pub(crate) tree: Tree,
}

impl Channel {
    /// Returns the address of a connection. Collectives use the first one of a direction, sends and
    /// receives the second.
    pub(crate) fn connection(
        &self,
        peer: usize,
        direction: Direction,
        number: usize,
    ) -> Result<Address, Unknown> {
        let unknown = || Unknown::new("peer", peer).found(format!("channel {}", self.index));
        if peer >= self.ranks || self.peers.is_null() {
            return Err(unknown());
        }
        // SAFETY: one pointer for each rank, in memory of the communicator.
        let peer = Address::new(unsafe { self.peers.plus(8 * peer).read::<usize>() });
        if peer.is_null() {
            return Err(unknown());
        }
        let fields = &self.layout.connection;
        let first = match direction {
            Direction::Send => fields.sends,
            Direction::Receive => fields.receives,
        };
        Ok(peer.plus(first + number * fields.size))
    }

    /// Frees the work FIFO up to 2.21.
    pub(crate) fn acknowledge(&self, acks: u32) {
        if !self.fifo_done.is_null() {
            // SAFETY: the channel's counter, which lives as long as the communicator.
            unsafe { self.fifo_done.half_word() }.store(acks, Ordering::Release);
        }
    }

    /// Returns the number of works that the channel has run, if the release counts them.
    pub(crate) fn works(&self) -> Option<u64> {
        let counter = self.layout.channel.work_counter?;
        // SAFETY: a member of the channel, which only the channel's kernel writes.
        Some(unsafe { self.address.plus(counter.offset).word() }.load(Ordering::Acquire))
    }

    /// Keeps the number of works for the next kernel.
    pub(crate) fn set_works(&self, works: u64) {
        if let Some(counter) = self.layout.channel.work_counter {
            // SAFETY: a member of the channel, which only the channel's kernel writes.
            unsafe { self.address.plus(counter.offset).word() }.store(works, Ordering::Release);
        }
    }
}
