//! The result of a fleet as text for people.

use nccl_net_mpib_agent_iface::doctor::{Check, Level};

use super::{Fleet, Host, HostPair};
use crate::doctor::{
    fold::{self, Line},
    text::{Detail, level, rate, why, with_code},
};
use crate::output::{
    colour::{BAD, GOOD, WARN, paint},
    printable,
    table::{Table, left, right},
    units::counted,
};

/// Most hosts of a matrix.
const MATRIX: usize = 16;
/// Most lines of one kind, unless all were requested.
const SHOWN: usize = 20;
/// Most hosts that are named in a finding of many.
const NAMED: usize = 3;

/// Formats the verdict, the bad hosts, the findings, the matrix, and last the pairs of ports.
pub(super) fn text(fleet: &Fleet, detail: Detail) -> String {
    let mut out = format!("{}: {}\n", fleet.verdict.painted(), summary(fleet));
    out += &bad_hosts(fleet);
    out += &findings(fleet, Level::Fail, detail);
    if detail == Detail::Quiet {
        return out;
    }
    out += &findings(fleet, Level::Warn, detail);
    out += &medians(fleet);
    if fleet.hosts.len() <= MATRIX {
        out += "\nports that carry data, of those that the host with fewer of them has\n";
        out += &cells(fleet);
    }
    if fleet.hosts.len() <= MATRIX || detail == Detail::Verbose {
        out.push('\n');
        out += &ports(fleet, detail == Detail::Verbose);
    }
    out
}

/// Returns what was measured, in a few words.
pub(super) fn summary(fleet: &Fleet) -> String {
    let seed = fleet.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
    let bad = match fleet.judgement.bad_hosts.len() {
        0 => String::new(),
        n => format!(", {}", counted(n, "bad host")),
    };
    let (hosts, pairs) = (counted(fleet.hosts.len(), "host"), counted(fleet.pairs.len(), "pair"));
    format!("{hosts}, {pairs} ({}{seed}){bad}", fleet.rule)
}

/// Formats a line for each reason of a bad host, the worst first.
fn bad_hosts(fleet: &Fleet) -> String {
    let of_host = fleet.judgement.bad_hosts.iter();
    let mut all: Vec<(&str, &Check)> =
        of_host.flat_map(|host| host.reasons.iter().map(|check| (&*host.name, check))).collect();
    all.sort_by_key(|(_, check)| std::cmp::Reverse(check.level));
    all.into_iter().map(|(name, check)| line(name, check)).collect()
}

/// Formats the other findings of this level.
fn findings(fleet: &Fleet, wanted: Level, detail: Detail) -> String {
    let mut lines: Vec<String> = Vec::new();
    lines.extend(fleet.absent.iter().filter(|check| check.level == wanted).map(|check| line("ranks", check)));
    // The failures of a bad host stand above.
    let is_above = |host| wanted == Level::Fail && fleet.is_bad(host);
    for (hosts, check) in fleet.of_hosts(|host, check| check.level == wanted && !is_above(host)) {
        let check = Check { text: format!("{}: {}", check.id, check.text), ..check.clone() };
        lines.push(line(&names(&hosts), &check));
    }
    let errors = fleet
        .pairs
        .iter()
        .filter(|pair| wanted == Level::Fail && !fleet.is_bad(pair.ends.from) && !fleet.is_bad(pair.ends.to));
    for (pair, error) in errors.filter_map(|pair| Some((pair, pair.error.as_ref()?))) {
        let place = format!("{} to {}", pair.from, pair.to);
        lines.push(line(&place, &Check::new("pair", Level::Fail, &error.failure.message)));
    }
    lines.extend(
        fleet.of_pairs().filter(|(_, check)| check.level == wanted).map(|(place, check)| line(&place, check)),
    );
    few(lines, detail)
}

/// Joins the first lines, and says how many there are besides.
fn few(mut lines: Vec<String>, detail: Detail) -> String {
    let others = lines.len().saturating_sub(SHOWN);
    if others > 0 && detail != Detail::Verbose {
        lines.truncate(SHOWN);
        lines.push(format!("and {others} more (-v shows them)\n"));
    }
    lines.concat()
}

fn line(place: &str, check: &Check) -> String {
    format!("{}  {}: {}\n", level(check.level), printable(place), with_code(printable(&check.text), check))
}

/// Names some hosts, and counts the others.
pub(super) fn names(hosts: &[&str]) -> String {
    match hosts.len() {
        n if n > NAMED => format!("{} and {} more", hosts[..NAMED].join(", "), n - NAMED),
        _ => hosts.join(", "),
    }
}

/// Formats a line for each median.
fn medians(fleet: &Fleet) -> String {
    if fleet.judgement.medians.is_empty() {
        return String::new();
    }
    let mut table =
        Table::new([left("ports"), left("limit"), right("hosts"), right("median Gb/s")]).indent(2);
    for median in &fleet.judgement.medians {
        table.row(median.cells().map(|cell| printable(&cell)));
    }
    format!("\nwhat a host carries with its best partner\n{}", table.text())
}

/// Formats the measured pairs of ports of each pair of hosts; all pairs if `verbose`.
fn ports(fleet: &Fleet, verbose: bool) -> String {
    let head = ["from", "to", "port", "port"].map(left);
    let head = head.into_iter().chain([right("out Gb/s"), right("back Gb/s"), left("why")]);
    let mut table = Table::new(head).indent(2);
    for pair in &fleet.pairs {
        let lines = fold::lines(&pair.routes).into_iter();
        for Line { here, there, row } in lines.filter(|l| verbose || l.row.out.is_some()) {
            let cells = [&pair.from, &pair.to, &here, &there].map(|cell| printable(cell));
            let rates = [&row.out, &row.back].map(rate);
            table.row(cells.into_iter().chain(rates).chain([printable(&why(row, verbose))]));
        }
    }
    table.text()
}

/// Formats a row for each host but the last, and a column for each but the first.
fn cells(fleet: &Fleet) -> String {
    let count = fleet.hosts.len();
    let numbers = (2..=count).map(|number| right(number.to_string()));
    let mut table = Table::new([right(""), left("host")].into_iter().chain(numbers)).indent(2);
    let mut cells = vec![vec![String::new(); count]; count];
    for pair in &fleet.pairs {
        let style = match quality(pair) {
            Level::Fail => BAD,
            Level::Warn => WARN,
            Level::Ok | Level::Note => GOOD,
        };
        cells[pair.ends.from][pair.ends.to] = paint(style, &cell(pair));
    }
    for (number, (host, cells)) in fleet.hosts.iter().zip(cells).enumerate() {
        let head = [(number + 1).to_string(), name(host)];
        table.row(head.into_iter().chain(cells.into_iter().skip(1)));
    }
    table.text()
}

fn name(host: &Host) -> String {
    match &host.summary {
        Some(summary) if summary.host != host.name => printable(&format!("{} ({})", host.name, summary.host)),
        _ => printable(&host.name),
    }
}

/// Formats the number of ports of a pair of hosts.
pub(super) fn cell(pair: &HostPair) -> String {
    match (&pair.error, pair.ports) {
        (Some(_), _) => "error".into(),
        (None, None) => "-".into(),
        (None, Some(ports)) => format!("{} of {}", ports.carry, ports.of),
    }
}

/// Returns how good a pair is: one without all ports is not good.
pub(super) fn quality(pair: &HostPair) -> Level {
    match pair.ports {
        Some(ports) if !ports.is_full() => pair.level().max(Level::Warn),
        _ => pair.level(),
    }
}
