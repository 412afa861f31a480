//! The tables for people: the ports of a process, and its connections, each followed by a line for
//! each of its rails.

use mpib_host_view::{Communicator, Connection, Count, Failover, Host, Port, Process, Rail, Verdict};
use nccl_net_mpib_agent_iface::agent;
use nccl_net_mpib_agent_iface::stats::Traffic;

use crate::operation::operation;
use crate::output::{
    colour::{BAD, WARN, paint},
    columns::{Column, Kind, fit, peer},
    table::paragraph,
    units::{decimal, percent, rate},
};

/// A share of everything.
const SHARE_ONE: u64 = agent::SHARE_ONE as u64;

/// Most connections of a process that are listed because something is wrong with them.
const TROUBLED: usize = 10;
/// The space between two columns.
const GAP: usize = 2;
/// The space in front of a table.
const INDENT: usize = 2;

/// Formats the whole for so many columns: with `all` connections, or with those that have failed, wait
/// or lack a rail.
pub(super) fn text(host: &Host, all: bool, width: usize) -> String {
    let mut out = if host.processes.is_empty() { String::new() } else { verdict(&host.verdict) };
    let width = width.saturating_sub(INDENT);
    let mut hidden = 0;
    for process in &host.processes {
        out += &head(process);
        process.communicators.iter().for_each(|communicator| out += &operations(communicator));
        let ports = ports(&process.ports, width);
        let is_shown = |c: &&Connection| all || c.is_troubled(host.at_ms);
        let most = if all { usize::MAX } else { TROUBLED };
        let shown: Vec<_> = process.connections.iter().filter(is_shown).take(most).collect();
        hidden += process.connections.len() - shown.len();
        let between = if ports.is_empty() || shown.is_empty() { "" } else { "\n" };
        out += &format!("{ports}{between}{}", table(&shown, width));
        shown.iter().for_each(|c| out += &notes(c, host.at_ms));
        out.push('\n');
    }
    match hidden {
        0 => out,
        1 => out + "1 other connection: --connections lists it\n",
        n => out + &format!("{n} other connections: --connections lists them\n"),
    }
}

/// Formats what a connection waits for, why it has failed, and what it lacks.
fn notes(c: &Connection, at_ms: u64) -> String {
    let mut out = String::new();
    if let (Some(wait), Some(seconds @ 1..)) = (&c.wait, c.waited_ms(at_ms).map(|ms| ms / 1_000)) {
        out += &paragraph(2, &format!("#{} has waited {seconds} s for {}", c.index, wait.what));
    }
    if let Some(reason) = &c.reason {
        out += &paragraph(2, &format!("#{} failed: {reason}", c.index));
    }
    for (rail, why) in c.rails.iter().filter_map(|rail| Some((rail, rail.missing.as_ref()?))) {
        out += &paragraph(2, &format!("#{} lacks {}: {why}", c.index, rail.name));
    }
    out
}

/// Formats rows in those of the columns that fit into a width.
fn fitted<const N: usize>(columns: &[Column; N], rows: &[[String; N]], width: usize) -> String {
    let fitted = fit(columns, &rows.iter().collect::<Vec<_>>(), width, GAP);
    let lines = [fitted.head()].into_iter().chain(rows.iter().map(|row| fitted.row(row)));
    lines.map(|line| format!("{}\n", format!("{:INDENT$}{line}", "").trim_end())).collect()
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
    let job = p.job.as_ref().map_or(String::new(), |job| format!(", job {job}"));
    let mut head = format!(
        "process {pid} ({command}{job}), plugin {plugin}; connections: {open} now{hidden}, {opened} so far{substituted}\n"
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
    let again = decimal(f.bytes_sent_again.0);
    format!(
        "  failover: episodes {episodes}, stalls {stalled:.1} ms in all, bytes sent again {again}, returns {returns}\n"
    )
}

/// Formats what a communicator has done, and the slowest of its operations.
fn operations(c: &Communicator) -> String {
    let name = c.name.as_ref().map_or(String::new(), |name| format!(" ({name})"));
    let ranks = c.ranks.map_or(String::new(), |ranks| format!(" of {ranks}"));
    let missing = match c.not_recorded.0 {
        0 => String::new(),
        n => format!(", {n} of them not recorded"),
    };
    let slowest = c.slowest.as_ref().map_or(String::new(), |slowest| {
        let why = slowest.why.as_ref().map_or(String::new(), |why| format!(": {why}"));
        format!("; the slowest of the last minute: {}{why}", operation(slowest))
    });
    paragraph(
        2,
        &format!(
            "communicator {}{name}, rank {}{ranks}: {} operations{missing}{slowest}",
            c.id, c.rank, c.operations.0
        ),
    )
}

fn table(connections: &[&Connection], width: usize) -> String {
    if connections.is_empty() {
        return String::new();
    }
    let rates = connections.iter().any(|c| c.bytes_per_second.is_some());
    let columns = [
        Column::new("#", 0, Kind::Number(1)),
        Column::new("way", 0, Kind::Word(4)),
        Column::new("peer, rails", 0, Kind::Name(16, 16)),
        Column::new("kind", 2, Kind::Word(4)),
        Column::new("in flight", 3, Kind::Number(0)),
        Column::new("messages", 6, Kind::Number(0)),
        Column::new("bytes", 0, Kind::Number(0)),
        Column::new("share", 5, Kind::Number(0)),
        Column::new("work requests", 9, Kind::Number(0)),
        Column::new("no receive", 7, Kind::Number(0)),
        Column::new("queue full", 8, Kind::Number(0)),
        Column::new("errors", 4, Kind::Number(0)),
        Column::new(if rates { "rate" } else { "" }, u8::from(rates), Kind::Number(0)),
    ];
    let rows: Vec<_> = connections
        .iter()
        .flat_map(|c| [connection(c)].into_iter().chain(c.rails.iter().map(|rail| rail_row(c, rail))))
        .collect();
    fitted(&columns, &rows, width)
}

/// Formats the ports that have carried something, or that are not healthy.
fn ports(ports: &[Port], width: usize) -> String {
    let is_shown = |port: &&Port| port.counts.work_requests.0 > 0 || port.state != "healthy";
    let shown: Vec<&Port> = ports.iter().filter(is_shown).collect();
    if shown.is_empty() {
        return String::new();
    }
    let rates = shown.iter().any(|port| port.bytes_sent_per_second.is_some());
    let columns = [
        Column::new("port", 0, Kind::Name(10, 10)),
        Column::new("state", 0, Kind::Word(7)),
        Column::new("connections", 5, Kind::Number(0)),
        Column::new("sent", 0, Kind::Number(0)),
        Column::new("parts sent", 6, Kind::Number(0)),
        Column::new("parts received", 6, Kind::Number(0)),
        Column::new("errors", 3, Kind::Number(0)),
        Column::new("episodes", 4, Kind::Number(0)),
        Column::new("goodput", 1, Kind::Number(0)),
        Column::new("scale", 2, Kind::Number(0)),
        Column::new(if rates { "rate" } else { "" }, u8::from(rates), Kind::Number(0)),
    ];
    let mut out = fitted(&columns, &shown.iter().map(|port| port_row(port)).collect::<Vec<_>>(), width);
    for port in shown {
        if let Some(cause) = &port.cause {
            out += &paragraph(2, &format!("{} is {}: {cause}", port.name, port.state));
        }
    }
    out
}

fn port_row(p: &Port) -> [String; 11] {
    [
        p.name.clone(),
        p.state.clone(),
        p.connections.to_string(),
        decimal(p.counts.bytes_sent.0),
        p.counts.parts_sent.0.to_string(),
        p.counts.parts_received.0.to_string(),
        p.counts.errors.0.to_string(),
        p.counts.episodes.values().copied().sum::<Count>().0.to_string(),
        p.goodput.map_or("-".into(), |goodput| rate(goodput.0 as f64)),
        percent(p.scale.into(), SHARE_ONE),
        p.bytes_sent_per_second.map(rate).unwrap_or_default(),
    ]
}

fn connection(c: &Connection) -> [String; 13] {
    let rates = match (c.messages_per_second, c.bytes_per_second) {
        (Some(messages), Some(bytes)) => format!("{messages:.0}/s, {}", rate(bytes)),
        _ => String::new(),
    };
    let split = if c.islands == "-" { c.data.clone() } else { format!("{} {}", c.islands, c.data) };
    let window = if c.traffic == Traffic::Windows.word() { "window " } else { "" };
    [
        c.index.to_string(),
        c.direction.clone(),
        peer(&c.peer),
        format!("{} {window}{split}", c.state),
        c.in_flight.0.to_string(),
        c.messages.0.to_string(),
        decimal(c.bytes.0),
        c.share.map_or("-".into(), |share| percent(share.into(), SHARE_ONE)),
        String::new(),
        c.waits_for_peer.0.to_string(),
        c.waits_for_queue.0.to_string(),
        c.errors.0.to_string(),
        rates,
    ]
}

fn rail_row(c: &Connection, r: &Rail) -> [String; 13] {
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
        r.bytes.map_or("-".into(), |bytes| decimal(bytes.0)),
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
        for all in [true, false] {
            let text = text(&host, all, 100);
            let lines: Vec<_> = text.lines().filter(|line| line.contains("waited")).collect();
            assert_eq!(lines, ["  #0 has waited 72 s for a receive of node7"]);
        }
    }

    /// A process with a connection of eight rails that lacks one, and one without trouble.
    fn host() -> Host {
        let rail = |n: u32| Rail {
            name: format!("rocep1s0f{n}:1"),
            role: n,
            bytes: Some(Count(97_531_024 * u64::from(n + 1))),
            parts: Count(1_850_744_832),
            work_requests: Count(3_701_489_664),
            lacks: (n == 3).then(|| "port".into()),
            missing: (n == 3).then(|| "the port is down".into()),
            ..Rail::default()
        };
        let connection = |index, direction: &str, rails: u32| Connection {
            index,
            state: "open".into(),
            direction: direction.into(),
            islands: "-".into(),
            data: "plain".into(),
            peer: "[2001:db8:17::a2]:48129 (node17.rack4.example, pid 4194303)".into(),
            messages: Count(1_850_744_832),
            bytes: Count(9_753_102_400_000),
            waits_for_peer: Count(3_467_589_000),
            share: Some(341),
            rails: (0..rails).map(rail).collect(),
            ..Connection::default()
        };
        let port = |n: u32| {
            let mut port =
                Port { name: format!("rocep1s0f{n}:1"), state: "healthy".into(), ..Port::default() };
            (port.scale, port.goodput) = (1024, Some(Count(46_310_000_000)));
            (port.counts.work_requests, port.counts.bytes_sent) = (Count(7), Count(9_753_102_400_000));
            port
        };
        let connections = vec![connection(0, "send", 8), connection(1, "recv", 2)];
        let process =
            Process { pid: 7, ports: (0..8).map(port).collect(), connections, ..Process::default() };
        Host { processes: vec![process], ..Host::default() }
    }

    //= stats.md: a column has room for its numbers, or it is left out
    #[test]
    fn numbers_are_whole_on_terminals_of_40_to_200_columns() {
        let host = host();
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let whole = words(&text(&host, true, 1000));
        let mut before = 0;
        for width in 40..=200 {
            let text = text(&host, true, width);
            let tables: Vec<&str> =
                text.lines().filter(|line| line.starts_with("  ") && !line.contains(": ")).collect();
            let long = tables.iter().find(|line| line.chars().count() > width);
            assert_eq!(long, None, "{width}: {text}");
            for word in tables.iter().flat_map(|line| words(line)).filter(|word| !word.contains('…')) {
                assert!(whole.contains(&word), "{word:?} in {width} columns:\n{text}");
            }
            let figures = tables.iter().map(|line| words(line).len()).sum::<usize>();
            assert!(width == 40 || figures + 20 >= before, "{width} has less than {}:\n{text}", width - 1);
            before = figures;
        }
        assert!(text(&host, true, 200).contains("work requests"));
    }

    //= stats.md: of several processes those connections are listed that have failed, wait or lack a rail
    #[test]
    fn what_is_in_order_is_counted() {
        let mut host = host();
        let text = |host: &Host| text(host, false, 200);
        let few = text(&host);
        assert!(few.contains("#0 lacks rocep1s0f3:1: the port is down"), "{few}");
        assert!(
            !few.contains("recv") && few.ends_with("\n1 other connection: --connections lists it\n"),
            "{few}"
        );
        let lame = host.processes[0].connections[0].clone();
        host.processes[0].connections = vec![lame; 13];
        let many = text(&host);
        assert_eq!(many.matches("lacks").count(), 10, "{many}");
        assert!(many.ends_with("\n3 other connections: --connections lists them\n"), "{many}");
    }
}
