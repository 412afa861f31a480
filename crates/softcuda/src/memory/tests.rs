use std::{os::fd::AsFd, ptr, slice};

use super::{
    vmm::{GRANULARITY, Location},
    *,
};

/// Returns the bytes of a range that stays allocated for the whole test.
fn bytes(base: usize, len: usize) -> &'static mut [u8] {
    // SAFETY: the caller's allocation, which no other thread uses.
    unsafe { slice::from_raw_parts_mut(ptr::with_exposed_provenance_mut(base), len) }
}

#[test]
fn an_address_is_found_inside_its_range_and_nowhere_else() {
    let memory = Memory::default();
    let base = memory.allocate(100_000, Kind::Device, 3).unwrap();
    let range = memory.find(base + 99_999).unwrap();
    assert_eq!((range.base, range.kind, range.device), (base, Kind::Device, 3));
    assert_eq!(range.len, 2 * ALLOCATION_UNIT);
    assert!(memory.find(base + range.len).is_none_or(|other| other.id != range.id));
    assert!(memory.find(base - 1).is_none_or(|other| other.id != range.id));
    memory.free(base).unwrap();
    assert!(memory.find(base).is_none());
    assert_eq!(memory.free(base), Err(Status::INVALID_VALUE), "freed twice");
    memory.free(0).unwrap();
}

#[test]
fn ids_are_not_used_twice_even_at_the_same_address() {
    let memory = Memory::default();
    let first = memory.allocate(1, Kind::Host, 0).unwrap();
    let id = memory.find(first).unwrap().id;
    memory.free(first).unwrap();
    let second = memory.allocate(1, Kind::Host, 0).unwrap();
    assert_ne!(memory.find(second).unwrap().id, id);
}

#[test]
fn a_registration_ends_at_its_first_address_only() {
    let memory = Memory::default();
    let program = vec![0_u8; 4096];
    let base = program.as_ptr().addr();
    memory.register(base, program.len(), 0).unwrap();
    assert_eq!(memory.find(base + 1).unwrap().kind, Kind::Registered);
    assert_eq!(memory.free(base), Err(Status::INVALID_VALUE), "not an allocation");
    assert_eq!(memory.unregister(base + 1), Err(Status::NOT_REGISTERED));
    memory.unregister(base).unwrap();
    assert!(memory.find(base).is_none());
}

#[test]
fn an_opened_handle_maps_the_same_bytes() {
    let memory = Memory::default();
    let base = memory.allocate(4096, Kind::Device, 1).unwrap();
    let opened = memory.open_ipc(&memory.export_ipc(base + 100).unwrap()).unwrap();
    assert_ne!(opened, base);
    bytes(base, 4096)[7] = 42;
    assert_eq!(bytes(opened, 4096)[7], 42);
    memory.free(base).unwrap();
    assert_eq!(bytes(opened, 4096)[7], 42, "the opened mapping keeps the memory");
    memory.free(opened).unwrap();
}

#[test]
fn host_memory_has_no_handle() {
    let memory = Memory::default();
    let base = memory.allocate(4096, Kind::Host, 0).unwrap();
    assert_eq!(memory.export_ipc(base).unwrap_err(), Status::INVALID_VALUE);
}

#[test]
fn physical_memory_is_shared_by_its_mappings_and_outlives_its_handle() {
    let memory = Memory::default();
    let handle = memory.create(GRANULARITY, Location::Device(2)).unwrap();
    let exported = memory.export(handle).unwrap();
    let imported = memory.import(exported.as_fd(), Location::Host).unwrap();
    let base = memory.reserve(2 * GRANULARITY, 0).unwrap();
    memory.map(base, GRANULARITY, 0, handle).unwrap();
    memory.map(base + GRANULARITY, GRANULARITY, 0, imported).unwrap();
    assert_eq!(memory.find(base + 5).map(|r| (r.kind, r.device)), Some((Kind::Device, 2)));
    assert_eq!(memory.find(base + GRANULARITY).map(|r| r.kind), Some(Kind::Host));
    memory.release(handle).unwrap();
    assert_eq!(memory.release(handle), Err(Status::INVALID_VALUE));
    let all = bytes(base, 2 * GRANULARITY);
    all[5] = 9;
    assert_eq!(all[GRANULARITY + 5], 9);
    assert_eq!(memory.retain(base + 5), Ok(handle), "a mapping gives its handle back");
    memory.release(handle).unwrap();
    memory.unmap(base, 2 * GRANULARITY).unwrap();
    memory.release_addresses(base, 2 * GRANULARITY).unwrap();
}

#[test]
fn mappings_outside_a_reservation_or_over_another_one_fail() {
    let memory = Memory::default();
    let handle = memory.create(2 * GRANULARITY, Location::Device(0)).unwrap();
    let base = memory.reserve(GRANULARITY, 0).unwrap();
    let invalid = Err(Status::INVALID_VALUE);
    assert_eq!(memory.map(base + GRANULARITY, GRANULARITY, 0, handle), invalid, "behind the end");
    assert_eq!(memory.map(base, 2 * GRANULARITY, 0, handle), invalid, "longer than reserved");
    assert_eq!(memory.map(base, GRANULARITY, 2 * GRANULARITY, handle), invalid, "behind the memory");
    assert_eq!(memory.map(base, 4096, 0, handle), invalid, "not granular");
    memory.map(base, GRANULARITY, GRANULARITY, handle).unwrap();
    assert_eq!(memory.map(base, GRANULARITY, 0, handle), invalid, "mapped already");
    assert_eq!(memory.release_addresses(base, GRANULARITY), invalid, "still mapped");
    assert_eq!(memory.free(base), invalid, "not allocated");
    memory.unmap(base, GRANULARITY).unwrap();
    assert_eq!(memory.unmap(base, GRANULARITY), invalid, "unmapped already");
    memory.release_addresses(base, GRANULARITY).unwrap();
}

#[test]
fn an_exported_range_begins_at_the_position_of_its_file() {
    let memory = Memory::default();
    let base = memory.allocate(2 * ALLOCATION_UNIT, Kind::Device, 0).unwrap();
    bytes(base, 2 * ALLOCATION_UNIT)[ALLOCATION_UNIT..][..3].copy_from_slice(b"abc");
    let file = memory.export_range(base + ALLOCATION_UNIT, 4096).unwrap();
    let mut read = [0; 3];
    std::io::Read::read_exact(&mut std::fs::File::from(file), &mut read).unwrap();
    assert_eq!(&read, b"abc");
    let behind = memory.export_range(base + ALLOCATION_UNIT, 2 * ALLOCATION_UNIT);
    assert_eq!(behind.unwrap_err(), Status::INVALID_VALUE);
}
