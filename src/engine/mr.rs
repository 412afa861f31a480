//! Registered memory of NCCL's.

use std::sync::Arc;

use nccl_net_versions::{Buffer, MemKind};

use crate::config::Config;
use crate::device::Gpu;
use crate::error::{Error, Fast, Result};
use crate::proto::MAX_RAILS;
use crate::verbs::{self, Pd};

/// How one comm registers memory: alike on each of its rails.
#[derive(Debug)]
pub(super) struct Registrar {
    pds: Arc<[Arc<Pd>]>,
    /// Asks for relaxed ordering on PCIe.
    relaxed: bool,
}

/// A buffer, registered on each rail of one comm.
#[derive(Debug)]
pub struct Mr {
    buffer: Buffer,
    kind: MemKind,
    rails: Vec<verbs::Mr>,
    /// Of the registrar, where it was made.
    pds: Arc<[Arc<Pd>]>,
    /// Per rail.
    lkeys: [u32; MAX_RAILS],
    /// Per rail.
    rkeys: [u32; MAX_RAILS],
}

impl Registrar {
    pub(super) fn new(pds: Vec<Arc<Pd>>, config: &Config) -> Self {
        Self { pds: pds.into(), relaxed: config.relaxed_ordering != 0 }
    }

    /// Registers `buffer` on each rail. Takes no lock of the data path.
    pub(super) fn register(&self, buffer: Buffer, kind: MemKind) -> Result<Mr> {
        supported(buffer, kind)?;
        if buffer.len == 0 || buffer.addr == 0 {
            return Err(Error::Argument(format!(
                "registration of {} bytes at {:#x}: expected at least one byte, and not at NULL",
                buffer.len, buffer.addr
            )));
        }
        let on = |pd| verbs::Mr::new(pd, buffer.addr, buffer.len, self.relaxed);
        let rails = self.pds.iter().map(on).collect::<Result<Vec<_>>>();
        let rails = if kind == MemKind::Cuda { rails.map_err(gpu_causes)? } else { rails? };
        let (lkeys, rkeys) = (keys(&rails, verbs::Mr::lkey), keys(&rails, verbs::Mr::rkey));
        Ok(Mr { buffer, kind, rails, pds: Arc::clone(&self.pds), lkeys, rkeys })
    }

    /// An error unless a registration covers `part` and was made for these rails; only an empty buffer needs none.
    #[inline]
    pub(super) fn check(&self, mr: Option<&Mr>, part: Buffer) -> Fast<()> {
        match mr {
            // As NCCL does it: registered on this very comm.
            Some(mr) if Arc::ptr_eq(&mr.pds, &self.pds) && mr.covers(part) => Ok(()),
            _ => self.check_unusual(mr, part),
        }
    }

    #[cold]
    fn check_unusual(&self, mr: Option<&Mr>, part: Buffer) -> Fast<()> {
        match mr {
            Some(mr) => Ok(mr.check(&self.pds, part)?),
            None if part.len == 0 => Ok(()),
            None => {
                let Buffer { addr, len } = part;
                Err(Error::Argument(format!("{len} bytes at {addr:#x} come without a registration")).into())
            }
        }
    }
}

/// Whether such memory can be registered here at all.
fn supported(buffer: Buffer, kind: MemKind) -> Result<()> {
    let why = match (kind, Gpu::here()) {
        (MemKind::Host, _) | (MemKind::Cuda, Gpu::Direct(_)) => return Ok(()),
        (MemKind::Cuda, gpu) => gpu.to_string(),
        (MemKind::DmaBuf, _) => "this plugin registers no memory by DMA-BUF".into(),
    };
    Err(Error::Usage(format!("registration of {kind:?} memory at {:#x}: {why}", buffer.addr)))
}

/// What to look at when GPU memory could not be registered.
fn gpu_causes(e: Error) -> Error {
    match e {
        Error::Verbs { call, source, detail } => {
            let detail = format!(
                "{detail}. This is GPU memory: was it freed? Is it managed or stream-ordered (cudaMallocManaged, cudaMallocAsync), \
                 which adapters cannot reach? Is the GPU's BAR1 full (nvidia-smi -q -d MEMORY)? Does dmesg tell of \
                 nvidia_peermem, which must fit the running driver and RDMA core?"
            );
            Error::Verbs { call, source, detail }
        }
        e => e,
    }
}

impl Mr {
    fn check(&self, pds: &[Arc<Pd>], part: Buffer) -> Result<()> {
        let same = self.rails.len() == pds.len()
            && self.rails.iter().zip(pds).all(|(mr, pd)| Arc::ptr_eq(mr.pd(), pd));
        if !same {
            return Err(Error::Argument("the registration was made on a connection with other rails".into()));
        }
        if self.covers(part) {
            return Ok(());
        }
        Err(Error::Argument(format!(
            "{} bytes at {:#x} are not inside of the registration of {} bytes at {:#x}",
            part.len, part.addr, self.buffer.len, self.buffer.addr
        )))
    }

    #[inline]
    fn covers(&self, part: Buffer) -> bool {
        let start = part.addr.checked_sub(self.buffer.addr);
        start.is_some_and(|s| s <= self.buffer.len && part.len <= self.buffer.len - s)
    }

    /// Where it lies.
    pub(super) fn kind(&self) -> MemKind {
        self.kind
    }

    /// Local key per rail.
    #[inline]
    pub(super) fn lkeys(&self) -> &[u32; MAX_RAILS] {
        &self.lkeys
    }

    /// Remote key per rail.
    #[inline]
    pub(super) fn rkeys(&self) -> &[u32; MAX_RAILS] {
        &self.rkeys
    }
}

fn keys(rails: &[verbs::Mr], key: impl Fn(&verbs::Mr) -> u32) -> [u32; MAX_RAILS] {
    let mut keys = [0; MAX_RAILS];
    for (place, mr) in keys.iter_mut().zip(rails) {
        *place = key(mr);
    }
    keys
}
