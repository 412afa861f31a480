//! What tests may look at, the modelled times, the objects that exist and how memory is registrations_made, and what they may take away.

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

/// The clocks of a device's link, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LinkTimes {
    /// For how long the sending direction was busy, in all: bytes divided by rate.
    pub tx_busy: u64,
    /// The same for the receiving direction.
    pub rx_busy: u64,
    /// CLOCK_MONOTONIC time at which the sending direction is free.
    pub tx_free: u64,
    /// The same for the receiving direction.
    pub rx_free: u64,
}

/// The link of the device with this name, over all processes of the fabric; `None` if there is no such device.
/// A direction without a rate is never busy.
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

/// The access bits (`enum ibv_access_flags`, optional ones included) of each registration of this process that work requests find at
/// `addr`.
pub fn mr_access_at(addr: usize) -> Vec<u32> {
    let mut found = Vec::new();
    each_at(addr, |mr| found.push(mr.access.load(Relaxed)));
    found
}

/// Makes the keys of the registrations that work requests find at `addr` good for nothing, as the kernel does when GPU memory is freed
/// that is still registered. They are to be deregistered as ever.
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

/// Registrations that this process has made so far, those that are deregistered included.
pub fn registrations_made() -> u64 {
    process::get().map_or(0, |process| process.keys.made())
}

/// The times (CLOCK_MONOTONIC nanoseconds; 0 for at once) at which the completions in a CQ become visible, in the
/// order in which they will be polled.
///
/// # Safety
/// `cq` is null or a living CQ of this process.
pub unsafe fn completion_times(cq: *mut sys::ibv_cq) -> Vec<u64> {
    // SAFETY: the caller's promise.
    let cq = unsafe { Cq::from_c(cq.cast()) };
    let (Ok(cq), Ok(process)) = (cq, process::get()) else { return Vec::new() };
    Ring::new(&process.own, cq.index).map_or_else(Vec::new, |ring| ring.completion_times())
}

/// Objects that this process has made and not destroyed, over all devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Objects {
    /// Queue pairs.
    pub qps: usize,
    /// Completion queues.
    pub cqs: usize,
    /// Shared receive queues.
    pub srqs: usize,
    /// Registrations of memory.
    pub mrs: usize,
}

/// `None` where this process has no place in a fabric.
pub fn objects() -> Option<Objects> {
    let p = process::get().ok()?;
    Some(Objects { qps: p.qps.used(), cqs: p.cqs.used(), srqs: p.srqs.used(), mrs: p.keys.used() })
}

/// What a program has set of a queue pair with `ibv_modify_qp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpAttributes {
    /// Name of its device.
    pub device: &'static str,
    /// Its number.
    pub qpn: u32,
    /// `enum ibv_qp_state`
    pub state: u32,
    /// Number of the peer's queue pair.
    pub dest_qpn: u32,
    /// Place in the port's P_Key table.
    pub pkey_index: u16,
    /// `ah_attr.sl`
    pub service_level: u8,
    /// `ah_attr.grh.traffic_class`
    pub traffic_class: u8,
    /// Exponent of the acknowledge timeout.
    pub timeout: u8,
    /// Retries of what is not acknowledged.
    pub retry_cnt: u8,
    /// Retries where the receiver is not ready; 7 is without end.
    pub rnr_retry: u8,
    /// Options of enhanced connection establishment that hold; `None` where none were set.
    pub ece: Option<u32>,
}

/// Of each queue pair that this process has made and not destroyed.
pub fn qp_attributes() -> Vec<QpAttributes> {
    let Ok(process) = process::get() else { return Vec::new() };
    let one = |qp: Arc<Qp>| {
        let attr = qp.attr.lock().unwrap_or_else(PoisonError::into_inner);
        QpAttributes {
            device: &qp.context.device.spec.name,
            qpn: qp.qpn,
            state: qp.shared(process).map_or(0, |shared| shared.state.load(Acquire)),
            dest_qpn: attr.dest_qp_num,
            pkey_index: attr.pkey_index,
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

/// Returns how often this process called `ibv_fork_init`: before its first `ibv_get_device_list`, and
/// after it.
pub fn fork_init_calls() -> (u32, u32) {
    sysfs::fork_init_calls()
}
