//! Names of the counters that an adapter keeps per port, in `hw_counters` of the port's folder in
//! sysfs. Each driver has other names.

use std::fs;
use std::path::Path;

/// Retransmissions before the timeout. mlx5 counts them on RoCE alone.
pub const ADAPTIVE: &str = "roce_adp_retrans";
/// Timeouts of acknowledgements.
pub const TIMEOUTS: &str = "local_ack_timeout_err";
/// Packets that the peer received out of order.
pub const SEQUENCE: &str = "packet_seq_err";
/// Packets that found no receive.
pub const NOT_READY: &str = "rnr_nak_retry_err";

/// What a counter shows of the packets that a port has sent, and the names that drivers give it, as
/// read in the kernel's drivers/infiniband/hw: mlx5/counters.c and bnxt_re/hw_counters.c,
/// bnxt_re/hw_counters.c of earlier releases, and irdma/verbs.c (third generation). rdma_rxe counts
/// all its retries together, and erdma, ionic and hns have no such names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fact {
    /// In words.
    pub shows: &'static str,
    names: &'static [&'static str],
}

impl Fact {
    /// Reads the counter in the folder of a port; `None` if the port has it under no name.
    pub fn read(self, hw_counters: &Path) -> Option<u64> {
        let number = |name| fs::read_to_string(hw_counters.join(name)).ok()?.trim().parse().ok();
        self.names.iter().find_map(number)
    }

    /// Returns whether a driver gives the counter this name.
    pub fn is(self, name: &str) -> bool {
        self.names.contains(&name)
    }
}

/// The facts that show whether a rail loses packets: [`ADAPTIVE`], [`TIMEOUTS`], [`SEQUENCE`],
/// [`NOT_READY`].
pub const FACTS: [Fact; 4] = [
    Fact { shows: "early retransmissions", names: &[ADAPTIVE] },
    Fact { shows: "timeouts", names: &[TIMEOUTS, "to_retransmits", "RTO"] },
    Fact { shows: "packets out of order", names: &[SEQUENCE, "seq_err_naks_rcvd", "Nak Sequence Error"] },
    Fact { shows: "missing receives", names: &[NOT_READY, "rnr_naks_rcvd", "RNR received"] },
];

#[cfg(test)]
mod tests {
    use super::*;

    /// What each driver shows, by the names in its source.
    const DRIVERS: [(&str, &[&str], [bool; 4]); 6] = [
        (
            "mlx5 on RoCE",
            &["local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err", "roce_adp_retrans"],
            [true; 4],
        ),
        (
            "mlx5 on InfiniBand, bnxt_re",
            &["local_ack_timeout_err", "packet_seq_err", "rnr_nak_retry_err"],
            [false, true, true, true],
        ),
        (
            "bnxt_re with its earlier names",
            &["to_retransmits", "seq_err_naks_rcvd", "missing_resp", "rnr_naks_rcvd"],
            [false, true, true, true],
        ),
        (
            "irdma of the third generation",
            &["RTO", "Nak Sequence Error", "Nak Sequence Error Implied", "RNR received"],
            [false, true, true, true],
        ),
        ("irdma on E810", &["RetransSegs", "cnpHandled", "RxECNMrkd"], [false; 4]),
        ("erdma", &["tx_reqs_cnt", "rx_packets_cnt"], [false; 4]),
    ];

    #[test]
    fn each_driver_shows_what_its_names_say() {
        for (driver, names, expected) in DRIVERS {
            let dir = tempfile::tempdir().unwrap();
            names.iter().for_each(|name| fs::write(dir.path().join(name), "3\n").unwrap());
            assert_eq!(FACTS.map(|fact| fact.read(dir.path()).is_some()), expected, "{driver}");
        }
    }
}
