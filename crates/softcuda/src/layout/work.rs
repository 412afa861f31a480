//! The layout of launches and works, by generation.

use super::Field;

/// The form of work, by generation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Work {
    /// Lists of `ncclWork`: 2.18 to 2.21.
    Lists(Box<Lists>),
    /// Batches of works: from 2.22 on.
    Batches(Box<Batches>),
}

/// `ncclWork` and its elements: 2.18 to 2.21.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Lists {
    /// Bytes of an `ncclWork`.
    pub size: usize,
    /// Distance to the next one, in works from the head.
    pub next: Field,
    /// What goes to [`fifo_done`](super::Channel::fifo_done) of the channel.
    pub done_acks: Field,
    /// The function.
    pub function: Field,
    /// Whether it is the last one of its block.
    pub is_last: Field,
    /// Whether it lies in the FIFO.
    pub in_fifo: Field,
    /// 1 collective, 2 send and receive, 3 registered collective.
    pub kind: Field,
    /// Offset of the elements.
    pub elements: usize,
    /// Offset of a collective in a registered element.
    pub registered: usize,
    /// Bytes of a registered element.
    pub registered_size: usize,
    /// An element of a collective.
    pub collective: ListCollective,
    /// An element of a send or a receive.
    pub p2p: ListP2p,
}

/// `ncclWorkElem`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListCollective {
    /// Bytes of an element.
    pub size: usize,
    /// Whether the element is in use.
    pub is_used: Field,
    /// Whether the operator's argument is a pointer to it.
    pub argument_is_pointer: Field,
    /// Threads of the block, in warps.
    pub warps: Field,
    /// The input.
    pub input: Field,
    /// The output.
    pub output: Field,
    /// Number of elements.
    pub count: Field,
    /// The root.
    pub root: Field,
    /// The operator's argument.
    pub argument: Field,
    /// The channel's part.
    pub part: ListPart,
}

/// The channel's part of a collective.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ListPart {
    /// The kernel computes it from the channel's number: 2.18 and 2.19.
    Computed {
        /// Elements of the last chunk, or of every chunk of a tree.
        last_chunk: Field,
        /// The channel's number.
        channel: Field,
        /// Number of channels.
        channels: Field,
    },
    /// The host computes it: 2.20 and 2.21.
    Given {
        /// Elements of a chunk.
        chunk: Field,
        /// Elements of the part.
        count: Field,
        /// Elements of the last round's chunk.
        last_chunk: Field,
        /// The part's first element.
        offset: Field,
    },
}

/// `ncclWorkElemP2p`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListP2p {
    /// Bytes of an element.
    pub size: usize,
    /// The peer.
    pub peer: Field,
    /// 0 LL, 2 Simple.
    pub protocol: Field,
    /// 0 for none.
    pub kind: Field,
    /// Number of elements, in the first one.
    pub groups: Field,
    /// Whether the buffer is registered; from 2.20 on.
    pub registered: Option<Field>,
    /// The buffer's address.
    pub buffer: [Field; 2],
    /// Bytes.
    pub count: [Field; 2],
    /// Bytes of a chunk.
    pub chunk: Field,
}

/// `ncclDevKernelArgs`, batches and works: from 2.22 on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batches {
    /// Bytes of the arguments, after which the batches follow.
    pub arguments: usize,
    /// The communicator.
    pub communicator: Field,
    /// The channels, one for each block.
    pub channel_mask: Field,
    /// Where the works are: 0 arguments, 1 FIFO, 2 a buffer.
    pub storage: Field,
    /// Mask of offsets in the FIFO.
    pub work_mask: Field,
    /// The FIFO or the buffer.
    pub work_buffer: Field,
    /// A batch.
    pub batch: Batch,
    /// A collective.
    pub collective: Collective,
    /// Bytes of a registered collective, which begins with a collective.
    pub registered_size: usize,
    /// A send and a receive.
    pub p2p: P2p,
    /// A part of an all-gather of parts of different sizes; from 2.29 on.
    pub broadcast: Option<Broadcast>,
}

/// `ncclDevWorkBatch`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Bytes of a batch.
    pub size: usize,
    /// Distance to the next batch of the block; 0 for none.
    pub next_jump: Field,
    /// Whether the next batch belongs to the same group.
    pub next_extends: Field,
    /// 0 send and receive, 1 collective, 2 registered collective, 3 broadcast of many.
    pub kind: Field,
    /// The function.
    pub function: Field,
    /// Offset of the first work.
    pub offset: Field,
    /// Which of the following places have a work.
    pub places: Field,
}

/// `ncclDevWorkColl`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Collective {
    /// Bytes of a work.
    pub size: usize,
    /// The first channel.
    pub channel_low: Field,
    /// The last channel.
    pub channel_high: Field,
    /// Whether the operator's argument is a pointer to it.
    pub argument_is_pointer: Field,
    /// Whether the network uses the user's buffers; from 2.24 on.
    pub net_registered: Option<Field>,
    /// Whether each node has one rank; from 2.24 on.
    pub one_rank_per_node: Option<Field>,
    /// Whether the kernel reports to the profiler; from 2.26.5 on.
    pub profiled: Option<Field>,
    /// The root.
    pub root: Field,
    /// The input.
    pub input: Field,
    /// The output.
    pub output: Field,
    /// Elements of the first, a middle and the last channel.
    pub counts: [Field; 3],
    /// Chunk of the first, a middle and the last channel, in the protocol's grains.
    pub chunk_grains: [Field; 3],
    /// The operator's argument.
    pub argument: Field,
}

/// `ncclDevWorkP2p`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct P2p {
    /// Bytes of a work.
    pub size: usize,
    /// Number of channels of a pair of ranks, at most.
    pub channels: Field,
    /// The first of them.
    pub channel_base: Field,
    /// Whether the kernel reports to the profiler; from 2.26.5 on.
    pub profiled: Option<Field>,
    /// The send.
    pub send: P2pHalf,
    /// The receive.
    pub receive: P2pHalf,
}

/// The send or the receive of a [`P2p`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct P2pHalf {
    /// The buffer.
    pub buffer: Field,
    /// Bytes.
    pub bytes: Field,
    /// The peer.
    pub rank: Field,
    /// Number of channels in use.
    pub channels: Field,
    /// Bytes of a chunk, as a float of eight bits.
    pub chunk: Field,
    /// Whether the protocol is LL.
    pub is_ll: Field,
    /// Whether the network uses the user's buffer.
    pub net_registered: Field,
    /// Whether the whole of a registered buffer is one step: 2.22 and 2.23.
    pub whole: bool,
}

/// `ncclDevWorkBcast`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Broadcast {
    /// Bytes of a work.
    pub size: usize,
    /// Distance from the root in the ring.
    pub ring_depth: Field,
    /// Bytes of a chunk.
    pub chunk: Field,
    /// The input, if this rank is the root.
    pub input: Field,
    /// The output.
    pub output: Field,
    /// Bytes.
    pub bytes: Field,
    /// Bytes before the part.
    pub done: Field,
}
