//! Copies for which process_vm_writev is not permitted. They go through an area of the peer's
//! segment; the peer's service thread does the other half.

use std::sync::atomic::AtomicU8;
use std::sync::atomic::AtomicU32;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use crate::process;
use crate::shm::layout::{BOUNCE, BOUNCE_AREA};
use crate::shm::mutex::{Guard, RobustMutex};
use crate::shm::peer::Peer;
use crate::wire::copy::{self, Direction, Pieces, Stopped};

const IDLE: u32 = 0;
const REQUESTED: u32 = 1;
const BUSY: u32 = 2;
const DONE: u32 = 3;
/// The memory of the peer is not mapped.
const FAILED: u32 = 4;

/// Interval at which a waiting thread checks whether the peer is alive, and serves requests of
/// others.
static NAP: libc::timespec = libc::timespec { tv_sec: 0, tv_nsec: 2_000_000 };

fn area(peer: &Peer) -> Option<*mut u8> {
    let bytes: &[AtomicU8] = peer.slice(BOUNCE_AREA, BOUNCE)?;
    Some(bytes.first()?.as_ptr())
}

fn futex(word: &AtomicU32, op: libc::c_int, value: u32, timeout: *const libc::timespec) {
    // SAFETY: a word in a live mapping; the timeout is null or valid.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), op, value, timeout) };
}

/// Waits until no copy is requested or in progress.
fn wait_done(peer: &Peer, state: &AtomicU32) -> Result<(), Stopped> {
    loop {
        let now = state.load(Acquire);
        match now {
            REQUESTED | BUSY => {}
            FAILED => return Err(Stopped::Fault(libc::EFAULT)),
            _ => return Ok(()),
        }
        if peer.is_dead() {
            return Err(Stopped::Ended);
        }
        futex(state, libc::FUTEX_WAIT, now, &raw const NAP);
        // The peer's service thread may be waiting for ours, which may be this thread.
        serve_own();
        // Checked directly: the thread that normally notices may be this one.
        if peer.has_ended() {
            return Err(Stopped::Ended);
        }
    }
}

fn serve_own() {
    if let Ok(process) = process::get() {
        serve(&process.own);
    }
}

/// Waits for a lock that is held during copies. The holder may be waiting for this process to do
/// its half of a copy, and the service thread may be waiting for a lock of this thread. Therefore
/// this function serves copies while it waits.
pub(crate) fn lock(mutex: &RobustMutex) -> Guard<'_> {
    mutex.lock_and(serve_own)
}

/// Waits until copies that peers requested earlier are done. A killed peer no longer holds the
/// lock, but its copy may still be in progress here.
pub(crate) fn finish(own: &Peer) {
    serve(own);
    let state = &own.header().bounce.state;
    while state.load(Acquire) == BUSY {
        futex(state, libc::FUTEX_WAIT, BUSY, &raw const NAP);
    }
}

/// Copies `n` bytes between our pieces and the area.
fn own_half(direction: Direction, pieces: &mut Pieces, area: *mut u8, n: usize) -> Result<(), Stopped> {
    let process = process::get().map_err(|e| Stopped::Fault(e.0))?;
    let mut ours = *pieces;
    ours.select(0, n as u64);
    pieces.advance(n);
    copy::run(&process.own, direction, &ours, &here(area, n))
}

/// Returns `n` bytes of an area, to which the bounce lock gives exclusive access.
fn here(area: *mut u8, n: usize) -> Pieces {
    Pieces::one(area.expose_provenance() as u64, n as u64)
}

/// Copies all bytes of one side to the other.
pub(crate) fn run(
    peer: &Peer,
    direction: Direction,
    local: &mut Pieces,
    remote: &mut Pieces,
) -> Result<(), Stopped> {
    let bounce = &peer.header().bounce;
    let area = area(peer).ok_or(Stopped::Fault(libc::EIO))?;
    let _guard = lock(&bounce.lock);
    // The previous holder of the lock may have died while the peer copied.
    if wait_done(peer, &bounce.state) == Err(Stopped::Ended) {
        return Err(Stopped::Ended);
    }
    while let Some(theirs) = remote.as_slice().first().copied() {
        let n = theirs.iov_len.min(BOUNCE);
        if direction == Direction::Write {
            own_half(direction, local, area, n)?;
        }
        bounce.read.store(u32::from(direction == Direction::Read), Relaxed);
        bounce.addr.store(theirs.iov_base.addr() as u64, Relaxed);
        bounce.len.store(n as u64, Relaxed);
        bounce.state.store(REQUESTED, Release);
        peer.kick();
        wait_done(peer, &bounce.state)?;
        if direction == Direction::Read {
            own_half(direction, local, area, n)?;
        }
        remote.advance(n);
    }
    bounce.state.store(IDLE, Release);
    Ok(())
}

/// Does our half of a copy that a peer requested, if any.
pub(crate) fn serve(own: &Peer) {
    let bounce = &own.header().bounce;
    if bounce.state.compare_exchange(REQUESTED, BUSY, AcqRel, Relaxed).is_err() {
        return;
    }
    let len = usize::try_from(bounce.len.load(Relaxed)).unwrap_or(usize::MAX);
    // The peer has checked the range against our memory regions and holds the lock of the QP, which
    // keeps them registered. The program may have unmapped the memory anyway.
    let copied = match area(own).filter(|_| len <= BOUNCE) {
        Some(area) => {
            let ours = Pieces::one(bounce.addr.load(Relaxed), len as u64);
            match bounce.read.load(Relaxed) {
                0 => copy::run(own, Direction::Write, &here(area, len), &ours),
                _ => copy::run(own, Direction::Read, &here(area, len), &ours),
            }
        }
        None => Ok(()),
    };
    bounce.state.store(if copied.is_ok() { DONE } else { FAILED }, Release);
    futex(&bounce.state, libc::FUTEX_WAKE, u32::try_from(i32::MAX).unwrap_or(1), std::ptr::null());
}
