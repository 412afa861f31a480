//! What the filters of adapters and interfaces select beside what was probably meant.

use nccl_net_mpib_agent_iface::doctor::{Check, Level, Link, Port, Report};

use crate::config::{Broad, Config, HcaFilter};
use crate::control::Interface;

/// Names the items of `NCCL_IB_HCA` that are the name of one adapter and hit others, too.
pub(super) fn adapters(config: &Config, report: &Report) -> Vec<Check> {
    // With SOUT and SUP the filter has no effect.
    let Some(filter) = config.ib_hca.as_ref().filter(|_| config.hca_sout.is_none()) else {
        return Vec::new();
    };
    let ports: Vec<(&str, u8)> = report.ports.iter().map(|port| (&*port.hca, port.port)).collect();
    let check = |item: Broad<'_>| broad("ports", "NCCL_IB_HCA", filter.names(), &item, &filter.exact());
    filter.broad(&ports).into_iter().map(check).collect()
}

/// The same for the filter of interfaces for control connections.
pub(super) fn interfaces(config: &Config, networks: &[Interface]) -> Vec<Check> {
    let Some((variable, filter)) = config.oob_filter() else { return Vec::new() };
    let names: Vec<&str> = networks.iter().map(|interface| &*interface.name).collect();
    let check = |item: Broad<'_>| broad("control", variable, filter.names(), &item, &filter.exact());
    filter.broad(&names).into_iter().map(check).collect()
}

fn broad(id: &str, variable: &str, names: bool, item: &Broad<'_>, exact: &dyn std::fmt::Display) -> Check {
    let text = format!(
        "{} in {variable} {} {}: items are beginnings of names",
        item.item,
        if names { "selects" } else { "excludes" },
        item.names.join(", ")
    );
    let remedy =
        format!("if {} alone is meant: {variable}={exact}, in which items are whole names", item.whole);
    Check::new(id, Level::Note, text).remedy(remedy)
}

/// Names the devices of ports that have less than half of the fastest port's speed, or another link
/// layer: often those of a management or storage network.
pub(super) fn unequal(config: &Config, report: &Report) -> Option<Check> {
    let used = report.ports.iter().filter(|port| port.device.is_some());
    let used: Vec<(&Port, Link, u32)> = used.filter_map(|port| facts(config, port)).collect();
    let &(_, link, speed) = used.iter().rev().max_by_key(|(.., speed)| *speed)?;
    let (like, unlike): (Vec<_>, Vec<_>) =
        used.iter().partition(|(_, l, s)| *l == link && u64::from(*s) * 2 >= u64::from(speed));
    // SOUT and SUP are named one by one.
    if unlike.is_empty() || config.hca_sout.is_some() {
        return None;
    }
    let name = |(port, link, speed): &&(&Port, Link, u32)| {
        format!("{}:{} ({})", port.hca, port.port, kind(*link, *speed))
    };
    let text = format!(
        "beside ports of {}, NCCL gets slower ones or those of another link layer: {}",
        kind(link, speed),
        unlike.iter().map(name).collect::<Vec<_>>().join(", ")
    );
    let like: Vec<(&str, u8)> = like.iter().map(|(port, ..)| (&*port.hca, port.port)).collect();
    let filter = HcaFilter::only(&like, config.ib_hca.as_ref());
    Some(Check::new("ports", Level::Note, text).remedy(format!("to leave them out: NCCL_IB_HCA={filter}")))
}

/// Returns link layer and speed of a port, as NCCL is shown it.
fn facts<'a>(config: &Config, port: &'a Port) -> Option<(&'a Port, Link, u32)> {
    let state = port.state.as_ref()?;
    let set = config.rail_speed.as_ref().and_then(|speeds| speeds.of(&port.hca, port.port));
    Some((port, state.link, set.unwrap_or(state.speed_mbps)))
}

fn kind(link: Link, mbps: u32) -> String {
    let link = match link {
        Link::Infiniband => "InfiniBand",
        Link::Ethernet => "RoCE",
    };
    format!("{} Gb/s {link}", f64::from(mbps) / 1000.0)
}
