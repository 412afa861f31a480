//! What the rank program (`collective-rank`) is given and what it reports: one JSON document in, one
//! JSON line for each message out. The program that starts the ranks shares these types.

mod encoding;
mod hub;
mod one_sided;
mod values;

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

pub use self::{
    hub::{Hub, Message, Reply},
    one_sided::{OneSided, Pattern},
    values::{Case, UNTOUCHED, Wrong},
};
use crate::{DataType, settings::Settings};

/// The work of one rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The release's `libnccl.so.2`.
    pub library: PathBuf,
    /// `libsoftcuda.so`. `None`: the rank runs on this machine's GPUs.
    pub softcuda: Option<PathBuf>,
    /// The simulated GPUs.
    pub settings: Settings,
    /// This rank.
    pub rank: u32,
    /// Number of ranks.
    pub ranks: u32,
    /// The rank's GPU.
    pub device: u32,
    /// The Unix socket of the program that started the ranks.
    pub hub: PathBuf,
    /// What the ranks do in each other's memory before the tests of each lap.
    pub one_sided: Vec<OneSided>,
    /// The tests, in their order. None: the communicator is created and destroyed.
    pub tests: Vec<Test>,
    /// How NCCL knows the program's buffers.
    pub memory: Memory,
    /// Whether a window is registered (`ncclCommWindowRegister`) before the tests, which do not use
    /// it. It ends after them.
    pub window: bool,
    /// The rank that kills itself in the middle of the last test.
    pub killed: Option<u32>,
    /// Whether the tests are repeated until the program that started the ranks ends them.
    pub laps: bool,
    /// Whether the tests are timed: their repetitions are enqueued without a pause, and nothing is
    /// compared.
    pub timed: bool,
}

/// How NCCL knows the program's buffers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Memory {
    /// By the arguments of each call.
    Plain,
    /// `ncclCommRegister`. A second communicator then uses the buffers too, and ends before the tests
    /// are repeated.
    Registered,
    /// `ncclMemAlloc` and `ncclCommWindowRegister`, from 2.27 on.
    Windows,
}

/// A collective, several times.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// What NCCL does.
    pub collective: Collective,
    /// The type of the elements.
    pub element: DataType,
    /// The operator of reductions.
    pub operator: Operator,
    /// Elements that each rank contributes or receives from each rank.
    pub count: usize,
    /// Repetitions.
    pub times: u32,
}

/// The collectives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Collective {
    /// `ncclAllReduce`.
    AllReduce,
    /// `ncclAllReduce` with one buffer.
    AllReduceInPlace,
    /// `ncclAllGather`.
    AllGather,
    /// `ncclReduceScatter`.
    ReduceScatter,
    /// `ncclBroadcast`; the root changes from one repetition or test to the next.
    Broadcast,
    /// `ncclReduce`, likewise.
    Reduce,
    /// `ncclSend` to the next rank and `ncclRecv` from the one before, as one group.
    SendRecv,
    /// `ncclPutSignal` into the window of the next rank and `ncclWaitSignal` for the one before, from
    /// 2.29 on. It needs [`Memory::Windows`].
    PutSignal,
}

impl Collective {
    /// All that every release has.
    pub const ALL: [Self; 7] = [
        Self::AllReduce,
        Self::AllReduceInPlace,
        Self::AllGather,
        Self::ReduceScatter,
        Self::Broadcast,
        Self::Reduce,
        Self::SendRecv,
    ];

    /// Returns whether the collective reduces, by an operator.
    pub const fn reduces(self) -> bool {
        matches!(self, Self::AllReduce | Self::AllReduceInPlace | Self::ReduceScatter | Self::Reduce)
    }

    /// Returns the name that people use.
    pub const fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all-reduce",
            Self::AllReduceInPlace => "all-reduce-in-place",
            Self::AllGather => "all-gather",
            Self::ReduceScatter => "reduce-scatter",
            Self::Broadcast => "broadcast",
            Self::Reduce => "reduce",
            Self::SendRecv => "send-recv",
            Self::PutSignal => "put-signal",
        }
    }
}

/// The operators of reductions, with the numbers of `ncclRedOp_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(i32)]
pub enum Operator {
    /// `ncclSum`.
    Sum = 0,
    /// `ncclProd`.
    Prod = 1,
    /// `ncclMax`.
    Max = 2,
    /// `ncclMin`.
    Min = 3,
    /// `ncclAvg`.
    Avg = 4,
}

impl Operator {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Prod, Self::Max, Self::Min, Self::Avg];
}

/// The failure of a rank that puts without a window.
pub const NO_WINDOW: &str = "NCCL has made no window: it found no network for one-sided transfers";
/// The failure of a rank whose release lacks a function for one-sided transfers.
pub const NO_ONE_SIDED: &str = "the release lacks functions for one-sided transfers";

/// What a rank reports at its end.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Outcome {
    /// `ncclGetVersion`.
    pub version: i32,
    /// Seconds from the start of `ncclCommInitRank` to its end.
    pub init_seconds: f64,
    /// Whether NCCL returned a handle of the window, if there is one.
    pub window: Option<bool>,
    /// What was done in other ranks' memory, in its order; each with all of its laps. Bytes and
    /// values count as elements.
    pub one_sided: Vec<Ran>,
    /// The tests that ended, in their order; each with all of its laps.
    pub tests: Vec<Ran>,
    /// The asynchronous error that ended the last test (number and NCCL's text), if one did.
    pub asynchronous_error: Option<(i32, String)>,
}

/// A test that ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// Elements that were compared.
    pub compared: usize,
    /// Elements that were wrong.
    pub wrong: usize,
    /// The first wrong one.
    pub first: Option<Wrong>,
    /// Seconds of all repetitions, without the comparison. In a timed test, those of the fastest batch.
    pub seconds: f64,
}

impl Ran {
    /// Counts an element that is right or wrong.
    pub fn compare(&mut self, round: u32, index: usize, found: u64, expected: u64) {
        self.compared += 1;
        if found != expected {
            self.wrong += 1;
            self.first.get_or_insert(Wrong { round, index, found, expected });
        }
    }

    /// Adds a later lap of the same test.
    pub fn add(&mut self, lap: Self) {
        self.compared += lap.compared;
        self.wrong += lap.wrong;
        self.first = self.first.take().or(lap.first);
        self.seconds += lap.seconds;
    }
}
