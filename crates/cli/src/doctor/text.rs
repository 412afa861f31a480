//! The document as text for people.

use std::{
    env,
    fmt::Write as _,
    io::{self, IsTerminal},
};

use nccl_net_mpib_agent_iface::doctor::{
    Check, Gid, Kind, Level, Link, Port, Report, Verdict as RouteVerdict,
};

use super::{
    Document, Verdict,
    peer::{Measured, Row},
};

/// Returns whether stdout is a terminal and colours are not disabled.
pub(super) fn colours() -> bool {
    io::stdout().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Formats the whole document.
pub(super) fn text(document: &Document, verbose: bool, colours: bool) -> String {
    let mut out = String::new();
    if let Some(report) = &document.report {
        let plugin = document.plugin.as_ref().map_or_else(String::new, |p| format!(", {}", p.display()));
        // Writing to a String cannot fail, here and below.
        let _ = writeln!(out, "host {}, plugin {}{plugin}\n", report.host, report.plugin);
        if verbose {
            for s in &report.settings {
                let mark = if s.default { "" } else { "  (set)" };
                let _ = writeln!(out, "  {}={}{mark}", s.name, s.value);
            }
            out.push('\n');
        }
        out += &ports(report, verbose);
    }
    for check in &document.checks {
        out += &line(check, colours);
    }
    if let Some(peer) = &document.peer {
        let _ = writeln!(out, "\nways to {}, checked data, GB/s", printable(&peer.host));
        out += &rows(&document.routes);
    }
    let count = |level| document.checks.iter().filter(|c| c.level == level).count();
    let verdict = match document.verdict {
        Verdict::Usable => "usable".to_owned(),
        Verdict::Losses => format!("usable with losses: {}", counted(count(Level::Warn), "warning")),
        Verdict::Unusable => format!("unusable: {}", counted(count(Level::Fail), "failure")),
    };
    let _ = writeln!(out, "\n{verdict}");
    out
}

/// Formats a line for each pair of ports.
pub(super) fn rows(rows: &[Row]) -> String {
    let figure = |m: &Option<Measured>| match m {
        None => "-".to_owned(),
        Some(Measured { error: Some(_), .. }) => "fails".into(),
        Some(m) => m.gigabytes_per_second.map_or("-".into(), |g| format!("{g:.3}")),
    };
    let row = |r: &Row| {
        let verdict = match r.pair.verdict {
            RouteVerdict::First => "first",
            RouteVerdict::Later => "later",
            RouteVerdict::Refused => "refused",
        };
        let failed = [&r.out, &r.back].into_iter().flatten().find_map(|m| m.error.as_ref());
        let why = failed.unwrap_or(&r.pair.why);
        vec![
            printable(&r.pair.ours),
            printable(&r.pair.theirs),
            verdict.into(),
            figure(&r.out),
            figure(&r.back),
            printable(why),
        ]
    };
    let head = ["here", "there", "tried", "out", "back", "why"].map(str::to_owned).to_vec();
    let all: Vec<Vec<String>> = std::iter::once(head).chain(rows.iter().map(row)).collect();
    table(&all).iter().map(|line| format!("  {line}\n")).collect()
}

fn counted(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

/// Formats `warn  memlock    the limit is …` and, on the next line, what to do.
pub(super) fn line(check: &Check, colours: bool) -> String {
    let (word, colour) = match check.level {
        Level::Ok => ("ok", 32),
        Level::Note => ("note", 36),
        Level::Warn => ("warn", 33),
        Level::Fail => ("fail", 31),
    };
    let word = if colours { format!("\x1b[{colour}m{word:<4}\x1b[0m") } else { format!("{word:<4}") };
    let mut out = format!("{word}  {:<9}  {}\n", check.id, printable(&check.text));
    if let Some(remedy) = &check.remedy {
        let _ = writeln!(out, "      {:<9}  -> {}", "", printable(remedy));
    }
    out
}

/// Puts a text on one line without control characters: it may come from another machine.
pub(super) fn printable(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// Aligns columns, with two spaces between them and no trailing space.
pub(super) fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cell = |row: &Vec<String>, i: usize| row.get(i).map_or(0, |text| text.chars().count());
    let widths: Vec<usize> =
        (0..columns).map(|i| rows.iter().map(|row| cell(row, i)).max().unwrap_or(0)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).map(|(text, width)| format!("{text:<width$}"));
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

/// Formats a line for each port, followed by the GIDs that a connection may use.
fn ports(report: &Report, verbose: bool) -> String {
    if report.ports.is_empty() {
        return String::new();
    }
    let head = ["port", "device", "link", "speed", "MTU", "NUMA", "PCI", ""].map(str::to_owned).to_vec();
    let rows: Vec<Vec<String>> = std::iter::once(head).chain(report.ports.iter().map(row)).collect();
    let lines = table(&rows);
    let mut out = format!("  {}\n", lines[0]);
    for (port, line) in report.ports.iter().zip(&lines[1..]) {
        let _ = writeln!(out, "  {line}");
        if let Some(why) = &port.trouble {
            let _ = writeln!(out, "    cannot be used: {}", printable(why));
        }
        let mut chosen: Vec<&Gid> = port.gids.iter().filter(|gid| gid.rank.is_some()).collect();
        chosen.sort_by_key(|gid| gid.rank);
        if !chosen.is_empty() {
            let all: Vec<String> = chosen.iter().map(|gid| address(gid)).collect();
            let _ = writeln!(out, "    uses, the best first: {}", all.join("; "));
        }
        let refused =
            port.gids.iter().filter_map(|gid| Some(format!("{}: {}", address(gid), gid.why_not.as_ref()?)));
        let refused: Vec<String> = refused.collect();
        if !refused.is_empty() && verbose {
            let _ = writeln!(out, "    not: {}", refused.join("; "));
        }
    }
    out.push('\n');
    out
}

fn row(port: &Port) -> Vec<String> {
    let none = || "-".to_owned();
    let device = port.device.clone().unwrap_or_else(none);
    let used = if port.device.is_none() && port.usable { "not used" } else { "" };
    let pci = port.pci_path.as_ref().and_then(|path| Some(path.rsplit('/').next()?.to_owned()));
    let state = port.state.as_ref();
    vec![
        format!("{}:{}", port.hca, port.port),
        device,
        state.map_or_else(none, |s| link(s.link).into()),
        state.map_or_else(none, |s| speed(s.speed_mbps)),
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

/// Formats `100 Gb/s`, `2.5 Gb/s`.
pub(super) fn speed(mbps: u32) -> String {
    format!("{} Gb/s", f64::from(mbps) / 1000.0)
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
        assert_eq!(line(&check, false), "warn  memlock    too low\n                 -> raise it\n");
        assert!(line(&check, true).starts_with("\x1b[33mwarn\x1b[0m  memlock"));
    }

    #[test]
    fn columns_are_as_wide_as_their_widest_cell() {
        let rows = [vec!["a".into(), "bb".into(), "".into()], vec!["ccc".into(), "d".into(), "é".into()]];
        assert_eq!(table(&rows), ["a    bb", "ccc  d   é"]);
    }

    #[test]
    fn speeds_have_a_unit() {
        assert_eq!([100_000, 2_500].map(speed), ["100 Gb/s", "2.5 Gb/s"]);
    }
}
