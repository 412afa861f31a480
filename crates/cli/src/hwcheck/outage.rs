//! The steps in which a rail fails under load and returns.

use std::{fs, path::Path, time::Duration};

use nccl_net_mpib_agent_iface::doctor::{Device, Link, Port, Report};

use super::{HwcheckArgs, bench::Bench, step::Findings};
use crate::failure::{Failure, Kind};
use crate::output::units::{binary, duration};
use crate::perf::{Outage, Plan, Stage, StageKind, Trial};
use crate::rails::{self, DATA};

/// Longest time without progress: a person or a driver takes long.
const TIMEOUT: Duration = Duration::from_secs(90);

/// The commands of an outage.
pub(super) struct Commands {
    pub(super) down: String,
    pub(super) up: String,
}

/// What differs between the steps.
struct Part {
    name: &'static str,
    /// Whether the outage is one of all ports of the rail's adapter.
    of_adapter: bool,
    /// What to do if the rail carries no data afterwards.
    missing: &'static str,
}

/// Takes a rail's link down and up.
pub(super) fn link(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let args = bench.args;
    let given = args.link_down.clone().zip(args.link_up.clone());
    let remedy = "mpib stats shows why the connection lacks it; is its link up again? A static IPv6 address \
                  goes away with the link";
    let part = Part { name: "link", of_adapter: false, missing: remedy };
    outage(bench, found, &part, given, |port| {
        let is_roce = port.state.as_ref().is_none_or(|state| state.link == Link::Ethernet);
        let interface = port.gids.iter().find_map(|gid| gid.interface.clone()).filter(|_| is_roce)?;
        Some(Commands {
            down: format!("ip link set {interface} down"),
            up: format!("ip link set {interface} up"),
        })
    })
}

/// Takes the driver from a rail's adapter, and gives it back.
pub(super) fn driver(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let args = bench.args;
    let given = args.driver_down.clone().zip(args.driver_up.clone());
    let remedy = "the interface comes back without addresses, MTU, VFs and flow control, unless the host's \
                  network service sets them: add the commands for them to --driver-up; mpib stats shows why \
                  the connection lacks the rail";
    let part = Part { name: "driver", of_adapter: true, missing: remedy };
    outage(bench, found, &part, given, |port| {
        let folder = Path::new(port.pci_path.as_ref()?);
        let address = folder.file_name()?.to_str()?;
        let driver = fs::canonicalize(folder.join("driver")).ok()?;
        let write = |file: &str| format!("echo {address} > {}/{file}", driver.display());
        Some(Commands { down: write("unbind"), up: write("bind") })
    })
}

fn outage(
    bench: &mut Bench<'_>,
    found: &mut Findings,
    part: &Part,
    given: Option<(String, String)>,
    default: impl Fn(&Port) -> Option<Commands>,
) -> Result<(), Failure> {
    let (of, part) = (part, part.name);
    let [local, _] = bench.addresses()?.map(|address| address.to_string());
    let report = bench.document.report.as_ref();
    let Some((device, rails, port)) = report.and_then(|report| choose(report, bench.args.rail.as_deref()))
    else {
        found.not_run(part, "no device of this host has such a rail (--rail)");
        return Ok(());
    };
    let name = format!("{}:{}", port.hca, port.port);
    let is_given = given.is_some();
    let commands = given.map(|(down, up)| Commands { down, up }).or_else(|| default(port));
    let Some(Commands { down, up }) = commands else {
        found.not_run(
            part,
            format!("no command is known for {name}; name two with --{part}-down and --{part}-up"),
        );
        return Ok(());
    };
    if !is_given && !bench.args.outages && !bench.args.by_hand {
        found.not_run(part, format!("--outages runs {down:?} and {up:?}, --by-hand waits until you do"));
        return Ok(());
    }
    if bench.args.by_hand && rails == 1 {
        found.not_run(
            part,
            "--by-hand needs a device with two rails: a connection that waits for its only one sees nothing",
        );
        return Ok(());
    }
    let is_hit = |other: &&Port| {
        let is_same = (&other.hca, other.port) == (&port.hca, port.port);
        is_same || (of.of_adapter && other.pci_path == port.pci_path)
    };
    let hit = report.iter().flat_map(|report| &report.ports).filter(is_hit);
    if !is_given && hit.flat_map(|port| &port.gids).any(|gid| gid.address == local) {
        found.not_run(
            part,
            format!("{name} has the address {local}, by which this host reaches the other one"),
        );
        return Ok(());
    }
    eprintln!("mpib: {name} goes out of service with {down:?} and back with {up:?}");
    let restores_after = (rails == 1).then_some(bench.args.time.as_secs_f64());
    let at_most = bench.left().as_secs_f64();
    let remedy = format!("look whether {name} is back (ip link, ibv_devinfo); if not: {up}");
    let outage =
        Outage { rail: name.clone(), down, up, by_hand: bench.args.by_hand, restores_after, at_most };
    // A rail that does not come back has to be known before the step's time is over.
    let timeout = TIMEOUT.min(bench.left() / 3);
    let plan = Plan { memory: bench.args.memory, ..Plan::of(&[bench.load()], bench.args.time, timeout) };
    let order = bench.order(device, true, plan);
    let ends = bench.run_with(order, Trial { outage: Some(outage), ..Trial::default() })?;
    if let Some(failure) = ends.cause() {
        found.fail(part, format!("{name}: {}", failure.message), Some(&remedy));
        return Ok(());
    }
    let stages = ends.here.results.first().map_or(&[][..], |result| &result.stages);
    judge(bench, found, of, &name, rails, stages);
    Ok(())
}

/// Refuses a `--rail` that no device of this host has.
pub(super) fn check_rail(args: &HwcheckArgs, report: Option<&Report>) -> Result<(), Failure> {
    let (Some(rail), Some(report)) = (args.rail.as_deref(), report) else { return Ok(()) };
    if choose(report, Some(rail)).is_some() {
        return Ok(());
    }
    let names: Vec<_> =
        report.devices.iter().flat_map(|device| &device.rails).map(|rail| &*rail.name).collect();
    let text = format!("--rail {rail}: no device of this host has it; expected one of {}", names.join(", "));
    Err(Failure::new(Kind::Usage, text))
}

/// Returns the number of the device of a rail, how many rails it has, and the port.
fn choose<'r>(report: &'r Report, rail: Option<&str>) -> Option<(i32, usize, &'r Port)> {
    let has = |device: &Device, wanted: &str| device.rails.iter().any(|rail| rail.name == wanted);
    let last = report.devices.first()?.rails.last()?.name.as_str();
    let wanted = rail.unwrap_or(last);
    let (number, device) = (0..).zip(&report.devices).find(|(_, device)| has(device, wanted))?;
    let port = report.ports.iter().find(|port| format!("{}:{}", port.hca, port.port) == wanted)?;
    Some((number, device.rails.len(), port))
}

/// Judges the stages of an outage of a rail, of a device with so many rails.
fn judge(bench: &Bench<'_>, found: &mut Findings, of: &Part, name: &str, rails: usize, stages: &[Stage]) {
    let part = of.name;
    let stage = |kind| stages.iter().find(|stage| stage.kind == kind);
    let carried = |kind| stage(kind).map_or(0, |stage| carried(stage, name));
    if carried(StageKind::Before) < DATA {
        found.not_run(part, format!("{name} carries no data in this connection; name another with --rail"));
        return;
    }
    let (before, without) = (carried(StageKind::Before), carried(StageKind::Without));
    let wrong = "do the commands take this port down? Look at ibv_devinfo while they are in effect";
    // A connection without another rail waits for this one.
    if without >= DATA && rails > 1 {
        let text = format!("{name} carried {} while it was out of service", binary(without));
        found.fail(part, text, Some(wrong));
    }
    let stalls = [StageKind::Fails, StageKind::Without, StageKind::Returns]
        .map(|kind| stage(kind).map_or(Duration::ZERO, |stage| Duration::from_nanos(stage.stall_ns)));
    let longest = stalls.into_iter().max().unwrap_or_default();
    if rails == 1 && longest < bench.args.time / 2 {
        let text = format!(
            "{name} carried data while it was out of service for {:?}: the longest stall is {longest:.2?}",
            bench.args.time
        );
        found.fail(part, text, Some(wrong));
    }
    if rails > 1 && longest > bench.args.limit {
        let text = format!(
            "{name}: no message completed for {longest:.2?}, expected at most {:?}",
            bench.args.limit
        );
        found.fail(part, text, Some("look at \"mpib doctor\": how soon a failed rail is noticed"));
    }
    match stages.last() {
        Some(last) if last.kind == StageKind::After => {
            let back = stage(StageKind::Returns).map_or(0.0, |stage| stage.seconds);
            let nanos = u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX);
            found.ok(
                part,
                format!(
                    "{name}: {} before, longest stall {}, back after {back:.1} s, every byte right",
                    binary(before),
                    duration(nanos)
                ),
            );
        }
        last => {
            let seconds = last.map_or(0.0, |stage| stage.seconds);
            let text = format!("{name} carries no data {seconds:.1} s after it was restored");
            found.fail(part, text, Some(of.missing));
        }
    }
}

fn carried(stage: &Stage, rail: &str) -> u64 {
    let names = rails::names(rail);
    stage.rails.iter().flatten().filter(|of| names.contains(&&*of.name)).map(|of| of.bytes).sum()
}
