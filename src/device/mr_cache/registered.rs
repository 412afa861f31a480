//! A registration, and how to make it again on another context of its adapter.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use super::How;
use super::cache::Span;
use crate::error::{Error, Result};
use crate::verbs::{Keys, Mr, Pd};

/// A registration, with what is needed to make it again.
#[derive(Debug)]
pub(crate) struct Registered {
    /// `None` while the adapter is away.
    mr: Option<Mr>,
    /// The DMA-BUF with the offset of its first page, if it was kept.
    file: Option<(Arc<OwnedFd>, u64)>,
}

impl Registered {
    pub(crate) fn new(mr: Option<Mr>, file: Option<(Arc<OwnedFd>, u64)>) -> Self {
        Self { mr, file }
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
        Ok(Self { mr: Some(mr), file: self.file.clone() })
    }

    /// Deregisters the memory as [`Mr::retire`] does.
    pub(crate) fn retire(self) {
        self.mr.into_iter().for_each(Mr::retire);
    }
}
