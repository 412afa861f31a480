//! Executes one work request as two NICs do together: finds the responder, applies faults, and does
//! what the opcode requires (`ends`). `api::send` writes the requester's completion.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use rdma_sys::ibv_wr_opcode as op;

use crate::api::qp::Qp;
use crate::fault::CompletionStatus;
use crate::process::Process;
use crate::wire::bounce;
use crate::wire::copy::Pieces;
use crate::wire::ends::Ends;
use crate::wire::gather::gather;
use crate::wire::link;
use crate::wire::reach::{self, Reached, own_device};
use crate::wire::respond::Responder;
use crate::wire::send_queue::{Connection, Partial, SendQueue, Wqe};
use crate::wire::strike::{self, CUT, Course, NO_ACK, Unacked};

/// Result of an execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Completes at this time; 0 means immediately.
    Done(u64),
    /// A piece was moved, and more are left.
    Moved,
    /// No receive is posted: retry after this many nanoseconds.
    NotReady(u64),
    /// The responder does not answer, for this reason.
    NoAnswer(&'static str),
    /// The device of the QP is removed: nothing ever completes.
    Removed,
    /// Must wait this many nanoseconds for data that has not landed.
    Behind(u64),
    /// Fails with this status; the QP enters ERR.
    Failed(CompletionStatus),
}

/// Result of an execution with the faults of the work request.
enum Outcome {
    /// The result is known to the requester.
    Answered(Step),
    /// Executed, but the answer is lost. Without that, it would complete at this time.
    Unanswered(u64),
    /// Only its first part has arrived.
    Cut,
}

/// The work request at the head of a send queue.
pub(super) struct Head {
    pub(super) wqe: Wqe,
    pub(super) connection: Connection,
    /// Local memory.
    pub(super) local: Pieces,
    /// Earliest time at which it can have started.
    pub(super) since: u64,
    pub(super) partial: Cell<Option<Partial>>,
    /// What a fault does to it.
    pub(super) course: Course,
    unacked: Option<Unacked>,
}

/// Executes the head of the send queue, or the next piece of a large one. The send queue is locked.
pub(crate) fn run(process: &Process, qp: &Qp, sq: &mut SendQueue) -> Step {
    let course = match sq.struck.is_empty() {
        true => Course::Plain,
        false => strike::begin(process, qp, sq),
    };
    if let Course::Stopped(step) = course {
        return step;
    }
    let (wqe, sges, inline) = sq.first();
    let local = match gather(process, qp, &wqe, sges, inline) {
        Ok(local) => local,
        Err(status) => return Step::Failed(qp.context.device.profile.failed_send(status)),
    };
    let connection = sq.connection;
    let since = wqe.posted_at.max(sq.not_before);
    let found = match sq.reached.take().map_or_else(|| reach::find(process, qp, &connection), Ok) {
        Ok(found) => found,
        Err(why) => return Step::NoAnswer(why),
    };
    let (partial, unacked) = (Cell::new(sq.partial), sq.unacked);
    let head = Head { wqe, connection, local, since, partial, course, unacked };
    let step = match arrive(process, qp, &head, &found) {
        Outcome::Answered(step) => step,
        Outcome::Unanswered(ready_at) => strike::lost_answer(process, qp, sq, ready_at),
        Outcome::Cut => strike::cut(process, qp, sq),
    };
    sq.partial = head.partial.get();
    // After a failure the responder is looked up again: it may have been replaced.
    if !matches!(step, Step::NoAnswer(_)) {
        sq.reached = Some(found);
    }
    step
}

/// Executes what is behind a head whose answer is lost: these packets arrive in order, too. Stops at
/// the first work request that does not arrive. The send queue is locked.
pub(crate) fn run_ahead(process: &Process, qp: &Qp, sq: &mut SendQueue) {
    while let Some(number) = sq.next_ahead() {
        let (wqe, sges, inline) = sq.at(number);
        let Ok(local) = gather(process, qp, &wqe, sges, inline) else { return };
        let connection = sq.connection;
        let Ok(found) = reach::find(process, qp, &connection) else { return };
        let (partial, course, since) = (Cell::new(None), Course::Plain, wqe.posted_at);
        let head = Head { wqe, connection, local, since, partial, course, unacked: None };
        let ready_at = loop {
            match arrive(process, qp, &head, &found) {
                Outcome::Answered(Step::Moved) => {}
                Outcome::Answered(Step::Done(ready_at)) | Outcome::Unanswered(ready_at) => break ready_at,
                _ => return,
            }
        };
        sq.ahead.push_back(Unacked::by_silence(ready_at));
    }
}

/// Locks the responder and executes the work request.
fn arrive(process: &Process, qp: &Qp, head: &Head, found: &Reached) -> Outcome {
    let no_answer = |why| Outcome::Answered(Step::NoAnswer(why));
    let Some(to) = Responder::new(process, &found.peer, found.index) else {
        return no_answer("the peer's segment is damaged");
    };
    let wqe = &head.wqe;
    // If there is data to copy, the copy detects the end of the process.
    if found.peer.is_dead() || wqe.len == 0 && found.peer.has_ended() {
        return no_answer("its process has ended");
    }
    let (Some(here), Some(there)) = (own_device(process, qp), to.device()) else {
        return no_answer("there is no such device");
    };
    let life = qp.context.life;
    let answered = match link::path(&process.fabric, (here, life), (there, to.qp.life.load(Relaxed))) {
        Ok(answered) => answered,
        Err(_) if link::is_removed(&process.fabric, (here, life)) => {
            return Outcome::Answered(Step::Removed);
        }
        Err(why) => return no_answer(why),
    };
    let packet = wqe.len.min(u64::from(head.connection.path_mtu));
    if [here, there].iter().any(|device| packet > u64::from(device.mtu.load(Relaxed))) {
        return no_answer("its packets exceed the MTU of a port or network on the path (path_mtu)");
    }
    let _guard = bounce::lock(&to.qp.lock);
    let ends = Ends { process, qp, head, wqe, to, peer: &found.peer };
    match to.answers(&head.connection, qp.qpn, found.generation) {
        Err(failed) if answered => return Outcome::Answered(ends.answered(failed)),
        Err((_, why)) => return no_answer(why),
        Ok(()) => {}
    }
    to.establish();
    if let Some(unacked) = head.unacked {
        return match answered && unacked.passes(&process.fabric, here) {
            true => Outcome::Answered(Step::Done(unacked.ready_at)),
            false => no_answer(NO_ACK),
        };
    }
    let step = match wqe.opcode {
        op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM => ends.write(),
        op::IBV_WR_SEND | op::IBV_WR_SEND_WITH_IMM => ends.send(),
        // Executed when the answer can pass, since the responder would then repeat it.
        _ if !answered => Step::NoAnswer(NO_ACK),
        op::IBV_WR_RDMA_READ => ends.read(),
        _ => ends.atomic(),
    };
    match step {
        Step::NoAnswer(CUT) => Outcome::Cut,
        Step::Done(ready_at) if !answered || head.course == Course::NoAck => Outcome::Unanswered(ready_at),
        Step::NotReady(_) if !answered => no_answer(NO_ACK),
        step => Outcome::Answered(step),
    }
}
