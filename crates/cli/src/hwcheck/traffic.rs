//! The steps that move data without a fault.

use std::time::Duration;

use super::{
    bench::Bench,
    counters::{Growth, Reading},
    rates,
    step::Findings,
};
use crate::doctor::{Ends, Order, Use, losses};
use crate::failure::Failure;
use crate::output::units::giga;
use crate::perf::{Outcome, Plan, no_cuda};

/// Longest time without progress.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// A name for the parts that concern the counters.
const COUNTERS: &str = "counters";

/// Moves checked data of all sizes and kinds over each device, and measures each rail alone and all
/// together.
pub(super) fn data(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let devices = bench.devices(found)?;
    let sizes = bench.args.sizes.expand(4)?;
    let small: Vec<usize> = sizes.iter().copied().filter(|size| *size <= 1 << 20).collect();
    let time = bench.time(devices.len() * (2 * sizes.len() + 3 * small.len()));
    let memory = bench.args.memory;
    let plan = |sizes: &[usize]| Plan { memory, ..Plan::of(sizes, time, TIMEOUT) };
    for (number, name) in (0..).zip(devices) {
        let kinds = [
            ("sizes", true, plan(&sizes)),
            ("sizes, back", false, plan(&sizes)),
            ("groups of 8", true, Plan { receives: 8, ..plan(&small) }),
            ("optional", true, Plan { optional: true, ..plan(&small) }),
            ("both ways", true, Plan { bidirectional: true, ..plan(&small) }),
        ];
        for (kind, out, plan) in kinds.into_iter().filter(|(.., plan)| !plan.sizes.is_empty()) {
            let order = bench.order(number, out, plan);
            let ends = bench.run(order)?;
            judge(found, kind, &name, &ends);
        }
    }
    rates::rates(bench, found)
}

/// Notes what a run found: what failed or is missing, the plugin's warnings, or that all was right.
pub(super) fn judge(found: &mut Findings, kind: &str, name: &str, ends: &Ends) -> bool {
    if let Some(failure) = ends.cause() {
        found.failed(kind, &failure.at(name));
        return false;
    }
    let lost = losses(kind, name, ends, &[]);
    let is_right = lost.is_empty();
    found.extend_strictly(lost);
    found.warnings(warnings(ends));
    if is_right {
        let messages: u64 = ends.here.results.iter().map(|result| result.messages).sum();
        let carried = carried(&ends.here);
        found.ok(kind, format!("{name}: {messages} messages, every byte right{carried}"));
    }
    is_right
}

/// Returns the plugin's warnings of both ends.
fn warnings(ends: &Ends) -> Vec<String> {
    let of = |(end, outcome): (&str, &Outcome)| {
        outcome.warnings.iter().map(|text| format!("the plugin {end}: {text}")).collect::<Vec<_>>()
    };
    [("here", &ends.here), ("there", &ends.there)].into_iter().flat_map(of).collect()
}

/// Formats the bytes that each rail carried.
fn carried(outcome: &Outcome) -> String {
    let known = outcome.account.rails.iter().filter_map(|rail| Some((rail, rail.bytes?)));
    let total: u64 = known.clone().map(|(_, bytes)| bytes).sum();
    let one = |(rail, bytes): (&crate::perf::RailState, u64)| {
        format!("{} {}", rail.name, crate::output::units::percent(bytes, total))
    };
    let parts: Vec<_> = known.map(one).collect();
    if parts.len() < 2 { String::new() } else { format!("; {}", parts.join(", ")) }
}

/// Moves checked data between the memories of GPUs.
pub(super) fn gpu(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    if let Some(why) = no_cuda() {
        found.not_run("gpu", format!("{why} here"));
        return Ok(());
    }
    let sizes: Vec<usize> = bench.args.sizes.expand(4)?.into_iter().filter(|size| *size >= 8).collect();
    let devices = bench.devices(found)?;
    let time = bench.time(devices.len() * 2 * sizes.len());
    for (number, name) in (0..).zip(devices) {
        for (kind, out) in [("gpu", true), ("gpu, back", false)] {
            let used = || Use { gpu: Some(bench.args.gpu), ..Use::device(number) };
            let plan = Plan { memory: bench.args.memory, ..Plan::of(&sizes, time, TIMEOUT) };
            let order = Order::new(used(), used(), out, plan, bench.left());
            let ends = bench.run(order)?;
            judge(found, kind, &name, &ends);
        }
    }
    Ok(())
}

/// Moves data in both directions for long.
pub(super) fn steady(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let devices = bench.devices(found)?;
    let time = bench.args.steady / u32::try_from(devices.len().max(1)).unwrap_or(u32::MAX);
    for (number, name) in (0..).zip(devices) {
        let plan = Plan {
            bidirectional: true,
            memory: bench.args.memory,
            ..Plan::of(&[bench.load()], time, TIMEOUT)
        };
        let order = bench.order(number, true, plan);
        let ends = bench.run(order)?;
        if judge(found, "steady", &name, &ends)
            && let Some(result) = ends.here.results.first()
        {
            let rate = giga(result.gigabytes_per_second * 8.0);
            found.ok("steady", format!("{name}: {rate} Gb/s in both directions together for {time:?}"));
        }
    }
    Ok(())
}

/// Judges the counters after the step `steady`: no packet may be lost, and no receive missing.
pub(super) fn judge_counters(found: &mut Findings, growth: &[Growth], after: &Reading) {
    let lost: Vec<_> = growth.iter().filter_map(|growth| Some((growth.loss()?, growth.text()))).collect();
    for (shows, text) in &lost {
        let remedy = "without a fault no packet is lost: check cables (ethtool -S, mlxlink), flow control and ECN of \
                      the switch, and its MTU";
        found.fail(COUNTERS, format!("{text}: {shows}"), Some(remedy));
    }
    let blind = after.blind();
    match (lost.is_empty(), blind.is_empty()) {
        (true, true) => found.ok(COUNTERS, "no lost packet and no missing receive"),
        (_, false) => {
            found.not_run(COUNTERS, format!("no counter shows lost packets of {}", blind.join(", ")))
        }
        _ => {}
    }
}
