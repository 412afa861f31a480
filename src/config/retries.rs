//! What the settings mean in seconds: how long adapters try, and how failover follows.

use std::time::Duration;

use super::{Config, Finding};

/// The unit of `NCCL_IB_TIMEOUT`, times 2 to the power of the setting.
const UNIT: Duration = Duration::from_nanos(4096);
/// The least limit of the watchdog on adapters whose counters do not show a loss soon.
const BLIND: Duration = Duration::from_millis(500);
/// InfiniBand allows an adapter to wait up to four times the timeout before each retransmission.
const LONGEST_WAIT: u32 = 4;

/// The time from the first transmission of a packet to the error, if nothing is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RetryTime {
    /// One timeout for each transmission.
    pub(crate) nominal: Duration,
    /// The longest time that the InfiniBand specification allows.
    pub(crate) longest: Duration,
}

impl Config {
    /// Returns how long adapters try with these settings.
    pub(crate) fn retry_time(&self) -> RetryTime {
        let nominal = UNIT * 2_u32.pow(self.timeout.into()) * (u32::from(self.retry_cnt) + 1);
        RetryTime { nominal, longest: nominal * LONGEST_WAIT }
    }

    /// Describes how long adapters try.
    pub(crate) fn retry_text(&self) -> String {
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

    /// Describes what a rail that fails costs its connections.
    pub(crate) fn failover_text(&self) -> String {
        if !self.failover {
            return format!("failover is off ({}): a rail that fails fails its connections", self.off_by());
        }
        let wait = self.failover_wait.as_secs();
        let last = if wait == 0 { "fails at once".to_owned() } else { format!("waits {wait} s for one") };
        format!(
            "a connection carries on without a rail that fails, and {last} if it has none left (MPIB_FAILOVER_WAIT={wait}); \
             the peer must have failover on, too"
        )
    }

    /// Describes how soon a rail that fails is noticed.
    pub(crate) fn detection_text(&self) -> String {
        let RetryTime { nominal, longest } = self.retry_time();
        let error = format!(
            "the adapter's error after {} to {} (NCCL_IB_TIMEOUT={}, NCCL_IB_RETRY_CNT={})",
            seconds(nominal),
            seconds(longest),
            self.timeout,
            self.retry_cnt
        );
        if !self.failover {
            return format!("a rail that fails is noticed by {error}");
        }
        let watchdog = match self.stall.as_millis() {
            0 => "not by the watchdog (MPIB_STALL_MS=0)".to_owned(),
            ms => format!(
                "by the watchdog after {ms} ms without a completion while another rail of the connection moves data \
                 (MPIB_STALL_MS={ms}; {} ms if the adapter has no counter roce_adp_retrans)",
                self.stall.max(BLIND).as_millis()
            ),
        };
        format!(
            "a rail that fails is noticed {watchdog}, when its link goes down, or by {error}, \
             whichever comes first"
        )
    }

    /// Names the setting that turns failover off.
    fn off_by(&self) -> &'static str {
        match (self.port_failover, self.strict) {
            (Some(false), _) => "NCCL_IB_RESILIENCY_PORT_FAILOVER=0",
            (None, true) => "MPIB_STRICT=1",
            _ => "MPIB_FAILOVER=0",
        }
    }
}

fn seconds(time: Duration) -> String {
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

    fn read(pairs: &[(&str, &str)]) -> Config {
        Config::read(|name| pairs.iter().find(|pair| pair.0 == name).map(|pair| pair.1.into())).unwrap()
    }

    //= doctor.md: the settings of failover in seconds
    #[test]
    fn the_setting_that_turns_failover_off_is_named() {
        for (pairs, name) in [
            (&[("MPIB_FAILOVER", "0")][..], "MPIB_FAILOVER=0"),
            (&[("MPIB_STRICT", "1")], "MPIB_STRICT=1"),
            (&[("NCCL_IB_RESILIENCY_PORT_FAILOVER", "0")], "NCCL_IB_RESILIENCY_PORT_FAILOVER=0"),
        ] {
            let config = read(pairs);
            assert!(config.failover_text().starts_with(&format!("failover is off ({name}): ")), "{name}");
            let text = config.detection_text();
            assert!(text.contains("noticed by the adapter's error after 34 s to 137 s"), "{text}");
        }
    }

    //= doctor.md: the settings of failover in seconds
    #[test]
    fn the_times_are_those_of_the_settings() {
        let text = |pairs: &[_]| read(pairs).failover_text() + "\n" + &read(pairs).detection_text();
        let parts = |pairs: &[_], parts: &[&str]| {
            let text = text(pairs);
            assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in {text}");
        };
        parts(&[], &["waits 60 s for one", "after 50 ms without", "500 ms if", "34 s to 137 s"]);
        parts(
            &[("MPIB_FAILOVER_WAIT", "0"), ("MPIB_STALL_MS", "0"), ("NCCL_IB_TIMEOUT", "14")],
            &["fails at once if", "MPIB_FAILOVER_WAIT=0", "not by the watchdog", "after 0.5 s to 2.1 s"],
        );
        parts(&[("MPIB_STALL_MS", "2000")], &["after 2000 ms without", "; 2000 ms if"]);
    }
}
