//! When a message is through: the rate and latency of the two links it takes.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::clock;
use crate::shm::fabric::Fabric;
use crate::shm::layout::DeviceShared;

/// Nanoseconds that `bytes` take at `rate` bytes per second; 0 where the rate is 0, unlimited.
fn duration(bytes: u64, rate: u64) -> u64 {
    if rate == 0 {
        return 0;
    }
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX / 4)
}

/// Takes a link's direction for `busy` from `from` on; gives when that begins.
fn occupy(free: &AtomicU64, total: &AtomicU64, from: u64, busy: u64) -> u64 {
    total.fetch_add(busy, Relaxed);
    let next = |free: u64| Some(free.max(from).saturating_add(busy));
    free.fetch_update(AcqRel, Acquire, next).map_or(from, |free| free.max(from))
}

/// The time at which a message of `bytes` from one device is at the other: 0 (at once) where neither has a
/// rate or a latency. The receiving link begins when the sending one does, if it is free (cut-through).
pub(crate) fn arrival(fabric: &Fabric, from: &DeviceShared, to: &DeviceShared, bytes: u64) -> u64 {
    let (out_rate, in_rate) = (from.rate.load(Relaxed), to.rate.load(Relaxed));
    let latency = from.latency_ns.load(Relaxed).max(to.latency_ns.load(Relaxed));
    if out_rate == 0 && in_rate == 0 && latency == 0 {
        return 0;
    }
    let now = clock::now();
    let links = (fabric.link(from.link.load(Relaxed)), fabric.link(to.link.load(Relaxed)));
    let (Some(tx), Some(rx)) = links else { return now };
    let (sending, receiving) = (duration(bytes, out_rate), duration(bytes, in_rate));
    let begin = if out_rate == 0 { now } else { occupy(&tx.tx_free, &tx.tx_busy, now, sending) };
    let end = if in_rate == 0 {
        begin
    } else {
        occupy(&rx.rx_free, &rx.rx_busy, begin, receiving).saturating_add(receiving)
    };
    begin.saturating_add(sending).max(end).saturating_add(latency)
}
