//! What collectives, sends and receives do: which operations on which connections, in which order.

pub(crate) mod gather_v;
pub(crate) mod p2p;
pub(crate) mod pat;
pub(crate) mod ring;
pub(crate) mod rounds;
pub(crate) mod task;
pub(crate) mod tree;

pub(crate) use pat::plan::Packing;
pub(crate) use rounds::Round;
pub(crate) use task::Task;

use crate::{
    Unknown,
    address::Address,
    kernel::{
        device::{Channel, Communicator},
        function::{Algorithm, Function, Kind},
    },
    protocol::{Protocol, Registration},
    reduce::Reduction,
};

/// Bytes of a step of registered buffers: as much as NCCL moves at once.
pub(crate) const REGISTERED_STEP: usize = 1 << 30;

/// A channel's part of a collective, from a descriptor of either generation.
#[derive(Debug, Clone)]
pub(crate) struct Collective {
    pub(crate) function: Function,
    pub(crate) reduction: Reduction,
    pub(crate) input: Address,
    pub(crate) output: Address,
    /// Elements of the whole collective; of one rank's part for all-gather and reduce-scatter.
    pub(crate) count: usize,
    pub(crate) root: usize,
    pub(crate) rounds: Vec<Round>,
    pub(crate) registration: Registration,
    /// How a reduce-scatter on PAT packs its steps.
    pub(crate) packing: Packing,
}

impl Collective {
    /// Returns the tasks, which run at the same time.
    pub(crate) fn tasks(self, comm: &Communicator, channel: &Channel) -> Result<Vec<Task>, Unknown> {
        let function = self.function;
        match (function.kind, function.algorithm) {
            (Kind::AllReduce, Algorithm::Tree) => tree::tasks(&self, comm, channel),
            (
                Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter | Kind::Broadcast | Kind::Reduce,
                Algorithm::Ring,
            ) => ring::tasks(self, comm, channel),
            (Kind::AllGather | Kind::ReduceScatter, Algorithm::Pat)
                if function.protocol == Protocol::Simple =>
            {
                pat::tasks(self, comm, channel)
            }
            _ => Err(Unknown::new("function", function)),
        }
    }

    /// Returns slices of a chunk and steps of a slice in Simple.
    fn shape(&self) -> (usize, usize) {
        let is_split = matches!(self.function.kind, Kind::AllReduce | Kind::AllGather | Kind::ReduceScatter)
            && self.function.algorithm == Algorithm::Ring
            && self.registration != Registration::Offloaded;
        if is_split && self.function.protocol == Protocol::Simple { (2, 2) } else { (1, 1) }
    }
}
