//! An adapter's own counters of lost packets, which the kernel shows in sysfs.

use std::path::Path;

use nccl_net_mpib_agent_iface::hw_counters::{ADAPTIVE, NOT_READY, SEQUENCE, TIMEOUTS};

/// Counters of one port. `None`: the adapter does not have the counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HwCounters {
    /// `roce_adp_retrans`: retransmissions before the timeout. mlx5 counts them on RoCE alone.
    pub adaptive: Option<u64>,
    /// `local_ack_timeout_err`: timeouts of acknowledgements.
    pub timeouts: Option<u64>,
    /// `packet_seq_err`: packets that the peer received out of order.
    pub sequence: Option<u64>,
    /// `rnr_nak_retry_err`: packets that found no receive.
    pub not_ready: Option<u64>,
}

impl HwCounters {
    /// Reads the counters in `dir`. Returns `None` if there is none of them.
    pub fn read(dir: &Path) -> Option<Self> {
        let number = |name| std::fs::read_to_string(dir.join(name)).ok()?.trim().parse().ok();
        let counters = Self {
            adaptive: number(ADAPTIVE),
            timeouts: number(TIMEOUTS),
            sequence: number(SEQUENCE),
            not_ready: number(NOT_READY),
        };
        (counters != Self::default()).then_some(counters)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
