//! Launches of 2.18 to 2.21: three parameters, and a list of works for each block.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use super::{
    Program,
    block::{Block, Group},
    coverage::Coverage,
    device::{Channel, Communicator},
    function::{Algorithm, Function, Kind},
};
use crate::{
    Unknown,
    address::Address,
    collective::{
        Collective, Round, Task,
        p2p::Message,
        rounds::{Grid, Part},
    },
    layout::{ListCollective, ListPart, Lists},
    protocol::{Direction, Protocol, Registration},
};

/// Kinds of works, in NCCL's order.
const COLLECTIVE: u64 = 1;
const P2P: u64 = 2;
const REGISTERED_COLLECTIVE: u64 = 3;
/// The protocol of a send or a receive.
const LL: u64 = 0;
const SIMPLE: u64 = 2;
/// Threads of a warp.
const WARP: usize = 32;

/// Identifies the collective of a part: function, input, output, count and root.
type Key = (Function, usize, usize, usize, usize);

/// A launch while it is read.
struct Reader<'a> {
    program: &'a Program,
    layout: &'a Lists,
    head: Address,
    comm: Communicator,
    coverage: Coverage<Key>,
}

/// Reads a launch. The parameters are the communicator, the channel mask and the first work.
pub(super) fn read(
    program: &Program,
    layout: &Lists,
    blocks: u32,
    [comm, mask, head]: [u64; 3],
) -> Result<(Communicator, Vec<Block>), Unknown> {
    let address = Address::new(comm as usize);
    // SAFETY: the host's parameter names a communicator, which outlives its kernels.
    let comm = unsafe { Communicator::at(address, Arc::clone(&program.layout)) }?;
    let channels: Vec<_> = (0..64).filter(|channel| mask >> channel & 1 == 1).collect();
    if channels.len() != blocks as usize {
        let found = format!("{} channels", channels.len());
        return Err(Unknown::new("grid with blocks", blocks).found(found));
    }
    let head = Address::new(head as usize);
    let mut reader = Reader { program, layout, head, comm, coverage: Coverage::new() };
    let read = channels.into_iter().enumerate().map(|(block, channel)| reader.block(block, channel));
    let blocks = read.collect::<Result<Vec<_>, _>>()?;
    reader.coverage.check()?;
    Ok((reader.comm, blocks))
}

impl Reader<'_> {
    /// Reads the works of a block. Block `n` begins at work `n`.
    fn block(&mut self, block: usize, channel: usize) -> Result<Block, Unknown> {
        let channel = self.comm.channel(channel)?;
        let mut groups = VecDeque::new();
        let mut index = block as i64;
        let mut seen = HashSet::new();
        while seen.insert(index) {
            let work = self.work(index);
            let is_last = self.layout.is_last.is_set(&work);
            if is_last && self.layout.in_fifo.is_set(&work) {
                channel.acknowledge(self.layout.done_acks.get(&work) as u32);
            }
            groups.push_back(self.group(&channel, &work)?);
            if is_last {
                return Ok(Block::new(self.comm.clone(), channel, groups));
            }
            index = self.layout.next.signed(&work);
        }
        Err(Unknown::new("list of works", "a loop").found(format!("channel {}", channel.index)))
    }

    fn work(&self, index: i64) -> Vec<u8> {
        let offset = (index as usize).wrapping_mul(self.layout.size);
        // SAFETY: the host wrote the work before the launch and keeps it until the kernel frees it.
        unsafe { self.head.plus(offset).bytes(self.layout.size) }
    }

    fn group(&mut self, channel: &Channel, work: &[u8]) -> Result<Group, Unknown> {
        let elements = &work[self.layout.elements..];
        let (size, shift) = match self.layout.kind.get(work) {
            COLLECTIVE => (self.layout.collective.size, 0),
            REGISTERED_COLLECTIVE => (self.layout.registered_size, self.layout.registered),
            P2P => {
                // The number of the function is 0 in 2.18.
                let stages = [self.p2p(channel, elements)?].into();
                return Ok(Group { works: 1, stages, ..Group::default() });
            }
            other => return Err(Unknown::new("work kind", other).found(format!("channel {}", channel.index))),
        };
        let function = self.program.functions.get(self.layout.function.get(work) as u32);
        let function = function.map_err(|unknown| unknown.found(format!("channel {}", channel.index)))?;
        let mut group = Group::default();
        for element in elements.chunks_exact(size) {
            self.collective(channel, function, &element[shift..], &mut group)?;
        }
        group.works = group.stages.len() as u64;
        Ok(group)
    }

    fn collective(
        &mut self,
        channel: &Channel,
        function: Function,
        element: &[u8],
        group: &mut Group,
    ) -> Result<(), Unknown> {
        let fields = &self.layout.collective;
        if !fields.is_used.is_set(element) {
            return Ok(());
        }
        let is_pointer = fields.argument_is_pointer.is_set(element);
        let size = function.data_type.size();
        let argument = super::argument(fields.argument.get(element), is_pointer, size);
        let (input, output) = (fields.input.size(element), fields.output.size(element));
        let (count, root) = (fields.count.size(element), fields.root.size(element));
        let rounds = self.rounds(fields, function, element)?;
        let is_ring = function.kind == Kind::AllReduce && function.algorithm == Algorithm::Ring;
        let chunks = if is_ring { self.comm.ranks } else { 1 };
        let parts = rounds.iter().flat_map(|round| round.ranges(chunks));
        let key = (function, input, output, count, root);
        self.coverage.add(key, || function.to_string(), count, parts);
        let work = Collective {
            function,
            reduction: self.program.reduction(function, argument),
            input: Address::new(input),
            output: Address::new(output),
            count,
            root,
            rounds,
            registration: Registration::None,
            packing: self.program.packing,
        };
        group.stages.push_back(work.tasks(&self.comm, channel)?);
        Ok(())
    }

    fn rounds(
        &self,
        fields: &ListCollective,
        function: Function,
        element: &[u8],
    ) -> Result<Vec<Round>, Unknown> {
        let is_ring = function.algorithm == Algorithm::Ring;
        match fields.part {
            ListPart::Given { chunk, count, last_chunk, offset } => {
                let (offset, count) = (offset.size(element), count.size(element));
                let part = Part { offset, count, chunk: chunk.size(element) };
                if part.chunk == 0 {
                    return Err(Unknown::new("chunk size", 0).found(function));
                }
                let last = last_chunk.size(element);
                Ok(match function.kind {
                    Kind::AllReduce if is_ring => part.ring(self.comm.ranks, |_| last),
                    _ => part.single(),
                })
            }
            ListPart::Computed { last_chunk, channel, channels } => {
                let grid = Grid {
                    protocol: function.protocol,
                    element: function.data_type.size(),
                    step_bytes: self.comm.step_bytes(function.protocol),
                    threads: fields.warps.size(element) * WARP,
                    channel: channel.size(element),
                    channels: channels.size(element),
                    count: fields.count.size(element),
                    last_chunk: last_chunk.size(element),
                };
                computed(grid, function, self.comm.ranks)
            }
        }
    }

    /// Returns the tasks of sends and receives: receives at even places, sends at odd ones.
    fn p2p(&self, channel: &Channel, elements: &[u8]) -> Result<Vec<Task>, Unknown> {
        let fields = &self.layout.p2p;
        let groups = fields.groups.size(elements);
        let mut tasks = Vec::new();
        let elements: Vec<_> = elements.chunks_exact(fields.size).take(groups).collect();
        for (i, element) in elements.iter().enumerate() {
            let peer = fields.peer.signed(element);
            if !fields.kind.is_set(element) || peer == -1 {
                continue;
            }
            if fields.registered.is_some_and(|field| field.is_set(element)) {
                return Err(Unknown::new("registration", "send or receive of this release"));
            }
            let direction = if i % 2 == 0 { Direction::Receive } else { Direction::Send };
            if peer != self.comm.rank as i64 {
                tasks.push(self.message(element, direction)?.task(&self.comm, channel)?);
            } else if direction == Direction::Send {
                let (from, bytes) = self.buffer(element);
                let (to, _) = self.buffer(elements[i - 1]);
                tasks.push(Task::Copy { from, to, bytes });
            }
        }
        Ok(tasks)
    }

    /// Returns the buffer and the bytes of a send or a receive.
    fn buffer(&self, element: &[u8]) -> (Address, usize) {
        let fields = &self.layout.p2p;
        let join = |[high, low]: [crate::layout::Field; 2]| high.size(element) << 32 | low.size(element);
        (Address::new(join(fields.buffer)), join(fields.count))
    }

    fn message(&self, element: &[u8], direction: Direction) -> Result<Message, Unknown> {
        let fields = &self.layout.p2p;
        let (buffer, bytes) = self.buffer(element);
        let chunk = fields.chunk.size(element);
        let (protocol, chunk) = match fields.protocol.get(element) {
            LL => (Protocol::Ll, chunk / 2),
            SIMPLE => (Protocol::Simple, chunk),
            other => return Err(Unknown::new("protocol", other).found("send or receive")),
        };
        let peer = fields.peer.signed(element);
        let peer = usize::try_from(peer).map_err(|_| Unknown::new("peer", peer))?;
        let registration = Registration::None;
        Ok(Message { direction, peer, buffer, bytes, chunk, protocol, registration })
    }
}

/// Returns the rounds that 2.18 and 2.19 compute.
fn computed(grid: Grid, function: Function, ranks: usize) -> Result<Vec<Round>, Unknown> {
    if grid.channels == 0 || grid.threads <= 2 * WARP {
        let found = format!("{} channels, {} threads", grid.channels, grid.threads);
        return Err(Unknown::new("grid of", function).found(found));
    }
    match (function.kind, function.algorithm) {
        (Kind::AllReduce, Algorithm::Tree) => Ok(grid.tree()),
        (Kind::AllReduce, Algorithm::Ring) => Ok(grid.ring(ranks)),
        (Kind::AllGather | Kind::ReduceScatter, Algorithm::Ring) => Ok(grid.single(4, true)),
        (Kind::Broadcast | Kind::Reduce, Algorithm::Ring) => Ok(grid.single(1, false)),
        _ => Err(Unknown::new("function", function)),
    }
}
