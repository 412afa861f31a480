//! Memory that adapters read and write: whole pages that hold nothing else. Control memory, which peers
//! write, is made of them.

use std::io;
use std::ops::Deref;
use std::ptr::{self, NonNull};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use super::log_failure;
use super::memory::{Keys, Mr, MrOptions, Pd};
use crate::error::{Error, Result};

/// Returns the page size of this system in bytes.
pub(crate) fn page_size() -> usize {
    static SIZE: OnceLock<usize> = OnceLock::new();
    *SIZE.get_or_init(|| {
        // SAFETY: the call takes an integer.
        let size = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
        // The smallest page size there is. It divides every other.
        usize::try_from(size).ok().filter(|size| size.is_power_of_two()).unwrap_or(4096)
    })
}

/// Zeroed words in pages that hold nothing else: `ibv_fork_init` may withhold registered pages from
/// forked children, with all that lies in them.
#[derive(Debug)]
pub(crate) struct Pages {
    start: NonNull<AtomicU64>,
    words: usize,
    /// Whole pages.
    bytes: usize,
}

// SAFETY: the only owner of plain memory that is accessed as atomics only.
unsafe impl Send for Pages {}
// SAFETY: as above.
unsafe impl Sync for Pages {}

impl Pages {
    pub(crate) fn new(words: usize) -> io::Result<Self> {
        let bytes = words.checked_mul(8).and_then(|bytes| bytes.checked_next_multiple_of(page_size()));
        let bytes = bytes.ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))?;
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping, where the kernel has room.
        let start = unsafe { libc::mmap(ptr::null_mut(), bytes, access, kind, -1, 0) };
        match NonNull::new(start.cast()) {
            Some(found) if start != libc::MAP_FAILED => Ok(Self { start: found, words, bytes }),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Returns the address of the first word.
    pub(super) fn start(&self) -> NonNull<AtomicU64> {
        self.start
    }

    /// Returns the address of the memory.
    pub(crate) fn addr(&self) -> usize {
        self.start.as_ptr().addr()
    }

    /// Returns the words.
    pub(crate) fn words(&self) -> &[AtomicU64] {
        // SAFETY: `words` zeroed words at the start of a page, mapped as long as `self` lives.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.words) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        // SAFETY: the mapping from `new`, which nothing borrows any more.
        let rc = unsafe { libc::munmap(self.start.as_ptr().cast(), self.bytes) };
        log_failure("munmap", "registered memory", if rc == 0 { 0 } else { -1 });
    }
}

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
pub(crate) struct Words {
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
    /// they can flush. Returns the result for each PD, too; one that has failed has the keys of
    /// another one, which no queue pair of it accepts.
    ///
    /// # Errors
    /// There is no memory, or it could be registered in no PD.
    pub fn new(pds: &[Arc<Pd>], words: usize, reads: bool) -> Result<(Self, Vec<Result<()>>)> {
        let memory = Pages::new(words)
            .map_err(|source| Error::io(format!("{words} words of control memory"), source))?;
        let options = MrOptions { reads, relaxed: false };
        let mut region = Self { mrs: Vec::new(), keys: Vec::new(), options, memory: Arc::new(memory) };
        let (mut registered, mut places) = (Vec::with_capacity(pds.len()), Vec::with_capacity(pds.len()));
        for pd in pds {
            registered.push(region.add(pd));
            places.push(region.mrs.len().saturating_sub(1));
        }
        if region.mrs.is_empty() && !registered.is_empty() {
            registered.swap_remove(0)?;
        }
        Ok((region.select(places.into_iter()), registered))
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
    pub(crate) fn move_to(&mut self, pd: &Arc<Pd>) -> Result<()> {
        let mut moved = self.clone();
        for _ in &self.mrs {
            moved.add(pd)?;
        }
        *self = moved.select(self.mrs.len()..moved.mrs.len());
        Ok(())
    }

    /// Replaces a registration by one of a clone.
    pub(crate) fn adopt(&mut self, index: usize, from: &Self, place: usize) {
        (self.mrs[index], self.keys[index]) = (Arc::clone(&from.mrs[place]), from.keys[place]);
    }

    /// Returns a region with these registrations, in order.
    pub(crate) fn select(&self, places: impl Iterator<Item = usize> + Clone) -> Self {
        Self {
            mrs: places.clone().map(|i| Arc::clone(&self.mrs[i])).collect(),
            keys: places.map(|i| self.keys[i]).collect(),
            options: self.options,
            memory: Arc::clone(&self.memory),
        }
    }

    /// Takes the registrations, with the memory that they cover.
    pub(crate) fn take(&mut self) -> Self {
        let taken = self.clone();
        self.mrs.clear();
        taken
    }

    /// Returns the memory.
    pub fn words(&self) -> &[AtomicU64] {
        self.memory.words()
    }

    /// Returns the memory as an object that does not borrow the region.
    pub(crate) fn share(&self) -> Words {
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
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    /// Returns whether the page at this address is mapped.
    fn mapped(start: usize) -> bool {
        // SAFETY: touches nothing; fails where nothing is mapped.
        unsafe { libc::msync(ptr::without_provenance_mut(start), 1, libc::MS_ASYNC) == 0 }
    }

    /// Returns the number of the first check that fails.
    fn wrong(words: usize, page: usize) -> i32 {
        let Ok(memory) = Pages::new(words) else { return 1 };
        let (start, pages) = (memory.start.as_ptr().addr(), (words * 8).div_ceil(page));
        let last = start + (pages - 1) * page;
        if start % page != 0 || !mapped(start) || !mapped(last) {
            return 2;
        }
        if memory.words().len() != words || memory.words().iter().any(|word| word.load(Relaxed) != 0) {
            return 3;
        }
        drop(memory);
        // Another object in one of the pages would have kept it.
        if mapped(start) || mapped(last) { 4 } else { 0 }
    }

    #[test]
    fn registered_memory_shares_its_pages_with_nothing_and_is_unmapped_at_its_end() {
        let page = page_size();
        for words in [1, page / 8, page / 8 + 1, 40_000] {
            // The child has one thread, so nothing is mapped meanwhile.
            // SAFETY: the child accesses memory and exits.
            let child = unsafe { libc::fork() };
            assert!(child >= 0);
            if child == 0 {
                // SAFETY: ends the child.
                unsafe { libc::_exit(wrong(words, page)) };
            }
            let mut status = 0;
            // SAFETY: a child of this process, which no one else waits for.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!((libc::WIFEXITED(status), libc::WEXITSTATUS(status)), (true, 0), "{words} words");
        }
        assert!(Pages::new(usize::MAX).is_err());
    }
}
