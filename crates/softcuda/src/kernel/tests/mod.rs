//! Launches from descriptors made by hand, run by ranks in plain memory.

mod batches;
mod builder;
mod functions;
mod lists;

use std::sync::atomic::Ordering;

use super::{
    Kernel, Launch, Program, Progress,
    function::{Algorithm, Function, Kind},
};
use crate::{
    address::Address,
    protocol::Protocol,
    reduce::{DataType, Operator},
    testing::{Step, World, world::run},
};

impl Step for Kernel {
    fn step(&mut self) -> Progress {
        Self::step(self).expect("nothing unknown")
    }
}

/// A collective of `u32` or `i32` on every rank of a world.
#[derive(Debug, Clone, Copy)]
struct Case {
    kind: Kind,
    algorithm: Algorithm,
    protocol: Protocol,
    operator: Operator,
    argument: u64,
    /// Elements, of one rank's part for all-gather and reduce-scatter.
    count: usize,
    root: usize,
}

impl Case {
    const fn of(kind: Kind, protocol: Protocol, count: usize) -> Self {
        let (operator, algorithm) = (Operator::Sum, Algorithm::Ring);
        Self { kind, algorithm, protocol, operator, argument: 0, count, root: 1 }
    }

    /// All-gather and broadcast have the type of bytes.
    const fn element(&self) -> usize {
        match self.kind {
            Kind::AllGather | Kind::Broadcast => 1,
            _ => 4,
        }
    }

    /// Returns the number of elements in NCCL's eyes.
    const fn elements(&self) -> usize {
        self.count * 4 / self.element()
    }

    const fn function(&self) -> Function {
        let Self { kind, operator, algorithm, protocol, .. } = *self;
        let data_type = if self.element() == 1 { DataType::I8 } else { DataType::I32 };
        Function { kind, operator, data_type, algorithm, protocol }
    }

    /// Returns the number of words of input and of output.
    fn lengths(&self, ranks: usize) -> (usize, usize) {
        match self.kind {
            Kind::AllGather => (self.count, self.count * ranks),
            Kind::ReduceScatter => (self.count * ranks, self.count),
            _ => (self.count, self.count),
        }
    }

    /// Returns what a rank has in its output, or `None` if it has nothing.
    fn expected(&self, rank: usize, ranks: usize) -> Option<Vec<i32>> {
        let reduced = |i: usize| {
            let values = (0..ranks).map(|rank| value(rank, i));
            let sum = |factor: i32| values.clone().map(|v| v.wrapping_mul(factor)).fold(0, i32::wrapping_add);
            match self.operator {
                Operator::PreMulSum => sum(self.argument as i32),
                Operator::SumPostDiv => sum(1) / self.argument as i32,
                _ => sum(1),
            }
        };
        let (_, length) = self.lengths(ranks);
        let output = (0..length).map(|i| match self.kind {
            Kind::AllGather => value(i / self.count, i % self.count),
            Kind::Broadcast => value(self.root, i),
            Kind::ReduceScatter => reduced(rank * self.count + i),
            _ => reduced(i),
        });
        let has_output = self.kind != Kind::Reduce || rank == self.root;
        has_output.then(|| output.collect())
    }
}

/// Returns an element of a rank's input.
fn value(rank: usize, index: usize) -> i32 {
    (index as i32).wrapping_mul(7919).wrapping_add(rank as i32 * 13) % 100_003
}

/// The buffers of a rank.
#[derive(Debug, Clone, Copy)]
struct Buffers {
    input: Address,
    output: Address,
}

fn buffers(world: &mut World, case: &Case) -> Vec<Buffers> {
    let ranks = world.shape.ranks;
    let (input, output) = case.lengths(ranks);
    let of = |rank| {
        let words: Vec<u8> = (0..input).flat_map(|i| value(rank, i).to_le_bytes()).collect();
        Buffers { input: world.arena.with(&words), output: world.arena.with(&vec![0xee; 4 * output]) }
    };
    (0..ranks).map(of).collect()
}

/// Runs a launch on every rank, one after the other started, and checks every output.
fn check(
    world: &World,
    program: &Program,
    case: &Case,
    buffers: &[Buffers],
    launch: impl Fn(usize) -> Launch,
) {
    let ranks = world.shape.ranks;
    let mut kernels: Vec<_> =
        (0..ranks).map(|rank| program.start(&launch(rank)).expect("a known launch")).collect();
    run(&mut kernels);
    for (rank, buffers) in buffers.iter().enumerate() {
        let Some(expected) = case.expected(rank, ranks) else { continue };
        // SAFETY: the rank's output in the world's arena.
        let found = unsafe { buffers.output.bytes(4 * expected.len()) };
        let found: Vec<_> =
            found.chunks_exact(4).map(|w| i32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
        let wrong = found.iter().zip(&expected).position(|(found, expected)| found != expected);
        assert_eq!(wrong, None, "the first wrong element of rank {rank} in {case:?} on {:?}", world.shape);
    }
}

/// Every collective with its algorithms.
const COLLECTIVES: [(Kind, Algorithm); 6] = [
    (Kind::AllReduce, Algorithm::Ring),
    (Kind::AllReduce, Algorithm::Tree),
    (Kind::AllGather, Algorithm::Ring),
    (Kind::ReduceScatter, Algorithm::Ring),
    (Kind::Broadcast, Algorithm::Ring),
    (Kind::Reduce, Algorithm::Ring),
];

/// Returns the number of a function.
fn number(program: &Program, function: Function) -> u64 {
    let numbers = program.functions.iter();
    let found = numbers.filter(|(_, f)| *f == function).map(|(number, _)| number).min();
    found.unwrap_or_else(|| panic!("no function {function}")).into()
}

/// Reads a counter of 32 bits.
fn counter(at: Address) -> u32 {
    // SAFETY: a counter in the arena of the test's world.
    unsafe { at.half_word() }.load(Ordering::Acquire)
}
