//! Completion queues.

use std::cell::UnsafeCell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::{Arc, OnceLock};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::{Acks, Handle};
use crate::api::channel::Channel;
use crate::api::device::Context;
use crate::api::events;
use crate::api::null;
use crate::api::poll;
use crate::clock;
use crate::config::call::Call;
use crate::limits::{COMP_VECTORS, MAX_CQE};
use crate::log::fault;
use crate::process::calls;
use crate::process::{self, Process};
use crate::shm::cq_ring::{Completion, Pushed, Ring};
use crate::shm::layout::{CQS, CqEntry, CqShared};
use crate::shm::peer::Peer;

/// `struct ibv_cq`
#[repr(C)]
pub(crate) struct Cq {
    ibv: UnsafeCell<sys::ibv_cq_ex>,
    pub(crate) context: Arc<Context>,
    channel: Option<Arc<Channel>>,
    pub(crate) index: u32,
    pub(crate) id: u32,
    offset: usize,
    bytes: usize,
    /// QPs that use it, counted once per direction.
    pub(crate) qps: AtomicUsize,
    pub(crate) acks: Acks,
    pub(crate) async_acks: Acks,
    /// Replaces the queue on the null data path.
    pub(crate) null: OnceLock<Arc<null::Ring<sys::ibv_wc>>>,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Cq {
    type C = sys::ibv_cq_ex;
}
// SAFETY: the C struct is written before it is shared; the rest is atomics and locks.
unsafe impl Sync for Cq {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Cq {}

impl Cq {
    fn create(
        context: Arc<Context>,
        cqe: c_int,
        cq_context: *mut c_void,
        channel: Option<Arc<Channel>>,
        vector: c_int,
    ) -> Result<Arc<Self>, Errno> {
        let depth = u32::try_from(cqe).ok().filter(|n| (1..=MAX_CQE).contains(n));
        let Some(depth) = depth else {
            fault!("ibv_create_cq: {cqe} entries requested, expected 1 to {MAX_CQE}");
            return Err(Errno(libc::EINVAL));
        };
        if !(0..COMP_VECTORS).contains(&vector) {
            fault!("ibv_create_cq: completion vector {vector}, expected 0 to {}", COMP_VECTORS - 1);
            return Err(Errno(libc::EINVAL));
        }
        let process = process::get()?;
        let index = process.cqs.reserve()?;
        let bytes = depth as usize * size_of::<CqEntry>();
        let made = process
            .back(CQS, index, size_of::<CqShared>())
            .and_then(|()| process.alloc(bytes))
            .and_then(|offset| init(process, index, offset, depth).map(|id| (offset, id)));
        let (offset, id) = made.inspect_err(|_| process.cqs.remove(index))?;
        // SAFETY: `Option` function pointers, integers, pointers and C locks may all be zero.
        let mut ibv: sys::ibv_cq_ex = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = context.as_ptr();
        ibv.channel = channel.as_ref().map_or(std::ptr::null_mut(), |c| c.as_c());
        ibv.cq_context = cq_context;
        ibv.handle = index;
        ibv.cqe = cqe;
        if let Some(channel) = &channel {
            channel.cqs.fetch_add(1, AcqRel);
        }
        context.children.fetch_add(1, AcqRel);
        let cq = Arc::new(Self {
            ibv: UnsafeCell::new(ibv),
            context,
            channel,
            index,
            id,
            offset,
            bytes,
            qps: AtomicUsize::new(0),
            acks: Acks::default(),
            async_acks: Acks::default(),
            null: OnceLock::new(),
        });
        process.cqs.put(index, Arc::clone(&cq));
        Ok(cq)
    }

    /// Returns the `cq_context` of the creation.
    pub(crate) fn cq_context(&self) -> *mut c_void {
        // SAFETY: written before the CQ was shared, never after.
        unsafe { (*self.as_c()).cq_context }
    }

    pub(crate) fn ring<'a>(&self, process: &'a Process) -> Result<Ring<'a>, Errno> {
        Ring::new(&process.own, self.index).ok_or(Errno(libc::EIO))
    }

    /// Puts due events into the channel. The caller holds the lock of the table: after `destroy`
    /// has removed the CQ from the table, the ring belongs to another CQ and there must be no more
    /// events of this one.
    pub(crate) fn deliver(self: &Arc<Self>, process: &Process) {
        let Ok(ring) = self.ring(process) else { return };
        for _ in 0..ring.take_events() {
            if let Some(channel) = &self.channel {
                channel.notify(self);
            }
        }
    }

    /// Announces entries that have become visible. The lock of the table is held, as for `deliver`.
    fn announce(self: &Arc<Self>, process: &Process, now: u64) {
        if self.channel.is_none() {
            return;
        }
        let Ok(ring) = self.ring(process) else { return };
        if let (_, Some(later)) = ring.announce(now) {
            process.service.wake_at(later);
        }
        self.deliver(process);
    }

    /// Makes the CQ fail, and moves its QPs to ERR.
    pub(crate) fn fail(&self, process: &Process) {
        let Ok(ring) = self.ring(process) else { return };
        let profile = self.context.device.profile;
        ring.fail(profile.polls_after_failure);
        events::raise(&process.own, events::CQ_ERR, self.index, self.id);
        for qp in process.qps.all() {
            let [sends, receives] = [&qp.send_cq, &qp.recv_cq].map(|cq| std::ptr::eq(Arc::as_ptr(cq), self));
            match (sends, receives) {
                (_, true) => qp.fail(process, None, profile.answers.cq),
                (true, false) => qp.enter_error(process, None),
                (false, false) => {}
            }
        }
    }

    /// Removes the completions of QP `qpn` and frees their queue slots. If the driver keeps them, they
    /// stay and belong to no queue of the QP.
    pub(crate) fn forget(&self, qpn: u32, keeps: bool) {
        let Ok(process) = process::get() else { return };
        match self.ring(process) {
            Ok(ring) if keeps => ring.disown(qpn),
            Ok(ring) => ring.purge(qpn, |completion| poll::free_place(process, &completion)),
            Err(_) => {}
        }
    }

    fn destroy(&self, process: &Process) -> Result<(), Errno> {
        let qps = self.qps.load(Acquire);
        if qps > 0 {
            fault!("ibv_destroy_cq: {qps} queues of QPs still complete to it");
            return Err(Errno(libc::EBUSY));
        }
        process.cqs.hide(self.index);
        if let Some(channel) = &self.channel {
            channel.withdraw(self);
            channel.cqs.fetch_sub(1, AcqRel);
        }
        self.acks.wait();
        events::finish(&self.context, self.as_c().cast(), &self.async_acks);
        if let Some(shared) = process.own.cq(self.index) {
            shared.id.store(0, Release);
        }
        process.free(self.offset, self.bytes);
        process.cqs.remove(self.index);
        self.context.children.fetch_sub(1, AcqRel);
        Ok(())
    }
}

/// Announces entries that have become visible, in all CQs.
pub(crate) fn announce_all(process: &Process) {
    for cq in process.cqs.all() {
        let now = clock::now();
        process.cqs.with(cq.index, |current| current.announce(process, now));
    }
}

/// Initialises entry `index` of the CQ table. Returns the id of the CQ.
fn init(process: &Process, index: u32, offset: usize, depth: u32) -> Result<u32, Errno> {
    let shared = process.own.cq(index).ok_or(Errno(libc::EIO))?;
    let uses = shared.locks_made.load(Relaxed);
    if uses == 0 {
        // SAFETY: the entry was never used.
        unsafe { shared.lock.init() };
    }
    let id = uses.wrapping_add(1).max(1);
    shared.locks_made.store(id, Relaxed);
    shared.offset.store(offset as u64, Relaxed);
    shared.depth.store(depth, Relaxed);
    shared.id.store(id, Release);
    Ring::new(&process.own, index).ok_or(Errno(libc::EIO))?.reset();
    Ok(id)
}

/// Adds a completion to CQ `index` of `peer` and notifies the owner. Returns `false` if the CQ has
/// failed.
pub(crate) fn complete(process: &Process, peer: &Peer, index: u32, completion: &Completion) -> bool {
    let Some(ring) = Ring::new(peer, index) else { return false };
    match ring.push(completion, clock::now) {
        Pushed::Quiet => true,
        Pushed::Event if peer.own => {
            process.cqs.with(index, |cq| cq.deliver(process));
            true
        }
        Pushed::Later(time) if peer.own => {
            process.service.wake_at(time);
            true
        }
        Pushed::Event | Pushed::Later(_) => {
            peer.kick();
            true
        }
        Pushed::Overrun => {
            let (depth, id) =
                peer.cq(index).map_or((0, 0), |cq| (cq.depth.load(Relaxed), cq.id.load(Relaxed)));
            fault!(
                "CQ overrun in process {}: a completion of QP {:#x} arrived while all {depth} entries were unpolled; \
                 poll more often or create a larger CQ",
                peer.pid,
                completion.qpn
            );
            events::raise(peer, events::CQ_ERR, index, id);
            false
        }
        Pushed::Lost => false,
    }
}

/// `ibv_create_cq(3)`
///
/// # Safety
/// `context` is open; `channel` is null or alive.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_cq(
    context: *mut sys::ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut sys::ibv_comp_channel,
    comp_vector: c_int,
) -> *mut sys::ibv_cq {
    border::pointer("ibv_create_cq", || {
        // SAFETY: open, as the caller guarantees.
        let context = unsafe { Context::arc_from_ptr(context) }?;
        calls::begin(context.device, Call::CreateCq)?;
        context.check()?;
        let channel = match channel.is_null() {
            true => None,
            // SAFETY: alive, as the caller guarantees.
            false => Some(unsafe { Channel::arc_from_c(channel) }?),
        };
        Cq::create(context, cqe, cq_context, channel, comp_vector).map(|cq| Cq::into_c(cq).cast())
    })
}

/// `ibv_destroy_cq(3)`: EBUSY while QPs use it; waits until its events are acknowledged.
///
/// # Safety
/// `cq` is alive and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int {
    border::code("ibv_destroy_cq", || {
        let process = process::get()?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Cq::from_c(cq.cast()) }?;
        calls::begin(this.context.device, Call::DestroyCq)?;
        this.destroy(process)?;
        // SAFETY: the caller does not use the pointer again.
        unsafe { Cq::release(cq.cast()) };
        Ok(())
    })
}
