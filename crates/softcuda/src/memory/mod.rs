//! Memory of the simulated devices and of the host: a table of ranges.
//!
//! Each allocation is a separate memfd, mapped shared. So other processes can map it (IPC and
//! exported handles), and a range can be exported as a file.

pub(crate) mod ipc;
mod shared;
#[cfg(test)]
mod tests;
pub(crate) mod vmm;

use std::{collections::BTreeMap, os::fd::OwnedFd, sync::Arc};

use parking_lot::Mutex;

use self::{
    shared::Mapping,
    vmm::{Physical, Reservations},
};
use crate::status::{Answer, Status};

/// Allocations are multiples of this size.
const ALLOCATION_UNIT: usize = 64 << 10;

/// The kind of a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Device memory.
    Device,
    /// Host memory that the runtime allocated.
    Host,
    /// Memory of the program, registered by it.
    Registered,
}

/// A range of addresses.
#[derive(Debug, Clone)]
pub(crate) struct Range {
    pub(crate) base: usize,
    pub(crate) len: usize,
    pub(crate) kind: Kind,
    pub(crate) device: u32,
    /// Number of the allocation, never used twice.
    pub(crate) id: u64,
    backing: Backing,
}

/// What keeps a range's pages.
#[derive(Debug, Clone)]
enum Backing {
    /// The program.
    Program,
    /// A mapping that is removed with the last clone of the range.
    Own(Arc<Mapping>),
    /// A part of physical memory, mapped by [`Memory::map`].
    Physical { memory: Arc<Physical>, offset: usize },
}

impl Range {
    fn contains(&self, address: usize) -> bool {
        (self.base..self.base + self.len).contains(&address)
    }

    /// Returns whether the range is physical memory that was mapped into reserved addresses.
    pub(crate) fn is_mapped(&self) -> bool {
        matches!(self.backing, Backing::Physical { .. })
    }

    /// Returns the file with the range's bytes and the offset of the first one.
    fn file(&self) -> Option<(&OwnedFd, usize)> {
        match &self.backing {
            Backing::Program => None,
            Backing::Own(mapping) => Some((mapping.file(), 0)),
            Backing::Physical { memory, offset } => Some((memory.file(), *offset)),
        }
    }
}

/// The memory of a process.
#[derive(Debug, Default)]
pub(crate) struct Memory {
    table: Mutex<Table>,
    vmm: Mutex<Reservations>,
}

#[derive(Debug, Default)]
struct Table {
    /// Allocated and mapped ranges by their first address. They do not overlap.
    ranges: BTreeMap<usize, Range>,
    /// Registered ranges of the program. One can be a part of an allocation.
    registered: BTreeMap<usize, Range>,
    next_id: u64,
}

impl Table {
    fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }
}

/// Returns the range of a table that contains an address.
fn containing(table: &BTreeMap<usize, Range>, address: usize) -> Option<&Range> {
    table.range(..=address).next_back().map(|(_, range)| range).filter(|range| range.contains(address))
}

impl Memory {
    /// Allocates memory filled with zeros.
    pub(crate) fn allocate(&self, len: usize, kind: Kind, device: u32) -> Answer<usize> {
        let len = len.max(1).checked_next_multiple_of(ALLOCATION_UNIT).ok_or(Status::OUT_OF_MEMORY)?;
        let mapping = Mapping::anonymous(len).map_err(|_| Status::OUT_OF_MEMORY)?;
        Ok(self.insert(mapping, kind, device))
    }

    fn insert(&self, mapping: Mapping, kind: Kind, device: u32) -> usize {
        let (base, len) = (mapping.base(), mapping.len());
        let mut table = self.table.lock();
        let id = table.id();
        let backing = Backing::Own(Arc::new(mapping));
        table.ranges.insert(base, Range { base, len, kind, device, id, backing });
        base
    }

    /// Frees an allocation by its first address. A null address is accepted.
    pub(crate) fn free(&self, base: usize) -> Answer {
        if base == 0 {
            return Ok(());
        }
        let mut table = self.table.lock();
        match table.ranges.get(&base) {
            Some(range) if !range.is_mapped() => {}
            _ => return Err(Status::INVALID_VALUE),
        }
        let range = table.ranges.remove(&base);
        // The mapping is removed here, unless a clone of the range is in use.
        drop(table);
        drop(range);
        Ok(())
    }

    /// Returns the range that contains an address.
    pub(crate) fn find(&self, address: usize) -> Option<Range> {
        let table = self.table.lock();
        containing(&table.ranges, address).or_else(|| containing(&table.registered, address)).cloned()
    }

    /// Registers memory of the program.
    pub(crate) fn register(&self, base: usize, len: usize, device: u32) -> Answer {
        if base == 0 || len == 0 || base.checked_add(len).is_none() {
            return Err(Status::INVALID_VALUE);
        }
        let mut table = self.table.lock();
        let id = table.id();
        let range = Range { base, len, kind: Kind::Registered, device, id, backing: Backing::Program };
        table.registered.insert(base, range);
        Ok(())
    }

    /// Ends the registration that begins at an address.
    pub(crate) fn unregister(&self, base: usize) -> Answer {
        self.table.lock().registered.remove(&base).map(drop).ok_or(Status::NOT_REGISTERED)
    }
}

impl Memory {
    /// Returns a file whose first byte is the first byte of a range of addresses.
    pub(crate) fn export_range(&self, address: usize, len: usize) -> Answer<OwnedFd> {
        let range = self.find(address).ok_or(Status::INVALID_VALUE)?;
        let (file, offset) = range.file().ok_or(Status::INVALID_VALUE)?;
        if address + len > range.base + range.len {
            return Err(Status::INVALID_VALUE);
        }
        shared::window(file, offset + (address - range.base)).map_err(|_| Status::OUT_OF_MEMORY)
    }
}
