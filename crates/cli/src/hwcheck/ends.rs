//! The steps about the ends of connections: the death of a process, and the control path.

use std::time::Duration;

use super::{bench::Bench, step::Findings};
use crate::doctor::{Use, plugin_message};
use crate::failure::{Failure, Kind};
use crate::output::units::duration;
use crate::perf::{Closing, Outcome, Plan, Trial};

/// Longest time until a dead peer is reported.
const NOTICE: Duration = Duration::from_secs(20);

/// Receives that are open at each connection when it is closed.
const OPEN: usize = 8;

/// Lets the process at one end die under load, then the one at the other end. The survivor's plugin
/// has to report it in time, as the end of its peer.
pub(super) fn death(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    const PART: &str = "death";
    let theirs = bench.theirs()?.host;
    let ours = bench.document.report.as_ref().map_or_else(|| "?".into(), |report| report.host.clone());
    for (dies_here, host, survivor) in [(false, &theirs, "here"), (true, &ours, "there")] {
        // The round in which the process dies is the one after the warm-up.
        let timeout = (NOTICE * 2).min(bench.left() / 2);
        let memory = bench.args.memory;
        let plan = Plan { memory, ..Plan::of(&[bench.load()], timeout, timeout) };
        let mut order = bench.order(0, true, plan);
        (order.here, order.there) =
            (Use { dies: dies_here, ..order.here }, Use { dies: !dies_here, ..order.there });
        let ends = bench.run(order)?;
        let (dead, alive) = if dies_here { (&ends.here, &ends.there) } else { (&ends.there, &ends.here) };
        let name = format!("a process of {host} dies");
        if !dead.failure.as_ref().is_some_and(|failure| failure.kind == Kind::Died) {
            // It failed before.
            match ends.cause() {
                Some(failure) => found.failed(PART, &failure.at(name)),
                None => found.not_run(PART, format!("{name}: it has not died")),
            }
            continue;
        }
        judge_survivor(found, PART, &name, host, survivor, alive);
    }
    Ok(())
}

fn judge_survivor(found: &mut Findings, part: &str, name: &str, host: &str, end: &str, alive: &Outcome) {
    let Some((seconds, failure)) = &alive.survived else {
        let why = alive.failure.as_ref().map_or("it has ended as if nothing had happened", |f| &f.message);
        let remedy =
            "without a report a job hangs until a person ends it: check the firewall between the hosts";
        return found.fail(part, format!("{name}: the plugin {end} did not report it: {why}"), Some(remedy));
    };
    let text = format!("{name}: reported {end} after {seconds:.2} s: {}", plugin_message(&failure.message));
    if *seconds > NOTICE.as_secs_f64() {
        found.fail(part, text, Some("see MPIB_PEER_TIMEOUT_MS"));
    } else if !failure.message.contains("peer") && !failure.message.contains(host) {
        found.fail(part, format!("{text}; the report does not name the peer"), None);
    } else {
        found.ok(part, text);
    }
}

/// Makes many connections, and judges the time of one, and of each verb at both ends.
pub(super) fn control(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let limit = bench.args.limit;
    let theirs = bench.theirs()?.ports;
    let ours = bench.document.facts.clone();
    let slow = |micros: u64| Duration::from_micros(micros) > limit;
    let mut unknown = Vec::new();
    for (end, port) in ours.iter().map(|p| ("here", p)).chain(theirs.iter().map(|p| ("there", p))) {
        let Some(verbs) = port.verbs else {
            unknown.push(format!("{} {end}", port.name));
            continue;
        };
        let shown = |micros: u64| duration(micros.saturating_mul(1000));
        let text = format!(
            "{} {end}: create {}, modify to RTS {}, destroy {}",
            port.name,
            shown(verbs.create_us),
            shown(verbs.modify_us),
            shown(verbs.destroy_us)
        );
        match [verbs.create_us, verbs.modify_us, verbs.destroy_us].into_iter().any(slow) {
            true => found.fail(
                "verbs",
                format!("{text}, expected at most {}", shown(limit.as_micros() as u64)),
                Some("each rail of each connection costs this; look for a newer firmware and driver"),
            ),
            false => found.ok("verbs", text),
        }
    }
    if !unknown.is_empty() {
        found.not_run(
            "verbs",
            format!("no queue pair could be connected to itself on {}", unknown.join(", ")),
        );
    }
    if found.has_failed() {
        found.not_run("connections", "the verbs are slow");
        return Ok(());
    }
    let timeout = Duration::from_secs(60);
    let count = bench.args.connections as usize;
    let plan = Plan { connections: count, iterations: Some(8), ..Plan::of(&[8], timeout, timeout) };
    let order = bench.order(0, true, plan);
    let trial = Trial { open_receives: OPEN, ..Trial::default() };
    let ends = bench.run_with(order, trial)?;
    let Some(made) = ends.here.connections.filter(|_| ends.cause().is_none()) else {
        let missing = || Failure::new(Kind::Tool, "nothing was measured");
        found.failed("connections", &ends.cause().unwrap_or_else(missing));
        return Ok(());
    };
    let text = format!(
        "{count} connections: {:.0} per second, {:.2} ms to open and close one",
        made.per_second,
        made.open_close * 1e3
    );
    match made.open_close > limit.as_secs_f64() {
        true => found.fail(
            "connections",
            format!("{text}, expected at most {limit:?}"),
            Some("see the times of the verbs"),
        ),
        false => found.ok("connections", text),
    }
    for (end, closing) in ["here", "there"].into_iter().zip(ends.here.closing.into_iter().flatten()) {
        judge_closing(found, end, count, closing, limit);
    }
    Ok(())
}

/// Judges the time for the close of the connections at one end. The other host receives, and closes
/// with receives open that nothing is sent to, as an aborted job does.
fn judge_closing(found: &mut Findings, end: &str, count: usize, closing: Closing, limit: Duration) {
    let shown = |seconds: f64| duration((seconds * 1e9) as u64);
    let open = if end == "there" { format!(" with {OPEN} receives open at each") } else { String::new() };
    let text = format!(
        "{count} connections closed {end} in {}, the slowest in {}{open}",
        shown(closing.all),
        shown(closing.longest)
    );
    match closing.all > limit.as_secs_f64() {
        true => found.fail(
            "close",
            format!("{text}, expected at most {limit:?}"),
            Some("an aborted job waits for this before it can begin again: see the times of the verbs"),
        ),
        false => found.ok("close", text),
    }
}
