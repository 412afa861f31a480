//! Memory that NCCL registers on a comm.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};

use mpib_proto::{MAX_RAILS, rails};
use nccl_net_versions::{Buffer, DmaBuf, MemKind};
use parking_lot::Mutex;

use crate::config::Config;
use crate::device::{Gpu, Memory, Nic, Registered, Registration};
use crate::error::{Error, Fast, Result};
use crate::latest::Latest;
use crate::verbs::{Keys, MrOptions, keep_dmabuf};

/// Registers memory on each rail of one comm.
#[derive(Debug)]
pub(crate) struct Registrar {
    /// By rail. A port with several stripes occurs several times.
    nics: Arc<[Arc<Nic>]>,
    /// Requests relaxed ordering on PCIe.
    relaxed: bool,
    /// `MPIB_FLUSH`
    flush: Option<bool>,
    /// Whether rails come back.
    failover: bool,
    living: Arc<LivingMrs>,
}

/// The registrations that NCCL holds of one comm, by the address of their keys.
#[derive(Debug, Default)]
pub(crate) struct LivingMrs(Mutex<BTreeMap<usize, Weak<Held>>>);

/// A buffer that is registered on each rail of one comm.
#[derive(Debug)]
pub struct Mr {
    buffer: Buffer,
    kind: MemKind,
    /// Whether the processor can read it at the address in `buffer`.
    readable: bool,
    /// The rails of the registrar that made it.
    nics: Arc<[Arc<Nic>]>,
    held: Arc<Held>,
    living: Arc<LivingMrs>,
}

/// The registrations of a buffer by rail, with their keys.
#[derive(Debug)]
struct Held {
    /// Others when an adapter is opened again.
    keys: Latest<RailKeys>,
    registrations: Vec<Registration>,
}

/// The keys of a buffer by rail.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct RailKeys {
    local: [u32; MAX_RAILS],
    remote: [u32; MAX_RAILS],
}

impl Registrar {
    pub(crate) fn new(nics: Vec<Arc<Nic>>, config: &Config) -> Self {
        Self {
            nics: nics.into(),
            relaxed: config.relaxed_ordering != 0,
            flush: config.flush,
            failover: config.failover,
            living: Arc::default(),
        }
    }

    /// Returns the registrations that NCCL holds.
    pub(crate) fn living(&self) -> Arc<LivingMrs> {
        Arc::clone(&self.living)
    }

    /// Registers `buffer` on each rail, through its DMA-BUF if there is one. Takes no lock of the
    /// data path. A failure leaves nothing registered.
    pub(crate) fn register(&self, buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>) -> Result<Mr> {
        supported(buffer, kind, dmabuf, &self.nics)?;
        if buffer.len == 0 || buffer.addr == 0 {
            return Err(Error::Argument(format!(
                "registration of {} bytes at {:#x}: expected at least one byte, and not at NULL",
                buffer.len, buffer.addr
            )));
        }
        // A sender's registration, too: receivers share it.
        let reads = self.flush.unwrap_or(kind != MemKind::Host || dmabuf.is_some());
        let options = MrOptions { reads, relaxed: self.relaxed };
        let memory = Memory { buffer, kind, dmabuf, options, deferrable: self.failover };
        let kept = dmabuf.filter(|_| self.failover).and_then(|file| keep_dmabuf(file.fd));
        let mut keys = RailKeys::default();
        let mut registrations = Vec::with_capacity(self.nics.len());
        for (rail, nic) in self.nics.iter().enumerate() {
            let (registration, now) = nic.register(&memory, kept.as_ref())?;
            keys.put(rail, now);
            registrations.push(registration);
        }
        let held = Arc::new(Held { keys: Latest::new(keys), registrations });
        // Under the lock: an adapter that is opened again has new keys from then on.
        let mut living = self.living.0.lock();
        held.renew(u8::MAX);
        living.insert(Arc::as_ptr(&held).addr(), Arc::downgrade(&held));
        drop(living);
        let readable = kind == MemKind::Host && dmabuf.is_none();
        let (nics, living) = (Arc::clone(&self.nics), Arc::clone(&self.living));
        Ok(Mr { buffer, kind, readable, nics, held, living })
    }

    /// Returns an error unless the registration covers `part` and was made for these rails. Only an
    /// empty buffer needs no registration.
    #[inline]
    pub(crate) fn check(&self, mr: Option<&Mr>, part: Buffer) -> Fast<()> {
        match mr {
            // The usual case: NCCL registered the buffer on this very comm.
            Some(mr) if Arc::ptr_eq(&mr.nics, &self.nics) && mr.covers(part) => Ok(()),
            _ => self.check_unusual(mr, part),
        }
    }

    /// Like [`check`](Self::check) for a flush, which reads only the first byte of `part`.
    /// NCCL leaves receives out of a group's list of buffers, and not out of its list of sizes: the
    /// size may belong to another buffer.
    #[inline]
    pub(crate) fn check_start(&self, mr: Option<&Mr>, part: Buffer) -> Fast<()> {
        self.check(mr, Buffer { len: part.len.min(1), ..part })
    }

    #[cold]
    fn check_unusual(&self, mr: Option<&Mr>, part: Buffer) -> Fast<()> {
        match mr {
            Some(mr) => Ok(mr.check(&self.nics, part)?),
            None if part.len == 0 => Ok(()),
            None => {
                let Buffer { addr, len } = part;
                Err(Error::Argument(format!("{len} bytes at {addr:#x} come without a registration")).into())
            }
        }
    }
}

impl LivingMrs {
    /// Reads the keys of these rails again.
    pub(crate) fn renew(&self, which: u8) {
        // Locked throughout: a deregistration ends a registration before it returns.
        self.0.lock().values().filter_map(Weak::upgrade).for_each(|held| held.renew(which));
    }
}

impl Held {
    /// Reads the keys of these rails again.
    fn renew(&self, which: u8) {
        let mut keys = self.keys.get().clone();
        for rail in rails(which).take_while(|rail| *rail < self.registrations.len()) {
            keys.put(rail, self.registrations[rail].read(Registered::keys).unwrap_or_default());
        }
        if keys != *self.keys.get() {
            self.keys.set(keys);
        }
    }
}

impl RailKeys {
    fn put(&mut self, rail: usize, keys: Keys) {
        (self.local[rail], self.remote[rail]) = (keys.lkey(), keys.rkey());
    }
}

impl Drop for Mr {
    fn drop(&mut self) {
        self.living.0.lock().remove(&Arc::as_ptr(&self.held).addr());
    }
}

/// Returns an error if these ports cannot register such memory at all.
fn supported(buffer: Buffer, kind: MemKind, dmabuf: Option<DmaBuf>, nics: &[Arc<Nic>]) -> Result<()> {
    let why = match (dmabuf, kind, Gpu::here()) {
        (Some(_), ..) => match nics.iter().find_map(|nic| Some((nic, nic.takes_dmabuf().err()?))) {
            None => return Ok(()),
            Some((nic, why)) => format!("{} registers no memory by DMA-BUF: {why}", nic.name()),
        },
        (None, MemKind::Host, _) | (None, MemKind::Cuda, Gpu::Direct(_)) => return Ok(()),
        (None, MemKind::Cuda, gpu) => gpu.to_string(),
        (None, MemKind::DmaBuf, _) => "DMA-BUF memory needs its file: expected regMrDmaBuf".into(),
    };
    let by = if dmabuf.is_some() { " by DMA-BUF" } else { "" };
    Err(Error::Usage(format!("registration of {kind:?} memory at {:#x}{by}: {why}", buffer.addr)))
}

impl Mr {
    fn check(&self, nics: &[Arc<Nic>], part: Buffer) -> Result<()> {
        let same =
            self.nics.len() == nics.len() && self.nics.iter().zip(nics).all(|(a, b)| Arc::ptr_eq(a, b));
        if !same {
            return Err(Error::Argument("the registration was made on a connection with other rails".into()));
        }
        if self.covers(part) {
            // Another comm may use a rail again before the comm that made the registration.
            let _living = self.living.0.lock();
            self.held.renew(u8::MAX);
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

    /// Returns where the memory lies.
    pub(crate) fn kind(&self) -> MemKind {
        self.kind
    }

    /// Returns whether the processor can read the memory.
    #[inline]
    pub(crate) fn is_readable(&self) -> bool {
        self.readable
    }

    /// Returns the local key of each rail.
    #[inline]
    pub(crate) fn lkeys(&self) -> &[u32; MAX_RAILS] {
        &self.held.keys.get().local
    }

    /// Returns the remote key of each rail.
    #[inline]
    pub(crate) fn rkeys(&self) -> &[u32; MAX_RAILS] {
        &self.held.keys.get().remote
    }
}
