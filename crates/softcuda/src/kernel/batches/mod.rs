//! Launches from 2.22 on: arguments, then batches that name works, then perhaps the works.

mod collective;
mod p2p;

use std::{collections::VecDeque, sync::Arc};

use super::{
    Program,
    block::{Block, Group},
    coverage::Coverage,
    device::{Channel, Communicator},
    function::Kind,
};
use crate::{
    Unknown,
    address::Address,
    collective::gather_v,
    layout::{self, Batches},
};

/// Kinds of works, in NCCL's order.
const P2P: u64 = 0;
const COLLECTIVE: u64 = 1;
const REGISTERED_COLLECTIVE: u64 = 2;
const BROADCAST: u64 = 3;
/// Places of works that a batch names, at most.
const PLACES: u32 = 64;

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
            if jump == 0 {
                return Err(Unknown::new("batch", *index).found("the batch extends itself"));
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
}

fn is_profiled(field: Option<layout::Field>, work: &[u8]) -> bool {
    field.is_some_and(|field| field.is_set(work))
}
