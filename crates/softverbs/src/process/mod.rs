//! What this process is in its fabric: its segment, its objects, the peers it has mapped.

pub(crate) mod counters;
pub(crate) mod injected;
pub(crate) mod port;
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
use crate::limits::{MAX_CQ, MAX_QP, MAX_SRQ};
use crate::log::fault;
use crate::process::service::Service;
use crate::shm::dir::{self, Locked};
use crate::shm::fabric::{self, Fabric, Place};
use crate::shm::gids;
use crate::shm::heap::{self, Heap};
use crate::shm::layout::DeviceShared;
use crate::shm::peer::Peer;

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
    /// QPs whose head work request waits for something.
    pub(crate) waiting: AtomicUsize,
    /// QPs at work on a large work request.
    pub(crate) moving: AtomicUsize,
    /// Polls while there were such.
    pub(crate) polls: AtomicU64,
    pub(crate) pds: AtomicUsize,
    heap: Mutex<Heap>,
    peers: Mutex<HashMap<(u32, u64), Weak<Peer>>>,
}

static PROCESS: OnceLock<Result<Process, Errno>> = OnceLock::new();
static FORKED: AtomicBool = AtomicBool::new(false);

/// Joins the fabric at the first call. EIO in a child forked after that: what it has belongs to its parent.
pub(crate) fn get() -> Result<&'static Process, Errno> {
    if FORKED.load(Relaxed) {
        static TOLD: AtomicBool = AtomicBool::new(false);
        if !TOLD.swap(true, Relaxed) {
            fault!("a forked child uses devices that its parent opened; open them after the fork instead");
        }
        return Err(Errno(libc::EIO));
    }
    PROCESS.get_or_init(Process::join).as_ref().map_err(|e| *e)
}

extern "C" fn forked() {
    FORKED.store(true, Relaxed);
}

extern "C" fn leave() {
    // A child inherits this handler, and the parent's segment is not the child's to remove.
    let Some(Ok(process)) = PROCESS.get() else { return };
    if FORKED.load(Relaxed) || process.own.pid.unsigned_abs() != std::process::id() {
        return;
    }
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
        // SAFETY: the handlers are functions without arguments, and touch only statics.
        unsafe {
            libc::pthread_atfork(None, None, Some(forked));
            libc::atexit(leave);
        }
        crate::wire::copy::let_peers_in();
        Ok(Self {
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
            own: Arc::new(own),
            heap: Mutex::new(Heap::new()),
            peers: Mutex::default(),
        })
    }

    /// The process in which `place` is, mapped; ESRCH if it has ended.
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

    /// The peers that are mapped now.
    pub(crate) fn peers(&self) -> Vec<Arc<Peer>> {
        let peers = self.peers.lock().unwrap_or_else(PoisonError::into_inner);
        peers.values().filter_map(Weak::upgrade).collect()
    }

    /// Space in our segment.
    pub(crate) fn alloc(&self, len: usize) -> Result<usize, Errno> {
        let file = self.own.file().ok_or(Errno(libc::EIO))?;
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).alloc(file, len)
    }

    /// Gives back what `alloc` gave.
    pub(crate) fn free(&self, offset: usize, len: usize) {
        self.heap.lock().unwrap_or_else(PoisonError::into_inner).free(offset, len);
    }

    /// Makes sure that entry `index` of the table at `table` has memory.
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
        wire.store(device.spec.wire, Relaxed);
        mtu.store(device.spec.mtu.min(device.spec.path_mtu.unwrap_or(device.spec.mtu)), Relaxed);
        rate.store(device.spec.rate.unwrap_or(0), Relaxed);
        latency_ns.store(device.spec.latency_ns, Relaxed);
        link.store(fabric.link_of(device_key(device))?, Relaxed);
        for (gid, slot) in device.gids.iter().zip(gids) {
            gids::write(slot, Some(*gid));
        }
        gid_count.store(u32::try_from(device.gids.len()).unwrap_or(0), Release);
    }
    header.device_count.store(u32::try_from(device::all().len()).unwrap_or(0), Release);
    Ok(())
}

/// What a device is known by in the fabric: its first GID, which comes from name and first address.
fn device_key(device: &device::Device) -> [u64; 2] {
    device.gids.first().map_or([0, device.guid], |gid| gids::halves(gid.raw))
}
