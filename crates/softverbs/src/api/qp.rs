//! Queue pairs: creation, destruction, query.

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rdma_sys as sys;

use crate::abi::border::{self, Errno};
use crate::abi::handle::{Acks, Handle};
use crate::api::cq::Cq;
use crate::api::device::{self, Context, Device};
use crate::api::events;
use crate::api::null::{self, NullQp, Ring};
use crate::api::pd::Pd;
use crate::api::srq::Srq;
use crate::config::call::Call;
use crate::config::gid;
use crate::limits::MAX_QP_WR;
use crate::log::fault;
use crate::process::calls;
use crate::process::counters::{self, QpLive};
use crate::process::port;
use crate::process::{self, Process};
use crate::shm::layout::{QPS, QpShared};
use crate::shm::recv_queue::{self, Receives};
use crate::wire::bounce;
use crate::wire::late;
use crate::wire::mover;
use crate::wire::placement;
use crate::wire::respond;
use crate::wire::send_queue::SendQueue;

pub(crate) const RESET: u32 = sys::ibv_qp_state::IBV_QPS_RESET;
pub(crate) const INIT: u32 = sys::ibv_qp_state::IBV_QPS_INIT;
pub(crate) const RTR: u32 = sys::ibv_qp_state::IBV_QPS_RTR;
pub(crate) const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
pub(crate) const SQD: u32 = sys::ibv_qp_state::IBV_QPS_SQD;
pub(crate) const ERR: u32 = sys::ibv_qp_state::IBV_QPS_ERR;

/// `struct ibv_qp`
#[repr(C)]
pub(crate) struct Qp {
    ibv: UnsafeCell<sys::ibv_qp>,
    pub(crate) context: Arc<Context>,
    pub(crate) pd: Arc<Pd>,
    pub(crate) send_cq: Arc<Cq>,
    pub(crate) recv_cq: Arc<Cq>,
    pub(crate) srq: Option<Arc<Srq>>,
    pub(crate) index: u32,
    pub(crate) qpn: u32,
    pub(crate) cap: sys::ibv_qp_cap,
    pub(crate) sig_all: bool,
    offset: usize,
    /// The attributes set by `ibv_modify_qp`.
    pub(crate) attr: Mutex<sys::ibv_qp_attr>,
    /// The options set by `ibv_set_ece`.
    pub(crate) ece: Mutex<Option<u32>>,
    pub(crate) sq: Mutex<SendQueue>,
    /// Whether the QP is counted in `Process::waiting`.
    pub(crate) waits: AtomicBool,
    /// When a polling thread may retry. It limits the rate of retries.
    pub(crate) probe_at: AtomicU64,
    /// When the next piece of a large work request is due; `mover::NONE` if there is none. Counted
    /// in `Process::moving`.
    pub(crate) due: AtomicU64,
    pub(crate) acks: Acks,
    /// How often a receive was posted to its own queue, or tried.
    pub(crate) receive_posts: AtomicU32,
    pub(crate) counters: Arc<QpLive>,
    /// Index of its port.
    port: AtomicUsize,
    /// Replaces the data path if the QP is on the null data path.
    pub(crate) null: OnceLock<NullQp>,
    /// Replaces the QP's own receive queue on the null data path.
    pub(crate) null_receives: OnceLock<Arc<Ring<u64>>>,
}

// SAFETY: repr(C) with the C struct first.
unsafe impl Handle for Qp {
    type C = sys::ibv_qp;
}
// SAFETY: only `state` of the C struct changes, under the lock of `sq`; the rest is atomics and
// locks.
unsafe impl Sync for Qp {}
// SAFETY: no part of it is tied to a thread.
unsafe impl Send for Qp {}

/// The objects that `ibv_create_qp` received, as references.
struct Parts {
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    srq: Option<Arc<Srq>>,
}

/// Checks the capabilities that a program asks for.
fn check_cap(cap: &sys::ibv_qp_cap, device: &Device) -> Result<(), String> {
    let Device { spec, profile, .. } = device;
    let most_sends = spec.max_qp_wr.min(MAX_QP_WR / (profile.entries_per_send)(cap));
    let checks = [
        ("max_send_wr", cap.max_send_wr, most_sends),
        ("max_recv_wr", cap.max_recv_wr, spec.max_qp_wr),
        ("max_send_sge", cap.max_send_sge, profile.max_send_sge),
        ("max_recv_sge", cap.max_recv_sge, profile.max_recv_sge),
        ("max_inline_data", cap.max_inline_data, spec.max_inline_data),
    ];
    for (name, requested, max) in checks {
        if requested > max {
            return Err(format!("{name} is {requested}, expected at most {max}"));
        }
    }
    (profile.refuses)(cap).map_or(Ok(()), |why| Err(why.to_owned()))
}

impl Qp {
    fn create(parts: Parts, init: &mut sys::ibv_qp_init_attr) -> Result<Arc<Self>, Errno> {
        if init.qp_type != sys::ibv_qp_type::IBV_QPT_RC {
            fault!("ibv_create_qp: QP type {}, only RC (2) is supported", init.qp_type);
            return Err(Errno(libc::EOPNOTSUPP));
        }
        let cap = &mut init.cap;
        if parts.srq.is_some() {
            (cap.max_recv_wr, cap.max_recv_sge) = (0, 0);
        }
        parts.pd.context.check()?;
        let device = parts.pd.context.device;
        check_cap(cap, device).map_err(|why| {
            fault!("ibv_create_qp: {why}");
            Errno(if device.profile.fails_without_errno { 0 } else { libc::EINVAL })
        })?;
        cap.max_send_sge = cap.max_send_sge.max(1);
        (device.profile.grants)(cap);
        cap.max_inline_data = cap.max_inline_data.min(device.spec.max_inline_data);
        let process = process::get()?;
        process.service.ensure(process)?;
        let index = process.qps.reserve()?;
        let made = process
            .back(QPS, index, size_of::<QpShared>())
            .and_then(|()| process.alloc(recv_queue::bytes(cap.max_recv_wr, cap.max_recv_sge)));
        let offset = made.inspect_err(|_| process.qps.remove(index))?;
        let qpn = process
            .fabric
            .alloc_qpn(process.adapter(device), process.own.process, index, device.profile.lowest_qpn)
            .inspect_err(|_| {
                process.free(offset, recv_queue::bytes(cap.max_recv_wr, cap.max_recv_sge));
                process.qps.remove(index);
            })?;
        init_entry(process, index, offset, qpn, &parts, cap)?;
        let qp = Arc::new(Self::new(parts, init, index, offset, qpn));
        process.qps.put(index, Arc::clone(&qp));
        Ok(qp)
    }

    fn new(parts: Parts, init: &sys::ibv_qp_init_attr, index: u32, offset: usize, qpn: u32) -> Self {
        let Parts { pd, send_cq, recv_cq, srq } = parts;
        // SAFETY: integers, pointers and C locks may all be zero.
        let mut ibv: sys::ibv_qp = unsafe { MaybeUninit::zeroed().assume_init() };
        ibv.context = pd.context.as_ptr();
        ibv.qp_context = init.qp_context;
        ibv.pd = pd.as_c();
        ibv.send_cq = send_cq.as_c().cast();
        ibv.recv_cq = recv_cq.as_c().cast();
        ibv.srq = srq.as_ref().map_or(std::ptr::null_mut(), |srq| srq.as_c());
        ibv.handle = index;
        ibv.qp_num = qpn;
        ibv.state = RESET;
        ibv.qp_type = init.qp_type;
        pd.users.fetch_add(1, AcqRel);
        send_cq.qps.fetch_add(1, AcqRel);
        recv_cq.qps.fetch_add(1, AcqRel);
        if let Some(srq) = &srq {
            srq.qps.fetch_add(1, AcqRel);
        }
        // SAFETY: integers and GIDs may all be zero.
        let attr = unsafe { MaybeUninit::zeroed().assume_init() };
        Self {
            ibv: UnsafeCell::new(ibv),
            context: Arc::clone(&pd.context),
            counters: counters::new_qp(pd.context.device.index, qpn),
            port: AtomicUsize::new(pd.context.device.index),
            pd,
            send_cq,
            recv_cq,
            srq,
            index,
            qpn,
            cap: init.cap,
            sig_all: init.sq_sig_all != 0,
            offset,
            attr: Mutex::new(attr),
            ece: Mutex::new(None),
            sq: Mutex::new(SendQueue::new(&init.cap)),
            waits: AtomicBool::new(false),
            probe_at: AtomicU64::new(0),
            due: AtomicU64::new(mover::NONE),
            acks: Acks::default(),
            receive_posts: AtomicU32::new(0),
            null: OnceLock::new(),
            null_receives: OnceLock::new(),
        }
    }

    /// Returns the part of the QP in shared memory.
    pub(crate) fn shared<'a>(&self, process: &'a Process) -> Result<&'a QpShared, Errno> {
        process.own.qp(self.index).ok_or(Errno(libc::EIO))
    }

    /// Returns the port that the QP is on. Before INIT it is the first one.
    pub(crate) fn port(&self) -> &'static Device {
        &device::all()[self.port.load(Relaxed)]
    }

    /// Sets the port, whose number is valid.
    pub(crate) fn set_port(&self, shared: &QpShared, number: u8) {
        let Ok(to) = self.context.device.port(number.into()) else { return };
        let from = self.port.swap(to.index, Relaxed);
        shared.device.store(u32::try_from(to.index).unwrap_or(0), Relaxed);
        counters::move_qp(&self.counters, from, to.index);
    }

    /// Returns whether these attributes connect the QP to itself. QPs of other adapters may have its
    /// number.
    pub(crate) fn is_loopback(&self, attr: &sys::ibv_qp_attr) -> bool {
        let (to, port) = (&attr.ah_attr, self.port());
        // SAFETY: any bytes are a valid GID.
        let dgid = unsafe { to.grh.dgid.raw };
        attr.dest_qp_num == self.qpn
            && match to.is_global {
                0 => gid::lids(&port.spec).contains(&to.dlid),
                _ => port::gids(port).iter().flatten().any(|own| own.raw == dgid),
            }
    }

    /// Locks the send queue.
    pub(crate) fn lock_sq(&self) -> MutexGuard<'_, SendQueue> {
        self.sq.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sets `qp->state` of the C struct.
    pub(crate) fn show_state(&self, state: u32) {
        // SAFETY: the C struct lives as long as `self`; C only reads it.
        unsafe { (&raw mut (*self.as_c()).state).write(state) };
    }

    /// Waits until no work request that started earlier is being executed, here or by the peer.
    pub(crate) fn wait_idle(&self, process: &Process) {
        drop(self.lock_sq());
        if let Ok(shared) = self.shared(process) {
            drop(bounce::lock(&shared.lock));
        }
    }

    /// Empties all queues, as RESET does. The caller holds both locks.
    pub(crate) fn clear(&self, shared: &QpShared, sq: &mut SendQueue) {
        Receives::reset(&shared.rq, self.offset, self.cap.max_recv_wr, self.cap.max_recv_sge);
        shared.taken.store(0, Relaxed);
        shared.established.store(0, Relaxed);
        shared.owes_nak.store(0, Relaxed);
        sq.clear();
        let keeps = self.context.device.profile.keeps_completions;
        self.send_cq.forget(self.qpn, keeps);
        self.recv_cq.forget(self.qpn, keeps);
        shared.sends_done.store(0, Release);
    }

    /// Makes the QP unreachable and drops its work requests.
    fn disconnect(&self, process: &Process) -> Result<(), Errno> {
        let mut sq = self.lock_sq();
        let shared = self.shared(process)?;
        let _guard = bounce::lock(&shared.lock);
        placement::land_qp(&process.own, self.index);
        shared.state.store(RESET, Release);
        shared.qpn.store(0, Release);
        late::release(process, &mut sq);
        respond::give_back_taken(process, self.index, shared);
        self.clear(shared, &mut sq);
        self.note_waiting(process, false);
        self.note_moving(process, None);
        Ok(())
    }

    fn destroy(&self, process: &Process) -> Result<(), Errno> {
        calls::begin(self.context.device, Call::DestroyQp)?;
        process.qps.hide(self.index);
        self.disconnect(process)?;
        process.fabric.free_qpn(process.adapter(self.context.device), self.qpn);
        events::finish(&self.context, self.as_c().cast(), &self.acks);
        if self.null.get().is_some() {
            null::destroyed(self.qpn);
        }
        process.free(self.offset, recv_queue::bytes(self.cap.max_recv_wr, self.cap.max_recv_sge));
        self.pd.users.fetch_sub(1, AcqRel);
        self.send_cq.qps.fetch_sub(1, AcqRel);
        self.recv_cq.qps.fetch_sub(1, AcqRel);
        if let Some(srq) = &self.srq {
            srq.qps.fetch_sub(1, AcqRel);
        }
        process.qps.remove(self.index);
        Ok(())
    }

    fn query(&self, process: &Process, attr: &mut sys::ibv_qp_attr) -> Result<(), Errno> {
        self.context.check()?;
        {
            let kept = self.attr.lock().unwrap_or_else(PoisonError::into_inner);
            // SAFETY: integers and GIDs only, which may be copied.
            *attr = unsafe { std::ptr::read(&raw const *kept) };
        }
        let state = self.shared(process)?.state.load(Acquire);
        (attr.qp_state, attr.cur_qp_state) = (state, state);
        self.show_state(state);
        attr.path_mig_state = sys::ibv_mig_state::IBV_MIG_MIGRATED;
        attr.cap = self.cap;
        Ok(())
    }

    fn describe(&self, init: &mut sys::ibv_qp_init_attr) {
        // SAFETY: only `state` of the C struct ever changes, and it is not read here.
        unsafe {
            let ibv = self.as_c();
            init.qp_context = (*ibv).qp_context;
            init.send_cq = (*ibv).send_cq;
            init.recv_cq = (*ibv).recv_cq;
            init.srq = (*ibv).srq;
            init.qp_type = (*ibv).qp_type;
        }
        init.cap = self.cap;
        init.sq_sig_all = c_int::from(self.sig_all);
    }
}

/// Disconnects the remaining QPs of a context that is closed.
pub(crate) fn disconnect_all(context: &Context) {
    let Ok(process) = process::get() else { return };
    for qp in process.qps.all() {
        if std::ptr::eq(Arc::as_ptr(&qp.context), context) {
            // Fails only if the entry is not in the table; then the QP is unreachable anyway.
            let _ = qp.disconnect(process);
        }
    }
}

/// Initialises entry `index` of the QP table as a QP in RESET.
fn init_entry(
    process: &Process,
    index: u32,
    offset: usize,
    qpn: u32,
    parts: &Parts,
    cap: &sys::ibv_qp_cap,
) -> Result<(), Errno> {
    let shared = process.own.qp(index).ok_or(Errno(libc::EIO))?;
    if shared.locks_made.swap(1, Relaxed) == 0 {
        // SAFETY: the entry was never used.
        unsafe { shared.lock.init() };
        // SAFETY: as above.
        unsafe { shared.rq.lock.init() };
    }
    let _guard = shared.lock.lock();
    shared.state.store(RESET, Relaxed);
    shared.access.store(0, Relaxed);
    shared.pd.store(parts.pd.id, Relaxed);
    shared.device.store(u32::try_from(parts.pd.context.device.index).unwrap_or(0), Relaxed);
    shared.recv_cq.store(parts.recv_cq.index, Relaxed);
    shared.srq.store(parts.srq.as_ref().map_or(0, |srq| srq.index + 1), Relaxed);
    shared.life.store(parts.pd.context.life, Relaxed);
    shared.taken.store(0, Relaxed);
    shared.established.store(0, Relaxed);
    shared.owes_nak.store(0, Relaxed);
    shared.sends_done.store(0, Relaxed);
    shared.dest_qpn.store(0, Relaxed);
    Receives::reset(&shared.rq, offset, cap.max_recv_wr, cap.max_recv_sge);
    shared.qpn.store(qpn, Release);
    Ok(())
}

/// `ibv_create_qp(3)`: RC only. Writes the actual capabilities to `init.cap`.
///
/// # Safety
/// `pd` and what `init` names are alive; `init` is writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_create_qp(
    pd: *mut sys::ibv_pd,
    init: *mut sys::ibv_qp_init_attr,
) -> *mut sys::ibv_qp {
    border::pointer("ibv_create_qp", || {
        // SAFETY: null or writable, as the caller guarantees.
        let init = unsafe { init.as_mut() }.ok_or(Errno(libc::EINVAL))?;
        // SAFETY: alive, as the caller guarantees.
        let pd = unsafe { Pd::arc_from_c(pd) }?;
        calls::begin(pd.context.device, Call::CreateQp)?;
        // SAFETY: as above.
        let send_cq = unsafe { Cq::arc_from_c(init.send_cq.cast()) }?;
        // SAFETY: as above.
        let recv_cq = unsafe { Cq::arc_from_c(init.recv_cq.cast()) }?;
        let srq = match init.srq.is_null() {
            true => None,
            // SAFETY: as above.
            false => Some(unsafe { Srq::arc_from_c(init.srq) }?),
        };
        let contexts = [&send_cq.context, &recv_cq.context];
        if contexts.iter().any(|context| !Arc::ptr_eq(context, &pd.context)) {
            fault!("ibv_create_qp: the CQs belong to another context than the PD");
            return Err(Errno(libc::EINVAL));
        }
        Qp::create(Parts { pd, send_cq, recv_cq, srq }, init).map(Qp::into_c)
    })
}

/// `ibv_query_qp(3)`: returns all attributes, regardless of the mask.
///
/// # Safety
/// `qp` is alive; `attr` and `init` are writable.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_query_qp(
    qp: *mut sys::ibv_qp,
    attr: *mut sys::ibv_qp_attr,
    _mask: c_int,
    init: *mut sys::ibv_qp_init_attr,
) -> c_int {
    border::code("ibv_query_qp", || {
        let process = process::get()?;
        // SAFETY: alive and writable, as the caller guarantees.
        let (this, attr, init) = unsafe { (Qp::from_c(qp)?, attr.as_mut(), init.as_mut()) };
        this.query(process, attr.ok_or(Errno(libc::EINVAL))?)?;
        this.describe(init.ok_or(Errno(libc::EINVAL))?);
        Ok(())
    })
}

/// `ibv_destroy_qp(3)`: drops unpolled completions of the QP and waits until its events are
/// acknowledged.
///
/// # Safety
/// `qp` is alive and not used again.
#[unsafe(no_mangle)]
unsafe extern "C" fn ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int {
    border::code("ibv_destroy_qp", || {
        let process = process::get()?;
        // SAFETY: alive, as the caller guarantees.
        unsafe { Qp::from_c(qp) }?.destroy(process)?;
        // SAFETY: the caller does not use the pointer again.
        unsafe { Qp::release(qp) };
        Ok(())
    })
}
