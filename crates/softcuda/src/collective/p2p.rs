//! Sends and receives.

use std::ops::Range;

use super::{REGISTERED_STEP, Task, task::Plan};
use crate::{
    Unknown,
    address::Address,
    kernel::device::{Channel, Communicator},
    protocol::{Direction, Primitive, Protocol, Registration, Terms},
    reduce::Reduction,
};

/// The connections of a peer that sends and receives use.
const CONNECTION: usize = 1;
/// Parts begin at multiples of this number of bytes.
const PART_ALIGNMENT: usize = 4096;

/// A channel's part of a send or of a receive.
#[derive(Debug, Clone)]
pub(crate) struct Message {
    pub(crate) direction: Direction,
    pub(crate) peer: usize,
    pub(crate) buffer: Address,
    pub(crate) bytes: usize,
    pub(crate) chunk: usize,
    pub(crate) protocol: Protocol,
    pub(crate) registration: Registration,
}

impl Message {
    /// Returns the task.
    pub(crate) fn task(&self, comm: &Communicator, channel: &Channel) -> Result<Task, Unknown> {
        let connection = channel.connection(self.peer, self.direction, CONNECTION)?;
        let connections = vec![connection];
        let (receives, sends) = match self.direction {
            Direction::Send => (Vec::new(), connections),
            Direction::Receive => (connections, Vec::new()),
        };
        let simple_step = match self.registration {
            Registration::None => comm.p2p_step_bytes(),
            _ => REGISTERED_STEP,
        };
        let step_bytes = match self.protocol {
            Protocol::Simple => comm.p2p_step_bytes(),
            Protocol::Ll | Protocol::Ll128 => comm.step_bytes(self.protocol),
        };
        let terms = Terms {
            protocol: self.protocol,
            slices: 1,
            slice_steps: 1,
            slice_step_bytes: simple_step,
            step_bytes,
            reduction: Reduction::COPY,
            input: self.buffer,
            output: self.buffer,
            registration: self.registration,
        };
        if self.chunk == 0 {
            return Err(Unknown::new("chunk size", 0).found("send or receive"));
        }
        let operations = Box::new(self.operations());
        Ok(Task::Waiting(Plan { comm: comm.clone(), terms, receives, sends, operations }))
    }

    /// Returns one operation for each chunk, and one for an empty message.
    fn operations(&self) -> impl Iterator<Item = Primitive> + Send + 'static {
        let (bytes, chunk, direction) = (self.bytes, self.chunk, self.direction);
        (0..bytes.div_ceil(chunk).max(1)).map(move |index| {
            let offset = index * chunk;
            let operation = Primitive::of(chunk.min(bytes - offset));
            match direction {
                Direction::Send => operation.input(offset).send(),
                Direction::Receive => operation.receive().output(offset),
            }
        })
    }
}

/// The order in which channels have the parts of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PartOrder {
    /// With reversed bits: up to 2.27.
    Reversed,
    /// In the order of channels: from 2.28 on.
    Linear,
}

impl PartOrder {
    /// Returns the part of a channel. `channels`, the number of channels of a pair of ranks, is a
    /// power of two.
    pub(crate) const fn part(self, channel: usize, base: usize, channels: usize) -> usize {
        let part = channel.wrapping_sub(base) & (channels - 1);
        match self {
            Self::Linear => part,
            Self::Reversed if channels == 1 => 0,
            Self::Reversed => part.reverse_bits() >> (usize::BITS - channels.trailing_zeros()),
        }
    }
}

/// Returns the bytes of one of the parts of a message.
pub(crate) fn part_range(bytes: usize, parts: usize, part: usize) -> Range<usize> {
    let length = bytes.div_ceil(parts).next_multiple_of(PART_ALIGNMENT);
    (part * length).min(bytes)..((part + 1) * length).min(bytes)
}

/// Returns the number that a float of eight bits without sign stands for: five bits of exponent,
/// three of mantissa.
pub(crate) const fn decode_chunk(bits: u8) -> usize {
    let (exponent, mantissa) = (bits >> 3, (bits & 7) as usize);
    match exponent {
        0 => mantissa,
        _ => (mantissa | 8) << (exponent - 1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_have_the_parts_in_the_order_of_the_release() {
        let parts =
            |order: PartOrder| (3..11).map(move |channel| order.part(channel, 3, 8)).collect::<Vec<_>>();
        assert_eq!(parts(PartOrder::Linear), [0, 1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(parts(PartOrder::Reversed), [0, 4, 2, 6, 1, 5, 3, 7]);
        assert_eq!(PartOrder::Linear.part(1, 5, 8), 4, "channels wrap around");
        assert_eq!(PartOrder::Reversed.part(7, 0, 1), 0);
    }

    #[test]
    fn parts_begin_at_pages_and_may_be_empty() {
        let ranges: Vec<_> = (0..4).map(|part| part_range(9000, 4, part)).collect();
        assert_eq!(ranges, [0..4096, 4096..8192, 8192..9000, 9000..9000]);
        assert_eq!(part_range(0, 1, 0), 0..0);
    }

    #[test]
    fn chunk_sizes_are_floats_of_eight_bits() {
        assert_eq!(decode_chunk(0), 0);
        assert_eq!(decode_chunk(7), 7);
        assert_eq!(decode_chunk(1 << 3), 8);
        assert_eq!(decode_chunk(1 << 3 | 7), 15);
        assert_eq!(decode_chunk(11 << 3), 8192);
        assert_eq!(decode_chunk(17 << 3 | 4), 786_432);
    }
}
