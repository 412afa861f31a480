//! The slots of a receiver beside a model: the same verdict on every immediate.

use mpib_proto::{ImmLayout, MAX_RAILS, MAX_RECVS, RECORD_BYTES, Record, SLOTS, SizeQ};
use nccl_net_versions::Buffer;

use super::window::Slot;

/// The sizes of a group that is whole, `None` while parts are missing. An error ends the connection.
type Verdict = Result<Option<Vec<usize>>, String>;

/// A group of receives as the model has it.
#[derive(Debug, Clone, Default)]
struct Group {
    rooms: Vec<usize>,
    /// Mask and size of the first immediate.
    first: Option<(u32, Size)>,
    /// The rails of the immediates that have arrived.
    arrived: u32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Size {
    Bytes(usize),
    InRecord,
}

struct World {
    rails: u32,
    layout: ImmLayout,
    slots: Vec<Slot>,
    records: Vec<[u8; RECORD_BYTES]>,
    /// By slot: the group that waits for data.
    groups: Vec<Option<Group>>,
}

/// Takes the next bytes; zeros follow the last one.
fn take<const N: usize>(data: &mut &[u8]) -> [u8; N] {
    let mut out = [0; N];
    let (front, rest) = data.split_at(N.min(data.len()));
    out[..front.len()].copy_from_slice(front);
    *data = rest;
    out
}

/// Offers groups, writes records and delivers immediates as the bytes have it, until the bytes end or
/// an immediate is an error.
pub fn simulated(mut data: &[u8]) {
    let [rails] = take(&mut data);
    let rails = rails % MAX_RAILS as u8 + 1;
    let Some(layout) = ImmLayout::new(rails) else { unreachable!("{rails} rails") };
    let mut world = World {
        rails: rails.into(),
        layout,
        slots: vec![Slot::EMPTY; SLOTS],
        records: vec![[0; RECORD_BYTES]; SLOTS],
        groups: vec![None; SLOTS],
    };
    while !data.is_empty() {
        let [what, slot, rail] = take(&mut data);
        let (slot, rail) = (usize::from(slot) % SLOTS, u32::from(rail) % world.rails);
        let word = match what % 4 {
            0 => {
                world.offer(slot, usize::from(what / 4) % MAX_RECVS + 1, &mut data);
                continue;
            }
            1 => {
                let sizes: [usize; MAX_RECVS] =
                    std::array::from_fn(|_| u16::from_le_bytes(take(&mut data)).into());
                world.records[slot] = Record::new(&sizes).unwrap_or_default().encode();
                continue;
            }
            2 => {
                let [mask, a, b, c] = take(&mut data);
                let size = match what / 4 % 4 {
                    0 => SizeQ::RECORD,
                    1 => layout.size(usize::from(a) << 14),
                    _ => layout.size(u32::from_le_bytes([a, b, c, 0]) as usize),
                };
                layout.encode(slot as u8, mask, size)
            }
            _ => u32::from_le_bytes(take(&mut data)),
        };
        if world.arrive(rail, word).is_err() {
            return;
        }
    }
}

impl World {
    fn offer(&mut self, slot: usize, count: usize, data: &mut &[u8]) {
        if self.groups[slot].is_some() {
            return;
        }
        let rooms: Vec<usize> = (0..count).map(|_| room(take(data))).collect();
        self.slots[slot].begin(count);
        for (index, room) in rooms.iter().enumerate() {
            self.slots[slot].set_buffer(index, Buffer { addr: 4096, len: *room });
        }
        self.groups[slot] = Some(Group { rooms, ..Group::default() });
    }

    /// Delivers an immediate to both, and compares the verdicts.
    fn arrive(&mut self, rail: u32, word: u32) -> Result<(), ()> {
        let usual = self.handle_usual(rail as usize, word);
        let part = self.handle_part(rail as usize, word);
        let found = self.handle(rail as usize, word);
        if let Some(size) = usual {
            assert_eq!(found, Ok(Some(vec![size])), "the usual way accepts {word:#010x} on rail {rail}");
        }
        if let Some(size) = part {
            let sizes = size.map(|size| vec![size]);
            assert_eq!(found, Ok(sizes), "the way of parts accepts {word:#010x} on rail {rail}");
        }
        let expected = self.model(rail, word);
        let same = match (&found, &expected) {
            (Ok(found), Ok(expected)) => found == expected,
            (Err(_), Err(_)) => true,
            _ => false,
        };
        assert!(same, "{word:#010x} on rail {rail}: {found:?}, the model has {expected:?}");
        let done = found.map_err(|_| ())?;
        if done.is_some() {
            self.groups[usize::from(word as u8)] = None;
        }
        Ok(())
    }

    /// Returns the size if the shortcut of usual receives would handle an immediate.
    fn handle_usual(&self, rail: usize, word: u32) -> Option<usize> {
        let (slot, size) = self.layout.decode_whole(word, rail)?;
        self.groups[usize::from(slot)].as_ref()?;
        let mut slot = self.slots[usize::from(slot)];
        slot.arrived_whole(rail, size).then_some(size)
    }

    /// Returns what the shortcut of parts would, if it would handle an immediate.
    fn handle_part(&self, rail: usize, word: u32) -> Option<Option<usize>> {
        let slot = usize::from(word as u8) % SLOTS;
        self.groups[slot].as_ref()?;
        let mut slot = self.slots[slot];
        slot.arrived_part(self.layout, word, rail)
    }

    /// Handles an immediate as a receiver does.
    fn handle(&mut self, rail: usize, word: u32) -> Verdict {
        let imm = self.layout.decode(word).ok_or("no sender makes it")?;
        let slot = usize::from(imm.slot);
        if self.groups[slot].is_none() {
            return Err("no receive waits".into());
        }
        let Some(size) = self.slots[slot].arrived(imm, word, rail).map_err(|e| e.to_string())? else {
            return Ok(None);
        };
        if let Some(bytes) = size.bytes() {
            return Ok(Some(vec![bytes]));
        }
        let place = &self.slots[slot];
        let record = Record::decode(&self.records[slot], &place.rooms()[..place.count()]);
        Ok(Some(record.map_err(|e| e.to_string())?.sizes().to_vec()))
    }

    /// The same, by docs/internals/protocol.md.
    fn model(&mut self, rail: u32, word: u32) -> Verdict {
        let low_bits = 8 + self.rails.max(2);
        let (slot, mask) = ((word & 0xff) as usize, (word & ((1 << low_bits) - 1)) >> 8);
        let size = size_of(word >> low_bits, 31 - low_bits).ok_or("the wrong unit")?;
        if slot >= SLOTS || mask == 0 || mask >> self.rails != 0 || mask >> rail & 1 == 0 {
            return Err("a wrong slot or mask".into());
        }
        let group = self.groups[slot].as_mut().ok_or("no receive waits")?;
        if *group.first.get_or_insert((mask, size)) != (mask, size) || group.arrived >> rail & 1 == 1 {
            return Err("a contradiction".into());
        }
        group.arrived |= 1 << rail;
        let is_whole = group.arrived == mask;
        let sizes = match size {
            Size::Bytes(_) if group.rooms.len() != 1 => return Err("one size".into()),
            Size::Bytes(bytes) => vec![bytes],
            Size::InRecord if !is_whole => return Ok(None),
            Size::InRecord => {
                let record = self.records[slot].as_chunks().0.iter().map(|size| u64::from_le_bytes(*size));
                record.map(|size| size as usize).take(group.rooms.len()).collect()
            }
        };
        let fits = sizes.iter().zip(&group.rooms).all(|(size, room)| size <= room);
        if fits { Ok(is_whole.then_some(sizes)) } else { Err("too large".into()) }
    }
}

/// Most rooms are small, as most sizes are.
fn room([low, high]: [u8; 2]) -> usize {
    let room = usize::from(u16::from_le_bytes([low, high]));
    if high < 0xc0 { room } else { room << 10 }
}

/// Decodes the size of an immediate: a bit for the unit above `count_bits` bits of the count.
fn size_of(bits: u32, count_bits: u32) -> Option<Size> {
    let (limit, count) = (1usize << count_bits, bits as usize & ((1 << count_bits) - 1));
    if bits >> count_bits == 0 {
        return Some(Size::Bytes(count));
    }
    if count == limit - 1 {
        return Some(Size::InRecord);
    }
    // Each size has one encoding.
    (count * 128 >= limit).then_some(Size::Bytes(count * 128))
}
