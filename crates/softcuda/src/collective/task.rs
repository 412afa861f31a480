//! A task of a block: operations on connections, one after the other. The tasks of a stage run at
//! the same time.

use std::fmt;

use super::pat::Pat;
use crate::{
    Unknown,
    address::Address,
    kernel::device::Communicator,
    protocol::{Primitive, Primitives, Progress, Terms},
};

/// The operations of a task, in order.
pub(crate) type Operations = Box<dyn Iterator<Item = Primitive> + Send>;

/// Operations on connections, or a copy.
pub(crate) enum Task {
    /// A copy between buffers of this rank.
    Copy { from: Address, to: Address, bytes: usize },
    /// Operations whose connections are not open yet.
    Waiting(Plan),
    /// Operations in progress.
    Running { primitives: Primitives, operations: Operations },
    /// Open connections without further operations.
    Closing(Primitives),
    /// A collective on PAT.
    Pat(Box<Pat>),
    /// Nothing to do.
    Done,
}

/// What a task will do.
pub(crate) struct Plan {
    pub(crate) comm: Communicator,
    pub(crate) terms: Terms,
    pub(crate) receives: Vec<Address>,
    pub(crate) sends: Vec<Address>,
    pub(crate) operations: Operations,
}

impl Task {
    /// Returns whether the task has nothing more to do.
    pub(crate) const fn is_done(&self) -> bool {
        matches!(self, Self::Done)
    }

    /// Advances as far as it goes without waiting.
    pub(crate) fn step(&mut self) -> Result<Progress, Unknown> {
        let mut result = Progress::Waiting;
        loop {
            let (next, progress) = std::mem::replace(self, Self::Done).advance()?;
            *self = next;
            match (progress, &self) {
                (_, Self::Done) => return Ok(Progress::Done),
                (Progress::Done, _) => result = Progress::Moved,
                (Progress::Moved, _) => return Ok(Progress::Moved),
                (Progress::Waiting, _) => return Ok(result),
            }
        }
    }

    /// Does one thing. [`Progress::Done`] means that the next thing may be done.
    fn advance(self) -> Result<(Self, Progress), Unknown> {
        Ok(match self {
            Self::Done => (Self::Done, Progress::Done),
            Self::Copy { from, to, bytes } => {
                if from != to {
                    // SAFETY: buffers that the user gave to NCCL for this many bytes. They may
                    // overlap. The user does not touch them before the kernel ends.
                    unsafe { std::ptr::copy(from.get() as *const u8, to.get() as *mut u8, bytes) };
                }
                (Self::Done, Progress::Done)
            }
            Self::Waiting(plan) => (plan.open()?, Progress::Done),
            Self::Running { mut primitives, mut operations } => match primitives.advance()? {
                Progress::Done => match operations.next() {
                    Some(operation) => {
                        primitives.start(operation);
                        (Self::Running { primitives, operations }, Progress::Done)
                    }
                    None => (Self::Closing(primitives), Progress::Done),
                },
                progress => (Self::Running { primitives, operations }, progress),
            },
            Self::Closing(mut primitives) => match primitives.close() {
                Progress::Done => (Self::Done, Progress::Done),
                progress => (Self::Closing(primitives), progress),
            },
            Self::Pat(mut pat) => match pat.step()? {
                Progress::Done => (Self::Done, Progress::Done),
                progress => (Self::Pat(pat), progress),
            },
        })
    }
}

impl Plan {
    fn open(self) -> Result<Task, Unknown> {
        let layout = self.comm.layout();
        // SAFETY: connections of the communicator, which outlives its kernels. The host runs one
        // kernel of a channel at a time, and a stage uses a connection once. The user's buffers are
        // as large as the work states.
        let primitives =
            unsafe { Primitives::open(self.terms, &layout.connection, &self.receives, &self.sends) }?;
        Ok(Task::Running { primitives, operations: self.operations })
    }
}

impl fmt::Debug for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Copy { from, to, bytes } => write!(f, "copy {bytes} bytes from {from:?} to {to:?}"),
            Self::Waiting(plan) => write!(f, "waiting {:?}", plan.terms),
            Self::Running { primitives, .. } => write!(f, "running {primitives:?}"),
            Self::Closing(primitives) => write!(f, "closing {primitives:?}"),
            Self::Pat(pat) => pat.fmt(f),
            Self::Done => f.write_str("done"),
        }
    }
}
