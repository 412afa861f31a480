//! Every schedule of the two threads that share a comm's mark: NCCL's, which clears the mark and then
//! looks, and the one that condemns rails.
//!
//! The product's own file, with loom's atomics in the place of the standard library's.

#[path = "../../../src/async_events/comm_flags.rs"]
#[allow(dead_code, reason = "a part of it is the plugin's")]
mod source;

use std::panic::catch_unwind;

use self::source::CommFlags;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;

use crate::explore::explore;

/// A look at a comm: clears the mark first, or, as a seeded fault, last.
fn look(flags: &CommFlags, first: bool) -> u8 {
    if !flags.is_marked() {
        return 0;
    }
    if first {
        flags.unmark();
    }
    let taken = flags.take_condemned();
    if !first {
        flags.unmark();
    }
    taken
}

/// Condemns two rails, one after the other, while the other thread looks.
fn condemned_rails_are_found(first: bool) {
    let flags = Arc::new(CommFlags::new());
    let other = Arc::clone(&flags);
    let condemning = thread::spawn(move || {
        for rail in [0b01, 0b10] {
            other.condemn(rail);
            other.mark();
        }
    });
    let mut found = look(&flags, first) | look(&flags, first);
    condemning.join().unwrap();
    found |= look(&flags, first);
    assert_eq!(found, 0b11);
    assert!(!flags.is_marked());
}

#[test]
fn no_mark_is_lost_if_it_is_cleared_before_the_look() {
    let schedules = explore(|| condemned_rails_are_found(true));
    assert!(schedules > 2, "{schedules} schedules");
}

#[test]
fn a_mark_is_lost_if_it_is_cleared_after_the_look() {
    assert!(catch_unwind(|| explore(|| condemned_rails_are_found(false))).is_err());
}

/// What another thread has written before its mark, in the plugin the cause of an end, is visible to
/// the thread that clears the mark.
#[test]
fn what_comes_before_a_mark_is_visible_once_the_mark_is_cleared() {
    let schedules = explore(|| {
        let (flags, cause) = (Arc::new(CommFlags::new()), Arc::new(AtomicU32::new(0)));
        let (other, written) = (Arc::clone(&flags), Arc::clone(&cause));
        flags.mark();
        let ending = thread::spawn(move || {
            written.store(1, Ordering::Relaxed);
            other.mark();
        });
        flags.unmark();
        let seen = cause.load(Ordering::Relaxed) == 1;
        ending.join().unwrap();
        assert!(seen || flags.is_marked(), "the cause is lost");
    });
    assert!(schedules > 1, "{schedules} schedules");
}
