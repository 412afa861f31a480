//! Shared receive queues.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU32, AtomicUsize};
use std::sync::{Arc, OnceLock};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::{Acks, Handle};
use crate::api::device::{Context, Device};
use crate::api::events;
use crate::api::null::Ring;
use crate::api::pd::Pd;
use crate::api::send::reads_first_sge;
use crate::config::Capability;
use crate::config::call::Call;
use crate::log::fault;
use crate::process::calls;
use crate::process::counters::{self, Live};
use crate::process::{self, Process};
use crate::shm::layout::{SRQS, SrqShared};
use crate::shm::recv_queue::{self, NotQueued, Receives};

const MAX_WR: c_int = 1;
const LIMIT: c_int = 2;

/// `struct ibv_srq`
#[repr(C)]
pub(crate) struct Srq {
    ibv: UnsafeCell<sys::ibv_srq>,
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) index: u32,
    pub(crate) id: u32,
    depth: u32,
    max_sge: u32,
    offset: usize,
    /// QPs that receive from it.
    pub(crate) qps: AtomicUsize,
    pub(crate) acks: Acks,
    /// Replaces the queue on the null data path.
    pub(crate) null: OnceLock<Arc<Ring<u64>>>,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Srq {
    type C = sys::ibv_srq;
}
// SAFETY: the C struct is written before it is shared; the rest is atomics and locks.
unsafe impl Sync for Srq {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Srq {}

impl Srq {
    fn create(pd: Arc<Pd>, init: &mut sys::ibv_srq_init_attr) -> Result<Arc<Self>, Errno> {
        let sys::ibv_srq_attr { max_wr: depth, max_sge, .. } = init.attr;
        let Device { spec, profile, .. } = pd.context.device;
        let most = spec.max_srq_wr - profile.srq_wr_short;
        let sges = u32::from(profile.srq_needs_sge)..=profile.max_srq_sge;
        if !(1..=most).contains(&depth) || !sges.contains(&max_sge) {
            fault!(
                "ibv_create_srq: max_wr {depth} (expected 1 to {most}), max_sge {max_sge} (expected {sges:?})"
            );
            return Err(Errno(libc::EINVAL));
        }
        let (depth, max_sge) = ((profile.grants_srq_wr)(depth), max_sge.max(1));
        pd.context.check()?;
        if spec.without.iter().any(|lacks| matches!(lacks, Capability::Srq | Capability::SrqCalls)) {
            fault!("ibv_create_srq: {} does not support shared receive queues", spec.name);
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let process = process::get()?;
        let index = process.srqs.reserve()?;
        let made = process
            .back(SRQS, index, size_of::<SrqShared>())
            .and_then(|()| process.alloc(recv_queue::bytes(depth, max_sge)))
            .and_then(|offset| {
                init_entry(process, index, offset, depth, max_sge, pd.id).map(|id| (offset, id))
            });
        let (offset, id) = made.inspect_err(|_| process.srqs.remove(index))?;
        (init.attr.max_wr, init.attr.max_sge) = (depth, max_sge);
        // SAFETY: integers, pointers and C locks may all be zero.
        let mut ibv: sys::ibv_srq = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = pd.context.as_ptr();
        ibv.srq_context = init.srq_context;
        ibv.pd = pd.as_c();
        ibv.handle = index;
        pd.users.fetch_add(1, AcqRel);
        let srq = Arc::new(Self {
            ibv: UnsafeCell::new(ibv),
            context: Arc::clone(&pd.context),
            pd,
            index,
            id,
            depth,
            max_sge,
            offset,
            qps: AtomicUsize::new(0),
            acks: Acks::default(),
            null: OnceLock::new(),
        });
        process.srqs.put(index, Arc::clone(&srq));
        Ok(srq)
    }

    fn shared<'a>(&self, process: &'a Process) -> Result<&'a SrqShared, Errno> {
        process.own.srq(self.index).ok_or(Errno(libc::EIO))
    }

    /// Makes the SRQ fail: nobody takes a receive from it any more.
    pub(crate) fn fail(&self, process: &Process) {
        if let Ok(shared) = self.shared(process) {
            shared.failed.store(1, Release);
            events::raise(&process.own, events::SRQ_ERR, self.index, self.id);
        }
    }

    fn modify(&self, process: &Process, attr: &sys::ibv_srq_attr, mask: c_int) -> Result<(), Errno> {
        if mask & !(MAX_WR | LIMIT) != 0 {
            fault!("ibv_modify_srq: unknown attributes in mask {mask:#x}");
            return Err(Errno(libc::EINVAL));
        }
        if mask & MAX_WR != 0 {
            fault!("ibv_modify_srq: an SRQ cannot be resized");
            return Err(Errno(libc::EOPNOTSUPP));
        }
        if mask & LIMIT == 0 {
            return Ok(());
        }
        if attr.srq_limit > self.depth {
            fault!("ibv_modify_srq: limit {} is above the depth {}", attr.srq_limit, self.depth);
            return Err(Errno(libc::EINVAL));
        }
        let shared = self.shared(process)?;
        let reached = {
            let receives = Receives::new(&process.own, &shared.rq).ok_or(Errno(libc::EIO))?;
            let _guard = receives.lock();
            let waiting = shared.rq.tail.load(Relaxed).wrapping_sub(shared.rq.head.load(Relaxed));
            // As in hardware: if the limit is already reached, the event fires immediately.
            let reached = waiting < attr.srq_limit;
            shared.rq.limit.store(if reached { 0 } else { attr.srq_limit }, Relaxed);
            reached
        };
        if reached {
            events::raise(&process.own, events::SRQ_LIMIT_REACHED, self.index, self.id);
        }
        Ok(())
    }

    fn destroy(&self, process: &Process) -> Result<(), Errno> {
        let qps = self.qps.load(Acquire);
        if qps > 0 {
            fault!("ibv_destroy_srq: {qps} QPs still receive from it");
            return Err(Errno(libc::EBUSY));
        }
        process.srqs.hide(self.index);
        events::finish(&self.context, self.as_c().cast(), &self.acks);
        self.shared(process)?.id.store(0, Release);
        process.free(self.offset, recv_queue::bytes(self.depth, self.max_sge));
        process.srqs.remove(self.index);
        self.pd.users.fetch_sub(1, AcqRel);
        Ok(())
    }
}

fn init_entry(
    process: &Process,
    index: u32,
    offset: usize,
    depth: u32,
    max_sge: u32,
    pd: u32,
) -> Result<u32, Errno> {
    let shared = process.own.srq(index).ok_or(Errno(libc::EIO))?;
    let uses = shared.locks_made.load(Relaxed);
    if uses == 0 {
        // SAFETY: the entry was never used.
        unsafe { shared.rq.lock.init() };
    }
    let id = uses.wrapping_add(1).max(1);
    shared.locks_made.store(id, Relaxed);
    shared.pd.store(pd, Relaxed);
    shared.failed.store(0, Relaxed);
    Receives::reset(&shared.rq, offset, depth, max_sge);
    shared.id.store(id, Release);
    Ok(id)
}

/// `ibv_post_srq_recv(3)`, through the context's operations.
///
/// # Safety
/// `srq` is alive, `wr` a list of work requests, `bad` writable.
pub(crate) unsafe extern "C" fn post_srq_recv(
    srq: *mut sys::ibv_srq,
    wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
) -> c_int {
    // SAFETY: alive, as the caller guarantees.
    if let Some(null) = unsafe { Srq::from_c(srq) }.ok().and_then(|srq| srq.null.get()) {
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees.
        return unsafe { null.post(wr, bad) };
    }
    border::code("ibv_post_srq_recv", || {
        // SAFETY: writable, as the caller guarantees.
        let process = process::get().inspect_err(|_| unsafe { bad.write(wr) })?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Srq::from_c(srq) }?;
        let shared = this.shared(process)?;
        let queue = Receives::new(&process.own, &shared.rq).ok_or(Errno(libc::EIO))?;
        let on = On { call: "ibv_post_srq_recv", process, device: this.context.device, attempts: None };
        // SAFETY: a list of work requests and a writable pointer, as the caller guarantees.
        let (n, result) = unsafe { post_list(&queue, wr, bad, &on) };
        if let Some(device) = counters::of_device(this.context.device.index) {
            Live::add(&device.receives, n);
        }
        result
    })
}

/// What posts receives.
pub(crate) struct On<'a> {
    pub(crate) call: &'static str,
    pub(crate) process: &'a Process,
    pub(crate) device: &'static Device,
    /// Counts the posts to a QP's own queue.
    pub(crate) attempts: Option<&'a AtomicU32>,
}

impl On<'_> {
    /// Posts one receive, unless the driver refuses it.
    ///
    /// # Safety
    /// `wr` is a work request with its scatter list.
    unsafe fn post(&self, queue: &Receives<'_>, wr: &sys::ibv_recv_wr) -> Result<(), (Errno, String)> {
        let profile = self.device.profile;
        let attempt = self.attempts.map_or(0, |attempts| attempts.fetch_add(1, Relaxed));
        if profile.puts_receives_off > 0
            && attempt % profile.puts_receives_off == profile.puts_receives_off - 1
        {
            return Err((Errno(libc::EAGAIN), String::from("the adapter still has the entry (quirks)")));
        }
        let injected = |errno: Errno| (errno, format!("errno {}, as injected", errno.0));
        calls::begin(self.device, Call::PostRecv).map_err(injected)?;
        let mut wr = *wr;
        if wr.num_sge == 0 {
            if profile.receives_need_sge {
                return Err((Errno(libc::EINVAL), String::from("num_sge is 0 (quirks)")));
            }
            let first = reads_first_sge(self.process, profile, wr.sg_list);
            wr.num_sge = c_int::from(first.map_err(|(errno, why)| (Errno(errno), why))?);
        }
        // SAFETY: guaranteed by the caller, and an SGE in place of none was just read.
        unsafe { queue.post(&wr) }.map_err(|why| match why {
            NotQueued::Full(depth) => (
                Errno(libc::ENOMEM),
                format!("the queue is full: {depth} receives are posted and their completions not polled"),
            ),
            NotQueued::Sges(most) => (
                Errno(profile.too_many_recv_sges),
                format!("num_sge is {}, expected at most {most}", wr.num_sge),
            ),
            NotQueued::Broken => (Errno(libc::EIO), String::from("the queue is damaged")),
        })
    }
}

/// Posts a list of receives. Returns the number of posted ones. On failure `bad` is the first that
/// was not posted.
///
/// # Safety
/// `wr` is a list of work requests, `bad` writable.
pub(crate) unsafe fn post_list(
    queue: &Receives<'_>,
    mut wr: *mut sys::ibv_recv_wr,
    bad: *mut *mut sys::ibv_recv_wr,
    on: &On<'_>,
) -> (u64, Result<(), Errno>) {
    let mut n = 0;
    // SAFETY: null or a work request with its scatter list, as the caller guarantees.
    while let Some(request) = unsafe { wr.as_ref() } {
        // SAFETY: as above.
        if let Err((errno, why)) = unsafe { on.post(queue, request) } {
            fault!("{}: {why}", on.call);
            // SAFETY: writable, as the caller guarantees.
            unsafe { bad.write(wr) };
            return (n, Err(on.device.profile.post_errno(errno)));
        }
        n += 1;
        wr = request.next;
    }
    (n, Ok(()))
}

/// `ibv_create_srq(3)`
///
/// # Safety
/// `pd` is alive, `init` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_srq(
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_srq_init_attr,
) -> *mut sys::ibv_srq {
    border::pointer("ibv_create_srq", || {
        // SAFETY: alive, as the caller guarantees.
        let pd = unsafe { Pd::arc_from_c(pd) }?;
        calls::begin(pd.context.device, Call::CreateSrq)?;
        // SAFETY: null or writable, as the caller guarantees.
        let init = unsafe { init.as_mut() }.ok_or(Errno(libc::EINVAL))?;
        Srq::create(pd, init).map(Srq::into_c)
    })
}

/// `ibv_modify_srq(3)`: sets the limit; resizing is not supported.
///
/// # Safety
/// `srq` is alive, `attr` readable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_modify_srq(
    srq: *mut sys::ibv_srq,
    attr: *mut sys::ibv_srq_attr,
    mask: c_int,
) -> c_int {
    border::code("ibv_modify_srq", || {
        let process = process::get()?;
        // SAFETY: alive and readable, as the caller guarantees.
        let (this, attr) = unsafe { (Srq::from_c(srq)?, attr.as_ref().ok_or(Errno(libc::EINVAL))?) };
        this.modify(process, attr, mask)
    })
}

/// `ibv_query_srq(3)`
///
/// # Safety
/// `srq` is alive, `attr` writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_srq(srq: *mut sys::ibv_srq, attr: *mut sys::ibv_srq_attr) -> c_int {
    border::code("ibv_query_srq", || {
        let process = process::get()?;
        // SAFETY: alive and writable, as the caller guarantees.
        let (this, attr) = unsafe { (Srq::from_c(srq)?, attr.as_mut().ok_or(Errno(libc::EINVAL))?) };
        let srq_limit = this.shared(process)?.rq.limit.load(Relaxed);
        *attr = sys::ibv_srq_attr { max_wr: this.depth, max_sge: this.max_sge, srq_limit };
        Ok(())
    })
}

/// `ibv_destroy_srq(3)`: EBUSY while QPs use it; waits until its events are acknowledged.
///
/// # Safety
/// `srq` is alive and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_srq(srq: *mut sys::ibv_srq) -> c_int {
    border::code("ibv_destroy_srq", || {
        let process = process::get()?;
        // SAFETY: alive, as the caller guarantees.
        let this = unsafe { Srq::from_c(srq) }?;
        calls::begin(this.context.device, Call::DestroySrq)?;
        this.destroy(process)?;
        // SAFETY: the caller does not use the pointer again.
        unsafe { Srq::release(srq) };
        Ok(())
    })
}
