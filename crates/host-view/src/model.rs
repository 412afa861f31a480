//! The document of one reading.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::{Communicator, Count, Owner, State, Verdict};

/// The most ports of a document, and so the most values of the labels `device` and `port` in
/// metrics.
pub const MAX_PORTS: usize = 64;

/// A wait that people look at.
pub(crate) const LONG_WAIT_MS: u64 = 5_000;

/// What the processes with the plugin do on this host. All times are ms since 1970 (UTC).
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Host {
    /// Version of this format. New members do not change it.
    pub format: u32,
    /// When the pages were read.
    pub at_ms: u64,
    /// Name of the host.
    pub hostname: String,
    /// Version of the program that has read the pages.
    pub mpib: String,
    /// Time since the reading that the rates are computed from; null without one.
    pub interval_seconds: Option<f64>,
    /// The state of the whole in one line.
    pub verdict: Verdict,
    /// Ports, by name: at most 64. Those that the kernel has come first, whether a process uses them or
    /// not; in a document of one process, only its own. Their counts are the sums of the processes'
    /// counts.
    pub ports: Vec<Port>,
    /// Ports beyond the 64th.
    pub ports_not_shown: usize,
    /// Sums over all connections so far.
    pub totals: TwoWays,
    /// Sums of the processes' `failover`.
    pub failover: Failover,
    /// Sums of the processes' `events`.
    pub events: BTreeMap<String, Count>,
    /// Sum of the processes' `forged_frames`.
    pub forged_frames: Count,
    /// Connections made so far.
    pub opened: Count,
    /// The jobs that processes name, by number of the user and name: at most 16 users and 8 jobs of
    /// each, and `other` for all further ones.
    #[serde(default)]
    pub jobs: Vec<Job>,
    /// One member for each copy of the plugin in a process.
    pub processes: Vec<Process>,
    /// Processes that this user may not inspect, if no process was named. Of an agent: processes that
    /// it serves and that have passed no statistics page.
    pub not_permitted: usize,
    /// Processes that were not inspected, since too many pages were read before: 256 of their user,
    /// or 1,024 of the host.
    pub not_inspected: usize,
    /// Why the pages of other processes cannot be read.
    pub unreadable: Vec<String>,
}

/// The processes of one user that name the same job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Job {
    /// Name of the user, or the number if the system has none.
    pub user: String,
    /// Name of the job.
    pub job: String,
    /// Its processes on this host.
    pub processes: u32,
    /// Their open connections.
    pub connections: u32,
    /// Those of the document that have failed.
    pub failed: u32,
    /// Those of the document that run without a rail that they expect.
    pub degraded: u32,
    /// The longest wait of an open connection in ms, by what it waits for.
    pub waits_ms: BTreeMap<String, u64>,
    /// Sums of the processes' `totals`. Of an agent: with those of processes that have ended, while the
    /// job has others.
    pub totals: TwoWays,
}

/// One statistics page.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Process {
    /// Number of the process in the reader's namespace.
    pub pid: u32,
    /// Number of the user.
    pub uid: u32,
    /// Name of the user; null if the system has none.
    pub user: Option<String>,
    /// `/proc/PID/comm`
    pub command: String,
    /// How the kernel runs it.
    pub state: State,
    /// Name of the job: `MPIB_JOB`, or that of the scheduler; null if the process has none.
    #[serde(default)]
    pub job: Option<String>,
    /// Version of the plugin.
    pub plugin: String,
    /// When the page was made.
    pub made_ms: u64,
    /// Connections made so far.
    pub opened: Count,
    /// Open connections.
    pub open: u32,
    /// Open connections that are not in `connections`, because the page is full, or the document has
    /// 32,768 of the user or 131,072 in all; an agent's has 8,192 or 10,240,
    /// first those that have failed, lack a rail or wait. The totals have them.
    pub not_shown: u32,
    /// Connections made so far over another NIC than NCCL requested.
    pub substituted: u32,
    /// Asynchronous events of the adapters, by name, with their number. Events that never occurred
    /// are omitted.
    pub events: BTreeMap<String, Count>,
    /// Frames of control connections with a wrong authentication tag: something between the ends,
    /// or another process, has written them.
    pub forged_frames: Count,
    /// What failover has cost the process.
    pub failover: Failover,
    /// Sums over all connections so far.
    pub totals: TwoWays,
    /// Ports of the process, by name.
    pub ports: Vec<Port>,
    /// Rails so far on ports beyond the 64th, which `ports` does not have. Of an agent: and ports beyond the
    /// 512th of the user or the 1,024th in all.
    pub rails_not_in_ports: u32,
    /// Open connections, except those beyond the 1024th.
    pub connections: Vec<Connection>,
    /// NCCL's communicators, if its profiler is this plugin: at most 16. Of an agent: none.
    #[serde(default)]
    pub communicators: Vec<Communicator>,
    /// Who is charged for it, where that is known.
    #[serde(skip)]
    pub owner: Option<Owner>,
}

/// What failover has cost. Both ends of a connection count.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Failover {
    /// Times that an end of a connection carried on without a rail.
    pub episodes: Count,
    /// Bytes that senders sent again.
    pub bytes_sent_again: Count,
    /// Sum of the stalls.
    pub stalled_ms: f64,
    /// Ports and routes that came back into use.
    pub returns: Count,
}

/// Sums by direction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct TwoWays {
    /// Sends.
    pub send: Totals,
    /// Receives.
    pub recv: Totals,
}

/// Sums over all connections of one direction, the closed ones included.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Totals {
    /// Requests that isend, irecv or iflush returned.
    pub requests: Count,
    /// Requests that test reported as done.
    pub done: Count,
    /// Messages of done requests.
    pub messages: Count,
    /// Bytes of these messages.
    pub bytes: Count,
    /// Calls of isend without a request, because the peer had posted no receive.
    pub waits_for_peer: Count,
    /// Calls of isend or irecv without a request, because a queue was full.
    pub waits_for_queue: Count,
    /// Calls that failed.
    pub errors: Count,
    /// Rate of `messages`.
    pub messages_per_second: Option<f64>,
    /// Rate of `bytes`.
    pub bytes_per_second: Option<f64>,
}

/// A port, of one process or of the whole host.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// Device and port.
    pub name: String,
    /// Name of the adapter.
    pub device: String,
    /// Number of the port.
    pub port: u32,
    /// `healthy`, `suspect`, `down` or `probing`. Of several processes the worst; `unused` if no
    /// process has the port.
    pub state: String,
    /// healthy: when the port was first used or came back; otherwise the first sign of the failure.
    pub since_ms: u64,
    /// Cause of a state other than healthy.
    pub cause: Option<String>,
    /// Open connections with a rail on the port.
    pub connections: u32,
    /// What the port carried in the last second while it had something to carry, in bytes/s. Of a
    /// process: for all its connections together. Of the host: the sum of its processes. Null if it
    /// was not measured.
    pub goodput: Option<Count>,
    /// Weight where messages are split, relative to the other ports: the largest of the processes';
    /// null if it is not measured.
    pub weight: Option<u32>,
    /// Scale of the weight, 0 to 1024: the smallest of the processes'. 0: no new data.
    pub scale: u32,
    /// Counts.
    #[serde(flatten)]
    pub counts: PortCounts,
    /// Rate of `bytes_sent`.
    pub bytes_sent_per_second: Option<f64>,
    /// Rate of `parts_sent`.
    pub parts_sent_per_second: Option<f64>,
    /// Rate of `parts_received`.
    pub parts_received_per_second: Option<f64>,
    /// What the kernel shows of the port. Null in the ports of a process, and without sysfs.
    pub adapter: Option<Adapter>,
}

/// What all connections so far have counted on a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct PortCounts {
    /// Message bytes that senders posted.
    pub bytes_sent: Count,
    /// Messages or parts that senders posted.
    pub parts_sent: Count,
    /// Messages or parts that receivers received. Receivers do not know how many bytes each port
    /// delivered.
    pub parts_received: Count,
    /// Work requests posted.
    pub work_requests: Count,
    /// Work requests known to be complete.
    pub work_requests_done: Count,
    /// Completions with an error.
    pub errors: Count,
    /// Failover episodes that began with a failure of the port, by reason.
    pub episodes: BTreeMap<String, Count>,
    /// Bytes that senders sent again in them.
    pub bytes_sent_again: Count,
    /// Stalls of these episodes.
    pub stalls: Stalls,
}

/// How long connections stalled in episodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stalls {
    /// Sum of the stalls.
    pub sum_ms: f64,
    /// Upper bounds of the ranges in ms. A last range without a bound follows.
    pub bounds_ms: Vec<u64>,
    /// Number of stalls in each range.
    pub counts: Vec<Count>,
}

/// What the kernel shows of a port in sysfs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Adapter {
    /// State of the link, for example `ACTIVE`.
    pub link: Option<String>,
    /// State of the physical port, for example `LinkUp` or `Polling`.
    pub physical: Option<String>,
    /// Whether an administrator has set the port down: its interface, or with InfiniBand the physical
    /// port.
    pub set_down: bool,
    /// When the link was last seen `ACTIVE`, if it is not now, and the port is not set down. Null also
    /// if the link was never seen: the agent remembers since its start, and one reading nothing.
    pub link_lost_ms: Option<u64>,
    /// Speed in bytes/s.
    pub speed: Option<Count>,
    /// Counters of `counters`, by the name of the file: `link_downed`, `symbol_error`,
    /// `port_rcv_errors`.
    pub counters: BTreeMap<String, Count>,
    /// Counters of `hw_counters`, by the name of the file.
    pub hw_counters: BTreeMap<String, Count>,
}

impl Adapter {
    /// Returns whether the link is up; `None` if the kernel does not show it.
    pub(crate) fn is_up(&self) -> Option<bool> {
        self.link.as_deref().map(|link| link == "ACTIVE")
    }
}

/// One end of a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Connection {
    /// Number of its entry in the page.
    pub index: usize,
    /// Identifies the use of the entry.
    pub generation: Count,
    /// `open` or `failed`
    pub state: String,
    /// `send` or `recv`
    pub direction: String,
    /// `intra`, `inter`, or `-` for a device other than SOUT and SUP
    pub islands: String,
    /// `split`, `one rail` or `plain`
    pub data: String,
    /// `messages`, or `window` for puts, gets and signals
    pub traffic: String,
    /// Name of the peer.
    pub peer: String,
    /// When it was established.
    pub since_ms: u64,
    /// Requests that isend, irecv or iflush returned.
    pub requests: Count,
    /// Requests that test reported as done.
    pub done: Count,
    /// Requests that are not done.
    pub in_flight: Count,
    /// Messages of done requests.
    pub messages: Count,
    /// Bytes of these messages.
    pub bytes: Count,
    /// Rate of `messages`.
    pub messages_per_second: Option<f64>,
    /// Rate of `bytes`.
    pub bytes_per_second: Option<f64>,
    /// Calls of isend without a request, because the peer had posted no receive.
    pub waits_for_peer: Count,
    /// Calls of isend or irecv without a request, because a queue was full.
    pub waits_for_queue: Count,
    /// What it waits for; null while it does not wait.
    pub wait: Option<Wait>,
    /// Calls that failed.
    pub errors: Count,
    /// When it failed.
    pub failed_at_ms: Option<u64>,
    /// Why it failed.
    pub reason: Option<String>,
    /// Last share of SUP, in parts per 1024; null if no share applies.
    pub share: Option<u32>,
    /// Rails, in order.
    pub rails: Vec<Rail>,
}

/// What a connection waits for: something is asked of it or outstanding, and nothing is begun or done.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wait {
    /// `receive`: of the peer; `data`: requests are outstanding; `rail`; or `room` in a queue
    pub r#for: String,
    /// The same in words, with the peer.
    pub what: String,
    /// Since when. Time in which the process was stopped is not part of it.
    pub since_ms: u64,
}

impl Host {
    /// Returns what this reading has of a process in another one.
    pub fn same(&self, other: &Process) -> Option<&Process> {
        self.processes.iter().find(|process| (process.pid, process.made_ms) == (other.pid, other.made_ms))
    }

    /// Returns a copy with those connections alone that `shows` returns true for. Nothing of the others is
    /// copied.
    pub fn with_connections(&self, mut shows: impl FnMut(&Connection) -> bool) -> Self {
        let mut process = |process: &Process| Process {
            connections: process.connections.iter().filter(|c| shows(c)).cloned().collect(),
            user: process.user.clone(),
            command: process.command.clone(),
            job: process.job.clone(),
            plugin: process.plugin.clone(),
            events: process.events.clone(),
            ports: process.ports.clone(),
            owner: process.owner.clone(),
            communicators: process.communicators.clone(),
            ..*process
        };
        Self {
            processes: self.processes.iter().map(&mut process).collect(),
            hostname: self.hostname.clone(),
            mpib: self.mpib.clone(),
            verdict: self.verdict.clone(),
            ports: self.ports.clone(),
            events: self.events.clone(),
            jobs: self.jobs.clone(),
            unreadable: self.unreadable.clone(),
            ..*self
        }
    }
}

impl Connection {
    /// Returns how long it has waited at this time, in ms; `None` while it does not wait.
    pub fn waited_ms(&self, at_ms: u64) -> Option<u64> {
        self.wait.as_ref().map(|wait| at_ms.saturating_sub(wait.since_ms))
    }

    /// Returns whether it has waited for so long at this time that people look at it: 5 s.
    pub fn has_waited_long(&self, at_ms: u64) -> bool {
        self.waited_ms(at_ms).is_some_and(|ms| ms >= LONG_WAIT_MS)
    }

    /// Returns whether people look at it at this time: it has failed, lacks a rail or has waited for long.
    pub fn is_troubled(&self, at_ms: u64) -> bool {
        self.state == "failed" || self.is_degraded() || self.has_waited_long(at_ms)
    }
}

/// Returns the host and process in the name of a peer, such as `192.0.2.2:48129 (node7, pid 17999)`.
pub fn peer_process(name: &str) -> Option<(&str, u32)> {
    let (_, brackets) = name.split_once('(')?;
    let (host, pid) = brackets.strip_suffix(')')?.split_once(", pid ")?;
    Some((host, pid.parse().ok()?))
}

/// A rail of a connection.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Rail {
    /// Device and port.
    pub name: String,
    /// Index in its device: 0 is SOUT, 1 is SUP.
    pub role: u32,
    /// Message bytes posted; null at a receiver.
    pub bytes: Option<Count>,
    /// Rate of `bytes`.
    pub bytes_per_second: Option<f64>,
    /// Sender: messages or parts posted. Receiver: messages or parts received.
    pub parts: Count,
    /// Work requests posted.
    pub work_requests: Count,
    /// Work requests known to be complete.
    pub work_requests_done: Count,
    /// Work requests not known to be complete.
    pub work_requests_in_flight: Count,
    /// Completions with an error.
    pub errors: Count,
    /// Since when it is given up; null while it is in use.
    pub given_up_at_ms: Option<u64>,
    /// Why the connection lacks it; null while it is in use.
    pub missing: Option<String>,
    /// Why data does not use it, in one word: `port`, `completion`, `stall`, `event`, `address` or
    /// `peer` as of an episode; `connect`: it has not worked since the connection was made;
    /// `left_out`: it is never used; `drained`; `other`. Null if nothing keeps data off it.
    pub lacks: Option<String>,
}

/// Returns the JSON schema of [`Host`], as text.
pub fn schema() -> String {
    let schema = schemars::schema_for!(Host);
    serde_json::to_string_pretty(&schema).unwrap_or_default() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_peer_has_its_host_and_process_in_brackets() {
        assert_eq!(peer_process("[2001:db8::7]:4000 (node7, pid 812)"), Some(("node7", 812)));
        for name in ["192.0.2.2:4000", "192.0.2.2:4000 (node7)", "192.0.2.2:4000 (node7, pid x)"] {
            assert_eq!(peer_process(name), None, "{name}");
        }
    }
}
