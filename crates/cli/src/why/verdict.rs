//! The verdict: findings from several looks at the host, the gravest first. A pure function.

use std::collections::BTreeMap;

use mpib_host_view::{Connection, DRAINED, Operation, Port, Rail, lasted};

use super::finding::{Cause, Finding, Kind, connections, list};
use super::known::Known;
use super::look::Look;
use super::process::Process;
use super::waits::{Scene, findings, remedy};
use crate::operation::operation;
use crate::output::units::{decimal, duration, rate};
use crate::stats::nobody;

/// A port is slow if it carries less than this part of what the best one does, relative to its speed.
const SLOW: f64 = 0.5;
/// Below this part of its speed the best port shows nothing: messages are small, or few.
const BUSY: f64 = 0.25;

/// Returns what is wrong with these processes: with one, or with all. There is one finding at least.
pub(super) fn verdict(looks: &[Look], known: Known<'_>, pid: Option<u32>) -> Vec<Finding> {
    let Some(last) = looks.last() else { return Vec::new() };
    let processes = Process::all(&last.host, known.own);
    let is_subject = |process: &&Process<'_>| pid.is_none_or(|pid| process.pid() == pid);
    let subjects: Vec<&Process<'_>> = processes.iter().filter(is_subject).collect();
    if subjects.is_empty() {
        let evidence = last.host.unreadable.clone();
        return vec![Finding { evidence, ..Finding::new(Kind::NoPage, nobody(&last.host), Vec::new()) }];
    }
    let scene = Scene { known, processes: &processes };
    let mut all = findings(scene, &subjects);
    let causes = all.iter().filter_map(|finding| finding.cause.as_ref());
    let is_here = |cause: &&Cause| cause.seen && cause.host == known.own.hostname;
    let named: Vec<u32> = causes.filter(is_here).map(|cause| cause.pid).collect();
    let held = subjects.iter().filter(|process| process.waiter.state.obstacle().is_some());
    let held = held.filter(|process| !named.contains(&process.pid()));
    all.extend(held.map(|process| held_process(scene, process)));
    all.extend(subjects.iter().filter_map(|process| failed(scene, process)));
    all.extend(degraded(scene, &subjects));
    all.extend(ports(&last.host.ports, &subjects));
    all.extend(subjects.iter().filter_map(|process| slow_operation(scene, process)));
    if all.is_empty() {
        all.push(nothing_wrong(looks, &subjects));
    }
    all.sort_by_key(|finding| (finding.kind, finding.since_ms));
    all
}

fn held_process(scene: Scene<'_>, process: &Process<'_>) -> Finding {
    let (pid, state) = (process.pid(), process.waiter.state);
    let text = format!("{} {}", scene.own(process), state.obstacle().unwrap_or_default());
    Finding { next: Some(remedy(state, pid, "")), ..Finding::new(Kind::Held, text, vec![pid]) }
}

/// Connections that have failed.
fn failed(scene: Scene<'_>, process: &Process<'_>) -> Option<Finding> {
    let failed: Vec<&Connection> =
        process.connections.iter().copied().filter(|c| c.state == "failed").collect();
    let first = failed.iter().min_by_key(|c| c.failed_at_ms)?;
    let (n, of) = (failed.len(), process.connections.len());
    let owner = format!(" of {}", scene.own(process));
    let text = connections(n, of, &owner, ["has failed", "have failed"]);
    let reason = first.reason.as_deref().unwrap_or("no reason was recorded");
    Some(Finding {
        evidence: vec![format!("the first, with {}: {reason}", first.peer)],
        next: Some("the first WARN of this process in NCCL's log".into()),
        since_ms: first.failed_at_ms,
        ..Finding::new(Kind::Failed, text, vec![process.pid()])
    })
}

/// Connections that lack a rail and go on with others: one finding for each port.
fn degraded(scene: Scene<'_>, subjects: &[&Process<'_>]) -> Vec<Finding> {
    let mut lost: BTreeMap<&str, Vec<(u32, &Rail)>> = BTreeMap::new();
    let mut open = 0;
    for process in subjects {
        let is_stuck = process.lacks_all_rails();
        for c in process.connections.iter().filter(|c| c.state == "open" && !is_stuck) {
            open += 1;
            for (rail, _) in c.lacking().filter(|(_, reason)| *reason != DRAINED) {
                lost.entry(&rail.name).or_default().push((process.pid(), rail));
            }
        }
    }
    let finding = |(port, rails): (&str, Vec<(u32, &Rail)>)| {
        let since_ms = rails.iter().filter_map(|(_, rail)| rail.given_up_at_ms).min();
        let time =
            since_ms.map_or(String::new(), |ms| format!(" for {}", lasted(scene.at_ms().saturating_sub(ms))));
        let who = connections(rails.len(), open, "", ["runs", "run"]);
        let text = format!("{who} without {port}{time}");
        let mut pids: Vec<u32> = rails.iter().map(|(pid, _)| *pid).collect();
        pids.dedup();
        Finding {
            evidence: scene.reasons(subjects, Some(port)),
            next: Some(format!("link, cable, address and switch port of {port}: \"mpib doctor\"")),
            since_ms,
            ..Finding::new(Kind::Degraded, text, pids)
        }
    };
    lost.into_iter().map(finding).collect()
}

/// Ports that are drained, or slow beside others.
fn ports(ports: &[Port], subjects: &[&Process<'_>]) -> Vec<Finding> {
    let users = |port: &Port| {
        let uses = |process: &&&Process<'_>| {
            let mut rails = process.connections.iter().flat_map(|c| &c.rails);
            rails.any(|rail| rail.name == port.name && rail.given_up_at_ms.is_none())
        };
        subjects.iter().filter(uses).map(|process| process.pid()).collect::<Vec<_>>()
    };
    let used = || ports.iter().map(|port| (port, users(port))).filter(|(_, users)| !users.is_empty());
    let drained = used().filter(|(port, _)| port.scale == 0).map(|(port, users)| {
        let text = format!("{} is drained: it gets no new data", port.name);
        let next = Some("end the drain at the agent, if the work on the port is done".into());
        Finding { next, ..Finding::new(Kind::Drained, text, users) }
    });
    // What a port carries while it has something to carry, as a part of its speed.
    let part = |port: &Port| {
        let speed = port.adapter.as_ref()?.speed.filter(|speed| speed.0 > 0)?;
        Some(port.goodput?.0 as f64 / speed.0 as f64)
    };
    let best = used().filter_map(|(port, _)| part(port)).fold(0.0, f64::max);
    let slow = used().filter(|(port, _)| port.state == "healthy" && port.scale > 0).filter_map(|(port, users)| {
        let part = part(port).filter(|part| best >= BUSY && *part < best * SLOW)?;
        let (goodput, percent) = (rate(port.goodput?.0 as f64), part * 100.0);
        let text = format!("{} is slow: it carries {goodput}, {percent:.0} % of its speed", port.name);
        let next = format!(
            "loss and pauses on {}: counters of port and switch, PFC, cable; \"mpib perf\" between the hosts",
            port.name
        );
        Some(Finding {
            evidence: vec![format!("the best port carries {:.0} % of its speed", best * 100.0)],
            next: Some(next),
            ..Finding::new(Kind::SlowRail, text, users)
        })
    });
    drained.chain(slow).collect()
}

/// The slowest operation of the last minute, if a rail explains it.
fn slow_operation(scene: Scene<'_>, process: &Process<'_>) -> Option<Finding> {
    let slowness = |slow: &Operation| slow.took_ms.unwrap_or(0.0) / slow.usual_ms.unwrap_or(f64::INFINITY);
    let slowest = process.communicators.iter().filter_map(|c| Some((c, c.slowest.as_ref()?)));
    let explained = slowest.filter(|(_, slowest)| slowest.why.is_some());
    let (c, slow) = explained.max_by(|(_, a), (_, b)| slowness(a).total_cmp(&slowness(b)))?;
    let why = slow.why.as_deref().unwrap_or_default();
    let rails = slow.rails.iter().map(|rail| {
        let time = duration((rail.in_flight_ms * 1e6) as u64);
        format!("{}: {}, in flight for {time} in all", rail.port, decimal(rail.bytes.0))
    });
    let which = format!("of communicator {}, rank {}, on {}", c.id, c.rank, scene.own(process));
    Some(Finding {
        evidence: [which].into_iter().chain(rails).collect(),
        next: Some(
            "what else uses the port and its way to the next host: counters of port and switch".into(),
        ),
        since_ms: Some(slow.asked_ms),
        ..Finding::new(Kind::SlowOperation, format!("{}: {why}", operation(slow)), vec![process.pid()])
    })
}

/// The finding of processes that neither wait nor lack anything.
fn nothing_wrong(looks: &[Look], subjects: &[&Process<'_>]) -> Finding {
    let pids: Vec<u32> = subjects.iter().map(|process| process.pid()).collect();
    let which = if pids.len() == 1 { "process" } else { "processes" };
    if subjects.iter().all(|process| !process.waiter.has_moved) {
        let open: usize = subjects.iter().map(|process| process.connections.len()).sum();
        let text = format!(
            "idle: nothing moves and nothing waits; NCCL has nothing in flight on {open} connections of {which} {}",
            list(&pids)
        );
        let next = "what the processes do: \"py-spy dump --pid PID\"".into();
        return Finding { next: Some(next), ..Finding::new(Kind::Idle, text, pids) };
    }
    let (sent, received) = moved(looks, &pids);
    let uses = looks.iter().filter(|look| pids.iter().any(|pid| look.active.contains(pid))).count();
    let percent = uses * 100 / looks.len().max(1);
    let who = match percent {
        50.. => "it is in use for most of the time",
        _ => "the job gives it nothing to do for most of the time, so GPUs or host are the limit",
    };
    let evidence = vec![
        format!("sent {}, received {}", rate(sent), rate(received)),
        format!("the network was in use at {uses} of {} looks ({percent} %)", looks.len()),
    ];
    Finding {
        evidence,
        ..Finding::new(Kind::Fine, format!("nothing is wrong with the network: {who}"), pids)
    }
}

/// Returns the bytes per second that these processes have sent and received.
fn moved(looks: &[Look], pids: &[u32]) -> (f64, f64) {
    let (Some(first), Some(last)) = (looks.first(), looks.last()) else { return (0.0, 0.0) };
    let mut host = last.host.clone();
    host.rates(&first.host);
    let totals = || host.processes.iter().filter(|process| pids.contains(&process.pid)).map(|p| &p.totals);
    (
        totals().filter_map(|totals| totals.send.bytes_per_second).sum(),
        totals().filter_map(|totals| totals.recv.bytes_per_second).sum(),
    )
}
