//! What has happened: for the log, and for those who ask later.

use std::collections::VecDeque;
use std::time::{SystemTime, UNIX_EPOCH};

use nccl_net_mpib_agent_iface::codes::Code;
use schemars::JsonSchema;
use serde::Serialize;

/// Number of events that are kept.
const KEPT: usize = 200;

/// One line of the agent's log.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Event {
    /// Number of the event since the agent started.
    pub number: u64,
    /// When, in ms since 1970.
    pub at_ms: u64,
    /// What kind of event it is.
    pub kind: EventKind,
    /// The port, as HCA and port, if the event is one of a port.
    pub port: Option<String>,
    /// What has happened.
    pub text: String,
}

/// Kinds of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum EventKind {
    /// A port is suspect or down.
    RailDown,
    /// A port can be reached again, and its rails are probed.
    RailProbing,
    /// A port is healthy again.
    RailBack,
    /// Connections carried on without rails on a port.
    Failover,
    /// A port was taken out of use.
    Drained,
    /// A port was put back into use.
    Undrained,
    /// The share of a flow was set.
    Share,
    /// The agent itself: its start, its configuration, its processes.
    Agent,
}

/// Returns the time in ms since 1970.
pub(crate) fn now_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

/// The latest events.
#[derive(Debug, Default)]
pub(crate) struct Events {
    latest: VecDeque<Event>,
    next: u64,
    logged: u64,
}

impl Events {
    pub(crate) fn add(&mut self, kind: EventKind, port: Option<&str>, text: String) {
        let at_ms = now_ms();
        if self.latest.len() == KEPT {
            // A controller that sets shares all the time must not displace the failures of rails.
            let least = self.latest.iter().position(|event| event.port.is_none()).unwrap_or(0);
            self.latest.remove(least);
        }
        self.latest.push_back(Event { number: self.next, at_ms, kind, port: port.map(str::to_owned), text });
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

/// Returns a line with its code: what it stands for is in the guide.
pub(crate) fn coded(line: String) -> String {
    format!("{line} [{}]", Code::of_log(&line))
}

#[cfg(test)]
mod tests {
    use super::*;

    //= agent-interface.md: events of ports are kept longest
    #[test]
    fn shares_do_not_displace_the_failures_of_rails() {
        let mut events = Events::default();
        events.add(EventKind::RailDown, Some("sup:1"), "down".into());
        (0..300).for_each(|i| events.add(EventKind::Share, None, i.to_string()));
        let all = events.all();
        assert_eq!((all.len(), &*all[0].text, &*all[1].text, &*all[199].text), (200, "down", "101", "299"));
        (0..300).for_each(|i| events.add(EventKind::RailBack, Some("sup:1"), i.to_string()));
        assert_eq!((&*events.all()[0].text, &*events.all()[199].text), ("100", "299"));
    }
}
