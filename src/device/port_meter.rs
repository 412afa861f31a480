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
    /// Returns the goodput of this port in bytes per second, of all connections that measure it
    /// together; 0 if nothing was measured. A moving average.
    pub(crate) fn goodput(&self) -> u64 {
        self.goodput.load(Ordering::Relaxed)
    }

    /// Returns when the goodput was measured, or since when it was not, in ns of the clock that
    /// measures.
    pub(crate) fn measured_at(&self) -> u64 {
        self.measured_at.load(Ordering::Relaxed)
    }

    /// Stores the goodput.
    pub(crate) fn set_goodput(&self, rate: u64, at: u64) {
        self.goodput.store(rate, Ordering::Relaxed);
        self.measured_at.store(at, Ordering::Relaxed);
    }

    /// Returns the port's share of the messages of the connection that last measured one, in parts
    /// per 1024. 0 if no connection measures it, or if the port is out of use.
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
    pub(crate) fn forget(&self, now: u64) {
        self.set_goodput(0, now);
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

/// What a port carries for all connections of the process. They count without a lock, so of two that
/// count at the same moment one may count too little. Times are in ns of one clock.
#[derive(Debug, Default)]
pub(crate) struct PortBusy {
    /// Bytes of measured parts in flight.
    in_flight: AtomicU64,
    /// The shares of the connections with measured parts in flight, in parts per 1024.
    claims: AtomicU32,
    /// Since when the port is busy and what completes is counted; 0 if it is not.
    since: AtomicU64,
    /// Whether the port was idle until then.
    was_idle: AtomicBool,
    /// Bytes that have completed since then.
    done: AtomicU64,
    /// The port's record in the statistics page, if it has one.
    record: OnceLock<&'static PortRecord>,
    shown: Mutex<Shown>,
}

/// What has completed on a port while it was busy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) bytes: u64,
    pub(crate) time: u64,
    /// Whether the port was idle before and after it: the time has latency in it.
    pub(crate) is_alone: bool,
}

/// The goodput that the page shows.
#[derive(Debug, Default)]
struct Shown {
    goodput: u64,
    /// What it was computed from, and when.
    last: Option<(Carried, Instant)>,
}

impl PortBusy {
    /// Notes that a connection without measured parts in flight begins to have some. It claims this
    /// share.
    pub(crate) fn claim(&self, share: u32) {
        self.claims.fetch_add(share, Ordering::Relaxed);
    }

    /// Notes that a connection has no measured parts in flight any more.
    pub(crate) fn release(&self, share: u32) {
        self.claims.fetch_sub(share, Ordering::Relaxed);
    }

    /// Returns the sum of the claims.
    pub(crate) fn claims(&self) -> u32 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Returns the bytes of measured parts in flight.
    pub(crate) fn in_flight(&self) -> u64 {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Notes that a part is about to be posted. Returns whether the port is idle.
    #[inline(always)]
    pub(crate) fn begin(&self, bytes: u64) -> bool {
        self.in_flight.fetch_add(bytes, Ordering::Relaxed) == 0
    }

    /// Counts what completes on the idle port from now on.
    pub(crate) fn count_from(&self, now: u64) {
        self.done.store(0, Ordering::Relaxed);
        self.was_idle.store(true, Ordering::Relaxed);
        self.since.store(now, Ordering::Relaxed);
    }

    /// Notes that parts are not in flight any more that have not completed.
    pub(crate) fn give_up(&self, bytes: u64) {
        self.in_flight.fetch_sub(bytes, Ordering::Relaxed);
        self.since.store(0, Ordering::Relaxed);
    }

    /// Counts the completion of a part that was posted at `posted`, or at an unknown time if that is
    /// 0. Returns what the port has carried if that is at least so many bytes, or if the port is idle
    /// before and after.
    #[inline(always)]
    pub(crate) fn completed(
        &self,
        bytes: u64,
        posted: u64,
        least: u64,
        now: impl Fn() -> u64,
    ) -> Option<(Span, u64)> {
        let left = self.in_flight.fetch_sub(bytes, Ordering::Relaxed) - bytes;
        let done = self.done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let is_counted = self.since.load(Ordering::Relaxed) > 0;
        if is_counted && done < least && left > 0 || !is_counted && left == 0 {
            return None;
        }
        let now = now();
        self.span(posted, least, left == 0, now).map(|span| (span, now))
    }

    /// Ends a span, and begins the next one if the port is busy.
    #[inline(never)]
    fn span(&self, posted: u64, least: u64, is_idle: bool, now: u64) -> Option<Span> {
        let since = self.since.swap(if is_idle { 0 } else { now }, Ordering::Relaxed);
        let was_idle = self.was_idle.swap(false, Ordering::Relaxed);
        let bytes = self.done.swap(0, Ordering::Relaxed);
        let span = Span { bytes, time: now.saturating_sub(since), is_alone: bytes < least };
        if since == 0 || span.is_alone && !was_idle {
            return None;
        }
        if let Some(record) = self.record.get().filter(|_| !span.is_alone) {
            // Without the time of the post: the part was in flight before, or another one was.
            let posted = if posted > 0 { posted } else { since - 1 };
            record.add_measured(bytes, span.time, since.saturating_sub(posted));
        }
        Some(span)
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

    const MIB: u64 = 1 << 20;
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
        let begin = |bytes, now| {
            if busy.begin(bytes) {
                busy.count_from(now);
            }
        };
        let ended =
            |bytes, posted, now| busy.completed(bytes, posted, 64 << 10, || now).map(|(span, _)| span.time);
        begin(MIB, 0);
        assert_eq!(ended(MIB, 0, MS), None, "the clock does not begin at 0");
        assert_eq!((busy.goodput(record, at(0)), record.carried()), (0, Carried::default()));
        // Eight connections, each with a part in flight from 100 ms on. The first takes 2 ms longer.
        (0..8).for_each(|_| begin(MIB, 100 * MS));
        let times: Vec<_> = (1..=8).filter_map(|n| ended(MIB, 100 * MS, (102 + n) * MS)).collect();
        assert_eq!(times, [3 * MS, MS, MS, MS, MS, MS, MS, MS]);
        assert_eq!(record.carried(), carried(8 * MIB, 10 * MS, 7 * MIB, 7 * MS, (3..10).sum::<u64>() * MS));
        assert_eq!(busy.goodput(record, at(250)), MIB * 1000);
        // One after the other, with pauses.
        for n in 0..4 {
            begin(MIB, (200 + 10 * n) * MS);
            ended(MIB, (200 + 10 * n) * MS, (202 + 10 * n) * MS);
        }
        assert_eq!(busy.goodput(record, at(500)), MIB * 500);
        // A short part within the time of a long one, which does not wait for it.
        let before = record.carried();
        begin(MIB / 8, 300 * MS);
        begin(MIB / 8, 302 * MS);
        ended(MIB / 8, 302 * MS, 303 * MS);
        ended(MIB / 8, 300 * MS, 308 * MS);
        assert_eq!(record.carried() - before, carried(MIB / 4, 8 * MS, MIB / 8, 5 * MS, 3 * MS));
        // Too little, and then nothing for a second.
        let goodput = busy.goodput(record, at(750));
        begin(1000, 400 * MS);
        ended(1000, 400 * MS, 500 * MS);
        assert_eq!(busy.goodput(record, at(1000)), goodput);
        assert_eq!(busy.goodput(record, at(1750)), 0);
    }

    /// Parts of 16 KiB, four of them in flight at any time.
    #[test]
    fn small_parts_are_measured_together_while_the_port_is_busy() {
        let (busy, part) = (PortBusy::default(), 16 << 10);
        let mut spans = Vec::new();
        assert_eq!([0; 4].map(|_| busy.begin(part)), [true, false, false, false]);
        for n in 1..=16 {
            spans.extend(busy.completed(part, 0, 64 << 10, || n * MS).map(|(span, _)| span));
            busy.begin(part);
        }
        let span = Span { bytes: 64 << 10, time: 4 * MS, is_alone: false };
        assert_eq!(spans, [span; 3], "the first completion begins the first one");
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
