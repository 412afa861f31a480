//! This process as a member of its fabric: its segment, its objects, and the peers it has mapped.
//!
//! [`get`] returns the one `Process`. It is global because verbs are process-wide C functions: most
//! of them receive no handle from which a context could be found, and the service thread has none
//! at all.

pub(crate) mod calls;
pub(crate) mod counters;
pub(crate) mod flap;
pub(crate) mod hw_counters;
pub(crate) mod port;
pub(crate) mod report;
pub(crate) mod service;
mod table;

use std::collections::HashMap;
use std::sync::atomic::Ordering::{Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

use crate::abi::border::Errno;
use crate::api::cq::Cq;
use crate::api::device;
use crate::api::mr::Keys;
use crate::api::qp::Qp;
use crate::api::srq::Srq;
use crate::config::order::{self, Order};
use crate::limits::{MAX_CQ, MAX_QP, MAX_SRQ};
use crate::log::fault;
use crate::process::service::Service;
use crate::shm::dir::{self, Locked};
use crate::shm::fabric::{self, Fabric, Place};
use crate::shm::gids;
use crate::shm::heap::{self, Heap};
use crate::shm::layout::{DeviceShared, PIECE_AREA, PIECE_BYTES, PIECE_SLOTS, PIECES};
use crate::shm::peer::Peer;

use crate::wire::landing::{self, OnTheBus};
use crate::wire::late::OnTheirWay;
use table::Table;

/// See the module.
pub(crate) struct Process {
    pub(crate) fabric: Fabric,
    pub(crate) own: Arc<Peer>,
    pub(crate) qps: Table<Qp>,
    pub(crate) cqs: Table<Cq>,
    pub(crate) srqs: Table<Srq>,
    pub(crate) keys: Keys,
    pub(crate) service: Service,
    /// QPs whose first work request waits for a retry, a credit or a fence.
    pub(crate) waiting: AtomicUsize,
    /// QPs that are executing a large work request in pieces.
    pub(crate) moving: AtomicUsize,
    /// Polls since then, for the service thread to see whether the program polls.
    pub(crate) polls: AtomicU64,
    pub(crate) pds: AtomicUsize,
    pub(crate) late: OnTheirWay,
    pub(crate) landing: OnTheBus,
    pub(crate) hw_files: hw_counters::Files,
    heap: Mutex<Heap>,
    peers: Mutex<HashMap<(u32, u64), Weak<Peer>>>,
}

static PROCESS: OnceLock<Result<Process, Errno>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// Returns the process, which joins the fabric at the first call. Returns EIO in a child that was
/// forked after that: the objects belong to its parent.
pub(crate) fn get() -> Result<&'static Process, Errno> {
    if FORKED.load(Relaxed) {
        static LOGGED: AtomicBool = AtomicBool::new(false);
        if !LOGGED.swap(true, Relaxed) {
            fault!(
                "a forked child uses devices that its parent opened; open the devices after the fork instead"
            );
        }
        return Err(Errno(libc::EIO));
    }
    PROCESS.get_or_init(Process::join).as_ref().map_err(|e| *e)
}

/// Returns the process if it has joined its fabric.
pub(crate) fn joined() -> Option<&'static Process> {
    PROCESS.get()?.as_ref().ok()
}

extern "C" fn forked() {
    FORKED.store(true, Relaxed);
}

extern "C" fn remove_from_fabric() {
    // A child inherits this handler, but must not remove the segment of its parent.
    let Some(Ok(process)) = PROCESS.get() else { return };
    if FORKED.load(Relaxed) || process.own.pid.unsigned_abs() != std::process::id() {
        return;
    }
    landing::land_all(process);
    if let Ok(Some(dir)) = Locked::existing(&process.fabric.path) {
        process.fabric.remove(process.own.process);
        process.fabric.remove_if_unused(&dir);
    }
}

impl Process {
    fn join() -> Result<Self, Errno> {
        let name = dir::fabric_name()?;
        fabric::sweep_others(&name);
        let dir = Locked::new(&name)?;
        let fabric = Fabric::open(&dir)?;
        let nonce = fabric::nonce()?;
        let slot = fabric.join(nonce)?;
        let own = Peer::create(&fabric.path, slot, nonce).inspect_err(|_| fabric.remove(slot))?;
        drop(dir);
        publish_devices(&fabric, &own)?;
        // SAFETY: the handlers take no arguments and use only statics.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(remove_from_fabric);
        }
        crate::wire::copy::allow_peers();
        let this = Self {
            fabric,
            qps: Table::new(MAX_QP),
            cqs: Table::new(MAX_CQ),
            srqs: Table::new(MAX_SRQ),
            keys: Keys::new(nonce),
            service: Service::new(&own)?,
            waiting: AtomicUsize::new(0),
            moving: AtomicUsize::new(0),
            polls: AtomicU64::new(0),
            pds: AtomicUsize::new(0),
            late: OnTheirWay::default(),
            landing: OnTheBus::default(),
            hw_files: hw_counters::Files::default(),
            own: Arc::new(own),
            heap: Mutex::new(Heap::new()),
            peers: Mutex::default(),
        };
        hw_counters::publish(&this);
        Ok(this)
    }

    /// Returns the mapped process of `place`; ESRCH if it has ended.
    pub(crate) fn peer(&self, place: Place) -> Result<Arc<Peer>, Errno> {
        if (place.process, place.nonce) == (self.own.process, self.own.nonce) {
            return Ok(Arc::clone(&self.own));
        }
        let mut peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(peer) = peers.get(&(place.process, place.nonce)).and_then(Weak::upgrade) {
            return Ok(peer);
        }
        peers.retain(|_, peer| peer.strong_count() > 0);
        let peer = Arc::new(Peer::map(&self.fabric.path, place.process, place.nonce)?);
        self.service.watch(&peer)?;
        peers.insert((place.process, place.nonce), Arc::downgrade(&peer));
        Ok(peer)
    }

    /// Returns all processes of the fabric. One that has ended meanwhile is not among them.
    pub(crate) fn all_peers(&self) -> Vec<Arc<Peer>> {
        let place = |(process, nonce)| Place { process, nonce, index: 0 };
        self.fabric.processes().filter_map(|member| self.peer(place(member)).ok()).collect()
    }

    /// Returns the peers that are currently mapped.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.values().filter_map(Weak::upgrade).collect()
    }

    /// Returns the index of the link of the first port of a device, which identifies the adapter.
    pub(crate) fn adapter(&self, port: &device::Device) -> u32 {
        self.own.header().devices.get(port.adapter().index).map_or(0, |first| first.link.load(Relaxed))
    }

    /// Allocates space in the segment of this process.
    pub(crate) fn alloc(&self, len: usize) -> Result<usize, Errno> {
        let file = self.own.file().ok_or(Errno(libc::EIO))?;
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).alloc(file, len)
    }

    /// Frees space that `alloc` returned.
    pub(crate) fn free(&self, offset: usize, len: usize) {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).free(offset, len);
    }

    /// Allocates memory for entry `index` of the table at offset `table`.
    pub(crate) fn back(&self, table: usize, index: u32, size: usize) -> Result<(), Errno> {
        let file = self.own.file().ok_or(Errno(libc::EIO))?;
        heap::back(file, table + index as usize * size, size)
    }
}

fn publish_devices(fabric: &Fabric, own: &Peer) -> Result<(), Errno> {
    let header = own.header();
    for (device, shared) in device::all().iter().zip(&header.devices) {
        let DeviceShared { lid, gid_count, link, wire, mtu, rate, latency_ns, gids, .. } = shared;
        lid.store(u32::from(device.lid), Relaxed);
        shared.lmc.store(device.spec.lmc.into(), Relaxed);
        shared.grh_required.store(device.spec.grh_required.into(), Relaxed);
        shared.loopback.store(device.spec.loopback.into(), Relaxed);
        shared.quirks.store(device.profile.quirks as u32, Relaxed);
        let order = order::of(&device.spec);
        shared.order.store(order as u32, Relaxed);
        // The same numbers in every run.
        shared.order_random.store(device.guid, Relaxed);
        if order != Order::Strict {
            let file = own.file().ok_or(Errno(libc::EIO))?;
            heap::back(file, PIECE_SLOTS, PIECE_AREA - PIECE_SLOTS + PIECES * PIECE_BYTES)?;
        }
        shared.adapter.store(u32::try_from(device.adapter().index).unwrap_or(0), Relaxed);
        wire.store(device.spec.wire, Relaxed);
        mtu.store(device.spec.mtu.min(device.spec.path_mtu.unwrap_or(device.spec.mtu)), Relaxed);
        rate.store(device.spec.rate.unwrap_or(0), Relaxed);
        latency_ns.store(device.spec.latency_ns, Relaxed);
        shared.cqe_delay_ns.store(device.spec.cqe_delay_ns, Relaxed);
        link.store(fabric.link_of(device_key(device), &label(device))?, Relaxed);
        for (gid, slot) in device.gids.iter().zip(gids) {
            gids::write(slot, Some(*gid));
        }
        gid_count.store(u32::try_from(device.gids.len()).unwrap_or(0), Release);
    }
    header.device_count.store(u32::try_from(device::all().len()).unwrap_or(0), Release);
    Ok(())
}

/// Returns the name by which `softverbs-ctl` distinguishes devices: with the first address or LID.
fn label(device: &device::Device) -> String {
    match device.spec.addrs.first() {
        Some((addr, _)) => format!("{}@{addr}", device.spec.name),
        None => format!("{}@{}", device.spec.name, device.lid),
    }
}

/// Returns what identifies a device in the fabric: its first GID, derived from name and first
/// address.
pub(crate) fn device_key(device: &device::Device) -> [u64; 2] {
    device.gids.first().map_or([0, device.guid], |gid| gids::halves(gid.raw))
}
