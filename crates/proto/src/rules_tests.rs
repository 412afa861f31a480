//! CTS entries, immediates and records together: a group arrives complete in any order, and a
//! single fault is detected.

use proptest::prelude::*;

use super::*;

/// The work of a sender for a group: one immediate per rail, and the record if there is one.
#[derive(Debug, Clone)]
struct Posted {
    slot: u8,
    /// Each rail with its immediate.
    words: Vec<(u8, u32)>,
    sizes: Vec<usize>,
    rooms: Vec<usize>,
    record: Option<[u8; RECORD_BYTES]>,
}

const LAYOUT: ImmLayout = ImmLayout::new(2).unwrap();

fn post(seq: Sequence, sends: &[(usize, u16)], slack: usize) -> Posted {
    let sizes: Vec<usize> = sends.iter().map(|s| s.0).collect();
    let splits: Vec<Split> = sends
        .iter()
        .map(|(size, share)| Split::by_share(*size, *share, RailSet::first(2)).unwrap())
        .collect();
    let carried = sizes.iter().zip(&splits).filter(|(size, _)| **size > 0);
    let mask = carried.fold(0, |mask, (_, split)| mask | split.rails().bits());
    // A group of empty sends is on rail 0.
    let mask = if mask == 0 { 1 } else { mask };
    let size = if sizes.len() == 1 { LAYOUT.size(sizes[0]) } else { SizeQ::RECORD };
    let word = LAYOUT.encode(seq.slot(), mask, size);
    Posted {
        slot: seq.slot(),
        words: (0..2).filter(|rail| mask >> rail & 1 == 1).map(|rail| (rail, word)).collect(),
        rooms: sizes.iter().map(|size| size + slack).collect(),
        record: size.bytes().is_none().then(|| Record::new(&sizes).unwrap().encode()),
        sizes,
    }
}

/// Decodes the arrivals for one slot: returns the sizes once it is complete, and whether there was
/// a fault.
fn receive(posted: &Posted, words: &[(u8, u32)]) -> (Option<Vec<usize>>, bool) {
    let (mut arrivals, mut announced, mut whole) = (Arrivals::default(), None, None);
    for (rail, word) in words {
        let Some(imm) = LAYOUT.decode(*word) else { return (whole, true) };
        // Neither another slot nor a complete one has a pending receive.
        if imm.slot != posted.slot || whole.is_some() || *announced.get_or_insert(imm.size) != imm.size {
            return (whole, true);
        }
        if posted.sizes.len() > 1 && imm.size != SizeQ::RECORD {
            return (whole, true);
        }
        match arrivals.on_arrival(imm.mask, *rail) {
            Step::Waiting => {}
            Step::Violation(_) => return (whole, true),
            Step::Complete => {
                let record = posted.record.unwrap_or([0xAA; RECORD_BYTES]);
                let sizes = match imm.size.bytes() {
                    Some(size) => (size <= posted.rooms[0]).then(|| vec![size]),
                    None => Record::decode(&record, &posted.rooms).ok().map(|r| r.sizes().to_vec()),
                };
                let Some(sizes) = sizes else { return (None, true) };
                whole = Some(sizes);
            }
        }
    }
    (whole, false)
}

fn size() -> impl Strategy<Value = usize> {
    prop_oneof![
        2 => Just(0usize),
        3 => 1usize..400,
        2 => 400usize..70_000,
        1 => (2usize << 20) - 3..(2 << 20) + 400,
        1 => (256usize << 20) - 300..(256 << 20) + 300,
    ]
}

fn group() -> impl Strategy<Value = Posted> {
    let share = prop_oneof![Just(0u16), Just(512), Just(1024), 0u16..=1024];
    (1usize..700, prop::collection::vec((size(), share), 1..=8), 0usize..300).prop_map(
        |(before, sends, slack)| {
            let seq = (1..before).fold(Sequence::FIRST, |seq, _| seq.next());
            post(seq, &sends, slack)
        },
    )
}

/// A fault of a peer or a network.
#[derive(Debug, Clone, Copy)]
enum Fault {
    Lost(usize),
    Twice(usize),
    OtherRail(usize),
    /// In the slot or the mask.
    Flipped(usize, u32),
    /// In the size.
    Resized(usize, u32),
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        (0usize..2).prop_map(Fault::Lost),
        (0usize..2).prop_map(Fault::Twice),
        (0usize..2).prop_map(Fault::OtherRail),
        (0usize..2, 0u32..10).prop_map(|(i, bit)| Fault::Flipped(i, bit)),
        (0usize..2, 10u32..32).prop_map(|(i, bit)| Fault::Resized(i, bit)),
    ]
}

proptest! {
    //= protocol.md: group: complete in any order of arrival; a wrong immediate never completes it
    #[test]
    fn a_group_is_whole_with_its_last_rail(posted in group(), turned: bool) {
        let mut words = posted.words.clone();
        if turned {
            words.reverse();
        }
        for some in 0..words.len() {
            prop_assert_eq!(receive(&posted, &words[..some]), (None, false));
        }
        prop_assert_eq!(receive(&posted, &words), (Some(posted.sizes.clone()), false));
    }

    /// The slot never completes, or the next arrival for it is a fault.
    //= protocol.md: group: complete in any order of arrival; a wrong immediate never completes it
    #[test]
    fn a_group_with_one_fault_is_not_taken_for_whole(posted in group(), turned: bool, fault in fault()) {
        let mut words = posted.words.clone();
        let n = words.len();
        match fault {
            Fault::Lost(i) => {
                words.remove(i % n);
            }
            Fault::Twice(i) => words.push(words[i % n]),
            Fault::OtherRail(i) => words[i % n].0 ^= 1,
            Fault::Flipped(i, bit) => words[i % n].1 ^= 1 << bit,
            Fault::Resized(i, bit) => words[i % n].1 ^= 1 << bit,
        }
        if turned {
            words.reverse();
        }
        let (whole, wrong) = receive(&posted, &words);
        match fault {
            // Nothing else has the size. It must fit the receive, and a group has none here.
            Fault::Resized(..) if n == 1 => {
                prop_assert!(wrong || posted.sizes.len() == 1);
                prop_assert!(whole.is_none_or(|sizes| sizes[0] <= posted.rooms[0]));
            }
            _ => prop_assert!(whole.is_none() || wrong, "{whole:?} in spite of {fault:?}"),
        }
    }

    /// An entry of the FIFO is valid for one receive only, although every 64th uses its slot.
    //= protocol.md: CTS entry: valid for one receive only
    #[test]
    fn an_entry_is_of_one_receive(start in 1u64..1 << 40, later in 1usize..=512, index in 0usize..MAX_RECVS) {
        let seq = Sequence::from_number(start);
        let other = (0..later).fold(seq, |seq, _| seq.next());
        prop_assert_eq!(seq.slot() == other.slot(), later % SLOTS == 0);
        prop_assert_eq!(seq.cts_offset(index) == other.cts_offset(index), later % SLOTS == 0);
        prop_assert_eq!(seq.record_offset() == other.record_offset(), later % SLOTS == 0);
        prop_assert_ne!(seq.number(), other.number());
        prop_assert_eq!(u64::from(seq.slot()), seq.number() % SLOTS as u64);
    }
}
