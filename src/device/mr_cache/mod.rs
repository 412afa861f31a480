//! Registrations of NCCL's memory on the device of one port. Comms share registrations of the same
//! memory.

mod cache;
#[cfg(test)]
#[path = "tests.rs"]
mod cache_tests;
mod sync;

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nccl_net_versions::{Buffer, DmaBuf, MemKind};

use crate::error::{Error, Result};
use crate::verbs::{Keys, Mr, MrOptions, Pd};
use crate::worker::Worker;
use cache::{Cache, Held};

pub(super) use cache::Span;

/// Memory to be registered.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Memory {
    /// Its addresses.
    pub(crate) buffer: Buffer,
    /// Host or GPU memory.
    pub(crate) kind: MemKind,
    /// Its DMA-BUF, if it is not registered by its addresses.
    pub(crate) dmabuf: Option<DmaBuf>,
    /// How it is registered.
    pub(crate) options: MrOptions,
    /// Whether an adapter that is away registers it when the adapter is back.
    pub(crate) deferrable: bool,
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

/// A registration, with what is needed to make it again.
#[derive(Debug)]
pub(crate) struct Registered {
    /// `None` while the adapter is away.
    mr: Option<Mr>,
    /// The DMA-BUF with the offset of its first page, if it was kept.
    file: Option<(Arc<OwnedFd>, u64)>,
    /// Deregisters the memory.
    worker: Worker,
}

impl Registered {
    pub(crate) fn new(mr: Option<Mr>, file: Option<(Arc<OwnedFd>, u64)>, worker: &Worker) -> Self {
        Self { mr, file, worker: worker.clone() }
    }

    /// Returns the keys. They are 0 while the adapter is away.
    pub(crate) fn keys(&self) -> Keys {
        self.mr.as_ref().map(Mr::keys).unwrap_or_default()
    }

    /// Registers the same memory in another PD.
    pub(crate) fn again(&self, pd: &Arc<Pd>, how: How, span: &Span) -> Result<Self> {
        let (start, bytes) = (span.pages().start, span.pages().len());
        let mr = match (&self.file, how.dmabuf) {
            (Some((file, offset)), true) => {
                Mr::of_dmabuf(pd, (file.as_raw_fd(), *offset), (start, bytes), how.options)?
            }
            (None, true) => {
                return Err(Error::Usage(format!(
                    "the DMA-BUF of {bytes} bytes at {start:#x} was not kept, since MPIB_FAILOVER=0 is set or the \
                     process had no descriptor left"
                )));
            }
            (_, false) => Mr::new(pd, start, bytes, how.options)?,
        };
        Ok(Self { mr: Some(mr), file: self.file.clone(), worker: self.worker.clone() })
    }

    /// Deregisters the memory as [`Mr::retire`] does.
    pub(crate) fn retire(mut self) {
        self.mr.take().into_iter().for_each(Mr::retire);
    }
}

/// Waits until the memory is deregistered, but not for an adapter that hangs.
impl Drop for Registered {
    fn drop(&mut self) {
        if let Some(mr) = self.mr.take() {
            self.worker.release(mr);
        }
    }
}
