//! What each opcode does between the two ends of a work request: the checks, the copy, and the
//! responder's completion.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use rdma_sys::ibv_wc_status as wc;
use rdma_sys::ibv_wr_opcode as op;

use crate::api::events;
use crate::api::qp::Qp;
use crate::config::order::Order;
use crate::config::profile::Answer;
use crate::limits::PIECE;
use crate::log::fault;
use crate::process::Process;
use crate::shm::peer::Peer;
use crate::shm::recv_queue::Taken;
use crate::wire::access::{self, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::wire::copy::{self, Direction, Pieces, Stopped};
use crate::wire::exec::{Head, Step};
use crate::wire::landing::Target;
use crate::wire::link::{self, Passage};
use crate::wire::placement;
use crate::wire::reach::own_device;
use crate::wire::respond::{Arrival, Responder};
use crate::wire::send_queue::{Partial, SOLICITED, Wqe};
use crate::wire::strike::{CUT, Course};

/// The two ends of a work request.
pub(super) struct Ends<'a> {
    pub(super) process: &'a Process,
    pub(super) qp: &'a Qp,
    pub(super) head: &'a Head,
    pub(super) wqe: &'a Wqe,
    pub(super) to: Responder<'a>,
    pub(super) peer: &'a Arc<Peer>,
}

impl Ends<'_> {
    fn failed(&self, status: u32, why: std::fmt::Arguments<'_>) -> Step {
        fault!("QP {:#x}, wr_id {:#x}: {why}", self.qp.qpn, self.wqe.wr_id);
        Step::Failed(self.qp.context.device.profile.failed_send(status))
    }

    /// Returns the result of a request that the responder cannot carry out, by its answer.
    pub(super) fn answered(&self, (answer, why): (Answer, &'static str)) -> Step {
        match answer {
            Answer::Nak => self.failed(wc::IBV_WC_REM_OP_ERR, format_args!("a NAK of the peer: {why}")),
            Answer::Silence => Step::NoAnswer(why),
            Answer::NotReady => Step::NotReady(self.to.rnr_wait()),
        }
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
            let addr = addr.wrapping_add(done);
            let target = self.target();
            self.copied(match direction {
                Direction::Write if target.is_late() => target.post(self.process, &local, (addr, n)),
                Direction::Write if placement::order(self.to.device()) != Order::Strict => {
                    let to = (addr, n, self.wqe.rkey);
                    placement::place(self.process, &self.to, &local, to, passage.ready_at)
                }
                _ => copy::run(self.to.peer, direction, &local, &Pieces::one(addr, n)),
            })?;
        }
        self.head.partial.set(Some(Partial { done: done + n, passage }));
        Ok((done + n == len).then_some(passage.ready_at))
    }

    /// Returns the remote memory of a WRITE or READ whose key was checked.
    fn target(&self) -> Target<'_> {
        // All ports of a device write over the same bus.
        let device = self.to.device().map_or(0, |device| device.adapter.load(Relaxed)) as usize;
        Target { peer: self.peer, device, rkey: self.wqe.rkey }
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

    /// Checks that the peer has a receive.
    fn ready(&self) -> Result<(), Step> {
        if let Some(failed) = self.to.without_srq() {
            return Err(self.answered(failed));
        }
        if self.to.has_receive() { Ok(()) } else { Err(Step::NotReady(self.to.rnr_wait())) }
    }

    /// Takes a receive of the peer. One that fails ends both QPs.
    fn take(&self) -> Result<Taken, Step> {
        self.ready()?;
        // Other QPs use an SRQ too: it may have become empty.
        let Some(taken) = self.to.take() else { return Err(Step::NotReady(self.to.rnr_wait())) };
        let defect = match self.head.course {
            Course::BadReceive(with) => Some((with, "an injected fault")),
            _ => self.to.defect(&taken),
        };
        let Some((with, why)) = defect else { return Ok(taken) };
        self.to.fail(&taken, &self.arrival(0), with);
        Err(self.failed(
            wc::IBV_WC_REM_OP_ERR,
            format_args!(
                "the peer's receive (wr_id {:#x}) ends with status {}: {why}",
                taken.wr_id, with.status
            ),
        ))
    }

    pub(super) fn write(&self) -> Step {
        let len = self.wqe.len;
        let notify = self.wqe.opcode == op::IBV_WR_RDMA_WRITE_WITH_IMM;
        let run = || {
            self.allowed(REMOTE_WRITE)?;
            let addr = if len > 0 { self.remote(len, REMOTE_WRITE)? } else { 0 };
            // Checked before the copy: a retry must not copy twice.
            if notify && self.head.partial.get().is_none() {
                self.ready()?;
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
                self.take().map_or_else(|step| step, |taken| self.finish(&taken, ready_at))
            }
            Ok(Some(ready_at)) => Step::Done(ready_at),
        }
    }

    /// Completes the receive of a message that has arrived.
    fn finish(&self, taken: &Taken, ready_at: u64) -> Step {
        let finished = self.to.finish(taken, &self.arrival(ready_at), wc::IBV_WC_SUCCESS.into());
        finished.map_or_else(|failed| self.answered(failed), |()| Step::Done(ready_at))
    }

    /// Copies only the first part of the message.
    fn cut(&self, addr: u64, part: u64) -> Step {
        placement::land_qp(self.peer, self.to.index());
        let mut local = self.head.local;
        local.select(0, part);
        let to = Pieces::one(addr, part);
        let copied = self.copied(copy::run(self.to.peer, Direction::Write, &local, &to));
        copied.err().unwrap_or(Step::NoAnswer(CUT))
    }

    pub(super) fn send(&self) -> Step {
        let len = self.wqe.len;
        let taken = match self.take() {
            Ok(taken) => taken,
            Err(step) => return step,
        };
        let room: u64 = taken.sges().iter().map(|sge| u64::from(sge.len)).sum();
        let fail_receive =
            |status: u32| self.to.fail(&taken, &self.arrival(0), self.to.profile().failed_recv(status));
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
        self.finish(&taken, self.through(len, false).ready_at)
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

    pub(super) fn read(&self) -> Step {
        let len = self.wqe.len;
        let run = || {
            self.allowed(REMOTE_READ)?;
            self.check_depth()?;
            let addr = if len > 0 { self.remote(len, REMOTE_READ)? } else { 0 };
            // It sees all that was written to its memory before.
            placement::land_mr(self.peer, self.wqe.rkey >> 16);
            // On PCIe it cannot overtake what the device has written before.
            let behind =
                if len > 0 && self.head.partial.get().is_none() { self.target().wait() } else { None };
            if let Some(wait) = behind {
                return Err(Step::Behind(wait));
            }
            self.carry(Direction::Read, addr)
        };
        match run() {
            Err(step) => step,
            Ok(None) => Step::Moved,
            Ok(Some(ready_at)) => Step::Done(ready_at),
        }
    }

    pub(super) fn atomic(&self) -> Step {
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
            placement::land_mr(self.peer, self.wqe.rkey >> 16);
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
