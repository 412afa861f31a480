//! What the settings of failover mean, in seconds.

use std::time::Duration;

use super::Config;
use super::retries::{RetryTime, seconds};

/// The least limit of the watchdog on adapters whose counters do not show a loss soon.
const BLIND: Duration = Duration::from_millis(500);

impl Config {
    /// Describes what a rail that fails costs its connections.
    pub fn failover_text(&self) -> String {
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
    pub fn detection_text(&self) -> String {
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

#[cfg(test)]
mod tests {
    use super::*;

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
