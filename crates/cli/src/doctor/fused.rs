//! Checks the devices that NCCL will use: all rails of each in one connection. A pair of ports that
//! works alone may not work beside another one.

use std::time::Duration;

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Verdict as RouteVerdict};

use super::{
    Document,
    peer::{Row, plugin_message},
    session::{Ends, Order, Session, Use},
};
use crate::failure::Failure;
use crate::output::units::giga;
use crate::perf::{Plan, Trial};

/// Name of the checks.
const ID: &str = "fused";
/// Most devices to check.
const MOST: usize = 16;
/// A write inline, one on one rail, and one that is split.
const SIZES: [usize; 3] = [8, 4 << 10, 1 << 20];
/// How long a device may take in one direction.
const LIMIT: Duration = Duration::from_secs(60);

/// Moves checked data over each device and the one of the same number at the other machine, out and
/// back, with the settings of the job. Rails whose pair in `rows` does not work alone are known to be
/// lost.
pub(super) fn checks(
    session: &mut Session,
    document: &Document,
    rows: &[Row],
) -> Result<Vec<Check>, Failure> {
    let failed = rows.iter().filter(|row| row.pair.verdict == RouteVerdict::First && !row.works());
    let known: Vec<&str> = failed.flat_map(|row| [&*row.pair.ours, &row.pair.theirs]).collect();
    let ours = document.report.iter().flat_map(|report| &report.devices);
    let pairs: Vec<_> = ours.map(|device| device.name.clone()).zip(session.theirs.devices.clone()).collect();
    let mut checks = Vec::new();
    if session.version.is_none() {
        return Ok(checks);
    }
    for (number, (ours, theirs)) in (0..).zip(pairs.into_iter().take(MOST)) {
        let order = |out| {
            let plan = Plan::of(&SIZES, Duration::from_millis(100), LIMIT / 2);
            Order::new(Use::device(number), Use::device(number), out, plan, LIMIT)
        };
        let name = format!("{ours} to {theirs}");
        let out = session.run(document, order(true), Trial::default())?;
        let mut found = losses(ID, &name, &out, &known);
        if found.is_empty() {
            let back = session.run(document, order(false), Trial::default())?;
            found.extend(losses(ID, &format!("{name}, back"), &back, &known));
            if found.is_empty() {
                found.push(Check::new(ID, Level::Ok, carried(&name, &out, &back)));
            }
        }
        checks.extend(found);
    }
    Ok(checks)
}

/// Returns what failed or is missing in a run, but for the rails that are known to be lost.
pub(crate) fn losses(id: &str, name: &str, ends: &Ends, known: &[&str]) -> Vec<Check> {
    if let Some(failure) = ends.cause() {
        let text = format!("{name}: {}", plugin_message(&failure.message));
        return vec![Check::new(id, Level::Fail, text)];
    }
    let mut checks = Vec::new();
    for (end, outcome) in [("here", &ends.here), ("there", &ends.there)] {
        for rail in outcome.account.rails.iter().filter(|rail| !known.contains(&&*rail.name)) {
            if let Some(why) = &rail.missing {
                let text = format!("{name}: the connection has no rail {} {end}: {why}", rail.name);
                // Both directions have a connection.
                if checks.iter().any(|check: &Check| check.text == text) {
                    continue;
                }
                checks.push(Check::new(id, Level::Warn, text).remedy(
                    "its pair of ports may work alone: look at the plugin's log (NCCL_DEBUG=INFO) of mpib perf",
                ));
            }
        }
        if outcome.account.episodes > 0 && checks.is_empty() && known.is_empty() {
            let text = format!("{name}: a rail failed and came back {end}");
            checks.push(
                Check::new(id, Level::Warn, text).remedy("mpib stats and the plugin's log have the cause"),
            );
        }
    }
    checks
}

/// Describes what each rail carried, and the rates of the largest messages.
fn carried(name: &str, out: &Ends, back: &Ends) -> String {
    let rate = |ends: &Ends| {
        let last = ends.here.results.last();
        last.map_or("-".into(), |result| giga(result.gigabytes_per_second * 8.0))
    };
    let rails: Vec<_> = out
        .here
        .account
        .rails
        .iter()
        .filter(|rail| rail.missing.is_none())
        .map(|rail| rail.name.as_str())
        .collect();
    let rails = if rails.is_empty() { String::new() } else { format!(" over {}", rails.join(", ")) };
    format!("{name}{rails}: checked data, {} Gb/s out, {} Gb/s back", rate(out), rate(back))
}
