//! Builds launches of the generation of batches.

use super::{Buffers, Case};
use crate::{
    address::Address,
    kernel::{Launch, Params, Program},
    layout::{Batches, Layout, Work},
    testing::World,
};

pub(super) fn program(layout: Layout, release: i32) -> Program {
    let table: Vec<u8> = (0..1997i32).flat_map(i32::to_le_bytes).collect();
    Program::of_release(layout, release, Some(&table)).expect("a known table")
}

pub(super) fn fields(world: &World) -> &Batches {
    match &world.layout.work {
        Work::Batches(batches) => batches,
        Work::Lists(_) => panic!("a layout of batches"),
    }
}

/// Where a test puts the works.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Store {
    Arguments,
    Fifo,
    Buffer,
}

/// Batches of one block after the other, with the works that they name.
pub(super) struct Builder<'a> {
    fields: &'a Batches,
    batches: Vec<Vec<u8>>,
    works: Vec<u8>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(fields: &'a Batches) -> Self {
        Self { fields, batches: Vec::new(), works: Vec::new() }
    }

    /// Adds a batch. `places` name works from `offset` on.
    pub(super) fn batch(&mut self, kind: u64, function: u64, offset: usize, places: u64) -> &mut Vec<u8> {
        let fields = &self.fields.batch;
        let mut batch = vec![0; fields.size];
        fields.kind.put(&mut batch, kind);
        fields.function.put(&mut batch, function);
        fields.offset.put(&mut batch, offset as u64);
        fields.places.put(&mut batch, places);
        self.batches.push(batch);
        self.batches.last_mut().expect("just pushed")
    }

    pub(super) fn work(&mut self, work: &[u8]) -> usize {
        let offset = self.works.len();
        self.works.extend_from_slice(work);
        offset
    }

    /// Returns the launch for blocks on the channels of a mask.
    pub(super) fn launch(mut self, world: &mut World, rank: usize, mask: u64, store: Store) -> Launch {
        let fields = self.fields.clone();
        let mut arguments = vec![0; fields.arguments];
        fields.communicator.put(&mut arguments, world.communicators[rank].get() as u64);
        fields.channel_mask.put(&mut arguments, mask);
        let behind = fields.arguments + self.batches.len() * fields.batch.size;
        let memory = match store {
            Store::Arguments => {
                self.batches.iter_mut().for_each(|batch| {
                    let offset = fields.batch.offset.get(batch) + behind as u64;
                    fields.batch.offset.put(batch, offset);
                });
                Address::default()
            }
            Store::Fifo | Store::Buffer => world.arena.with(&self.works),
        };
        fields.storage.put(&mut arguments, store as u64);
        // A FIFO is a power of two of bytes; the works lie at its beginning.
        fields.work_mask.put(&mut arguments, 0xffff);
        fields.work_buffer.put(&mut arguments, memory.get() as u64);
        arguments.extend(self.batches.concat());
        if store == Store::Arguments {
            arguments.extend(self.works);
        }
        let kernel = "_Z30ncclDevKernel_Test24ncclDevKernelArgsStorage".to_owned();
        Launch { kernel, blocks: mask.count_ones(), params: Params::Buffer(arguments) }
    }
}

/// Returns the descriptor of a collective that is split evenly among channels.
pub(super) fn collective(
    fields: &Batches,
    case: &Case,
    buffers: Buffers,
    channels: usize,
    grains: u64,
) -> Vec<u8> {
    let work = &fields.collective;
    let mut bytes = vec![0; work.size];
    let each = case.elements() / channels;
    let counts = if channels == 1 {
        [case.elements(), 0, 0]
    } else {
        [each, each, case.elements() - (channels - 1) * each]
    };
    work.channel_high.put(&mut bytes, channels as u64 - 1);
    work.root.put(&mut bytes, case.root as u64);
    work.input.put(&mut bytes, buffers.input.get() as u64);
    work.output.put(&mut bytes, buffers.output.get() as u64);
    work.argument.put(&mut bytes, case.argument);
    for (i, count) in counts.into_iter().enumerate() {
        work.counts[i].put(&mut bytes, count as u64);
        work.chunk_grains[i].put(&mut bytes, grains);
    }
    bytes
}
