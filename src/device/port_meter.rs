//! What is known of the traffic of a port: what its connections have measured and carry, the
//! operator's scale for it, and the adapter's own counters of lost packets.

use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::hw_counters::FACTS;
use nccl_net_mpib_agent_iface::stats::{Carried, PortRecord};
use parking_lot::Mutex;

/// The scale that changes nothing, and the denominator of scales and weights.
pub(crate) const SCALE_ONE: u16 = 1024;

/// The meter of one port. All its connections write it without a lock: of two measurements at the
/// same moment one may be lost.
#[derive(Debug)]
pub(crate) struct PortMeter {
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
    pub(crate) fn goodput(&self) -> u64 {
        self.goodput.load(Ordering::Relaxed)
    }

    /// Returns when the goodput was measured, in ns of the clock that measures.
    pub(crate) fn measured_at(&self) -> u64 {
        self.measured_at.load(Ordering::Relaxed)
    }

    /// Stores the goodput.
    pub(crate) fn set_goodput(&self, rate: u64, at: u64) {
        self.goodput.store(rate, Ordering::Relaxed);
        self.measured_at.store(at, Ordering::Relaxed);
    }

    /// Returns the port's share of the large messages of the connection that last sent one, in
    /// parts per 1024. 0 if no connection measures it, or if the port is out of use.
    pub(crate) fn weight(&self) -> u16 {
        self.weight.load(Ordering::Relaxed)
    }

    /// Stores the weight.
    pub(crate) fn set_weight(&self, weight: u16) {
        self.weight.store(weight, Ordering::Relaxed);
    }

    /// Returns what the port carries for all its connections together.
    pub(crate) fn busy(&self) -> &PortBusy {
        &self.busy
    }

    /// Forgets the measurement: the port is out of use, and may be another when it returns.
    pub(crate) fn forget(&self) {
        self.set_goodput(0, 0);
        self.set_weight(0);
    }

    /// Returns the operator's scale: the part of its usual share that the port gets, in parts per
    /// 1024. 0 if the port is drained.
    pub(crate) fn scale(&self) -> u16 {
        self.scale.load(Ordering::Relaxed)
    }

    /// Stores the scale, at most [`SCALE_ONE`]. Returns whether it has changed.
    pub(crate) fn set_scale(&self, scale: u16) -> bool {
        let scale = scale.min(SCALE_ONE);
        match scale {
            0 => self.set_weight(0),
            _ => self.ignored.store(false, Ordering::Relaxed),
        }
        self.scale.swap(scale, Ordering::Relaxed) != scale
    }

    /// Returns `true` the first time that a connection uses the port although it is drained.
    pub(crate) fn is_ignored_first(&self) -> bool {
        !self.ignored.swap(true, Ordering::Relaxed)
    }
}

/// A goodput is shown for this long after the last one that could be computed.
const SHOWN: Duration = Duration::from_secs(1);

/// What a port carries for all connections of the process. They count without a lock. Times are in
/// ns of one clock.
#[derive(Debug, Default)]
pub(crate) struct PortBusy {
    /// Connections with measured parts in flight.
    connections: AtomicU32,
    /// Up to when the busy time is counted.
    counted: AtomicU64,
    /// The port's record in the statistics page. Without one nothing is counted.
    record: OnceLock<&'static PortRecord>,
    shown: Mutex<Shown>,
}

/// The goodput that the page shows.
#[derive(Debug, Default)]
struct Shown {
    goodput: u64,
    /// What it was computed from, and when.
    last: Option<(Carried, Instant)>,
}

impl PortBusy {
    /// Notes that a connection without measured parts in flight begins to have some.
    pub(crate) fn begin(&self, now: u64) {
        if self.connections.fetch_add(1, Ordering::Acquire) == 0 {
            self.counted.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Counts a part that was posted at `posted` and has completed.
    pub(crate) fn completed(&self, bytes: usize, posted: u64, now: u64) {
        let since = self.counted.fetch_max(now, Ordering::Relaxed);
        if let Some(record) = self.record.get() {
            record.add_measured(bytes as u64, now.saturating_sub(since), since.saturating_sub(posted));
        }
    }

    /// Notes that a connection has no measured parts in flight any more.
    pub(crate) fn end(&self) {
        // Released after the last part was counted: a connection that begins counts from there.
        self.connections.fetch_sub(1, Ordering::Release);
    }

    /// Counts in `record` from now on, and returns the goodput to show: that since the last call,
    /// or the one before if too little was carried and that is less than a second old. 0 without one.
    pub(crate) fn goodput(&self, record: &'static PortRecord, now: Instant) -> u64 {
        let carried = self.record.get_or_init(|| record).carried();
        let mut shown = self.shown.lock();
        let Some((before, at)) = shown.last else {
            shown.last = Some((carried, now));
            return 0;
        };
        if let Some(goodput) = (carried - before).goodput() {
            *shown = Shown { goodput, last: Some((carried, now)) };
        } else if now.saturating_duration_since(at) >= SHOWN {
            *shown = Shown { goodput: 0, last: Some((carried, now)) };
        }
        shown.goodput
    }
}

/// Counters of one port. `None`: the adapter does not have the counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct HwCounters {
    /// Retransmissions before the timeout.
    pub(crate) adaptive: Option<u64>,
    /// Timeouts of acknowledgements.
    pub(crate) timeouts: Option<u64>,
    /// Packets that the peer received out of order.
    pub(crate) sequence: Option<u64>,
    /// Packets that found no receive.
    pub(crate) not_ready: Option<u64>,
}

impl HwCounters {
    /// Reads the counters in `dir`. Returns `None` if there is none of them.
    pub(crate) fn read(dir: &Path) -> Option<Self> {
        let [adaptive, timeouts, sequence, not_ready] = FACTS.map(|fact| fact.read(dir));
        let counters = Self { adaptive, timeouts, sequence, not_ready };
        (counters != Self::default()).then_some(counters)
    }
}

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::stats::{Measured, StatsWriter};

    use super::*;

    #[test]
    fn a_drain_is_ignored_for_the_first_time_once() {
        let meter = PortMeter::default();
        assert!(meter.set_scale(0) && !meter.set_scale(0));
        assert!(meter.is_ignored_first() && !meter.is_ignored_first());
        assert!(meter.set_scale(u16::MAX) && meter.scale() == SCALE_ONE);
        assert!(meter.set_scale(0) && meter.is_ignored_first());
    }

    const MIB: usize = 1 << 20;
    const MS: u64 = 1_000_000;

    //= stats.md: goodput is bytes over the time in which measured parts were in flight
    #[test]
    fn the_goodput_is_that_of_all_connections_together_and_idle_time_does_not_count() {
        let record = StatsWriter::for_this_process("0").unwrap().port("busy:1").unwrap();
        let (busy, start) = (PortBusy::default(), Instant::now());
        let at = |ms| start + Duration::from_millis(ms);
        let carried = |bytes, time, queued_bytes, queued_time, waited| Carried {
            all: Measured { bytes, time },
            queued: Measured { bytes: queued_bytes, time: queued_time },
            waited,
        };
        let mib = MIB as u64;
        busy.begin(0);
        busy.completed(MIB, 0, MS);
        busy.end();
        assert_eq!((busy.goodput(record, at(0)), record.carried()), (0, Carried::default()));
        // Eight connections, each with a part in flight from 100 ms on. The first takes 2 ms longer.
        (0..8).for_each(|_| busy.begin(100 * MS));
        (1..=8).for_each(|n| busy.completed(MIB, 100 * MS, (102 + n) * MS));
        (0..8).for_each(|_| busy.end());
        assert_eq!(record.carried(), carried(8 * mib, 10 * MS, 7 * mib, 7 * MS, (3..10).sum::<u64>() * MS));
        assert_eq!(busy.goodput(record, at(250)), mib * 1000);
        // One after the other, with pauses.
        for n in 0..4 {
            busy.begin((200 + 10 * n) * MS);
            busy.completed(MIB, (200 + 10 * n) * MS, (202 + 10 * n) * MS);
            busy.end();
        }
        assert_eq!(busy.goodput(record, at(500)), mib * 500);
        // A short part within the time of a long one, which does not wait for it.
        let before = record.carried();
        busy.begin(300 * MS);
        busy.begin(302 * MS);
        busy.completed(MIB / 8, 302 * MS, 303 * MS);
        busy.end();
        busy.completed(MIB / 8, 300 * MS, 308 * MS);
        busy.end();
        assert_eq!(record.carried() - before, carried(mib / 4, 8 * MS, mib / 8, 5 * MS, 3 * MS));
        // Too little, and then nothing for a second.
        let goodput = busy.goodput(record, at(750));
        busy.begin(400 * MS);
        busy.completed(1000, 400 * MS, 500 * MS);
        busy.end();
        assert_eq!(busy.goodput(record, at(1000)), goodput);
        assert_eq!(busy.goodput(record, at(1750)), 0);
    }

    #[test]
    fn counters_are_read_as_far_as_they_are_there() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(HwCounters::read(&dir.path().join("none")), None);
        assert_eq!(HwCounters::read(dir.path()), None);
        std::fs::write(dir.path().join("packet_seq_err"), "7\n").unwrap();
        std::fs::write(dir.path().join("rnr_nak_retry_err"), "junk\n").unwrap();
        let found = HwCounters { sequence: Some(7), ..HwCounters::default() };
        assert_eq!(HwCounters::read(dir.path()), Some(found));
        std::fs::write(dir.path().join("roce_adp_retrans"), "18446744073709551615\n").unwrap();
        assert_eq!(HwCounters::read(dir.path()).unwrap().adaptive, Some(u64::MAX));
    }
}
