//! Execution of one work request, as the two NICs would do it together: everything that either would check, the
//! copy, and the responder's completion. The requester's completion is the send queue's business.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rdma_sys::ibv_wc_status as wc;
use rdma_sys::ibv_wr_opcode as op;

use crate::bounce;
use crate::copy::{self, Direction, Pieces, Stopped};
use crate::link;
use crate::log::fault;
use crate::mr::{self, LOCAL_WRITE, REMOTE_ATOMIC, REMOTE_READ, REMOTE_WRITE};
use crate::process::{Process, same_link};
use crate::qp::Qp;
use crate::recvq::Sge;
use crate::respond::{Arrival, Responder};
use crate::sendqueue::{Connection, INLINE, SOLICITED, Wqe};
use crate::shm::layout::DeviceShared;
use crate::shm::peer::Peer;

/// How it went.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// Completes at this time, 0: at once.
    Done(u64),
    /// No receive is posted: try again after so many nanoseconds.
    NotReady(u64),
    /// Nobody answers, and why.
    NoAnswer(&'static str),
    /// Ends with this status, and the QP is in error.
    Failed(u32),
}

/// The responder as found at an earlier work request.
pub(crate) struct Reached {
    peer: Arc<Peer>,
    index: u32,
    generation: u32,
}

/// The two ends of a work request.
struct Ends<'a> {
    process: &'a Process,
    qp: &'a Qp,
    wqe: &'a Wqe,
    to: Responder<'a>,
}

/// Executes `wqe`. The send queue is locked.
pub(crate) fn run(
    process: &Process,
    qp: &Qp,
    connection: &Connection,
    reached: &mut Option<Reached>,
    wqe: &Wqe,
    sges: &[Sge],
    inline: &[u8],
) -> Step {
    let local = match gather(process, qp, wqe, sges, inline) {
        Ok(local) => local,
        Err(status) => return Step::Failed(status),
    };
    let found = match reached.take().map_or_else(|| reach(process, qp, connection), Ok) {
        Ok(found) => found,
        Err(why) => return Step::NoAnswer(why),
    };
    let step = arrive(process, qp, connection, &found, wqe, &local);
    // Looked up anew after a failure: the peer may have gone, or be another one.
    if !matches!(step, Step::NoAnswer(_)) {
        *reached = Some(found);
    }
    step
}

/// Checks the local pieces and finds their addresses.
fn gather(process: &Process, qp: &Qp, wqe: &Wqe, sges: &[Sge], inline: &[u8]) -> Result<Pieces, u32> {
    let mut pieces = Pieces::new();
    if wqe.flags & INLINE != 0 {
        let len = usize::try_from(wqe.len).unwrap_or(0).min(inline.len());
        pieces.push(inline.as_ptr().expose_provenance() as u64, len as u64);
        return Ok(pieces);
    }
    let comes_back = wqe.opcode >= op::IBV_WR_RDMA_READ;
    let access = if comes_back { LOCAL_WRITE } else { 0 };
    for sge in sges.iter().filter(|sge| sge.len > 0) {
        match mr::check(&process.own, sge.lkey, qp.pd.id, sge.addr, u64::from(sge.len), access) {
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

fn own_device<'a>(process: &'a Process, qp: &Qp) -> Option<&'a DeviceShared> {
    process.own.header().devices.get(qp.context.device.index)
}

/// Whether the device is the one that the address vector names.
fn has_address(device: &DeviceShared, connection: &Connection) -> bool {
    if !connection.global {
        return device.lid.load(Relaxed) == u32::from(connection.dlid);
    }
    let [high, low] = crate::process::halves(connection.dgid);
    let count = device.gid_count.load(Acquire) as usize;
    device.gids.iter().take(count).any(|g| g.high.load(Relaxed) == high && g.low.load(Relaxed) == low)
}

/// Finds the responder.
fn reach(process: &Process, qp: &Qp, connection: &Connection) -> Result<Reached, &'static str> {
    const GONE: &str = "there is no such QP (destroyed, or its process has ended)";
    let place = process.fabric.find(connection.dest_qpn).ok_or(GONE)?;
    let peer = process.peer(place).map_err(|errno| match errno.0 {
        libc::ESRCH => GONE,
        libc::EMFILE | libc::ENFILE => "its segment cannot be opened: no file descriptor is left (ulimit -n)",
        libc::ENOMEM => "its segment cannot be mapped: no address space is left (ulimit -v)",
        libc::EXDEV => "its process is in a PID namespace that cannot be seen from this one",
        libc::EPROTO => "its segment is not one of this version of softverbs",
        _ => "its segment cannot be opened",
    })?;
    let shared = peer.qp(place.index).ok_or(GONE)?;
    let device = peer.header().devices.get(shared.device.load(Relaxed) as usize).ok_or(GONE)?;
    if !has_address(device, connection) {
        return Err("that QP is on another device than the one that the destination address names");
    }
    if !own_device(process, qp).is_some_and(|own| same_link(own, device)) {
        return Err("the two devices have no subnet in common");
    }
    let generation = shared.generation.load(Relaxed);
    Ok(Reached { peer, index: place.index, generation })
}

/// Takes the responder's lock and executes.
fn arrive(
    process: &Process,
    qp: &Qp,
    connection: &Connection,
    found: &Reached,
    wqe: &Wqe,
    local: &Pieces,
) -> Step {
    let Some(to) = Responder::new(process, &found.peer, found.index) else {
        return Step::NoAnswer("the peer's segment is damaged");
    };
    // Where something is copied, the copy tells.
    if found.peer.is_dead() || wqe.len == 0 && found.peer.has_ended() {
        return Step::NoAnswer("its process has ended");
    }
    let _guard = bounce::lock(&to.qp.lock);
    if let Err(why) = to.answers(connection, qp.qpn, found.generation) {
        return Step::NoAnswer(why);
    }
    to.establish();
    let ends = Ends { process, qp, wqe, to };
    match wqe.opcode {
        op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM => ends.write(local),
        op::IBV_WR_SEND | op::IBV_WR_SEND_WITH_IMM => ends.send(local),
        op::IBV_WR_RDMA_READ => ends.read(local, connection),
        _ => ends.atomic(local, connection),
    }
}

impl Ends<'_> {
    fn told(&self, status: u32, why: std::fmt::Arguments<'_>) -> Step {
        fault!("QP {:#x}, wr_id {:#x}: {why}", self.qp.qpn, self.wqe.wr_id);
        Step::Failed(status)
    }

    /// Checks that the peer's QP takes such requests, of whatever length. A refusal puts it into error too.
    fn allowed(&self, access: u32) -> Result<(), Step> {
        if self.to.qp.access.load(Relaxed) & access == 0 {
            self.to.refuse(crate::events::QP_REQ_ERR);
            return Err(self.told(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!("the peer's QP does not allow access {access:#x} (qp_access_flags)"),
            ));
        }
        Ok(())
    }

    /// Checks that the rkey gives `access` to the remote range. A refusal puts the responder into error too.
    fn remote(&self, len: u64, access: u32) -> Result<u64, Step> {
        let Wqe { rkey, remote_addr, .. } = *self.wqe;
        let pd = self.to.qp.pd.load(Relaxed);
        mr::check(self.to.peer, rkey, pd, remote_addr, len, access).map_err(|why| {
            self.to.refuse(crate::events::QP_ACCESS_ERR);
            self.told(
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
                self.to.refuse(crate::events::QP_ACCESS_ERR);
                let why = std::io::Error::from_raw_os_error(errno);
                Err(self.told(
                    wc::IBV_WC_REM_OP_ERR,
                    format_args!("registered memory of one end cannot be reached (unmapped since?): {why}"),
                ))
            }
        }
    }

    /// When `bytes` are through, in the direction of the request or back.
    fn through(&self, bytes: u64, back: bool) -> u64 {
        let here = own_device(self.process, self.qp);
        let there = self.to.device();
        let (Some(here), Some(there)) = (here, there) else { return 0 };
        let (from, to) = if back { (there, here) } else { (here, there) };
        link::arrival(&self.process.fabric, from, to, bytes)
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

    fn write(&self, local: &Pieces) -> Step {
        let len = self.wqe.len;
        let notify = self.wqe.opcode == op::IBV_WR_RDMA_WRITE_WITH_IMM;
        if let Err(step) = self.allowed(REMOTE_WRITE) {
            return step;
        }
        if len > 0 {
            let addr = match self.remote(len, REMOTE_WRITE) {
                Ok(addr) => addr,
                Err(step) => return step,
            };
            if notify && !self.to.has_receive() {
                return Step::NotReady(self.to.rnr_wait());
            }
            let copied = copy::run(self.to.peer, Direction::Write, local, &Pieces::one(addr, len));
            if let Err(step) = self.copied(copied) {
                return step;
            }
        }
        if !notify {
            return Step::Done(self.through(len, false));
        }
        // Others take from an SRQ too: it may have become empty.
        let Some(taken) = self.to.take() else { return Step::NotReady(self.to.rnr_wait()) };
        let ready_at = self.through(len, false);
        self.to.finish(&taken, &self.arrival(ready_at), wc::IBV_WC_SUCCESS);
        Step::Done(ready_at)
    }

    fn send(&self, local: &Pieces) -> Step {
        let len = self.wqe.len;
        let Some(taken) = self.to.take() else { return Step::NotReady(self.to.rnr_wait()) };
        let room: u64 = taken.sges().iter().map(|sge| u64::from(sge.len)).sum();
        let failed = |status| self.to.fail(&taken, &self.arrival(0), status);
        if len > room {
            failed(wc::IBV_WC_LOC_LEN_ERR);
            return self.told(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!(
                    "{len} bytes sent, the peer's receive (wr_id {:#x}) has room for {room}",
                    taken.wr_id
                ),
            );
        }
        let into = match self.to.scatter(&taken, len) {
            Ok(into) => into,
            Err((sge, why)) => {
                failed(wc::IBV_WC_LOC_PROT_ERR);
                return self.told(
                    wc::IBV_WC_REM_OP_ERR,
                    format_args!(
                        "the peer's receive (wr_id {:#x}): lkey {:#x}, {} bytes at {:#x}: {why}",
                        taken.wr_id, sge.lkey, sge.len, sge.addr
                    ),
                );
            }
        };
        if let Err(step) = self.copied(copy::run(self.to.peer, Direction::Write, local, &into)) {
            return step;
        }
        let ready_at = self.through(len, false);
        self.to.finish(&taken, &self.arrival(ready_at), wc::IBV_WC_SUCCESS);
        Step::Done(ready_at)
    }

    /// READ and atomics need resources on both ends.
    fn check_depth(&self, connection: &Connection) -> Result<(), Step> {
        if connection.max_rd_atomic == 0 {
            return Err(self.told(
                wc::IBV_WC_LOC_QP_OP_ERR,
                format_args!("READ and atomics need max_rd_atomic above 0 (IBV_QP_MAX_QP_RD_ATOMIC)"),
            ));
        }
        if self.to.qp.max_dest_rd_atomic.load(Relaxed) == 0 {
            self.to.refuse(crate::events::QP_REQ_ERR);
            return Err(self.told(
                wc::IBV_WC_REM_INV_REQ_ERR,
                format_args!("READ and atomics need the peer's max_dest_rd_atomic above 0"),
            ));
        }
        Ok(())
    }

    fn read(&self, local: &Pieces, connection: &Connection) -> Step {
        let len = self.wqe.len;
        let run = || {
            self.allowed(REMOTE_READ)?;
            self.check_depth(connection)?;
            if len > 0 {
                let addr = self.remote(len, REMOTE_READ)?;
                self.copied(copy::run(self.to.peer, Direction::Read, local, &Pieces::one(addr, len)))?;
            }
            Ok(self.through(len, true))
        };
        run().map_or_else(|step| step, Step::Done)
    }

    fn atomic(&self, local: &Pieces, connection: &Connection) -> Step {
        let Wqe { len, remote_addr, compare_add, swap, opcode, .. } = *self.wqe;
        let run = || {
            self.allowed(REMOTE_ATOMIC)?;
            self.check_depth(connection)?;
            if len != 8 {
                return Err(self.told(
                    wc::IBV_WC_LOC_LEN_ERR,
                    format_args!("an atomic needs 8 bytes for the old value, got {len}"),
                ));
            }
            if remote_addr % 8 != 0 {
                self.to.refuse(crate::events::QP_REQ_ERR);
                return Err(self.told(
                    wc::IBV_WC_REM_INV_REQ_ERR,
                    format_args!("atomic on {remote_addr:#x}, which is not a multiple of 8"),
                ));
            }
            let addr = self.remote(8, REMOTE_ATOMIC)?;
            let next = |old: u64| match opcode {
                op::IBV_WR_ATOMIC_FETCH_AND_ADD => Some(old.wrapping_add(compare_add)),
                _ => (old == compare_add).then_some(swap),
            };
            self.copied(copy::atomic(self.to.peer, addr, local, next))?;
            Ok(self.through(8, true))
        };
        run().map_or_else(|step| step, Step::Done)
    }
}
