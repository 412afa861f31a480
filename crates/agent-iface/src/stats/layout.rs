//! The page as a struct of atomics, with the offsets documented in [the module](super).

use std::mem::{offset_of, size_of};
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::time::SystemTime;

use super::operations::CommunicatorRecord;
use super::ports::PortRecord;
use super::reader::Wait;
use super::totals::TotalsRecord;
use super::{
    Awaited, Generation, Lack, NO_SHARE, Revision, STATS_COMMUNICATORS, STATS_ENTRIES, STATS_ENTRY_SIZE,
    STATS_EVENTS, STATS_HEADER_SIZE, STATS_PORTS, STATS_RAILS, STATS_SIZE, STATS_SIZE_WITHOUT_OPERATIONS,
    State,
};
use crate::text::printable;

/// The whole page.
#[derive(Debug)]
#[repr(C)]
pub(super) struct Page {
    pub(super) header: Header,
    pub(super) ports: [PortRecord; STATS_PORTS],
    pub(super) entries: [Entry; STATS_ENTRIES],
    pub(super) communicators: [CommunicatorRecord; STATS_COMMUNICATORS],
}

#[derive(Debug)]
#[repr(C)]
pub(super) struct Header {
    pub(super) magic: AtomicU32,
    pub(super) version: AtomicU32,
    pub(super) header_size: AtomicU32,
    pub(super) entry_size: AtomicU32,
    pub(super) entries: AtomicU32,
    pub(super) rails: AtomicU32,
    pub(super) size: AtomicU64,
    pub(super) pid: AtomicU32,
    _pad: AtomicU32,
    pub(super) made: AtomicU64,
    pub(super) opened: AtomicU64,
    pub(super) open: AtomicU32,
    pub(super) hidden: AtomicU32,
    pub(super) used: AtomicU32,
    pub(super) substituted: AtomicU32,
    pub(super) ports: AtomicU32,
    pub(super) port_size: AtomicU32,
    pub(super) ports_used: AtomicU32,
    pub(super) ports_missing: AtomicU32,
    pub(super) revision: Revision,
    pub(super) plugin: Text<4>,
    pub(super) events: [AtomicU64; STATS_EVENTS],
    pub(super) episodes: AtomicU64,
    pub(super) replayed: AtomicU64,
    pub(super) stalled: AtomicU64,
    pub(super) returns: AtomicU64,
    pub(super) forged: AtomicU64,
    pub(super) job: Text<5>,
    /// By direction: sends, receives.
    pub(super) totals: [TotalsRecord; 2],
}

/// The entry of one connection. Its counters have one writer at a time: the holder of the
/// connection's lock.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Entry {
    pub(super) generation: Generation,
    pub(super) state: AtomicU32,
    pub(super) direction: AtomicU8,
    pub(super) islands: AtomicU8,
    pub(super) data: AtomicU8,
    pub(super) rail_count: AtomicU8,
    pub(super) since: AtomicU64,
    pub(super) failed_at: AtomicU64,
    pub(super) traffic: AtomicU8,
    _reserved: [AtomicU8; 7],
    pub(super) wait: AtomicU64,
    _free: [AtomicU64; 2],
    pub(super) peer: Text<16>,
    // One cache line: every message updates it.
    pub(super) requests: AtomicU64,
    pub(super) done: AtomicU64,
    pub(super) messages: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) waits_peer: AtomicU64,
    pub(super) waits_queue: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) share: AtomicU32,
    _pad: AtomicU32,
    pub(super) rails: [RailEntry; STATS_RAILS],
    pub(super) reason: Text<32>,
}

/// One rail of a connection.
#[derive(Debug, Default)]
#[repr(C)]
pub struct RailEntry {
    // One cache line: every message on the rail updates it.
    pub(super) bytes: AtomicU64,
    pub(super) parts: AtomicU64,
    pub(super) posted: AtomicU64,
    pub(super) done: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) role: AtomicU32,
    pub(super) port: AtomicU32,
    pub(super) given_up: AtomicU64,
    pub(super) lack: AtomicU64,
    pub(super) name: Text<8>,
    pub(super) missing: Text<16>,
}

/// Zero-padded text in words.
#[derive(Debug)]
#[repr(transparent)]
pub(super) struct Text<const WORDS: usize>([AtomicU64; WORDS]);

const _: () = {
    assert!(size_of::<Page>() == STATS_SIZE);
    assert!(offset_of!(Page, communicators) == STATS_SIZE_WITHOUT_OPERATIONS);
    assert!(size_of::<Header>() == STATS_HEADER_SIZE && offset_of!(Header, size) == 24);
    assert!(
        offset_of!(Header, pid) == 32 && offset_of!(Header, made) == 40 && offset_of!(Header, open) == 56
    );
    assert!(offset_of!(Header, used) == 64 && offset_of!(Header, substituted) == 68);
    assert!(offset_of!(Header, ports) == 72 && offset_of!(Header, revision) == 88);
    assert!(offset_of!(Header, plugin) == 96 && offset_of!(Header, totals) == 256);
    assert!(offset_of!(Header, events) == 128 && offset_of!(Header, episodes) == 176);
    assert!(offset_of!(Header, returns) == 200 && offset_of!(Header, forged) == 208);
    assert!(offset_of!(Header, job) == 216);
    assert!(size_of::<Entry>() == STATS_ENTRY_SIZE && STATS_ENTRY_SIZE.is_multiple_of(64));
    assert!(offset_of!(Entry, state) == 8 && offset_of!(Entry, rail_count) == 15);
    assert!(offset_of!(Entry, since) == 16 && offset_of!(Entry, wait) == 40);
    assert!(offset_of!(Entry, peer) == 64);
    assert!(offset_of!(Entry, requests) == 192 && offset_of!(Entry, share) == 248);
    assert!(offset_of!(Entry, rails) == 256 && offset_of!(Entry, reason) == 2304);
    assert!(size_of::<RailEntry>() == 256 && offset_of!(RailEntry, errors) == 32);
    assert!(offset_of!(RailEntry, role) == 40 && offset_of!(RailEntry, port) == 44);
    assert!(offset_of!(RailEntry, given_up) == 48);
    assert!(offset_of!(RailEntry, lack) == 56 && offset_of!(RailEntry, name) == 64);
    assert!(offset_of!(RailEntry, missing) == 128);
};

/// Adds to a counter with a single writer: a load and a store, no locked instruction.
#[inline]
fn add(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Relaxed);
}

/// Like [`add`], but readers that see the new value also see all earlier stores.
#[inline]
fn add_done(counter: &AtomicU64, n: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(n), Ordering::Release);
}

impl Entry {
    /// Counts a request that isend or irecv returned.
    #[inline]
    pub fn request(&self) {
        add(&self.requests, 1);
    }

    /// Records the share of SUP of a send, in parts per 1024.
    #[inline]
    pub fn share(&self, share: u16) {
        self.share.store(share.into(), Ordering::Relaxed);
    }

    /// Counts a request that test reported as done, with its number of messages and their total
    /// bytes.
    #[inline]
    pub fn done(&self, messages: usize, bytes: usize) {
        add(&self.messages, messages as u64);
        add(&self.bytes, bytes as u64);
        add_done(&self.done, 1);
    }

    /// Counts a call of isend without a request, because the peer had posted no receive.
    #[inline]
    pub fn wait_for_peer(&self) {
        add(&self.waits_peer, 1);
    }

    /// Counts a call of isend or irecv without a request, because a queue was full.
    #[inline]
    pub fn wait_for_queue(&self) {
        add(&self.waits_queue, 1);
    }

    /// Records what the connection waits for, and since when; `None` while it does not wait, which a
    /// failed connection does not.
    pub fn waits(&self, wait: Option<(Awaited, SystemTime)>) {
        self.wait.store(wait.map_or(0, |(what, since)| Wait::word(what, since)), Ordering::Relaxed);
    }

    /// Records a failed call, which fails the connection. The first reason is kept.
    #[cold]
    pub fn failure(&self, why: &str) {
        add(&self.errors, 1);
        if self.state.load(Ordering::Relaxed) != u32::from(State::Failed.code()) {
            self.failed_at.store(super::writer::now(), Ordering::Relaxed);
            self.reason.write(why);
            self.waits(None);
            self.state.store(State::Failed.code().into(), Ordering::Release);
        }
    }

    /// Returns the counters of a rail, whose index is below [`STATS_RAILS`].
    #[inline]
    pub fn rail(&self, rail: usize) -> &RailEntry {
        // No bounds check for each message.
        &self.rails[rail % STATS_RAILS]
    }

    /// Sets everything but the generation to zero.
    pub(super) fn clear(&self) {
        for number in [&self.since, &self.failed_at, &self.requests, &self.done, &self.messages] {
            number.store(0, Ordering::Relaxed);
        }
        for number in [&self.bytes, &self.waits_peer, &self.waits_queue, &self.errors] {
            number.store(0, Ordering::Relaxed);
        }
        self.waits(None);
        self.share.store(NO_SHARE, Ordering::Relaxed);
        self.peer.write("");
        self.reason.write("");
        for rail in &self.rails {
            for number in [&rail.bytes, &rail.parts, &rail.posted, &rail.done, &rail.errors] {
                number.store(0, Ordering::Relaxed);
            }
            rail.given_up.store(0, Ordering::Relaxed);
            rail.lack.store(0, Ordering::Relaxed);
            rail.missing.write("");
            rail.role.store(0, Ordering::Relaxed);
            rail.port.store(0, Ordering::Relaxed);
            rail.name.write("");
        }
    }
}

impl RailEntry {
    /// Returns the work requests that were posted, and those of them that are known to be complete.
    #[inline]
    pub fn progress(&self) -> (u64, u64) {
        // "done" before its total: the difference is never negative.
        let done = self.done.load(Ordering::Acquire);
        (self.posted.load(Ordering::Relaxed), done)
    }

    /// Returns the number of its port's record, from 1; 0 if it has none.
    pub fn port(&self) -> u32 {
        self.port.load(Ordering::Relaxed)
    }

    /// Returns the bytes of the work requests that were posted.
    #[inline]
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Counts posted work requests. `parts` of them carry message data, `bytes` bytes in total.
    #[inline]
    pub fn posted(&self, work_requests: usize, parts: usize, bytes: usize) {
        add(&self.posted, work_requests as u64);
        add(&self.parts, parts as u64);
        add(&self.bytes, bytes as u64);
    }

    /// Counts a posted work request without message data.
    #[inline]
    pub fn posted_bare(&self) {
        add(&self.posted, 1);
    }

    /// Counts work requests that are known to be complete.
    #[inline]
    pub fn completed(&self, work_requests: u32) {
        add_done(&self.done, work_requests.into());
    }

    /// Counts a received message or part.
    #[inline]
    pub fn arrived(&self) {
        add(&self.parts, 1);
    }

    /// Counts a completion with an error.
    #[cold]
    pub fn error(&self) {
        add(&self.errors, 1);
    }

    /// Records why the connection lacks the rail, or that the rail is in use again.
    #[cold]
    pub fn missing(&self, why: Option<(Lack, &str)>) {
        self.missing.write(why.map_or("", |(_, text)| text));
        self.lack.store(why.map_or(0, |(lack, _)| lack.code()), Ordering::Relaxed);
        let since = if why.is_some() { super::writer::now() } else { 0 };
        self.given_up.store(since, Ordering::Release);
    }
}

impl<const WORDS: usize> Default for Text<WORDS> {
    fn default() -> Self {
        Self([const { AtomicU64::new(0) }; WORDS])
    }
}

impl<const WORDS: usize> Text<WORDS> {
    pub(super) fn words(&self) -> &[AtomicU64] {
        &self.0
    }

    /// Writes `text`, truncated at a character boundary if necessary.
    pub(super) fn write(&self, text: &str) {
        let mut end = text.len().min(WORDS * 8);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        let bytes = &text.as_bytes()[..end];
        for (i, word) in self.0.iter().enumerate() {
            let mut eight = [0; 8];
            let part = bytes.get(i * 8..bytes.len().min(i * 8 + 8)).unwrap_or_default();
            eight[..part.len()].copy_from_slice(part);
            word.store(u64::from_ne_bytes(eight), Ordering::Relaxed);
        }
    }

    /// Reads the text. Control characters, those that separate lines or change the direction of text,
    /// and invalid UTF-8 are replaced, which makes it safe for a terminal.
    pub(super) fn read(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().flat_map(|w| w.load(Ordering::Relaxed).to_ne_bytes()).collect();
        let end = bytes.iter().position(|b| *b == 0).unwrap_or(bytes.len());
        printable(&String::from_utf8_lossy(&bytes[..end]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_cut_between_characters_and_shown_without_control_signs() {
        let text = Text([const { AtomicU64::new(u64::MAX) }; 2]);
        for (given, read) in [
            ("", ""),
            ("short", "short"),
            ("exactly 16 bytes", "exactly 16 bytes"),
            ("seventeen bytes !", "seventeen bytes "),
            // The last character's second byte would be the 17th.
            ("fifteen bytes  é", "fifteen bytes  "),
            ("a\u{1b}[31m\n", "a?[31m?"),
            ("a\u{2028}\u{202e}\u{2066}b", "a???b"),
        ] {
            text.write(given);
            assert_eq!(text.read(), read, "{given:?}");
        }
        text.0[0].store(u64::from_ne_bytes([0xff; 8]), Ordering::Relaxed);
        text.0[1].store(0, Ordering::Relaxed);
        assert_eq!(text.read(), "\u{fffd}".repeat(8));
    }
}
