//! Launches from 2.22 on: arguments, then batches that name works, then perhaps the works.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Program,
    block::{Block, Group},
    coverage::Coverage,
    device::{Channel, Communicator},
    function::{Function, Kind},
};
use crate::{
    Unknown,
    address::Address,
    collective::{
        Collective, REGISTERED_STEP, Task, gather_v,
        p2p::{Message, decode_chunk, part_range},
        rounds::Part,
    },
    layout::{self, Batches, P2pHalf},
    protocol::{Direction, Protocol, Registration},
    reduce::Reduction,
};

/// Kinds of works, in NCCL's order.
const P2P: u64 = 0;
const COLLECTIVE: u64 = 1;
const REGISTERED_COLLECTIVE: u64 = 2;
const BROADCAST: u64 = 3;
/// Places of works that a batch names, at most.
const PLACES: u32 = 64;
/// Bytes of a grain of chunks, by protocol.
const GRAINS: [usize; 3] = [16, 1920, 512];

/// Where the works are.
enum Storage<'a> {
    Arguments(&'a [u8]),
    Fifo { buffer: Address, mask: u32 },
    Buffer(Address),
}

/// A part of a transfer: the place of its work, and whether it is the send of two.
type Key = (u32, bool);

/// A launch while it is read.
struct Reader<'a> {
    program: &'a Program,
    layout: &'a Batches,
    arguments: &'a [u8],
    storage: Storage<'a>,
    comm: Communicator,
    coverage: Coverage<Key>,
}

/// Reads a launch.
pub(super) fn read(
    program: &Program,
    layout: &Batches,
    blocks: u32,
    arguments: &[u8],
) -> Result<(Communicator, Vec<Block>), Unknown> {
    if arguments.len() < layout.arguments {
        return Err(Unknown::new("kernel arguments with the length", arguments.len()));
    }
    let address = Address::new(layout.communicator.size(arguments));
    // SAFETY: the host's arguments name a communicator, which outlives its kernels.
    let comm = unsafe { Communicator::at(address, Arc::clone(&program.layout)) }?;
    let storage = storage(layout, arguments)?;
    let channels = channels(layout.channel_mask.get(arguments));
    if channels.len() != blocks as usize {
        let found = format!("{} channels", channels.len());
        return Err(Unknown::new("grid with blocks", blocks).found(found));
    }
    let coverage = Coverage::new();
    let mut reader = Reader { program, layout, arguments, storage, comm, coverage };
    let read = channels.into_iter().enumerate().map(|(block, channel)| reader.block(block, channel));
    let blocks = read.collect::<Result<Vec<_>, _>>()?;
    reader.coverage.check()?;
    Ok((reader.comm, blocks))
}

fn storage<'a>(layout: &Batches, arguments: &'a [u8]) -> Result<Storage<'a>, Unknown> {
    let buffer = Address::new(layout.work_buffer.size(arguments));
    match layout.storage.get(arguments) {
        0 => Ok(Storage::Arguments(arguments)),
        1 => Ok(Storage::Fifo { buffer, mask: layout.work_mask.get(arguments) as u32 }),
        2 => Ok(Storage::Buffer(buffer)),
        other => Err(Unknown::new("work storage", other)),
    }
}

/// Returns the numbers of the set bits.
fn channels(mask: u64) -> Vec<usize> {
    (0..64).filter(|channel| mask >> channel & 1 == 1).collect()
}

impl Reader<'_> {
    /// Reads the batches of a block. Block `n` begins at batch `n`.
    fn block(&mut self, block: usize, channel: usize) -> Result<Block, Unknown> {
        let channel = self.comm.channel(channel)?;
        let mut groups = VecDeque::new();
        let mut index = block;
        loop {
            let (group, jump) = self.group(&channel, &mut index)?;
            groups.push_back(group);
            if jump == 0 {
                return Ok(Block::new(self.comm.clone(), channel, groups));
            }
            index += jump;
        }
    }

    /// Reads a group: a batch and those that extend it. Returns the distance to the next group.
    fn group(&mut self, channel: &Channel, index: &mut usize) -> Result<(Group, usize), Unknown> {
        let fields = &self.layout.batch;
        let mut group = Group::default();
        let (mut messages, mut parts) = (Vec::new(), Vec::new());
        loop {
            let batch = self.batch(*index)?.to_vec();
            let kind = fields.kind.get(&batch);
            let number = fields.function.get(&batch) as u32;
            let function =
                self.program.functions.get(number).map_err(|unknown| {
                    unknown.found(format!("channel {}, work kind {kind}", channel.index))
                })?;
            for (place, work) in self.works(&batch, kind, channel)? {
                group.works += 1;
                match (kind, function.kind) {
                    (P2P, Kind::SendRecv) => {
                        group.is_profiled |= is_profiled(self.layout.p2p.profiled, &work);
                        messages.extend(self.p2p(channel, place, &work)?);
                    }
                    (COLLECTIVE | REGISTERED_COLLECTIVE, _) => {
                        group.is_profiled |= is_profiled(self.layout.collective.profiled, &work);
                        let work = self.collective(channel, place, function, &work)?;
                        group.stages.push_back(work.tasks(&self.comm, channel)?);
                    }
                    (BROADCAST, Kind::AllGatherV) => parts.push(self.gather_v(&work)?),
                    _ => return Err(Unknown::new("work kind", kind).found(function)),
                }
            }
            let jump = fields.next_jump.size(&batch);
            if !fields.next_extends.is_set(&batch) {
                if !parts.is_empty() {
                    messages.push(gather_v::task(parts, function.protocol, &self.comm, channel)?);
                }
                if !messages.is_empty() {
                    group.stages.push_back(messages);
                }
                return Ok((group, jump));
            }
            *index += jump;
        }
    }

    fn batch(&self, index: usize) -> Result<&[u8], Unknown> {
        let size = self.layout.batch.size;
        let start = self.layout.arguments + index * size;
        let batch = self.arguments.get(start..start + size);
        batch.ok_or_else(|| Unknown::new("batch", index).found("behind the kernel's arguments"))
    }

    /// Copies the works of a batch, with their places, and frees the FIFO.
    fn works(&self, batch: &[u8], kind: u64, channel: &Channel) -> Result<Vec<(u32, Vec<u8>)>, Unknown> {
        let size = match kind {
            P2P => self.layout.p2p.size,
            COLLECTIVE => self.layout.collective.size,
            REGISTERED_COLLECTIVE => self.layout.registered_size,
            BROADCAST => self.broadcast()?.size,
            other => return Err(Unknown::new("work kind", other)),
        };
        let fields = &self.layout.batch;
        let first = fields.offset.get(batch) as u32;
        let places = fields.places.get(batch);
        let place = |i: u32| first.wrapping_add(i * size as u32);
        let named = (0..PLACES).filter(|i| places >> i & 1 == 1);
        let works = named.map(|i| Ok((place(i), self.work(place(i), size)?))).collect();
        if matches!(self.storage, Storage::Fifo { .. }) && places != 0 {
            self.comm.consume(channel.index, place(PLACES - places.leading_zeros()));
        }
        works
    }

    fn work(&self, place: u32, size: usize) -> Result<Vec<u8>, Unknown> {
        let address = match self.storage {
            Storage::Arguments(arguments) => {
                let work = arguments.get(place as usize..place as usize + size);
                let unknown = || Unknown::new("work", place).found("behind the kernel's arguments");
                return work.map(<[u8]>::to_vec).ok_or_else(unknown);
            }
            Storage::Fifo { buffer, mask } => buffer.plus((place & mask) as usize),
            Storage::Buffer(buffer) => buffer.plus(place as usize),
        };
        // SAFETY: the host wrote the work into the FIFO or the buffer before the launch and keeps it
        // until the kernel frees it. A work does not cross the FIFO's end.
        Ok(unsafe { address.bytes(size) })
    }

    fn broadcast(&self) -> Result<&layout::Broadcast, Unknown> {
        self.layout.broadcast.as_ref().ok_or_else(|| Unknown::new("work kind", BROADCAST))
    }

    fn gather_v(&self, work: &[u8]) -> Result<gather_v::Part, Unknown> {
        let fields = self.broadcast()?;
        let address = |field: layout::Field| Address::new(field.size(work));
        Ok(gather_v::Part {
            depth: fields.ring_depth.size(work),
            input: address(fields.input),
            output: address(fields.output),
            offset: fields.done.size(work),
            bytes: fields.bytes.size(work),
            chunk: fields.chunk.size(work),
        })
    }

    fn collective(
        &mut self,
        channel: &Channel,
        place: u32,
        function: Function,
        work: &[u8],
    ) -> Result<Collective, Unknown> {
        let fields = &self.layout.collective;
        let reduction = self.program.reduction(function, self.argument(function, work));
        let counts = fields.counts.map(|field| field.size(work));
        let registration = self.registration(function, work);
        let (low, high) = (fields.channel_low.size(work), fields.channel_high.size(work));
        let middle = (high + 1).saturating_sub(low + 2);
        let count = counts[0] + counts[1] * middle + counts[2];
        let part = self.part(channel, function, registration, work)?;
        let name = || format!("{function} on channels {low} to {high}");
        let range = part.offset..part.offset + part.count;
        self.coverage.add((place, false), name, count, [range].into_iter());
        Ok(Collective {
            function,
            reduction,
            input: Address::new(fields.input.size(work)),
            output: Address::new(fields.output.size(work)),
            count,
            root: fields.root.size(work),
            rounds: self.program.rounds(function, registration, part, self.comm.ranks),
            registration,
            packing: self.program.packing,
        })
    }

    fn registration(&self, function: Function, work: &[u8]) -> Registration {
        let fields = &self.layout.collective;
        let is_set = |field: Option<layout::Field>| field.is_some_and(|field| field.is_set(work));
        let is_offered = matches!(function.kind, Kind::AllGather | Kind::Broadcast);
        match function.protocol {
            Protocol::Simple if is_set(fields.net_registered) => {
                if is_offered && is_set(fields.one_rank_per_node) {
                    Registration::Offloaded
                } else {
                    Registration::Collective
                }
            }
            _ => Registration::None,
        }
    }

    /// Returns the part of a channel.
    fn part(
        &self,
        channel: &Channel,
        function: Function,
        registration: Registration,
        work: &[u8],
    ) -> Result<Part, Unknown> {
        let fields = &self.layout.collective;
        let (low, high) = (fields.channel_low.size(work), fields.channel_high.size(work));
        let counts = fields.counts.map(|field| field.size(work));
        let (which, offset) = match channel.index {
            index if index == low => (0, 0),
            index if index == high => (2, counts[0] + (high - low - 1) * counts[1]),
            index if low < index && index < high => (1, counts[0] + (index - low - 1) * counts[1]),
            other => {
                let found = format!("{function} on channels {low} to {high}");
                return Err(Unknown::new("channel", other).found(found));
            }
        };
        let grain = GRAINS[function.protocol as usize] / function.data_type.size();
        let chunk = fields.chunk_grains[which].size(work) * grain;
        // NCCL sets no size where the network moves everything at once (`rounds`).
        let is_open = registration == Registration::Offloaded && function.kind == Kind::AllGather;
        if chunk == 0 && counts[which] != 0 && !is_open {
            return Err(Unknown::new("chunk size", 0).found(function));
        }
        Ok(Part { offset, count: counts[which], chunk: chunk.max(1) })
    }

    fn argument(&self, function: Function, work: &[u8]) -> u64 {
        let fields = &self.layout.collective;
        let is_pointer = fields.argument_is_pointer.is_set(work);
        super::argument(fields.argument.get(work), is_pointer, function.data_type.size())
    }

    /// Returns the tasks of a send and a receive.
    fn p2p(&mut self, channel: &Channel, place: u32, work: &[u8]) -> Result<Vec<Task>, Unknown> {
        let fields = self.layout.p2p.clone();
        let (send, receive) = (&fields.send, &fields.receive);
        let channels = fields.channels.size(work);
        if !channels.is_power_of_two() {
            return Err(Unknown::new("number of channels", channels).found("send and receive"));
        }
        let base = fields.channel_base.size(work);
        let part = self.program.part_order.part(channel.index, base, channels);
        if send.rank.signed(work) == self.comm.rank as i64 {
            return Ok(self.copy(place, part, work));
        }
        let mut tasks = Vec::new();
        for (half, direction) in [(send, Direction::Send), (receive, Direction::Receive)] {
            if let Some(message) = self.message(half, direction, place, part, work)? {
                tasks.push(message.task(&self.comm, channel)?);
            }
        }
        Ok(tasks)
    }

    /// Returns the part of a send to this rank itself.
    fn copy(&mut self, place: u32, part: usize, work: &[u8]) -> Vec<Task> {
        let (send, receive) = (&self.layout.p2p.send, &self.layout.p2p.receive);
        let (bytes, parts) = (send.bytes.size(work), send.channels.size(work));
        if part >= parts {
            return Vec::new();
        }
        let range = part_range(bytes, parts, part);
        let name = || "send to this rank".to_owned();
        self.coverage.add((place, true), name, bytes, [range.clone()].into_iter());
        let at = |field: layout::Field| Address::new(field.size(work)).plus(range.start);
        vec![Task::Copy { from: at(send.buffer), to: at(receive.buffer), bytes: range.len() }]
    }

    fn message(
        &mut self,
        half: &P2pHalf,
        direction: Direction,
        place: u32,
        part: usize,
        work: &[u8],
    ) -> Result<Option<Message>, Unknown> {
        let parts = half.channels.size(work);
        if part >= parts {
            return Ok(None);
        }
        let (peer, bytes) = (half.rank.signed(work), half.bytes.size(work));
        let range = part_range(bytes, parts, part);
        let is_send = direction == Direction::Send;
        let name = || format!("{direction:?} with rank {peer}");
        self.coverage.add((place, is_send), name, bytes, [range.clone()].into_iter());
        let is_ll = half.is_ll.is_set(work);
        let registration = match half.net_registered.is_set(work) && !is_ll {
            false => Registration::None,
            true if half.whole => Registration::Whole,
            true => Registration::P2p,
        };
        Ok(Some(Message {
            direction,
            peer: usize::try_from(peer).map_err(|_| Unknown::new("peer", peer))?,
            buffer: Address::new(half.buffer.size(work)).plus(range.start),
            bytes: range.len(),
            chunk: match registration {
                Registration::None => decode_chunk(half.chunk.get(work) as u8),
                Registration::Whole => range.len().max(1),
                _ => REGISTERED_STEP,
            },
            protocol: if is_ll { Protocol::Ll } else { Protocol::Simple },
            registration,
        }))
    }
}

fn is_profiled(field: Option<layout::Field>, work: &[u8]) -> bool {
    field.is_some_and(|field| field.is_set(work))
}

impl Program {
    /// Returns an operator with its argument.
    pub(super) fn reduction(&self, function: Function, argument: u64) -> Reduction {
        Reduction {
            data_type: function.data_type,
            operator: function.operator,
            argument,
            division: self.functions.division,
        }
    }

    /// Returns the rounds of a part.
    fn rounds(
        &self,
        function: Function,
        registration: Registration,
        part: Part,
        ranks: usize,
    ) -> Vec<crate::collective::Round> {
        let is_ring = function.algorithm == super::function::Algorithm::Ring;
        match function.kind {
            Kind::AllReduce if is_ring => {
                let unit = 16 / function.data_type.size();
                part.ring(ranks, |left| left.div_ceil(ranks).next_multiple_of(unit))
            }
            Kind::AllGather if registration == Registration::Offloaded => {
                Part { chunk: REGISTERED_STEP, ..part }.single()
            }
            _ => part.single(),
        }
    }
}
