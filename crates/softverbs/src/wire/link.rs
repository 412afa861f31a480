//! The time model: rate and latency of the two links of a message.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed};

use crate::shm::fabric::Fabric;
use crate::shm::layout::{DeviceShared, LinkSlot};
use crate::shm::link_state::{DOWN, LIFE, REMOVED, SILENT_IN, SILENT_OUT};

/// Returns the duration of `bytes` at `rate` bytes per second in nanoseconds; 0 for rate 0
/// (unlimited).
fn duration(bytes: u64, rate: u64) -> u64 {
    if rate == 0 {
        return 0;
    }
    let ns = u128::from(bytes) * 1_000_000_000 / u128::from(rate);
    u64::try_from(ns).unwrap_or(u64::MAX / 4)
}

/// Reserves one direction of a link for `busy` nanoseconds, not before `from`. Returns the start
/// time.
fn occupy(free: &AtomicU64, total: &AtomicU64, from: u64, busy: u64) -> u64 {
    total.fetch_add(busy, Relaxed);
    let next = |free: u64| Some(free.max(from).saturating_add(busy));
    free.fetch_update(AcqRel, Acquire, next).map_or(from, |free| free.max(from))
}

/// A device, and its life when the QP on it was made.
pub(crate) type Port<'a> = (&'a DeviceShared, u32);

/// Returns whether the answers of `to` reach `from`, or why the requests do not arrive.
pub(crate) fn path(fabric: &Fabric, from: Port<'_>, to: Port<'_>) -> Result<bool, &'static str> {
    let faults = |(device, life): Port<'_>| {
        fabric.link(device.link.load(Relaxed)).map_or(0, |link| link.state.load(Acquire) ^ life)
    };
    let (here, there) = (faults(from), faults(to));
    match here | there {
        0 => Ok(true),
        any if any & REMOVED != 0 || any >= LIFE => Err("one of the two devices was removed"),
        any if any & DOWN != 0 => Err("the link of one of the two devices is down"),
        _ if here & SILENT_OUT != 0 || there & SILENT_IN != 0 => Err("a device swallows the packets"),
        _ => Ok(here & SILENT_IN == 0 && there & SILENT_OUT == 0),
    }
}

/// Returns whether the device of a QP is removed, or was removed since the QP was made.
pub(crate) fn is_removed(fabric: &Fabric, (device, life): Port<'_>) -> bool {
    let link = fabric.link(device.link.load(Relaxed));
    link.is_some_and(|link| link.flags() & REMOVED != 0 || link.life() != life)
}

/// Returns whether the link of a device is down.
pub(crate) fn is_down(fabric: &Fabric, device: &DeviceShared) -> bool {
    fabric.link(device.link.load(Relaxed)).is_some_and(|link| link.flags() & DOWN != 0)
}

/// Returns how often the faults of a device were ended.
pub(crate) fn heals(fabric: &Fabric, device: &DeviceShared) -> u32 {
    fabric.link(device.link.load(Relaxed)).map_or(0, |link| link.heals.load(Acquire))
}

/// Returns the present rate of a device's link in bytes per second, 0 for unlimited.
fn rate(link: &LinkSlot, device: &DeviceShared) -> u64 {
    match link.rate.load(Relaxed) {
        0 => device.rate.load(Relaxed),
        rate => rate,
    }
}

/// The times of a message on the links.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Passage {
    /// Time at which the first byte is sent.
    pub(crate) begin: u64,
    /// Time at which the last byte arrives; 0 (immediately) if neither link has a rate or latency.
    pub(crate) ready_at: u64,
}

impl Passage {
    /// Creates a passage without delay.
    pub(crate) const fn at_once(begin: u64) -> Self {
        Self { begin, ready_at: 0 }
    }

    /// Returns the time at which the byte at `offset` of `len` is sent.
    pub(crate) fn sent_at(&self, offset: u64, len: u64) -> u64 {
        let whole = u128::from(self.ready_at.saturating_sub(self.begin));
        let part = whole * u128::from(offset) / u128::from(len.max(1));
        self.begin.saturating_add(u64::try_from(part).unwrap_or(u64::MAX))
    }
}

/// Reserves both links for a message of `bytes` that can start at `since`. If it is free, the
/// receiving link starts together with the sending link (cut-through). `since` may be in the past:
/// a NIC would have started then.
pub(crate) fn pass(
    fabric: &Fabric,
    from: &DeviceShared,
    to: &DeviceShared,
    bytes: u64,
    since: u64,
) -> Passage {
    let latency = from.latency_ns.load(Relaxed).max(to.latency_ns.load(Relaxed));
    let links = (fabric.link(from.link.load(Relaxed)), fabric.link(to.link.load(Relaxed)));
    let (Some(tx), Some(rx)) = links else { return Passage::at_once(since) };
    let (out_rate, in_rate) = (rate(tx, from), rate(rx, to));
    if out_rate == 0 && in_rate == 0 && latency == 0 {
        return Passage::at_once(since);
    }
    let (sending, receiving) = (duration(bytes, out_rate), duration(bytes, in_rate));
    let begin = if out_rate == 0 { since } else { occupy(&tx.tx_free, &tx.tx_busy, since, sending) };
    let end = if in_rate == 0 {
        begin
    } else {
        occupy(&rx.rx_free, &rx.rx_busy, begin, receiving).saturating_add(receiving)
    };
    Passage { begin, ready_at: begin.saturating_add(sending).max(end).saturating_add(latency) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_sent_evenly_over_the_passage() {
        let passage = Passage { begin: 1_000, ready_at: 2_000 };
        assert_eq!([0, 1, 5, 10].map(|at| passage.sent_at(at, 10)), [1_000, 1_100, 1_500, 2_000]);
        // Without delay, all bytes can be sent at the start.
        assert_eq!(Passage::at_once(7).sent_at(1 << 40, 1 << 41), 7);
        let long = Passage { begin: u64::MAX / 2, ready_at: u64::MAX };
        assert_eq!(long.sent_at(1 << 30, 1 << 30), u64::MAX);
    }
}
