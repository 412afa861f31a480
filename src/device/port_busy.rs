//! The time in which connections have measured parts in flight on a port, as other processes see it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nccl_net_mpib_agent_iface::stats::{Carried, PortRecord};
use parking_lot::Mutex;

/// A goodput is shown for this long after the last one that could be computed.
const SHOWN: Duration = Duration::from_secs(1);

/// What a port carries for all connections of the process. They count without a lock. Times are in
/// ns of one clock.
#[derive(Debug, Default)]
pub struct PortBusy {
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
    pub fn begin(&self, now: u64) {
        if self.connections.fetch_add(1, Ordering::Acquire) == 0 {
            self.counted.fetch_max(now, Ordering::Relaxed);
        }
    }

    /// Counts a part that was posted at `posted` and has completed.
    pub fn completed(&self, bytes: usize, posted: u64, now: u64) {
        let since = self.counted.fetch_max(now, Ordering::Relaxed);
        if let Some(record) = self.record.get() {
            record.add_measured(bytes as u64, now.saturating_sub(since), since.saturating_sub(posted));
        }
    }

    /// Notes that a connection has no measured parts in flight any more.
    pub fn end(&self) {
        // Released after the last part was counted: a connection that begins counts from there.
        self.connections.fetch_sub(1, Ordering::Release);
    }

    /// Counts in `record` from now on, and returns the goodput to show: that since the last call,
    /// or the one before if too little was carried and that is less than a second old. 0 without one.
    pub fn goodput(&self, record: &'static PortRecord, now: Instant) -> u64 {
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

#[cfg(test)]
mod tests {
    use nccl_net_mpib_agent_iface::stats::{Measured, StatsWriter};

    use super::*;

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
}
