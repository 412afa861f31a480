//! Registrations of NCCL's memory on the device of one port. Comms share registrations of the same
//! memory.

mod cache;
#[cfg(test)]
#[path = "tests.rs"]
mod cache_tests;
mod registered;
mod sync;

use nccl_net_versions::{Buffer, DmaBuf, MemKind};

use crate::verbs::MrOptions;
use cache::{Cache, Held};

pub(super) use cache::Span;
pub(crate) use registered::Registered;

/// Memory to be registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Its addresses.
    pub buffer: Buffer,
    /// Host or GPU memory.
    pub kind: MemKind,
    /// Its DMA-BUF, if it is not registered by its addresses.
    pub dmabuf: Option<DmaBuf>,
    /// How it is registered.
    pub options: MrOptions,
    /// Whether an adapter that is away registers it when the adapter is back.
    pub deferrable: bool,
}

/// What registrations of the same addresses must have in common to be shared. Not the file of a
/// DMA-BUF: NCCL opens a new one for each registration, and one address of a process is one memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct How {
    pub(super) kind: MemKind,
    pub(super) dmabuf: bool,
    pub(super) options: MrOptions,
}

/// A share in a registration, which ends with the last share.
pub(crate) type Registration = Held<How, Registered>;

/// The registrations of one device.
pub(super) type Registrations = Cache<How, Registered>;
