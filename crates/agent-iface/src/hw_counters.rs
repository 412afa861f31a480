//! Names of the counters that an adapter keeps per port, in `hw_counters` of the port's folder in
//! sysfs.

/// Retransmissions before the timeout. mlx5 counts them on RoCE alone.
pub const ADAPTIVE: &str = "roce_adp_retrans";
/// Timeouts of acknowledgements.
pub const TIMEOUTS: &str = "local_ack_timeout_err";
/// Packets that the peer received out of order.
pub const SEQUENCE: &str = "packet_seq_err";
/// Packets that found no receive.
pub const NOT_READY: &str = "rnr_nak_retry_err";
