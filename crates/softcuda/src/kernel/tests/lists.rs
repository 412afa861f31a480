use proptest::prelude::*;

use super::{Algorithm, Buffers, COLLECTIVES, Case, buffers, check, counter, number};
use crate::{
    address::Address,
    kernel::{Launch, Params, Program, function::Kind},
    layout::{Layout, ListPart, Lists, Work},
    protocol::Protocol,
    testing::{
        World,
        layouts::of_lists,
        world::{Shape, run},
    },
};

/// Returns the warps of a block. Simple has one that does not copy, on a tree two. Steps are
/// multiples of what the others copy at once.
const fn warps(algorithm: Algorithm, protocol: Protocol) -> usize {
    match (protocol, algorithm) {
        (Protocol::Simple, Algorithm::Tree) => 6,
        (Protocol::Simple, _) => 5,
        _ => 4,
    }
}

fn program(layout: Layout) -> Program {
    Program::of_release(layout, 21803, None).expect("a known release")
}

fn fields(world: &World) -> Lists {
    match &world.layout.work {
        Work::Lists(lists) => (**lists).clone(),
        Work::Batches(_) => panic!("a layout of lists"),
    }
}

/// Returns a work with these elements, the last one of its block.
fn work(fields: &Lists, function: u64, kind: u64, elements: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; fields.size];
    bytes[fields.elements..fields.elements + elements.len()].copy_from_slice(elements);
    fields.function.put(&mut bytes, function);
    fields.kind.put(&mut bytes, kind);
    fields.is_last.put(&mut bytes, 1);
    fields.in_fifo.put(&mut bytes, 1);
    fields.done_acks.put(&mut bytes, 77);
    bytes
}

fn launch(world: &mut World, rank: usize, channels: usize, works: &[u8]) -> Launch {
    let comm = world.communicators[rank].get() as u64;
    let head = world.arena.with(works).get() as u64;
    let params = [comm, (1 << channels) - 1, head].map(u64::to_le_bytes).to_vec();
    let kernel = "_Z15ncclKernel_TestP11ncclDevCommmP8ncclWork".to_owned();
    Launch { kernel, blocks: channels as u32, params: Params::Pointers(params) }
}

/// Returns the element of a channel, with a chunk of at most `largest` elements.
fn element(
    fields: &Lists,
    case: &Case,
    buffers: Buffers,
    (channel, channels): (usize, usize),
    ranks: usize,
    largest: usize,
) -> Vec<u8> {
    let element = &fields.collective;
    let mut bytes = vec![0; element.size];
    element.is_used.put(&mut bytes, 1);
    element.warps.put(&mut bytes, warps(case.algorithm, case.protocol) as u64);
    element.input.put(&mut bytes, buffers.input.get() as u64);
    element.output.put(&mut bytes, buffers.output.get() as u64);
    element.count.put(&mut bytes, case.elements() as u64);
    element.root.put(&mut bytes, case.root as u64);
    element.argument.put(&mut bytes, case.argument);
    match &element.part {
        ListPart::Computed { last_chunk, channel: number, channels: numbers } => {
            number.put(&mut bytes, channel as u64);
            numbers.put(&mut bytes, channels as u64);
            last_chunk.put(&mut bytes, last(case, channels, largest) as u64);
        }
        ListPart::Given { chunk, count, last_chunk, offset } => {
            let each = case.elements() / channels;
            let part = if channel + 1 < channels { each } else { case.elements() - channel * each };
            let left = part % (ranks * largest);
            chunk.put(&mut bytes, largest as u64);
            count.put(&mut bytes, part as u64);
            last_chunk.put(&mut bytes, left.div_ceil(ranks).next_multiple_of(4) as u64);
            offset.put(&mut bytes, (channel * each) as u64);
        }
    }
    bytes
}

/// Returns what the host computes for 2.18: the last chunk of LL, the chunk of a tree.
fn last(case: &Case, channels: usize, largest: usize) -> usize {
    if case.algorithm == Algorithm::Tree {
        return largest;
    }
    // Half of a step of LL is data.
    let round = channels * 8192 / case.element();
    let grain = warps(case.algorithm, Protocol::Ll) * 32 * 8 / case.element();
    (case.elements() % round).div_ceil(channels * grain) * grain
}

fn run_case(world: &mut World, case: &Case, largest: usize) {
    let program = program(world.layout.clone());
    let buffers = buffers(world, case);
    let fields = fields(world);
    let (channels, ranks) = (world.shape.channels, world.shape.ranks);
    let function = number(&program, case.function());
    let launches: Vec<Launch> = (0..ranks)
        .map(|rank| {
            let of = |channel| {
                let part = (channel, channels);
                work(&fields, function, 1, &element(&fields, case, buffers[rank], part, ranks, largest))
            };
            let works: Vec<u8> = (0..channels).flat_map(of).collect();
            launch(world, rank, channels, &works)
        })
        .collect();
    check(world, &program, case, &buffers, |rank| launches[rank].clone());
}

/// Elements of a chunk: a step, or four in Simple on a ring with a chunk for each rank.
fn largest(case: &Case) -> usize {
    let has_four = case.algorithm == Algorithm::Ring && !matches!(case.kind, Kind::Broadcast | Kind::Reduce);
    let bytes = match case.protocol {
        Protocol::Ll => 8192,
        Protocol::Ll128 => 15360,
        Protocol::Simple if has_four => 65536,
        Protocol::Simple => 16384,
    };
    bytes / case.element()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn collectives_are_right_with_computed_and_with_given_parts(
        (kind, algorithm) in prop::sample::select(&COLLECTIVES[..]),
        protocol in prop::sample::select(&Protocol::ALL[..]),
        ranks in 2usize..6,
        channels in 1usize..4,
        count in 1usize..60_000,
        share in 0.05f64..=1.0,
        has_fifo: bool,
        is_part_given: bool,
    ) {
        let shape = Shape { ranks, channels, has_fifo, ..Shape::default() };
        let mut world = World::new(of_lists(is_part_given), shape);
        let case = Case { algorithm, ..Case::of(kind, protocol, count) };
        let largest = largest(&case);
        let share = if is_part_given { share } else { 1.0 };
        run_case(&mut world, &case, ((largest as f64 * share) as usize).next_multiple_of(16).min(largest));
    }
}

#[test]
fn the_fifo_is_acknowledged() {
    let mut world = World::new(of_lists(false), Shape::default());
    run_case(&mut world, &Case::of(Kind::AllReduce, Protocol::Simple, 1000), 16384);
    let channel = world.communicators[0].plus(world.layout.communicator.channels);
    // SAFETY: the pointer to the counter in a channel of the world.
    let done = unsafe { channel.plus(world.layout.channel.fifo_done.offset).read::<usize>() };
    assert_eq!(counter(Address::new(done)), 77);
}

/// Returns the element of a send or a receive.
fn message(
    fields: &Lists,
    peer: usize,
    buffer: Address,
    bytes: usize,
    protocol: u64,
    groups: usize,
) -> Vec<u8> {
    let element = &fields.p2p;
    let mut one = vec![0; element.size];
    element.peer.put(&mut one, peer as u64);
    element.protocol.put(&mut one, protocol);
    element.kind.put(&mut one, 1);
    element.groups.put(&mut one, groups as u64);
    let (high, low) = (buffer.get() as u64 >> 32, buffer.get() as u64 & 0xffff_ffff);
    element.buffer[0].put(&mut one, high);
    element.buffer[1].put(&mut one, low);
    element.count[1].put(&mut one, bytes as u64);
    element.chunk.put(&mut one, 16384);
    one
}

#[test]
fn sends_receives_and_a_copy_arrive() {
    for protocol in [0, 2] {
        let mut world = World::new(of_lists(false), Shape::default());
        let program = program(world.layout.clone());
        let fields = fields(&world);
        let contents: Vec<Vec<u8>> =
            (0..3u8).map(|n| (0..70_000).map(|i| (i as u8).wrapping_mul(3) ^ n).collect()).collect();
        let inputs: Vec<_> = contents.iter().map(|content| world.arena.with(content)).collect();
        let outputs: Vec<_> = (0..3).map(|_| world.arena.zeroed(70_000)).collect();
        // Rank 0 and rank 1 exchange two messages; rank 0 sends one to itself as well.
        let one = |peer, buffer| message(&fields, peer, buffer, 70_000, protocol, 4);
        let mut first: Vec<u8> = [one(1, outputs[1]), one(1, inputs[0])].concat();
        first.extend([one(0, outputs[2]), one(0, inputs[2])].concat());
        let unused = vec![0; fields.p2p.size];
        let second: Vec<u8> = [one(0, outputs[0]), one(0, inputs[1]), unused.clone(), unused].concat();
        let launches = [first, second].map(|elements| work(&fields, 0, 2, &elements));
        let mut kernels: Vec<_> = (0..2)
            .map(|rank| {
                let launch = launch(&mut world, rank, 1, &launches[rank]);
                program.start(&launch).expect("a known launch")
            })
            .collect();
        run(&mut kernels);
        for (content, output) in contents.iter().zip(outputs) {
            // SAFETY: an output of the world's arena.
            let found = unsafe { output.bytes(70_000) };
            assert!(found == *content, "protocol {protocol}");
        }
    }
}

#[test]
fn a_list_of_works_runs_to_its_last_one_and_a_loop_is_an_error() {
    let mut world = World::new(of_lists(false), Shape { channels: 1, ..Shape::default() });
    let program = program(world.layout.clone());
    let fields = fields(&world);
    let mut first = work(&fields, 0, 2, &[]);
    fields.is_last.put(&mut first, 0);
    fields.next.put(&mut first, 0);
    let looped = launch(&mut world, 0, 1, &first);
    let error = program.start(&looped).map(|_| ()).expect_err("a loop").to_string();
    assert!(error.starts_with("list of works a loop is unknown"), "{error}");
    fields.next.put(&mut first, 1);
    let both: Vec<u8> = [first, work(&fields, 0, 2, &[])].concat();
    let mut kernels = [program.start(&launch(&mut world, 0, 1, &both)).expect("a known launch")];
    run(&mut kernels);
}
