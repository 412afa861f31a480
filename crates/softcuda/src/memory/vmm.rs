//! Virtual memory management: reserved addresses, physical memory, and mappings of one in the other.

use std::{
    collections::{BTreeMap, HashMap},
    os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd},
    ptr,
    sync::Arc,
};

use super::{Backing, Kind, Memory, Range, containing, shared::memfd};
use crate::status::{Answer, Status};

/// Sizes and addresses are multiples of this.
pub(crate) const GRANULARITY: usize = 2 << 20;

/// Where physical memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Location {
    /// On a device.
    Device(u32),
    /// On the host.
    Host,
}

/// Physical memory.
#[derive(Debug)]
pub(crate) struct Physical {
    handle: u64,
    file: OwnedFd,
    len: usize,
    pub(crate) location: Location,
}

impl Physical {
    pub(super) fn file(&self) -> &OwnedFd {
        &self.file
    }
}

/// Reserved addresses and handles of physical memory.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    reserved: BTreeMap<usize, usize>,
    /// The handles with their number of references. Mappings hold the memory itself.
    handles: HashMap<u64, (Arc<Physical>, usize)>,
    next_handle: u64,
}

impl Reservations {
    fn add(&mut self, file: OwnedFd, len: usize, location: Location) -> u64 {
        self.next_handle += 1;
        let handle = self.next_handle;
        self.handles.insert(handle, (Arc::new(Physical { handle, file, len, location }), 1));
        handle
    }

    fn get(&self, handle: u64) -> Answer<Arc<Physical>> {
        self.handles.get(&handle).map(|(memory, _)| Arc::clone(memory)).ok_or(Status::INVALID_VALUE)
    }
}

/// Replaces the mapping of `len` bytes at `base` by inaccessible addresses (`file` is `None`) or by
/// a part of a file.
///
/// # Safety
///
/// The range must be inside a reservation of [`Memory::reserve`].
unsafe fn remap(base: usize, len: usize, file: Option<(BorrowedFd<'_>, usize)>) -> Answer {
    let (protection, flags, fd, offset) = match file {
        Some((fd, offset)) => (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED, fd.as_raw_fd(), offset),
        None => (libc::PROT_NONE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE, -1, 0),
    };
    let address = ptr::with_exposed_provenance_mut(base);
    let flags = flags | libc::MAP_FIXED;
    // SAFETY: the range is reserved by this module (caller), so nothing else is replaced.
    let mapped = unsafe { libc::mmap(address, len, protection, flags, fd, offset as libc::off_t) };
    if mapped == libc::MAP_FAILED { Err(Status::OUT_OF_MEMORY) } else { Ok(()) }
}

fn is_granular(value: usize) -> bool {
    value.is_multiple_of(GRANULARITY)
}

impl Memory {
    /// Reserves addresses. An `alignment` of 0 means the granularity.
    pub(crate) fn reserve(&self, len: usize, alignment: usize) -> Answer<usize> {
        let alignment = alignment.max(GRANULARITY);
        if len == 0 || !is_granular(len) || !alignment.is_power_of_two() {
            return Err(Status::INVALID_VALUE);
        }
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        let room = len.checked_add(alignment).ok_or(Status::OUT_OF_MEMORY)?;
        // SAFETY: the kernel chooses addresses that nothing uses.
        let start = unsafe { libc::mmap(ptr::null_mut(), room, libc::PROT_NONE, flags, -1, 0) };
        if start == libc::MAP_FAILED {
            return Err(Status::OUT_OF_MEMORY);
        }
        let start = start.expose_provenance();
        let base = start.next_multiple_of(alignment);
        for (from, to) in [(start, base), (base + len, start + room)] {
            if from < to {
                // SAFETY: the part of the mapping above that is before or after the aligned range.
                unsafe { libc::munmap(ptr::with_exposed_provenance_mut(from), to - from) };
            }
        }
        self.vmm.lock().reserved.insert(base, len);
        Ok(base)
    }

    /// Returns reserved addresses to the system.
    pub(crate) fn release_addresses(&self, base: usize, len: usize) -> Answer {
        let mut vmm = self.vmm.lock();
        if vmm.reserved.get(&base) != Some(&len) {
            return Err(Status::INVALID_VALUE);
        }
        if self.table.lock().ranges.range(base..base + len).next().is_some() {
            // Something is mapped there.
            return Err(Status::INVALID_VALUE);
        }
        vmm.reserved.remove(&base);
        // SAFETY: reserved by `reserve`, and nothing is mapped in it.
        unsafe { libc::munmap(ptr::with_exposed_provenance_mut(base), len) };
        Ok(())
    }

    /// Makes physical memory and returns its handle.
    pub(crate) fn create(&self, len: usize, location: Location) -> Answer<u64> {
        if len == 0 || !is_granular(len) {
            return Err(Status::INVALID_VALUE);
        }
        let file = memfd(len).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(self.vmm.lock().add(file, len, location))
    }

    /// Returns the physical memory of a handle.
    pub(crate) fn physical(&self, handle: u64) -> Answer<Arc<Physical>> {
        self.vmm.lock().get(handle)
    }

    /// Drops one reference of a handle.
    pub(crate) fn release(&self, handle: u64) -> Answer {
        let mut vmm = self.vmm.lock();
        let (_, references) = vmm.handles.get_mut(&handle).ok_or(Status::INVALID_VALUE)?;
        *references -= 1;
        if *references == 0 {
            vmm.handles.remove(&handle);
        }
        Ok(())
    }

    /// Returns the handle of the memory that is mapped at an address, with one more reference.
    pub(crate) fn retain(&self, address: usize) -> Answer<u64> {
        let range = self.find(address).ok_or(Status::INVALID_VALUE)?;
        let Backing::Physical { memory, .. } = range.backing else { return Err(Status::INVALID_VALUE) };
        let handle = memory.handle;
        self.vmm.lock().handles.entry(handle).or_insert((memory, 0)).1 += 1;
        Ok(handle)
    }

    /// Maps physical memory into reserved addresses.
    pub(crate) fn map(&self, base: usize, len: usize, offset: usize, handle: u64) -> Answer {
        let vmm = self.vmm.lock();
        let memory = vmm.get(handle)?;
        let reserved = vmm.reserved.range(..=base).next_back();
        let inside = reserved.is_some_and(|(start, room)| base + len <= start + room);
        let fits = offset.checked_add(len).is_some_and(|end| end <= memory.len);
        if !inside || !fits || len == 0 || ![base, len, offset].into_iter().all(is_granular) {
            return Err(Status::INVALID_VALUE);
        }
        let mut table = self.table.lock();
        let overlaps = containing(&table.ranges, base).is_some()
            || table.ranges.range(base..base + len).next().is_some();
        if overlaps {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: `inside` holds, and the reservation cannot end while `vmm` is locked.
        unsafe { remap(base, len, Some((memory.file.as_fd(), offset))) }?;
        let id = table.id();
        let (kind, device) = match memory.location {
            Location::Device(device) => (Kind::Device, device),
            Location::Host => (Kind::Host, 0),
        };
        let backing = Backing::Physical { memory, offset };
        table.ranges.insert(base, Range { base, len, kind, device, id, backing });
        Ok(())
    }

    /// Ends the mappings in a range, which must cover each of them.
    pub(crate) fn unmap(&self, base: usize, len: usize) -> Answer {
        let _vmm = self.vmm.lock();
        let mut table = self.table.lock();
        let inside: Vec<_> =
            table.ranges.range(base..base.saturating_add(len)).map(|(b, r)| (*b, r.len)).collect();
        let covered: usize = inside.iter().map(|(_, len)| len).sum();
        let only_mapped = inside.iter().all(|(base, _)| table.ranges[base].is_mapped());
        if inside.is_empty() || covered != len || !only_mapped {
            return Err(Status::INVALID_VALUE);
        }
        for (base, len) in inside {
            table.ranges.remove(&base);
            // SAFETY: `map` mapped this range inside a reservation.
            unsafe { remap(base, len, None) }?;
        }
        Ok(())
    }

    /// Returns a descriptor by which another process imports the memory of a handle.
    pub(crate) fn export(&self, handle: u64) -> Answer<OwnedFd> {
        self.physical(handle)?.file.try_clone().map_err(|_| Status::OUT_OF_MEMORY)
    }

    /// Imports exported memory. The descriptor stays the caller's.
    pub(crate) fn import(&self, descriptor: BorrowedFd<'_>, location: Location) -> Answer<u64> {
        let file = descriptor.try_clone_to_owned().map_err(|_| Status::INVALID_VALUE)?;
        let file = std::fs::File::from(file);
        let len = file.metadata().map_err(|_| Status::INVALID_VALUE)?.len() as usize;
        if len == 0 {
            return Err(Status::INVALID_VALUE);
        }
        Ok(self.vmm.lock().add(file.into(), len, location))
    }
}
