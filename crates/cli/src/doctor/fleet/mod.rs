//! Checks pairs of many hosts. On each host an `mpib doctor --listen --hosts FILE` waits, or a rank of
//! `mpib doctor --all-ranks`. This end requests each pair once, from the host that comes first in the
//! list: that host checks the other one as `mpib doctor HOST` does.
//!
//! `plan` says which pairs, `schedule` when, `judge` what they show, by the hosts that `blame` names:
//! none of these does I/O. `text`, `html` and `bad_hosts` write it, `list` reads a file of hosts,
//! `nodes` a list of Slurm, and `ranks` joins the ranks of a job.

mod bad_hosts;
mod blame;
mod html;
mod judge;
pub(super) mod list;
mod nodes;
mod plan;
pub(super) mod ranks;
mod schedule;
#[cfg(test)]
mod simulation;
mod text;

use std::{
    collections::BTreeMap,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    path::Path,
    sync::{
        Condvar, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
    time::Duration,
};

use judge::Judgement;
use nccl_net_mpib_agent_iface::doctor::{Check, Level};
use plan::Pair;
pub(super) use plan::Pairs;
use schedule::{Ended, Schedule};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{
    DoctorArgs, Verdict,
    peer::{self, Row, Summary, Task},
};
use crate::failure::{Failure, Kind};
use crate::output::{self, document, document::ErrorReport, units::counted};

/// Most pairs of ports that a host may report for a pair of hosts.
const MOST_ROWS: usize = 4096;
/// Most requests at a time.
const AT_ONCE: usize = 256;
/// How long a host may take to check itself.
const DESCRIBED: Duration = Duration::from_secs(120);
/// How long a host may take to check another one.
const CHECKED: Duration = Duration::from_secs(300);
/// Of so many parts of the pairs each is a line on stderr.
const LINES: usize = 10;

/// The document of `--json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Fleet {
    /// Version of this document. New fields may be added without a new version.
    format: u32,
    /// This tool's version.
    mpib: &'static str,
    pub(super) verdict: Verdict,
    exit_code: u8,
    /// The rule for the pairs: `ring`, `random:N` or `all`.
    rule: String,
    /// Decides the pairs of `random:N`.
    seed: Option<u64>,
    #[serde(flatten)]
    judgement: Judgement,
    /// Why ranks of a job are missing.
    absent: Vec<Check>,
    /// The hosts in the order of the list.
    hosts: Vec<Host>,
    /// Each pair of the rule, once.
    pairs: Vec<HostPair>,
}

/// A host to be checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) name: String,
    pub(super) address: String,
}

/// A host of the list.
#[derive(Debug, Serialize, JsonSchema)]
struct Host {
    /// As a scheduler knows it.
    name: String,
    address: String,
    /// Why it does not answer.
    error: Option<ErrorReport>,
    /// Whether it was given up while it was measured.
    is_given_up: bool,
    /// What it reports about itself.
    summary: Option<Summary>,
}

/// Two hosts.
#[derive(Debug, Serialize, JsonSchema)]
struct HostPair {
    #[serde(skip)]
    ends: Pair,
    /// The addresses of both. The first one checked the second.
    from: String,
    to: String,
    /// Why the pair could not be checked. A pair with a host that does not answer, or was given up, is
    /// not checked and has no error.
    error: Option<ErrorReport>,
    /// Of the host with fewer ports that carry data between the two; absent if the pair was not
    /// checked.
    ports: Option<Count>,
    /// The findings on the routes between them.
    checks: Vec<Check>,
    /// Every pair of ports.
    routes: Vec<Row>,
}

/// Ports of a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct Count {
    /// How many carry data.
    carry: usize,
    /// How many there are that `NCCL_IB_HCA` does not leave out.
    of: usize,
}

/// What a host has found about another one.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Checked {
    pub(super) checks: Vec<Check>,
    pub(super) routes: Vec<Row>,
}

impl HostPair {
    fn new(ends: Pair, hosts: &[Host], outcome: Option<Result<Checked, Failure>>) -> Self {
        let is_measured = outcome.is_some();
        let (checked, error) = split(outcome.unwrap_or_else(|| Ok(Checked::default())));
        let Checked { checks, routes } = checked.unwrap_or_default();
        let [from, to] = [ends.from, ends.to].map(|host| hosts[host].address.clone());
        let summaries = [ends.from, ends.to].map(|host| hosts[host].summary.as_ref());
        let ports = Count::of(summaries, &routes).filter(|_| is_measured && error.is_none());
        Self { ends, from, to, error, ports, checks, routes }
    }

    fn has(&self, host: usize) -> bool {
        self.ends.from == host || self.ends.to == host
    }

    fn is_measured(&self) -> bool {
        self.error.is_some() || self.ports.is_some()
    }

    /// Returns the severity of its findings.
    fn level(&self) -> Level {
        let worst = self.checks.iter().map(|check| check.level).max().unwrap_or(Level::Ok);
        let is_dead = self.ports.is_some_and(|ports| ports.carry == 0);
        if self.error.is_some() || is_dead { Level::Fail } else { worst }
    }
}

impl Count {
    /// Counts the ports of each host that carry data, and takes the worse of the two.
    fn of(summaries: [Option<&Summary>; 2], routes: &[Row]) -> Option<Self> {
        let works = || routes.iter().filter(|row| row.works());
        let names: [Vec<&str>; 2] =
            [works().map(|row| &*row.pair.ours).collect(), works().map(|row| &*row.pair.theirs).collect()];
        let count = |(names, summary): (Vec<&str>, Option<&Summary>)| {
            let summary = summary?;
            let carry = summary.ports.iter().filter(|port| names.contains(&&*port.name)).count();
            Some(Self { carry, of: summary.ports.len() + summary.lost.len() })
        };
        let both = names.into_iter().zip(summaries).map(count).collect::<Option<Vec<_>>>()?;
        both.into_iter().min_by(|a, b| (a.carry * b.of).cmp(&(b.carry * a.of)))
    }

    fn is_full(self) -> bool {
        self.carry >= self.of
    }
}

/// Checks many hosts for `--hosts`, or for several HOSTs.
pub(super) fn main(args: &DoctorArgs) -> Result<Verdict, Failure> {
    let members = match &args.hosts {
        Some(path) => list::members(&list::read(path)?),
        None => list::members(&list::of(&args.peers)?),
    };
    if members.len() < 2 {
        let place = args.hosts.as_deref().unwrap_or(Path::new("the list")).display();
        let text = format!("{place} has {}, expected two or more", counted(members.len(), "host"));
        return Err(Failure::new(Kind::Usage, text));
    }
    if args.expect.is_some() {
        let why = "--expect compares one host; with many, give it to mpib doctor --listen on each host";
        return Err(Failure::new(Kind::Usage, why));
    }
    let fleet = check(&members, args, Vec::new())?;
    fleet.finish(args)
}

/// Checks these hosts. `absent`: what is known of those that did not come.
fn check(members: &[Member], args: &DoctorArgs, absent: Vec<(String, Check)>) -> Result<Fleet, Failure> {
    let rule = args.pairs.unwrap_or_else(|| Pairs::usual(members.len()));
    let seed = args.seed.unwrap_or_else(|| fastrand::u32(..).into());
    let planned = rule.of(members.len(), seed)?;
    eprintln!(
        "mpib: {}, {} (--pairs {rule}{})",
        counted(members.len(), "host"),
        counted(planned.len(), "pair"),
        if rule.is_random() { format!(" --seed {seed}") } else { String::new() }
    );
    let mut hosts: Vec<Host> = at_once(members, describe);
    let answers: Vec<bool> = hosts.iter().map(|host| host.summary.is_some()).collect();
    let mut schedule = Schedule::new(&planned, &answers, AT_ONCE);
    let outcomes = measure(&mut schedule, planned.len(), |number| {
        let Pair { from, to } = planned[number];
        request(&members[from].address, &members[to].address)
    });
    for (host, is_given_up) in hosts.iter_mut().zip(schedule.given_up()) {
        host.is_given_up = is_given_up;
    }
    let pairs: Vec<HostPair> =
        planned.iter().zip(outcomes).map(|(ends, outcome)| HostPair::new(*ends, &hosts, outcome)).collect();
    let judgement = judge::judge(&hosts, &pairs);
    let seed = rule.is_random().then_some(seed);
    Ok(Fleet::new(rule, seed, judgement, absent, hosts, pairs))
}

impl Fleet {
    fn new(
        rule: Pairs,
        seed: Option<u64>,
        mut judgement: Judgement,
        absent: Vec<(String, Check)>,
        hosts: Vec<Host>,
        pairs: Vec<HostPair>,
    ) -> Self {
        let mut others = Vec::new();
        for (name, check) in absent {
            match name.is_empty() {
                true => others.push(check),
                false => judgement.bad_hosts.push(judge::BadHost { name, reasons: vec![check] }),
            }
        }
        let of_host = |host: &Host| host.summary.as_ref().map_or(Verdict::Unusable, |s| s.verdict);
        let of_judge = judgement.bad_hosts.iter().flat_map(|host| &host.reasons);
        let of_judge = of_judge.chain(judgement.bad_pairs.iter().map(|pair| &pair.check)).chain(&others);
        let of_judge = of_judge.map(|check| check.level);
        let worst = of_judge.chain(pairs.iter().map(HostPair::level)).max().unwrap_or(Level::Ok);
        let verdict = hosts.iter().map(of_host).fold(Verdict::of_level(worst), Verdict::max);
        Self {
            format: 1,
            mpib: env!("CARGO_PKG_VERSION"),
            verdict,
            exit_code: verdict.exit_code(),
            rule: rule.to_string(),
            seed,
            judgement,
            absent: others,
            hosts,
            pairs,
        }
    }

    /// Prints the result, and writes the files of the options.
    fn finish(&self, args: &DoctorArgs) -> Result<Verdict, Failure> {
        if let Some(path) = &args.bad_hosts {
            bad_hosts::write(path, &self.judgement.bad_hosts)?;
        }
        if let Some(path) = &args.report {
            html::write(path, self)?;
        }
        match args.json {
            true => document::print(self)?,
            false => output::print(&text::text(self, args.detail()))?,
        }
        Ok(self.verdict)
    }

    /// Whether a host is among the bad ones.
    fn is_bad(&self, host: usize) -> bool {
        self.judgement.bad_hosts.iter().any(|bad| bad.name == self.hosts[host].name)
    }

    /// Returns the wanted findings about hosts, each once with the hosts that have it: many hosts often have
    /// one finding. `is_wanted` has the number of the host.
    fn of_hosts(&self, is_wanted: impl Fn(usize, &Check) -> bool) -> Vec<(Vec<&str>, &Check)> {
        let mut all: BTreeMap<(&str, &str), (Vec<&str>, &Check)> = BTreeMap::new();
        for (number, host) in self.hosts.iter().enumerate() {
            for check in host_checks(host).filter(|check| is_wanted(number, check)) {
                let known = all.entry((&check.id, &check.text)).or_insert_with(|| (Vec::new(), check));
                known.0.push(&host.name);
            }
        }
        all.into_values().collect()
    }

    /// Returns the findings on pairs whose hosts are not bad.
    fn of_pairs(&self) -> impl Iterator<Item = (String, &Check)> {
        let alone =
            self.pairs.iter().filter(|pair| !self.is_bad(pair.ends.from) && !self.is_bad(pair.ends.to));
        let place = |from: &str, to: &str| format!("{from} to {to}");
        let of_routes = alone.flat_map(move |pair| {
            let [from, to] = [pair.ends.from, pair.ends.to].map(|host| &*self.hosts[host].name);
            // Each host has its own findings once.
            let checks = pair.checks.iter().filter(|check| check.id != "peer");
            checks.map(move |check| (place(from, to), check))
        });
        let of_rates =
            self.judgement.bad_pairs.iter().map(move |pair| (place(&pair.from, &pair.to), &pair.check));
        of_routes.chain(of_rates)
    }
}

/// Returns the findings of a host about itself.
fn host_checks(host: &Host) -> impl Iterator<Item = &Check> {
    host.summary.iter().flat_map(|summary| &summary.checks)
}

/// Calls `work` for all items, some at a time; returns the results in order.
pub(crate) fn at_once<T: Sync, R: Send>(items: &[T], work: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let mut results: Vec<(usize, R)> = thread::scope(|scope| {
        let worker = || {
            let numbers = std::iter::from_fn(|| Some(next.fetch_add(1, Ordering::Relaxed)));
            let own = numbers.map_while(|number| Some((number, items.get(number)?)));
            own.map(|(number, item)| (number, work(item))).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..items.len().min(AT_ONCE)).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().flat_map(joined).collect()
    });
    results.sort_by_key(|(number, _)| *number);
    results.into_iter().map(|(_, result)| result).collect()
}

fn joined<T>(thread: thread::ScopedJoinHandle<'_, T>) -> T {
    thread.join().unwrap_or_else(|panic| resume_unwind(panic))
}

/// Calls `check` for the pairs of a schedule; returns the result of each, none for those that were left
/// out.
fn measure<T: Send>(
    schedule: &mut Schedule,
    pairs: usize,
    check: impl Fn(usize) -> (Ended, T) + Sync,
) -> Vec<Option<T>> {
    let (threads, mut results) = (pairs.min(AT_ONCE), Vec::new());
    results.resize_with(pairs, || None);
    let (state, changed) = (Mutex::new((schedule, results)), Condvar::new());
    let lock = || state.lock().unwrap_or_else(PoisonError::into_inner);
    let next = || {
        let mut state = lock();
        loop {
            if let Some(number) = state.0.next() {
                return Some(number);
            }
            if state.0.is_over() {
                return None;
            }
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    };
    let worker = || {
        while let Some(number) = next() {
            let checked = catch_unwind(AssertUnwindSafe(|| check(number)));
            let mut state = lock();
            let (how, result) = match checked {
                Ok(checked) => checked,
                // The other threads do not wait for this pair.
                Err(panic) => {
                    state.0.ended(number, Ended::Failed);
                    drop(state);
                    changed.notify_all();
                    resume_unwind(panic);
                }
            };
            state.0.ended(number, how);
            state.1[number] = Some(result);
            progress(&state);
            drop(state);
            changed.notify_all();
        }
    };
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(worker)).collect();
        threads.into_iter().for_each(joined);
    });
    state.into_inner().unwrap_or_else(PoisonError::into_inner).1
}

/// Says how many pairs are done, in a few lines for all.
fn progress<T>(state: &MutexGuard<'_, (&mut Schedule, Vec<Option<T>>)>) {
    let (done, all) = (state.1.iter().flatten().count(), state.1.len());
    if all > LINES && done.is_multiple_of(all.div_ceil(LINES)) {
        eprintln!("mpib: {done} of {all} pairs");
    }
}

/// Requests what a host reports about itself.
fn describe(member: &Member) -> Host {
    let Member { name, address } = member.clone();
    let (summary, error) = split(peer::request::<Summary>(&address, Task::Describe, DESCRIBED));
    Host { name, address, error, is_given_up: false, summary }
}

/// Requests that one host checks another.
fn request(from: &str, to: &str) -> (Ended, Result<Checked, Failure>) {
    let answer = peer::request::<Result<Checked, Failure>>(from, Task::Check(to.to_owned()), CHECKED);
    let how = match &answer {
        Ok(Ok(_)) => Ended::Checked,
        Ok(Err(_)) => Ended::Failed,
        Err(_) => Ended::Silent,
    };
    (how, answer.and_then(|outcome| validate(outcome?)))
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

    //= fleet.md: what a host of the matrix sends is checked
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

    #[test]
    fn results_are_in_the_order_of_the_items() {
        let items: Vec<usize> = (0..1000).collect();
        assert_eq!(at_once(&items, |item| item * 2), items.iter().map(|item| item * 2).collect::<Vec<_>>());
        assert_eq!(at_once(&[0; 0], |item| *item), [0; 0]);
    }
}
