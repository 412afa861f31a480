//! Registered memory of NCCL's.

use std::sync::Arc;

use nccl_net_versions::{Buffer, MemKind};

use crate::error::{Error, Result};
use crate::proto::MAX_RAILS;
use crate::verbs::{self, Pd};

/// A buffer, registered on each rail of one comm.
#[derive(Debug)]
pub struct Mr {
    buffer: Buffer,
    rails: Vec<verbs::Mr>,
}

impl Mr {
    /// Registers `buffer` in each of `pds`. Takes no lock of the data path.
    pub(super) fn new(pds: &[Arc<Pd>], buffer: Buffer, kind: MemKind) -> Result<Self> {
        if kind != MemKind::Host {
            return Err(Error::Usage(format!(
                "registration of {kind:?} memory at {:#x}: this plugin takes host memory only (ptrSupport is NCCL_PTR_HOST)",
                buffer.addr
            )));
        }
        if buffer.len == 0 || buffer.addr == 0 {
            return Err(Error::Argument(format!(
                "registration of {} bytes at {:#x}: expected at least one byte, and not at NULL",
                buffer.len, buffer.addr
            )));
        }
        let rails =
            pds.iter().map(|pd| verbs::Mr::new(pd, buffer.addr, buffer.len, true)).collect::<Result<_>>()?;
        Ok(Self { buffer, rails })
    }

    /// Whether it covers `part` and belongs to the rails of `pds`.
    pub(super) fn check(&self, pds: &[Arc<Pd>], part: Buffer) -> Result<()> {
        let same = self.rails.len() == pds.len()
            && self.rails.iter().zip(pds).all(|(mr, pd)| Arc::ptr_eq(mr.pd(), pd));
        if !same {
            return Err(Error::Argument("the registration was made on a connection with other rails".into()));
        }
        let start = part.addr.checked_sub(self.buffer.addr);
        let inside = start.is_some_and(|s| s <= self.buffer.len && part.len <= self.buffer.len - s);
        if inside {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{} bytes at {:#x} are not inside of the registration of {} bytes at {:#x}",
            part.len, part.addr, self.buffer.len, self.buffer.addr
        )))
    }

    /// Local key per rail.
    pub(super) fn lkeys(&self) -> [u32; MAX_RAILS] {
        self.keys(verbs::Mr::lkey)
    }

    /// Remote key per rail.
    pub(super) fn rkeys(&self) -> [u32; MAX_RAILS] {
        self.keys(verbs::Mr::rkey)
    }

    fn keys(&self, key: impl Fn(&verbs::Mr) -> u32) -> [u32; MAX_RAILS] {
        let mut keys = [0; MAX_RAILS];
        for (place, mr) in keys.iter_mut().zip(&self.rails) {
            *place = key(mr);
        }
        keys
    }
}

/// `check`s an optional registration: only an empty buffer needs none.
pub(super) fn checked<'a>(mr: Option<&'a Mr>, pds: &[Arc<Pd>], part: Buffer) -> Result<Option<&'a Mr>> {
    match mr {
        Some(mr) => mr.check(pds, part).map(|()| Some(mr)),
        None if part.len == 0 => Ok(None),
        None => Err(Error::Argument(format!(
            "{} bytes at {:#x} come without a registration",
            part.len, part.addr
        ))),
    }
}
