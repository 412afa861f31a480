//! Data that lands after its WRITE has completed. What a NIC writes to a GPU is on its way on PCIe
//! for a while, and only a READ through the same NIC proves that it has arrived (`posted=`).

use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crate::clock;
use crate::log::fault;
use crate::process::Process;
use crate::shm::layout::{DeviceShared, MrShared};
use crate::shm::peer::Peer;
use crate::wire::copy::{self, Direction, Pieces, Stopped};
use crate::wire::due::Due;

/// So long after its time data cannot land any more: its sender was killed. In nanoseconds.
const LOST: u64 = 2_000_000_000;
/// Shortest time between two looks whether all has landed, in nanoseconds.
const LOOK: u64 = 100_000;

/// Locked while data lands.
static LANDS: Mutex<()> = Mutex::new(());

/// Data on its way into a memory region, which exists until it has landed.
pub(crate) struct Landing {
    data: Vec<u8>,
    peer: Arc<Peer>,
    /// Index of the device that writes it.
    device: usize,
    /// Index of the memory region, and the address in the memory of the peer.
    mr: u32,
    addr: u64,
}

/// The data on its way from this process, with the times of landing.
pub(crate) type OnTheBus = Due<Landing>;

/// The place of a WRITE: a checked key, and the device of the responding QP.
pub(super) struct Target<'a> {
    pub(super) peer: &'a Arc<Peer>,
    pub(super) device: usize,
    pub(super) rkey: u32,
}

impl Target<'_> {
    fn mr(&self) -> Option<&MrShared> {
        self.peer.mr(self.rkey >> 16)
    }

    fn device(&self) -> Option<&DeviceShared> {
        self.peer.header().devices.get(self.device)
    }

    /// Returns whether data in the memory region lands late.
    pub(super) fn is_late(&self) -> bool {
        self.mr().is_some_and(|mr| mr.posted_ns.load(Relaxed) > 0)
    }

    /// Takes a copy of `len` bytes, which land at `addr` later than those of other WRITEs, which do so
    /// now. That the link is slow makes it no later: the QP may be destroyed before the last byte has
    /// passed, and nothing may land then. The responding QP is locked: its memory region cannot end
    /// before the data is counted.
    pub(super) fn post(
        &self,
        process: &Process,
        from: &Pieces,
        (addr, len): (u64, u64),
    ) -> Result<(), Stopped> {
        let (Some(mr), Some(device)) = (self.mr(), self.device()) else { return Err(Stopped::Ended) };
        let mut data = vec![0_u8; len as usize];
        let here = Pieces::one(data.as_mut_ptr().expose_provenance() as u64, len);
        copy::run(&process.own, Direction::Write, from, &here)?;
        let due = clock::now().saturating_add(mr.posted_ns.load(Relaxed));
        device.landed_by.fetch_max(due, AcqRel);
        device.landing.fetch_add(1, AcqRel);
        mr.landing.fetch_add(1, AcqRel);
        let peer = Arc::clone(self.peer);
        let landing = Landing { data, peer, device: self.device, mr: self.rkey >> 16, addr };
        process.landing.push(process, due, landing);
        Ok(())
    }

    /// Returns how long a READ of the memory region must wait for data, if so.
    pub(super) fn wait(&self) -> Option<u64> {
        let device = self.device().filter(|_| self.is_late())?;
        let wait = left(&device.landing, &device.landed_by);
        if wait.is_none() {
            // What was lost does not delay the next READ, too.
            let lost = device.landing.load(Acquire);
            let old = clock::now().saturating_sub(device.landed_by.load(Acquire)) > LOST;
            if lost > 0 && old {
                device.landing.compare_exchange(lost, 0, AcqRel, Relaxed).ok();
            }
        }
        wait
    }
}

/// Returns the time until data may have landed; `None` if all has, or if the rest is lost.
fn left(landing: &AtomicU32, landed_by: &AtomicU64) -> Option<u64> {
    let (now, by) = (clock::now(), landed_by.load(Acquire));
    let waits = landing.load(Acquire) > 0 && now.saturating_sub(by) <= LOST;
    waits.then(|| by.saturating_sub(now).max(LOOK))
}

/// Waits until all data of a memory region has landed. Its key is not valid any more.
pub(crate) fn finish(mr: &MrShared, device: &DeviceShared) {
    while let Some(wait) = left(&mr.landing, &device.landed_by) {
        std::thread::sleep(Duration::from_nanos(wait));
    }
}

impl Landing {
    fn land(&self) {
        if self.peer.is_dead() {
            return;
        }
        let len = self.data.len() as u64;
        let data = Pieces::one(self.data.as_ptr().expose_provenance() as u64, len);
        let to = Pieces::one(self.addr, len);
        // It was accepted, and its sender has its completion: a failure can only be logged.
        if let Err(Stopped::Fault(errno)) = copy::run(&self.peer, Direction::Write, &data, &to) {
            fault!("{len} bytes do not land at {:#x}: errno {errno}", self.addr);
        }
        let mr = self.peer.mr(self.mr).map(|mr| &mr.landing);
        let device = self.peer.header().devices.get(self.device).map(|device| &device.landing);
        for count in [mr, device].into_iter().flatten() {
            // Who took the data for lost has set it to 0.
            count.fetch_update(AcqRel, Acquire, |count| count.checked_sub(1)).ok();
        }
    }
}

/// Lands what is due by `now`, in the order of its times. When it returns it is in memory.
fn land(process: &Process, now: u64) {
    let _guard = LANDS.lock().unwrap_or_else(PoisonError::into_inner);
    let mut due = process.landing.take(process, now);
    due.sort_by_key(|(due, _)| *due);
    due.iter().for_each(|(_, landing)| landing.land());
}

/// Lands what is due.
pub(crate) fn serve(process: &Process) {
    land(process, clock::now());
}

/// Lands everything at the end of the process: it has left the NIC, which lives on.
pub(crate) fn land_all(process: &Process) {
    land(process, u64::MAX);
}
