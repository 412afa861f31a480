use proptest::prelude::*;

use super::{
    Algorithm, COLLECTIVES, Case, buffers,
    builder::{Builder, Store, collective, fields, program},
    check, counter, number,
};
use crate::{
    collective::{Packing, p2p::PartOrder},
    kernel::{
        Launch, Params, Program,
        function::{Function, Kind},
    },
    layout::Batches,
    protocol::{Progress, Protocol},
    reduce::Operator,
    testing::{Step, World, layouts::of_batches, world::Shape},
};

/// Runs a collective on all channels of a world.
fn run_case(world: &mut World, case: &Case, grains: u64, store: Store) {
    let program = program(world.layout.clone(), 23203);
    let buffers = buffers(world, case);
    let channels = world.shape.channels;
    let function = number(&program, case.function());
    let launches: Vec<Launch> = (0..world.shape.ranks)
        .map(|rank| {
            let fields = fields(world).clone();
            let mut builder = Builder::new(&fields);
            let work = collective(&fields, case, buffers[rank], channels, grains);
            let offset = builder.work(&work);
            for _ in 0..channels {
                builder.batch(1, function, offset, 1);
            }
            builder.launch(world, rank, (1 << channels) - 1, store)
        })
        .collect();
    check(world, &program, case, &buffers, |rank| launches[rank].clone());
}

/// Chunks of at most a step, or of the four steps of a chunk in Simple.
fn grains(kind: Kind, algorithm: Algorithm, protocol: Protocol) -> u64 {
    let has_four = algorithm == Algorithm::Ring && !matches!(kind, Kind::Broadcast | Kind::Reduce);
    match protocol {
        Protocol::Ll => 512,
        Protocol::Ll128 => 8,
        Protocol::Simple if has_four => 128,
        Protocol::Simple => 32,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn collectives_are_right_on_any_number_of_ranks_and_channels(
        (kind, algorithm) in prop::sample::select(&COLLECTIVES[..]),
        protocol in prop::sample::select(&Protocol::ALL[..]),
        ranks in 2usize..6,
        channels in 1usize..4,
        count in 1usize..60_000,
        share in 0.01f64..=1.0,
        has_fifo: bool,
        store in prop::sample::select(&[Store::Arguments, Store::Fifo, Store::Buffer][..]),
    ) {
        let mut world =
            World::new(of_batches(), Shape { ranks, channels, has_fifo, ..Shape::default() });
        let case = Case { algorithm, ..Case::of(kind, protocol, count) };
        let grains = (grains(kind, algorithm, protocol) as f64 * share).ceil() as u64;
        run_case(&mut world, &case, grains, store);
    }
}

/// Runs all-gather and reduce-scatter on PAT.
fn run_pat(kind: Kind, ranks: usize, channels: usize, count: usize, grains: u64) {
    let mut world = World::new(of_batches(), Shape { ranks, channels, ..Shape::default() });
    let case = Case { algorithm: Algorithm::Pat, ..Case::of(kind, Protocol::Simple, count) };
    run_case(&mut world, &case, grains, Store::Fifo);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn pat_is_right_on_any_number_of_ranks_and_with_aggregated_steps(
        kind in prop::sample::select(&[Kind::AllGather, Kind::ReduceScatter][..]),
        ranks in 2usize..20,
        channels in 1usize..3,
        count in prop_oneof![2usize..64, 64usize..2000, 2000usize..30_000],
        grains in 1u64..=32,
    ) {
        run_pat(kind, ranks, channels, count, grains);
    }
}

#[test]
fn operators_prepare_every_input_once_and_finish_once() {
    for (operator, argument) in [(Operator::PreMulSum, 3), (Operator::SumPostDiv, 3)] {
        for (kind, algorithm) in COLLECTIVES {
            if matches!(kind, Kind::AllGather | Kind::Broadcast) {
                continue;
            }
            for protocol in Protocol::ALL {
                let mut world = World::new(of_batches(), Shape { ranks: 3, ..Shape::default() });
                let case = Case { operator, argument, algorithm, ..Case::of(kind, protocol, 5000) };
                run_case(&mut world, &case, 4, Store::Fifo);
            }
        }
    }
}

/// A message of a test: sender, receiver and bytes.
type Message = (usize, usize, usize);

/// Sends messages between ranks on some channels and checks what arrived.
fn run_messages(release: i32, channels: usize, messages: &[Message], is_ll: bool) {
    let mut world = World::new(of_batches(), Shape { ranks: 3, channels, ..Shape::default() });
    let program = program(world.layout.clone(), release);
    let fields = fields(&world).clone();
    let content = |(from, to, bytes): Message| -> Vec<u8> {
        (0..bytes).map(|i| (i * 31 + from * 7 + to) as u8).collect()
    };
    let mut outputs = Vec::new();
    let mut works = vec![Vec::new(); 3];
    for &message in messages {
        let (from, to, bytes) = message;
        let (input, output) = (world.arena.with(&content(message)), world.arena.zeroed(bytes));
        outputs.push((message, output));
        let ends =
            if from == to { vec![(from, true, true)] } else { vec![(from, true, false), (to, false, true)] };
        for (rank, sends, receives) in ends {
            let work = &fields.p2p;
            let mut one = vec![0; work.size];
            work.channels.put(&mut one, channels as u64);
            for (half, peer, buffer, is_used) in
                [(&work.send, to, input, sends), (&work.receive, from, output, receives)]
            {
                half.rank.put(&mut one, if is_used { peer as u64 } else { u64::from(u32::MAX) });
                half.buffer.put(&mut one, buffer.get() as u64);
                half.bytes.put(&mut one, if is_used { bytes as u64 } else { 0 });
                half.channels.put(&mut one, if is_used { channels as u64 } else { 0 });
                half.is_ll.put(&mut one, is_ll.into());
                // 8192 bytes: as much data as a step of LL has.
                half.chunk.put(&mut one, 11 << 3);
            }
            works[rank].push(one);
        }
    }
    let mut kernels: Vec<_> = (0..3)
        .map(|rank| {
            let mut builder = Builder::new(&fields);
            for work in &works[rank] {
                builder.work(work);
            }
            let places = (1 << works[rank].len()) - 1;
            for _ in 0..channels {
                builder.batch(0, 0, 0, places);
            }
            let launch = builder.launch(&mut world, rank, (1 << channels) - 1, Store::Buffer);
            program.start(&launch).expect("a known launch")
        })
        .collect();
    crate::testing::world::run(&mut kernels);
    for (message, output) in outputs {
        // SAFETY: the message's output in the world's arena.
        let found = unsafe { output.bytes(message.2) };
        assert!(found == content(message), "message {message:?} on {channels} channels of {release}");
    }
}

#[test]
fn messages_arrive_on_any_number_of_channels() {
    // A pair of ranks has one message in a group of works.
    let messages = [(0, 1, 100_001), (1, 0, 5), (1, 2, 0), (2, 0, 65_536), (2, 2, 30_000)];
    for release in [22703, 22809] {
        for channels in [1, 2, 8] {
            for is_ll in [false, true] {
                run_messages(release, channels, &messages, is_ll);
            }
        }
    }
}

#[test]
fn parts_of_different_sizes_reach_every_rank() {
    const BYTES: [usize; 3] = [100_000, 5, 70_001];
    for protocol in Protocol::ALL {
        for is_in_place in [false, true] {
            let mut world = World::new(of_batches(), Shape { ranks: 3, ..Shape::default() });
            let table: Vec<u8> = (0..2000i32).flat_map(i32::to_le_bytes).collect();
            let program = Program::of_release(world.layout.clone(), 23203, Some(&table)).expect("known");
            let function =
                Function { kind: Kind::AllGatherV, ..Case::of(Kind::AllGather, protocol, 1).function() };
            let function = number(&program, function);
            let content =
                |root: usize| -> Vec<u8> { (0..BYTES[root]).map(|i| (i * 7 + root) as u8).collect() };
            let fields = fields(&world).clone();
            let work = fields.broadcast.clone().expect("a layout of 2.29 or later");
            let mut outputs = Vec::new();
            let launches: Vec<Launch> = (0..3)
                .map(|rank| {
                    let mut builder = Builder::new(&fields);
                    for (root, &bytes) in BYTES.iter().enumerate() {
                        let (own, output) = (world.arena.with(&content(root)), world.arena.zeroed(bytes));
                        let output = if rank == root && is_in_place { own } else { output };
                        outputs.push((root, output));
                        let mut one = vec![0; work.size];
                        work.ring_depth.put(&mut one, ((rank + 3 - root) % 3) as u64);
                        work.chunk.put(&mut one, 7680);
                        work.input.put(&mut one, if rank == root { own.get() as u64 } else { 0 });
                        work.output.put(&mut one, output.get() as u64);
                        work.bytes.put(&mut one, bytes as u64);
                        builder.work(&one);
                    }
                    builder.batch(3, function, 0, 7);
                    builder.launch(&mut world, rank, 1, Store::Fifo)
                })
                .collect();
            let start = |launch| program.start(launch).expect("a known launch");
            let mut kernels: Vec<_> = launches.iter().map(start).collect();
            crate::testing::world::run(&mut kernels);
            for (root, output) in outputs {
                // SAFETY: an output of the world's arena.
                let found = unsafe { output.bytes(BYTES[root]) };
                assert!(found == content(root), "{protocol}, the part of rank {root}");
            }
        }
    }
}

#[test]
fn a_fifo_is_freed_and_works_are_counted() {
    let mut layout = of_batches();
    layout.communicator.work_consumed = Some(crate::layout::Field::whole(72, 8));
    let mut world = World::new(layout, Shape::default());
    let consumed = world.arena.zeroed(4 * 64);
    for comm in &world.communicators {
        // SAFETY: a member of a communicator of the world.
        unsafe { comm.plus(72).write_from(&consumed.get().to_le_bytes()) };
    }
    run_case(&mut world, &Case::of(Kind::AllReduce, Protocol::Simple, 1000), 8, Store::Fifo);
    assert_eq!(counter(consumed), 96, "one work of 96 bytes");
    let works = world.communicators[0].plus(96 + 360);
    assert_eq!(counter(works), 1, "one work of channel 0");
}

#[test]
fn extended_batches_are_one_group_and_jumps_lead_to_the_next() {
    let mut world = World::new(of_batches(), Shape { channels: 1, ..Shape::default() });
    let program = program(world.layout.clone(), 23203);
    let cases =
        [Case::of(Kind::AllReduce, Protocol::Simple, 777), Case::of(Kind::AllReduce, Protocol::Ll, 555)];
    let all: Vec<_> = cases.iter().map(|case| buffers(&mut world, case)).collect();
    let launches: Vec<Launch> = (0..2)
        .map(|rank| {
            let fields = fields(&world).clone();
            let mut builder = Builder::new(&fields);
            for (i, case) in cases.iter().enumerate() {
                let work = collective(&fields, case, all[i][rank], 1, 4);
                let offset = builder.work(&work);
                let batch = builder.batch(1, number(&program, case.function()), offset, 1);
                fields.batch.next_jump.put(batch, if i == 0 { 1 } else { 0 });
            }
            builder.launch(&mut world, rank, 1, Store::Arguments)
        })
        .collect();
    check(&world, &program, &cases[0], &all[0], |rank| launches[rank].clone());
    // The second collective ran in the same kernels.
    // SAFETY: an output of the world's arena.
    let found = unsafe { all[1][0].output.bytes(4) };
    let expected = cases[1].expected(0, 2).expect("an output")[0];
    assert_eq!(found, expected.to_le_bytes());
}

/// Returns the error of a launch that is built and then spoiled.
fn error(spoil: impl Fn(&Batches, &mut Launch)) -> String {
    let mut world = World::new(of_batches(), Shape { channels: 2, ..Shape::default() });
    let program = program(world.layout.clone(), 23203);
    let case = Case::of(Kind::AllReduce, Protocol::Simple, 1000);
    let buffers = buffers(&mut world, &case);
    let fields = fields(&world).clone();
    let mut builder = Builder::new(&fields);
    let offset = builder.work(&collective(&fields, &case, buffers[0], 2, 8));
    for _ in 0..2 {
        builder.batch(1, number(&program, case.function()), offset, 1);
    }
    let mut launch = builder.launch(&mut world, 0, 3, Store::Buffer);
    spoil(&fields, &mut launch);
    program.start(&launch).map(|_| ()).expect_err("an unknown launch").to_string()
}

fn arguments(launch: &mut Launch) -> &mut [u8] {
    match &mut launch.params {
        Params::Buffer(bytes) => bytes,
        Params::Pointers(_) => panic!("a buffer"),
    }
}

#[test]
fn unknown_kernels_and_functions_are_named() {
    let unknown_kernel = error(|_, launch| launch.kernel = "_Z22ncclSymkDevKernel_Other".into());
    assert_eq!(unknown_kernel, "kernel _Z22ncclSymkDevKernel_Other is unknown");
    let unknown_function = error(|fields, launch| {
        fields.batch.function.put(&mut arguments(launch)[32..], 2047);
    });
    assert!(unknown_function.starts_with("function 2047 is unknown"), "{unknown_function}");
    let storage = error(|fields, launch| fields.storage.put(arguments(launch), 3));
    assert!(storage.starts_with("work storage 3 is unknown"), "{storage}");
    let kind = error(|fields, launch| fields.batch.kind.put(&mut arguments(launch)[32..], 0));
    assert!(kind.starts_with("work kind 0 is unknown (AllReduce Sum I32 Ring Simple)"), "{kind}");
    let blocks = error(|_, launch| launch.blocks = 3);
    assert!(blocks.starts_with("grid with blocks 3 is unknown (2 channels)"), "{blocks}");
    let pointers = error(|_, launch| launch.params = Params::Pointers(vec![[0; 8]; 3]));
    assert!(pointers.starts_with("parameters pointers is unknown"), "{pointers}");
}

#[test]
fn a_block_without_its_work_is_an_error() {
    let without = error(|fields, launch| {
        // The second block has no work: legal in the descriptors, but half of the elements lack.
        fields.batch.places.put(&mut arguments(launch)[48..], 0);
    });
    assert!(without.starts_with("work for elements 500..1000 of 1000"), "{without}");
}

#[test]
fn rules_that_no_layout_shows_follow_the_release() {
    for (release, part_order, packing) in [
        (22203, PartOrder::Reversed, Packing::Full),
        (22501, PartOrder::Reversed, Packing::Full),
        (22602, PartOrder::Reversed, Packing::Spread),
        (22707, PartOrder::Reversed, Packing::Spread),
        (22803, PartOrder::Linear, Packing::Spread),
        (23203, PartOrder::Linear, Packing::Spread),
    ] {
        let program = program(of_batches(), release);
        assert_eq!((program.part_order, program.packing), (part_order, packing), "{release}");
    }
}

#[test]
fn an_aborted_kernel_ends() {
    let mut world = World::new(of_batches(), Shape::default());
    let program = program(world.layout.clone(), 23203);
    let case = Case::of(Kind::AllReduce, Protocol::Simple, 1000);
    let buffers = buffers(&mut world, &case);
    let fields = fields(&world).clone();
    let mut builder = Builder::new(&fields);
    let offset = builder.work(&collective(&fields, &case, buffers[0], 1, 8));
    builder.batch(1, number(&program, case.function()), offset, 1);
    let launch = builder.launch(&mut world, 0, 1, Store::Buffer);
    let mut kernel = program.start(&launch).expect("a known launch");
    assert_eq!(Step::step(&mut kernel), Progress::Moved, "the first chunk goes into the buffer");
    assert_eq!(Step::step(&mut kernel), Progress::Waiting);
    world.abort(0);
    assert_eq!(Step::step(&mut kernel), Progress::Done);
}
