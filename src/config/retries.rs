//! How long adapters take to give up on a peer that does not answer.

use std::time::Duration;

use super::{Config, Finding};

/// The unit of `NCCL_IB_TIMEOUT`, times 2 to the power of the setting.
const UNIT: Duration = Duration::from_nanos(4096);
/// InfiniBand allows an adapter to wait up to four times the timeout before each retransmission.
const LONGEST_WAIT: u32 = 4;

/// The time from the first transmission of a packet to the error, if nothing is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryTime {
    /// One timeout for each transmission.
    pub nominal: Duration,
    /// The longest time that the InfiniBand specification allows.
    pub longest: Duration,
}

impl Config {
    /// Returns how long adapters try with these settings.
    pub fn retry_time(&self) -> RetryTime {
        let nominal = UNIT * 2_u32.pow(self.timeout.into()) * (u32::from(self.retry_cnt) + 1);
        RetryTime { nominal, longest: nominal * LONGEST_WAIT }
    }

    /// Describes how long adapters try.
    pub fn retry_text(&self) -> String {
        let RetryTime { nominal, longest } = self.retry_time();
        format!(
            "adapters give up on a peer that does not answer after {} (NCCL_IB_TIMEOUT={}, NCCL_IB_RETRY_CNT={}), and may take up \
             to {}: ConnectX-6 takes about 1.7 times the former, and at least 3.7 s",
            seconds(nominal),
            self.timeout,
            self.retry_cnt,
            seconds(longest)
        )
    }

    /// Describes a limit of the control connection that may end a connection before its adapters
    /// give up, if it is that short.
    pub(super) fn short_silence(&self) -> Option<Finding> {
        let short = self.peer_timeout <= self.retry_time().longest;
        short.then(|| Finding {
            degraded: false,
            text: format!(
                "MPIB_PEER_TIMEOUT_MS={} may end a connection while its adapters still try: {}",
                self.peer_timeout.as_millis(),
                self.retry_text()
            ),
        })
    }
}

pub(super) fn seconds(time: Duration) -> String {
    let seconds = time.as_secs_f64();
    if seconds < 10.0 { format!("{seconds:.1} s") } else { format!("{seconds:.0} s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= reach.md: MPIB_PEER_TIMEOUT_MS is longer than the adapters' retries
    #[test]
    fn silence_is_longer_than_the_retries_of_adapters_by_default() {
        let config = Config::default();
        let RetryTime { nominal, longest } = config.retry_time();
        assert_eq!((nominal.as_millis(), longest.as_millis()), (34_359, 137_438));
        assert_eq!(config.short_silence(), None);
        assert!(config.retry_text().contains("after 34 s (NCCL_IB_TIMEOUT=20, NCCL_IB_RETRY_CNT=7)"));
        assert!(config.retry_text().contains("up to 137 s"));
    }

    #[test]
    fn conflicting_limits_are_reported_with_both_values() {
        for (timeout, retry_cnt, seconds, short) in [
            (20, 7, 137, true),
            (20, 7, 138, false),
            (14, 7, 1, true),
            (14, 7, 3, false),
            (31, 7, 3600, true),
        ] {
            let peer_timeout = Duration::from_secs(seconds);
            let config = Config { timeout, retry_cnt, peer_timeout, ..Config::default() };
            let found = config.short_silence();
            assert_eq!(found.is_some(), short, "{timeout} {seconds}");
            let expected = format!("MPIB_PEER_TIMEOUT_MS={seconds}000 may end a connection while");
            assert!(found.is_none_or(|f| !f.degraded && f.text.starts_with(&expected)));
        }
        let once = Config { timeout: 14, retry_cnt: 0, ..Config::default() };
        assert!(once.retry_text().contains("after 0.1 s") && once.retry_text().contains("up to 0.3 s"));
    }
}
