//! Counters of this process, per device and QP.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::api::device;

/// QPs kept per device, including destroyed ones. Older ones remain only in the sums of the device.
const REMEMBERED: usize = 4096;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident,)*) => {
        /// Event counts since the start of the process.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[doc = $doc])+ pub $field: u64,)* }

        /// The counters while they count.
        #[derive(Debug, Default)]
        pub(crate) struct Live { $(pub(crate) $field: AtomicU64,)* }

        impl Live {
            fn read(&self) -> Counters {
                Counters { $($field: self.$field.load(Relaxed),)* }
            }
        }

        impl Counters {
            /// Returns the difference to the earlier reading `before`.
            #[must_use]
            pub fn since(&self, before: &Self) -> Self {
                Self { $($field: self.$field - before.$field,)* }
            }

            pub(crate) fn json(&self) -> String {
                let fields = [$((stringify!($field), self.$field),)*];
                fields.map(|(name, value)| format!("\"{name}\":{value}")).join(",")
            }
        }
    };
}

counters! {
    /// RDMA WRITE work requests started.
    writes,
    /// RDMA WRITE WITH IMMEDIATE work requests started.
    writes_with_imm,
    /// SEND work requests started.
    sends,
    /// SEND WITH IMMEDIATE work requests started.
    sends_with_imm,
    /// RDMA READ work requests started.
    reads,
    /// Compare-and-swap work requests started.
    compare_swaps,
    /// Fetch-and-add work requests started.
    fetch_adds,
    /// Of all these, work requests with inline data (`IBV_SEND_INLINE`).
    inlines,
    /// Payload bytes of completed send-queue work requests.
    bytes,
    /// Calls of `ibv_post_send` that posted at least one work request.
    doorbells,
    /// Receive work requests posted to receive queues and SRQs.
    receives,
    /// Polled completions of send queues.
    send_cqes,
    /// Polled completions of receives.
    recv_cqes,
    /// Attempts of work requests that found no posted receive (receiver not ready).
    rnr,
    /// Polled completions with an error other than a flush.
    errors,
}

impl Live {
    /// Adds `n` to a counter.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}

/// The counters of a QP while they count.
#[derive(Debug, Default)]
pub(crate) struct QpLive {
    pub(crate) qpn: u32,
    pub(crate) own: Live,
}

#[derive(Debug, Default)]
struct DeviceLive {
    total: Live,
    qps: Mutex<Vec<Arc<QpLive>>>,
}

impl DeviceLive {
    fn lock(&self) -> MutexGuard<'_, Vec<Arc<QpLive>>> {
        self.qps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, counters: &Arc<QpLive>) {
        let mut qps = self.lock();
        if qps.len() >= REMEMBERED {
            qps.remove(0);
        }
        qps.push(Arc::clone(counters));
    }
}

/// Counters of one queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpCounters {
    /// QP number.
    pub qpn: u32,
    /// The counters.
    pub counters: Counters,
}

/// Counters of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct DeviceCounters {
    /// Device name.
    pub name: String,
    /// Sums of the device, including receives of SRQs.
    pub total: Counters,
    /// QPs, oldest first, including destroyed ones (the last 4096).
    pub qps: Vec<QpCounters>,
}

fn live() -> &'static [DeviceLive] {
    static LIVE: OnceLock<Vec<DeviceLive>> = OnceLock::new();
    LIVE.get_or_init(|| device::all().iter().map(|_| DeviceLive::default()).collect())
}

/// Returns the counters of device `index`.
pub(crate) fn of_device(index: usize) -> Option<&'static Live> {
    Some(&live().get(index)?.total)
}

/// Adds counters for a new QP.
pub(crate) fn new_qp(device: usize, qpn: u32) -> Arc<QpLive> {
    let counters = Arc::new(QpLive { qpn, own: Live::default() });
    if let Some(device) = live().get(device) {
        device.add(&counters);
    }
    counters
}

/// Moves the counters of a QP to another port.
pub(crate) fn move_qp(counters: &Arc<QpLive>, from: usize, to: usize) {
    let (Some(old), Some(new)) = (live().get(from), live().get(to)) else { return };
    if from != to {
        old.lock().retain(|qp| !Arc::ptr_eq(qp, counters));
        new.add(counters);
    }
}

/// Returns the counters of this process, one item per device in the order of the configuration.
///
/// ```
/// let before = softverbs::counters();
/// // ... the code under test ...
/// let after = softverbs::counters();
/// assert_eq!(after[0].total.since(&before[0].total).writes, 0);
/// ```
pub fn counters() -> Vec<DeviceCounters> {
    let read = |(device, live): (&device::Device, &DeviceLive)| {
        let qps = live.lock();
        DeviceCounters {
            name: device.spec.name.clone(),
            total: live.total.read(),
            qps: qps.iter().map(|qp| QpCounters { qpn: qp.qpn, counters: qp.own.read() }).collect(),
        }
    };
    device::all().iter().zip(live()).map(read).collect()
}
