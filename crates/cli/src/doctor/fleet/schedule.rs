//! When each pair of hosts is measured: pairs without a common host at the same time, and no more
//! pairs of a host that does not answer. A machine without clock, thread or socket.

use super::plan::Pair;

/// So many failures of a host one after another, and none of its other pairs is measured.
const GIVE_UP: u32 = 3;

/// What became of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Ended {
    /// One host has checked the other.
    Checked,
    /// The check failed.
    Failed,
    /// The first host gave no answer in time.
    Silent,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Waits,
    Runs,
    Over,
}

#[derive(Debug, Clone, Default)]
struct Host {
    is_busy: bool,
    /// Failures since its last pair that was checked.
    failures: u32,
    is_given_up: bool,
    /// Pairs that wait.
    left: usize,
}

/// The pairs that wait and run.
#[derive(Debug)]
pub(super) struct Schedule {
    pairs: Vec<(Pair, State)>,
    hosts: Vec<Host>,
    running: usize,
    at_once: usize,
}

impl Schedule {
    /// Makes the schedule of these pairs, some at a time. `answers`: whether each host has answered
    /// before; no pair of another one is measured.
    pub(super) fn new(pairs: &[Pair], answers: &[bool], at_once: usize) -> Self {
        let mut hosts = vec![Host::default(); answers.len()];
        let measured = |pair: &Pair| answers[pair.from] && answers[pair.to];
        for pair in pairs.iter().filter(|pair| measured(pair)) {
            hosts[pair.from].left += 1;
            hosts[pair.to].left += 1;
        }
        let state = |pair: &Pair| if measured(pair) { State::Waits } else { State::Over };
        let pairs = pairs.iter().map(|pair| (*pair, state(pair))).collect();
        Self { pairs, hosts, running: 0, at_once }
    }

    /// Starts a pair whose hosts are idle: one of those hosts that have most left. Returns its number.
    pub(super) fn next(&mut self) -> Option<usize> {
        if self.running >= self.at_once {
            return None;
        }
        let is_idle = |pair: &Pair| !self.hosts[pair.from].is_busy && !self.hosts[pair.to].is_busy;
        let left = |pair: &Pair| self.hosts[pair.from].left + self.hosts[pair.to].left;
        let waiting = self
            .pairs
            .iter()
            .enumerate()
            .filter(|(_, (pair, state))| *state == State::Waits && is_idle(pair));
        // The first one of equal ones.
        let (number, _) = waiting.rev().max_by_key(|(_, (pair, _))| left(pair))?;
        let (pair, state) = &mut self.pairs[number];
        *state = State::Runs;
        for host in [pair.from, pair.to] {
            self.hosts[host].is_busy = true;
            self.hosts[host].left -= 1;
        }
        self.running += 1;
        Some(number)
    }

    /// Ends a pair that [`Schedule::next`] started.
    pub(super) fn ended(&mut self, number: usize, how: Ended) {
        let (pair, state) = &mut self.pairs[number];
        *state = State::Over;
        self.running -= 1;
        let Pair { from, to } = *pair;
        for host in [from, to] {
            let host = &mut self.hosts[host];
            host.is_busy = false;
            host.failures = if how == Ended::Checked { 0 } else { host.failures + 1 };
        }
        for host in [from, to] {
            if self.hosts[host].failures >= GIVE_UP || (how == Ended::Silent && host == from) {
                self.give_up(host);
            }
        }
    }

    fn give_up(&mut self, host: usize) {
        self.hosts[host].is_given_up = true;
        for (pair, state) in &mut self.pairs {
            if *state == State::Waits && (pair.from == host || pair.to == host) {
                *state = State::Over;
                self.hosts[pair.from].left -= 1;
                self.hosts[pair.to].left -= 1;
            }
        }
    }

    /// Whether no pair waits or runs.
    pub(super) fn is_over(&self) -> bool {
        self.pairs.iter().all(|(_, state)| *state == State::Over)
    }

    /// Returns whether each host was given up.
    pub(super) fn given_up(&self) -> Vec<bool> {
        self.hosts.iter().map(|host| host.is_given_up).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::Pairs;
    use super::*;

    fn run(schedule: &mut Schedule, how: impl Fn(Pair) -> Ended) -> (Vec<Pair>, usize) {
        let (mut seen, mut rounds) = (Vec::new(), 0);
        while !schedule.is_over() {
            let round: Vec<usize> = std::iter::from_fn(|| schedule.next()).collect();
            assert!(!round.is_empty(), "nothing runs, and pairs wait");
            let mut hosts: Vec<usize> =
                round.iter().flat_map(|n| [schedule.pairs[*n].0.from, schedule.pairs[*n].0.to]).collect();
            hosts.sort_unstable();
            assert!(hosts.windows(2).all(|w| w[0] != w[1]), "a host is in two pairs: {hosts:?}");
            for number in round {
                seen.push(schedule.pairs[number].0);
                schedule.ended(number, how(schedule.pairs[number].0));
            }
            rounds += 1;
        }
        (seen, rounds)
    }

    //= fleet.md: pairs without a common host run at the same time
    #[test]
    fn each_pair_runs_once_and_no_host_in_two_at_a_time() {
        for hosts in 2..12 {
            for pairs in [Pairs::All, Pairs::Ring, Pairs::Random(2)] {
                let pairs = pairs.of(hosts, 3).unwrap();
                let mut schedule = Schedule::new(&pairs, &vec![true; hosts], 64);
                let (mut seen, rounds) = run(&mut schedule, |_| Ended::Checked);
                seen.sort();
                assert_eq!(seen, pairs);
                assert!(rounds <= 2 * hosts, "{rounds} rounds of {hosts} hosts");
            }
        }
    }

    #[test]
    fn no_more_pairs_run_than_at_once() {
        let pairs = Pairs::Ring.of(20, 1).unwrap();
        let mut schedule = Schedule::new(&pairs, &[true; 20], 4);
        assert_eq!(std::iter::from_fn(|| schedule.next()).count(), 4);
    }

    //= fleet.md: a host that does not answer costs three pairs at most
    #[test]
    fn a_host_that_fails_is_given_up_and_the_others_go_on() {
        let pairs = Pairs::All.of(10, 1).unwrap();
        let fails = |pair: Pair| pair.from == 4 || pair.to == 4;
        let mut schedule = Schedule::new(&pairs, &[true; 10], 64);
        let (seen, _) = run(&mut schedule, |pair| if fails(pair) { Ended::Failed } else { Ended::Checked });
        assert_eq!(seen.iter().filter(|pair| fails(**pair)).count(), 3);
        assert_eq!(seen.iter().filter(|pair| !fails(**pair)).count(), 36);
        assert_eq!(schedule.given_up().iter().position(|up| *up), Some(4));
        // One that gives no answer in time is given up at once, and its partner is not.
        let mut schedule = Schedule::new(&pairs, &[true; 10], 64);
        let (seen, _) = run(&mut schedule, |pair| match pair.from {
            4 => Ended::Silent,
            _ => Ended::Checked,
        });
        assert_eq!(seen.iter().filter(|pair| pair.from == 4).count(), 1);
        assert_eq!(schedule.given_up().iter().filter(|up| **up).count(), 1);
        // One that did not answer before is in no pair.
        let mut answers = [true; 10];
        answers[4] = false;
        let mut schedule = Schedule::new(&pairs, &answers, 64);
        assert_eq!(run(&mut schedule, |_| Ended::Checked).0.len(), 36);
    }
}
