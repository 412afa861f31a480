//! The tables for people: the ports of a process, and its connections, each followed by a line for
//! each of its rails.

use mpib_host_view::{Connection, Count, Failover, Host, Port, Process, Rail};

use crate::perf::decimal;

/// A row of connections and rails.
type Row = [String; 13];

/// Columns of connections that are aligned to the left, before those aligned to the right.
const LEFT: usize = 4;

/// Formats the whole table.
pub(super) fn text(all: &Host) -> String {
    let mut out = String::new();
    for process in &all.processes {
        out += &head(process);
        out += &ports(&process.ports);
        out += &table(&process.connections);
        for c in &process.connections {
            if let Some(reason) = &c.reason {
                out += &format!("  #{} failed: {reason}\n", c.index);
            }
        }
        out.push('\n');
    }
    out
}

fn head(p: &Process) -> String {
    let hidden = match p.not_shown {
        0 => String::new(),
        n => format!(" ({n} of them not shown: the page is full)"),
    };
    let substituted = match p.substituted {
        0 => String::new(),
        n => format!(", {n} of these over another NIC than NCCL requested"),
    };
    let (pid, command, plugin, open, opened) = (p.pid, &p.command, &p.plugin, p.open, p.opened.0);
    let mut head = format!(
        "process {pid} ({command}), plugin {plugin}; connections: {open} now{hidden}, {opened} so far{substituted}\n"
    );
    if !p.events.is_empty() {
        let events: Vec<_> = p.events.iter().map(|(what, n)| format!("{what} {}", n.0)).collect();
        head += &format!("  adapters reported: {}\n", events.join(", "));
    }
    if p.forged_frames.0 > 0 {
        head +=
            &format!("  control connections: {} frames with a wrong authentication tag\n", p.forged_frames.0);
    }
    head + &failover(&p.failover)
}

/// Formats what failover has cost the process; nothing if no rail has failed.
fn failover(f: &Failover) -> String {
    let (episodes, returns, stalled) = (f.episodes.0, f.returns.0, f.stalled_ms);
    if episodes == 0 && returns == 0 {
        return String::new();
    }
    let again = bytes(f.bytes_sent_again);
    format!(
        "  failover: episodes {episodes}, stalls {stalled:.1} ms in all, bytes sent again {again}, returns {returns}\n"
    )
}

fn table(connections: &[Connection]) -> String {
    if connections.is_empty() {
        return String::new();
    }
    let rates = connections.iter().any(|c| c.bytes_per_second.is_some());
    let mut rows: Vec<Row> = vec![
        [
            "#",
            "way",
            "peer, rails",
            "kind",
            "in flight",
            "messages",
            "bytes",
            "share",
            "work requests",
            "no receive",
            "queue full",
            "errors",
            if rates { "rate" } else { "" },
        ]
        .map(str::to_owned),
    ];
    for c in connections {
        rows.push(connection(c));
        rows.extend(c.rails.iter().map(|rail| rail_row(c, rail)));
    }
    align(&rows, LEFT)
}

/// Formats the ports that have carried something, or that are not healthy.
fn ports(ports: &[Port]) -> String {
    let is_shown = |port: &&Port| port.counts.work_requests.0 > 0 || port.state != "healthy";
    let shown: Vec<&Port> = ports.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return String::new();
    }
    let head = [
        "port",
        "state",
        "connections",
        "sent",
        "parts sent",
        "parts received",
        "errors",
        "episodes",
        "goodput",
        "scale",
        "rate",
    ];
    let mut rows = vec![head.map(str::to_owned)];
    rows.extend(shown.iter().map(|port| port_row(port)));
    let mut out = align(&rows, 2);
    for port in shown {
        if let Some(cause) = &port.cause {
            out += &format!("  {} is {}: {cause}\n", port.name, port.state);
        }
    }
    out + "\n"
}

fn port_row(p: &Port) -> [String; 11] {
    let per_second = |rate: Option<u64>| rate.map_or("-".into(), |rate| format!("{}/s", decimal(rate)));
    [
        p.name.clone(),
        p.state.clone(),
        p.connections.to_string(),
        bytes(p.counts.bytes_sent),
        p.counts.parts_sent.0.to_string(),
        p.counts.parts_received.0.to_string(),
        p.counts.errors.0.to_string(),
        p.counts.episodes.values().copied().sum::<Count>().0.to_string(),
        per_second(p.goodput.map(|goodput| goodput.0)),
        format!("{}/1024", p.scale),
        per_second(p.bytes_sent_per_second.map(|rate| rate as u64)),
    ]
}

/// Formats rows with aligned columns: the first `left` to the left, the others to the right.
fn align<const N: usize>(rows: &[[String; N]], left: usize) -> String {
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..N).map(width).collect();
    let line = |row: &[String; N]| {
        let cell = |(i, (text, width)): (usize, (&String, &usize))| match i < left {
            true => format!("{text:<width$}"),
            false => format!("{text:>width$}"),
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        format!("  {}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Formats `1234567 (1.2 MB)`: the exact number and a short form.
fn bytes(Count(n): Count) -> String {
    if n < 1000 { n.to_string() } else { format!("{n} ({})", decimal(n)) }
}

fn connection(c: &Connection) -> Row {
    let rate = match (c.messages_per_second, c.bytes_per_second) {
        (Some(messages), Some(bytes)) => format!("{messages:.0}/s, {}/s", decimal(bytes as u64)),
        _ => String::new(),
    };
    let split = if c.islands == "-" { c.data.clone() } else { format!("{} {}", c.islands, c.data) };
    [
        c.index.to_string(),
        c.direction.clone(),
        c.peer.clone(),
        format!("{} {split}", c.state),
        c.in_flight.0.to_string(),
        c.messages.0.to_string(),
        bytes(c.bytes),
        c.share.map_or("-".into(), |share| format!("{share}/1024")),
        String::new(),
        c.waits_for_peer.0.to_string(),
        c.waits_for_queue.0.to_string(),
        c.errors.0.to_string(),
        rate,
    ]
}

fn rail_row(c: &Connection, r: &Rail) -> Row {
    // Only a device of two rails has named roles.
    let role = match (c.islands.as_str(), r.role) {
        ("-", _) => "",
        (_, 0) => " SOUT",
        (_, 1) => " SUP",
        _ => "",
    };
    let none = String::new;
    [
        none(),
        none(),
        format!("  {}{role}", r.name),
        r.given_up_at_ms.map_or_else(none, |_| "given up".into()),
        r.work_requests_in_flight.0.to_string(),
        r.parts.0.to_string(),
        r.bytes.map_or("-".into(), bytes),
        none(),
        r.work_requests.0.to_string(),
        none(),
        none(),
        r.errors.0.to_string(),
        none(),
    ]
}
