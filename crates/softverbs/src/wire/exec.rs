//! Executes one work request as two NICs do together: the checks of both sides, the copy, and the
//! responder's completion. `api::send` writes the requester's completion.

use std::cell::Cell;
use std::sync::atomic::Ordering::Relaxed;

use rdma_sys::ibv_wc_status as wc;
use rdma_sys::ibv_wr_opcode as op;

use crate::api::events;
use crate::api::qp::Qp;
use crate::limits::PIECE;
use crate::log::fault;
use crate::process::Process;
use crate::shm::recv_queue::Sge;
use crate::wire::access::{self, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::wire::bounce;
use crate::wire::copy::{self, Direction, Pieces, Stopped};
use crate::wire::link::{self, Passage};
use crate::wire::reach::{self, Reached, own_device};
use crate::wire::respond::{Arrival, Responder};
use crate::wire::send_queue::{Connection, INLINE, Partial, SOLICITED, SendQueue, Wqe};
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
    /// Fails with this status; the QP enters ERR.
    Failed(u32),
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
struct Head {
    wqe: Wqe,
    connection: Connection,
    /// Local memory.
    local: Pieces,
    /// Earliest time at which it can have started.
    since: u64,
    partial: Cell<Option<Partial>>,
    /// What a fault does to it.
    course: Course,
    unacked: Option<Unacked>,
}

/// The two ends of a work request.
struct Ends<'a> {
    process: &'a Process,
    qp: &'a Qp,
    head: &'a Head,
    wqe: &'a Wqe,
    to: Responder<'a>,
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
        Err(status) => return Step::Failed(status),
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

/// Checks the local scatter/gather list and returns its addresses.
pub(crate) fn gather(
    process: &Process,
    qp: &Qp,
    wqe: &Wqe,
    sges: &[Sge],
    inline: &[u8],
) -> Result<Pieces, u32> {
    let mut pieces = Pieces::new();
    if wqe.flags & INLINE != 0 {
        let len = usize::try_from(wqe.len).unwrap_or(0).min(inline.len());
        pieces.push(inline.as_ptr().expose_provenance() as u64, len as u64);
        return Ok(pieces);
    }
    let comes_back = wqe.opcode >= op::IBV_WR_RDMA_READ;
    let access = if comes_back { LOCAL_WRITE } else { 0 };
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        match access::check(&process.own, sge.lkey, qp.pd.id, sge.addr, u64::from(sge.len), access) {
            Ok(addr) => pieces.push(addr, u64::from(sge.len)),
            Err(why) => {
                fault!(
                    "QP {:#x}, wr_id {:#x}: lkey {:#x}, {} bytes at {:#x}: {why}",
                    qp.qpn,
                    wqe.wr_id,
                    sge.lkey,
                    sge.len,
                    sge.addr
                );
                return Err(wc::IBV_WC_LOC_PROT_ERR);
            }
        }
    }
    Ok(pieces)
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
    if let Err(why) = to.answers(&head.connection, qp.qpn, found.generation) {
        return no_answer(why);
    }
    to.establish();
    let ends = Ends { process, qp, head, wqe, to };
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

impl Ends<'_> {
    fn failed(&self, status: u32, why: std::fmt::Arguments<'_>) -> Step {
        fault!("QP {:#x}, wr_id {:#x}: {why}", self.qp.qpn, self.wqe.wr_id);
        Step::Failed(status)
    }

    /// Checks that the peer's QP allows such requests. If not, that QP enters ERR too.
    fn allowed(&self, access: u32) -> Result<(), Step> {
        if self.to.qp.access.load(Relaxed) & access == 0 {
            self.to.refuse(events::QP_REQ_ERR);
            return Err(self.failed(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!("the peer's QP does not allow access {access:#x} (qp_access_flags)"),
            ));
        }
        Ok(())
    }

    /// Checks that the rkey grants `access` to the remote range, and returns its address in the
    /// peer. If not, the peer's QP enters ERR too.
    fn remote(&self, len: u64, access: u32) -> Result<u64, Step> {
        let Wqe { rkey, remote_addr, .. } = *self.wqe;
        let pd = self.to.qp.pd.load(Relaxed);
        access::check(self.to.peer, rkey, pd, remote_addr, len, access).map_err(|why| {
            self.to.refuse(events::QP_ACCESS_ERR);
            self.failed(
                wc::IBV_WC_REM_ACCESS_ERR,
                format_args!("rkey {rkey:#x}, {len} bytes at {remote_addr:#x}, access {access:#x}: {why}"),
            )
        })
    }

    fn copied(&self, result: Result<(), Stopped>) -> Result<(), Step> {
        match result {
            Ok(()) => Ok(()),
            Err(Stopped::Ended) => Err(Step::NoAnswer("its process has ended")),
            Err(Stopped::Fault(errno)) => {
                self.to.refuse(events::QP_ACCESS_ERR);
                let why = std::io::Error::from_raw_os_error(errno);
                Err(self.failed(
                    wc::IBV_WC_REM_OP_ERR,
                    format_args!("registered memory of one end cannot be accessed (was it unmapped?): {why}"),
                ))
            }
        }
    }

    /// Reserves the links for `bytes`, in the direction of the request or back.
    fn through(&self, bytes: u64, back: bool) -> Passage {
        let here = own_device(self.process, self.qp);
        let there = self.to.device();
        let since = self.head.since;
        let (Some(here), Some(there)) = (here, there) else { return Passage::at_once(since) };
        let (from, to) = if back { (there, here) } else { (here, there) };
        link::pass(&self.process.fabric, from, to, bytes, since)
    }

    /// Copies a small message, or the next piece of a large one, to or from `addr`. Returns the
    /// completion time, or `None` if more is left.
    fn carry(&self, direction: Direction, addr: u64) -> Result<Option<u64>, Step> {
        let len = self.wqe.len;
        let begun = self.head.partial.get();
        let Partial { done, passage } = begun
            .unwrap_or_else(|| Partial { done: 0, passage: self.through(len, direction == Direction::Read) });
        let n = if self.wqe.is_large() { PIECE.min(len - done) } else { len - done };
        if n > 0 {
            let mut local = self.head.local;
            local.select(done, n);
            self.copied(copy::run(
                self.to.peer,
                direction,
                &local,
                &Pieces::one(addr.wrapping_add(done), n),
            ))?;
        }
        self.head.partial.set(Some(Partial { done: done + n, passage }));
        Ok((done + n == len).then_some(passage.ready_at))
    }

    fn arrival(&self, ready_at: u64) -> Arrival {
        let with_imm = matches!(self.wqe.opcode, op::IBV_WR_RDMA_WRITE_WITH_IMM | op::IBV_WR_SEND_WITH_IMM);
        Arrival {
            ready_at,
            len: self.wqe.len,
            imm: with_imm.then_some(self.wqe.imm),
            by_write: self.wqe.opcode == op::IBV_WR_RDMA_WRITE_WITH_IMM,
            solicited: self.wqe.flags & SOLICITED != 0,
            src_qp: self.qp.qpn,
        }
    }

    fn write(&self) -> Step {
        let len = self.wqe.len;
        let notify = self.wqe.opcode == op::IBV_WR_RDMA_WRITE_WITH_IMM;
        let run = || {
            self.allowed(REMOTE_WRITE)?;
            let addr = if len > 0 { self.remote(len, REMOTE_WRITE)? } else { 0 };
            // Checked before the copy: a retry must not copy twice.
            if notify && self.head.partial.get().is_none() && !self.to.has_receive() {
                return Err(Step::NotReady(self.to.rnr_wait()));
            }
            if let Course::Cut(part) = self.head.course {
                return Err(self.cut(addr, part));
            }
            self.carry(Direction::Write, addr)
        };
        match run() {
            Err(step) => step,
            Ok(None) => Step::Moved,
            Ok(Some(ready_at)) if notify => {
                // Other QPs use the SRQ too: it may have become empty.
                let Some(taken) = self.to.take() else { return Step::NotReady(self.to.rnr_wait()) };
                self.to.finish(&taken, &self.arrival(ready_at), wc::IBV_WC_SUCCESS);
                Step::Done(ready_at)
            }
            Ok(Some(ready_at)) => Step::Done(ready_at),
        }
    }

    /// Copies only the first part of the message.
    fn cut(&self, addr: u64, part: u64) -> Step {
        let mut local = self.head.local;
        local.select(0, part);
        let to = Pieces::one(addr, part);
        let copied = self.copied(copy::run(self.to.peer, Direction::Write, &local, &to));
        copied.err().unwrap_or(Step::NoAnswer(CUT))
    }

    fn send(&self) -> Step {
        let len = self.wqe.len;
        let Some(taken) = self.to.take() else { return Step::NotReady(self.to.rnr_wait()) };
        let room: u64 = taken.sges().iter().map(|sge| u64::from(sge.len)).sum();
        let fail_receive = |status| self.to.fail(&taken, &self.arrival(0), status);
        if len > room {
            fail_receive(wc::IBV_WC_LOC_LEN_ERR);
            return self.failed(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!(
                    "{len} bytes sent, but the peer's receive (wr_id {:#x}) has room for {room}",
                    taken.wr_id
                ),
            );
        }
        let into = match self.to.scatter(&taken, len) {
            Ok(into) => into,
            Err((sge, why)) => {
                fail_receive(wc::IBV_WC_LOC_PROT_ERR);
                return self.failed(
                    wc::IBV_WC_REM_OP_ERR,
                    format_args!(
                        "the peer's receive (wr_id {:#x}): lkey {:#x}, {} bytes at {:#x}: {why}",
                        taken.wr_id, sge.lkey, sge.len, sge.addr
                    ),
                );
            }
        };
        if let Err(step) = self.copied(copy::run(self.to.peer, Direction::Write, &self.head.local, &into)) {
            return step;
        }
        let ready_at = self.through(len, false).ready_at;
        self.to.finish(&taken, &self.arrival(ready_at), wc::IBV_WC_SUCCESS);
        Step::Done(ready_at)
    }

    /// Checks that both ends have resources for READ and atomics.
    fn check_depth(&self) -> Result<(), Step> {
        if self.head.connection.max_rd_atomic == 0 {
            return Err(self.failed(
                wc::IBV_WC_LOC_QP_OP_ERR,
                format_args!("READ and atomics need max_rd_atomic above 0 (IBV_QP_MAX_QP_RD_ATOMIC)"),
            ));
        }
        if self.to.qp.max_dest_rd_atomic.load(Relaxed) == 0 {
            self.to.refuse(events::QP_REQ_ERR);
            return Err(self.failed(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!("READ and atomics need the peer's max_dest_rd_atomic above 0"),
            ));
        }
        Ok(())
    }

    fn read(&self) -> Step {
        let len = self.wqe.len;
        let run = || {
            self.allowed(REMOTE_READ)?;
            self.check_depth()?;
            let addr = if len > 0 { self.remote(len, REMOTE_READ)? } else { 0 };
            self.carry(Direction::Read, addr)
        };
        match run() {
            Err(step) => step,
            Ok(None) => Step::Moved,
            Ok(Some(ready_at)) => Step::Done(ready_at),
        }
    }

    fn atomic(&self) -> Step {
        let Wqe { len, remote_addr, compare_add, swap, opcode, .. } = *self.wqe;
        let run = || {
            self.allowed(REMOTE_ATOMIC)?;
            self.check_depth()?;
            if len != 8 {
                return Err(self.failed(
                    wc::IBV_WC_LOC_LEN_ERR,
                    format_args!("an atomic needs 8 bytes for the old value, got {len}"),
                ));
            }
            if remote_addr % 8 != 0 {
                self.to.refuse(events::QP_REQ_ERR);
                return Err(self.failed(
                    wc::IBV_WC_REM_INV_REQ_ERR,
                    format_args!("atomic on {remote_addr:#x}, which is not a multiple of 8"),
                ));
            }
            let addr = self.remote(8, REMOTE_ATOMIC)?;
            let next = |old: u64| match opcode {
                op::IBV_WR_ATOMIC_FETCH_AND_ADD => Some(old.wrapping_add(compare_add)),
                _ => (old == compare_add).then_some(swap),
            };
            self.copied(copy::atomic(self.to.peer, addr, &self.head.local, next))?;
            Ok(self.through(8, true).ready_at)
        };
        run().map_or_else(|step| step, Step::Done)
    }
}
