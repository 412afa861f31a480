//! The counters of an adapter's driver in sysfs (`ports/1/hw_counters`), which show that packets are
//! lost before a queue pair gives up. They count in the fabric, for all processes of a device, and
//! with `counters=on` they are files.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, PoisonError};

use crate::api::device::{self, Device};
use crate::api::qp::Qp;
use crate::clock;
use crate::log::fault;
use crate::process::{Process, port};
use crate::shm::layout::LinkSlot;

/// A counter, as its index in `LinkSlot::hw_counters`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Counter {
    AdaptiveRetransmissions,
    AckTimeouts,
    PacketSequenceErrors,
    ReceiverNotReady,
}

/// The counters of a device, which all processes of the fabric that have the device share.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HwCounters {
    /// Retransmissions before the timeout of the queue pair: the first some milliseconds after a
    /// packet got no answer.
    pub roce_adp_retrans: u64,
    /// Expired timeouts of queue pairs.
    pub local_ack_timeout_err: u64,
    /// NAKs for a gap in the packets.
    pub packet_seq_err: u64,
    /// NAKs because no receive was posted.
    pub rnr_nak_retry_err: u64,
}

/// Returns the counters of a link.
pub(crate) fn of(link: &LinkSlot) -> HwCounters {
    let [a, b, c, d] = values(link);
    HwCounters { roce_adp_retrans: a, local_ack_timeout_err: b, packet_seq_err: c, rnr_nak_retry_err: d }
}

fn values(link: &LinkSlot) -> [u64; 4] {
    std::array::from_fn(|i| link.hw_counters[i].load(Relaxed))
}

/// Counts an event of a queue pair's device.
pub(crate) fn count(process: &Process, qp: &Qp, counter: Counter) {
    let Some((link, _)) = port::link(qp.port()) else { return };
    link.hw_counters[counter as usize].fetch_add(1, Relaxed);
    if qp.context.device.spec.hw_counters {
        process.service.wake_at(clock::now());
    }
}

/// What the files of each device show; `None` before they exist.
#[derive(Default)]
pub(crate) struct Files(Mutex<Vec<Option<[u64; 4]>>>);

/// Updates the files of devices with `counters=on`, for the service thread and at the start.
pub(crate) fn publish(process: &Process) {
    let mut shown = process.hw_files.0.lock().unwrap_or_else(PoisonError::into_inner);
    shown.resize(device::all().len(), None);
    let devices = device::all().iter().zip(&process.own.header().devices).zip(shown.iter_mut());
    for ((device, shared), shown) in devices.filter(|((device, _), _)| device.spec.hw_counters) {
        let Some(link) = process.fabric.link(shared.link.load(Relaxed)) else { continue };
        if *shown == Some(values(link)) {
            continue;
        }
        // Another process must not write older numbers after ours.
        let _guard = process.fabric.lock();
        let now = values(link);
        if let Err(e) = write(device, now) {
            fault!("device {:?}: counters=on: {}: {e}", device.spec.name, device.ibdev_path());
        }
        *shown = Some(now);
    }
}

/// Writes the files in place: a reader may keep them open, as it may in sysfs.
fn write(device: &Device, values: [u64; 4]) -> io::Result<()> {
    let folder = format!("{}/ports/{}/hw_counters", device.adapter().ibdev_path(), device.number);
    let folder = Path::new(&folder);
    fs::create_dir_all(folder)?;
    for (name, value) in device.profile.counters.iter().zip(values) {
        let Some(name) = name else { continue };
        let text = format!("{value}\n");
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(folder.join(name))?;
        file.write_all_at(text.as_bytes(), 0)?;
        // Shorter only if the folder has files of an earlier fabric.
        file.set_len(text.len() as u64)?;
    }
    Ok(())
}
