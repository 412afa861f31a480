//! The null data path: a work request between two queue pairs of one process completes inside
//! `ibv_post_send`, by a copy and an entry in a ring. See [`crate::complete_at_once`].
//!
//! Each object that takes part has the rings that replace its queues. The functions of the
//! context's operations look for them first.
//!
//! One thread uses the rings: the one that has called `complete_at_once`. The work requests of other
//! threads wait for its next post or poll, and their polls find nothing.

use std::cell::{Cell, UnsafeCell};
use std::ffi::c_int;
use std::mem::{self, MaybeUninit};
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use rdma_sys as sys;
use rdma_sys::ibv_wr_opcode as op;

use crate::abi::border::Errno;
use crate::api::cq::Cq;
use crate::api::poll::{free_place, to_wc};
use crate::api::qp::{Qp, RTS};
use crate::api::send::wc_opcode;
use crate::error::Error;
use crate::log::fault;
use crate::process::{self, Process};
use crate::shm::cq_ring::Completion;
use crate::shm::layout::RecvQueue;
use crate::shm::recv_queue::Receives;
use crate::wire::reach;
use crate::wire::send_queue::{INLINE, SIGNALED};

/// The thread that uses the rings.
static OWNER: AtomicU64 = AtomicU64::new(0);
/// Work requests of other threads, in the order of their posts, and whether there are any.
static WAITING: Mutex<Vec<Waiting>> = Mutex::new(Vec::new());
static ANY_WAITING: AtomicBool = AtomicBool::new(false);

/// A work request that waits for the thread that uses the rings.
enum Waiting {
    Send(Box<(NullQp, OwnedSend)>),
    Receive(Arc<Ring<u64>>, u64),
}

/// A work request with its scatter list, and with the data of an inline one.
struct OwnedSend {
    wr: sys::ibv_send_wr,
    sges: Vec<sys::ibv_sge>,
    _inline: Vec<u8>,
}

// SAFETY: the pointers of the work request lead to its other fields, and to memory that is valid in
// this process for all threads, as the caller of `complete_at_once` promises.
unsafe impl Send for OwnedSend {}

impl OwnedSend {
    /// # Safety
    /// As for [`NullQp::post`], for one work request.
    unsafe fn of(wr: &sys::ibv_send_wr) -> Self {
        // SAFETY: `sg_list` has `num_sge` items, as the caller guarantees.
        let mut sges = unsafe { items(wr.sg_list, wr.num_sge) }.to_vec();
        let mut inline = Vec::new();
        if wr.send_flags & INLINE != 0 {
            for sge in &sges {
                let data = std::ptr::with_exposed_provenance::<u8>(sge.addr as usize);
                // SAFETY: valid memory, as the caller guarantees.
                inline.extend_from_slice(unsafe { std::slice::from_raw_parts(data, sge.length as usize) });
            }
            let (addr, length) = (inline.as_ptr().expose_provenance() as u64, inline.len() as u32);
            sges = vec![sys::ibv_sge { addr, length, lkey: 0 }];
        }
        // SAFETY: plain C data, which may be copied.
        let mut own = unsafe { std::ptr::read(wr) };
        own.next = std::ptr::null_mut();
        own.num_sge = sges.len() as c_int;
        Self { wr: own, sges, _inline: inline }
    }
}

/// Returns whether this thread uses the rings. Executes what others have posted meanwhile if it does.
#[inline(always)]
fn may_use_rings() -> bool {
    if this_thread() != OWNER.load(Relaxed) {
        return false;
    }
    if ANY_WAITING.load(Acquire) {
        serve_waiting();
    }
    true
}

#[inline(always)]
fn this_thread() -> u64 {
    // SAFETY: has no conditions.
    unsafe { libc::pthread_self() as u64 }
}

fn waiting() -> std::sync::MutexGuard<'static, Vec<Waiting>> {
    WAITING.lock().unwrap_or_else(PoisonError::into_inner)
}

fn wait(request: Waiting) {
    waiting().push(request);
    ANY_WAITING.store(true, Release);
}

/// Executes the work requests of other threads. Called by the thread that uses the rings.
#[cold]
fn serve_waiting() {
    let requests = {
        let mut waiting = waiting();
        ANY_WAITING.store(false, Relaxed);
        mem::take(&mut *waiting)
    };
    for request in requests {
        match request {
            Waiting::Send(send) => {
                let (qp, OwnedSend { mut wr, mut sges, _inline }) = *send;
                wr.sg_list = sges.as_mut_ptr();
                // SAFETY: its scatter list is above, and its memory is valid as long as the queue pair is.
                if let Err(refusal) = unsafe { qp.execute(&wr) } {
                    qp.refused(refusal);
                }
            }
            // Its post has succeeded. A full queue loses it: as many as fit are the program's to count.
            Waiting::Receive(ring, wr_id) => drop(ring.push(wr_id)),
        }
    }
}

/// Forgets what waits of a queue pair that is destroyed.
pub(crate) fn destroyed(qpn: u32) {
    waiting().retain(|request| !matches!(request, Waiting::Send(send) if send.0.qpn == qpn));
}

/// A queue of fixed size that one thread uses.
pub(crate) struct Ring<T> {
    items: Box<[UnsafeCell<MaybeUninit<T>>]>,
    /// Running number of the next item to pop.
    head: Cell<u32>,
    /// Running number of the next item to push.
    tail: Cell<u32>,
}

// SAFETY: only the thread of `OWNER` uses a ring: posts and polls of others do not reach it.
unsafe impl<T: Send> Sync for Ring<T> {}
// SAFETY: no part of it is tied to a thread.
unsafe impl<T: Send> Send for Ring<T> {}

impl<T> Ring<T> {
    fn new(depth: u32) -> Self {
        // A power of two: the running numbers may wrap.
        let slots = depth.max(1).next_power_of_two();
        let items = (0..slots).map(|_| UnsafeCell::new(MaybeUninit::uninit())).collect();
        Self { items, head: Cell::new(0), tail: Cell::new(0) }
    }

    #[inline]
    fn slot(&self, number: u32) -> *mut MaybeUninit<T> {
        self.items[number as usize & (self.items.len() - 1)].get()
    }

    /// Appends an item; `false` if the ring is full.
    #[inline(always)]
    fn push(&self, item: T) -> bool {
        let tail = self.tail.get();
        if tail.wrapping_sub(self.head.get()) as usize == self.items.len() {
            return false;
        }
        // SAFETY: one thread uses the ring, and no reference to a slot exists between two calls.
        unsafe { self.slot(tail).write(MaybeUninit::new(item)) };
        self.tail.set(tail.wrapping_add(1));
        true
    }

    #[inline(always)]
    fn pop(&self) -> Option<T> {
        let head = self.head.get();
        if head == self.tail.get() {
            return None;
        }
        self.head.set(head.wrapping_add(1));
        // SAFETY: as in `push`, which has written the slots from head to tail.
        Some(unsafe { self.slot(head).read().assume_init() })
    }
}

impl Ring<u64> {
    /// Posts a list of receives as `ibv_post_recv` does. Scatter lists are ignored: no work request
    /// of the null data path writes to them.
    ///
    /// # Safety
    /// `wr` is a list of work requests, `bad` writable.
    pub(crate) unsafe fn post(
        self: &Arc<Self>,
        mut wr: *mut sys::ibv_recv_wr,
        bad: *mut *mut sys::ibv_recv_wr,
    ) -> c_int {
        let may_use_rings = may_use_rings();
        // SAFETY: null or a work request, as the caller guarantees.
        while let Some(request) = unsafe { wr.as_ref() } {
            if !may_use_rings {
                wait(Waiting::Receive(Arc::clone(self), request.wr_id));
            } else if !self.push(request.wr_id) {
                // SAFETY: writable, as the caller guarantees.
                unsafe { bad.write(wr) };
                return libc::ENOMEM;
            }
            wr = request.next;
        }
        0
    }
}

impl Ring<sys::ibv_wc> {
    /// Polls up to `n` completions.
    ///
    /// # Safety
    /// `wc` has room for `n`.
    #[inline]
    pub(crate) unsafe fn poll(&self, n: c_int, wc: *mut sys::ibv_wc) -> c_int {
        if !may_use_rings() {
            return 0;
        }
        let mut taken = 0;
        while taken < n {
            let Some(completion) = self.pop() else { break };
            // SAFETY: below `n`, and `wc` has room for `n`, as the caller guarantees.
            unsafe { wc.add(taken as usize).write(completion) };
            taken += 1;
        }
        taken
    }
}

/// A queue pair of the null data path.
#[derive(Clone)]
pub(crate) struct NullQp {
    qpn: u32,
    sig_all: bool,
    completions: Arc<Ring<sys::ibv_wc>>,
    pub(crate) receives: Arc<Ring<u64>>,
    peer_qpn: u32,
    peer_completions: Arc<Ring<sys::ibv_wc>>,
    peer_receives: Arc<Ring<u64>>,
}

impl NullQp {
    /// Executes a list of work requests as `ibv_post_send` posts it.
    ///
    /// # Safety
    /// `wr` is a list of work requests whose memory, local and remote, is valid in this process;
    /// `bad` is writable.
    pub(crate) unsafe fn post(
        &self,
        mut wr: *mut sys::ibv_send_wr,
        bad: *mut *mut sys::ibv_send_wr,
    ) -> c_int {
        if !may_use_rings() {
            // SAFETY: null or a work request, as the caller guarantees.
            while let Some(request) = unsafe { wr.as_ref() } {
                // SAFETY: as above, with its memory.
                wait(Waiting::Send(Box::new((self.clone(), unsafe { OwnedSend::of(request) }))));
                wr = request.next;
            }
            return 0;
        }
        // SAFETY: null or a work request, as the caller guarantees.
        while let Some(request) = unsafe { wr.as_ref() } {
            // SAFETY: as above, with its memory.
            if let Err(refusal) = unsafe { self.execute(request) } {
                // SAFETY: writable, as the caller guarantees.
                unsafe { bad.write(wr) };
                return self.refused(refusal);
            }
            wr = request.next;
        }
        0
    }

    #[cold]
    fn refused(&self, refusal: Refusal) -> c_int {
        let (errno, why) = match refusal {
            Refusal::Opcode => (libc::EOPNOTSUPP, "only RDMA WRITE and READ are supported"),
            Refusal::NotReady => (libc::EAGAIN, "the peer has no receive posted"),
            Refusal::Full => (libc::EIO, "a completion queue is full"),
        };
        fault!("ibv_post_send: QP {:#x}, null data path: {why}", self.qpn);
        errno
    }

    /// # Safety
    /// As for [`NullQp::post`], for one work request.
    #[inline(always)]
    unsafe fn execute(&self, wr: &sys::ibv_send_wr) -> Result<(), Refusal> {
        let receive = match wr.opcode {
            op::IBV_WR_RDMA_WRITE_WITH_IMM => Some(self.peer_receives.pop().ok_or(Refusal::NotReady)?),
            op::IBV_WR_RDMA_WRITE | op::IBV_WR_RDMA_READ => None,
            _ => return Err(Refusal::Opcode),
        };
        // SAFETY: all three opcodes use this field of the union.
        let remote = unsafe { wr.wr.rdma.remote_addr };
        // SAFETY: `sg_list` has `num_sge` items, as the caller guarantees.
        let sges = unsafe { items(wr.sg_list, wr.num_sge) };
        let mut len = 0;
        for sge in sges {
            let local = std::ptr::with_exposed_provenance_mut::<u8>(sge.addr as usize);
            let remote = std::ptr::with_exposed_provenance_mut::<u8>((remote + u64::from(len)) as usize);
            let (from, to) =
                if wr.opcode == op::IBV_WR_RDMA_READ { (remote, local) } else { (local, remote) };
            // SAFETY: valid memory of this process, as the caller guarantees.
            unsafe { std::ptr::copy(from, to, sge.length as usize) };
            len += sge.length;
        }
        if let Some(wr_id) = receive {
            // SAFETY: both fields of the union are 32-bit integers.
            let imm_data = unsafe { wr.imm_data_invalidated_rkey_union.imm_data };
            let arrival = sys::ibv_wc {
                wr_id,
                opcode: sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM,
                byte_len: len,
                imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t { imm_data },
                qp_num: self.peer_qpn,
                src_qp: self.qpn,
                wc_flags: sys::ibv_wc_flags::IBV_WC_WITH_IMM.0,
                ..SUCCESS
            };
            if !self.peer_completions.push(arrival) {
                return Err(Refusal::Full);
            }
        }
        if self.sig_all || wr.send_flags & SIGNALED != 0 {
            let done =
                sys::ibv_wc { wr_id: wr.wr_id, opcode: wc_opcode(wr.opcode), qp_num: self.qpn, ..SUCCESS };
            if !self.completions.push(done) {
                return Err(Refusal::Full);
            }
        }
        Ok(())
    }
}

/// Why a work request is refused.
#[derive(Clone, Copy)]
enum Refusal {
    Opcode,
    NotReady,
    Full,
}

/// A successful completion without any values.
const SUCCESS: sys::ibv_wc = sys::ibv_wc {
    wr_id: 0,
    status: sys::ibv_wc_status::IBV_WC_SUCCESS,
    opcode: 0,
    vendor_err: 0,
    byte_len: 0,
    imm_data_invalidated_rkey_union: sys::imm_data_invalidated_rkey_union_t { imm_data: 0 },
    qp_num: 0,
    src_qp: 0,
    wc_flags: 0,
    pkey_index: 0,
    slid: 0,
    sl: 0,
    dlid_path_bits: 0,
};

/// # Safety
/// `list` has `n` items if `n` is above 0.
unsafe fn items<'a>(list: *const sys::ibv_sge, n: c_int) -> &'a [sys::ibv_sge] {
    match usize::try_from(n) {
        // SAFETY: guaranteed by the caller.
        Ok(n) if n > 0 => unsafe { std::slice::from_raw_parts(list, n) },
        _ => &[],
    }
}

/// Moves all connected queue pairs to the null data path. See [`crate::complete_at_once`].
pub(crate) fn join_all() -> Result<(), Error> {
    let unavailable = |Errno(errno)| Error(format!("the process cannot join the fabric: errno {errno}"));
    let process = process::get().map_err(unavailable)?;
    let mut pairs = Vec::new();
    for qp in process.qps.all().into_iter().filter(|qp| qp.null.get().is_none()) {
        if qp.shared(process).map_or(0, |shared| shared.state.load(Acquire)) != RTS {
            continue;
        }
        let (connection, is_empty) = {
            let sq = qp.lock_sq();
            (sq.connection, sq.head == sq.tail)
        };
        let to = reach::find(process, &qp, &connection).ok();
        let own = to.filter(|to| Arc::ptr_eq(&to.peer, &process.own));
        let Some(peer) = own.and_then(|to| process.qps.with(to.index, Arc::clone)) else {
            return Err(Error(format!(
                "QP {:#x} is connected to QP {:#x}, which is not of this process",
                qp.qpn, connection.dest_qpn
            )));
        };
        if !is_empty {
            return Err(Error(format!("QP {:#x} has work requests that are not executed yet", qp.qpn)));
        }
        pairs.push((qp, peer));
    }
    OWNER.store(this_thread(), Relaxed);
    for (qp, peer) in pairs {
        let null = NullQp {
            qpn: qp.qpn,
            sig_all: qp.sig_all,
            completions: completions(process, &qp.send_cq),
            receives: receives(process, &qp),
            peer_qpn: peer.qpn,
            peer_completions: completions(process, &peer.recv_cq),
            peer_receives: receives(process, &peer),
        };
        completions(process, &qp.recv_cq);
        // Fails only if the QP has joined already, which was checked.
        let _ = qp.null.set(null);
    }
    Ok(())
}

/// Returns the ring of a CQ. At first it holds the completions that are not polled yet.
fn completions(process: &Process, cq: &Cq) -> Arc<Ring<sys::ibv_wc>> {
    let new = || {
        let ring = Ring::new(process.own.cq(cq.index).map_or(0, |shared| shared.depth.load(Relaxed)));
        let unpolled = |completion: Completion| {
            free_place(process, &completion);
            ring.push(to_wc(&completion));
        };
        if let Ok(queue) = cq.ring(process) {
            queue.poll(usize::MAX, unpolled);
        }
        Arc::new(ring)
    };
    Arc::clone(cq.null.get_or_init(new))
}

/// Returns the ring of the queue from which a QP receives. At first it holds the posted receives.
fn receives(process: &Process, qp: &Qp) -> Arc<Ring<u64>> {
    let new = |queue: Option<&RecvQueue>| {
        let ring = Ring::new(queue.map_or(0, |queue| queue.depth.load(Relaxed)));
        if let Some(posted) = queue.and_then(|queue| Receives::new(&process.own, queue)) {
            posted.take_all(|wr_id| {
                ring.push(wr_id);
            });
        }
        Arc::new(ring)
    };
    match &qp.srq {
        Some(srq) => {
            Arc::clone(srq.null.get_or_init(|| new(process.own.srq(srq.index).map(|shared| &shared.rq))))
        }
        None => Arc::clone(qp.null_receives.get_or_init(|| new(qp.shared(process).ok().map(|s| &s.rq)))),
    }
}
