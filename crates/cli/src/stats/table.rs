//! The tables for people: the ports of a process, and its connections, each followed by a line for
//! each of its rails.

use mpib_host_view::{Connection, Count, Failover, Host, Port, Process, Rail, Verdict};
use nccl_net_mpib_agent_iface::stats::Traffic;

use crate::output::{
    colour::{BAD, WARN, paint},
    table::{Table, left, paragraph, right},
    units::{decimal, rate},
};

/// A row of connections and rails.
type Row = [String; 13];

/// Formats the whole table.
pub(super) fn text(all: &Host) -> String {
    let mut out = if all.processes.is_empty() { String::new() } else { verdict(&all.verdict) };
    for process in &all.processes {
        out += &head(process);
        out += &ports(&process.ports);
        out += &table(&process.connections);
        for c in &process.connections {
            if let (Some(wait), Some(seconds @ 1..)) = (&c.wait, c.waited_ms(all.at_ms).map(|ms| ms / 1_000))
            {
                out += &paragraph(2, &format!("#{} has waited {seconds} s for {}", c.index, wait.what));
            }
            if let Some(reason) = &c.reason {
                out += &paragraph(2, &format!("#{} failed: {reason}", c.index));
            }
            for (rail, why) in c.rails.iter().filter_map(|rail| Some((rail, rail.missing.as_ref()?))) {
                out += &paragraph(2, &format!("#{} lacks {}: {why}", c.index, rail.name));
            }
        }
        out.push('\n');
    }
    out
}

/// Formats the state of the whole.
fn verdict(verdict: &Verdict) -> String {
    let text = paragraph(0, &verdict.text);
    match verdict.level.as_str() {
        "good" => text,
        "drained" => paint(WARN, text.trim_end()) + "\n",
        _ => paint(BAD, text.trim_end()) + "\n",
    }
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
    let texts = ["#", "way", "peer, rails", "kind"].map(left);
    let numbers = [
        "in flight",
        "messages",
        "bytes",
        "share",
        "work requests",
        "no receive",
        "queue full",
        "errors",
        if rates { "rate" } else { "" },
    ];
    let mut table = Table::new(texts.into_iter().chain(numbers.map(right))).indent(2);
    for c in connections {
        table.row(connection(c));
        for rail in &c.rails {
            table.row(rail_row(c, rail));
        }
    }
    table.text()
}

/// Formats the ports that have carried something, or that are not healthy.
fn ports(ports: &[Port]) -> String {
    let is_shown = |port: &&Port| port.counts.work_requests.0 > 0 || port.state != "healthy";
    let shown: Vec<&Port> = ports.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return String::new();
    }
    let numbers = [
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
    let columns = ["port", "state"].map(left).into_iter().chain(numbers.map(right));
    let mut table = Table::new(columns).indent(2);
    for port in &shown {
        table.row(port_row(port));
    }
    let mut out = table.text();
    for port in shown {
        if let Some(cause) = &port.cause {
            out += &paragraph(2, &format!("{} is {}: {cause}", port.name, port.state));
        }
    }
    out + "\n"
}

fn port_row(p: &Port) -> [String; 11] {
    let per_second = |bytes: Option<f64>| bytes.map_or("-".into(), rate);
    [
        p.name.clone(),
        p.state.clone(),
        p.connections.to_string(),
        bytes(p.counts.bytes_sent),
        p.counts.parts_sent.0.to_string(),
        p.counts.parts_received.0.to_string(),
        p.counts.errors.0.to_string(),
        p.counts.episodes.values().copied().sum::<Count>().0.to_string(),
        per_second(p.goodput.map(|goodput| goodput.0 as f64)),
        format!("{}/1024", p.scale),
        per_second(p.bytes_sent_per_second),
    ]
}

/// Formats `1234567 (1.23 MB)`: the exact number and a short form.
fn bytes(Count(n): Count) -> String {
    if n < 1000 { n.to_string() } else { format!("{n} ({})", decimal(n)) }
}

fn connection(c: &Connection) -> Row {
    let rates = match (c.messages_per_second, c.bytes_per_second) {
        (Some(messages), Some(bytes)) => format!("{messages:.0}/s, {}", rate(bytes)),
        _ => String::new(),
    };
    let split = if c.islands == "-" { c.data.clone() } else { format!("{} {}", c.islands, c.data) };
    let window = if c.traffic == Traffic::Windows.word() { "window " } else { "" };
    [
        c.index.to_string(),
        c.direction.clone(),
        c.peer.clone(),
        format!("{} {window}{split}", c.state),
        c.in_flight.0.to_string(),
        c.messages.0.to_string(),
        bytes(c.bytes),
        c.share.map_or("-".into(), |share| format!("{share}/1024")),
        String::new(),
        c.waits_for_peer.0.to_string(),
        c.waits_for_queue.0.to_string(),
        c.errors.0.to_string(),
        rates,
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
        match (r.lacks.as_deref(), r.given_up_at_ms) {
            (None, _) => none(),
            (Some("left_out"), _) => "left out".into(),
            (Some("drained"), _) => "drained".into(),
            (Some(_), Some(_)) => "given up".into(),
            (Some(_), None) => "down".into(),
        },
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

#[cfg(test)]
mod tests {
    use mpib_host_view::Wait;

    use super::*;

    //= stats.md: a connection shows for what it waits, and since when
    #[test]
    fn a_wait_of_a_second_and_more_is_a_line() {
        let waits_since = |index, since_ms| Connection {
            index,
            wait: Some(Wait { r#for: "receive".into(), what: "a receive of node7".into(), since_ms }),
            ..Connection::default()
        };
        let connections = vec![waits_since(0, 27_800), waits_since(1, 99_001), Connection::default()];
        let host = Host {
            at_ms: 100_000,
            processes: vec![Process { connections, ..Process::default() }],
            ..Host::default()
        };
        let text = text(&host);
        let lines: Vec<_> = text.lines().filter(|line| line.contains("waited")).collect();
        assert_eq!(lines, ["  #0 has waited 72 s for a receive of node7"]);
    }
}
