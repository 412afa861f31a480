//! The document as text for people.

use std::fmt::Write as _;

use mpib_host_view::hostname;
use nccl_net_mpib_agent_iface::codes::Code;
use nccl_net_mpib_agent_iface::doctor::{
    Check, Gid, Kind, Level, Link, Port, Report, Verdict as RouteVerdict,
};

use super::{
    Document, faults,
    fold::{self, Line},
    head::{self, Head},
    peer::{Measured, Row},
};
pub(super) use crate::output::printable;
use crate::output::{
    colour::{BAD, GOOD, NOTE, WARN, paint},
    table::{Table, left, paragraph, right},
    units::{giga, port_rate},
};

/// How much of a document to print.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Detail {
    /// The verdict and the failures.
    Quiet,
    Normal,
    /// Also the good checks, every setting, every pair of ports and each failure in full.
    Verbose,
}

/// Formats the whole document: what is wrong first, what is good last.
pub(super) fn text(document: &Document, detail: Detail) -> String {
    let verbose = detail == Detail::Verbose;
    if detail == Detail::Quiet {
        let place = format!("{}: ", host(document));
        return Head::of(&place, document.verdict, &document.checks).text;
    }
    let mut out = match verbose {
        true => {
            head::verdict("", document.verdict, &document.checks) + &by_level(&document.checks, Level::Ok)
        }
        false => brief(document),
    };
    if let Some(report) = &document.report {
        let plugin = document.plugin.as_ref().map_or_else(String::new, |p| format!(", {}", p.display()));
        out.push('\n');
        out += &paragraph(0, &format!("host {}, plugin {}{plugin}", report.host, report.plugin));
        out.push('\n');
        if verbose {
            for s in &report.settings {
                let mark = if s.default { "" } else { "  (set)" };
                // Writing to a String cannot fail, here and below.
                let _ = writeln!(out, "  {}={}{mark}", s.name, s.value);
            }
            out.push('\n');
        }
        out += &ports(report, &document.checks, verbose);
        if !verbose {
            out += &facts(&document.checks);
        }
    }
    if let Some(peer) = document.peer.as_ref().filter(|_| !document.routes.is_empty()) {
        let _ = writeln!(out, "\nways to {}, checked data, Gb/s", printable(&peer.host));
        out += &rows(&document.routes, verbose);
    }
    out
}

/// Formats the verdict, the failures in few lines, warnings, notes, and how many checks are good.
fn brief(document: &Document) -> String {
    let Head { text, is_whole } = Head::of("", document.verdict, &document.checks);
    let others: Vec<Check> =
        document.checks.iter().filter(|check| check.level < Level::Fail).cloned().collect();
    let hint = match (others.iter().filter(|check| check.level == Level::Ok).count(), is_whole) {
        (0, true) => String::new(),
        (0, false) => "-v shows the failures in full\n".into(),
        (1, true) => "1 check is good (-v shows it)\n".into(),
        (good, true) => format!("{good} checks are good (-v shows them)\n"),
        (good, false) => format!("{good} checks are good; -v shows them, and the failures in full\n"),
    };
    text + &by_level(&others, Level::Note) + &hint
}

/// Formats the checks from this level on, the worst first.
fn by_level(all: &[Check], least: Level) -> String {
    let mut shown: Vec<Check> = all.iter().filter(|check| check.level >= least).cloned().collect();
    shown.sort_by_key(|check| std::cmp::Reverse(check.level));
    checks(&shown)
}

/// Good checks that are facts: the devices, the island, which table NCCL takes, and where other hosts
/// reach this one.
const FACTS: [&str; 4] = ["devices", "island", "nccl", "control"];

fn facts(all: &[Check]) -> String {
    let is_fact = |check: &&Check| check.level == Level::Ok && FACTS.contains(&&*check.id);
    checks(&all.iter().filter(is_fact).cloned().collect::<Vec<_>>())
}

/// Returns the name of this host.
fn host(document: &Document) -> String {
    document.report.as_ref().map_or_else(hostname, |report| report.host.clone())
}

/// Formats a line for each pair of ports; unless `verbose`, one for all that have one reason.
pub(super) fn rows(rows: &[Row], verbose: bool) -> String {
    let head = [left("here"), left("there"), left("tried"), right("out"), right("back"), left("why")];
    let mut table = Table::new(head).indent(2);
    let lines = if verbose { fold::each(rows) } else { fold::lines(rows) };
    for Line { here, there, row: r } in lines {
        let verdict = match r.pair.verdict {
            RouteVerdict::First => "first",
            RouteVerdict::Later => "later",
            RouteVerdict::Refused => "refused",
        };
        table.row([
            printable(&here),
            printable(&there),
            verdict.into(),
            rate(&r.out),
            rate(&r.back),
            printable(&why(r, verbose)),
        ]);
    }
    table.text()
}

/// Returns why a pair does not work, or is chosen or not: in few words with the code, or in full.
pub(super) fn why(row: &Row, verbose: bool) -> String {
    match row.error() {
        Some(error) if !verbose => format!("{} [{}]", faults::in_short(error), Code::of_log(error)),
        _ => row.why().to_owned(),
    }
}

/// Formats a measured rate in Gb/s.
pub(super) fn rate(measured: &Option<Measured>) -> String {
    match measured {
        None => "-".into(),
        Some(Measured { error: Some(_), .. }) => paint(BAD, "fails"),
        Some(m) => m.gigabytes_per_second.map_or("-".into(), |g| giga(g * 8.0)),
    }
}

pub(super) fn level(level: Level) -> String {
    match level {
        Level::Ok => paint(GOOD, "ok"),
        Level::Note => paint(NOTE, "note"),
        Level::Warn => paint(WARN, "warn"),
        Level::Fail => paint(BAD, "fail"),
    }
}

/// Formats `warn  memlock    the limit is … [MPIB-118]` for each check and, on the next line, what to
/// do.
pub(crate) fn checks(checks: &[Check]) -> String {
    let mut table = Table::new([left("").least(4), left("").least(9), left("")]);
    for check in checks {
        let remedy = check.remedy.as_ref();
        let remedy = remedy.map_or_else(String::new, |remedy| format!("\n-> {}", printable(remedy)));
        let text = with_code(printable(&check.text), check);
        table.row([level(check.level), check.id.to_string(), text + &remedy]);
    }
    table.text()
}

/// Adds the code of a check to a text, if it has one.
pub(super) fn with_code(text: String, check: &Check) -> String {
    match &check.code {
        Some(code) => format!("{text} [{}]", printable(code)),
        None => text,
    }
}

/// Formats a line for each port, followed by the GIDs that a connection may use.
fn ports(report: &Report, checks: &[Check], verbose: bool) -> String {
    if report.ports.is_empty() {
        return String::new();
    }
    let head = ["port", "device", "link", "speed", "MTU", "NUMA", "PCI", ""].map(left);
    let mut table = Table::new(head).indent(2);
    for port in &report.ports {
        table.row(row(port));
        if let Some(why) = &port.trouble {
            // A check has the whole reason.
            let is_below = !verbose && checks.iter().any(|check| check.text.contains(why));
            let end = [": ", "; "].iter().filter_map(|mark| why.find(mark)).min();
            let short = &why[..end.unwrap_or(why.len())];
            table.note(format!("cannot be used: {}", printable(if is_below { short } else { why })));
        }
        let mut chosen: Vec<&Gid> = port.gids.iter().filter(|gid| gid.rank.is_some()).collect();
        chosen.sort_by_key(|gid| gid.rank);
        if !chosen.is_empty() {
            let all: Vec<String> = chosen.iter().map(|gid| address(gid)).collect();
            table.note(format!("uses, the best first: {}", all.join("; ")));
        }
        let refused =
            port.gids.iter().filter_map(|gid| Some(format!("{}: {}", address(gid), gid.why_not.as_ref()?)));
        let refused: Vec<String> = refused.collect();
        if !refused.is_empty() && verbose {
            table.note(format!("not: {}", refused.join("; ")));
        }
    }
    table.text()
}

fn row(port: &Port) -> [String; 8] {
    let none = || "-".to_owned();
    let device = port.device.clone().unwrap_or_else(none);
    let used = if port.device.is_none() && port.usable { "not used" } else { "" };
    let pci = port.pci_path.as_ref().and_then(|path| Some(path.rsplit('/').next()?.to_owned()));
    let state = port.state.as_ref();
    [
        port.name(),
        device,
        state.map_or_else(none, |s| link(s.link).into()),
        state.map_or_else(none, |s| port_rate(s.speed_mbps)),
        state.map_or_else(none, |s| s.mtu.to_string()),
        port.numa.map_or_else(none, |n| n.to_string()),
        pci.unwrap_or_else(none),
        used.into(),
    ]
}

fn link(link: Link) -> &'static str {
    match link {
        Link::Infiniband => "InfiniBand",
        Link::Ethernet => "RoCE",
    }
}

/// Formats `10.1.0.1/24 v2 eth1 (GID 3)`.
fn address(gid: &Gid) -> String {
    let prefix = gid.prefix.map_or_else(String::new, |len| format!("/{len}"));
    let kind = match gid.kind {
        Kind::Ib => "",
        Kind::RoceV1 => " v1",
        Kind::RoceV2 => " v2",
    };
    let interface = gid.interface.as_ref().map_or_else(String::new, |name| format!(" {name}"));
    format!("{}{prefix}{kind}{interface} (GID {})", gid.address, gid.index)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_is_a_line_and_its_remedy_another() {
        let check = Check::new("memlock", Level::Warn, "too\nlow").remedy("raise it");
        let text = checks(&[check]);
        assert_eq!(
            anstream::adapter::strip_str(&text).to_string(),
            "warn  memlock    too low\n                 -> raise it\n"
        );
        assert!(text.starts_with("\x1b[33mwarn\x1b[0m  memlock"), "{text:?}");
    }
}
