//! Checks every pair of many hosts. On each host a `mpib doctor --listen --hosts FILE` waits. This
//! end requests each pair once, from the host that comes first in the file: that host checks the
//! other one as `mpib doctor HOST` does. Pairs without a common host run at the same time.

use std::{
    collections::{BTreeSet, HashMap},
    fs,
    path::Path,
    thread,
    time::Duration,
};

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Verdict as RouteVerdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    Verdict,
    peer::{self, Row, Summary, Task},
};
use crate::failure::{Context, Failure, Kind};
use crate::output::document::ErrorReport;
use crate::perf;

/// Most hosts of a file.
const MOST_HOSTS: usize = 512;
/// Most pairs of ports that a host may report for a pair of hosts.
const MOST_ROWS: usize = 4096;
/// Most requests at a time.
const AT_ONCE: usize = 64;
/// How long a host may take to check itself.
const DESCRIBED: Duration = Duration::from_secs(120);
/// How long a host may take to check another one, in which time it may wait for it.
const CHECKED: Duration = Duration::from_secs(900);

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Matrix {
    /// Version of this document. New fields may be added without a new version.
    pub(super) format: u32,
    /// This tool's version.
    pub(super) mpib: &'static str,
    pub(super) verdict: Verdict,
    pub(super) exit_code: u8,
    /// The hosts in the order of the file.
    pub(super) hosts: Vec<Host>,
    /// Every pair of hosts, once.
    pub(super) pairs: Vec<HostPair>,
}

/// A host of the file.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Host {
    /// As the file has it.
    pub(super) address: String,
    /// Why it does not answer.
    pub(super) error: Option<ErrorReport>,
    /// What it reports about itself.
    pub(super) summary: Option<Summary>,
}

/// Two hosts.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct HostPair {
    /// The addresses of both. The first one checked the second.
    pub(super) from: String,
    pub(super) to: String,
    /// Why the pair could not be checked. A pair with a host that does not answer is not checked
    /// and has no error.
    pub(super) error: Option<ErrorReport>,
    /// The findings on the routes between them.
    pub(super) checks: Vec<Check>,
    /// Every pair of ports.
    pub(super) routes: Vec<Row>,
}

impl HostPair {
    /// Returns how many pairs of ports carry data, and how many a connection tries first.
    pub(super) fn count(&self) -> (usize, usize) {
        let first = |row: &&Row| row.pair.verdict == RouteVerdict::First;
        let works = self.routes.iter().filter(|row| row.works()).count();
        (works, self.routes.iter().filter(first).count())
    }

    /// Returns the severity of its findings.
    pub(super) fn level(&self) -> Level {
        let worst = self.checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        if self.error.is_some() || self.count().0 == 0 { Level::Fail } else { worst }
    }
}

/// What a host has found about another one.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Checked {
    pub(super) checks: Vec<Check>,
    pub(super) routes: Vec<Row>,
}

/// Reads a file with an address on each line: `HOST` or `HOST:PORT`. Empty lines and what follows a
/// `#` do not count.
pub(super) fn read(path: &Path) -> Result<Vec<String>, Failure> {
    let text = fs::read_to_string(path).tool(format!("read {}", path.display()))?;
    let mut hosts = Vec::new();
    let mut seen = BTreeSet::new();
    for (number, line) in (1..).zip(text.lines()) {
        let address = line.split('#').next().unwrap_or_default().trim();
        if address.is_empty() {
            continue;
        }
        let at = |failure: Failure| failure.at(format!("line {number} of {}", path.display()));
        let (host, port) = perf::split(address).map_err(at)?;
        if host.is_empty() || host.contains(char::is_whitespace) {
            let text = format!("{address:?} names no host; expected HOST or HOST:PORT");
            return Err(at(Failure::new(Kind::Usage, text)));
        }
        if !seen.insert((host.to_owned(), port)) {
            return Err(at(Failure::new(Kind::Usage, format!("{address} is in the file twice"))));
        }
        hosts.push(address.to_owned());
    }
    if hosts.len() > MOST_HOSTS {
        let text = format!("{}: {} hosts, expected at most {MOST_HOSTS}", path.display(), hosts.len());
        return Err(Failure::new(Kind::Usage, text));
    }
    Ok(hosts)
}

/// Checks every pair of the hosts in the file.
pub(super) fn check(path: &Path) -> Result<Matrix, Failure> {
    let addresses = read(path)?;
    if addresses.len() < 2 {
        let text = format!("{} has {} host(s), expected two or more", path.display(), addresses.len());
        return Err(Failure::new(Kind::Usage, text));
    }
    let all: Vec<&String> = addresses.iter().collect();
    let hosts: Vec<Host> = at_once(&all, |address| describe(address));
    let answers: Vec<usize> = (0..hosts.len()).filter(|i| hosts[*i].summary.is_some()).collect();
    let rounds = rounds(&answers);
    let mut found = HashMap::new();
    for (number, round) in (1..).zip(&rounds) {
        eprintln!("mpib: round {number} of {}, {} pair(s) of hosts", rounds.len(), round.len());
        found.extend(at_once(round, |(i, j)| ((*i, *j), pair(&addresses[*i], &addresses[*j]))));
    }
    let mut pairs = Vec::new();
    for i in 0..hosts.len() {
        for j in i + 1..hosts.len() {
            let missed = || HostPair {
                from: addresses[i].clone(),
                to: addresses[j].clone(),
                error: None,
                checks: Vec::new(),
                routes: Vec::new(),
            };
            pairs.push(found.remove(&(i, j)).unwrap_or_else(missed));
        }
    }
    let verdict = verdict(&hosts, &pairs);
    Ok(Matrix {
        format: 1,
        mpib: env!("CARGO_PKG_VERSION"),
        verdict,
        exit_code: verdict.exit_code(),
        hosts,
        pairs,
    })
}

/// Returns the worst of all findings.
fn verdict(hosts: &[Host], pairs: &[HostPair]) -> Verdict {
    let of_host = |host: &Host| host.summary.as_ref().map_or(Verdict::Unusable, |summary| summary.verdict);
    let of_pairs = Verdict::of_level(pairs.iter().map(HostPair::level).max().unwrap_or(Level::Fail));
    hosts.iter().map(of_host).fold(of_pairs, Verdict::max)
}

/// Calls `work` for all items, some at a time; returns the results in order.
pub(crate) fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let mut results = Vec::with_capacity(items.len());
    for part in items.chunks(AT_ONCE) {
        thread::scope(|scope| {
            let threads: Vec<_> = part.iter().map(|item| scope.spawn(|| work(item))).collect();
            let joined = threads.into_iter().map(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            });
            results.extend(joined);
        });
    }
    results
}

/// Divides all pairs into rounds in which each host is in one pair at most, as in a tournament. The
/// smaller index is the first of a pair.
fn rounds(hosts: &[usize]) -> Vec<Vec<(usize, usize)>> {
    let mut circle: Vec<Option<usize>> = hosts.iter().copied().map(Some).collect();
    if !circle.len().is_multiple_of(2) {
        circle.push(None);
    }
    let mut rounds = Vec::new();
    for _ in 1..circle.len() {
        let half = circle.len() / 2;
        let (left, right) = circle.split_at(half);
        let pairs = left.iter().zip(right.iter().rev()).filter_map(|(a, b)| Some(((*a)?, (*b)?)));
        rounds.push(pairs.map(|(a, b)| (a.min(b), a.max(b))).collect::<Vec<_>>());
        circle[1..].rotate_right(1);
    }
    rounds.retain(|round| !round.is_empty());
    rounds
}

/// Requests what a host reports about itself.
fn describe(address: &str) -> Host {
    let outcome = peer::request::<Summary>(address, Task::Describe, DESCRIBED);
    let (summary, error) = split(outcome);
    Host { address: address.to_owned(), error, summary }
}

/// Requests that one host checks another.
fn pair(from: &str, to: &str) -> HostPair {
    let outcome = peer::request::<Result<Checked, Failure>>(from, Task::Check(to.to_owned()), CHECKED);
    let (checked, error) = split(outcome.and_then(|outcome| validate(outcome?)));
    let Checked { checks, routes } = checked.unwrap_or(Checked { checks: Vec::new(), routes: Vec::new() });
    HostPair { from: from.to_owned(), to: to.to_owned(), error, checks, routes }
}

fn split<T>(outcome: Result<T, Failure>) -> (Option<T>, Option<ErrorReport>) {
    match outcome {
        Ok(value) => (Some(value), None),
        Err(failure) => (None, Some(ErrorReport { exit_code: failure.kind.exit_code(), failure })),
    }
}

/// Checks what a host has sent.
fn validate(checked: Checked) -> Result<Checked, Failure> {
    let refuse = |text: String| Err(Failure::new(Kind::Peer, text));
    if checked.routes.len() > MOST_ROWS {
        return refuse(format!(
            "it reports {} pairs of ports, expected at most {MOST_ROWS}",
            checked.routes.len()
        ));
    }
    let rates = checked.routes.iter().flat_map(|row| [&row.out, &row.back]).flatten();
    let rates = rates.filter_map(|measured| measured.gigabytes_per_second);
    if let Some(rate) = rates.into_iter().find(|rate| !(0.0..1e6).contains(rate)) {
        return refuse(format!("it reports a rate of {rate} GB/s, expected 0 to 1000000"));
    }
    Ok(checked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_is_in_one_round_and_no_host_in_two_pairs_of_a_round() {
        for n in 0..9 {
            let hosts: Vec<usize> = (10..10 + n).collect();
            let rounds = rounds(&hosts);
            let mut all: Vec<_> = rounds.concat();
            all.sort_unstable();
            let expected: Vec<_> = hosts.iter().flat_map(|i| (i + 1..10 + n).map(move |j| (*i, j))).collect();
            assert_eq!(all, expected, "{n}");
            for round in &rounds {
                let mut hosts: Vec<_> = round.iter().flat_map(|(a, b)| [a, b]).collect();
                hosts.sort_unstable();
                assert!(hosts.windows(2).all(|w| w[0] != w[1]), "{round:?}");
            }
            assert!(rounds.len() <= n.next_multiple_of(2), "{n}");
        }
    }

    #[test]
    fn a_file_has_a_host_on_each_line() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("hosts");
        let of = |text: &str| {
            fs::write(&path, text).unwrap();
            read(&path).map_err(|failure| failure.message)
        };
        assert_eq!(
            of("# all\nnode1\n\n  node2:99 # second\n[fd00::1]:5\n").unwrap(),
            ["node1", "node2:99", "[fd00::1]:5"]
        );
        for (text, expected) in [
            ("a\nb:port\n", "line 2 of"),
            (":99", "names no host"),
            ("a b", "names no host"),
            ("a\na:18518", "is in the file twice"),
            (&*"x\n".replace('x', &(0..600).map(|i| format!("h{i}\n")).collect::<String>()), "600 hosts"),
        ] {
            let error = of(text).unwrap_err();
            assert!(error.contains(expected), "{error}");
        }
        assert!(read(Path::new("/nowhere/hosts")).unwrap_err().message.contains("/nowhere/hosts"));
        of("alone").unwrap();
        assert!(check(&path).unwrap_err().message.contains("expected two or more"));
    }

    //= doctor.md: what a host of the matrix sends is checked
    #[test]
    fn impossible_answers_are_refused() {
        let row = |rate: f64| -> Row {
            let out = serde_json::json!({ "gigabytes_per_second": rate, "error": null });
            let row = serde_json::json!({ "ours": "a:1", "theirs": "b:1", "verdict": "first", "way": null,
                "why": "", "out": out, "back": null });
            serde_json::from_value(row).unwrap()
        };
        let checked = |routes| validate(Checked { checks: Vec::new(), routes });
        assert!(checked(vec![row(40.0)]).is_ok());
        assert!(checked(vec![row(-1.0)]).unwrap_err().message.contains("a rate of -1 GB/s"));
        assert!(checked(vec![row(1.0); MOST_ROWS + 1]).unwrap_err().message.contains("4097 pairs of ports"));
    }
}
