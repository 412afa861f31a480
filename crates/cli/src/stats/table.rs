//! The table for people: a line for each connection, followed by a line for each of its rails.

use super::gather::{ConnectionStats, FailoverStats, Gathered, ProcessStats, RailStats};
use crate::perf::decimal;

/// A row for [`text`], which aligns the first three columns to the left and the others to the
/// right.
type Row = [String; 13];

const LEFT: usize = 4;

/// Formats the whole table.
pub(super) fn text(all: &Gathered) -> String {
    let mut out = String::new();
    for process in &all.processes {
        out += &head(process);
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

fn head(p: &ProcessStats) -> String {
    let hidden = match p.not_shown {
        0 => String::new(),
        n => format!(" ({n} of them not shown: the page is full)"),
    };
    let elsewhere = match p.elsewhere {
        0 => String::new(),
        n => format!(", {n} of these over another NIC than NCCL requested"),
    };
    let (pid, command, plugin, open, opened) = (p.pid, &p.command, &p.plugin, p.open, p.opened);
    let mut head = format!(
        "process {pid} ({command}), plugin {plugin}; connections: {open} now{hidden}, {opened} so far{elsewhere}\n"
    );
    if !p.events.is_empty() {
        let events: Vec<_> = p.events.iter().map(|(what, n)| format!("{what} {n}")).collect();
        head += &format!("  adapters reported: {}\n", events.join(", "));
    }
    head + &failover(&p.failover)
}

/// Formats what failover has cost the process; nothing if no rail has failed.
fn failover(f: &FailoverStats) -> String {
    if f.episodes == 0 && f.returns == 0 {
        return String::new();
    }
    let (episodes, returns, stalled) = (f.episodes, f.returns, f.stalled as f64 / 1e6);
    let again = bytes(f.bytes_sent_again);
    format!(
        "  failover: episodes {episodes}, stalls {stalled:.1} ms in all, bytes sent again {again}, returns {returns}\n"
    )
}

fn table(connections: &[ConnectionStats]) -> String {
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
    let width = |column: usize| rows.iter().map(|row| row[column].chars().count()).max().unwrap_or(0);
    let widths: Vec<usize> = (0..rows[0].len()).map(width).collect();
    let line = |row: &Row| {
        let cell = |(i, (text, width)): (usize, (&String, &usize))| match i < LEFT {
            true => format!("{text:<width$}"),
            false => format!("{text:>width$}"),
        };
        let cells: Vec<String> = row.iter().zip(&widths).enumerate().map(cell).collect();
        format!("  {}\n", cells.join("  ").trim_end())
    };
    rows.iter().map(line).collect()
}

/// Formats `1234567 (1.2 MB)`: the exact number and a short form.
fn bytes(n: u64) -> String {
    if n < 1000 { n.to_string() } else { format!("{n} ({})", decimal(n)) }
}

fn connection(c: &ConnectionStats) -> Row {
    let rate = match (c.messages_per_second, c.bytes_per_second) {
        (Some(messages), Some(bytes)) => format!("{messages:.0}/s, {}/s", decimal(bytes as u64)),
        _ => String::new(),
    };
    let split = if c.islands == "-" { c.data.into() } else { format!("{} {}", c.islands, c.data) };
    [
        c.index.to_string(),
        c.direction.into(),
        c.peer.clone(),
        format!("{} {split}", c.state),
        c.in_flight.to_string(),
        c.messages.to_string(),
        bytes(c.bytes),
        c.share.map_or("-".into(), |share| format!("{share}/1024")),
        String::new(),
        c.waits_for_peer.to_string(),
        c.waits_for_queue.to_string(),
        c.errors.to_string(),
        rate,
    ]
}

fn rail_row(c: &ConnectionStats, r: &RailStats) -> Row {
    // Only a device of two rails has named roles.
    let role = match (c.islands, r.role) {
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
        r.given_up_at.map_or_else(none, |_| "given up".into()),
        r.work_requests_in_flight.to_string(),
        r.parts.to_string(),
        r.bytes.map_or("-".into(), bytes),
        none(),
        r.work_requests.to_string(),
        none(),
        none(),
        r.errors.to_string(),
        none(),
    ]
}
