//! Control memory, which peers write.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::memory::{Keys, Mr, MrOptions, Pd};
use super::pages::Pages;
use crate::error::{Error, Result};

/// Control memory, registered on several devices. Peers write it at any time, so it is only
/// accessed as atomic words. A clone is the same memory, which lives as long as any of them.
#[derive(Debug, Clone)]
pub struct Region {
    // The registrations are dropped before the memory that they cover.
    mrs: Vec<Arc<Mr>>,
    /// The keys of each registration.
    keys: Vec<Keys>,
    /// How they are made. Control memory is polled, so its writes must stay in order on the bus:
    /// never relaxed.
    options: MrOptions,
    memory: Arc<Pages>,
}

/// The words of a [`Region`], which they keep mapped.
#[derive(Debug)]
pub struct Words {
    // Copied: the data path reads the words through one pointer.
    start: NonNull<AtomicU64>,
    words: usize,
    _memory: Arc<Pages>,
}

// SAFETY: plain memory that is accessed as atomics only.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

impl Deref for Words {
    type Target = [AtomicU64];

    #[inline]
    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: as in `Pages::words`; the memory lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Region {
    /// Allocates `words` zeroed 64-bit words and registers them in each of `pds`, once for a PD
    /// that occurs several times. `reads` permits the adapters to read it: they try by that whether
    /// they can flush.
    pub fn new(pds: &[Arc<Pd>], words: usize, reads: bool) -> Result<Self> {
        let memory = Pages::new(words)
            .map_err(|source| Error::io(format!("{words} words of control memory"), source))?;
        let options = MrOptions { reads, relaxed: false };
        let mut region = Self { mrs: Vec::new(), keys: Vec::new(), options, memory: Arc::new(memory) };
        pds.iter().try_for_each(|pd| region.add(pd))?;
        Ok(region)
    }

    /// Registers the memory in one more PD, unless it is registered there.
    fn add(&mut self, pd: &Arc<Pd>) -> Result<()> {
        let mr = match self.mrs.iter().find(|mr| mr.is_in(pd)) {
            Some(mr) => Arc::clone(mr),
            None => Arc::new(Mr::new(pd, self.addr(0), self.words().len() * 8, self.options)?),
        };
        self.keys.push(mr.keys());
        self.mrs.push(mr);
        Ok(())
    }

    /// Replaces all registrations by those in one PD.
    pub fn move_to(&mut self, pd: &Arc<Pd>) -> Result<()> {
        let mut moved = self.clone();
        for _ in &self.mrs {
            moved.add(pd)?;
        }
        let before = self.mrs.len();
        moved.retain(|i| i >= before);
        *self = moved;
        Ok(())
    }

    /// Replaces a registration by one of a clone.
    pub fn adopt(&mut self, index: usize, from: &Self, place: usize) {
        (self.mrs[index], self.keys[index]) = (Arc::clone(&from.mrs[place]), from.keys[place]);
    }

    /// Takes these registrations of a clone, in order.
    pub fn select(&mut self, from: &Self, places: &[usize]) {
        self.keys = places.iter().map(|i| from.keys[*i]).collect();
        self.mrs = places.iter().map(|i| Arc::clone(&from.mrs[*i])).collect();
    }

    /// Returns the memory.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Returns the memory as an object that does not borrow the region.
    pub fn share(&self) -> Words {
        let memory = &self.memory;
        Words { start: memory.start(), words: memory.words().len(), _memory: Arc::clone(memory) }
    }

    /// Returns the address of word `index`.
    pub fn addr(&self, index: usize) -> usize {
        // Exposed: devices make pointers of it.
        self.memory.start().as_ptr().expose_provenance() + index * 8
    }

    /// Returns the keys of the registrations, in the order of the PDs.
    pub fn mrs(&self) -> &[Keys] {
        &self.keys
    }

    /// Drops the registrations whose index in the list is not `wanted`.
    pub fn retain(&mut self, wanted: impl Fn(usize) -> bool) {
        let wanted = |i: &usize| wanted(*i);
        self.keys = (0..self.keys.len()).filter(wanted).map(|i| self.keys[i]).collect();
        self.mrs = (0..self.mrs.len()).filter(wanted).map(|i| Arc::clone(&self.mrs[i])).collect();
    }
}
