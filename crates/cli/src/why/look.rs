//! One look at the host: its statistics pages, which processes use the network at that moment, and how
//! the kernel runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use mpib_host_view::{Count, Host, Process, Totals};

/// What two readings show, one a moment after the other.
#[derive(Debug, Default)]
pub(super) struct Look {
    pub(super) host: Host,
    /// How the kernel runs the processes of the second reading.
    pub(super) states: BTreeMap<u32, State>,
    /// The processes that used the network, or tried to, between the two readings.
    pub(super) active: BTreeSet<u32>,
}

/// How the kernel runs a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It runs, or sleeps until something happens.
    Alive,
    /// In a call of the kernel that no signal ends.
    Uninterruptible,
    /// By a signal.
    Stopped,
    /// By a debugger.
    Traced,
    /// It has ended, and its parent has not waited for it.
    Zombie,
    /// There is no such process here.
    Absent,
}

impl Look {
    /// Compares two readings, and adds the states of processes.
    pub(super) fn at(before: &Host, host: Host) -> Self {
        let pids = host.processes.iter().map(|process| process.pid);
        let states = pids.map(|pid| (pid, State::of(pid))).collect();
        let active = host.processes.iter().filter(|process| is_active(before, process));
        Self { states, active: active.map(|process| process.pid).collect(), host }
    }
}

/// Returns whether a process sends, or has called the plugin with effect since an earlier reading.
/// Receives that are posted ahead of their data are no use of the network.
fn is_active(before: &Host, now: &Process) -> bool {
    let sends = |process: &Process| {
        let mut senders = process.connections.iter().filter(|c| c.direction == "send");
        senders.any(|c| c.in_flight.0 > 0)
    };
    let old = same(before, now);
    let calls = |totals: &Totals| -> [Count; 4] {
        [totals.requests, totals.done, totals.waits_for_peer, totals.waits_for_queue]
    };
    let calls = |process: &Process| [&process.totals.send, &process.totals.recv].map(calls);
    sends(now) || old.is_some_and(|old| calls(old) != calls(now))
}

/// Returns what an earlier reading had of a process.
pub(super) fn same<'a>(before: &'a Host, now: &Process) -> Option<&'a Process> {
    before.processes.iter().find(|old| (old.pid, old.made_ms) == (now.pid, now.made_ms))
}

impl State {
    /// Returns the state of a process.
    pub(super) fn of(pid: u32) -> Self {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat"));
        stat.map_or(Self::Absent, |stat| Self::parse(&stat))
    }

    /// Reads the letter behind the name, which may have brackets and spaces in it.
    fn parse(stat: &str) -> Self {
        let rest = stat.rsplit_once(')').map_or("", |(_, rest)| rest);
        match rest.trim_start().chars().next() {
            Some('D') => Self::Uninterruptible,
            Some('T') => Self::Stopped,
            Some('t') => Self::Traced,
            Some('Z') => Self::Zombie,
            Some('X' | 'x') => Self::Absent,
            _ => Self::Alive,
        }
    }

    /// Returns why a process in this state does nothing, behind "which"; `None` if it may do something.
    pub(super) fn obstacle(self) -> Option<&'static str> {
        match self {
            Self::Alive => None,
            Self::Uninterruptible => Some("hangs in a call of the kernel (state D)"),
            Self::Stopped => Some("is stopped (state T)"),
            Self::Traced => Some("is stopped by a debugger (state t)"),
            Self::Zombie => Some("has ended (a zombie)"),
            Self::Absent => Some("is not there"),
        }
    }

    /// Returns what to do about a process in such a state.
    pub(super) fn remedy(self, pid: u32) -> String {
        match self {
            Self::Stopped => format!("\"kill -CONT {pid}\", unless somebody has stopped it on purpose"),
            _ => format!("who holds it: \"cat /proc/{pid}/status /proc/{pid}/stack\""),
        }
    }
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

    #[test]
    fn the_state_stands_behind_the_name() {
        let parse = |state: char| State::parse(&format!("12 (a) T (b) {state} 1 12 0"));
        let states = ['S', 'R', 'D', 'T', 't', 'Z', 'X'].map(parse);
        use State::*;
        assert_eq!(states, [Alive, Alive, Uninterruptible, Stopped, Traced, Zombie, Absent]);
        assert_eq!((State::of(std::process::id()), State::of(u32::MAX)), (Alive, Absent));
    }
}
