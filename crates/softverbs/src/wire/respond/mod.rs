//! The responder's half of a work request: receives, completions, errors. It runs in the process of
//! the requester and works on the segment of the responder.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use rdma_sys as sys;
use rdma_sys::ibv_wc_status as wc;

use crate::api::cq;
use crate::api::events;
use crate::api::qp::{ERR, RTR, RTS, SQD};
use crate::clock;
use crate::config::profile::{Answer, Profile};
use crate::config::quirks;
use crate::fault::CompletionStatus;
use crate::process::Process;
use crate::shm::cq_ring::{Completion, Queue, Ring};
use crate::shm::layout::{DeviceShared, QpShared};
use crate::shm::peer::Peer;
use crate::shm::recv_queue::{self, Receives, Sge, Taken};
use crate::wire::access::{self, Denied, LOCAL_WRITE};
use crate::wire::copy::Pieces;
use crate::wire::placement;
use crate::wire::send_queue::Connection;

/// A responding QP. The caller holds its lock.
#[derive(Clone, Copy)]
pub(crate) struct Responder<'a> {
    process: &'a Process,
    pub(crate) peer: &'a Peer,
    index: u32,
    pub(crate) qp: &'a QpShared,
}

/// The properties of a message that its receive completion reports.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Arrival {
    pub(crate) ready_at: u64,
    pub(crate) len: u64,
    pub(crate) imm: Option<u32>,
    /// Whether it is an RDMA WRITE, which does not use the buffer of the receive.
    pub(crate) by_write: bool,
    pub(crate) solicited: bool,
    pub(crate) src_qp: u32,
}

/// `min_rnr_timer` codes in units of 10 us.
const RNR_TIMER: [u64; 32] = [
    65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048,
    3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
];

impl<'a> Responder<'a> {
    /// Returns `None` if the segment has no such entry.
    pub(crate) fn new(process: &'a Process, peer: &'a Peer, index: u32) -> Option<Self> {
        Some(Self { process, peer, index, qp: peer.qp(index)? })
    }

    /// Checks that this is still the QP that was looked up, and that it accepts requests of QP
    /// `from`. Returns what `from` gets otherwise, and why.
    pub(crate) fn answers(
        &self,
        connection: &Connection,
        from: u32,
        generation: u32,
    ) -> Result<(), (Answer, &'static str)> {
        let qp = self.qp;
        let silent = |why| Err((Answer::Silence, why));
        if qp.qpn.load(Acquire) != connection.dest_qpn {
            return silent("there is no such QP (destroyed, or its process has ended)");
        }
        let state = qp.state.load(Acquire);
        if !matches!(state, RTR | RTS | SQD | ERR) {
            return silent("that QP is not in RTR or RTS");
        }
        if qp.generation.load(Relaxed) != generation {
            return silent("that QP was reconnected");
        }
        if qp.dest_qpn.load(Relaxed) != from {
            return silent("that QP is connected to another QP");
        }
        if qp.rq_psn.load(Relaxed) != connection.sq_psn {
            return silent("that QP expects another first packet number (its rq_psn is not our sq_psn)");
        }
        match state {
            ERR if qp.owes_nak.swap(0, Relaxed) != 0 => Err((Answer::Nak, "that QP, or its CQ, has failed")),
            ERR => silent("that QP is in ERR"),
            _ => Ok(()),
        }
    }

    /// Raises IBV_EVENT_COMM_EST for the first message if the QP is in RTR.
    pub(crate) fn establish(&self) {
        if self.qp.established.load(Relaxed) == 0 {
            self.qp.established.store(1, Relaxed);
            if self.qp.state.load(Relaxed) == RTR {
                events::raise(self.peer, events::COMM_EST, self.index, self.qp.qpn.load(Relaxed));
            }
        }
    }

    /// Returns the index of the QP.
    pub(crate) fn index(&self) -> u32 {
        self.index
    }

    /// Returns the device of the QP.
    pub(crate) fn device(&self) -> Option<&'a DeviceShared> {
        self.peer.header().devices.get(self.qp.device.load(Relaxed) as usize)
    }

    /// Returns what the provider of the QP's device does.
    pub(crate) fn profile(&self) -> &'static Profile {
        quirks::at(self.device().map_or(0, |device| device.quirks.load(Relaxed)))
    }

    /// Returns how long a requester waits if there is no receive, in nanoseconds.
    pub(crate) fn rnr_wait(&self) -> u64 {
        let code = self.qp.min_rnr_timer.load(Relaxed) as usize;
        RNR_TIMER.get(code).map_or(0, |n| n * 10_000)
    }

    /// Returns the SRQ from which the QP receives, if any.
    fn srq(&self) -> Option<u32> {
        self.qp.srq.load(Relaxed).checked_sub(1)
    }

    fn receives(&self) -> Option<Receives<'a>> {
        match self.srq() {
            Some(srq) => Receives::new(self.peer, &self.peer.srq(srq)?.rq),
            None => Receives::new(self.peer, &self.qp.rq),
        }
    }

    /// Returns what a request gets that needs a receive of a failed SRQ, and why. The QP enters ERR,
    /// unless the requester is to wait.
    pub(crate) fn without_srq(&self) -> Option<(Answer, &'static str)> {
        let srq = self.srq().and_then(|srq| self.peer.srq(srq))?;
        if srq.failed.load(Acquire) == 0 {
            return None;
        }
        let answer = self.profile().answers.srq;
        if answer != Answer::NotReady {
            self.refuse(events::QP_FATAL);
        }
        Some((answer, "its SRQ has failed"))
    }

    /// Returns whether a receive is posted.
    pub(crate) fn has_receive(&self) -> bool {
        self.receives().is_some_and(|queue| queue.waiting() > 0)
    }

    /// Takes a receive. The QP records it until it completes: it must not be lost if this process
    /// dies.
    pub(crate) fn take(&self) -> Option<Taken> {
        let (taken, limit) = self.receives()?.take(self.index)?;
        if let (true, Some(srq)) = (limit, self.srq()) {
            let id = self.peer.srq(srq).map_or(0, |srq| srq.id.load(Relaxed));
            events::raise(self.peer, events::SRQ_LIMIT_REACHED, srq, id);
        }
        Some(taken)
    }

    /// Returns how a receive ends that the QP's driver has built in a way that its adapter refuses, and
    /// the reason.
    pub(crate) fn defect(&self, taken: &Taken) -> Option<(CompletionStatus, &'static str)> {
        let profile = self.profile();
        let malformed = profile.srq_receives_need_sge && self.srq().is_some() && taken.sges().is_empty();
        let status = || profile.failed_recv(wc::IBV_WC_LOC_QP_OP_ERR);
        malformed.then(|| (status(), "a receive of an SRQ without an SGE (quirks)"))
    }

    /// Returns the addresses of the first `len` bytes of the receive's buffers.
    pub(crate) fn scatter(&self, taken: &Taken, len: u64) -> Result<Pieces, (Sge, Denied)> {
        let pd = match self.srq().and_then(|srq| self.peer.srq(srq)) {
            Some(srq) => srq.pd.load(Relaxed),
            None => self.qp.pd.load(Relaxed),
        };
        let (mut pieces, mut left) = (Pieces::new(), len);
        for sge in taken.sges() {
            let part = u64::from(sge.len).min(left);
            if part == 0 {
                continue;
            }
            let addr = access::check(self.peer, sge.lkey, pd, sge.addr, part, LOCAL_WRITE);
            pieces.push(addr.map_err(|why| (*sge, why))?, part);
            left -= part;
        }
        Ok(pieces)
    }

    /// Returns when the completion of a message that arrives at `ready_at` becomes visible.
    fn seen_at(&self, ready_at: u64) -> u64 {
        match self.device().map_or(0, |device| device.cqe_delay_ns.load(Relaxed)) {
            0 => ready_at,
            delay => ready_at.max(clock::now()).saturating_add(delay),
        }
    }

    /// Writes the completion of a receive. Returns `false` if the CQ has failed.
    fn push(&self, wr_id: u64, arrival: &Arrival, with: CompletionStatus) -> bool {
        let opcode = match arrival.by_write {
            true => sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
            false => sys::ibv_wc_opcode::IBV_WC_RECV,
        };
        let completion = Completion {
            ready_at: self.seen_at(arrival.ready_at),
            wr_id,
            status: with.status,
            vendor_err: with.vendor_err,
            opcode,
            byte_len: u32::try_from(arrival.len).unwrap_or(u32::MAX),
            imm: arrival.imm.unwrap_or(0),
            qpn: self.qp.qpn.load(Relaxed),
            src_qp: arrival.src_qp,
            wc_flags: if arrival.imm.is_some() { sys::ibv_wc_flags::IBV_WC_WITH_IMM.0 } else { 0 },
            solicited: arrival.solicited,
            covers: self.qp.placed.load(Relaxed),
            queue: self.srq().map_or(Queue::Recv(self.index), Queue::Srq),
            ends: self.index + 1,
        };
        let pushed = cq::complete(self.process, self.peer, self.qp.recv_cq.load(Relaxed), &completion);
        if !pushed {
            self.qp.taken.store(0, Release);
        }
        pushed
    }

    /// Completes a receive. If its CQ is full or has failed, the QP fails, and the requester gets what
    /// is returned.
    pub(crate) fn finish(
        &self,
        taken: &Taken,
        arrival: &Arrival,
        with: CompletionStatus,
    ) -> Result<(), (Answer, &'static str)> {
        if self.push(taken.wr_id, arrival, with) {
            return Ok(());
        }
        self.refuse(events::QP_FATAL);
        Err((self.profile().answers.cq, "its CQ is full, or has failed"))
    }

    /// Completes a receive with an error; the QP enters ERR.
    pub(crate) fn fail(&self, taken: &Taken, arrival: &Arrival, with: CompletionStatus) {
        // The requester gets a NAK for the error anyway.
        let _ = self.finish(taken, arrival, with);
        to_error(self.process, self.peer, self.index, self.qp, None);
    }

    /// Moves the QP to ERR and raises an event.
    pub(crate) fn refuse(&self, event: u32) {
        to_error(self.process, self.peer, self.index, self.qp, Some(event));
    }

    /// Locks and unlocks both queues. If a peer died while it held one of the locks, this completes
    /// or reverts its operation. Afterwards `taken` is correct.
    fn recover(&self) {
        if let Some(ring) = Ring::new(self.peer, self.qp.recv_cq.load(Relaxed)) {
            drop(ring.lock());
        }
        if let Some(receives) = self.receives() {
            drop(receives.lock());
        }
    }

    /// Completes the recorded receive with a flush error, if there is one.
    fn flush_taken(&self) {
        if self.qp.taken.load(Acquire) != 0 {
            self.flush_one(self.qp.taken_wr_id.load(Relaxed));
        }
    }

    fn flush_one(&self, wr_id: u64) {
        let nothing =
            Arrival { ready_at: 0, len: 0, imm: None, by_write: false, solicited: false, src_qp: 0 };
        self.push(wr_id, &nothing, self.profile().flushed());
    }
}

/// Moves a QP to ERR: flushes its receives (those of an SRQ stay posted) and wakes its owner, which
/// flushes the send queue. The caller holds the lock of the QP.
pub(crate) fn to_error(process: &Process, peer: &Peer, index: u32, qp: &QpShared, event: Option<u32>) {
    placement::land_qp(peer, index);
    let before = qp.state.swap(ERR, Release);
    if let Some(responder) = Responder::new(process, peer, index) {
        responder.recover();
        responder.flush_taken();
    }
    // Also if the QP is in ERR already: a peer may have died while flushing.
    flush_receives(process, peer, index, qp);
    if before == ERR {
        return;
    }
    let qpn = qp.qpn.load(Relaxed);
    if let Some(event) = event {
        events::raise(peer, event, index, qpn);
    }
    if qp.srq.load(Relaxed) != 0 {
        events::raise(peer, events::LAST_WQE_REACHED, index, qpn);
    }
    peer.kick();
}

/// Completes all receives of the QP's own receive queue with a flush error.
pub(crate) fn flush_receives(process: &Process, peer: &Peer, index: u32, qp: &QpShared) {
    let Some(responder) = Responder::new(process, peer, index) else { return };
    if responder.srq().is_some() {
        return;
    }
    let Some(queue) = Receives::new(peer, &qp.rq) else { return };
    while let Some((taken, _)) = queue.take(index) {
        responder.flush_one(taken.wr_id);
    }
}

/// Frees the SRQ slot of a receive that a peer had taken before it died, and that the QP will not
/// complete.
pub(crate) fn give_back_taken(process: &Process, index: u32, qp: &QpShared) {
    if let Some(responder) = Responder::new(process, &process.own, index) {
        responder.recover();
    }
    if qp.taken.swap(0, Relaxed) == 0 {
        return;
    }
    if let Some(srq) = qp.srq.load(Relaxed).checked_sub(1).and_then(|srq| process.own.srq(srq)) {
        recv_queue::polled(&srq.rq);
    }
}

#[cfg(test)]
mod tests;
