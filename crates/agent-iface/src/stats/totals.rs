//! What connections have counted in all: sums over connections, by direction.

use std::mem::{offset_of, size_of};
use std::ops::{AddAssign, Sub};
use std::sync::atomic::{AtomicU64, Ordering};

use super::layout::Entry;

/// The totals of one direction in the page. The holder of the writer's lock writes them.
#[derive(Debug, Default)]
#[repr(C)]
pub(super) struct TotalsRecord {
    requests: AtomicU64,
    done: AtomicU64,
    messages: AtomicU64,
    bytes: AtomicU64,
    waits_peer: AtomicU64,
    waits_queue: AtomicU64,
    errors: AtomicU64,
    _reserved: [AtomicU64; 9],
}

const _: () = assert!(size_of::<TotalsRecord>() == 128 && offset_of!(TotalsRecord, errors) == 48);

/// What the connections of one direction have counted, the closed ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Requests that isend, irecv or iflush returned.
    pub requests: u64,
    /// Requests that test reported as done.
    pub done: u64,
    /// Messages of done requests.
    pub messages: u64,
    /// Bytes of these messages.
    pub bytes: u64,
    /// Calls of isend without a request, because the peer had posted no receive.
    pub waits_peer: u64,
    /// Calls of isend or irecv without a request, because a queue was full.
    pub waits_queue: u64,
    /// Calls that failed.
    pub errors: u64,
}

/// Adds to a counter whose writer holds the writer's lock.
pub(super) fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

impl TotalsRecord {
    /// Adds counts of connections without an entry.
    pub(super) fn add(&self, counts: &Totals) {
        let Totals { requests, done, messages, bytes, waits_peer, waits_queue, errors } = *counts;
        for (place, n) in [
            (&self.requests, requests),
            (&self.done, done),
            (&self.messages, messages),
            (&self.bytes, bytes),
            (&self.waits_peer, waits_peer),
            (&self.waits_queue, waits_queue),
            (&self.errors, errors),
        ] {
            add(place, n);
        }
    }

    /// Returns the totals of the connections without an entry.
    pub(super) fn read(&self) -> Totals {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Totals {
            requests: get(&self.requests),
            done: get(&self.done),
            messages: get(&self.messages),
            bytes: get(&self.bytes),
            waits_peer: get(&self.waits_peer),
            waits_queue: get(&self.waits_queue),
            errors: get(&self.errors),
        }
    }
}

impl Totals {
    /// Returns what one connection has counted.
    pub fn of(entry: &Entry) -> Self {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        // "done" before its total: the difference is never negative.
        let done = entry.done.load(Ordering::Acquire);
        Self {
            requests: get(&entry.requests),
            done,
            messages: get(&entry.messages),
            bytes: get(&entry.bytes),
            waits_peer: get(&entry.waits_peer),
            waits_queue: get(&entry.waits_queue),
            errors: get(&entry.errors),
        }
    }
}

/// Sums and differences of counters, field by field. Counters wrap around.
macro_rules! arithmetic {
    ($type:ty { $($field:ident),+ }) => {
        impl AddAssign for $type {
            fn add_assign(&mut self, other: Self) {
                $(self.$field = self.$field.wrapping_add(other.$field);)+
            }
        }

        impl Sub for $type {
            type Output = Self;

            fn sub(self, other: Self) -> Self {
                Self { $($field: self.$field.wrapping_sub(other.$field)),+ }
            }
        }
    };
}
pub(super) use arithmetic;

arithmetic!(Totals { requests, done, messages, bytes, waits_peer, waits_queue, errors });
