//! What has happened: for the log, and for those who ask later.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

/// Number of events that are kept.
const KEPT: usize = 200;

/// One line of the agent's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Number of the event since the agent started.
    pub number: u64,
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// What has happened.
    pub text: String,
}

/// The latest events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    latest: VecDeque<Event>,
    next: u64,
    logged: u64,
}

impl Events {
    pub(crate) fn add(&mut self, text: String) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let at_ms = u64::try_from(now.as_millis()).unwrap_or(u64::MAX);
        if self.latest.len() == KEPT {
            self.latest.pop_front();
        }
        self.latest.push_back(Event { number: self.next, at_ms, text });
        self.next += 1;
    }

    /// Returns the events that are kept, oldest first.
    pub(crate) fn all(&self) -> Vec<Event> {
        self.latest.iter().cloned().collect()
    }

    /// Returns the events since the last call that are still kept.
    pub(crate) fn unlogged(&mut self) -> Vec<String> {
        let new = self.latest.iter().filter(|event| event.number >= self.logged);
        let new = new.map(|event| event.text.clone()).collect();
        self.logged = self.next;
        new
    }
}
