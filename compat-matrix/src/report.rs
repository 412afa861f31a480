//! `RESULTS.md`: the result of each check for each release, written, read back and compared.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use crate::failure::{Context, Failure, Result};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Ok,
    Failed,
    NotRun,
}

impl Mark {
    const fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::NotRun => "not run",
        }
    }
}

/// The result of one check for one release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) check: String,
    pub(crate) mark: Mark,
    /// What the check observed, on one line.
    pub(crate) seen: String,
}

/// The results of one release.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Section {
    /// Date of the run: YYYY-MM-DD.
    pub(crate) date: String,
    pub(crate) rows: Vec<Row>,
}

/// The whole file, by release.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) sections: BTreeMap<Version, Section>,
}

/// A release's number, for which 2.9 is less than 2.10.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version(Vec<u32>);

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        text.split('.').map(|part| part.parse().ok()).collect::<Option<_>>().map(Self)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0.iter().map(u32::to_string).collect::<Vec<_>>().join("."))
    }
}

const HEAD: &str = "\
# Results of the compatibility matrix

`make matrix WRITE=1` writes this page. Each check is described in
[docs/internals/compat-matrix.md](../docs/internals/compat-matrix.md). Each release is the
`libnccl.so.2` of its wheel, loaded on a machine without a GPU; the rails are softverbs.

";

/// Returns the file's path, relative to the root of the repository.
pub(crate) fn path() -> PathBuf {
    PathBuf::from("compat-matrix/RESULTS.md")
}

impl Report {
    /// Reads the committed file; an empty report if there is none.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).map_err(|what| {
                Failure::tool(format!("{}: {what}; write it anew with WRITE=1", path.display()))
            }),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(e) => Err(e).cannot(format!("read {}", path.display())),
        }
    }

    fn parse(text: &str) -> std::result::Result<Self, String> {
        let mut report = Self::default();
        // Everything before the first release is generated from the rest.
        for part in text.split("\n## NCCL ").skip(1) {
            let (version, rest) = part.split_once('\n').ok_or("a heading without text")?;
            let version = Version::parse(version).ok_or_else(|| format!("a heading of {version:?}"))?;
            let date = rest.lines().find_map(|line| line.strip_prefix("Run on ")).ok_or("no date")?;
            let rows = rest
                .lines()
                .filter(|line| line.starts_with("| "))
                .skip(1)
                .map(row)
                .collect::<std::result::Result<_, _>>()?;
            let section = Section { date: date.trim_end_matches('.').to_owned(), rows };
            report.sections.insert(version, section);
        }
        Ok(report)
    }

    /// Formats the file.
    pub(crate) fn text(&self) -> String {
        let mut text = HEAD.to_owned();
        text += &self.summary();
        for (version, section) in &self.sections {
            let _ = write!(
                text,
                "\n## NCCL {version}\n\nRun on {}.\n\n| check | result | what was seen |\n|---|---|---|\n",
                section.date
            );
            for row in &section.rows {
                let _ = writeln!(text, "| {} | {} | {} |", row.check, row.mark.text(), row.seen);
            }
        }
        text
    }

    /// Formats the table of releases and checks.
    fn summary(&self) -> String {
        let Some(first) = self.sections.values().next() else { return String::new() };
        let checks: Vec<&str> = first.rows.iter().map(|row| row.check.as_str()).collect();
        let mut text = format!("| NCCL | {} |\n|---|{}\n", checks.join(" | "), "---|".repeat(checks.len()));
        for (version, section) in &self.sections {
            let mark = |check: &&str| {
                let row = section.rows.iter().find(|row| row.check == *check);
                row.map_or(Mark::NotRun, |row| row.mark).text()
            };
            let marks: Vec<_> = checks.iter().map(mark).collect();
            let _ = writeln!(text, "| {version} | {} |", marks.join(" | "));
        }
        text
    }

    /// Replaces the results of a run.
    pub(crate) fn update(&mut self, run: &Self) {
        for (version, section) in &run.sections {
            let old = self.sections.entry(version.clone()).or_insert_with(|| section.clone());
            old.date.clone_from(&section.date);
            let kept = |row: &&Row| !section.rows.iter().any(|new| new.check == row.check);
            let old_rows: Vec<Row> = old.rows.iter().filter(kept).cloned().collect();
            old.rows = section.rows.iter().cloned().chain(old_rows).collect();
        }
    }

    /// Returns the differences between a run and this report, for the releases and checks that ran.
    /// Dates are not compared.
    pub(crate) fn differences(&self, run: &Self) -> Vec<String> {
        let mut said = Vec::new();
        for (version, section) in &run.sections {
            for new in section.rows.iter().filter(|row| row.mark != Mark::NotRun) {
                let old = self.sections.get(version);
                let old = old.and_then(|old| old.rows.iter().find(|row| row.check == new.check));
                if old != Some(new) {
                    let old =
                        old.map_or("nothing".into(), |old| format!("{}: {}", old.mark.text(), old.seen));
                    said.push(format!(
                        "NCCL {version}, {}\n  - {old}\n  + {}: {}",
                        new.check,
                        new.mark.text(),
                        new.seen
                    ));
                }
            }
        }
        said
    }
}

fn row(line: &str) -> std::result::Result<Row, String> {
    let cells: Vec<&str> = line.trim_matches('|').split(" | ").map(str::trim).collect();
    let [check, mark, seen] = cells[..] else {
        return Err(format!("a line of {} cells: {line}", cells.len()));
    };
    let mark = [Mark::Ok, Mark::Failed, Mark::NotRun].into_iter().find(|m| m.text() == mark);
    let mark = mark.ok_or_else(|| format!("an unknown result: {line}"))?;
    Ok(Row { check: check.to_owned(), mark, seen: seen.to_owned() })
}

/// Formats a text for a table's cell.
pub(crate) fn cell(text: &str) -> String {
    text.replace('|', "/").split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Returns the date in UTC.
pub(crate) fn today() -> Result<String> {
    // SAFETY: plain integers and a pointer, for which zeros are a value.
    let mut day: libc::tm = unsafe { std::mem::zeroed() };
    // SAFETY: no place is given for the result.
    let now = unsafe { libc::time(std::ptr::null_mut()) };
    // SAFETY: both pointers are to locals.
    if unsafe { libc::gmtime_r(&raw const now, &raw mut day) }.is_null() {
        return Err(Failure::tool("the clock cannot be read"));
    }
    Ok(format!("{}-{:02}-{:02}", day.tm_year + 1900, day.tm_mon + 1, day.tm_mday))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(version: &str, rows: &[(&str, Mark, &str)]) -> Report {
        let rows = rows.iter().map(|(check, mark, seen)| Row {
            check: (*check).into(),
            mark: *mark,
            seen: (*seen).into(),
        });
        let section = Section { date: "2026-01-02".into(), rows: rows.collect() };
        Report { sections: [(Version::parse(version).unwrap(), section)].into() }
    }

    #[test]
    fn what_is_written_is_read_back() {
        let mut all =
            report("2.9.1", &[("layout", Mark::Ok, "21 alike"), ("traffic", Mark::Failed, "it broke: why")]);
        all.update(&report("2.10.3", &[("layout", Mark::NotRun, "no network")]));
        assert_eq!(Report::parse(&all.text()), Ok(all.clone()));
        assert!(all.text().find("NCCL 2.9.1") < all.text().find("NCCL 2.10.3"));
    }

    #[test]
    fn only_what_ran_and_came_out_otherwise_is_a_difference() {
        let old = report("2.9.1", &[("layout", Mark::Ok, "a"), ("traffic", Mark::Ok, "b")]);
        assert_eq!(old.differences(&report("2.9.1", &[("traffic", Mark::Ok, "b")])), [""; 0]);
        assert_eq!(old.differences(&report("2.9.1", &[("traffic", Mark::NotRun, "no disk")])), [""; 0]);
        let said = old.differences(&report("2.9.1", &[("traffic", Mark::Failed, "c")]));
        assert_eq!(said, ["NCCL 2.9.1, traffic\n  - ok: b\n  + FAILED: c"]);
        assert_eq!(old.differences(&report("2.10.3", &[("layout", Mark::Ok, "a")])).len(), 1);
    }

    #[test]
    fn an_update_keeps_what_did_not_run() {
        let mut all = report("2.9.1", &[("layout", Mark::Ok, "a"), ("traffic", Mark::Ok, "b")]);
        all.update(&report("2.9.1", &[("layout", Mark::Ok, "c")]));
        assert_eq!(all.sections[&Version(vec![2, 9, 1])].rows.len(), 2);
    }
}
