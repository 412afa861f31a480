//! Layouts of both generations for tests, made by hand after 2.32.3 and 2.18.3.

use crate::layout::{
    Batch, Batches, Broadcast, Channel, Collective, Communicator, Connection, Field, Fifo, Layout,
    ListCollective, ListP2p, ListPart, Lists, P2p, P2pHalf, Work,
};

const fn word(offset: usize) -> Field {
    Field::whole(offset, 4)
}

const fn long(offset: usize) -> Field {
    Field::whole(offset, 8)
}

const fn byte(offset: usize) -> Field {
    Field::whole(offset, 1)
}

const fn bits(offset: usize, size: usize, low: u32, width: u32) -> Field {
    Field { offset, size, low, width }
}

/// Returns a layout like that of 2.32.3.
pub(crate) fn of_batches() -> Layout {
    Layout {
        communicator: Communicator {
            rank: word(0),
            ranks: word(4),
            buffer_sizes: 16,
            p2p_chunk: Some(word(28)),
            abort_flag: long(48),
            work_consumed: None,
            profiler: None,
            channels: 96,
        },
        channel: Channel {
            size: 368,
            peers: long(0),
            previous: word(8),
            next: word(12),
            user_ranks: long(16),
            index: word(32),
            up: word(44),
            down: 48,
            fifo_done: long(352),
            work_counter: Some(long(360)),
        },
        connection: Connection {
            size: 152,
            sends: 0,
            receives: 304,
            buffers: 0,
            tail: long(48),
            head: long(56),
            flags: word(64),
            step: long(104),
            step_size: Some(word(72)),
            fifo: Fifo::Entries {
                entries: long(96),
                size: 32,
                mode: word(0),
                offset: long(8),
                bytes: long(16),
            },
        },
        work: Work::Batches(Box::new(batches())),
    }
}

fn batches() -> Batches {
    let half = |shift: usize, rank: usize, channels: usize, low: u32| P2pHalf {
        buffer: long(shift),
        bytes: long(16 + shift),
        rank: word(rank),
        channels: byte(channels),
        chunk: byte(channels + 2),
        is_ll: bits(46, 1, low, 1),
        net_registered: bits(46, 1, low + 2, 1),
        whole: false,
    };
    Batches {
        arguments: 32,
        communicator: long(0),
        channel_mask: long(8),
        storage: byte(16),
        work_mask: word(20),
        work_buffer: long(24),
        batch: Batch {
            size: 16,
            next_jump: bits(0, 4, 0, 14),
            next_extends: bits(0, 4, 14, 1),
            kind: bits(0, 4, 15, 2),
            function: bits(0, 4, 17, 11),
            offset: word(4),
            places: long(8),
        },
        collective: Collective {
            size: 96,
            channel_low: bits(0, 4, 0, 8),
            channel_high: bits(0, 4, 8, 8),
            argument_is_pointer: bits(0, 4, 24, 1),
            net_registered: Some(bits(0, 4, 26, 1)),
            one_rank_per_node: Some(bits(0, 4, 30, 1)),
            profiled: Some(bits(0, 4, 31, 1)),
            root: word(4),
            output: long(8),
            input: long(16),
            counts: [long(56), long(64), long(72)],
            chunk_grains: [bits(80, 8, 0, 21), bits(80, 8, 21, 21), bits(80, 8, 42, 21)],
            argument: long(88),
        },
        registered_size: 288,
        p2p: P2p {
            size: 48,
            channels: byte(40),
            channel_base: byte(41),
            profiled: Some(bits(46, 1, 6, 1)),
            send: half(0, 32, 42, 0),
            receive: half(8, 36, 43, 1),
        },
        broadcast: Some(Broadcast {
            size: 48,
            ring_depth: word(0),
            chunk: word(4),
            input: long(8),
            output: long(16),
            bytes: long(24),
            done: long(32),
        }),
    }
}

/// Returns a layout like that of 2.18.3; with parts that the host computes, like that of 2.20.5.
pub(crate) fn of_lists(is_part_given: bool) -> Layout {
    let mut layout = of_batches();
    layout.communicator.p2p_chunk = None;
    layout.channel.work_counter = None;
    layout.connection.step_size = None;
    if !is_part_given {
        layout.connection.fifo = Fifo::Arrays { sizes: long(88), offsets: long(96) };
    }
    layout.work = Work::Lists(Box::new(lists(is_part_given)));
    layout
}

fn lists(is_part_given: bool) -> Lists {
    let part = if is_part_given {
        ListPart::Given {
            chunk: bits(40, 8, 0, 25),
            count: bits(40, 8, 25, 39),
            last_chunk: bits(48, 8, 0, 25),
            offset: bits(48, 8, 25, 39),
        }
    } else {
        ListPart::Computed { last_chunk: long(32), channel: byte(44), channels: byte(45) }
    };
    Lists {
        size: 512,
        next: word(0),
        done_acks: word(0),
        function: Field::whole(4, 2),
        is_last: bits(6, 1, 0, 1),
        in_fifo: bits(6, 1, 1, 1),
        kind: byte(7),
        elements: 8,
        registered: 0,
        registered_size: 248,
        collective: ListCollective {
            size: 56,
            is_used: bits(0, 1, 0, 1),
            argument_is_pointer: bits(0, 1, 1, 1),
            warps: byte(1),
            input: long(8),
            output: long(16),
            count: long(24),
            root: word(if is_part_given { 4 } else { 40 }),
            argument: long(if is_part_given { 32 } else { 48 }),
            part,
        },
        p2p: ListP2p {
            size: 28,
            peer: bits(0, 4, 0, 30),
            protocol: bits(0, 4, 30, 2),
            kind: byte(4),
            groups: byte(7),
            registered: None,
            buffer: [word(8), word(12)],
            count: [word(16), word(20)],
            chunk: word(24),
        },
    }
}
