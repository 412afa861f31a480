//! Memory for messages at one end, of the host or of a GPU: filled before a round, checked after it.

use std::{mem::ManuallyDrop, os::fd::OwnedFd};

use super::{
    cuda::{Gpu, Memory},
    flow::Round,
    pattern,
    region::{Layout, Region},
};
use crate::failure::{Failure, Kind};
use crate::output::units;

/// Memory that a plugin registers. It stays mapped after a failure: the plugin may still access it
/// until the process ends.
pub(super) struct Area<'a> {
    pub(super) region: ManuallyDrop<Region>,
    layout: Layout,
    /// Memory of a GPU, laid out as the region. Messages are in it then, and the region has copies.
    gpu: Option<ManuallyDrop<Memory<'a>>>,
}

impl<'a> Area<'a> {
    pub(super) fn new(layout: Layout, gpu: Option<&'a Gpu>) -> Result<Self, Failure> {
        let region = ManuallyDrop::new(Region::new(layout)?);
        let gpu = gpu.map(|gpu| gpu.allocate(layout.len()).map(ManuallyDrop::new)).transpose()?;
        Ok(Self { region, layout, gpu })
    }

    /// Returns where the messages are.
    pub(super) fn addr(&self) -> *mut u8 {
        self.gpu.as_ref().map_or_else(|| self.region.addr(), |memory| memory.addr())
    }

    pub(super) const fn len(&self) -> usize {
        self.layout.len()
    }

    /// Returns whether the messages are in memory of a GPU.
    pub(super) const fn on_gpu(&self) -> bool {
        self.gpu.is_some()
    }

    /// Returns a DMA-BUF of the memory, if it is a GPU's and the driver makes one.
    pub(super) fn dma_buf(&self) -> Option<OwnedFd> {
        self.gpu.as_ref().and_then(|memory| memory.dma_buf())
    }

    /// Frees the memory, which no plugin has registered any more.
    pub(super) fn free(self) {
        drop(ManuallyDrop::into_inner(self.region));
        drop(self.gpu.map(ManuallyDrop::into_inner));
    }

    /// Copies a slot, with the bytes behind its message, to the GPU.
    fn upload(&mut self, slot: usize) -> Result<(), Failure> {
        let offset = self.region.slot_offset(slot);
        let bytes = self.region.guarded(slot);
        self.gpu.as_ref().map_or(Ok(()), |memory| memory.write(offset, bytes))
    }

    /// Copies a slot, with the bytes behind its message, from the GPU.
    fn download(&mut self, slot: usize) -> Result<(), Failure> {
        let offset = self.region.slot_offset(slot);
        let bytes = self.region.guarded(slot);
        self.gpu.as_ref().map_or(Ok(()), |memory| memory.read(offset, bytes))
    }

    /// Fills the slots to send.
    pub(super) fn fill(&mut self, round: &Round, salt: u64, alive: impl Fn()) -> Result<(), Failure> {
        self.set(round, salt, alive, pattern::fill)
    }

    /// Fills the slots to receive into with other bytes than the expected ones.
    pub(super) fn poison(&mut self, round: &Round, salt: u64, alive: impl Fn()) -> Result<(), Failure> {
        self.set(round, salt, alive, pattern::poison)
    }

    /// Sets the bytes of each slot by the number of its message.
    fn set(
        &mut self,
        round: &Round,
        salt: u64,
        alive: impl Fn(),
        bytes: fn(&mut [u8], u64),
    ) -> Result<(), Failure> {
        for slot in 0..round.messages() {
            bytes(self.region.slot(slot), round.number(slot, salt));
            self.upload(slot)?;
            alive();
        }
        Ok(())
    }

    /// Checks every received byte, and that the bytes behind each message did not change.
    pub(super) fn check(&mut self, round: &Round, salt: u64, alive: impl Fn()) -> Result<(), Failure> {
        for slot in 0..round.messages() {
            self.download(slot)?;
            let message = round.number(slot, salt);
            let wrong = |what: String| {
                let text =
                    format!("message {} of {}: {what}", message ^ salt, units::size(round.size as u64));
                Err(Failure::new(Kind::Data, text))
            };
            let sent = &self.region.slot(slot)[..round.len(slot)];
            if let Some(mut mismatch) = pattern::check(sent, message) {
                if let pattern::Origin::Message { number, .. } = &mut mismatch.origin {
                    *number ^= salt;
                }
                return wrong(mismatch.to_string());
            }
            if let Some(at) = self.region.overrun(slot) {
                return wrong(format!("the plugin wrote {at} bytes behind the message's end"));
            }
            alive();
        }
        Ok(())
    }
}
