//! One look at the host: its statistics pages, and which processes use the network at that moment.

use std::collections::BTreeSet;

use mpib_host_view::{Count, Host, Process, Totals};

/// What two readings show, one a moment after the other.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) host: Host,
    /// The processes that used the network, or tried to, between the two readings.
    pub(super) active: BTreeSet<u32>,
}

impl Look {
    /// Compares two readings.
    pub(super) fn at(before: &Host, host: Host) -> Self {
        let active = host.processes.iter().filter(|process| is_active(before, process));
        Self { active: active.map(|process| process.pid).collect(), host }
    }
}

/// Returns whether a process sends, or has called the plugin with effect since an earlier reading.
/// Receives that are posted ahead of their data are no use of the network.
fn is_active(before: &Host, now: &Process) -> bool {
    let sends = |process: &Process| {
        let mut senders = process.connections.iter().filter(|c| c.direction == "send");
        senders.any(|c| c.in_flight.0 > 0)
    };
    let old = before.same(now);
    let calls = |totals: &Totals| -> [Count; 4] {
        [totals.requests, totals.done, totals.waits_for_peer, totals.waits_for_queue]
    };
    let calls = |process: &Process| [&process.totals.send, &process.totals.recv].map(calls);
    sends(now) || old.is_some_and(|old| calls(old) != calls(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use mpib_host_view::Connection;

    #[test]
    fn a_process_is_active_while_it_sends_or_calls() {
        let end = |direction: &str, in_flight| Connection {
            direction: direction.into(),
            in_flight: Count(in_flight),
            ..Connection::default()
        };
        let host = |pid, change: fn(&mut Process)| {
            let mut process = Process { pid, connections: vec![end("recv", 8)], ..Process::default() };
            change(&mut process);
            Host { processes: vec![process], ..Host::default() }
        };
        let is_active = |change| !Look::at(&host(7, |_| {}), host(7, change)).active.is_empty();
        assert!(!is_active(|_| {}), "receives alone");
        assert!(is_active(|process| process.connections[0].direction = "send".into()));
        assert!(is_active(|process| process.totals.send.waits_for_peer = Count(1)));
        assert!(is_active(|process| process.totals.recv.done = Count(1)));
    }
}
