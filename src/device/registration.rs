//! Registers memory on a port, through its cache of registrations.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use nccl_net_versions::{Buffer, DmaBuf, MemKind};

use super::gpu;
use super::mr_cache::{How, Memory, Registered, Registration, Span};
use super::nic::Nic;
use crate::error::{Error, Result, errno};
use crate::verbs::{Context, Keys, Mr, Pd, page_size};

impl Nic {
    /// Returns a registration that covers `memory`: an existing one, else a new one of its whole
    /// pages. `kept`: its DMA-BUF, to register the memory again.
    pub(crate) fn register(
        &self,
        memory: &Memory,
        kept: Option<&Arc<OwnedFd>>,
    ) -> Result<(Registration, Keys)> {
        let Memory { buffer: Buffer { addr, len }, kind, dmabuf, options, deferrable } = *memory;
        let span = Span::new(addr, len, page_size()).ok_or_else(|| {
            Error::Argument(format!("{len} bytes at {addr:#x} end after the last possible address"))
        })?;
        let file = dmabuf.map(|file| of_first_page(file, &span)).transpose()?;
        let whole = span.clone();
        let make = || {
            let (start, bytes) = (whole.pages().start, whole.pages().len());
            let pd = self.pd();
            let made = match file {
                None => Mr::new(&pd, start, bytes, options),
                Some(DmaBuf { fd, offset }) => Mr::of_dmabuf(&pd, (fd, offset), (start, bytes), options),
            };
            let mr = match made {
                Ok(mr) => Some(mr),
                Err(_) if deferrable && pd.context().is_dead(self.port.number) => None,
                Err(e) => return Err(explain(e, memory, bytes > len)),
            };
            let kept = kept.zip(file).map(|(kept, file)| (Arc::clone(kept), file.offset));
            Ok(Registered::new(mr, kept, self.worker()))
        };
        self.registrations.get(How { kind, dmabuf: dmabuf.is_some(), options }, span, make, Registered::keys)
    }

    /// Returns the keys of a registration that covers `buffer`.
    pub(crate) fn keys_of(&self, buffer: Buffer) -> Option<Keys> {
        let Buffer { addr, len } = buffer;
        self.registrations.covering(&(addr..addr.checked_add(len)?), Registered::keys)
    }

    /// Uses another context of their HCA for these ports from now on, and registers all memory there.
    ///
    /// # Errors
    /// Some memory cannot be registered. The context of all of them remains the one before.
    pub(crate) fn move_all(ports: &[&Self], context: &Arc<Context>) -> Result<()> {
        let Some((first, rest)) = ports.split_first() else { return Ok(()) };
        let pd = Arc::new(Pd::new(context)?);
        let again = |how: &How, span: &Span, old: &Registered| old.again(&pd, *how, span);
        let commit = || {
            Self::move_all(rest, context)?;
            *first.pd.write() = Arc::clone(&pd);
            first.forget();
            first.health.network_changed(Instant::now());
            Ok(())
        };
        first.registrations.renew(again, commit, Registered::retire)
    }

    /// Whether the device registers DMA-BUFs. Tried once. The error is the reason.
    pub(crate) fn takes_dmabuf(&self) -> Result<(), &str> {
        let found = self.dmabuf.get_or_init(|| probe(&self.pd()));
        found.as_ref().copied().map_err(String::as_str)
    }
}

fn probe(pd: &Pd) -> Result<(), String> {
    pd.takes_dmabuf().map_err(|e| {
        format!(
            "ibv_reg_dmabuf_mr returned {:?}: libibverbs (rdma-core 34), the kernel (5.12) or the adapter's driver is too old for it",
            errno(&e)
        )
    })
}

/// Returns the file with the offset of the span's first page. The kernel maps whole pages: an
/// address and its offset must be equal modulo the page size.
fn of_first_page(file: DmaBuf, span: &Span) -> Result<DmaBuf> {
    let (addr, pages) = (span.bytes().start, span.pages());
    let offset = file.offset.checked_sub((addr - pages.start) as u64);
    let offset = offset.filter(|offset| offset.is_multiple_of(page_size() as u64)).ok_or_else(|| {
        Error::Argument(format!(
            "a DMA-BUF's offset is {}, and its address {addr:#x}: expected both to be equal modulo the page size of {} bytes",
            file.offset,
            page_size()
        ))
    })?;
    Ok(DmaBuf { offset, ..file })
}

/// Adds to an error what was requested, if that was less than `whole` pages, and likely causes for
/// GPU memory.
fn explain(e: Error, memory: &Memory, whole: bool) -> Error {
    let Error::Verbs { call, source, mut detail } = e else { return e };
    let Buffer { addr, len } = memory.buffer;
    if whole {
        detail += &format!(", the whole pages of {len} bytes at {addr:#x}");
    }
    if memory.kind != MemKind::Host || memory.dmabuf.is_some() {
        detail += &format!(". {}", gpu::causes(errno(&source), memory.dmabuf.is_some()));
    }
    Error::Verbs { call, source, detail }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_begins_where_its_first_page_does() {
        let page = page_size();
        let at = |addr, offset| {
            let span = Span::new(addr, 100, page).unwrap();
            of_first_page(DmaBuf { offset, fd: 3 }, &span).map(|file| file.offset)
        };
        let page = page as u64;
        assert_eq!(at(0x10_0000, 0).unwrap(), 0);
        assert_eq!(at(0x10_0000, 3 * page).unwrap(), 3 * page);
        assert_eq!(at(0x10_0010, page + 0x10).unwrap(), page);
        assert_eq!(at(0x10_0010, 0x10).unwrap(), 0);
        for (addr, offset) in [(0x10_0010, 0), (0x10_0000, 0x10), (0x10_0010, page), (0x10_0010, page + 0x20)]
        {
            let error = at(addr, offset).unwrap_err().to_string();
            assert!(error.contains("equal modulo the page size"), "{error}");
        }
    }
}
