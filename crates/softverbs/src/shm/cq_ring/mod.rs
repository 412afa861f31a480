//! A completion queue in shared memory: any process pushes entries, the owner polls them.
//!
//! The entries form a list in the order of the time at which they become visible. Entries with
//! equal times are in the order of arrival. A single store adds an entry to the list or removes it.
//! If a process dies in between, everything else (`last`, `count`, the free list) can be rebuilt
//! from the list.

mod entry;

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use crate::shm::layout::{CqEntry, CqShared};
use crate::shm::mutex::Guard;
use crate::shm::peer::Peer;
use entry::{fill, get, read};

pub(crate) use entry::{Completion, Queue};

/// The CQ is not armed.
pub(crate) const DISARMED: u32 = 0;
/// The CQ is armed for solicited completions and errors.
pub(crate) const SOLICITED: u32 = 1;
/// The CQ is armed for all completions.
pub(crate) const ANY: u32 = 2;

/// Value of `CqShared::failed` of a CQ that takes nothing any more: the completions in it can be polled.
const SHUT: u32 = 1;
/// Value of `CqShared::failed` of a CQ that returns nothing any more.
const DEAD: u32 = 2;

/// Result of a push.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Pushed {
    /// Added, without an event now.
    Quiet,
    /// Added; the owner must put an event into the channel.
    Event,
    /// Added; the owner must check for an event at this time.
    Later(u64),
    /// No room: the CQ has failed with this push.
    Overrun,
    /// The CQ failed earlier, or does not exist.
    Lost,
}

/// A view of a CQ in a segment.
#[derive(Clone, Copy)]
pub(crate) struct Ring<'a> {
    peer: &'a Peer,
    cq: &'a CqShared,
    entries: &'a [CqEntry],
}

impl<'a> Ring<'a> {
    /// Returns `None` if there is no such CQ.
    pub(crate) fn new(peer: &'a Peer, index: u32) -> Option<Self> {
        let cq = peer.cq(index)?;
        if get(&cq.id) == 0 {
            return None;
        }
        let offset = usize::try_from(cq.offset.load(Relaxed)).ok()?;
        Some(Self { peer, cq, entries: peer.slice(offset, get(&cq.depth) as usize)? })
    }

    /// Empties the CQ. The caller is the owner, and nothing else uses the CQ.
    pub(crate) fn reset(&self) {
        let cq = self.cq;
        for field in [&cq.head, &cq.count, &cq.unannounced, &cq.armed, &cq.failed, &cq.events, &cq.ending] {
            field.store(0, Relaxed);
        }
        self.rebuild();
    }

    /// Returns the entry of a link (index + 1).
    fn entry(&self, link: u32) -> Option<&'a CqEntry> {
        self.entries.get((link as usize).checked_sub(1)?)
    }

    /// Makes the CQ fail: it takes nothing any more, and returns at most what it has.
    pub(crate) fn fail(&self, keeps: bool) {
        let _guard = self.lock();
        self.cq.failed.store(if keeps { SHUT } else { DEAD }, Relaxed);
    }

    /// Locks the CQ. If the previous holder died, rebuilds the derived fields.
    pub(crate) fn lock(&self) -> Guard<'a> {
        let guard = self.cq.lock.lock();
        if guard.died {
            self.rebuild();
        }
        guard
    }

    /// Rebuilds all other fields from `head` and `next`.
    fn rebuild(&self) {
        let cq = self.cq;
        let mut linked = vec![false; self.entries.len()];
        let (mut last, mut count, mut unannounced) = (0, 0, 0);
        let mut link = get(&cq.head);
        while let Some(entry) = self.entry(link) {
            // A damaged list could contain a cycle.
            if std::mem::replace(&mut linked[link as usize - 1], true) {
                break;
            }
            (last, count) = (link, count + 1);
            unannounced += u32::from(get(&entry.announced) == 0);
            link = get(&entry.next);
        }
        let mut free = 0;
        for (link, (entry, used)) in (1..).zip(self.entries.iter().zip(linked)) {
            if !used {
                entry.next.store(free, Relaxed);
                free = link;
            } else if link == get(&cq.ending_with) {
                self.finish_ending();
            }
        }
        cq.ending.store(0, Release);
        cq.last.store(last, Relaxed);
        cq.unannounced.store(unannounced, Relaxed);
        cq.free.store(free, Relaxed);
        cq.count.store(count, Release);
    }

    /// Marks the taken receive of QP `ending` as completed, if there is one.
    fn finish_ending(&self) {
        let Some(qp) = get(&self.cq.ending).checked_sub(1) else { return };
        if let Some(qp) = self.peer.qp(qp) {
            qp.taken.store(0, Release);
        }
        self.cq.ending.store(0, Release);
    }

    fn fires(&self, status: u32, solicited: bool) -> bool {
        let armed = get(&self.cq.armed);
        let fires = armed == ANY || (armed == SOLICITED && (solicited || status != 0));
        if fires {
            self.cq.armed.store(DISARMED, Relaxed);
            self.cq.events.fetch_add(1, Release);
        }
        fires
    }

    /// Adds a completion. `now` is called only if the completion is not visible immediately.
    pub(crate) fn push(&self, c: &Completion, now: impl FnOnce() -> u64) -> Pushed {
        let cq = self.cq;
        let _guard = self.lock();
        if get(&cq.failed) != 0 || get(&cq.id) == 0 {
            return Pushed::Lost;
        }
        let link = get(&cq.free);
        let Some(entry) = self.entry(link) else {
            cq.failed.store(SHUT, Relaxed);
            return Pushed::Overrun;
        };
        cq.free.store(get(&entry.next), Relaxed);
        let ready_at = self.in_qp_order(c);
        let announced = ready_at == 0 || ready_at <= now();
        fill(entry, c, ready_at);
        cq.ending_with.store(link, Release);
        cq.ending.store(c.ends, Release);
        // Before the insertion: a poller that sees the count locks the CQ and detects if we have
        // died.
        cq.count.store(get(&cq.count) + 1, Release);
        self.insert(link, entry, ready_at);
        self.finish_ending();
        if announced {
            let fires = self.fires(c.status, c.solicited);
            // After the event: if we die in between, the next check announces the entry.
            entry.announced.store(1, Release);
            return if fires { Pushed::Event } else { Pushed::Quiet };
        }
        cq.unannounced.store(get(&cq.unannounced) + 1, Relaxed);
        if get(&cq.armed) == DISARMED { Pushed::Quiet } else { Pushed::Later(ready_at) }
    }

    /// Returns when the completion becomes visible. Completions of one QP stay in order, although a
    /// READ uses the other direction of the link than a later WRITE, and a flush uses none.
    fn in_qp_order(&self, c: &Completion) -> u64 {
        let mut ready_at = c.ready_at;
        if self.entry(get(&self.cq.last)).is_none_or(|last| last.ready_at.load(Relaxed) <= ready_at) {
            return ready_at;
        }
        let mut link = get(&self.cq.head);
        while let Some(entry) = self.entry(link) {
            if get(&entry.qpn) == c.qpn {
                ready_at = ready_at.max(entry.ready_at.load(Relaxed));
            }
            link = get(&entry.next);
        }
        ready_at
    }

    fn insert(&self, link: u32, entry: &CqEntry, ready_at: u64) {
        let cq = self.cq;
        let later = |e: &CqEntry| e.ready_at.load(Relaxed) > ready_at;
        match self.entry(get(&cq.last)) {
            None => {
                entry.next.store(0, Relaxed);
                cq.head.store(link, Release);
                cq.last.store(link, Relaxed);
            }
            Some(last) if !later(last) => {
                entry.next.store(0, Relaxed);
                last.next.store(link, Release);
                cq.last.store(link, Relaxed);
            }
            Some(_) => {
                let mut place = &cq.head;
                while let Some(next) = self.entry(get(place)).filter(|e| !later(e)) {
                    place = &next.next;
                }
                entry.next.store(get(place), Relaxed);
                place.store(link, Release);
            }
        }
    }

    /// Removes up to `n` visible completions. Returns their number, and whether an event is due.
    pub(crate) fn poll(&self, n: usize, mut take: impl FnMut(Completion)) -> (usize, bool) {
        let cq = self.cq;
        if cq.count.load(Acquire) == 0 {
            return (0, false);
        }
        let _guard = self.lock();
        if get(&cq.failed) == DEAD {
            return (0, false);
        }
        let (mut taken, mut event, mut time) = (0, false, None);
        while taken < n {
            let link = get(&cq.head);
            let Some(entry) = self.entry(link) else { break };
            let ready_at = entry.ready_at.load(Relaxed);
            if ready_at != 0 && ready_at > *time.get_or_insert_with(crate::clock::now) {
                break;
            }
            let completion = read(entry);
            if get(&entry.announced) == 0 {
                cq.unannounced.store(get(&cq.unannounced).saturating_sub(1), Relaxed);
                event |= self.fires(completion.status, completion.solicited);
            }
            self.unlink(&cq.head, link, entry, 0);
            take(completion);
            taken += 1;
        }
        (taken, event)
    }

    /// Removes `entry` from the list. `before` is the link of the preceding entry, 0 for none.
    fn unlink(&self, place: &std::sync::atomic::AtomicU32, link: u32, entry: &CqEntry, before: u32) {
        let cq = self.cq;
        let next = get(&entry.next);
        place.store(next, Release);
        if next == 0 {
            cq.last.store(before, Relaxed);
        }
        entry.next.store(get(&cq.free), Relaxed);
        cq.free.store(link, Relaxed);
        cq.count.store(get(&cq.count).saturating_sub(1), Release);
    }

    /// Removes all entries of QP `qpn`, as drivers do when a QP is reset or destroyed.
    pub(crate) fn purge(&self, qpn: u32, mut removed: impl FnMut(Completion)) {
        let cq = self.cq;
        let _guard = self.lock();
        let (mut place, mut before) = (&cq.head, 0);
        loop {
            let link = get(place);
            let Some(entry) = self.entry(link) else { break };
            if get(&entry.qpn) != qpn {
                (place, before) = (&entry.next, link);
                continue;
            }
            if get(&entry.announced) == 0 {
                cq.unannounced.store(get(&cq.unannounced).saturating_sub(1), Relaxed);
            }
            removed(read(entry));
            self.unlink(place, link, entry, before);
        }
    }

    /// Lets the entries of QP `qpn` free no slot of its queues when they are polled. Those of an SRQ
    /// still do.
    pub(crate) fn disown(&self, qpn: u32) {
        let _guard = self.lock();
        let mut link = get(&self.cq.head);
        while let Some(entry) = self.entry(link) {
            if get(&entry.qpn) == qpn {
                entry::disown(entry);
            }
            link = get(&entry.next);
        }
    }

    /// Considers entries that have become visible for an event. Returns whether an event is due,
    /// and when to check again.
    pub(crate) fn announce(&self, now: u64) -> (bool, Option<u64>) {
        if get(&self.cq.unannounced) == 0 {
            return (false, None);
        }
        let _guard = self.lock();
        self.announce_locked(now)
    }

    fn announce_locked(&self, now: u64) -> (bool, Option<u64>) {
        let cq = self.cq;
        let mut event = false;
        let mut link = get(&cq.head);
        while let Some(entry) = self.entry(link) {
            let ready_at = entry.ready_at.load(Relaxed);
            if ready_at > now {
                let armed = get(&cq.armed) != DISARMED;
                return (event, armed.then_some(ready_at));
            }
            if get(&entry.announced) == 0 {
                entry.announced.store(1, Relaxed);
                cq.unannounced.store(get(&cq.unannounced).saturating_sub(1), Relaxed);
                event |= self.fires(get(&entry.status), get(&entry.solicited) != 0);
            }
            link = get(&entry.next);
        }
        (event, None)
    }

    /// Arms the CQ for completions from now on. Returns when to check, if entries are not yet
    /// visible.
    pub(crate) fn arm(&self, what: u32, now: impl FnOnce() -> u64) -> Option<u64> {
        let cq = self.cq;
        let _guard = self.lock();
        let on_their_way = get(&cq.unannounced) > 0;
        let now = if on_their_way { now() } else { 0 };
        if on_their_way {
            // Visible entries arrived before.
            let armed = cq.armed.swap(DISARMED, Relaxed);
            self.announce_locked(now);
            cq.armed.store(armed, Relaxed);
        }
        cq.armed.store(what.max(get(&cq.armed)), Relaxed);
        if on_their_way { self.announce_locked(now).1 } else { None }
    }

    /// Returns the number of due events and resets it.
    pub(crate) fn take_events(&self) -> u32 {
        self.cq.events.swap(0, Acquire)
    }

    /// Returns the times at which the entries become visible, in order.
    pub(crate) fn completion_times(&self) -> Vec<u64> {
        let _guard = self.lock();
        let mut times = Vec::new();
        let mut link = get(&self.cq.head);
        while let Some(entry) = self.entry(link) {
            times.push(entry.ready_at.load(Relaxed));
            link = get(&entry.next);
        }
        times
    }
}

#[cfg(test)]
mod tests;
