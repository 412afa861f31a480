//! Rates the facts: each check is a level and a sentence, that of the log if the log has one.

use std::sync::Arc;

use mpib_proto::Addr;
use nccl_net_mpib_agent_iface::doctor::{Check, Level, Link, Port, Report};
use nccl_net_mpib_agent_iface::hw_counters::FACTS;
use nix::sys::resource::RLIM_INFINITY;

use Level::{Fail, Note, Ok as Good, Warn};

use super::loopback::try_shared_queues;
use super::selected;
use crate::config::{Config, Finding};
use crate::connect::local_route::not_inline;
use crate::control::Interface;
use crate::device::{Answer, Device, Gpu, Nic, Survey, data_direct, dmabuf, findings, receive_queues};
use crate::error::{BadSetting, Result};
use crate::limits::{self, ENOUGH_DESCRIPTORS, RAISE_MEMLOCK};
use crate::plugin;

/// Makes all checks, in the order in which a reader looks for causes.
pub(super) fn all(
    config: &Config,
    bad: &[BadSetting],
    survey: &Result<Survey>,
    control: Result<&[Addr], &String>,
    networks: &[Interface],
    report: &Report,
) -> Vec<Check> {
    let mut checks = settings(config, bad);
    checks.extend(devices(config, bad, survey));
    checks.extend(selected::adapters(config, report));
    checks.extend(selected::unequal(config, report));
    checks.extend(selected::functions(config, &report.ports));
    checks.extend(report.ports.iter().flat_map(addresses));
    checks.extend(fixed_gid(config, report));
    checks.extend(report.ports.iter().flat_map(infiniband));
    checks.extend(rails(config, report));
    checks.push(control_addresses(config, control));
    checks.extend(selected::interfaces(config, networks));
    let devices: Vec<&Device> = survey.iter().flat_map(|s| &s.devices).flatten().collect();
    checks.extend(partitions(config, &devices));
    try_shared_queues(config, &devices);
    checks.extend(answers("receives", &receive_queues(&devices)));
    checks.extend(inline(config, &devices));
    checks.push(Check::new("retries", Good, config.retry_text()));
    checks.push(Check::new("failover", if config.failover { Good } else { Note }, config.failover_text()));
    checks.push(Check::new("failover", Good, config.detection_text()));
    checks.extend(counters(&devices));
    checks.extend(memory(config, &devices));
    checks.push(memlock(limits::memlock(), limits::may_lock()));
    checks.push(descriptors(limits::descriptors().1));
    checks
}

/// Makes the check of what is degraded: MPIB_STRICT=1 does not allow it.
fn degraded(config: &Config, id: &str, text: &str) -> Check {
    match config.degraded(text.to_owned()) {
        Ok(text) => Check::new(id, Warn, text),
        Err(e) => Check::new(id, Fail, e.to_string()),
    }
}

fn settings(config: &Config, bad: &[BadSetting]) -> Vec<Check> {
    let one = |b: &BadSetting| {
        let remedy = format!("correct {} or unset it: init fails for it", b.variable);
        Check::new("settings", Fail, b.to_string()).remedy(remedy)
    };
    let mut checks: Vec<Check> = bad.iter().map(one).collect();
    if bad.is_empty() {
        let set = config.differing();
        let text = match set.len() {
            0 => "all have their defaults".to_owned(),
            _ => format!("not the defaults: {}", set.join(" ")),
        };
        checks.push(Check::new("settings", Good, text));
    }
    let findings = config.findings(std::env::vars_os());
    checks.extend(findings.iter().map(|found| feature(config, "settings", found, Note)));
    checks
}

/// Makes the check of a feature. `rest` is its level if it is not degraded.
fn feature(config: &Config, id: &str, found: &Finding, rest: Level) -> Check {
    if found.degraded { degraded(config, id, &found.text) } else { Check::new(id, rest, &found.text) }
}

fn devices(config: &Config, bad: &[BadSetting], survey: &Result<Survey>) -> Vec<Check> {
    let survey = match survey {
        Ok(survey) => survey,
        Err(e) => return vec![Check::new("devices", Fail, e.to_string())],
    };
    let mut checks = match &survey.devices {
        Ok(devices) if bad.is_empty() => {
            let all: Vec<String> = devices.iter().map(plugin::describe).collect();
            vec![Check::new("devices", Good, format!("{} for NCCL: {}", devices.len(), all.join(", ")))]
        }
        // The devices depend on the settings that must be corrected first.
        Ok(_) => Vec::new(),
        // The text lists every port with its fault.
        Err(e) => return vec![with_remedy(Check::new("devices", Fail, e.to_string()))],
    };
    checks.extend(survey.unknown.iter().map(|text| degraded(config, "ports", text)));
    checks.extend(survey.lost.iter().map(|text| degraded(config, "ports", text)));
    checks.extend(survey.apart.iter().map(|text| Check::new("devices", Warn, text)));
    checks.extend(survey.idle.iter().map(|text| Check::new("ports", Note, text)));
    checks.into_iter().map(with_remedy).collect()
}

/// Adds what to do about ports that cannot be used, by the cause that the text names.
fn with_remedy(check: Check) -> Check {
    const CAUSES: [(&str, &str); 8] = [
        ("expected an HCA of this host", "correct the name in this setting: ibv_devices lists all"),
        ("NCCL_IB_GID_INDEX names", "unset NCCL_IB_GID_INDEX: the entry is chosen by the peer's addresses"),
        ("names what this host does not have", "correct NCCL_IB_HCA: ibv_devices lists the names"),
        (
            "of its GID table fits",
            "unset these settings, or give the port's network interface an address that fits",
        ),
        (
            "its P_Key table",
            "choose a partition of the port (NCCL_IB_PKEY_VALUE), or make the port its member at the subnet manager",
        ),
        ("GID table is empty", "give the port's network interface an address (ip addr add), and bring it up"),
        (
            "the port is not active",
            "check the cable and the switch's port, and bring its network interface up (ip link set up)",
        ),
        (
            "no RDMA device found",
            "load the adapter's driver; in a container, add its files (--device /dev/infiniband)",
        ),
    ];
    let found = CAUSES.iter().find(|(cause, _)| check.level > Level::Ok && check.text.contains(cause));
    match found {
        Some((_, remedy)) if check.remedy.is_none() => check.remedy(*remedy),
        _ => check,
    }
}

/// Names the ports whose partition has them as limited members.
fn partitions(config: &Config, devices: &[&Device]) -> Vec<Check> {
    let limited = |nic: &Arc<Nic>| {
        let index = nic.pkey_index(config).ok()?;
        let key = nic.context().pkey(nic.port().number, index).ok()?;
        let is_limited = key & FULL_MEMBER == 0;
        is_limited.then(|| format!("{} (P_Key {key:#06x}, entry {index})", nic.name()))
    };
    let limited: Vec<String> = each_port(devices).into_iter().filter_map(limited).collect();
    if limited.is_empty() {
        return Vec::new();
    }
    let text = format!(
        "limited members of their partition: {}; packets between two limited members are dropped",
        limited.join(", ")
    );
    vec![Check::new("partition", Warn, text).remedy(
        "make the ports full members at the subnet manager (opensm's partitions.conf: =full), or choose \
         another partition with NCCL_IB_PKEY_VALUE",
    )]
}

/// Marks a full member in a P_Key.
const FULL_MEMBER: u16 = 0x8000;

/// Warns of one GID index for all connections: tables are renumbered when addresses change.
fn fixed_gid(config: &Config, report: &Report) -> Option<Check> {
    let is_roce = |port: &Port| port.state.as_ref().is_some_and(|s| s.link == Link::Ethernet);
    let has_roce = report.ports.iter().any(|port| port.device.is_some() && is_roce(port));
    if !has_roce || config.gid_index == Config::default().gid_index {
        return None;
    }
    let text = format!(
        "NCCL_IB_GID_INDEX={} fixes the entry of each port's GID table: entries are renumbered when a link flaps or an address changes",
        config.gid_index
    );
    Some(Check::new("addresses", Note, text).remedy("unset it: the entry is chosen by the peer's addresses"))
}

/// Checks the addresses that a connection may use: whether other hosts reach them, and whether
/// their network is known.
fn addresses(port: &Port) -> Option<Check> {
    let roce = port.state.as_ref().is_some_and(|state| state.link == Link::Ethernet);
    let usable: Vec<_> = port.gids.iter().filter(|gid| gid.rank.is_some()).collect();
    if !port.usable || port.device.is_none() || !roce || usable.is_empty() {
        return None;
    }
    let name = port.name();
    if usable.iter().all(|gid| gid.link_local) {
        // An IPv4 address has been given to the interface, as for a cable between two hosts.
        if let Some(v4) = usable.iter().find(|gid| gid.address.contains('.') && !gid.address.contains(':')) {
            let text = format!(
                "{name} has link-local addresses only ({}): they reach only ports on the same link, as over a direct cable",
                v4.address
            );
            return Some(Check::new("addresses", Note, text));
        }
        let text = format!(
            "{name} has link-local addresses only, which reach only other link-local addresses on one link"
        );
        return Some(Check::new("addresses", Warn, text).remedy(
            "give its network interface an address (ip addr add), the same network on both ends of a link",
        ));
    }
    if usable.iter().any(|gid| gid.prefix.is_some()) {
        return None;
    }
    let text = format!(
        "no network interface here has {}'s address {}, so the prefix of its network is unknown",
        name, usable[0].address
    );
    Some(Check::new("addresses", Note, text).remedy(
        "in a container with the adapter and without its interface, use the host's network (--network host)",
    ))
}

/// Describes how packets from and to an InfiniBand port are addressed.
fn infiniband(port: &Port) -> Option<Check> {
    let state = port.state.as_ref().filter(|_| port.usable && port.device.is_some())?;
    let ib = state.infiniband.as_ref()?;
    let subnet = ib.subnet.as_deref().unwrap_or("?");
    let lids = match ib.lmc {
        0 => format!("LID {}", state.lid),
        lmc => {
            let last = u32::from(state.lid) + (1 << lmc) - 1;
            format!("LIDs {} to {last} (LMC {lmc}), of which connections use the first", state.lid)
        }
    };
    let flid = match ib.flid {
        Some(flid) => format!("routers reach it from other subnets by its FLID {flid}"),
        None => "without an FLID, so no port of another subnet is joined to it".into(),
    };
    let grh =
        if ib.grh_required { "; it requires a GRH, which all packets from and to it carry" } else { "" };
    let text =
        format!("{}:{} is in InfiniBand subnet {subnet} with {lids}; {flid}{grh}", port.hca, port.port);
    Some(Check::new("subnet", Good, text))
}

fn rails(config: &Config, report: &Report) -> Option<Check> {
    let island = report.island.as_ref()?;
    let (sout, sup) = (config.hca_sout.as_ref()?, config.hca_sup.as_ref()?);
    Some(Check::new("island", Good, format!("SOUT {sout}, SUP {sup}; one island with this host: {island}")))
}

fn control_addresses(config: &Config, control: Result<&[Addr], &String>) -> Check {
    let variable = config.oob_filter().map_or("MPIB_OOB_IF", |(variable, _)| variable);
    match control {
        Err(why) => Check::new("control", Fail, why).remedy(format!(
            "name an interface of this host that the other hosts reach with {variable} (ip addr)"
        )),
        Ok(addrs) if addrs.iter().all(|addr| addr.ip().is_loopback()) => {
            let text = "a listener here can be reached at loopback addresses only, by no other host";
            Check::new("control", Warn, text)
                .remedy("bring a network interface up, or name one with MPIB_OOB_IF or NCCL_SOCKET_IFNAME")
        }
        Ok(addrs) => {
            let all: Vec<String> = addrs.iter().map(|addr| addr.ip().to_string()).collect();
            Check::new("control", Good, format!("a listener here is reached at {}", all.join(", ")))
        }
    }
}

/// Makes a check of each answer: ports or adapters with the same one share a line.
fn answers(id: &str, answers: &[Answer]) -> Vec<Check> {
    let check = |answer: &Answer| {
        let level = if answer.lacks.is_none() { Good } else { Note };
        Check::new(id, level, answer.text())
    };
    answers.iter().map(check).collect()
}

/// Names the ports whose adapters have no room for the inline data that the settings request: each
/// connection would find it so.
fn inline(config: &Config, devices: &[&Device]) -> Vec<Check> {
    let nics = each_port(devices);
    let fails = |nic: &Nic, e| Check::new("inline", Warn, format!("{}: {e}", nic.name()));
    let lacks = nics.iter().filter_map(|nic| match not_inline(config, nic) {
        Ok(found) => Some(feature(config, "inline", &found?, Note)),
        Err(e) => Some(fails(nic, e)),
    });
    let (bytes, named) = (config.inline, nics.iter().filter(|_| config.inline > 0));
    let note = |nic: &&Arc<Nic>| match nic.inline_room(bytes) {
        Ok(room) if room < bytes => {
            let text = format!("{}: no room for MPIB_INLINE={bytes}: no message goes inline", nic.name());
            Some(Check::new("inline", Note, text))
        }
        Ok(_) => None,
        Err(e) => Some(fails(nic, e)),
    };
    lacks.chain(named.filter_map(note)).collect()
}

/// Returns the ports of the devices, each once.
fn each_port<'a>(devices: &[&'a Device]) -> Vec<&'a Arc<Nic>> {
    let mut nics: Vec<_> = devices.iter().flat_map(|d| &d.rails).collect();
    nics.dedup_by_key(|nic| nic.name());
    nics
}

/// Names what the counters of the ports show of lost packets, one line for all that show the same: by
/// them the watchdog knows a slow rail from one that loses packets.
fn counters(devices: &[&Device]) -> Vec<Check> {
    let mut groups: Vec<([bool; FACTS.len()], Vec<&str>)> = Vec::new();
    for nic in each_port(devices) {
        let dir = nic.context().hw_counters(nic.port().number);
        let has = FACTS.map(|fact| fact.read(&dir).is_some());
        match groups.iter_mut().find(|(of, _)| *of == has) {
            Some((_, names)) => names.push(nic.name()),
            None => groups.push((has, vec![nic.name()])),
        }
    }
    let check = |(has, names): ([bool; FACTS.len()], Vec<&str>)| {
        let of = |wanted: bool| {
            let facts = FACTS.iter().zip(has).filter(|(_, has)| *has == wanted);
            facts.map(|(fact, _)| fact.shows).collect::<Vec<_>>().join(", ")
        };
        let (shown, missing, names) = (of(true), of(false), names.join(", "));
        let text = match (&*shown, &*missing) {
            ("", _) => format!("no counter of {names} shows lost packets to the watchdog"),
            (_, "") => format!("the counters of {names} show {shown}"),
            _ => format!("the counters of {names} show {shown}, and not {missing}"),
        };
        Check::new("counters", Good, text)
    };
    groups.into_iter().map(check).collect()
}

fn memory(config: &Config, devices: &[&Device]) -> Vec<Check> {
    let gpu = if Gpu::here().is_direct() { Good } else { Note };
    let features = [("gpu", gpu), ("ordering", Good), ("flush", Good)].into_iter();
    let features = features.zip(findings(config, devices));
    let mut checks: Vec<Check> =
        features.map(|((id, rest), found)| feature(config, id, &found, rest)).collect();
    let unused = data_direct(config, devices);
    checks.extend(unused.iter().map(|found| feature(config, "datadirect", found, Note)));
    checks.extend(answers("dmabuf", &dmabuf(devices)));
    checks
}

/// Below this NCCL's own buffers for a few peers do not fit.
const ENOUGH: u64 = 1 << 30;

/// Checks the limit on locked memory. `unbound`: the limit does not apply to this process.
fn memlock(limit: Option<u64>, unbound: bool) -> Check {
    let id = "memlock";
    match limit {
        Some(RLIM_INFINITY) => Check::new(id, Good, "locked memory is unlimited (ulimit -l)"),
        Some(bytes) if unbound => {
            let text = format!(
                "the limit on locked memory is {} KiB (ulimit -l), and does not bind this process, which has CAP_IPC_LOCK",
                bytes >> 10
            );
            Check::new(id, Good, text)
        }
        Some(bytes) => {
            let level = if bytes < ENOUGH { Warn } else { Note };
            let text = format!(
                "the limit on locked memory is {} KiB (ulimit -l): registrations beyond it fail with ENOMEM",
                bytes >> 10
            );
            Check::new(id, level, text).remedy(format!("for the job as well: {RAISE_MEMLOCK}"))
        }
        None => Check::new(id, Note, "the limit on locked memory cannot be read"),
    }
}

/// Checks the hard limit on open files, to which init raises the soft one.
fn descriptors(hard: u64) -> Check {
    let id = "files";
    if hard >= ENOUGH_DESCRIPTORS {
        return Check::new(
            id,
            Good,
            format!("this process may open {ENOUGH_DESCRIPTORS} files or more (ulimit -Hn)"),
        );
    }
    let level = if hard < FEW_DESCRIPTORS { Warn } else { Note };
    let text = format!(
        "this process may open {hard} files (ulimit -Hn): each connection and each registered DMA-BUF needs a descriptor"
    );
    Check::new(id, level, text).remedy(format!(
        "for the job as well: set it to {ENOUGH_DESCRIPTORS} (limits.conf, LimitNOFILE={ENOUGH_DESCRIPTORS}, --ulimit nofile={ENOUGH_DESCRIPTORS})"
    ))
}

/// A job of some hosts needs more.
const FEW_DESCRIPTORS: u64 = 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_on_locked_memory_is_judged_by_who_is_bound() {
        for (limit, unbound, level, expected) in [
            (Some(RLIM_INFINITY), false, Good, "unlimited"),
            (Some(8 << 20), false, Warn, "8192 KiB (ulimit -l): registrations"),
            (Some(8 << 20), true, Good, "CAP_IPC_LOCK"),
            (Some(ENOUGH), false, Note, "1048576 KiB"),
            (None, false, Note, "cannot be read"),
        ] {
            let check = memlock(limit, unbound);
            assert_eq!(check.level, level, "{check:?}");
            assert!(check.text.contains(expected), "{check:?}");
            assert_eq!(check.remedy.is_some(), expected.contains("KiB"), "{check:?}");
        }
    }

    #[test]
    fn the_limit_on_open_files_is_judged_by_the_hard_one() {
        for (hard, level) in [(64, Warn), (1024, Note), (4096, Note), (65_536, Good), (u64::MAX, Good)] {
            let check = descriptors(hard);
            assert_eq!((check.level, check.remedy.is_some()), (level, level != Good), "{check:?}");
        }
    }

    #[test]
    fn what_is_lost_fails_where_nothing_may_be() {
        let strict = Config { strict: true, ..Config::default() };
        assert_eq!(degraded(&strict, "x", "a").text, "a (MPIB_STRICT=1)");
        assert_eq!(
            (degraded(&strict, "x", "a").level, degraded(&Config::default(), "x", "a").level),
            (Fail, Warn)
        );
    }
}
