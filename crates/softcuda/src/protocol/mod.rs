//! The protocols by which kernels pass data: Simple, LL and LL128, as state machines that are
//! polled. A thread runs all blocks of all kernels; no block waits in a call.

mod connection;
mod ll;
mod ll128;
mod simple;
mod step;
#[cfg(test)]
mod tests;

use std::fmt;

use connection::Connection;
pub use step::StepConnection;

use crate::{Unknown, address::Address, layout, reduce::Reduction};

/// Connections of one direction, at most: the children of a tree.
const PEERS: usize = 3;

/// A protocol, in NCCL's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// Lines of 8 bytes of data with two flags.
    Ll = 0,
    /// Lines of 120 bytes of data with one flag.
    Ll128 = 1,
    /// Buffers with counters.
    Simple = 2,
}

impl Protocol {
    /// Every protocol, in NCCL's order.
    pub const ALL: [Self; 3] = [Self::Ll, Self::Ll128, Self::Simple];
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ll => "LL",
            Self::Ll128 => "LL128",
            Self::Simple => "Simple",
        })
    }
}

/// What a call of a state machine did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is complete.
    Done,
    /// It moved data, and waits now.
    Moved,
    /// It waits for a peer or a proxy thread.
    Waiting,
}

/// The direction of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// From this rank.
    Send,
    /// To this rank.
    Receive,
}

/// One operation on all connections: receive, reduce, copy, send. Offsets and counts are elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Primitive {
    count: usize,
    input: Option<usize>,
    output: Option<usize>,
    receives: bool,
    sends: bool,
    finishes: bool,
}

impl Primitive {
    /// Returns an operation on this many elements that does nothing yet.
    pub const fn of(count: usize) -> Self {
        Self { count, input: None, output: None, receives: false, sends: false, finishes: false }
    }

    /// Reads the input.
    #[must_use]
    pub const fn input(mut self, offset: usize) -> Self {
        self.input = Some(offset);
        self
    }

    /// Receives from every connection, and reduces.
    #[must_use]
    pub const fn receive(mut self) -> Self {
        self.receives = true;
        self
    }

    /// Completes the reduction.
    #[must_use]
    pub const fn finish(mut self) -> Self {
        self.finishes = true;
        self
    }

    /// Writes the output.
    #[must_use]
    pub const fn output(mut self, offset: usize) -> Self {
        self.output = Some(offset);
        self
    }

    /// Sends to every connection.
    #[must_use]
    pub const fn send(mut self) -> Self {
        self.sends = true;
        self
    }

    /// Returns where the network finds the elements in a registered output.
    fn registered_place(&self) -> usize {
        self.output.or(self.input).unwrap_or(0)
    }
}

/// How a work's buffers are registered with the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Registration {
    /// They are not.
    None,
    /// A send's or a receive's buffer: the kernel moves nothing.
    P2p,
    /// The same, as one step: 2.22 and 2.23, whose connections do not show that the network
    /// reaches the user's buffers.
    Whole,
    /// A collective's: the network reads and writes the output, the kernel reduces in it.
    Collective,
    /// A collective's with one rank on each node: the kernel moves nothing.
    Offloaded,
}

/// What the operations of a work have in common.
#[derive(Debug, Clone, Copy)]
pub struct Terms {
    /// The protocol.
    pub protocol: Protocol,
    /// Slices of a chunk in Simple.
    pub slices: usize,
    /// Steps of a slice in Simple.
    pub slice_steps: usize,
    /// Bytes of a step of Simple by which chunks are cut into slices.
    pub slice_step_bytes: usize,
    /// Bytes of a step of the connection's buffers, if it does not state them.
    pub step_bytes: usize,
    /// Types and operator.
    pub reduction: Reduction,
    /// The input.
    pub input: Address,
    /// The output.
    pub output: Address,
    /// The registration of input and output.
    pub registration: Registration,
}

/// Connections and the operation that runs on them.
#[derive(Debug)]
pub struct Primitives {
    terms: Terms,
    receives: Vec<Connection>,
    sends: Vec<Connection>,
    current: Option<Current>,
}

/// The state of the running operation.
#[derive(Debug)]
struct Current {
    primitive: Primitive,
    /// Whether the sizes are announced (LL and LL128).
    started: bool,
    /// Slices (Simple) or lines (LL and LL128) that are done.
    done: usize,
    /// Elements that are done.
    elements: usize,
}

impl Primitives {
    /// Opens connections.
    ///
    /// # Safety
    /// The addresses are connections of a communicator that lives until this value is dropped, with
    /// this layout, and no other kernel uses them until then. Input and output are memory, as large
    /// as the operations that will be started need.
    pub unsafe fn open(
        terms: Terms,
        layout: &layout::Connection,
        receives: &[Address],
        sends: &[Address],
    ) -> Result<Self, Unknown> {
        let peers = receives.len().max(sends.len());
        if peers > PEERS {
            return Err(Unknown::new("number of peers", peers).found(terms.protocol));
        }
        let multiple = match terms.protocol {
            Protocol::Simple => (terms.slices * terms.slice_steps) as u64,
            Protocol::Ll | Protocol::Ll128 => 1,
        };
        let open = |addresses: &[Address], direction| -> Result<Vec<Connection>, Unknown> {
            let opening = connection::Opening {
                protocol: terms.protocol,
                direction,
                step_bytes: terms.step_bytes,
                multiple,
                registration: terms.registration,
            };
            // SAFETY: the caller's promise.
            addresses.iter().map(|&at| unsafe { Connection::open(at, layout, opening) }).collect()
        };
        let receives = open(receives, Direction::Receive)?;
        let sends = open(sends, Direction::Send)?;
        Ok(Self { terms, receives, sends, current: None })
    }

    /// Starts an operation. The one before is done.
    pub fn start(&mut self, primitive: Primitive) {
        self.current = Some(Current { primitive, started: false, done: 0, elements: 0 });
    }

    /// Advances the running operation as far as it goes without waiting.
    pub fn advance(&mut self) -> Result<Progress, Unknown> {
        let Some(mut current) = self.current.take() else { return Ok(Progress::Done) };
        let progress = match self.terms.protocol {
            Protocol::Simple => self.advance_simple(&mut current),
            Protocol::Ll => self.advance_ll(&mut current),
            Protocol::Ll128 => self.advance_ll128(&mut current),
        }?;
        if progress != Progress::Done {
            self.current = Some(current);
        }
        Ok(progress)
    }

    /// Closes the connections, once the proxy threads have sent the user's buffers: the user may
    /// write to them as soon as the kernel has ended.
    pub fn close(&mut self) -> Progress {
        let steps = self.terms.slice_steps as u64;
        if self.sends.iter().any(|send| send.registered && !send.is_sent(steps)) {
            return Progress::Waiting;
        }
        self.receives.iter().chain(&self.sends).for_each(Connection::close);
        Progress::Done
    }

    /// Returns the running operation's connections for receives.
    fn receives(&self, current: &Current) -> &[Connection] {
        if current.primitive.receives { &self.receives } else { &[] }
    }

    /// Returns the running operation's connections for sends.
    fn sends(&self, current: &Current) -> &[Connection] {
        if current.primitive.sends { &self.sends } else { &[] }
    }

    fn input_at(&self, element: usize) -> Address {
        self.terms.input.plus(element * self.terms.reduction.size())
    }

    fn output_at(&self, element: usize) -> Address {
        self.terms.output.plus(element * self.terms.reduction.size())
    }

    /// Fails unless a step's buffer is as large as what goes into it.
    fn check_step(&self, current: &Current, bytes: usize, steps: usize) -> Result<(), Unknown> {
        let connections = self.receives(current).iter().chain(self.sends(current));
        let too_small = connections.filter(|c| !c.registered).find(|c| bytes > c.step_bytes * steps);
        let Some(connection) = too_small else { return Ok(()) };
        let room = connection.step_bytes * steps;
        Err(Unknown::new("chunk size", bytes)
            .found(format!("{}, whose steps have {room} bytes", self.terms.protocol)))
    }
}

/// Advances a protocol of lines: announces the sizes once there is credit, then moves lines while
/// they arrive, then counts the step. LL and LL128 are the two.
trait Lines {
    /// Returns the lines and the bytes on the wire of a step with this many bytes of data.
    fn wire(data: usize) -> (usize, usize);
    /// Moves one line. Returns whether it has arrived.
    fn move_line(primitives: &Primitives, current: &Current, line: usize, data: usize) -> bool;
    /// Counts a step that was sent.
    fn post_send(connection: &mut Connection, lines: usize);
}

impl Primitives {
    fn advance_lines<L: Lines>(&mut self, current: &mut Current) -> Result<Progress, Unknown> {
        let data = current.primitive.count * self.terms.reduction.size();
        let (lines, wire) = L::wire(data);
        let mut moved = false;
        if !current.started {
            self.check_step(current, wire, 1)?;
            if !self.sends(current).iter().all(|send| send.has_credit(1)) {
                return Ok(Progress::Waiting);
            }
            self.sends(current).iter().for_each(|send| send.announce(wire));
            current.started = true;
        }
        while current.done < lines {
            if !L::move_line(self, current, current.done, data) {
                return Ok(if moved { Progress::Moved } else { Progress::Waiting });
            }
            current.done += 1;
            moved = true;
        }
        if current.primitive.receives {
            self.receives.iter_mut().for_each(|receive| receive.post_receive(1));
        }
        if current.primitive.sends {
            self.sends.iter_mut().for_each(|send| L::post_send(send, lines));
        }
        Ok(Progress::Done)
    }

    /// Combines a line of the input with the lines that have arrived. `data` begins as zero.
    fn combine_line(&self, current: &Current, offset: usize, arrived: &[&[u8]], data: &mut [u8]) {
        let mut rest = arrived;
        if let Some(input) = current.primitive.input {
            // SAFETY: the operation's part of the input (see `open`).
            unsafe { self.input_at(input).plus(offset).read_into(data) };
            self.terms.reduction.prepare(data);
        } else if let Some((first, others)) = rest.split_first() {
            data.copy_from_slice(&first[..data.len()]);
            rest = others;
        }
        for line in rest {
            self.terms.reduction.accumulate(data, &line[..data.len()]);
        }
        if current.primitive.finishes {
            self.terms.reduction.finish(data);
        }
    }

    /// Writes a line to the output.
    fn output_line(&self, current: &Current, offset: usize, data: &[u8]) {
        if let Some(output) = current.primitive.output {
            // SAFETY: the operation's part of the output (see `open`).
            unsafe { self.output_at(output).plus(offset).write_from(data) };
        }
    }
}
