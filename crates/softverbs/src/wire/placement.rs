//! Data that reaches host memory later than its WRITE is acknowledged, and in another order (`order=`).
//!
//! The pieces of such a WRITE wait in the segment of the process whose memory they are for. What must
//! not see old bytes lands them: a poll that returns the completion of a receive, those before it
//! on its queue pair; a READ, those of its memory region; the end of a queue pair or of a memory
//! region, all that it concerns. The service thread of that process lands the rest at its time.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::clock;
use crate::config::order::Order;
use crate::log::fault;
use crate::process::Process;
use crate::shm::layout::{DeviceShared, PIECE_AREA, PIECE_BYTES, PIECE_SLOTS, PIECES, PieceSlot};
use crate::shm::peer::Peer;
use crate::wire::access::RELAXED_ORDERING;
use crate::wire::bounce;
use crate::wire::copy::{self, Direction, Pieces, Stopped};
use crate::wire::respond::Responder;

/// The longest time until data lands, in nanoseconds.
const SPREAD: u64 = 1_000_000;
/// An aligned line of this size arrives at once, or in the order of its addresses. Relaxed ordering
/// of the memory region takes that away.
const LINE: u64 = 64;

/// States of a slot. A process that is killed while it fills one keeps it.
const FREE: u32 = 0;
const FILLED_NOW: u32 = 1;
const WAITS: u32 = 2;

/// A piece of a WRITE: a range of it, and when it lands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Piece {
    offset: u64,
    len: u64,
    due: u64,
}

/// Returns the next number of a xorshift generator, below `n`.
fn random(state: &AtomicU64, n: u64) -> u64 {
    let mut x = state.load(Relaxed).max(1);
    x ^= x << 13;
    x ^= x >> 7;
    x ^= x << 17;
    // Two threads at once may draw the same number.
    state.store(x, Relaxed);
    x % n
}

/// Cuts a WRITE of `len` bytes at `addr` into pieces that end with a line. The last line of a piece may
/// be torn between two of its words.
fn cut(seed: &AtomicU64, (addr, len): (u64, u64), now: u64, relaxed_region: bool) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut offset = 0;
    while offset < len {
        let most = LINE << random(seed, 7);
        let end = ((addr + offset + most) / LINE * LINE - addr).min(len).max(offset + 1);
        let due = now + random(seed, SPREAD);
        let n = end - offset;
        // The words of the line that land later.
        let torn = if n <= LINE { 8 * random(seed, 8) } else { 0 };
        if torn > 0 && torn < n {
            let after = if relaxed_region { now + random(seed, SPREAD) } else { due + random(seed, SPREAD) };
            pieces.push(Piece { offset, len: n - torn, due });
            pieces.push(Piece { offset: end - torn, len: torn, due: after });
        } else {
            pieces.push(Piece { offset, len: n, due });
        }
        offset = end;
    }
    pieces
}

fn slots(peer: &Peer) -> &[PieceSlot] {
    peer.slice(PIECE_SLOTS, PIECES).unwrap_or_default()
}

/// Returns the bytes of slot `i`.
fn bytes(peer: &Peer, i: usize, len: u64) -> Option<Pieces> {
    let area: &[std::sync::atomic::AtomicU8] = peer.slice(PIECE_AREA + i * PIECE_BYTES, PIECE_BYTES)?;
    Some(Pieces::one(area.first()?.as_ptr().expose_provenance() as u64, len.min(PIECE_BYTES as u64)))
}

/// Returns the order in which a device writes.
pub(super) fn order(device: Option<&DeviceShared>) -> Order {
    Order::at(device.map_or(0, |device| device.order.load(Relaxed)))
}

/// Takes a copy of `len` bytes of a WRITE, whose key was checked, for the memory at `addr`. They land
/// later than `ready_at`. The responding QP is locked.
pub(super) fn place(
    process: &Process,
    to: &Responder<'_>,
    from: &Pieces,
    (addr, len, rkey): (u64, u64, u32),
    ready_at: u64,
) -> Result<(), Stopped> {
    let Some(device) = to.device() else { return Err(Stopped::Ended) };
    let now = ready_at.max(clock::now());
    let pieces = match order(Some(device)) {
        Order::Relaxed => {
            let relaxed =
                to.peer.mr(rkey >> 16).is_some_and(|mr| mr.access.load(Relaxed) & RELAXED_ORDERING != 0);
            cut(&device.order_random, (addr, len), now, relaxed)
        }
        // In the order of the queue pair.
        _ => {
            let due = now + random(&device.order_random, SPREAD);
            let due = due.max(to.qp.placed_by.fetch_max(due, Relaxed));
            let n = PIECE_BYTES as u64;
            let starts = (0..len).step_by(PIECE_BYTES);
            starts.map(|offset| Piece { offset, len: n.min(len - offset), due }).collect()
        }
    };
    for piece in pieces {
        put(process, to, from, (addr, rkey), piece)?;
    }
    Ok(())
}

/// Puts a piece into a free slot. Without one, it lands at once, after those before it.
fn put(
    process: &Process,
    to: &Responder<'_>,
    from: &Pieces,
    (addr, rkey): (u64, u32),
    Piece { offset, len, due }: Piece,
) -> Result<(), Stopped> {
    let mut from = *from;
    from.select(offset, len);
    let peer = to.peer;
    let free = slots(peer).iter().enumerate().find(|(_, slot)| {
        slot.state.load(Relaxed) == FREE
            && slot.state.compare_exchange(FREE, FILLED_NOW, AcqRel, Relaxed).is_ok()
    });
    let Some((i, slot)) = free else {
        land_qp(peer, to.index());
        return copy::run(peer, Direction::Write, &from, &Pieces::one(addr + offset, len));
    };
    let copied = match bytes(peer, i, len) {
        Some(here) => copy::run(&process.own, Direction::Write, &from, &here),
        None => Err(Stopped::Ended),
    };
    if copied.is_err() {
        slot.state.store(FREE, Release);
        return copied;
    }
    slot.qp.store(to.index(), Relaxed);
    slot.mr.store(rkey >> 16, Relaxed);
    slot.len.store(len, Relaxed);
    slot.addr.store(addr + offset, Relaxed);
    slot.due.store(due, Relaxed);
    slot.number.store(to.qp.placed.fetch_add(1, Relaxed) + 1, Relaxed);
    peer.header().pieces.fetch_add(1, AcqRel);
    slot.state.store(WAITS, Release);
    if peer.header().pieces_timed.swap(1, AcqRel) == 0 {
        match peer.own {
            true => process.service.wake_at(due),
            false => peer.kick(),
        }
    }
    Ok(())
}

/// Lands the pieces that are wanted, in the order of their times. When it returns they are in memory.
fn land(peer: &Peer, wanted: impl Fn(&PieceSlot) -> bool) {
    let header = peer.header();
    if header.pieces.load(Acquire) == 0 {
        return;
    }
    // Another thread may be landing some of them.
    let _guard = bounce::lock(&header.piece_lock);
    let waiting = slots(peer).iter().enumerate().filter(|(_, slot)| slot.state.load(Acquire) == WAITS);
    let key = |slot: &PieceSlot| (slot.due.load(Relaxed), slot.number.load(Relaxed));
    let mut waiting: Vec<_> = waiting.filter(|(_, slot)| wanted(slot)).collect();
    waiting.sort_by_key(|(_, slot)| key(slot));
    for (i, slot) in waiting {
        land_one(peer, i, slot);
        header.pieces.fetch_sub(1, AcqRel);
        slot.state.store(FREE, Release);
    }
}

fn land_one(peer: &Peer, i: usize, slot: &PieceSlot) {
    let (addr, len) = (slot.addr.load(Relaxed), slot.len.load(Relaxed));
    let Some(data) = bytes(peer, i, len) else { return };
    // It was accepted, and its sender has its completion: a failure can only be logged.
    if let Err(Stopped::Fault(errno)) = copy::run(peer, Direction::Write, &data, &Pieces::one(addr, len)) {
        fault!("{len} bytes do not land at {addr:#x}: errno {errno}");
    }
}

/// Lands all that was written over a QP.
pub(crate) fn land_qp(peer: &Peer, index: u32) {
    land(peer, |slot| slot.qp.load(Relaxed) == index);
}

/// Lands what the completion of a receive covers.
pub(crate) fn land_before(peer: &Peer, index: u32, number: u64) {
    land(peer, |slot| slot.qp.load(Relaxed) == index && slot.number.load(Relaxed) <= number);
}

/// Lands all that was written to a memory region.
pub(crate) fn land_mr(peer: &Peer, mr: u32) {
    land(peer, |slot| slot.mr.load(Relaxed) == mr);
}

/// Lands what is due, for the service thread.
pub(crate) fn serve(process: &Process) {
    let own = &process.own;
    // Before the look: who adds a piece now wakes the thread again.
    own.header().pieces_timed.store(0, Release);
    let now = clock::now();
    land(own, |slot| slot.due.load(Relaxed) <= now);
    let waits = |slot: &&PieceSlot| slot.state.load(Acquire) == WAITS;
    if own.header().pieces.load(Acquire) == 0 {
        return;
    }
    if let Some(next) = slots(own).iter().filter(waits).map(|slot| slot.due.load(Relaxed)).min() {
        own.header().pieces_timed.store(1, Release);
        process.service.wake_at(next);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_a_write_and_a_torn_line_lands_in_the_order_of_its_addresses() {
        let seed = AtomicU64::new(7);
        let mut torn = 0;
        for (addr, len) in [(0, 64), (64, 512), (8, 8), (61, 3), (3, 100_000), (4096, 4096)] {
            for _ in 0..200 {
                let pieces = cut(&seed, (addr, len), 0, false);
                let mut next = 0;
                for piece in &pieces {
                    assert_eq!(piece.offset, next, "{pieces:?}");
                    assert!((1..=PIECE_BYTES as u64).contains(&piece.len), "{pieces:?}");
                    next += piece.len;
                }
                assert_eq!(next, len);
                for pair in pieces.windows(2) {
                    let line = |at: u64| (addr + at) / LINE;
                    if line(pair[1].offset) == line(pair[1].offset - 1) {
                        assert!(pair[0].due <= pair[1].due, "{pieces:?}");
                        torn += 1;
                    }
                }
            }
        }
        assert!(torn > 0);
    }
}
