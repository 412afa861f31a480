//! The step in which the network between the two hosts is silent, which is not that of the rails.

use std::{net::IpAddr, time::Duration};

use nccl_net_mpib_agent_iface::doctor::Report;

use super::{bench::Bench, outage::Commands, step::Findings, traffic};
use crate::failure::Failure;
use crate::output::units::{binary, duration};
use crate::perf::{NetworkOutage, Plan, StageKind, Trial};

/// Longest time without progress.
const TIMEOUT: Duration = Duration::from_secs(30);
const PART: &str = "network";

/// Takes the route to the other host away under load, and gives it back. Data has to move on over the
/// rails, and the connection to live on.
pub(super) fn network(bench: &mut Bench<'_>, found: &mut Findings) -> Result<(), Failure> {
    let (args, [here, there]) = (bench.args, bench.addresses()?);
    let report = bench.document.report.as_ref();
    let commands = match (args.network_down.clone(), args.network_up.clone()) {
        (Some(down), Some(up)) => Commands { down, up },
        _ => match default(report, here, there) {
            Ok(Commands { down, up }) if !args.outages => {
                found.not_run(PART, format!("--outages runs {down:?} and {up:?}"));
                return Ok(());
            }
            Ok(commands) => commands,
            Err(why) => {
                found.not_run(PART, format!("{why}; name two commands with --network-down and --network-up"));
                return Ok(());
            }
        },
    };
    // Without failover the setting is how long the network may be silent.
    let is_redialled = report.is_some_and(|report| {
        report.settings.iter().any(|setting| setting.name == "MPIB_FAILOVER" && setting.value == "1")
    });
    let Some(device) = bench.devices(found)?.into_iter().next() else { return Ok(()) };
    let (Commands { down, up }, time) = (commands, args.network_time);
    eprintln!("mpib: {there} is out of reach for {time:?}: {down:?}, and then {up:?}");
    let plan = Plan { memory: args.memory, ..Plan::of(&[bench.load()], args.time, TIMEOUT) };
    let mut order = bench.order(0, true, plan);
    // Both ends notice it early, and dial each other again.
    let early = u64::try_from(time.as_millis() / 4).unwrap_or(u64::MAX).clamp(1000, 3_600_000);
    order.peer_timeout_ms = is_redialled.then_some(early);
    let at_most = bench.left().as_secs_f64();
    let outage = NetworkOutage { down, up, seconds: time.as_secs_f64(), at_most };
    let ends = bench.run_with(order, Trial { network: Some(outage), ..Trial::default() })?;
    traffic::judge(found, PART, &device, &ends);
    if ends.cause().is_some() {
        return Ok(());
    }
    let stages = ends.here.results.iter().flat_map(|result| &result.stages);
    let Some(without) = stages.into_iter().find(|stage| stage.kind == StageKind::Without) else {
        found.not_run(PART, "nothing was measured");
        return Ok(());
    };
    let (bytes, stall) = (binary(without.bytes), duration(without.stall_ns));
    let text = format!("{device}: {bytes} without the network for {time:?}, longest stall {stall}");
    match Duration::from_nanos(without.stall_ns) > args.limit {
        true => found.fail(
            PART,
            format!("{text}, expected at most {:?}", args.limit),
            Some("look at the plugin's log (NCCL_DEBUG=INFO): what does the data path wait for?"),
        ),
        false => found.ok(PART, text),
    }
    Ok(())
}

/// Returns the commands that take the route to the other host away and give it back: the rest of the
/// network stays, and with it logins and default routes.
fn default(report: Option<&Report>, here: IpAddr, there: IpAddr) -> Result<Commands, String> {
    if here == there {
        return Err(format!("both ends are on this host ({here})"));
    }
    let ports = report.into_iter().flat_map(|report| &report.ports);
    let local = here.to_string();
    if let Some(port) = ports.into_iter().find(|port| port.gids.iter().any(|gid| gid.address == local)) {
        return Err(format!(
            "{}:{} has the address {here}, by which this host reaches the other one",
            port.hca, port.port
        ));
    }
    let to = match there {
        IpAddr::V4(there) => format!("blackhole {there}/32"),
        IpAddr::V6(there) if there.is_unicast_link_local() => {
            return Err(format!("{there} is an address of one link"));
        }
        IpAddr::V6(there) => format!("blackhole {there}/128"),
    };
    Ok(Commands { down: format!("ip route add {to}"), up: format!("ip route del {to}") })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn commands(here: &str, there: &str) -> Result<String, String> {
        let Commands { down, up } = default(None, here.parse().unwrap(), there.parse().unwrap())?;
        Ok(format!("{down}; {up}"))
    }

    #[test]
    fn the_route_to_the_other_host_is_taken_away() {
        let of = |to: &str| Ok(format!("ip route add blackhole {to}; ip route del blackhole {to}"));
        assert_eq!(commands("192.0.2.1", "192.0.2.2"), of("192.0.2.2/32"));
        assert_eq!(commands("fd00::1", "fd00::2"), of("fd00::2/128"));
        assert_eq!(commands("::1", "::1").unwrap_err(), "both ends are on this host (::1)");
        assert_eq!(commands("fe80::1", "fe80::2").unwrap_err(), "fe80::2 is an address of one link");
    }
}
