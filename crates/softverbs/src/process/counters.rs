//! What this process did, per device and QP.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crate::api::device;

/// QPs remembered per device, destroyed ones included; older ones are only in the device's sums.
const REMEMBERED: usize = 4096;

macro_rules! counters {
    ($($(#[doc = $doc:literal])+ $field:ident,)*) => {
        /// Numbers since the process began.
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        #[non_exhaustive]
        pub struct Counters { $($(#[doc = $doc])+ pub $field: u64,)* }

        /// The same, being counted.
        #[derive(Debug, Default)]
        pub(crate) struct Live { $(pub(crate) $field: AtomicU64,)* }

        impl Live {
            fn read(&self) -> Counters {
                Counters { $($field: self.$field.load(Relaxed),)* }
            }
        }

        impl Counters {
            /// What came to these since `before` was read.
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
    /// RDMA WRITE work requests begun.
    writes,
    /// RDMA WRITE WITH IMMEDIATE work requests begun.
    writes_with_imm,
    /// SEND work requests begun.
    sends,
    /// SEND WITH IMMEDIATE work requests begun.
    sends_with_imm,
    /// RDMA READ work requests begun.
    reads,
    /// Compare-and-swap work requests begun.
    compare_swaps,
    /// Fetch-and-add work requests begun.
    fetch_adds,
    /// Of all these, those that carried their data in themselves (`IBV_SEND_INLINE`).
    inlines,
    /// Payload bytes of completed work requests of the send queues.
    bytes,
    /// Calls of `ibv_post_send` that posted at least one work request.
    doorbells,
    /// Receive work requests posted to receive queues and SRQs.
    receives,
    /// Completions of send queues polled.
    send_cqes,
    /// Completions of receives polled.
    recv_cqes,
    /// Times a work request found no receive waiting (receiver not ready).
    rnr,
    /// Completions with an error that were not mere flushes, polled.
    errors,
}

impl Live {
    /// Adds to one.
    pub(crate) fn add(counter: &AtomicU64, n: u64) {
        counter.fetch_add(n, Relaxed);
    }
}

/// A QP's counters and those of its device.
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

/// Counters of one queue pair.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QpCounters {
    /// QP number.
    pub qpn: u32,
    /// Its numbers.
    pub counters: Counters,
}

/// Counters of one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceCounters {
    /// Device name.
    pub name: String,
    /// All of the device, receives of SRQs included.
    pub total: Counters,
    /// Its QPs, oldest first, destroyed ones included.
    pub qps: Vec<QpCounters>,
}

fn live() -> &'static [DeviceLive] {
    static LIVE: OnceLock<Vec<DeviceLive>> = OnceLock::new();
    LIVE.get_or_init(|| device::all().iter().map(|_| DeviceLive::default()).collect())
}

/// The sums of device `index`.
pub(crate) fn of_device(index: usize) -> Option<&'static Live> {
    Some(&live().get(index)?.total)
}

/// Begins counting for a new QP.
pub(crate) fn new_qp(device: usize, qpn: u32) -> Arc<QpLive> {
    let counters = Arc::new(QpLive { qpn, own: Live::default() });
    if let Some(device) = live().get(device) {
        let mut qps = device.qps.lock().unwrap_or_else(PoisonError::into_inner);
        if qps.len() >= REMEMBERED {
            qps.remove(0);
        }
        qps.push(Arc::clone(&counters));
    }
    counters
}

/// The counters of this process, one entry per device in list order.
pub fn counters() -> Vec<DeviceCounters> {
    let read = |(device, live): (&device::Device, &DeviceLive)| {
        let qps = live.qps.lock().unwrap_or_else(PoisonError::into_inner);
        DeviceCounters {
            name: device.spec.name.clone(),
            total: live.total.read(),
            qps: qps.iter().map(|qp| QpCounters { qpn: qp.qpn, counters: qp.own.read() }).collect(),
        }
    };
    device::all().iter().zip(live()).map(read).collect()
}
