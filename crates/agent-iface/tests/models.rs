//! Model checks of the sequence lock: every schedule and every memory order, for both ways of
//! reading. The same models with a seeded fault must fail.

use std::panic::catch_unwind;

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering::*, fence};
use loom::thread;
use nccl_net_mpib_agent_iface::agent::{Entry, Hint, Snapshot, snapshot};
use nccl_net_mpib_agent_iface::stats::{Generation, Revision};

use crate::explore::explore;

/// The n-th hint that the writer writes: each field identifies it.
fn nth(n: u8) -> Hint {
    Hint { sup_bw: n.into(), seq: u32::from(n) * 2, src: [n; 4].into(), dst: [n; 4].into() }
}

fn write(entry: &Entry) {
    let seq = entry.write(Hint { seq: 0, ..nth(1) });
    entry.write(Hint { seq, ..nth(2) });
}

fn whole(hint: Hint) {
    assert!((0..=2).any(|n| hint == nth(n)), "{hint:?}");
}

#[test]
fn a_mapped_entry_is_read_whole_or_not_at_all() {
    let schedules = explore(|| {
        let entry = Arc::new(Entry::default());
        let writer = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || write(&entry))
        };
        if let Some(hint) = entry.read() {
            whole(hint);
        }
        writer.join().unwrap();
        assert_eq!(entry.read(), Some(nth(2)));
    });
    println!("{schedules} schedules");
    assert!(schedules > 500, "{schedules}");
}

#[test]
fn three_copies_give_an_entry_whole_or_not_at_all() {
    let schedules = explore(|| {
        let entry = Arc::new(Entry::default());
        let writer = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                entry.write(Hint { seq: 0, ..nth(1) });
            })
        };
        let copy = || {
            let bytes = entry.copy();
            fence(Acquire);
            bytes
        };
        match snapshot(&copy(), &copy(), &copy()) {
            Snapshot::Consistent(hint) => whole(hint),
            Snapshot::Writing(seq) => assert_eq!(seq, 1),
            Snapshot::Changed => {}
        }
        writer.join().unwrap();
    });
    println!("{schedules} schedules");
    assert!(schedules > 500, "{schedules}");
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NeverOdd,
    NoFenceInWriter,
    EvenTooWeak,
    NoFenceInReader,
    FirstLoadTooWeak,
    OddIsTaken,
    NumberNotReadAgain,
}

/// The protocol on two words, with a seeded fault.
fn faulty(fault: Fault) -> usize {
    explore(move || {
        let words = Arc::new([0; 3].map(AtomicU32::new));
        let writer = {
            let words = Arc::clone(&words);
            thread::spawn(move || {
                for n in 1..=2 {
                    if fault != Fault::NeverOdd {
                        words[0].store(2 * n - 1, Relaxed);
                    }
                    if fault != Fault::NoFenceInWriter {
                        fence(Release);
                    }
                    words[1].store(n, Relaxed);
                    words[2].store(n, Relaxed);
                    words[0].store(2 * n, if fault == Fault::EvenTooWeak { Relaxed } else { Release });
                }
            })
        };
        let seq = words[0].load(if fault == Fault::FirstLoadTooWeak { Relaxed } else { Acquire });
        let pair = (words[1].load(Relaxed), words[2].load(Relaxed));
        if fault != Fault::NoFenceInReader {
            fence(Acquire);
        }
        let still = fault == Fault::NumberNotReadAgain || words[0].load(Relaxed) == seq;
        if still && (seq % 2 == 0 || fault == Fault::OddIsTaken) {
            assert_eq!((pair.0, pair.1), (seq / 2, seq / 2));
        }
        writer.join().unwrap();
    })
}

#[test]
fn the_model_finds_each_fault() {
    let schedules = faulty(Fault::None);
    println!("{schedules} schedules");
    assert!(schedules > 200, "{schedules}");
    for fault in [
        Fault::NeverOdd,
        Fault::NoFenceInWriter,
        Fault::EvenTooWeak,
        Fault::NoFenceInReader,
        Fault::FirstLoadTooWeak,
        Fault::OddIsTaken,
        Fault::NumberNotReadAgain,
    ] {
        assert!(catch_unwind(|| faulty(fault)).is_err(), "{fault:?} was not found");
    }
}

/// An entry of the statistics page that is reused by the next connection: in use `n`, both words
/// are `n`.
fn reuse(fault: bool) -> usize {
    explore(move || {
        let entry = Arc::new((Generation::default(), [0; 2].map(AtomicU32::new)));
        let writer = {
            let entry = Arc::clone(&entry);
            thread::spawn(move || {
                let (generation, words) = &*entry;
                let mut even = 0;
                for n in 1..=2 {
                    // The fault: `free` alone is too weak to start a new use.
                    let odd = if fault { even + 1 } else { generation.prepare(even) };
                    words[0].store(n, Relaxed);
                    words[1].store(n, Relaxed);
                    generation.publish(odd);
                    even = generation.free(odd);
                }
            })
        };
        let (generation, words) = &*entry;
        if let Some(Some((odd, pair))) =
            Generation::read(|| generation.number(), || (words[0].load(Relaxed), words[1].load(Relaxed)))
        {
            let n = odd.div_ceil(2) as u32;
            assert_eq!(pair, (n, n));
        }
        writer.join().unwrap();
        assert_eq!(Generation::read(|| generation.number(), || ()), None);
    })
}

#[test]
fn an_entry_is_read_of_one_use_or_not_at_all() {
    let schedules = reuse(false);
    println!("{schedules} schedules");
    assert!(schedules > 200, "{schedules}");
    assert!(catch_unwind(|| reuse(true)).is_err(), "the fault was not found");
}

/// A count that moves from an entry to the totals, as when a connection closes: their sum is 1.
fn moved(fault: bool) -> usize {
    explore(move || {
        let page = Arc::new((Revision::default(), [1, 0].map(AtomicU32::new)));
        let writer = {
            let page = Arc::clone(&page);
            thread::spawn(move || {
                let (revision, [entry, totals]) = &*page;
                let fold = || {
                    totals.store(1, Relaxed);
                    entry.store(0, Relaxed);
                };
                // The fault: the revision does not cover the change.
                if fault {
                    fold();
                    revision.write(|| ());
                } else {
                    revision.write(fold);
                }
            })
        };
        let (revision, [entry, totals]) = &*page;
        if let Some(sum) = Revision::read(|| revision.number(), || totals.load(Relaxed) + entry.load(Relaxed))
        {
            assert_eq!(sum, 1);
        }
        writer.join().unwrap();
        assert_eq!(Revision::read(|| revision.number(), || totals.load(Relaxed)), Some(1));
    })
}

#[test]
fn a_count_that_moves_to_the_totals_is_read_once() {
    let schedules = moved(false);
    println!("{schedules} schedules");
    assert!(schedules > 20, "{schedules}");
    assert!(catch_unwind(|| moved(true)).is_err(), "the fault was not found");
}
