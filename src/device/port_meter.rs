//! What the connections of a process have measured on a port, and the operator's scale for it.

use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};

use super::port_busy::PortBusy;

/// The scale that changes nothing, and the denominator of scales and weights.
pub(crate) const SCALE_ONE: u16 = 1024;

/// The meter of one port. All its connections write it without a lock: of two measurements at the
/// same moment one may be lost.
#[derive(Debug)]
pub struct PortMeter {
    goodput: AtomicU64,
    measured_at: AtomicU64,
    weight: AtomicU16,
    scale: AtomicU16,
    ignored: AtomicBool,
    busy: PortBusy,
}

impl Default for PortMeter {
    fn default() -> Self {
        Self {
            goodput: AtomicU64::new(0),
            measured_at: AtomicU64::new(0),
            weight: AtomicU16::new(0),
            scale: AtomicU16::new(SCALE_ONE),
            ignored: AtomicBool::new(false),
            busy: PortBusy::default(),
        }
    }
}

impl PortMeter {
    /// Returns the goodput of large parts of messages on this port in bytes per second, as one
    /// connection has it; 0 if nothing was measured. A moving average over all connections.
    pub fn goodput(&self) -> u64 {
        self.goodput.load(Ordering::Relaxed)
    }

    /// Returns when the goodput was measured, in ns of the clock that measures.
    pub fn measured_at(&self) -> u64 {
        self.measured_at.load(Ordering::Relaxed)
    }

    /// Stores the goodput.
    pub fn set_goodput(&self, rate: u64, at: u64) {
        self.goodput.store(rate, Ordering::Relaxed);
        self.measured_at.store(at, Ordering::Relaxed);
    }

    /// Returns the port's share of the large messages of the connection that last sent one, in
    /// parts per 1024. 0 if no connection measures it, or if the port is out of use.
    pub fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Stores the weight.
    pub fn set_weight(&self, weight: u16) {
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Returns what the port carries for all its connections together.
    pub fn busy(&self) -> &PortBusy {
        &self.busy
    }

    /// Forgets the measurement: the port is out of use, and may be another when it returns.
    pub fn forget(&self) {
        self.set_goodput(0, 0);
        self.set_weight(0);
    }

    /// Returns the operator's scale: the part of its usual share that the port gets, in parts per
    /// 1024. 0 if the port is drained.
    pub fn scale(&self) -> u16 {
        self.scale.load(Ordering::Relaxed)
    }

    /// Stores the scale, at most [`SCALE_ONE`]. Returns whether it has changed.
    pub fn set_scale(&self, scale: u16) -> bool {
        let scale = scale.min(SCALE_ONE);
        match scale {
            0 => self.set_weight(0),
            _ => self.ignored.store(false, Ordering::Relaxed),
        }
        self.scale.swap(scale, Ordering::Relaxed) != scale
    }

    /// Returns `true` the first time that a connection uses the port although it is drained.
    pub fn is_ignored_first(&self) -> bool {
        !self.ignored.swap(true, Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_drain_is_ignored_for_the_first_time_once() {
        let meter = PortMeter::default();
        assert!(meter.set_scale(0) && !meter.set_scale(0));
        assert!(meter.is_ignored_first() && !meter.is_ignored_first());
        assert!(meter.set_scale(u16::MAX) && meter.scale() == SCALE_ONE);
        assert!(meter.set_scale(0) && meter.is_ignored_first());
    }
}
