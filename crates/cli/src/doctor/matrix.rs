//! The matrix of many hosts as text for people.

use std::fmt::Write as _;

use nccl_net_mpib_agent_iface::doctor::Level;

use super::{
    fold::{self, Line},
    hosts::{Host, HostPair, Matrix},
    text::{Detail, level, printable, rate, why, with_code},
};
use crate::output::{
    colour::{BAD, GOOD, WARN, paint},
    table::{Table, left, right},
};

/// Formats the verdict, the findings, the matrix, and last the pairs of ports.
pub(super) fn text(matrix: &Matrix, detail: Detail) -> String {
    let (hosts, pairs) = (matrix.hosts.len(), matrix.pairs.len());
    let mut out = format!("{}: {hosts} hosts, {pairs} pairs\n", matrix.verdict.painted());
    out += &findings(matrix, Level::Fail);
    if detail == Detail::Quiet {
        return out;
    }
    out += &findings(matrix, Level::Warn);
    out += "\npairs of ports that carry data, of those that are tried first\n";
    out += &cells(matrix);
    out.push('\n');
    out + &ports(matrix, detail == Detail::Verbose)
}

/// Formats the measured pairs of ports of each pair of hosts; all pairs if `verbose`.
fn ports(matrix: &Matrix, verbose: bool) -> String {
    let head = ["from", "to", "port", "port"].map(left);
    let head = head.into_iter().chain([right("out Gb/s"), right("back Gb/s"), left("why")]);
    let mut table = Table::new(head).indent(2);
    for pair in &matrix.pairs {
        let lines = fold::lines(&pair.routes).into_iter();
        for Line { here, there, row } in lines.filter(|l| verbose || l.row.out.is_some()) {
            let cells = [&pair.from, &pair.to, &here, &there].map(|cell| printable(cell));
            let rates = [&row.out, &row.back].map(rate);
            table.row(cells.into_iter().chain(rates).chain([printable(&why(row, verbose))]));
        }
    }
    table.text()
}

/// Formats the findings of this level: with that of failures the errors, too.
fn findings(matrix: &Matrix, wanted: Level) -> String {
    let mut out = String::new();
    let mut line = |severity: Level, place: &str, text: &str| {
        if severity != wanted {
            return;
        }
        // Writing to a String cannot fail.
        let _ = writeln!(out, "{}  {}: {}", level(severity), printable(place), printable(text));
    };
    for host in &matrix.hosts {
        if let Some(error) = &host.error {
            line(Level::Fail, &host.address, &error.failure.message);
        }
        let checks = host.summary.iter().flat_map(|summary| &summary.checks);
        for check in checks {
            let text = with_code(check.text.clone(), check);
            line(check.level, &host.address, &format!("{}: {text}", check.id));
        }
    }
    for pair in &matrix.pairs {
        let place = format!("{} to {}", pair.from, pair.to);
        if let Some(error) = &pair.error {
            line(Level::Fail, &place, &error.failure.message);
        }
        for check in &pair.checks {
            line(check.level, &place, &with_code(check.text.clone(), check));
        }
    }
    out
}

/// Formats a row for each host but the last, and a column for each but the first.
fn cells(matrix: &Matrix) -> String {
    let numbers = (2..=matrix.hosts.len()).map(|number| right(number.to_string()));
    let mut table = Table::new([right(""), left("host")].into_iter().chain(numbers)).indent(2);
    // All pairs with the first host come first, then those with the second.
    let mut pairs = matrix.pairs.iter();
    for (i, from) in matrix.hosts.iter().enumerate() {
        let head = [(i + 1).to_string(), name(from)];
        let empty = std::iter::repeat_n(String::new(), i.min(matrix.hosts.len() - 1));
        let cells = matrix.hosts[i + 1..].iter().zip(&mut pairs).map(|(to, pair)| cell(from, to, pair));
        table.row(head.into_iter().chain(empty).chain(cells));
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

fn cell(from: &Host, to: &Host, pair: &HostPair) -> String {
    if from.summary.is_none() || to.summary.is_none() {
        return "-".into();
    }
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
