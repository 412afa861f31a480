//! Every schedule of the two threads that use a [`RequestCell`]: NCCL's, which collects, and the
//! one that makes progress, which completes.
//!
//! The product's own file, with loom's atomics in the place of the standard library's.

#[path = "../../../src/transport/request/cell.rs"]
mod cell;

use std::panic::catch_unwind;

use self::cell::{Found, RequestCell};
use loom::sync::Arc;
use loom::thread;

use crate::explore::explore;

const SIZE: usize = 4096;

/// Polls a cell as `Request::test` does, at most `polls` times.
fn poll(cell: &RequestCell, polls: usize) -> Option<usize> {
    for _ in 0..polls {
        if let Some(size) = cell.collect_one() {
            return Some(size);
        }
        match cell.completed() {
            Found::Pending => thread::yield_now(),
            Found::Done(count) => {
                let sizes: Vec<usize> = cell.sizes(count).collect();
                assert_eq!(sizes.len(), 1);
                cell.free();
                return Some(sizes[0]);
            }
            Found::Stale => panic!("a request that nobody collected is stale"),
        }
    }
    None
}

#[test]
fn a_completed_request_is_collected_with_its_size() {
    let schedules = explore(|| {
        let cell = Arc::new(RequestCell::new());
        cell.begin();
        let progress = thread::spawn({
            let cell = Arc::clone(&cell);
            move || cell.complete_one(SIZE)
        });
        let seen = poll(&cell, 2);
        progress.join().unwrap();
        let seen = seen.or_else(|| poll(&cell, 1));
        assert_eq!(seen, Some(SIZE));
        assert!(cell.is_free());
    });
    assert!(schedules > 1, "{schedules} schedules");
}

#[test]
fn all_sizes_of_a_group_are_there_with_its_completion() {
    let schedules = explore(|| {
        let cell = Arc::new(RequestCell::new());
        cell.begin();
        let progress = thread::spawn({
            let cell = Arc::clone(&cell);
            move || cell.complete(&[1, 2])
        });
        let check = |cell: &RequestCell| {
            assert_eq!(cell.collect_one(), None);
            if let Found::Done(count) = cell.completed() {
                assert!(cell.sizes(count).eq([1, 2]));
            }
        };
        check(&cell);
        progress.join().unwrap();
        check(&cell);
    });
    assert!(schedules > 1, "{schedules} schedules");
}

/// NCCL collects a request once, with size 0 or with its size, and the cell is free once both
/// the collection and the arrival are over.
#[test]
fn data_arrives_while_nccl_collects_a_request_completed_ahead() {
    let schedules = explore(|| {
        let cell = Arc::new(RequestCell::new());
        cell.begin();
        cell.complete_ahead();
        let progress = thread::spawn({
            let cell = Arc::clone(&cell);
            move || {
                assert!(cell.awaits_data());
                cell.data_arrived(SIZE);
            }
        });
        let size = poll(&cell, 2).expect("completed in either state");
        assert!(size == 0 || size == SIZE, "{size}");
        progress.join().unwrap();
        assert!(cell.is_free());
        assert_eq!(cell.completed(), Found::Stale);
    });
    assert!(schedules > 2, "{schedules} schedules");
}

/// A comm fails while NCCL collects: either NCCL has it, or the request reports the failure.
#[test]
fn a_completion_ahead_is_collected_or_revoked() {
    let schedules = explore(|| {
        let cell = Arc::new(RequestCell::new());
        cell.begin();
        cell.complete_ahead();
        let progress = thread::spawn({
            let cell = Arc::clone(&cell);
            move || cell.revoke()
        });
        let collected = cell.collect_one();
        progress.join().unwrap();
        match collected {
            Some(size) => assert!(size == 0 && cell.awaits_data()),
            None => assert!(cell.is_in_flight()),
        }
    });
    assert!(schedules > 2, "{schedules} schedules");
}

/// A driver that frees the cell without looking whether NCCL has collected it loses the size or a
/// collection: the models above can fail.
#[test]
fn a_driver_that_does_not_compare_fails_the_model() {
    let failed = catch_unwind(|| {
        explore(|| {
            let cell = Arc::new(RequestCell::new());
            cell.begin();
            cell.complete_ahead();
            let progress = thread::spawn({
                let cell = Arc::clone(&cell);
                move || cell.complete_one(SIZE)
            });
            poll(&cell, 2);
            progress.join().unwrap();
            assert!(cell.is_free());
        })
    });
    assert!(failed.is_err());
}
