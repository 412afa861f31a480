//! The result of a fleet as one HTML file, which needs nothing from a network.

use std::{fs, path::Path};

use nccl_net_mpib_agent_iface::doctor::{Check, Level};

use super::text::{cell, names, quality, summary};
use super::{Fleet, HostPair};
use crate::doctor::{
    peer::{Measured, Row},
    text::with_code,
};
use crate::failure::{Context, Failure};
use crate::output::{printable, units::giga};

/// Most hosts of a matrix.
const MATRIX: usize = 64;
/// Most rows of a table.
const ROWS: usize = 2000;

const STYLE: &str = "\
:root{color-scheme:light dark}
body{font:15px/1.45 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}
table{border-collapse:collapse;display:block;overflow-x:auto}
td,th{padding:.2rem .6rem;text-align:left;vertical-align:top;border-bottom:1px solid light-dark(#ddd,#444)}
td.number{text-align:right;font-variant-numeric:tabular-nums}
.ok{color:light-dark(#116329,#56d364)}.warn{color:light-dark(#7d4e00,#e3b341)}.fail{color:light-dark(#a40e26,#ff7b72)}
.note{color:inherit}.cell{text-align:center;white-space:nowrap}
";

/// A document. All that is added is escaped.
struct Page(String);

/// Writes the file anew.
pub(super) fn write(path: &Path, fleet: &Fleet) -> Result<(), Failure> {
    fs::write(path, page(fleet)).tool(format!("write {}", path.display()))
}

fn page(fleet: &Fleet) -> String {
    let mut page = Page("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n".into());
    page.tag("title", "mpib doctor");
    page.0 += "<meta name=\"viewport\" content=\"width=device-width\">\n";
    page.0 += "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n";
    page.0 += &format!("<style>\n{STYLE}</style>\n</head>\n<body>\n");
    page.classed("h1", verdict_class(fleet), &format!("{}: {}", fleet.verdict.word(), summary(fleet)));
    page.bad_hosts(fleet);
    page.findings(fleet);
    page.medians(fleet);
    page.matrix(fleet);
    page.pairs(fleet);
    page.tag("p", &format!("mpib {}", fleet.mpib));
    page.0 + "</body>\n</html>\n"
}

fn verdict_class(fleet: &Fleet) -> &'static str {
    match fleet.exit_code {
        0 => "ok",
        1 => "warn",
        _ => "fail",
    }
}

fn class(level: Level) -> &'static str {
    match level {
        Level::Ok => "ok",
        Level::Note => "note",
        Level::Warn => "warn",
        Level::Fail => "fail",
    }
}

impl Page {
    /// Adds a text.
    fn text(&mut self, text: &str) {
        for c in printable(text).chars() {
            match c {
                '&' => self.0 += "&amp;",
                '<' => self.0 += "&lt;",
                '>' => self.0 += "&gt;",
                '"' => self.0 += "&quot;",
                '\'' => self.0 += "&#39;",
                c => self.0.push(c),
            }
        }
    }

    /// Adds an element with a text.
    fn tag(&mut self, name: &'static str, text: &str) {
        self.0 += &format!("<{name}>");
        self.text(text);
        self.0 += &format!("</{name}>\n");
    }

    /// Adds an element of a class with a text.
    fn classed(&mut self, name: &'static str, class: &'static str, text: &str) {
        self.0 += &format!("<{name} class=\"{class}\">");
        self.text(text);
        self.0 += &format!("</{name}>\n");
    }

    fn begin_table(&mut self, title: &str, columns: &[&str]) {
        self.tag("h2", title);
        self.0 += "<table>\n<tr>";
        columns.iter().for_each(|column| self.tag("th", column));
        self.0 += "</tr>\n";
    }

    /// Adds a row: place, and what is wrong there with what to do.
    fn finding(&mut self, place: &str, check: &Check) {
        self.0 += "<tr>";
        self.classed("td", class(check.level), class(check.level));
        self.tag("td", place);
        self.tag("td", &with_code(check.text.clone(), check));
        self.tag("td", check.remedy.as_deref().unwrap_or_default());
        self.0 += "</tr>\n";
    }

    fn bad_hosts(&mut self, fleet: &Fleet) {
        if fleet.judgement.bad_hosts.is_empty() {
            return self.classed("p", "ok", "No host is bad.");
        }
        self.begin_table("Bad hosts", &["", "host", "why", "what to do"]);
        for host in &fleet.judgement.bad_hosts {
            host.reasons.iter().for_each(|check| self.finding(&host.name, check));
        }
        self.0 += "</table>\n";
    }

    fn findings(&mut self, fleet: &Fleet) {
        let of_ranks = fleet.absent.iter().map(|check| ("ranks".to_owned(), check.clone()));
        let of_pairs = fleet.of_pairs().map(|(place, check)| (place, check.clone()));
        let mut all: Vec<(String, Check)> = of_ranks.chain(of_pairs).collect();
        let of_hosts = fleet.of_hosts(|_, check| check.level >= Level::Warn);
        all.extend(of_hosts.into_iter().map(|(hosts, check)| (names(&hosts), check.clone())));
        all.retain(|(_, check)| check.level >= Level::Warn);
        all.sort_by_key(|(_, check)| std::cmp::Reverse(check.level));
        if all.is_empty() {
            return;
        }
        self.begin_table("Other findings", &["", "where", "what", "what to do"]);
        all.iter().take(ROWS).for_each(|(place, check)| self.finding(place, check));
        self.0 += "</table>\n";
    }

    fn medians(&mut self, fleet: &Fleet) {
        if fleet.judgement.medians.is_empty() {
            return;
        }
        let title = "Medians: what a host carries with its best partner";
        self.begin_table(title, &["ports", "limit", "hosts", "Gb/s"]);
        for median in &fleet.judgement.medians {
            self.0 += "<tr>";
            let [ports, limit, hosts, rate] = median.cells();
            [ports, limit].iter().for_each(|cell| self.tag("td", cell));
            [hosts, rate].iter().for_each(|cell| self.classed("td", "number", cell));
            self.0 += "</tr>\n";
        }
        self.0 += "</table>\n";
    }

    /// Adds a row for each host, unless there are many.
    fn matrix(&mut self, fleet: &Fleet) {
        let count = fleet.hosts.len();
        if count > MATRIX {
            return;
        }
        let mut cells: Vec<Vec<Option<&HostPair>>> = vec![vec![None; count]; count];
        for pair in &fleet.pairs {
            cells[pair.ends.from][pair.ends.to] = Some(pair);
            cells[pair.ends.to][pair.ends.from] = Some(pair);
        }
        let numbers: Vec<String> = (1..=count).map(|number| number.to_string()).collect();
        let columns: Vec<&str> = ["", "host"].into_iter().chain(numbers.iter().map(|n| &**n)).collect();
        self.begin_table("Ports that carry data, of those that the host with fewer of them has", &columns);
        for ((number, host), cells) in numbers.iter().zip(&fleet.hosts).zip(cells) {
            self.0 += "<tr>";
            self.classed("td", "number", number);
            self.tag("td", &host.name);
            for pair in cells {
                self.0 += "<td class=\"cell\">";
                if let Some(pair) = pair {
                    self.classed("span", class(quality(pair)), &cell(pair));
                }
                self.0 += "</td>";
            }
            self.0 += "</tr>\n";
        }
        self.0 += "</table>\n";
    }

    /// Adds a row for each pair of ports, the slowest first.
    fn pairs(&mut self, fleet: &Fleet) {
        let rows = fleet.pairs.iter().flat_map(|pair| pair.routes.iter().map(move |row| (pair, row)));
        let rate = |m: &Option<Measured>| m.as_ref()?.gigabytes_per_second.map(|g| g * 8.0);
        let mut rows: Vec<_> = rows.filter(|(_, row)| row.out.is_some()).collect();
        let slower = |row: &Row| rate(&row.out).unwrap_or(0.0).min(rate(&row.back).unwrap_or(0.0));
        rows.sort_by(|a, b| slower(a.1).total_cmp(&slower(b.1)));
        let title = match rows.len() {
            n if n > ROWS => format!("The {ROWS} slowest of {n} pairs of ports"),
            _ => "Pairs of ports, the slowest first".to_owned(),
        };
        self.begin_table(&title, &["from", "to", "port", "port", "out Gb/s", "back Gb/s", "why"]);
        for (pair, row) in rows.into_iter().take(ROWS) {
            self.0 += "<tr>";
            let [from, to] = [pair.ends.from, pair.ends.to].map(|host| &fleet.hosts[host].name);
            [from, to, &row.pair.ours, &row.pair.theirs].into_iter().for_each(|text| self.tag("td", text));
            for measured in [&row.out, &row.back] {
                self.classed("td", "number", &rate(measured).map_or("-".into(), giga));
            }
            self.tag("td", row.why());
            self.0 += "</tr>\n";
        }
        self.0 += "</table>\n";
    }
}

#[cfg(test)]
mod tests {
    use super::super::simulation::{Fault, fleet};
    use super::*;

    //= fleet.md: --report writes one HTML file
    #[test]
    fn the_page_has_all_parts_and_needs_no_network() {
        let page = page(&fleet(6, &[Fault::Slow(2)]));
        let order =
            ["<h1 class=\"warn\">", "Bad hosts", "Medians", "Ports that carry data", "Pairs of ports"];
        let places: Vec<usize> = order.iter().map(|part| page.find(part).expect(part)).collect();
        assert!(places.is_sorted(), "{places:?}");
        for outside in ["http:", "https:", "src=", "url(", "<script", "@import"] {
            assert!(!page.contains(outside), "{outside}");
        }
        for tag in ["table", "tr", "td", "th", "h2", "body", "html"] {
            let count = |text: String| page.matches(&text).count();
            assert_eq!(
                count(format!("<{tag}>")) + count(format!("<{tag} ")),
                count(format!("</{tag}>")),
                "{tag}"
            );
        }
    }

    //= fleet.md: what hosts say is escaped
    #[test]
    fn what_a_host_says_is_no_markup() {
        let mut fleet = fleet(3, &[]);
        let evil = "<script>alert('x')</script>&\"\u{202e}";
        fleet.hosts[1].name = evil.into();
        if let Some(summary) = &mut fleet.hosts[0].summary {
            summary.checks.push(Check::new("rates", Level::Warn, evil).remedy(evil));
        }
        fleet.pairs[0].routes[0].pair.why = evil.into();
        fleet.pairs[0].routes[0].pair.ours = evil.into();
        let page = page(&fleet);
        assert!(!page.contains("<script") && !page.contains('\u{202e}'), "{page}");
        assert!(
            page.matches("&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;&amp;&quot;").count() >= 4,
            "{page}"
        );
    }

    #[test]
    fn a_large_fleet_has_no_matrix_and_the_slowest_pairs() {
        let page = page(&fleet(400, &[]));
        assert!(!page.contains("Ports that carry data") && page.contains("The 2000 slowest of 2400 pairs"));
    }
}
