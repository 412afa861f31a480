//! `mpib drain` and `mpib undrain`: the agent of this host takes a port out of use, or back into it. What
//! the port still carries afterwards, [`Watch`] follows.

use std::collections::BTreeMap;
use std::env;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use clap::Args;
use mpib_agent::folder;
use mpib_agent::http::{self, Drain};
use mpib_host_view::{Connection, Count, Host, Port, Process, peer_process};
use nix::unistd::geteuid;

use crate::failure::{Failure, Kind};
use crate::output;
use crate::quantity::interval;

/// How long the agent may take for an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The time between two questions. The agent reads once a second.
const PAUSE: Duration = Duration::from_millis(500);
/// How long a port must have carried nothing, in ms.
const QUIET_MS: u64 = 2_000;
/// Most connections that a line names.
const NAMED: usize = 3;

const EXIT_CODES: &str = "\
Exit codes:
  0  the port is out of use; with --wait: the cable can be pulled
  1  there is no agent, or it serves other users
  2  invalid options, or the agent refuses: no such port, or asked by a container
  6  with --wait: the port was still needed after --timeout";

/// Takes a port of this host out of use, for all jobs, by the agent. New data goes over other ports
#[derive(Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct DrainArgs {
    #[command(flatten)]
    port: PortArgs,
    /// Wait until the port has carried no data for 2 s, and say whether its cable can be pulled
    #[arg(long)]
    wait: bool,
    /// With --wait: give up after this long
    #[arg(long, value_name = "TIME", default_value = "60", value_parser = interval)]
    timeout: Duration,
}

/// Puts a port back into use
#[derive(Debug, Args)]
pub(crate) struct UndrainArgs {
    #[command(flatten)]
    port: PortArgs,
}

#[derive(Debug, Args)]
struct PortArgs {
    /// HCA and port, such as mlx5_1:1
    port: String,
    /// Why, for those who look later. The agent's log and page show it
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    /// Also take a port that neither an adapter nor a process of this host has
    #[arg(long)]
    force: bool,
    /// Folder of the agent's sockets [default: that of the agent of this user]
    #[arg(long, value_name = "FOLDER")]
    socket_dir: Option<PathBuf>,
}

impl PortArgs {
    /// Returns the agent's socket.
    fn socket(&self) -> PathBuf {
        let place = || folder::default(geteuid().is_root(), env::var_os("XDG_RUNTIME_DIR").as_deref());
        self.socket_dir.clone().unwrap_or_else(place).join(http::SOCKET)
    }

    fn set(&self, drain: bool) -> Result<(), Failure> {
        let Self { port, reason, force, .. } = self;
        let body = Drain { port: port.clone(), drain, reason: reason.clone(), force: *force };
        http::drain(&self.socket(), &body, PATIENCE).map(drop).map_err(|failed| match failed {
            http::Failed::Refused(why) => Failure::new(Kind::Usage, why),
            http::Failed::NoAnswer(why) => Failure::new(Kind::Tool, why),
        })
    }
}

pub(crate) fn undrain(args: &UndrainArgs) -> Result<(), Failure> {
    args.port.set(false)?;
    output::print(&format!("{} is in use again\n", args.port.port))
}

pub(crate) fn drain(args: &DrainArgs) -> Result<(), Failure> {
    args.port.set(true)?;
    let port = &args.port.port;
    output::print(&format!("{port} is out of use: new data of this host goes over other ports\n"))?;
    if args.wait { wait(&args.port, args.timeout) } else { Ok(()) }
}

/// Waits until the port is not needed.
fn wait(args: &PortArgs, timeout: Duration) -> Result<(), Failure> {
    let (port, until) = (&args.port, Instant::now() + timeout);
    let mut watch = Watch::new(port);
    let mut printed = String::new();
    loop {
        let host = http::host(&args.socket(), PATIENCE);
        let host = host.map_err(|failed| Failure::new(Kind::Tool, failed.to_string()))?;
        let why = match watch.on_reading(host) {
            Seen::Free { connections, unseen } => {
                let text = match connections {
                    0 => format!("{port} is not used: its cable can be pulled"),
                    n => format!(
                        "{port} has carried no data for 2 s: its cable can be pulled. {n} connections have it \
                         as a rail and carry on over others"
                    ),
                };
                let others = match unseen {
                    0 => String::new(),
                    n => format!(
                        ". The agent cannot read all connections of {n} processes, which may need the port"
                    ),
                };
                return output::print(&format!("{text}{others}\n"));
            }
            Seen::Needed(why) => why,
        };
        if Instant::now() >= until {
            let seconds = timeout.as_secs_f64();
            return Err(Failure::new(
                Kind::Timeout,
                format!("{port} is still needed after {seconds} s: {why}. It stays out of use"),
            ));
        }
        if why != printed {
            output::print(&format!("waits: {why}\n"))?;
            printed = why;
        }
        sleep(PAUSE);
    }
}

/// What the agent's readings show of a drained port.
#[derive(Debug)]
struct Watch<'a> {
    port: &'a str,
    /// The last reading, and what it has shown.
    last: Option<(Host, Seen)>,
    /// The first reading with the present counts.
    since_ms: u64,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Seen {
    /// It has carried nothing for [`QUIET_MS`], and its connections have other rails.
    Free {
        connections: u32,
        /// Processes whose connections the agent does not see, or not all of them.
        unseen: usize,
    },
    /// Why it is needed.
    Needed(String),
}

impl<'a> Watch<'a> {
    fn new(port: &'a str) -> Self {
        Self { port, last: None, since_ms: 0 }
    }

    /// Takes in the next reading, or the same one again.
    fn on_reading(&mut self, host: Host) -> Seen {
        if let Some((last, seen)) = &self.last
            && last.at_ms == host.at_ms
        {
            return seen.clone();
        }
        let Some(now) = self.port_in(&host) else {
            return Seen::Free { connections: 0, unseen: unseen(&host) };
        };
        let moved = |port: &Port| (port.counts.parts_sent, port.counts.parts_received);
        let before = self.last.as_ref().and_then(|(last, _)| self.port_in(last));
        let (has_moved, connections) = (before.map(moved) != Some(moved(now)), now.connections);
        if has_moved {
            self.since_ms = host.at_ms;
        }
        let quiet = host.at_ms.saturating_sub(self.since_ms);
        let bound = self.bound(&host);
        let movers = self.movers(&host);
        let seen = match (bound, movers) {
            (Some(bound), _) => Seen::Needed(bound),
            (None, _) if quiet >= QUIET_MS => Seen::Free { connections, unseen: unseen(&host) },
            (None, Some(movers)) => Seen::Needed(movers),
            (None, None) => Seen::Needed("it has carried data within the last 2 s".into()),
        };
        self.last = Some((host, seen.clone()));
        seen
    }

    fn port_in<'h>(&self, host: &'h Host) -> Option<&'h Port> {
        host.ports.iter().find(|port| port.name == self.port)
    }

    /// Names the connections that have no other rail.
    fn bound(&self, host: &Host) -> Option<String> {
        let other =
            |c: &Connection| c.rails.iter().any(|rail| rail.name != self.port && rail.lacks.is_none());
        let bound = self.connections(host).filter(|(_, c)| !other(c));
        listed(bound.map(|(pid, c)| format!("process {pid} with {}", peer(c))), "it is the only rail of ")
    }

    /// Names the connections that have moved data over the port since the reading before.
    fn movers(&self, host: &Host) -> Option<String> {
        let (last, _) = self.last.as_ref()?;
        let parts =
            |c: &Connection| c.rails.iter().find(|rail| rail.name == self.port).map(|rail| rail.parts);
        let id = |pid: u32, c: &Connection| (pid, c.index, c.generation.0);
        let before: BTreeMap<_, Option<Count>> =
            self.connections(last).map(|(pid, c)| (id(pid, c), parts(c))).collect();
        let has_moved = |(pid, c): &(u32, &Connection)| before.get(&id(*pid, c)) != Some(&parts(c));
        let moved = self.connections(host).filter(has_moved);
        let texts = moved.map(|(pid, c)| match c.direction.as_str() {
            "send" => format!("process {pid} sends to {}", peer(c)),
            _ => format!("{} sends to process {pid}", peer(c)),
        });
        listed(texts, "it carries data: ")
    }

    /// Returns the open connections with a rail on the port.
    fn connections<'h>(&self, host: &'h Host) -> impl Iterator<Item = (u32, &'h Connection)> {
        let port = self.port.to_owned();
        let has = move |c: &&Connection| c.rails.iter().any(|rail| rail.name == port);
        let of = move |process: &'h Process| {
            let open = process.connections.iter().filter(|c| c.state == "open").filter(has.clone());
            open.map(|c| (process.pid, c))
        };
        host.processes.iter().flat_map(of)
    }
}

/// Returns the number of processes whose connections the agent does not see, or not all of them.
fn unseen(host: &Host) -> usize {
    let cut = host.processes.iter().filter(|process| process.not_shown > 0).count();
    host.not_permitted + host.not_inspected + host.unreadable.len() + cut
}

fn peer(c: &Connection) -> String {
    match peer_process(&c.peer) {
        Some((host, pid)) => format!("process {pid} of host {host}"),
        None => c.peer.clone(),
    }
}

/// Lists the first few texts, each once; `None` if there are none.
fn listed(texts: impl Iterator<Item = String>, begin: &str) -> Option<String> {
    let mut all: Vec<String> = texts.collect();
    all.sort();
    all.dedup();
    let more = all.len().saturating_sub(NAMED);
    all.truncate(NAMED);
    let rest = if more > 0 { format!(", and {more} more") } else { String::new() };
    (!all.is_empty()).then(|| format!("{begin}{}{rest}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use mpib_host_view::Rail;

    use super::*;

    /// A reading at this second: a connection to host b, whose rails have moved so many parts.
    fn host(second: u64, rails: &[(&str, u64, Option<&str>)]) -> Host {
        let rail = |(name, parts, lacks): &(&str, u64, Option<&str>)| Rail {
            name: (*name).into(),
            parts: Count(*parts),
            lacks: lacks.map(Into::into),
            ..Rail::default()
        };
        let connection = Connection {
            state: "open".into(),
            direction: "recv".into(),
            peer: "192.0.2.2:4000 (b, pid 8)".into(),
            rails: rails.iter().map(rail).collect(),
            ..Connection::default()
        };
        let port = |(name, parts, _): &(&str, u64, Option<&str>)| {
            let mut port = Port { name: (*name).into(), connections: 1, ..Port::default() };
            port.counts.parts_received = Count(*parts);
            port
        };
        Host {
            at_ms: second * 1000,
            ports: rails.iter().map(port).collect(),
            processes: vec![Process { pid: 7, connections: vec![connection], ..Process::default() }],
            ..Host::default()
        }
    }

    fn needed(seen: &Seen, part: &str) {
        assert!(matches!(seen, Seen::Needed(why) if why.contains(part)), "{part}: {seen:?}");
    }

    //= agent.md: a cable can be pulled once its port has carried no data for 2 s
    #[test]
    fn a_port_is_free_after_two_seconds_without_data() {
        let mut watch = Watch::new("b:1");
        let at = |second, parts| host(second, &[("a:1", second, None), ("b:1", parts, None)]);
        needed(&watch.on_reading(at(1, 10)), "within the last 2 s");
        for _ in 0..2 {
            needed(&watch.on_reading(at(2, 11)), "it carries data: process 8 of host b sends to process 7");
        }
        needed(&watch.on_reading(at(3, 11)), "within the last 2 s");
        assert_eq!(watch.on_reading(at(4, 11)), Seen::Free { connections: 1, unseen: 0 });
        let mut host = at(5, 11);
        (host.not_permitted, host.not_inspected, host.processes[0].not_shown) = (2, 3, 4);
        host.unreadable.push("process 9".into());
        let not_used = Watch::new("c:1").on_reading(host.clone());
        assert_eq!(not_used, Seen::Free { connections: 0, unseen: 7 });
        assert_eq!(watch.on_reading(host), Seen::Free { connections: 1, unseen: 7 });
    }

    //= agent.md: a port that is the only rail of a connection is needed
    #[test]
    fn the_only_rail_of_a_connection_is_needed() {
        let mut watch = Watch::new("b:1");
        for second in 0..4 {
            let host = host(second, &[("a:1", 1, Some("port")), ("b:1", 1, None)]);
            needed(&watch.on_reading(host), "it is the only rail of process 7 with process 8 of host b");
        }
        let host = host(4, &[("a:1", 1, None), ("b:1", 1, None)]);
        assert_eq!(watch.on_reading(host), Seen::Free { connections: 1, unseen: 0 });
    }

    #[test]
    fn three_connections_are_named() {
        let all = (1..=5).map(|n| n.to_string());
        assert_eq!(listed(all, "x ").unwrap(), "x 1, 2, 3, and 2 more");
        assert_eq!(listed(std::iter::empty(), "x"), None);
    }
}
