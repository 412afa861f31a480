//! Reads the pages of processes into the documents of `--json`.

use std::collections::BTreeMap;
use std::collections::HashMap;
use std::fs;
use std::time::Instant;

use nccl_net_mpib_agent_iface::stats::{Connection, Event, NoPage, Rail, StatsPage, pages_of, processes};
use serde::Serialize;

/// The pages read at one time.
#[derive(Debug, Serialize)]
pub(super) struct Gathered {
    /// One entry for each plugin file in a process.
    pub(super) processes: Vec<ProcessStats>,
    /// Processes that this user may not inspect, if no process was named.
    pub(super) not_permitted: usize,
    #[serde(skip)]
    pub(super) unreadable: Vec<String>,
    #[serde(skip)]
    at: Option<Instant>,
}

/// One page.
#[derive(Debug, Serialize)]
pub(super) struct ProcessStats {
    /// The process's number in this program's namespace.
    pub(super) pid: u32,
    /// `/proc/PID/comm`
    pub(super) command: String,
    /// Version of the plugin.
    pub(super) plugin: String,
    /// When the page was made, ns since 1970.
    made: u64,
    /// Connections made so far.
    pub(super) opened: u64,
    /// Open connections.
    pub(super) open: u32,
    /// Open connections that are not in `connections`, since the page is full.
    pub(super) not_shown: u32,
    /// Connections made so far over another NIC than NCCL requested.
    pub(super) elsewhere: u32,
    /// Asynchronous events of the adapters, by name, with their number. Events that never occurred
    /// are omitted.
    pub(super) events: BTreeMap<&'static str, u64>,
    pub(super) failover: FailoverStats,
    pub(super) connections: Vec<ConnectionStats>,
}

/// What failover has cost the process. Senders count it.
#[derive(Debug, Serialize)]
pub(super) struct FailoverStats {
    /// Times that a connection carried on without a rail.
    pub(super) episodes: u64,
    /// Bytes that were sent again.
    pub(super) bytes_sent_again: u64,
    /// Sum of the connections' stalls, ns.
    pub(super) stalled: u64,
    /// Ports and routes that came back into use.
    pub(super) returns: u64,
}

/// One end of a connection.
#[derive(Debug, Serialize)]
pub(super) struct ConnectionStats {
    pub(super) index: usize,
    generation: u64,
    /// `open` or `failed`
    pub(super) state: &'static str,
    /// `send` or `recv`
    pub(super) direction: &'static str,
    /// `intra`, `inter`, or `-` for a device other than SOUT and SUP
    pub(super) islands: &'static str,
    /// `split`, `one rail` or `plain`
    pub(super) data: &'static str,
    pub(super) peer: String,
    since: u64,
    requests: u64,
    done: u64,
    pub(super) in_flight: u64,
    pub(super) messages: u64,
    pub(super) bytes: u64,
    pub(super) messages_per_second: Option<f64>,
    pub(super) bytes_per_second: Option<f64>,
    pub(super) waits_for_peer: u64,
    pub(super) waits_for_queue: u64,
    pub(super) errors: u64,
    pub(super) failed_at: Option<u64>,
    pub(super) reason: Option<String>,
    pub(super) share: Option<u32>,
    pub(super) rails: Vec<RailStats>,
}

/// A rail of a connection.
#[derive(Debug, Serialize)]
pub(super) struct RailStats {
    pub(super) name: String,
    /// Index in its device.
    pub(super) role: u32,
    /// Absent at a receiver.
    pub(super) bytes: Option<u64>,
    pub(super) parts: u64,
    pub(super) work_requests: u64,
    pub(super) work_requests_done: u64,
    pub(super) work_requests_in_flight: u64,
    pub(super) errors: u64,
    /// Since when it is given up, ns since 1970; absent while it is in use.
    pub(super) given_up_at: Option<u64>,
}

/// Reads one process, or all that this user may inspect. If the named process has no page, returns
/// the reason.
pub(super) fn gather(pid: Option<u32>) -> Result<Gathered, (u32, NoPage)> {
    let mut gathered = Gathered {
        processes: Vec::new(),
        not_permitted: 0,
        unreadable: Vec::new(),
        at: Some(Instant::now()),
    };
    if let Some(pid) = pid {
        let pages = pages_of(pid).map_err(|e| (pid, e))?;
        gathered.processes.extend(pages.iter().map(|page| process(pid, page)));
        return Ok(gathered);
    }
    let all = processes().map_err(|source| (0, NoPage::Io { path: "/proc".into(), source }))?;
    for pid in all {
        match pages_of(pid) {
            Ok(pages) => gathered.processes.extend(pages.iter().map(|page| process(pid, page))),
            // The process has ended, or it has no page.
            Err(NoPage::NoProcess | NoPage::None) => {}
            Err(NoPage::NotPermitted) => gathered.not_permitted += 1,
            Err(e) => gathered.unreadable.push(format!("process {pid}: {e}")),
        }
    }
    Ok(gathered)
}

fn process(pid: u32, page: &StatsPage) -> ProcessStats {
    let connections = page.connections().into_iter().map(ConnectionStats::from).collect();
    let summary = page.summary();
    let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    ProcessStats {
        pid,
        command: command.trim_end().chars().map(|c| if c.is_control() { '?' } else { c }).collect(),
        plugin: summary.plugin,
        made: summary.made,
        opened: summary.opened,
        open: summary.open,
        not_shown: summary.hidden,
        elsewhere: summary.substituted,
        events: (0u8..)
            .zip(summary.events)
            .filter_map(|(code, n)| Some((Event::of(code)?.word(), n)).filter(|(_, n)| *n > 0))
            .collect(),
        failover: FailoverStats {
            episodes: summary.episodes,
            bytes_sent_again: summary.replayed,
            stalled: summary.stalled,
            returns: summary.returns,
        },
        connections,
    }
}

impl From<Connection> for ConnectionStats {
    fn from(c: Connection) -> Self {
        let word = |word: Option<&'static str>| word.unwrap_or("?");
        Self {
            index: c.index,
            generation: c.generation,
            state: word(c.state.map(|s| s.word())),
            direction: word(c.direction.map(|d| d.word())),
            islands: word(c.islands.map(|i| i.word())),
            data: word(c.data.map(|d| d.word())),
            since: c.since,
            requests: c.requests,
            done: c.done,
            in_flight: c.in_flight(),
            messages: c.messages,
            bytes: c.bytes,
            messages_per_second: None,
            bytes_per_second: None,
            waits_for_peer: c.waits_peer,
            waits_for_queue: c.waits_queue,
            errors: c.errors,
            failed_at: c.failed_at,
            share: c.share,
            rails: c.rails.iter().map(RailStats::from).collect(),
            peer: c.peer,
            reason: c.reason,
        }
    }
}

impl From<&Rail> for RailStats {
    fn from(r: &Rail) -> Self {
        Self {
            name: r.name.clone(),
            role: r.role,
            bytes: r.bytes,
            parts: r.parts,
            work_requests: r.posted,
            work_requests_done: r.done,
            work_requests_in_flight: r.in_flight(),
            errors: r.errors,
            given_up_at: r.given_up_at,
        }
    }
}

impl Gathered {
    /// Computes the rates since `last`, for connections that existed then.
    pub(super) fn rates(&mut self, last: &Self) {
        let (Some(now), Some(then)) = (self.at, last.at) else { return };
        let seconds = now.duration_since(then).as_secs_f64();
        let old: HashMap<_, _> = last
            .processes
            .iter()
            .flat_map(|p| p.connections.iter().map(move |c| ((p.pid, p.made, c.index, c.generation), c)))
            .collect();
        for p in &mut self.processes {
            for c in &mut p.connections {
                let Some(old) = old.get(&(p.pid, p.made, c.index, c.generation)) else { continue };
                let rate = |now: u64, then: u64| Some(now.saturating_sub(then) as f64 / seconds);
                c.messages_per_second = rate(c.messages, old.messages);
                c.bytes_per_second = rate(c.bytes, old.bytes);
            }
        }
    }
}
