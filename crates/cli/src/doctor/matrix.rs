//! The matrix of many hosts as text for people.

use std::fmt::Write as _;

use nccl_net_mpib_agent_iface::doctor::Level;

use super::{
    Verdict,
    fold::{self, Line},
    hosts::{Host, HostPair, Matrix},
    peer::Measured,
    text::printable,
};
use crate::output::{
    colour::{BAD, GOOD, WARN, paint},
    table::{Table, left, right},
    units::giga,
};

/// Formats the pairs of ports, the findings, and last the matrix and the verdict.
pub(super) fn text(matrix: &Matrix, verbose: bool) -> String {
    let mut out = ports(matrix, verbose);
    out += &findings(matrix);
    out += "pairs of ports that carry data, of those that are tried first\n";
    out += &cells(matrix);
    let verdict = match matrix.verdict {
        Verdict::Usable => "usable",
        Verdict::Losses => "usable with losses",
        Verdict::Unusable => "unusable",
    };
    // Writing to a String cannot fail, here and below.
    let _ = writeln!(out, "\n{verdict}: {} hosts, {} pairs", matrix.hosts.len(), matrix.pairs.len());
    out
}

/// Formats the measured pairs of ports of each pair of hosts; all pairs if `verbose`.
fn ports(matrix: &Matrix, verbose: bool) -> String {
    let head = ["from", "to", "port", "port"].map(left);
    let head = head.into_iter().chain([right("out Gb/s"), right("back Gb/s"), left("why")]);
    let mut table = Table::new(head).indent(2);
    for pair in &matrix.pairs {
        let lines = fold::lines(&pair.routes).into_iter();
        for Line { here, there, row } in lines.filter(|l| verbose || l.row.out.is_some()) {
            let why = [&row.out, &row.back].into_iter().flatten().find_map(|m| m.error.as_ref());
            let why = why.unwrap_or(&row.pair.why);
            let cells = [&pair.from, &pair.to, &here, &there].map(|cell| printable(cell));
            let rates = [&row.out, &row.back].map(rate);
            table.row(cells.into_iter().chain(rates).chain([printable(why)]));
        }
    }
    table.text() + "\n"
}

fn rate(measured: &Option<Measured>) -> String {
    match measured {
        None => "-".into(),
        Some(Measured { error: Some(_), .. }) => paint(BAD, "fails"),
        Some(m) => m.gigabytes_per_second.map_or("-".into(), |g| giga(g * 8.0)),
    }
}

/// Formats the errors, the verdicts of hosts that are not usable without losses, and the warnings.
fn findings(matrix: &Matrix) -> String {
    let mut out = String::new();
    let mut line = |level: Level, place: &str, text: &str| {
        let word = if level == Level::Fail { paint(BAD, "fail") } else { paint(WARN, "warn") };
        let _ = writeln!(out, "{word}  {}: {}", printable(place), printable(text));
    };
    for host in &matrix.hosts {
        if let Some(error) = &host.error {
            line(Level::Fail, &host.address, &error.failure.message);
        }
        let checks = host.summary.iter().flat_map(|summary| &summary.checks);
        for check in checks.filter(|check| check.level >= Level::Warn) {
            line(check.level, &host.address, &format!("{}: {}", check.id, check.text));
        }
    }
    for pair in &matrix.pairs {
        let place = format!("{} to {}", pair.from, pair.to);
        if let Some(error) = &pair.error {
            line(Level::Fail, &place, &error.failure.message);
        }
        for check in pair.checks.iter().filter(|check| check.level >= Level::Warn) {
            line(check.level, &place, &check.text);
        }
    }
    if out.is_empty() { out } else { out + "\n" }
}

/// Formats a row for each host but the last, and a column for each but the first.
fn cells(matrix: &Matrix) -> String {
    let numbers = (2..=matrix.hosts.len()).map(|number| right(number.to_string()));
    let mut table = Table::new([right(""), left("host")].into_iter().chain(numbers)).indent(2);
    for (i, host) in matrix.hosts.iter().enumerate() {
        let head = [(i + 1).to_string(), name(host)];
        let cell = |j: usize| if j > i { cell(matrix, i, j) } else { String::new() };
        table.row(head.into_iter().chain((1..matrix.hosts.len()).map(cell)));
    }
    table.text()
}

fn name(host: &Host) -> String {
    match &host.summary {
        Some(summary) if summary.host != host.address => {
            printable(&format!("{} ({})", host.address, summary.host))
        }
        _ => printable(&host.address),
    }
}

fn cell(matrix: &Matrix, i: usize, j: usize) -> String {
    let (from, to) = (&matrix.hosts[i], &matrix.hosts[j]);
    let is_pair = |pair: &&HostPair| pair.from == from.address && pair.to == to.address;
    let pair = matrix.pairs.iter().find(is_pair);
    let Some(pair) = pair.filter(|_| from.summary.is_some() && to.summary.is_some()) else {
        return "-".into();
    };
    if pair.error.is_some() {
        return paint(BAD, "error");
    }
    let (works, first) = pair.count();
    let style = match pair.level() {
        Level::Fail => BAD,
        Level::Warn => WARN,
        Level::Ok | Level::Note => GOOD,
    };
    paint(style, &format!("{works}/{first}"))
}
