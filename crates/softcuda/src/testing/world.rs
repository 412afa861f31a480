//! Communicators of some ranks in the memory of one process.

use std::{collections::HashMap, sync::atomic::Ordering};

use crate::{
    address::Address,
    layout::{Field, Fifo, Layout},
    protocol::{Direction, Progress, Protocol},
};

/// Memory that lives as long as the test.
#[derive(Debug, Default)]
pub(crate) struct Arena(Vec<Box<[u64]>>);

impl Arena {
    /// Returns zeroed memory.
    pub(crate) fn zeroed(&mut self, bytes: usize) -> Address {
        self.0.push(vec![0; bytes.div_ceil(8).max(1)].into());
        let memory = self.0.last_mut().expect("just pushed");
        Address::of(memory.as_mut_ptr())
    }

    /// Returns memory with these bytes.
    pub(crate) fn with(&mut self, bytes: &[u8]) -> Address {
        let address = self.zeroed(bytes.len());
        // SAFETY: as large as the bytes.
        unsafe { address.write_from(bytes) };
        address
    }
}

/// A machine that is polled.
pub(crate) trait Step {
    fn step(&mut self) -> Progress;
}

/// Steps machines one after the other until all are done.
///
/// # Panics
/// If all of them wait: nothing else in the process could wake them.
pub(crate) fn run(machines: &mut [impl Step]) {
    let mut done = vec![false; machines.len()];
    while done.contains(&false) {
        let mut moved = false;
        for (machine, done) in machines.iter_mut().zip(&mut done).filter(|(_, done)| !**done) {
            let progress = machine.step();
            *done = progress == Progress::Done;
            moved |= progress != Progress::Waiting;
        }
        assert!(moved, "every machine waits; done: {done:?}");
    }
}

/// What a world is like.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    pub(crate) ranks: usize,
    pub(crate) channels: usize,
    /// Bytes of the buffers of LL, LL128 and Simple.
    pub(crate) buffers: [usize; 3],
    /// Bytes of a step of sends and receives.
    pub(crate) p2p_chunk: usize,
    /// Whether senders have a FIFO, as with a proxy thread.
    pub(crate) has_fifo: bool,
}

impl Default for Shape {
    fn default() -> Self {
        let buffers = [8 * 16384, 8 * 16384, 8 * 16384];
        Self { ranks: 2, channels: 1, buffers, p2p_chunk: 16384, has_fifo: false }
    }
}

/// A connection from one rank to another: channel, sender, receiver, number.
type Edge = (usize, usize, usize, usize);

/// Communicators whose channels are a ring in the order of ranks and a tree with rank 0 on top.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) arena: Arena,
    pub(crate) layout: Layout,
    pub(crate) shape: Shape,
    /// The communicator of each rank.
    pub(crate) communicators: Vec<Address>,
    /// The FIFO of each edge, if there is one.
    pub(crate) fifos: HashMap<Edge, Address>,
    /// Peers by channel, rank and peer.
    peers: HashMap<(usize, usize, usize), Address>,
}

impl World {
    pub(crate) fn new(layout: Layout, shape: Shape) -> Self {
        let mut world = Self {
            arena: Arena::default(),
            layout,
            communicators: Vec::new(),
            fifos: HashMap::new(),
            peers: HashMap::new(),
            shape,
        };
        world.make_peers();
        world.connect();
        world.communicators = (0..world.shape.ranks).map(|rank| world.communicator(rank)).collect();
        world
    }

    /// Returns the address of a connection of a rank.
    pub(crate) fn connection(
        &self,
        channel: usize,
        rank: usize,
        peer: usize,
        direction: Direction,
        number: usize,
    ) -> Address {
        let fields = &self.layout.connection;
        let first = if direction == Direction::Send { fields.sends } else { fields.receives };
        self.peers[&(channel, rank, peer)].plus(first + number * fields.size)
    }

    fn put(&self, at: Address, field: Field, value: u64) {
        // SAFETY: a member of a structure of the arena.
        unsafe { at.plus(field.offset).write_from(&value.to_le_bytes()[..field.size]) };
    }

    fn make_peers(&mut self) {
        let (ranks, fields) = (self.shape.ranks, self.layout.connection.clone());
        for channel in 0..self.shape.channels {
            for rank in 0..ranks {
                for peer in 0..ranks {
                    let address = self.arena.zeroed(fields.receives + 2 * fields.size);
                    self.peers.insert((channel, rank, peer), address);
                }
            }
        }
    }

    fn connect(&mut self) {
        for channel in 0..self.shape.channels {
            for sender in 0..self.shape.ranks {
                for receiver in (0..self.shape.ranks).filter(|receiver| *receiver != sender) {
                    (0..2).for_each(|number| self.edge((channel, sender, receiver, number)));
                }
            }
        }
    }

    /// Connects two ranks: both ends have the same buffers and counters.
    fn edge(&mut self, edge: Edge) {
        let (channel, sender, receiver, number) = edge;
        let fields = self.layout.connection.clone();
        let buffers = self.shape.buffers.map(|bytes| self.arena.zeroed(bytes));
        let (head, tail) = (self.arena.zeroed(8), self.arena.zeroed(8));
        let send = self.connection(channel, sender, receiver, Direction::Send, number);
        let receive = self.connection(channel, receiver, sender, Direction::Receive, number);
        let p2p = self.shape.p2p_chunk;
        let step = if number == 1 { p2p } else { self.shape.buffers[Protocol::Simple as usize] / 8 };
        for end in [send, receive] {
            for (i, buffer) in buffers.iter().enumerate() {
                self.put(end, Field::whole(fields.buffers + 8 * i, 8), buffer.get() as u64);
            }
            self.put(end, fields.head, head.get() as u64);
            self.put(end, fields.tail, tail.get() as u64);
            if let Some(step_size) = fields.step_size {
                self.put(end, step_size, step as u64);
            }
        }
        if self.shape.has_fifo {
            let fifo = self.arena.zeroed(8 * 32);
            self.fifos.insert(edge, fifo);
            let place = match fields.fifo {
                Fifo::Arrays { sizes, .. } => sizes,
                Fifo::Entries { entries, .. } => entries,
            };
            self.put(send, place, fifo.get() as u64);
        }
    }

    fn communicator(&mut self, rank: usize) -> Address {
        let (layout, shape) = (self.layout.clone(), self.shape.clone());
        let fields = &layout.communicator;
        let bytes = fields.channels + shape.channels * layout.channel.size;
        let address = self.arena.zeroed(bytes);
        let abort_flag = self.arena.zeroed(8);
        self.put(address, fields.rank, rank as u64);
        self.put(address, fields.ranks, shape.ranks as u64);
        self.put(address, fields.abort_flag, abort_flag.get() as u64);
        for (i, bytes) in shape.buffers.iter().enumerate() {
            self.put(address, Field::whole(fields.buffer_sizes + 4 * i, 4), *bytes as u64);
        }
        if let Some(chunk) = fields.p2p_chunk {
            self.put(address, chunk, shape.p2p_chunk as u64);
        }
        for index in 0..shape.channels {
            self.channel(address.plus(fields.channels + index * layout.channel.size), index, rank);
        }
        address
    }

    fn channel(&mut self, at: Address, index: usize, rank: usize) {
        let (ranks, fields) = (self.shape.ranks, self.layout.channel.clone());
        let peers: Vec<u8> = (0..ranks)
            .flat_map(|peer| (self.peers[&(index, rank, peer)].get() as u64).to_le_bytes())
            .collect();
        let user_ranks: Vec<u8> =
            (0..ranks).flat_map(|i| (((rank + i) % ranks) as u32).to_le_bytes()).collect();
        let (peers, user_ranks) = (self.arena.with(&peers), self.arena.with(&user_ranks));
        let done = self.arena.zeroed(8);
        self.put(at, fields.peers, peers.get() as u64);
        self.put(at, fields.user_ranks, user_ranks.get() as u64);
        self.put(at, fields.fifo_done, done.get() as u64);
        self.put(at, fields.previous, ((rank + ranks - 1) % ranks) as u64);
        self.put(at, fields.next, ((rank + 1) % ranks) as u64);
        self.put(at, fields.index, rank as u64);
        let up = rank.checked_sub(1).map_or(u64::MAX, |above| above as u64 / 2);
        self.put(at, fields.up, up);
        for child in 0..3 {
            let below = 2 * rank + 1 + child;
            let is_there = child < 2 && below < ranks;
            let below = if is_there { below as u64 } else { u64::MAX };
            self.put(at, Field::whole(fields.down + 4 * child, 4), below);
        }
    }

    /// Requests that running kernels of a rank end.
    pub(crate) fn abort(&self, rank: usize) {
        let field = self.layout.communicator.abort_flag;
        // SAFETY: the pointer to the flag in a communicator of the arena.
        let flag = unsafe { self.communicators[rank].plus(field.offset).read::<usize>() };
        // SAFETY: the flag of `communicator`.
        unsafe { Address::new(flag).half_word() }.store(1, Ordering::Release);
    }
}
