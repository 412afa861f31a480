//! `RESULTS.md`: the result of each check for each release, written, read back and compared.

use std::{
    collections::BTreeMap,
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
};

use crate::{
    checks::position,
    failure::{Context, Failure, Result},
};

/// How a check ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    Ok,
    Failed,
    /// The release fails without the plugin too.
    Core,
    NotRun,
    /// The release lacks what the check needs.
    Unfit,
}

impl Mark {
    const ALL: [Self; 5] = [Self::Ok, Self::Failed, Self::Core, Self::NotRun, Self::Unfit];

    pub(crate) const fn text(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "FAILED",
            Self::Core => "core",
            Self::NotRun => "not run",
            Self::Unfit => "-",
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
    /// Date of the run: YYYY-MM-DD, or the first and the last one of several: `… to …`.
    pub(crate) date: String,
    pub(crate) rows: Vec<Row>,
}

/// The whole file, by release.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    pub(crate) sections: BTreeMap<Version, Section>,
}

/// A release's number, for which 2.9 is less than 2.10, and 2.9.1 less than 2.9.1.post1.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    number: Vec<u32>,
    post: Option<u32>,
}

impl Version {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (number, post) = match text.split_once(".post") {
            Some((number, post)) => (number, Some(post.parse().ok()?)),
            None => (text, None),
        };
        let number = number.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
        Some(Self { number, post })
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.number.iter().map(u32::to_string).collect::<Vec<_>>().join("."))?;
        self.post.map_or(Ok(()), |post| write!(f, ".post{post}"))
    }
}

impl Section {
    fn update(&mut self, run: &Self) {
        let known = |check: &str| self.rows.iter().any(|row| row.check == check);
        let new: Vec<Row> =
            run.rows.iter().filter(|row| row.mark != Mark::NotRun || !known(&row.check)).cloned().collect();
        self.rows.retain(|row| !new.iter().any(|new| new.check == row.check));
        let first = self.date.split(" to ").next().unwrap_or_default();
        if self.rows.is_empty() || first == run.date {
            self.date.clone_from(&run.date);
        } else if !new.is_empty() {
            self.date = format!("{first} to {}", run.date);
        }
        self.rows.extend(new);
        self.rows.sort_by_key(|row| position(&row.check));
    }
}

const HEAD: &str = "\
# Results of the compatibility matrix

`make matrix WRITE=1` writes this page. Each check is described in
[docs/internals/compat-matrix.md](../docs/internals/compat-matrix.md). Each release is the
`libnccl.so.2` of its wheel, loaded on a machine without a GPU; the rails are softverbs. From
`default profile` on, the checks are whole communicators on
[softcuda](../docs/internals/softcuda.md). `-` means that the release lacks what the check needs;
`core` means that it fails over NCCL's own network too.

";

/// Returns the file's path, relative to the root of the repository.
pub(crate) fn path() -> PathBuf {
    PathBuf::from("compat-matrix/RESULTS.md")
}

impl Report {
    /// Reads the committed file; an empty report if there is none.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match fs::read_to_string(path) {
            Ok(text) => Self::parse(&text)
                .map_err(|what| Failure::tool(format!("{}: {what}; renew it with WRITE=1", path.display()))),
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
        let mut checks: Vec<&str> = Vec::new();
        for row in self.sections.values().flat_map(|section| &section.rows) {
            if !checks.contains(&row.check.as_str()) {
                checks.push(&row.check);
            }
        }
        checks.sort_by_key(|check| position(check));
        if checks.is_empty() {
            return String::new();
        }
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

    /// Replaces the results of a run. Rows of checks that did not run stay.
    pub(crate) fn update(&mut self, run: &Self) {
        for (version, section) in &run.sections {
            match self.sections.get_mut(version) {
                Some(old) => old.update(section),
                None => drop(self.sections.insert(version.clone(), section.clone())),
            }
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
    let mark = Mark::ALL.into_iter().find(|m| m.text() == mark);
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
        all.update(&report("2.10.3.post1", &[("killed rank", Mark::Unfit, "the release drops errors")]));
        assert_eq!(Report::parse(&all.text()), Ok(all.clone()));
        let titles = ["NCCL 2.9.1", "NCCL 2.10.3\n", "NCCL 2.10.3.post1\n"].map(|t| all.text().find(t));
        assert!(titles.is_sorted() && titles.iter().all(Option::is_some), "{titles:?}");
        assert!(all.text().starts_with(HEAD));
        let table = "| NCCL | layout | traffic | killed rank |\n|---|---|---|---|\n\
                     | 2.9.1 | ok | FAILED | not run |\n";
        assert!(all.text().contains(table), "{}", all.text());
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
    fn an_update_keeps_what_did_not_run_in_the_order_of_the_checks() {
        let mut all = report("2.9.1", &[("layout", Mark::Ok, "a"), ("traffic", Mark::Ok, "b")]);
        let mut run = report("2.9.1", &[("layout", Mark::NotRun, "no disk"), ("devices", Mark::Ok, "c")]);
        run.sections.values_mut().for_each(|section| section.date = "2026-01-03".into());
        let twice = run.clone();
        all.update(&run);
        all.update(&twice);
        let section = all.sections.values().next().unwrap();
        let rows: Vec<_> = section.rows.iter().map(|row| (row.check.as_str(), row.seen.as_str())).collect();
        assert_eq!(rows, [("layout", "a"), ("devices", "c"), ("traffic", "b")]);
        assert_eq!(section.date, "2026-01-02 to 2026-01-03");
        assert_eq!(Report::parse(&all.text()), Ok(all));
    }
}
