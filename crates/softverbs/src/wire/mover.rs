//! Continues large work requests after the post returned: in pieces, each no earlier than the link
//! could send it. A NIC does this by itself. Here the polling threads do it, and the service thread
//! if they do not keep up.

use std::sync::Arc;
use std::sync::atomic::Ordering::{AcqRel, Relaxed};

use crate::api::qp::Qp;
use crate::clock;
use crate::process::Process;
use crate::wire::send_queue::SendQueue;

/// Value of `Qp::due` if there is no piece.
pub(crate) const NONE: u64 = u64::MAX;
/// How long the service thread leaves a due piece to polling threads, in nanoseconds.
const GRACE: u64 = 1_000_000;
/// Pieces that the service thread executes before it returns to its other work.
const BATCH: u32 = 16;

impl Qp {
    /// Updates `due` and the number of QPs that have pieces. The send queue is locked.
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

    /// Completes a work request that was started, unless it is blocked. The send queue is locked,
    /// the QP is not.
    pub(crate) fn finish_begun(&self, process: &Process, sq: &mut SendQueue) {
        while sq.partial.is_some() && sq.next_piece().is_some() {
            self.work(process, sq, true, 1);
        }
    }
}

/// Returns the QP whose piece is due first, and the due time.
fn first(process: &Process) -> Option<(Arc<Qp>, u64)> {
    if process.moving.load(Relaxed) == 0 {
        return None;
    }
    let qp = process.qps.least(|qp| qp.due.load(Relaxed))?;
    let due = qp.due.load(Relaxed);
    (due != NONE).then_some((qp, due))
}

/// Executes the piece that is due first, unless it is not yet due or another thread works on the
/// QP.
fn step(process: &Process, now: u64) -> bool {
    let Some((qp, _)) = first(process).filter(|(_, due)| *due <= now) else { return false };
    let Ok(mut sq) = qp.sq.try_lock() else { return false };
    qp.work(process, &mut sq, true, 1);
    true
}

/// Executes a due piece, for polling threads.
pub(crate) fn help(process: &Process) {
    if process.moving.load(Relaxed) > 0 {
        process.polls.fetch_add(1, Relaxed);
        step(process, clock::now());
    }
}

/// Executes pieces that polling threads do not execute in time, for the service thread.
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
