//! Order, capacity, and recovery after the death of a process.

use std::sync::atomic::Ordering::Relaxed;

use proptest::prelude::*;

use super::*;
use crate::process::{self, Process};
use crate::shm::layout::{CQS, CqShared};

fn process() -> &'static Process {
    crate::shm::dir::set_fabric(&format!("unit-{}", std::process::id()));
    process::get().expect("a fabric")
}

/// Calls `f` with a CQ of `depth` entries in the segment of this process.
fn with_ring<R>(depth: u32, f: impl FnOnce(Ring<'_>) -> R) -> R {
    let process = process();
    let index = process.cqs.reserve().expect("an index");
    process.back(CQS, index, size_of::<CqShared>()).expect("memory");
    let bytes = depth as usize * size_of::<CqEntry>();
    let offset = process.alloc(bytes).expect("memory");
    let shared = process.own.cq(index).expect("an entry");
    if shared.locks_made.swap(1, Relaxed) == 0 {
        // SAFETY: the entry was never used.
        unsafe { shared.lock.init() };
    }
    shared.offset.store(offset as u64, Relaxed);
    shared.depth.store(depth, Relaxed);
    shared.id.store(1, Relaxed);
    let ring = Ring::new(&process.own, index).expect("a ring");
    ring.reset();
    let result = f(ring);
    shared.id.store(0, Relaxed);
    process.free(offset, bytes);
    process.cqs.remove(index);
    result
}

fn entry(wr_id: u64, ready_at: u64, qpn: u32) -> Completion {
    Completion { wr_id, ready_at, qpn, ..Completion::default() }
}

fn drain(ring: &Ring<'_>) -> Vec<u64> {
    let mut ids = Vec::new();
    ring.poll(usize::MAX, |c| ids.push(c.wr_id));
    ids
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// All times are in the past of the monotonic clock: everything can be polled immediately.
    #[test]
    fn entries_come_in_order_of_time_but_those_of_one_qp_in_order_of_arrival(
        times in prop::collection::vec(prop_oneof![Just(0_u64), 1..5_u64], 0..20),
        purged in 0..3_u32,
    ) {
        with_ring(16, |ring| {
            let mut expected = Vec::new();
            let mut latest = [0_u64; 3];
            for (i, &time) in times.iter().enumerate() {
                let pushed = ring.push(&entry(i as u64, time, i as u32 % 3), || 100);
                prop_assert_eq!(pushed == Pushed::Quiet, i < 16);
                if i < 16 {
                    latest[i % 3] = latest[i % 3].max(time);
                    expected.push((latest[i % 3], i as u64));
                }
            }
            expected.sort_by_key(|&(time, _)| time);
            let mut removed = 0;
            ring.purge(purged, |_| removed += 1);
            let before = expected.len();
            expected.retain(|&(_, id)| id as u32 % 3 != purged);
            prop_assert_eq!(removed, before - expected.len());
            prop_assert_eq!(drain(&ring), expected.iter().map(|&(_, id)| id).collect::<Vec<_>>());
            prop_assert_eq!(ring.cq.count.load(Relaxed), 0);
            Ok(())
        })?;
    }
}

#[test]
fn what_is_not_yet_due_is_not_polled() {
    with_ring(4, |ring| {
        let now = crate::clock::now();
        let late = now + 3_600_000_000_000;
        ring.push(&entry(1, late, 0), || now);
        assert_eq!(drain(&ring), Vec::<u64>::new());
        ring.push(&entry(2, 0, 1), || now);
        assert_eq!(drain(&ring), [2]);
        // A later entry of the same QP waits for the first.
        ring.push(&entry(3, 0, 0), || now);
        assert_eq!(ring.completion_times(), [late, late]);
    });
}

#[test]
fn an_event_comes_when_an_entry_becomes_due() {
    with_ring(4, |ring| {
        assert_eq!(ring.arm(ANY, || 0), None);
        assert_eq!(ring.push(&entry(1, 50, 0), || 10), Pushed::Later(50));
        assert_eq!(ring.announce(49), (false, Some(50)));
        assert_eq!(ring.announce(50), (true, None));
        assert_eq!((ring.take_events(), ring.take_events()), (1, 0));
        // Armed while an entry is not yet visible: it counts.
        ring.push(&entry(2, 90, 0), || 60);
        assert_eq!(ring.arm(ANY, || 60), Some(90));
        assert_eq!(ring.announce(90), (true, None));
    });
}

/// A process dies between unlinking and freeing an entry.
#[test]
fn a_death_inside_loses_no_entry() {
    with_ring(4, |ring| {
        for id in 0..3 {
            ring.push(&entry(id, 0, 0), || 0);
        }
        // SAFETY: the child only accesses the ring and exits.
        unsafe {
            match libc::fork() {
                0 => {
                    std::mem::forget(ring.cq.lock.lock());
                    let first = ring.entry(get(&ring.cq.head)).map_or(0, |e| get(&e.next));
                    ring.cq.head.store(first, Relaxed);
                    ring.cq.free.store(0, Relaxed);
                    libc::_exit(0);
                }
                child => assert_eq!(libc::waitpid(child, std::ptr::null_mut(), 0), child),
            }
        }
        // Two entries are in the list, two are free.
        assert_eq!(ring.push(&entry(3, 0, 0), || 0), Pushed::Quiet);
        assert_eq!(ring.push(&entry(4, 0, 0), || 0), Pushed::Quiet);
        assert_eq!(ring.push(&entry(5, 0, 0), || 0), Pushed::Overrun);
        assert_eq!(drain(&ring), [1, 2, 3, 4]);
    });
}
