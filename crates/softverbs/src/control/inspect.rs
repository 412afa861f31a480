//! Inspection: what the program under test has done to its objects, and when links are busy.

use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::{Arc, PoisonError};

use rdma_sys as sys;

use crate::abi::handle::Handle;
use crate::api::cq::Cq;
use crate::api::device;
use crate::api::qp::Qp;
use crate::api::sysfs;
use crate::process;
use crate::shm::cq_ring::Ring;
use crate::shm::layout::MrShared;
use crate::wire::landing;

/// The clocks of a device's link, in nanoseconds. A direction without a rate is never busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct LinkTimes {
    /// Total time for which the sending direction was busy: bytes divided by rate.
    pub tx_busy: u64,
    /// Total time for which the receiving direction was busy.
    pub rx_busy: u64,
    /// CLOCK_MONOTONIC time from which the sending direction is free.
    pub tx_free: u64,
    /// CLOCK_MONOTONIC time from which the receiving direction is free.
    pub rx_free: u64,
}

/// Returns the clocks of the link of device `device`, which all processes of the fabric share.
/// Returns `None` if there is no such device, or the process cannot join the fabric.
pub fn link_times(device: &str) -> Option<LinkTimes> {
    let index = device::all().iter().position(|d| d.spec.name == device)?;
    let process = process::get().ok()?;
    let link = process.fabric.link(process.own.header().devices.get(index)?.link.load(Relaxed))?;
    Some(LinkTimes {
        tx_busy: link.tx_busy.load(Relaxed),
        rx_busy: link.rx_busy.load(Relaxed),
        tx_free: link.tx_free.load(Relaxed),
        rx_free: link.rx_free.load(Relaxed),
    })
}

/// Lands the data of this process's WRITEs that is due (`posted=`). An adapter does so on a busy host,
/// too, and the thread that does it here may have to wait for a processor: call this before memory is
/// compared with what must be there by a time.
pub fn land_due() {
    if let Ok(process) = process::get() {
        landing::serve(process);
    }
}

/// Returns the access flags (`enum ibv_access_flags`, including optional ones) of each memory
/// region of this process that contains `addr`. `addr` is an address as work requests name it: with
/// `ibv_reg_mr_iova` and DMA-BUFs it is the IOVA. The list is empty if no region contains it.
pub fn mr_access_at(addr: usize) -> Vec<u32> {
    let mut found = Vec::new();
    each_at(addr, |mr| found.push(mr.access.load(Relaxed)));
    found
}

/// Invalidates the keys of each memory region of this process that contains `addr` (as for
/// [`mr_access_at`]). The kernel does the same when GPU memory is freed that is still registered.
/// Work requests that use the keys then fail; the regions must still be deregistered.
pub fn revoke_mrs_at(addr: usize) {
    each_at(addr, |mr| mr.key.store(0, Release));
}

fn each_at(addr: usize, f: impl FnMut(&MrShared)) {
    let Ok(process) = process::get() else { return };
    let all = 0..process.own.header().registrations.load(Acquire);
    let alive = all.filter_map(|index| process.own.mr(index)).filter(|mr| mr.key.load(Acquire) != 0);
    let has = |mr: &&MrShared| {
        let offset = (addr as u64).checked_sub(mr.iova.load(Relaxed));
        offset.is_some_and(|offset| offset < mr.len.load(Relaxed))
    };
    alive.filter(has).for_each(f);
}

/// Returns the number of memory regions that this process has registered so far, including
/// deregistered ones.
pub fn registrations_made() -> u64 {
    process::get().map_or(0, |process| process.keys.made())
}

/// Returns the times at which the completions in a CQ become visible, in the order in which they
/// will be polled: CLOCK_MONOTONIC nanoseconds, or 0 for a completion without delay. Returns an
/// empty list for a null pointer.
///
/// # Safety
/// `cq` is null or a CQ of this process that is not destroyed during the call.
pub unsafe fn completion_times(cq: *mut sys::ibv_cq) -> Vec<u64> {
    // SAFETY: guaranteed by the caller.
    let cq = unsafe { Cq::from_c(cq.cast()) };
    let (Ok(cq), Ok(process)) = (cq, process::get()) else { return Vec::new() };
    Ring::new(&process.own, cq.index).map_or_else(Vec::new, |ring| ring.completion_times())
}

/// Numbers of objects that this process has created and not destroyed, on all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Objects {
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Memory regions.
    pub mrs: usize,
}

/// Counts the objects of this process. Returns `None` if the process cannot join the fabric.
pub fn objects() -> Option<Objects> {
    let p = process::get().ok()?;
    Some(Objects { qps: p.qps.used(), cqs: p.cqs.used(), srqs: p.srqs.used(), mrs: p.keys.used() })
}

/// Counts the contexts that this process has opened and not closed.
pub fn open_contexts() -> usize {
    device::open_contexts().len()
}

/// The attributes of a QP, as set with `ibv_modify_qp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpAttributes {
    /// Name of the device.
    pub device: &'static str,
    /// QP number.
    pub qpn: u32,
    /// State (`enum ibv_qp_state`).
    pub state: u32,
    /// QP number of the peer.
    pub dest_qpn: u32,
    /// Whether it is connected to itself. Queue pairs of other devices may have its number.
    pub loopback: bool,
    /// Index in the P_Key table of the port.
    pub pkey_index: u16,
    /// What the peer may do (`qp_access_flags`).
    pub access: u32,
    /// Destination LID (`ah_attr.dlid`).
    pub dlid: u16,
    /// Destination GID (`ah_attr.grh.dgid`), if packets carry a GRH (`ah_attr.is_global`).
    pub dgid: Option<[u8; 16]>,
    /// Index of the source GID (`ah_attr.grh.sgid_index`).
    pub sgid_index: u8,
    /// Service level (`ah_attr.sl`).
    pub service_level: u8,
    /// Traffic class (`ah_attr.grh.traffic_class`).
    pub traffic_class: u8,
    /// Exponent of the ACK timeout: 4.096 us * 2^`timeout`; 0 means infinite.
    pub timeout: u8,
    /// Retries after an ACK timeout.
    pub retry_cnt: u8,
    /// Retries after "receiver not ready"; 7 means infinite.
    pub rnr_retry: u8,
    /// ECE options in effect; `None` if the program has set none.
    pub ece: Option<u32>,
}

/// Returns the attributes of each QP that this process has created and not destroyed.
pub fn qp_attributes() -> Vec<QpAttributes> {
    let Ok(process) = process::get() else { return Vec::new() };
    let one = |qp: Arc<Qp>| {
        let attr = qp.attr.lock().unwrap_or_else(PoisonError::into_inner);
        QpAttributes {
            device: &qp.port().spec.name,
            qpn: qp.qpn,
            state: qp.shared(process).map_or(0, |shared| shared.state.load(Acquire)),
            dest_qpn: attr.dest_qp_num,
            loopback: qp.is_loopback(&attr),
            pkey_index: attr.pkey_index,
            access: attr.qp_access_flags,
            dlid: attr.ah_attr.dlid,
            // SAFETY: any bytes are a valid GID.
            dgid: (attr.ah_attr.is_global != 0).then(|| unsafe { attr.ah_attr.grh.dgid.raw }),
            sgid_index: attr.ah_attr.grh.sgid_index,
            service_level: attr.ah_attr.sl,
            traffic_class: attr.ah_attr.grh.traffic_class,
            timeout: attr.timeout,
            retry_cnt: attr.retry_cnt,
            rnr_retry: attr.rnr_retry,
            ece: qp.agreed_ece(),
        }
    };
    process.qps.all().into_iter().map(one).collect()
}

/// Returns how often this process called `ibv_fork_init`: before its first `ibv_get_device_list`,
/// and after it.
pub fn fork_init_calls() -> (u32, u32) {
    sysfs::fork_init_calls()
}
