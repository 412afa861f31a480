//! Routes that have failed lately: their next connections do not wait for the same failure.
//!
//! A route is forgotten when it works, when an adapter reports a change of a port or its addresses,
//! and after [`EXPIRY`].

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use crate::proto::GidKind;

/// How long a failure counts.
pub const EXPIRY: Duration = Duration::from_secs(60);

/// Most routes that are remembered. Beyond it a failure is not remembered, which costs time alone.
const MAX: usize = 4096;

/// A local port and address, and a peer's host and address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct RouteKey {
    /// Name of the port: `hca:port`.
    pub port: String,
    /// The local GID.
    pub gid: [u8; 16],
    /// The type of the GID.
    pub kind: GidKind,
    /// The peer's host: other hosts may have the same address.
    pub host: String,
    /// The peer's GID.
    pub peer: [u8; 16],
}

/// The routes of a process that have failed.
#[derive(Debug, Default)]
pub struct FailedRoutes(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    failed: HashMap<RouteKey, (Instant, String)>,
    /// Number of changes of the network.
    changes: u64,
}

impl FailedRoutes {
    /// Returns the number of changes of the network until now.
    pub fn changes(&self) -> u64 {
        self.0.lock().changes
    }

    /// Remembers a failure of an attempt that began after so many [`changes`](Self::changes). A
    /// change since then may have caused the failure, or have mended the route.
    pub fn remember(&self, now: Instant, changes: u64, key: RouteKey, why: String) {
        let mut state = self.0.lock();
        if state.changes != changes {
            return;
        }
        let failed = &mut state.failed;
        if failed.len() >= MAX {
            failed.retain(|_, (since, _)| now.saturating_duration_since(*since) < EXPIRY);
        }
        if failed.len() < MAX || failed.contains_key(&key) {
            failed.insert(key, (now, why));
        }
    }

    /// Returns why a route failed, if it is not to be tried again yet.
    pub fn why(&self, now: Instant, key: &RouteKey) -> Option<String> {
        let state = self.0.lock();
        let (since, why) = state.failed.get(key)?;
        let age = now.saturating_duration_since(*since);
        (age < EXPIRY).then(|| {
            let (age, expiry) = (age.as_secs(), EXPIRY.as_secs());
            format!("it failed {age} s ago, and failures count for {expiry} s: {why}")
        })
    }

    /// Forgets a route that works.
    pub fn forget(&self, key: &RouteKey) {
        self.0.lock().failed.remove(key);
    }

    /// Whether nothing is remembered.
    pub fn is_empty(&self) -> bool {
        self.0.lock().failed.is_empty()
    }

    /// Forgets all: the network has changed.
    pub fn clear(&self) {
        let mut state = self.0.lock();
        state.failed.clear();
        state.changes += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(n: u32) -> RouteKey {
        let mut peer = [0; 16];
        peer[..4].copy_from_slice(&n.to_be_bytes());
        RouteKey { port: "a:1".into(), gid: [1; 16], kind: GidKind::RoceV2, host: "b".into(), peer }
    }

    //= reach.md: a failed route is tried again after 60 s, when it works, or when a port changes
    #[test]
    fn a_failure_expires() {
        let (failed, start) = (FailedRoutes::default(), Instant::now());
        let at = |secs| start + Duration::from_secs(secs);
        failed.remember(at(0), 0, key(1), "no answer".into());
        let text = "it failed 59 s ago, and failures count for 60 s: no answer";
        assert_eq!(failed.why(at(59), &key(1)).as_deref(), Some(text));
        assert_eq!(failed.why(at(60), &key(1)), None);
        assert_eq!(failed.why(at(59), &key(2)), None);
        // A later failure counts from its own time.
        failed.remember(at(70), 0, key(1), "no answer".into());
        assert!(failed.why(at(129), &key(1)).is_some());
        failed.forget(&key(1));
        assert_eq!(failed.why(at(71), &key(1)), None);
        failed.remember(at(72), 0, key(2), String::new());
        failed.clear();
        assert!(failed.is_empty());
        // An attempt from before the change.
        failed.remember(at(73), 0, key(2), String::new());
        assert!(failed.is_empty());
        failed.remember(at(73), failed.changes(), key(2), String::new());
        assert!(!failed.is_empty());
    }

    #[test]
    fn the_number_is_bounded_and_old_failures_make_room() {
        let (failed, start) = (FailedRoutes::default(), Instant::now());
        for n in 0..MAX as u32 {
            failed.remember(start, 0, key(n), String::new());
        }
        failed.remember(start, 0, key(u32::MAX), String::new());
        assert_eq!(failed.why(start, &key(u32::MAX)), None);
        assert!(failed.why(start, &key(0)).is_some());
        let later = start + EXPIRY;
        failed.remember(later, 0, key(u32::MAX), String::new());
        assert!(failed.why(later, &key(u32::MAX)).is_some());
        assert_eq!(failed.0.lock().failed.len(), 1);
    }
}
