//! NCCL's operations: which ones took much longer than those of their kind, and which rail explains it.

use nccl_net_mpib_agent_iface::stats::{self, Port};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Count;

/// The last operations of a communicator that a document has.
const SHOWN: usize = 8;
/// The time in which an operation counts as a recent one, in ns.
const RECENT: u64 = 60_000_000_000;
/// An operation is slow if it takes this many times as long as usual, and so is a rail.
const SLOW: f64 = 2.0;
/// An operation is slow if it takes this much longer than usual, in ns, at least. Less is what a thread
/// of a busy host waits for a core, and does not hold up a job.
const SLOW_BY: f64 = 10e6;
/// What has to explain a slow operation is this part of the time beyond the usual one.
const EXPLAINED: f64 = 0.5;
/// What is usual is the median of this many operations at least.
const LEAST: usize = 5;

/// A communicator of NCCL's. It is there if `NCCL_PROFILER_PLUGIN` names the plugin.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Communicator {
    /// NCCL's number of it, in hexadecimal: equal on all ranks.
    pub id: String,
    /// Its name, if the program has named it.
    pub name: Option<String>,
    /// The rank of the process.
    pub rank: u32,
    /// Number of ranks; null if the release of NCCL does not name it.
    pub ranks: Option<u32>,
    /// Operations so far.
    pub operations: Count,
    /// Of these, operations that were not recorded, since too many before them were not over.
    pub not_recorded: Count,
    /// The last operations, at most 8, the latest at the end.
    pub last: Vec<Operation>,
    /// Of the operations of the last minute that are over: the one that took longest, relative to what
    /// is usual if that is known. One that is slow for a known reason comes before all others.
    pub slowest: Option<Operation>,
}

/// An operation of NCCL's. Operations of one kind have the same name, bytes and algorithm.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// Its number among those with its name; 0 of sends and receives.
    pub sequence: Count,
    /// What it is, such as `AllReduce`.
    pub name: String,
    /// How NCCL does it, such as `RING`; null of sends and receives.
    pub algorithm: Option<String>,
    /// Its protocol, such as `SIMPLE`; null of sends and receives.
    pub protocol: Option<String>,
    /// Bytes of the count that the program passes; null if that is not known.
    pub bytes: Option<Count>,
    /// Channels; 0 if that is not known.
    pub channels: u32,
    /// When the program asked for it.
    pub asked_ms: u64,
    /// Time from its first data to its last; null if it is not over, or NCCL has reported no data of it to
    /// the plugin.
    pub took_ms: Option<f64>,
    /// What operations of its kind take: the median of those that are known; null if these are too few.
    pub usual_ms: Option<f64>,
    /// Failover episodes of the process from its first data to its last.
    pub episodes: Count,
    /// Stalls of these.
    pub stalled_ms: f64,
    /// What it has sent, by port. Empty before NCCL 2.26.
    pub rails: Vec<OperationRail>,
    /// Why it took much longer than usual, if it did and a rail explains it.
    pub why: Option<String>,
}

/// What an operation has sent on a port.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct OperationRail {
    /// Device and port.
    pub port: String,
    /// Bytes.
    pub bytes: Count,
    /// Sum of the times for which its messages were in flight.
    pub in_flight_ms: f64,
}

impl Communicator {
    /// Judges what a page has of a communicator, at this monotonic time in ns.
    pub(crate) fn of(read: &stats::Communicator, ports: &[Port], now: u64) -> Self {
        let all: Vec<_> = read.slowest.iter().chain(&read.operations).collect();
        let judged = |operation: &&stats::Operation| Operation::of(operation, &all, ports);
        let is_recent = |operation: &&&stats::Operation| {
            operation.took().is_some() && operation.ended.is_some_and(|at| now.saturating_sub(at) < RECENT)
        };
        let slower = |a: &Operation, b: &Operation| {
            a.why.is_some().cmp(&b.why.is_some()).then(a.slowness().total_cmp(&b.slowness()))
        };
        let slowest = all.iter().filter(is_recent).map(judged).max_by(slower);
        let last = read.operations.len().saturating_sub(SHOWN);
        Self {
            id: format!("{:#x}", read.id),
            name: Some(read.name.clone()).filter(|name| !name.is_empty()),
            rank: read.rank,
            ranks: Some(read.ranks).filter(|ranks| *ranks > 0),
            operations: Count(read.begun),
            not_recorded: Count(read.dropped),
            last: read.operations[last..].iter().map(|operation| judged(&operation)).collect(),
            slowest,
        }
    }
}

impl Operation {
    fn of(read: &stats::Operation, all: &[&stats::Operation], ports: &[Port]) -> Self {
        let kind: Vec<_> = all.iter().copied().filter(|other| is_of_kind(read, other)).collect();
        let took = read.took();
        let usual = median(kind.iter().filter_map(|other| other.took().map(|took| took as f64)).collect());
        let is_slow = |(took, usual): &(f64, f64)| *took >= usual * SLOW && took - usual >= SLOW_BY;
        let slow = took.map(|took| took as f64).zip(usual).filter(is_slow);
        let some = |text: &String| Some(text.clone()).filter(|text| !text.is_empty());
        let ms = |nanos: f64| nanos / 1e6;
        let name = |port: usize| ports.get(port).map_or_else(|| "?".into(), |port| port.name.clone());
        Self {
            sequence: Count(read.sequence),
            name: read.name.clone(),
            algorithm: some(&read.algorithm),
            protocol: some(&read.protocol),
            bytes: Some(Count(read.bytes)).filter(|bytes| bytes.0 > 0),
            channels: read.channels,
            asked_ms: read.asked / 1_000_000,
            took_ms: took.map(|took| ms(took as f64)),
            usual_ms: usual.map(ms),
            episodes: Count(read.episodes),
            stalled_ms: ms(read.stalled as f64),
            rails: read
                .rails
                .iter()
                .map(|rail| OperationRail {
                    port: name(rail.port),
                    bytes: Count(rail.bytes),
                    in_flight_ms: ms(rail.in_flight as f64),
                })
                .collect(),
            why: slow.and_then(|(took, usual)| why(read, &kind, took - usual, &name)),
        }
    }

    /// Returns how slow it was: as a factor of what is usual. Those without it come behind.
    fn slowness(&self) -> f64 {
        match (self.took_ms, self.usual_ms) {
            (Some(took), Some(usual)) if usual > 0.0 => took / usual,
            // A factor is 0.5 or more in most cases, and an operation takes less than hours.
            (Some(took), _) => took / 1e9,
            _ => 0.0,
        }
    }
}

fn is_of_kind(a: &stats::Operation, b: &stats::Operation) -> bool {
    (&a.name, a.bytes, &a.algorithm) == (&b.name, b.bytes, &b.algorithm)
}

/// Returns the median; `None` of too few.
fn median(mut all: Vec<f64>) -> Option<f64> {
    all.sort_by(f64::total_cmp);
    (all.len() >= LEAST).then(|| all[all.len() / 2])
}

/// Returns what explains that an operation took `extra` ns longer than usual: episodes with stalls of that
/// size, or the rail whose messages were in flight for longest beyond what is usual.
fn why(
    slow: &stats::Operation,
    kind: &[&stats::Operation],
    extra: f64,
    name: &dyn Fn(usize) -> String,
) -> Option<String> {
    let least = extra * EXPLAINED;
    if slow.episodes > 0 && slow.stalled as f64 >= least {
        let stall = slow.stalled as f64 / 1e6;
        let what = if slow.episodes == 1 { "a failover episode" } else { "failover episodes" };
        return Some(format!("{what} with stalls of {stall:.0} ms in all fell into it"));
    }
    let per_byte = |rail: &stats::OperationRail| rail.in_flight as f64 / rail.bytes as f64;
    let beyond = |rail: &stats::OperationRail| {
        let same =
            |other: &&stats::Operation| other.rails.iter().find(|same| same.port == rail.port).map(per_byte);
        let usual = median(kind.iter().filter_map(same).collect()).filter(|usual| *usual > 0.0)?;
        let (factor, beyond) = (per_byte(rail) / usual, rail.in_flight as f64 - usual * rail.bytes as f64);
        (factor >= SLOW && beyond >= least).then_some((beyond, factor, *rail))
    };
    let (_, factor, rail) = slow.rails.iter().filter_map(beyond).max_by(|(a, ..), (b, ..)| a.total_cmp(b))?;
    let all: f64 = slow.rails.iter().map(|rail| rail.bytes as f64).sum();
    let percent = 100.0 * rail.bytes as f64 / all;
    Some(format!(
        "{} carried {percent:.0} % of it, and its messages took {factor:.1} times as long as usual",
        name(rail.port)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns an operation that took so many ms, with messages of 1 MB on each of two ports, which were in
    /// flight for so many ms.
    fn operation(sequence: u64, took: u64, in_flight: [u64; 2]) -> stats::Operation {
        let rail = |(port, ms): (usize, u64)| stats::OperationRail {
            port,
            bytes: 1_000_000,
            in_flight: ms * 1_000_000,
        };
        stats::Operation {
            sequence,
            name: "AllReduce".into(),
            algorithm: "RING".into(),
            bytes: 4_000_000,
            asked: sequence * 1_000_000_000,
            begun: Some(sequence * 1_000_000_000),
            ended: Some(sequence * 1_000_000_000 + took * 1_000_000),
            rails: in_flight.into_iter().enumerate().map(rail).collect(),
            ..stats::Operation::default()
        }
    }

    fn ports() -> Vec<Port> {
        ["sout:1", "sup:1"].map(|name| Port { name: name.into(), ..Port::default() }).into()
    }

    /// Returns the slowest one of ten usual operations and others.
    fn slowest_of<const N: usize>(others: [stats::Operation; N]) -> Operation {
        let usual = (1..=10).map(|n| operation(n, 20 + n % 3, [10, 12]));
        let read = stats::Communicator { operations: usual.chain(others).collect(), ..Default::default() };
        Communicator::of(&read, &ports(), 12_000_000_000).slowest.unwrap()
    }

    fn slowest(other: stats::Operation) -> Operation {
        slowest_of([other])
    }

    #[test]
    fn the_rail_whose_messages_took_longest_is_named() {
        let slowest = slowest(operation(11, 100, [11, 84]));
        assert_eq!((slowest.took_ms, slowest.usual_ms), (Some(100.0), Some(21.0)));
        let why = "sup:1 carried 50 % of it, and its messages took 7.0 times as long as usual";
        assert_eq!(slowest.why.as_deref(), Some(why));
    }

    #[test]
    fn an_episode_explains_more_than_a_rail() {
        let failed = stats::Operation { episodes: 1, stalled: 70_000_000, ..operation(11, 100, [11, 84]) };
        let why = "a failover episode with stalls of 70 ms in all fell into it";
        assert_eq!(slowest(failed).why.as_deref(), Some(why));
    }

    #[test]
    fn an_operation_that_waited_for_a_rank_is_explained_by_no_rail() {
        let slowest = slowest(operation(11, 100, [11, 13]));
        assert_eq!((slowest.sequence, slowest.why), (Count(11), None));
    }

    #[test]
    fn what_explains_little_of_the_time_is_no_reason() {
        let straggler = operation(11, 10_000, [11, 25]);
        assert_eq!(slowest(straggler.clone()).why, None);
        let failed = stats::Operation { episodes: 1, stalled: 70_000_000, ..straggler };
        assert_eq!(slowest(failed).why, None);
    }

    #[test]
    fn a_rail_with_a_tiny_part_is_not_named() {
        let mut both = operation(11, 100, [84, 1]);
        both.rails[1].bytes = 1000;
        let why = slowest(both).why;
        assert!(why.as_ref().is_some_and(|why| why.starts_with("sout:1 carried 100 % of it")), "{why:?}");
    }

    #[test]
    fn an_operation_with_a_reason_is_shown_before_a_slower_one() {
        let slowest = slowest_of([operation(11, 100, [11, 84]), operation(12, 10_000, [11, 12])]);
        assert_eq!((slowest.sequence, slowest.why.is_some()), (Count(11), true));
    }

    #[test]
    fn a_few_ms_need_no_reason() {
        let operation = |n, took, sup| operation(n, took, [1, sup]);
        let usual = (1..=10).map(|n| operation(n, 1, 1));
        let read = stats::Communicator {
            operations: usual.chain([operation(11, 9, 8)]).collect(),
            ..Default::default()
        };
        let slowest = Communicator::of(&read, &ports(), 12_000_000_000).slowest.unwrap();
        assert_eq!((slowest.took_ms, slowest.why), (Some(9.0), None));
    }

    #[test]
    fn an_operation_of_usual_time_needs_no_reason() {
        assert_eq!(slowest(operation(11, 40, [11, 84])).why, None);
    }

    #[test]
    fn operations_of_another_kind_say_nothing() {
        let other = stats::Operation { bytes: 8_000_000, ..operation(11, 100, [11, 84]) };
        let usual = (1..=10).map(|n| operation(n, 20, [10, 12]));
        let read = stats::Communicator { operations: usual.chain([other]).collect(), ..Default::default() };
        let judged = Communicator::of(&read, &ports(), 12_000_000_000);
        assert_eq!(judged.last.last().unwrap().usual_ms, None);
        assert_eq!(judged.last.len(), SHOWN);
        assert!(judged.slowest.is_some_and(|slowest| slowest.bytes == Some(Count(4_000_000))));
    }
}
