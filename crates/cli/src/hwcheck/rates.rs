//! The rate of each pair of ports alone: against the speed of the ports, and against `ib_write_bw`.

use std::time::Duration;

use nccl_net_mpib_agent_iface::doctor::Verdict as RouteVerdict;

use super::{bench::Bench, step::Findings, traffic::TIMEOUT};
use crate::doctor::{Measure, Order, Use};
use crate::failure::Failure;
use crate::output::units::giga;
use crate::perf::Plan;

const PART: &str = "rates";
/// The program to compare with, which names the part about it.
const PERFTEST: &str = "ib_write_bw";

/// What a pair has to reach in Gb/s.
struct Wanted {
    /// By the speed of the weaker port; `None` if that is not known.
    port: Option<f64>,
    /// By `ib_write_bw`; `None` if it was not measured.
    perftest: Option<f64>,
}

/// Measures each pair of ports that a connection tries first alone, without a check of the bytes.
pub(super) fn rates(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let pairs = pairs(bench)?;
    if pairs.is_empty() {
        found.not_run(PART, "no pair of ports is known: run the step host, too");
        return Ok(());
    }
    let mut compares = has_perftest(bench, found)?;
    let time = bench.time(2 * pairs.len() * if compares { 2 } else { 1 });
    for (ours, theirs) in pairs {
        let port = of_ports(bench, &ours, &theirs)?;
        for out in [true, false] {
            let name = format!("{ours} to {theirs} alone, {}", if out { "out" } else { "back" });
            let alone = Alone { name: &name, ours: &ours, theirs: &theirs, out, time };
            let Some(mut rate) = alone.rate(bench, found)? else { continue };
            let mut wanted = Wanted { port, perftest: None };
            if compares {
                match alone.perftest(bench)? {
                    Ok(rate) => wanted.perftest = Some(rate),
                    Err(why) => {
                        // It would cost its time again.
                        compares = false;
                        found.warn(PERFTEST, format!("{name}: no rate to compare with: {why}"));
                    }
                }
            }
            // Another process may have had the processor.
            if misses(rate, wanted.perftest, bench.args.least_of_perftest).is_some() {
                rate = alone.rate(bench, found)?.map_or(rate, |again| rate.max(again));
            }
            judge(bench, found, &name, rate, &wanted);
        }
    }
    Ok(())
}

/// One direction of a pair.
struct Alone<'a> {
    name: &'a str,
    ours: &'a str,
    theirs: &'a str,
    out: bool,
    time: Duration,
}

impl Alone<'_> {
    /// Measures the rate in Gb/s. Notes why there is none.
    fn rate(&self, bench: &mut Bench<'_>, found: &mut Findings) -> Result<Option<f64>, Failure> {
        let Self { name, ours, theirs, out, time } = *self;
        // A round has as many messages as fit into the memory.
        let memory = bench.args.memory;
        let plan = Plan { check: false, memory, ..Plan::of(&[bench.load()], time, TIMEOUT) };
        let order = Order::new(Use::port(ours), Use::port(theirs), out, plan, bench.left());
        let ends = bench.run(order)?;
        let rate = ends.here.rate().filter(|_| ends.cause().is_none());
        if rate.is_none() {
            match ends.cause() {
                Some(failure) => found.failed(PART, &failure.at(name)),
                None => found.not_run(PART, format!("{name}: nothing was measured")),
            }
        }
        Ok(rate.map(|rate| rate * 8.0))
    }

    /// Measures with `ib_write_bw`. The inner error is why there is no rate.
    fn perftest(&self, bench: &mut Bench<'_>) -> Result<Result<f64, String>, Failure> {
        let seconds = self.time.as_secs_f64().ceil().clamp(1.0, 60.0) as u32;
        // A program that hangs leaves time for the rest.
        let limit = bench.left() / 2;
        if limit < Duration::from_secs(seconds.into()) * 2 {
            return Ok(Err("there is no time left for it".into()));
        }
        let (ours, theirs) = (self.ours.to_owned(), self.theirs.to_owned());
        bench.perftest(&Measure { ours, theirs, out: self.out, size: bench.load(), seconds, limit })
    }
}

/// Returns the pairs of ports, ours first.
fn pairs(bench: &mut Bench<'_>) -> Result<Vec<(String, String)>, Failure> {
    let pairs: Vec<_> = bench.document.routes.iter().map(|row| row.pair.clone()).collect();
    if !pairs.is_empty() {
        let first = pairs.into_iter().filter(|pair| pair.verdict == RouteVerdict::First);
        return Ok(first.map(|pair| (pair.ours, pair.theirs)).collect());
    }
    // Without the step host: equal names are the likely pairs.
    let theirs: Vec<String> = bench.theirs()?.ports.iter().map(|port| port.name.clone()).collect();
    let ours = bench.document.facts.iter().map(|port| port.name.clone());
    Ok(ours.filter(|name| theirs.contains(name)).map(|name| (name.clone(), name)).collect())
}

/// Returns whether both hosts have `ib_write_bw`, and may use it. Notes which one lacks it.
fn has_perftest(bench: &mut Bench<'_>, found: &mut Findings) -> Result<bool, Failure> {
    if bench.args.least_of_perftest == 0 {
        return Ok(false);
    }
    let [here, there] = bench.tools()?;
    let missing: Vec<String> = [(here, "here".into()), (there, format!("on {}", bench.theirs()?.host))]
        .into_iter()
        .filter_map(|(tools, host)| (!tools.has_perftest).then_some(host))
        .collect();
    if !missing.is_empty() {
        let text = format!(
            "there is no {PERFTEST} {}: rates are compared with the speed of the ports alone; the package perftest has it",
            missing.join(" and ")
        );
        found.note(PERFTEST, text);
    }
    Ok(missing.is_empty())
}

/// Returns what a rate should be if it is less than this part of it, in percent.
fn misses(rate: f64, wanted: Option<f64>, least: u32) -> Option<f64> {
    wanted.filter(|wanted| rate < wanted * f64::from(least) / 100.0)
}

fn judge(bench: &Bench<'_>, found: &mut Findings, name: &str, rate: f64, wanted: &Wanted) {
    let (least, least_of_perftest) = (bench.args.least, bench.args.least_of_perftest);
    let text = format!("{name}: {} Gb/s", giga(rate));
    if let Some(perftest) = misses(rate, wanted.perftest, least_of_perftest) {
        let text =
            format!("{text}, expected {least_of_perftest} % of {}, the rate of {PERFTEST}", giga(perftest));
        let remedy = "the ports carry more than the plugin gives them: send the bundle, with the log of NCCL_DEBUG=INFO";
        return found.fail(PART, text, Some(remedy));
    }
    let compared = wanted.perftest.map_or_else(String::new, |rate| format!("; {PERFTEST} {}", giga(rate)));
    if let Some(port) = misses(rate, wanted.port, least) {
        let text = format!("{text}, expected {least} % of {}{compared}", giga(port));
        let remedy = match wanted.perftest {
            Some(_) => {
                "it is no matter of the plugin: look at the PCIe link (lspci -vv: LnkSta), the NUMA node, and flow control of the switch"
            }
            None => {
                "compare with ib_write_bw; look at the PCIe link (lspci -vv: LnkSta), the NUMA node, and flow control of the switch"
            }
        };
        return found.fail(PART, text, Some(remedy));
    }
    match wanted.port {
        Some(port) => found.ok(PART, format!("{text} of {}{compared}", giga(port))),
        None => found.ok(PART, format!("{text}; no speed is known{compared}")),
    }
}

/// Returns the rate in Gb/s that the weaker end of a pair should have.
fn of_ports(bench: &mut Bench<'_>, ours: &str, theirs: &str) -> Result<Option<f64>, Failure> {
    if bench.args.speed.is_some() {
        return Ok(bench.args.speed);
    }
    let there = bench.theirs()?.ports.into_iter().find(|port| port.name == theirs);
    let there = there.and_then(|port| port.limit_mbps);
    let here = bench.document.facts.iter().find(|port| port.name == ours).and_then(|port| port.limit_mbps);
    Ok(here.zip(there).map(|(here, there)| f64::from(here.min(there)) / 1000.0))
}
