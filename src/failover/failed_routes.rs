//! Routes of one port that have failed lately at connect: the next connections do not wait for the
//! same failure.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mpib_proto::GidKind;

/// How long what a connect has found counts, unless the network changes: its cause may be over.
pub(crate) const EXPIRY: Duration = Duration::from_secs(60);

/// Most routes that are remembered. Beyond it a failure is not remembered, which costs time alone.
const MAX: usize = 4096;

/// An address of a port, and a peer's host and address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct RouteKey {
    /// The local GID.
    pub(crate) gid: [u8; 16],
    /// The type of the GID.
    pub(crate) kind: GidKind,
    /// The peer's host: other hosts may have the same address.
    pub(crate) host: String,
    /// The peer's GID.
    pub(crate) peer: [u8; 16],
}

/// The routes that have failed, with the reasons.
#[derive(Debug, Default)]
pub(super) struct FailedRoutes(HashMap<RouteKey, (Instant, String)>);

impl FailedRoutes {
    pub(super) fn remember(&mut self, now: Instant, key: RouteKey, why: String) {
        if self.0.len() >= MAX {
            self.0.retain(|_, (since, _)| now.saturating_duration_since(*since) < EXPIRY);
        }
        if self.0.len() < MAX || self.0.contains_key(&key) {
            self.0.insert(key, (now, why));
        }
    }

    pub(super) fn why(&self, now: Instant, key: &RouteKey) -> Option<String> {
        let (since, why) = self.0.get(key)?;
        let age = now.saturating_duration_since(*since);
        (age < EXPIRY).then(|| {
            let (age, expiry) = (age.as_secs(), EXPIRY.as_secs());
            format!("it failed {age} s ago, and failures count for {expiry} s: {why}")
        })
    }

    /// Forgets a route; returns whether it was known.
    pub(super) fn forget(&mut self, key: &RouteKey) -> bool {
        self.0.remove(key).is_some()
    }

    pub(super) fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> RouteKey {
        let mut peer = [0; 16];
        peer[..4].copy_from_slice(&n.to_be_bytes());
        RouteKey { gid: [1; 16], kind: GidKind::RoceV2, host: "b".into(), peer }
    }

    //= reach.md: a failed route is tried again after 60 s, when it works, or when a port changes
    #[test]
    fn a_failure_expires() {
        let (mut failed, start) = (FailedRoutes::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        failed.remember(at(0), key(1), "no answer".into());
        let text = "it failed 59 s ago, and failures count for 60 s: no answer";
        assert_eq!(failed.why(at(59), &key(1)).as_deref(), Some(text));
        assert_eq!(failed.why(at(60), &key(1)), None);
        assert_eq!(failed.why(at(59), &key(2)), None);
        // A later failure counts from its own time.
        failed.remember(at(70), key(1), "no answer".into());
        assert!(failed.why(at(129), &key(1)).is_some());
        failed.forget(&key(1));
        assert_eq!(failed.why(at(71), &key(1)), None);
    }

    #[test]
    fn the_number_is_bounded_and_old_failures_make_room() {
        let (mut failed, start) = (FailedRoutes::default(), Instant::now());
        (0..MAX as u32).for_each(|n| failed.remember(start, key(n), String::new()));
        failed.remember(start, key(u32::MAX), String::new());
        assert_eq!(failed.why(start, &key(u32::MAX)), None);
        assert!(failed.why(start, &key(0)).is_some());
        let later = start + EXPIRY;
        failed.remember(later, key(u32::MAX), String::new());
        assert!(failed.why(later, &key(u32::MAX)).is_some());
        assert_eq!(failed.0.len(), 1);
    }
}
