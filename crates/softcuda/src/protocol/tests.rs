//! Senders and receivers in plain memory, stepped alternately.

use proptest::prelude::*;

use super::{Direction, Primitive, Primitives, Progress, Protocol, Registration, Terms};
use crate::{
    address::Address,
    reduce::{DataType, Division, Operator, Reduction},
    testing::{
        Step, World,
        layouts::of_batches,
        world::{Shape, run},
    },
};

const SUM: Reduction =
    Reduction { data_type: DataType::U32, operator: Operator::Sum, argument: 0, division: Division::Plain };

/// One end with its operations.
struct End {
    primitives: Primitives,
    operations: std::vec::IntoIter<Primitive>,
}

impl Step for End {
    fn step(&mut self) -> Progress {
        let mut moved = Progress::Waiting;
        loop {
            match self.primitives.advance().expect("nothing unknown") {
                Progress::Done => match self.operations.next() {
                    Some(operation) => self.primitives.start(operation),
                    None => return self.primitives.close(),
                },
                Progress::Waiting => return moved,
                Progress::Moved => return Progress::Moved,
            }
            moved = Progress::Moved;
        }
    }
}

fn terms(world: &World, protocol: Protocol, (slices, slice_steps): (usize, usize)) -> Terms {
    Terms {
        protocol,
        slices,
        slice_steps,
        slice_step_bytes: world.shape.buffers[2] / 8,
        step_bytes: world.shape.buffers[protocol as usize] / 8,
        reduction: SUM,
        input: Address::default(),
        output: Address::default(),
        registration: Registration::None,
    }
}

fn open(world: &World, terms: Terms, receives: &[Address], sends: &[Address]) -> Primitives {
    // SAFETY: connections and buffers of the world, which the test keeps.
    unsafe { Primitives::open(terms, &world.layout.connection, receives, sends) }.expect("open")
}

fn words(values: &[u32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

fn read(at: Address, count: usize) -> Vec<u32> {
    // SAFETY: memory of the world that is as large.
    let bytes = unsafe { at.bytes(4 * count) };
    bytes.chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect()
}

/// Sends chunks from rank 0 to rank 1, which adds its input. Returns the world and rank 1's output.
fn pass(
    protocol: Protocol,
    shape: (usize, usize),
    chunks: &[usize],
    rounds: usize,
) -> (World, Vec<u32>, Vec<u32>) {
    let mut world = World::new(of_batches(), Shape { has_fifo: true, ..Shape::default() });
    let count = chunks.iter().sum::<usize>();
    let values: Vec<u32> = (0..count as u32).map(|i| i.wrapping_mul(2_654_435_761)).collect();
    let input = world.arena.with(&words(&values));
    let output = world.arena.zeroed(4 * count);
    let starts = chunks.iter().scan(0, |next, chunk| {
        *next += chunk;
        Some(*next - chunk)
    });
    let places: Vec<_> = starts.zip(chunks.iter().copied()).collect();
    let send = world.connection(0, 0, 1, Direction::Send, 0);
    let receive = world.connection(0, 1, 0, Direction::Receive, 0);
    // The steps go on from one kernel to the next.
    for _ in 0..rounds {
        let terms = Terms { input, output, ..terms(&world, protocol, shape) };
        let sends = places.iter().map(|&(at, count)| Primitive::of(count).input(at).send());
        let receives = places.iter().map(|&(at, count)| Primitive::of(count).input(at).receive().output(at));
        let mut ends = [
            End {
                primitives: open(&world, terms, &[], &[send]),
                operations: sends.collect::<Vec<_>>().into_iter(),
            },
            End {
                primitives: open(&world, terms, &[receive], &[]),
                operations: receives.collect::<Vec<_>>().into_iter(),
            },
        ];
        run(&mut ends);
    }
    let found = read(output, count);
    (world, values, found)
}

/// Elements of a step's data by protocol, with the buffers of [`Shape::default`].
fn largest(protocol: Protocol, (slices, slice_steps): (usize, usize)) -> usize {
    match protocol {
        Protocol::Ll => 2048,
        Protocol::Ll128 => 3840,
        Protocol::Simple => 4096 * slices * slice_steps,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn every_protocol_passes_chunks_of_any_size(
        protocol in prop::sample::select(&Protocol::ALL[..]),
        shape in prop::sample::select(&[(1, 1), (2, 2), (2, 1)][..]),
        sizes in prop::collection::vec(0.0f64..=1.0, 1..24),
        rounds in 1usize..4,
    ) {
        let largest = largest(protocol, shape) as f64;
        let chunks: Vec<usize> = sizes.iter().map(|size| (size * largest) as usize).collect();
        let (_world, values, found) = pass(protocol, shape, &chunks, rounds);
        let expected: Vec<u32> = values.iter().map(|value| value.wrapping_mul(2)).collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn a_chunk_of_the_largest_size_and_an_empty_one_pass() {
    for protocol in Protocol::ALL {
        for shape in [(1, 1), (2, 2)] {
            let largest = largest(protocol, shape);
            let (_world, values, found) = pass(protocol, shape, &[largest, 0, 1, largest - 1], 3);
            let expected: Vec<u32> = values.iter().map(|value| value.wrapping_mul(2)).collect();
            assert_eq!(found, expected, "{protocol}");
        }
    }
}

#[test]
fn a_chunk_that_does_not_fit_is_an_error() {
    for protocol in Protocol::ALL {
        let world = World::new(of_batches(), Shape::default());
        let send = world.connection(0, 0, 1, Direction::Send, 0);
        let mut sender = open(&world, terms(&world, protocol, (1, 1)), &[], &[send]);
        sender.start(Primitive::of(largest(protocol, (1, 1)) + 500).input(0).send());
        let error = sender.advance().expect_err("too large").to_string();
        assert!(error.contains("chunk size") && error.contains(&protocol.to_string()), "{error}");
    }
}

#[test]
fn proxy_threads_see_the_bytes_on_the_wire() {
    for (protocol, shape, count, sizes) in [
        (Protocol::Simple, (1, 1), 100, vec![400]),
        (Protocol::Simple, (2, 2), 1000, vec![2048, 1952]),
        (Protocol::Simple, (2, 2), 0, vec![0, 0]),
        (Protocol::Ll, (1, 1), 3, vec![32]),
        (Protocol::Ll128, (1, 1), 481, vec![4096]),
    ] {
        let (world, ..) = pass(protocol, shape, &[count], 1);
        let fifo = world.fifos[&(0, 0, 1, 0)];
        for (i, size) in sizes.into_iter().enumerate() {
            let entry = fifo.plus(32 * i * shape.1 + 16);
            // SAFETY: the size in an entry of the world's FIFO.
            assert_eq!(unsafe { entry.read::<u64>() }, size, "{protocol} {count} slice {i}");
        }
        let send = world.connection(0, 0, 1, Direction::Send, 0);
        // SAFETY: the pointer to the counter in a connection of the world.
        let tail = unsafe { send.plus(world.layout.connection.tail.offset).read::<usize>() };
        // SAFETY: the counter.
        let tail = unsafe { Address::new(tail).read::<u64>() };
        // LL has no counter on this way; its proxy thread looks at the flags only.
        let steps = if protocol == Protocol::Ll { 0 } else { shape.0 * shape.1 };
        assert_eq!(tail, steps as u64, "{protocol} {count}");
    }
}

#[test]
fn a_sender_stops_without_credit_and_a_receiver_without_data() {
    for protocol in Protocol::ALL {
        let mut world = World::new(of_batches(), Shape::default());
        let input = world.arena.zeroed(400);
        let send = world.connection(0, 0, 1, Direction::Send, 0);
        let receive = world.connection(0, 1, 0, Direction::Receive, 0);
        let terms = Terms { input, output: input, ..terms(&world, protocol, (1, 1)) };
        let mut receiver = open(&world, terms, &[receive], &[]);
        receiver.start(Primitive::of(100).receive().output(0));
        assert_eq!(receiver.advance(), Ok(Progress::Waiting), "{protocol}");
        let mut sender = open(&world, terms, &[], &[send]);
        for step in 0..8 {
            sender.start(Primitive::of(100).input(0).send());
            assert_eq!(sender.advance(), Ok(Progress::Done), "{protocol} step {step}");
        }
        sender.start(Primitive::of(100).input(0).send());
        assert_eq!(sender.advance(), Ok(Progress::Waiting), "{protocol}: eight steps are the buffer");
        assert_eq!(receiver.advance(), Ok(Progress::Done), "{protocol}");
        assert_eq!(sender.advance(), Ok(Progress::Done), "{protocol}: a step is free");
    }
}

#[test]
fn simple_rounds_the_first_step_up_and_returns_the_credit() {
    let world = World::new(of_batches(), Shape::default());
    let receive = world.connection(0, 1, 0, Direction::Receive, 0);
    let fields = &world.layout.connection;
    // SAFETY: members of a connection of the world.
    let (step, head) = unsafe {
        let head = receive.plus(fields.head.offset).read::<usize>();
        (receive.plus(fields.step.offset).word(), Address::new(head).word())
    };
    step.store(5, std::sync::atomic::Ordering::Release);
    let mut receiver = open(&world, terms(&world, Protocol::Simple, (2, 2)), &[receive], &[]);
    assert_eq!(head.load(std::sync::atomic::Ordering::Acquire), 8);
    assert_eq!(receiver.close(), Progress::Done);
    assert_eq!(step.load(std::sync::atomic::Ordering::Acquire), 8);
}

#[test]
fn a_head_of_minus_eight_is_no_credit() {
    let world = World::new(of_batches(), Shape::default());
    let send = world.connection(0, 0, 1, Direction::Send, 1);
    let fields = &world.layout.connection;
    // SAFETY: members of a connection of the world.
    let head = unsafe { Address::new(send.plus(fields.head.offset).read::<usize>()).word() };
    head.store((-8i64) as u64, std::sync::atomic::Ordering::Release);
    let mut sender = open(&world, terms(&world, Protocol::Simple, (1, 1)), &[], &[send]);
    sender.start(Primitive::of(0).input(0).send());
    assert_eq!(sender.advance(), Ok(Progress::Waiting));
    head.store((-7i64) as u64, std::sync::atomic::Ordering::Release);
    assert_eq!(sender.advance(), Ok(Progress::Done));
}

#[test]
fn a_registered_send_moves_nothing_and_closes_when_it_is_sent() {
    let mut world = World::new(of_batches(), Shape { has_fifo: true, ..Shape::default() });
    let fields = world.layout.connection.clone();
    let send = world.connection(0, 0, 1, Direction::Send, 1);
    // The flag of a connection whose network reaches the user's buffers.
    // SAFETY: a member of a connection of the world.
    unsafe { send.plus(fields.flags.offset).write_from(&4u32.to_le_bytes()) };
    let input = world.arena.with(&[7; 64]);
    let registration = Registration::P2p;
    let terms = Terms { input, registration, ..terms(&world, Protocol::Simple, (1, 1)) };
    let mut sender = open(&world, terms, &[], &[send]);
    sender.start(Primitive::of(16).input(0).send());
    assert_eq!(sender.advance(), Ok(Progress::Done));
    let size = world.fifos[&(0, 0, 1, 1)].plus(16);
    // SAFETY: the size in an entry of the world's FIFO.
    let size = unsafe { size.word() };
    assert_eq!(size.load(std::sync::atomic::Ordering::Acquire), 64);
    // SAFETY: the buffer of a connection of the world.
    let buffer = unsafe { Address::new(send.plus(16).read::<usize>()).bytes(64) };
    assert_eq!(buffer, [0; 64], "the network reads the user's buffer");
    assert_eq!(sender.close(), Progress::Waiting);
    size.store(u64::MAX, std::sync::atomic::Ordering::Release);
    assert_eq!(sender.close(), Progress::Done);
}

#[test]
fn a_connection_without_buffers_is_an_error() {
    let world = World::new(of_batches(), Shape::default());
    let nobody = world.connection(0, 0, 0, Direction::Send, 0);
    let terms = terms(&world, Protocol::Simple, (1, 1));
    // SAFETY: a connection of the world; that it is not connected is what is tested.
    let opened = unsafe { Primitives::open(terms, &world.layout.connection, &[], &[nobody]) };
    let error = opened.expect_err("not connected").to_string();
    assert_eq!(error, "connection without buffer is unknown (Simple)");
}
