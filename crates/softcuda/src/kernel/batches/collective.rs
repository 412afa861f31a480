//! Collectives of a batch.

use super::{Reader, layout};
use crate::{
    Unknown,
    address::Address,
    collective::{Collective, REGISTERED_STEP, Round, rounds::Part},
    kernel::{
        Program, argument,
        device::Channel,
        function::{Algorithm, Function, Kind},
    },
    protocol::{Protocol, Registration},
};

/// Bytes of a grain of chunks, by protocol.
const GRAINS: [usize; 3] = [16, 1920, 512];

impl Reader<'_> {
    pub(super) fn collective(
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
        argument(fields.argument.get(work), is_pointer, function.data_type.size())
    }
}

impl Program {
    /// Returns the rounds of a part.
    fn rounds(&self, function: Function, registration: Registration, part: Part, ranks: usize) -> Vec<Round> {
        let is_ring = function.algorithm == Algorithm::Ring;
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
