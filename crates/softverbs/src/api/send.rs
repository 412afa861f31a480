//! Posting to send queues: validation, execution in order, completions, and retries.

use std::ffi::c_int;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};

use rdma_sys as sys;
use rdma_sys::ibv_wc_status as wc;
use rdma_sys::ibv_wr_opcode as op;

use crate::abi::border::{self, Errno};
use crate::abi::handle::Handle;
use crate::api::cq;
use crate::api::events;
use crate::api::qp::{ERR, INIT, Qp, RESET, RTR, RTS};
use crate::clock;
use crate::config::call::Call;
use crate::config::profile::{Answer, Profile};
use crate::fault::CompletionStatus;
use crate::log::fault;
use crate::process::calls;
use crate::process::counters::{self, Live};
use crate::process::{self, Process};
use crate::shm::cq_ring::{Completion, Queue};
use crate::wire::bounce;
use crate::wire::copy::{self, Direction, Pieces};
use crate::wire::exec::{self, Step};
use crate::wire::late;
use crate::wire::respond;
use crate::wire::send_queue::{INLINE, SIGNALED, SendQueue, Wqe, is_atomic};
use crate::wire::strike;

/// Fence, signaled, solicited, inline. A fence needs no code: work requests are executed one by
/// one.
const KNOWN_FLAGS: u32 = 0xf;

pub(crate) fn wc_opcode(opcode: u32) -> u32 {
    use sys::ibv_wc_opcode as done;
    match opcode {
        op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_WRITE_WITH_IMM => done::IBV_WC_RDMA_WRITE,
        op::IBV_WR_RDMA_READ => done::IBV_WC_RDMA_READ,
        op::IBV_WR_ATOMIC_CMP_AND_SWP => done::IBV_WC_COMP_SWAP,
        op::IBV_WR_ATOMIC_FETCH_AND_ADD => done::IBV_WC_FETCH_ADD,
        _ => done::IBV_WC_SEND,
    }
}

/// Returns whether the driver reads an SGE although `num_sge` is 0, or an error where it would crash.
pub(super) fn reads_first_sge(
    process: &Process,
    profile: &Profile,
    list: *const sys::ibv_sge,
) -> Result<bool, (i32, String)> {
    if !profile.reads_first_sge || list.is_null() {
        return Ok(false);
    }
    let mut sge = [0_u8; size_of::<sys::ibv_sge>()];
    let here = Pieces::one(sge.as_mut_ptr().expose_provenance() as u64, sge.len() as u64);
    let there = Pieces::one(list.expose_provenance() as u64, sge.len() as u64);
    let read = copy::run(&process.own, Direction::Read, &here, &there);
    let why = "it cannot be read, and the driver reads an SGE there although num_sge is 0 (quirks)";
    read.map(|()| true).map_err(|_| (libc::EFAULT, format!("sg_list is {list:p}: {why}")))
}

/// Validates a work request as `ibv_post_send` must. Returns its number of scatter/gather items and
/// bytes.
///
/// # Safety
/// `wr.sg_list` has `wr.num_sge` items.
unsafe fn check(process: &Process, qp: &Qp, wr: &sys::ibv_send_wr) -> Result<(usize, u64), (i32, String)> {
    let profile = qp.context.device.profile;
    let invalid = |why: String| Err((libc::EINVAL, why));
    let plain = matches!(wr.opcode, op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_READ);
    let pieces = match usize::try_from(wr.num_sge) {
        Ok(0) if plain && wr.send_flags & INLINE == 0 => {
            usize::from(reads_first_sge(process, profile, wr.sg_list)?)
        }
        Ok(n) if n <= qp.cap.max_send_sge as usize => n,
        _ => {
            let why = format!("num_sge is {}, expected 0 to {}", wr.num_sge, qp.cap.max_send_sge);
            return Err((profile.too_many_send_sges, why));
        }
    };
    if !profile.immediates && matches!(wr.opcode, op::IBV_WR_RDMA_WRITE_WITH_IMM | op::IBV_WR_SEND_WITH_IMM) {
        return invalid(String::from("the device has no immediates (quirks)"));
    }
    if wr.opcode > op::IBV_WR_ATOMIC_FETCH_AND_ADD {
        return invalid(format!("opcode {} is not supported", wr.opcode));
    }
    if wr.send_flags & !KNOWN_FLAGS != 0 {
        return invalid(format!("unknown send flags {:#x}", wr.send_flags & !KNOWN_FLAGS));
    }
    // SAFETY: below `num_sge`, as the caller guarantees, or the one that was just read.
    let len = (0..pieces).map(|i| u64::from(unsafe { (*wr.sg_list.add(i)).length })).sum();
    let most = qp.port().spec.max_msg;
    if len > u64::from(most) {
        return invalid(format!("{len} bytes, expected at most {most} (max_msg_sz of the port)"));
    }
    if wr.send_flags & INLINE != 0 {
        if is_atomic(wr.opcode) || wr.opcode == op::IBV_WR_RDMA_READ {
            return invalid(String::from("IBV_SEND_INLINE is invalid for READ and atomics"));
        }
        if len > u64::from(qp.cap.max_inline_data) {
            let most = qp.cap.max_inline_data;
            return Err((
                profile.too_much_inline,
                format!("{len} bytes of inline data, expected at most {most} (max_inline_data of the QP)"),
            ));
        }
    }
    Ok((pieces, len))
}

fn count_posted(qp: &Qp, opcode: u32, flags: u32) {
    let add = |live: &Live| {
        let counter = match opcode {
            op::IBV_WR_RDMA_WRITE => &live.writes,
            op::IBV_WR_RDMA_WRITE_WITH_IMM => &live.writes_with_imm,
            op::IBV_WR_SEND => &live.sends,
            op::IBV_WR_SEND_WITH_IMM => &live.sends_with_imm,
            op::IBV_WR_RDMA_READ => &live.reads,
            op::IBV_WR_ATOMIC_CMP_AND_SWP => &live.compare_swaps,
            _ => &live.fetch_adds,
        };
        Live::add(counter, 1);
        if flags & INLINE != 0 {
            Live::add(&live.inlines, 1);
        }
    };
    on_counters(qp, add);
}

/// Applies `add` to the counters of the QP and of its device.
pub(super) fn on_counters(qp: &Qp, add: impl Fn(&Live)) {
    add(&qp.counters.own);
    if let Some(device) = counters::of_device(qp.port().index) {
        add(device);
    }
}

impl Qp {
    /// Appends one work request. The send queue is locked.
    ///
    /// # Safety
    /// `wr` is a work request with its scatter/gather list.
    unsafe fn post(
        &self,
        process: &Process,
        sq: &mut SendQueue,
        wr: &sys::ibv_send_wr,
        now: u64,
    ) -> Result<(), Errno> {
        calls::begin(self.context.device, Call::PostSend)?;
        // SAFETY: guaranteed by the caller.
        let (pieces, len) = match unsafe { check(process, self, wr) } {
            Ok(checked) => checked,
            Err((errno, why)) => {
                fault!("ibv_post_send: QP {:#x}, wr_id {:#x}: {why}", self.qpn, wr.wr_id);
                return Err(Errno(errno));
            }
        };
        let done = self.shared(process)?.sends_done.load(Acquire);
        if sq.tail.wrapping_sub(done) >= self.cap.max_send_wr {
            fault!(
                "ibv_post_send: QP {:#x}: the queue is full: {} work requests without a polled completion; \
                 poll, and signal at least one in {}",
                self.qpn,
                sq.tail.wrapping_sub(done),
                self.cap.max_send_wr
            );
            return Err(Errno(libc::ENOMEM));
        }
        let number = sq.tail;
        // SAFETY: guaranteed by the caller.
        unsafe { sq.push(wr, pieces, len, now) };
        strike::count(process, self, sq, number, wr.opcode);
        count_posted(self, wr.opcode, wr.send_flags);
        Ok(())
    }

    /// Executes what can be executed now, except large work requests. With `due`, a blocked head is
    /// retried only if its time has come.
    pub(crate) fn drain(&self, process: &Process, sq: &mut SendQueue, due: bool) {
        self.work(process, sq, due, 0);
    }

    /// Like `drain`, and executes up to `pieces` pieces of large work requests.
    pub(crate) fn work(&self, process: &Process, sq: &mut SendQueue, due: bool, mut pieces: u32) {
        let Ok(shared) = self.shared(process) else { return };
        let mut removed = false;
        while sq.head != sq.tail {
            match shared.state.load(Acquire) {
                RTS => {}
                ERR => {
                    self.flush(process, sq);
                    break;
                }
                _ => break,
            }
            if let Some(block) = sq.block {
                let now = clock::now();
                self.resend(process, sq, now);
                if due && block.until > now {
                    break;
                }
                sq.not_before = now;
            } else if sq.next_piece().is_some() {
                if pieces == 0 {
                    break;
                }
                pieces -= 1;
            }
            let step = exec::run(process, self, sq);
            let wqe = sq.first().0;
            match step {
                Step::Done(ready_at) => self.succeeded(process, sq, &wqe, ready_at),
                Step::Moved => sq.block = None,
                // Neither a timer nor a thread continues it.
                Step::Removed => {
                    (sq.block, sq.partial) = (None, None);
                    self.probe_at.store(u64::MAX, Relaxed);
                    removed = true;
                    break;
                }
                Step::NotReady(wait) => {
                    if !self.not_ready(process, sq, &wqe, wait) {
                        break;
                    }
                }
                Step::Behind(wait) => {
                    self.postpone(sq, wait);
                    break;
                }
                Step::NoAnswer(why) => {
                    // A later responder may be another QP.
                    sq.partial = None;
                    if !self.no_answer(process, sq, &wqe, why) {
                        break;
                    }
                }
                Step::Failed(with) => self.failed(process, sq, &wqe, with),
            }
        }
        // In another state no retry is due: the QP runs again only after a call of ibv_modify_qp.
        let state = shared.state.load(Acquire);
        let running = state == RTS && !removed;
        if state == ERR {
            late::release(process, sq);
        }
        if running && sq.unacked.is_some() {
            exec::run_ahead(process, self, sq);
        }
        let moves = sq.next_piece().filter(|_| running);
        self.note_waiting(process, sq.head != sq.tail && moves.is_none());
        self.note_moving(process, moves);
        if let Some(block) = sq.block.filter(|_| running && sq.head != sq.tail) {
            process.service.wake_at(block.until.min(block.resend_at));
        }
    }

    fn completion(&self, sq: &SendQueue, wqe: &Wqe, with: CompletionStatus, ready_at: u64) -> Completion {
        let back = matches!(wqe.opcode, op::IBV_WR_RDMA_READ) || is_atomic(wqe.opcode);
        Completion {
            ready_at,
            wr_id: wqe.wr_id,
            status: with.status,
            vendor_err: with.vendor_err,
            opcode: wc_opcode(wqe.opcode),
            byte_len: if back { u32::try_from(wqe.len).unwrap_or(u32::MAX) } else { 0 },
            qpn: self.qpn,
            queue: Queue::Send(self.index, sq.head.wrapping_add(1)),
            ..Completion::default()
        }
    }

    fn succeeded(&self, process: &Process, sq: &mut SendQueue, wqe: &Wqe, ready_at: u64) {
        on_counters(self, |live| Live::add(&live.bytes, wqe.len));
        let pushed = if self.sig_all || wqe.flags & SIGNALED != 0 {
            let completion = self.completion(sq, wqe, wc::IBV_WC_SUCCESS.into(), ready_at);
            cq::complete(process, &process.own, self.send_cq.index, &completion)
        } else {
            true
        };
        sq.advance();
        if !pushed {
            self.enter_error(process, Some(events::QP_FATAL));
        }
    }

    /// Completes the head with an error; the QP enters ERR.
    pub(super) fn failed(&self, process: &Process, sq: &mut SendQueue, wqe: &Wqe, with: CompletionStatus) {
        let completion = self.completion(sq, wqe, with, 0);
        cq::complete(process, &process.own, self.send_cq.index, &completion);
        sq.advance();
        let retries_are_over = matches!(with.status, wc::IBV_WC_RETRY_EXC_ERR | wc::IBV_WC_RNR_RETRY_EXC_ERR);
        self.enter_error(
            process,
            self.context.device.profile.event_after_retries.filter(|_| retries_are_over),
        );
    }

    /// Moves the QP to ERR.
    pub(crate) fn enter_error(&self, process: &Process, event: Option<u32>) {
        let Ok(shared) = self.shared(process) else { return };
        let _guard = bounce::lock(&shared.lock);
        respond::to_error(process, &process.own, self.index, shared, event);
        self.show_state(ERR);
    }

    /// Moves the QP to ERR because it, or its CQ, has failed. The next request of its peer gets this
    /// answer.
    pub(crate) fn fail(&self, process: &Process, event: Option<u32>, answer: Answer) {
        if let Ok(shared) = self.shared(process) {
            shared.owes_nak.store(u32::from(answer == Answer::Nak), Release);
        }
        self.enter_error(process, event);
    }

    /// Completes all work requests with a flush error.
    fn flush(&self, process: &Process, sq: &mut SendQueue) {
        while sq.head != sq.tail {
            let wqe = sq.wqes[sq.slot(sq.head)];
            let completion = self.completion(sq, &wqe, self.context.device.profile.flushed(), 0);
            cq::complete(process, &process.own, self.send_cq.index, &completion);
            sq.advance();
        }
        self.show_state(ERR);
    }

    /// Updates the number of waiting QPs. The send queue is locked.
    pub(crate) fn note_waiting(&self, process: &Process, waits: bool) {
        if self.waits.swap(waits, AcqRel) != waits {
            match waits {
                true => process.waiting.fetch_add(1, AcqRel),
                false => process.waiting.fetch_sub(1, AcqRel),
            };
        }
    }

    /// Retries due work requests, and flushes the queue if a peer moved the QP to ERR. For the
    /// service thread.
    pub(crate) fn progress(&self, process: &Process) {
        let mut sq = self.lock_sq();
        self.drain(process, &mut sq, true);
    }

    /// Retries waiting work requests unless another thread does. For polling threads.
    pub(crate) fn try_progress(&self, process: &Process) {
        if !self.waits.load(Relaxed) {
            return;
        }
        let probe_at = self.probe_at.load(Relaxed);
        if probe_at != 0 && probe_at > clock::now() {
            return;
        }
        if let Ok(mut sq) = self.sq.try_lock() {
            self.drain(process, &mut sq, false);
        }
    }
}

/// `ibv_post_send(3)`, through the context's operations.
///
/// # Safety
/// `qp` is alive, `wr` a list of work requests, `bad` writable.
pub(crate) unsafe extern "C" fn post_send(
    qp: *mut sys::ibv_qp,
    mut wr: *mut sys::ibv_send_wr,
    bad: *mut *mut sys::ibv_send_wr,
) -> c_int {
    // SAFETY: alive, as the caller guarantees.
    if let Some(null) = unsafe { Qp::from_c(qp) }.ok().and_then(|qp| qp.null.get()) {
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees; their
        // memory is valid, as the caller of `complete_at_once` promises.
        return unsafe { null.post(wr, bad) };
    }
    border::code("ibv_post_send", || {
        // SAFETY: writable, as the caller guarantees.
        let process = process::get().inspect_err(|_| unsafe { bad.write(wr) })?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Qp::from_c(qp) }?;
        let mut sq = this.lock_sq();
        let state = this.shared(process)?.state.load(Acquire);
        let mut result = Ok(());
        let profile = this.context.device.profile;
        let refused = match state {
            RESET | INIT | RTR => profile.send_before_rts,
            ERR => profile.post_in_err,
            _ => None,
        };
        if let Some(errno) = refused {
            fault!("ibv_post_send: QP {:#x} is in state {state}, expected RTS (3)", this.qpn);
            result = Err(Errno(errno));
        }
        let now = clock::now();
        let mut posted = false;
        // SAFETY: null or a work request, as the caller guarantees.
        while let (Ok(()), Some(request)) = (result, unsafe { wr.as_ref() }) {
            // SAFETY: as above, with its scatter/gather list.
            result = unsafe { this.post(process, &mut sq, request, now) };
            if result.is_ok() {
                posted = true;
                wr = request.next;
            }
        }
        if posted {
            on_counters(this, |live| Live::add(&live.doorbells, 1));
            this.drain(process, &mut sq, true);
        }
        // No doorbell asks to be tried again.
        if result.is_err_and(|errno| !profile.hides_bad_wr || errno.0 == libc::EAGAIN) {
            // SAFETY: writable, as the caller guarantees.
            unsafe { bad.write(wr) };
        }
        result.map_err(|errno| profile.post_errno(errno))
    })
}
