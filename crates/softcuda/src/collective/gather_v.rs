//! All-gather of parts of different sizes: NCCL joins broadcasts of one group to it.

use super::{Task, task::Plan};
use crate::{
    Unknown,
    address::Address,
    kernel::device::{Channel, Communicator},
    protocol::{Direction, Primitive, Protocol, Registration, Terms},
    reduce::Reduction,
};

/// A channel's part of one root's data.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Part {
    /// Distance from the root in the ring.
    pub(crate) depth: usize,
    pub(crate) input: Address,
    pub(crate) output: Address,
    /// Bytes before the part.
    pub(crate) offset: usize,
    pub(crate) bytes: usize,
    pub(crate) chunk: usize,
}

impl Part {
    /// Returns the operation on a chunk. The terms' buffers begin at address 0.
    fn operation(&self, ranks: usize, chunk: usize) -> Option<Primitive> {
        let start = chunk * self.chunk;
        let count = self.bytes.checked_sub(start).filter(|left| *left > 0)?.min(self.chunk);
        let at = |buffer: Address| buffer.plus(self.offset + start).get();
        let operation = Primitive::of(count);
        Some(match self.depth {
            0 if self.input == self.output => operation.input(at(self.input)).send(),
            0 => operation.input(at(self.input)).output(at(self.output)).send(),
            depth if depth + 1 == ranks => operation.receive().output(at(self.output)),
            _ => operation.receive().output(at(self.output)).send(),
        })
    }
}

/// Returns the task: a chunk of each part, then the next chunks, around the ring.
pub(crate) fn task(
    parts: Vec<Part>,
    protocol: Protocol,
    comm: &Communicator,
    channel: &Channel,
) -> Result<Task, Unknown> {
    if parts.iter().any(|part| part.chunk == 0) {
        return Err(Unknown::new("chunk size", 0).found("all-gather of different sizes"));
    }
    let ranks = comm.ranks;
    let chunks = parts.iter().map(|part| part.bytes.div_ceil(part.chunk)).max().unwrap_or(0);
    let operations = (0..chunks).flat_map(move |chunk| {
        let operations = parts.iter().filter_map(|part| part.operation(ranks, chunk));
        operations.collect::<Vec<_>>()
    });
    let everything = Address::new(0);
    let terms = Terms {
        protocol,
        slices: 1,
        slice_steps: 1,
        slice_step_bytes: comm.step_bytes(Protocol::Simple),
        step_bytes: comm.step_bytes(protocol),
        reduction: Reduction::COPY,
        input: everything,
        output: everything,
        registration: Registration::None,
    };
    Ok(Task::Waiting(Plan {
        comm: comm.clone(),
        terms,
        receives: vec![channel.connection(channel.ring.previous, Direction::Receive, 0)?],
        sends: vec![channel.connection(channel.ring.next, Direction::Send, 0)?],
        operations: Box::new(operations),
    }))
}
