//! WRITEs that arrive after their sender has given up: packets that the network kept.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed};

use rdma_sys::ibv_wc_status::IBV_WC_SUCCESS;
use rdma_sys::ibv_wr_opcode as op;

use crate::api::qp::{ERR, Qp, RTR, RTS, SQD};
use crate::clock;
use crate::log::fault;
use crate::process::Process;
use crate::shm::peer::Peer;
use crate::wire::access::{self, REMOTE_WRITE};
use crate::wire::bounce;
use crate::wire::copy::{self, Direction, Pieces};
use crate::wire::due::Due;
use crate::wire::gather;
use crate::wire::link;
use crate::wire::reach;
use crate::wire::respond::{Arrival, Responder};
use crate::wire::send_queue::{SOLICITED, SendQueue, Wqe};

/// A WRITE as it was posted, and the queue pair that it is addressed to.
pub(crate) struct Late {
    wqe: Wqe,
    data: Vec<u8>,
    peer: Arc<Peer>,
    index: u32,
    dest_qpn: u32,
    generation: u32,
    src_qp: u32,
    /// Nanoseconds from the end of the sender's QP to the arrival.
    after: u64,
}

/// The WRITEs that are on their way, with the times of their arrival.
pub(crate) type OnTheirWay = Due<Late>;

impl Late {
    /// Copies work request `number`, which was just posted. Returns `None` if it could not arrive
    /// anyway.
    pub(crate) fn copy(process: &Process, qp: &Qp, sq: &SendQueue, number: u32, after: u64) -> Option<Self> {
        let (wqe, sges, inline) = sq.at(number);
        let local = gather::gather(process, qp, &wqe, sges, inline).ok()?;
        let found = reach::find(process, qp, &sq.connection).ok()?;
        let mut data = vec![0_u8; usize::try_from(wqe.len).ok()?];
        let here = Pieces::one(data.as_mut_ptr().expose_provenance() as u64, wqe.len);
        copy::run(&process.own, Direction::Write, &local, &here).ok()?;
        let (dest_qpn, src_qp) = (sq.connection.dest_qpn, qp.qpn);
        let (peer, index, generation) = (found.peer, found.index, found.generation);
        Some(Self { wqe, data, peer, index, dest_qpn, generation, src_qp, after })
    }

    /// Writes the data into the memory of the receiver, if its queue pair and its key still exist.
    fn arrive(&self, process: &Process) {
        if self.peer.is_dead() {
            return;
        }
        let Some(to) = Responder::new(process, &self.peer, self.index) else { return };
        let _guard = bounce::lock(&to.qp.lock);
        if let Err(why) = self.deliver(process, &to) {
            fault!("QP {:#x}, wr_id {:#x}: it does not arrive late: {why}", self.src_qp, self.wqe.wr_id);
        }
    }

    fn deliver(&self, process: &Process, to: &Responder<'_>) -> Result<(), String> {
        let qp = to.qp;
        if qp.qpn.load(Acquire) != self.dest_qpn {
            return Err(String::from("the peer's QP was destroyed"));
        }
        let state = qp.state.load(Acquire);
        if qp.generation.load(Relaxed) != self.generation || !matches!(state, RTR | RTS | SQD | ERR) {
            return Err(String::from("the peer's QP was reset"));
        }
        let port = to.device().map(|device| (device, qp.life.load(Relaxed)));
        if port.is_none_or(|port| link::is_removed(&process.fabric, port)) {
            return Err(String::from("the peer's device was removed"));
        }
        let Wqe { rkey, remote_addr, len, .. } = self.wqe;
        if len > 0 {
            let pd = qp.pd.load(Relaxed);
            let addr = access::check(&self.peer, rkey, pd, remote_addr, len, REMOTE_WRITE);
            let addr = addr.map_err(|why| why.to_string())?;
            let data = Pieces::one(self.data.as_ptr().expose_provenance() as u64, len);
            copy::run(&self.peer, Direction::Write, &data, &Pieces::one(addr, len))
                .map_err(|_| String::from("the peer's memory is not mapped"))?;
        }
        let notify = self.wqe.opcode == op::IBV_WR_RDMA_WRITE_WITH_IMM && state != ERR;
        if let Some(taken) = notify.then(|| to.take()).flatten() {
            match to.defect(&taken) {
                Some((with, _)) => to.fail(&taken, &self.arrival(), with),
                // Nobody waits for an answer.
                None => drop(to.finish(&taken, &self.arrival(), IBV_WC_SUCCESS.into())),
            }
        }
        Ok(())
    }

    const fn arrival(&self) -> Arrival {
        Arrival {
            ready_at: 0,
            len: self.wqe.len,
            imm: Some(self.wqe.imm),
            by_write: true,
            solicited: self.wqe.flags & SOLICITED != 0,
            src_qp: self.src_qp,
        }
    }
}

/// Sends the swallowed WRITEs of a queue pair that has ended on their way. The send queue is locked.
pub(crate) fn release(process: &Process, sq: &mut SendQueue) {
    if sq.swallowed.is_empty() {
        return;
    }
    let now = clock::now();
    for (_, late) in sq.swallowed.drain(..) {
        process.late.push(process, now.saturating_add(late.after), late);
    }
}

/// Delivers what is due, for the service thread.
pub(crate) fn serve(process: &Process) {
    for (_, late) in &process.late.take(process, clock::now()) {
        late.arrive(process);
    }
}
