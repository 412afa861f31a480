//! Measures collectives: over this plugin, NCCL's InfiniBand transport and sockets, on rails so slow
//! that they decide, not the processor; and what a setting costs, on rails without a limit.

use std::{collections::BTreeMap, fmt::Write, fs, path::Path, process::ExitCode};

use softcuda::{
    DataType,
    rank::{Collective, Operator, Test},
};

use super::{
    CollectivesArgs, Common, outcomes,
    plan::{Net, Plan, Variant},
};
use crate::{
    failure::{Context, Failure, Result},
    matrix::Release,
    stage::Stage,
};

const COLLECTIVES: [Collective; 2] = [Collective::AllReduce, Collective::SendRecv];
/// Bytes of a message, and the operations that are timed together.
const SMALL: [(usize, u32); 5] = [(8, 200), (256, 200), (4 << 10, 200), (16 << 10, 200), (64 << 10, 100)];
const LARGE: [(usize, u32); 3] = [(1 << 20, 20), (8 << 20, 5), (32 << 20, 2)];
/// The same for all-reduces with a setting and without it.
const WITH_SETTING: [(usize, u32); 2] = [(4 << 10, 1000), (1 << 20, 200)];

/// The figure of one round: seconds of an operation.
type Seconds = BTreeMap<(Collective, usize), f64>;

/// Measures in alternating rounds, and writes the table.
pub(super) fn main(
    args: &CollectivesArgs,
    to: &Path,
    library: &Path,
    release: &Release,
    stage: &Stage,
) -> Result<ExitCode> {
    let ib = args.common.tree.is_some().then_some(Net::Ib);
    let mut nets: Vec<_> = [Net::Mpib, Net::Fused].into_iter().chain(ib).chain([Net::Socket]).collect();
    let mut text = String::from("<!-- Written by \"make bench-collectives\". -->\n");
    for rates in [[args.unit; 2], [3 * args.unit, args.unit]] {
        let mut rounds = BTreeMap::<Net, Vec<Seconds>>::new();
        for round in 1..=args.rounds {
            for net in &nets {
                eprintln!("rails of {} and {} MB/s, round {round}, {net:?}", rates[0], rates[1]);
                let plan = Plan { net: *net, variant: Variant::PLAIN, tests: tests(), rates: Some(rates) };
                rounds.entry(*net).or_default().push(measure(&args.common, library, release, &plan, stage)?);
            }
            nets.reverse();
        }
        write_table(&mut text, release, rates, &rounds).cannot("write a table")?;
    }
    fs::write(to, &text).cannot(format!("write {}", to.display()))?;
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Measures all-reduces with a setting and without it in alternating rounds, and prints how much longer
/// they take.
pub(super) fn cost(
    args: &CollectivesArgs,
    setting: &(String, String),
    library: &Path,
    release: &Release,
    stage: &Stage,
) -> Result<ExitCode> {
    let mut with = args.common.clone();
    with.set.push(setting.clone());
    let tests: Vec<_> = WITH_SETTING.into_iter().map(|size| test(Collective::AllReduce, size)).collect();
    let plan = Plan { net: Net::Mpib, variant: Variant::PLAIN, tests, rates: None };
    let (mut without_it, mut with_it) = (Vec::new(), Vec::new());
    for round in 0..args.rounds {
        let mut turns = [(&args.common, &mut without_it), (&with, &mut with_it)];
        if round % 2 == 1 {
            turns.reverse();
        }
        for (common, rounds) in turns {
            rounds.push(measure(common, library, release, &plan, stage)?);
        }
    }
    println!("NCCL {release}, {}={}, {} rounds of each:", setting.0, setting.1, args.rounds);
    for test in &plan.tests {
        let key = (test.collective, test.count * test.element.size());
        let micros = |rounds: &[Seconds]| median(rounds.iter().map(|round| round[&key] * 1e6).collect());
        let ratios: Vec<_> = without_it.iter().zip(&with_it).map(|(no, yes)| yes[&key] / no[&key]).collect();
        let (least, most) =
            ratios.iter().fold((f64::INFINITY, 0.0), |(l, m): (f64, f64), r| (l.min(*r), m.max(*r)));
        println!(
            "all-reduce of {}: {:.1} µs without it, {:.1} µs with it, ratio {:.3} ({least:.3} to {most:.3})",
            size(key.1),
            micros(&without_it),
            micros(&with_it),
            median(ratios),
        );
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns a test with messages of so many bytes, which is repeated so often.
fn test(collective: Collective, (bytes, times): (usize, u32)) -> Test {
    let element = DataType::F32;
    Test { collective, element, operator: Operator::Sum, count: bytes / element.size(), times }
}

fn tests() -> Vec<Test> {
    let of = |collective| SMALL.into_iter().chain(LARGE).map(move |size| test(collective, size));
    COLLECTIVES.into_iter().flat_map(of).collect()
}

/// Runs one communicator. An operation takes as long as at the slower rank.
fn measure(
    common: &Common,
    library: &Path,
    release: &Release,
    plan: &Plan,
    stage: &Stage,
) -> Result<Seconds> {
    let (ends, _) = outcomes(common, library, release, plan, stage)?;
    let mut seconds = Seconds::new();
    for end in &ends {
        let outcome = end.outcome().map_err(Failure::wrong)?;
        for (test, ran) in plan.tests.iter().zip(&outcome.tests) {
            let each = ran.seconds / f64::from(test.times);
            let slot = seconds.entry((test.collective, test.count * test.element.size())).or_default();
            *slot = slot.max(each);
        }
    }
    Ok(seconds)
}

/// Returns the value in the middle, or the mean of two.
fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values[(values.len() - 1) / 2], values[values.len() / 2]);
    f64::midpoint(low, high)
}

/// Returns the median over the rounds of how much faster `ours` was than `theirs` in the same round.
fn ratio(ours: &[Seconds], theirs: &[Seconds], key: &(Collective, usize)) -> f64 {
    median(ours.iter().zip(theirs).map(|(ours, theirs)| theirs[key] / ours[key]).collect())
}

fn name(net: Net) -> &'static str {
    match net {
        Net::Mpib => "mpib, SOUT and SUP",
        Net::Fused | Net::Default => "mpib, fused by NCCL",
        Net::Ib => "net_ib",
        Net::Socket => "sockets",
    }
}

fn size(bytes: usize) -> String {
    match bytes {
        ..1024 => format!("{bytes} B"),
        1024..0x10_0000 => format!("{} KiB", bytes >> 10),
        _ => format!("{} MiB", bytes >> 20),
    }
}

/// Writes the figures of two rails.
fn write_table(
    text: &mut String,
    release: &Release,
    [first, second]: [u32; 2],
    rounds: &BTreeMap<Net, Vec<Seconds>>,
) -> std::fmt::Result {
    writeln!(text, "\n## Rails of {first} and {second} MB/s, NCCL {release}\n")?;
    let names: Vec<_> = rounds.keys().map(|net| name(*net)).collect();
    let ib = rounds.get(&Net::Ib);
    let ratios: Vec<_> = [Net::Mpib, Net::Fused].into_iter().filter(|_| ib.is_some()).collect();
    let heads: Vec<_> = ratios.iter().map(|net| format!("{} : net_ib", name(*net))).collect();
    let columns: Vec<_> = names.iter().map(ToString::to_string).chain(heads).collect();
    writeln!(text, "| | {} |", columns.join(" | "))?;
    writeln!(text, "|---|{}", "---:|".repeat(columns.len()))?;
    for test in tests() {
        let bytes = test.count * test.element.size();
        let key = (test.collective, bytes);
        let small = SMALL.iter().any(|(of, _)| *of == bytes);
        let figure = |rounds: &Vec<Seconds>| {
            let seconds = median(rounds.iter().map(|round| round[&key]).collect());
            if small {
                format!("{:.1}", seconds * 1e6)
            } else {
                format!("{:.0}", bytes as f64 / seconds / 1e6)
            }
        };
        let mut cells: Vec<_> = rounds.values().map(figure).collect();
        if let Some(ib) = ib {
            cells.extend(ratios.iter().map(|net| format!("{:.2}", ratio(&rounds[net], ib, &key))));
        }
        let unit = if small { "µs" } else { "MB/s" };
        writeln!(text, "| {} of {}, {unit} | {} |", test.collective.name(), size(bytes), cells.join(" | "))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_of_odd_and_even_numbers_of_rounds() {
        assert_eq!(median(vec![3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(vec![7.0]), 7.0);
    }

    #[test]
    fn a_ratio_compares_the_rounds_and_above_one_is_faster() {
        let key = (Collective::AllReduce, 8);
        let rounds = |values: &[f64]| values.iter().map(|v| Seconds::from([(key, *v)])).collect::<Vec<_>>();
        // The second round had other load for both.
        assert_eq!(ratio(&rounds(&[1.0, 10.0, 1.0]), &rounds(&[2.0, 20.0, 3.0]), &key), 2.0);
    }

    #[test]
    fn sizes_have_units() {
        assert_eq!([8, 64 << 10, 32 << 20].map(size), ["8 B", "64 KiB", "32 MiB"]);
    }
}
