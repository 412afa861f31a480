//! Large work requests, which go on after they were posted: in pieces, each when the link could
//! have sent it. A NIC does that by itself; here the threads that poll do it, as they have nothing
//! better to do, and where they do not keep up the service thread.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::api::qp::Qp;
use crate::clock;
use crate::process::Process;
use crate::wire::send_queue::SendQueue;

/// No piece is to be carried out.
pub(crate) const NONE: u64 = u64::MAX;
/// The service thread lets polling threads do it for so many nanoseconds.
const GRACE: u64 = 1_000_000;
/// Pieces that the service thread carries out before it looks after its other duties.
const BATCH: u32 = 16;

impl Qp {
    /// Keeps `due` right, and the number of QPs that have one. The send queue is locked.
    pub(crate) fn note_moving(&self, process: &Process, due: Option<u64>) {
        let due = due.map_or(NONE, |due| due.min(NONE - 1));
        let before = self.due.swap(due, AcqRel);
        if before == NONE && due != NONE {
            process.moving.fetch_add(1, AcqRel);
            process.service.expect_pieces(process.polls.load(Relaxed), GRACE);
        } else if before != NONE && due == NONE {
            process.moving.fetch_sub(1, AcqRel);
        }
    }

    /// Ends what was begun, as far as nothing keeps it from that. The send queue is locked, the QP
    /// is not.
    pub(crate) fn finish_begun(&self, process: &Process, sq: &mut SendQueue) {
        while sq.partial.is_some() && sq.next_piece().is_some() {
            self.work(process, sq, true, 1);
        }
    }
}

/// The QP whose piece has waited longest, and since when.
fn first(process: &Process) -> Option<(Arc<Qp>, u64)> {
    if process.moving.load(Relaxed) == 0 {
        return None;
    }
    let qp = process.qps.least(|qp| qp.due.load(Relaxed))?;
    let due = qp.due.load(Relaxed);
    (due != NONE).then_some((qp, due))
}

/// Carries out the piece that has waited longest, if there is one whose time has come and nobody
/// else is at it.
fn step(process: &Process, now: u64) -> bool {
    let Some((qp, _)) = first(process).filter(|(_, due)| *due <= now) else { return false };
    let Ok(mut sq) = qp.sq.try_lock() else { return false };
    qp.work(process, &mut sq, true, 1);
    true
}

/// For polling threads.
pub(crate) fn help(process: &Process) {
    if process.moving.load(Relaxed) > 0 {
        process.polls.fetch_add(1, Relaxed);
        step(process, clock::now());
    }
}

/// For the service thread: carries out what polling threads do not, or too slowly.
pub(crate) fn serve(process: &Process) {
    let Some((_, due)) = first(process) else { return };
    let now = clock::now();
    let alone = process.service.nobody_polled(process.polls.load(Relaxed));
    if !alone && due.saturating_add(GRACE) > now {
        process.service.wake_at(now + GRACE);
        return;
    }
    let mut pieces = 0;
    while pieces < BATCH && step(process, clock::now()) {
        pieces += 1;
    }
    if let Some((_, due)) = first(process) {
        process.service.wake_at(if alone { due.max(clock::now()) } else { due.max(clock::now()) + GRACE });
    }
}
