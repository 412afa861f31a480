//! Windows: memory that all ranks of a group have registered under one number.

use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use nccl_net_versions::{Buffer, DmaBuf, MemKind};

use super::host_memory::HostMemory;
use crate::config::Config;
use crate::device::Device;
use crate::error::{Error, Result};
use crate::transport::Mr;
use crate::transport::memory::Registrar;
use crate::verbs::keep_dmabuf;

/// A registered buffer.
#[derive(Debug)]
pub struct Window {
    /// Its number, the same on each rank: ranks register in one order.
    pub(super) number: u32,
    pub(super) buffer: Buffer,
    kind: MemKind,
    /// Kept open: connections that begin later register it, too.
    file: Option<(Arc<OwnedFd>, u64)>,
    /// NCCL never sets a word in it, once registered.
    pub(super) never_reset: bool,
    /// On each port of the device. Registrations on connections share it.
    whole: Mr,
}

/// What NCCL asks for with a registration.
#[derive(Debug, Clone, Copy)]
pub(super) struct Request {
    pub(super) buffer: Buffer,
    pub(super) kind: MemKind,
    pub(super) dmabuf: Option<DmaBuf>,
    pub(super) never_reset: bool,
}

impl Window {
    /// Registers memory on each port of a device. The window has no number yet.
    pub(super) fn register(device: &Device, config: &Config, request: Request) -> Result<Self> {
        let Request { buffer, kind, dmabuf, never_reset } = request;
        let whole = Registrar::new(device.rails.clone(), config).register(buffer, kind, dmabuf)?;
        let kept = |file: DmaBuf| {
            let file = keep_dmabuf(file.fd).map(|kept| (kept, file.offset));
            file.ok_or_else(|| {
                Error::Usage("the DMA-BUF of a window could not be kept open: raise ulimit -n".into())
            })
        };
        let file = dmabuf.map(kept).transpose()?;
        Ok(Self { number: 0, buffer, kind, file, never_reset, whole })
    }

    /// Returns the part with this offset and size.
    pub(super) fn part(&self, offset: u64, size: u64) -> Result<Buffer> {
        let len = self.buffer.len;
        let place = usize::try_from(offset).ok().zip(usize::try_from(size).ok());
        match place.filter(|(offset, size)| *offset <= len && *size <= len - *offset) {
            Some((offset, size)) => Ok(Buffer { addr: self.buffer.addr + offset, len: size }),
            None => Err(Error::Argument(format!(
                "{size} bytes at offset {offset} are not inside of window {}, which has {len} bytes",
                self.number
            ))),
        }
    }

    /// Returns the memory if the processor reaches it.
    pub(super) fn host(&self) -> Option<HostMemory<'_>> {
        let Buffer { addr, len } = self.buffer;
        // SAFETY: host memory that an adapter has pinned, so it is mapped. NCCL keeps it until it has
        // deregistered the window.
        self.whole.is_readable().then(|| unsafe { HostMemory::new(addr, len) })
    }

    /// Returns whether received data needs a flush.
    pub(super) fn is_on_gpu(&self) -> bool {
        self.kind != MemKind::Host
    }

    /// Registers the window on a connection, whose rails may differ.
    fn register_on(&self, registrar: &Registrar) -> Result<Mr> {
        let dmabuf =
            self.file.as_ref().map(|(file, offset)| DmaBuf { offset: *offset, fd: file.as_raw_fd() });
        registrar.register(self.buffer, self.kind, dmabuf)
    }
}

/// The registrations of windows on one connection, by number. Made at the first use.
#[derive(Debug, Default)]
pub(super) struct Registered(Vec<Option<Mr>>);

impl Registered {
    /// Returns the registration of a window on the connection of `registrar`.
    pub(super) fn get(&mut self, window: &Window, registrar: &Registrar) -> Result<&Mr> {
        let number = window.number as usize;
        if self.0.len() <= number {
            self.0.resize_with(number + 1, || None);
        }
        let place = &mut self.0[number];
        if place.is_none() {
            *place = Some(window.register_on(registrar)?);
        }
        place.as_ref().ok_or_else(|| Error::Internal("a window without a registration".into()))
    }

    /// Ends the registration of a window.
    pub(super) fn forget(&mut self, number: u32) {
        if let Some(place) = self.0.get_mut(number as usize) {
            *place = None;
        }
    }
}

/// The windows of a group, by number. Numbers are never used again.
#[derive(Debug, Default)]
pub(super) struct Windows(Vec<Option<Arc<Window>>>);

/// What a number names.
#[derive(Debug)]
pub(super) enum Found {
    Window(Arc<Window>),
    /// This rank has not registered it yet.
    NotYet,
    /// This rank has deregistered it. A small put is complete for its origin before it is handled
    /// here, and so may come late.
    Ended,
}

impl Windows {
    /// Adds a window under the next number.
    pub(super) fn add(&mut self, mut window: Window) -> Result<Arc<Window>> {
        window.number = u32::try_from(self.0.len())
            .map_err(|_| Error::Usage("a group has had 2^32 windows, and no more fit".into()))?;
        let window = Arc::new(window);
        self.0.push(Some(Arc::clone(&window)));
        Ok(window)
    }

    pub(super) fn remove(&mut self, number: u32) {
        if let Some(place) = self.0.get_mut(number as usize) {
            *place = None;
        }
    }

    /// Returns the window that a peer names.
    pub(super) fn find(&self, number: u32) -> Found {
        match self.0.get(number as usize) {
            None => Found::NotYet,
            Some(None) => Found::Ended,
            Some(Some(window)) => Found::Window(Arc::clone(window)),
        }
    }
}
