//! The settings of two hosts beside each other. The plugin says which of its settings are to be alike,
//! and why; those that NCCL itself reads are here. Settings that a handshake compares are findings of
//! the plugin's routes.

use std::env;

use nccl_net_mpib_agent_iface::doctor::{Alike, Check, Level, Report, Setting};

use super::{head::short, peer::Summary};

const ID: &str = "differs";

const CHOOSES: &str = "ranks choose different algorithms, and wait for each other";
const CUTS: &str = "ranks cut a collective into different parts, and wait for each other";

/// Variables of NCCL that this plugin does not read, and what a difference does.
const OF_NCCL: [(&str, &str); 5] = [
    ("NCCL_ALGO", CHOOSES),
    ("NCCL_PROTO", CHOOSES),
    ("NCCL_BUFFSIZE", CUTS),
    ("NCCL_LL_BUFFSIZE", CUTS),
    ("NCCL_LL128_BUFFSIZE", CUTS),
];

/// Value of a variable that is not set.
const UNSET: &str = "unset";

/// Returns the settings of this host: the plugin's, and those of NCCL.
pub(super) fn settings(report: Option<&Report>) -> Vec<Setting> {
    let of_nccl = OF_NCCL.map(|(name, why)| {
        let value = env::var(name).ok().filter(|value| !value.is_empty());
        let alike = Alike { level: Level::Fail, by_presence: false, why: why.into() };
        Setting {
            name: name.into(),
            default: value.is_none(),
            value: value.unwrap_or_else(|| UNSET.into()),
            alike: Some(alike),
        }
    });
    report.iter().flat_map(|report| report.settings.iter().cloned()).chain(of_nccl).collect()
}

/// Compares two hosts: a check for all differences that do the same. `refused`: settings for which the
/// hosts refuse each other's connections, each with its name in front.
pub(super) fn checks(here: &Summary, there: &Summary, refused: &[String]) -> Vec<Check> {
    let mut checks = releases(here, there);
    if there.settings.is_empty() {
        let text =
            format!("{} does not say what is set there: its mpib is of an earlier release", there.host);
        return checks.into_iter().chain([Check::new(ID, Level::Note, text)]).collect();
    }
    let (mut costs, mut harmless) = (Vec::<(&Alike, Vec<String>)>::new(), Vec::new());
    for ours in &here.settings {
        let Some(theirs) = there.settings.iter().find(|theirs| theirs.name == ours.name) else { continue };
        let is_refused = refused
            .iter()
            .any(|text| text.strip_prefix(&ours.name).is_some_and(|rest| rest.starts_with(' ')));
        if ours.value == theirs.value || is_refused {
            continue;
        }
        let values = format!(
            "{}={} here ({}), {} there ({})",
            ours.name,
            short(&ours.value),
            here.host,
            short(&theirs.value),
            there.host
        );
        let is_alike = |alike: &Alike| alike.by_presence && (ours.value == UNSET) == (theirs.value == UNSET);
        match ours.alike.as_ref().filter(|alike| !is_alike(alike)) {
            None => harmless.push(values),
            Some(alike) => match costs.iter_mut().find(|(of, _)| *of == alike) {
                Some((_, all)) => all.push(values),
                None => costs.push((alike, vec![values])),
            },
        }
    }
    checks.extend(costs.into_iter().map(|(alike, all)| {
        let what =
            if alike.by_presence { "on both hosts, or on neither" } else { "to one value on both hosts" };
        Check::new(ID, alike.level, format!("{}: {}", all.join("; "), alike.why))
            .remedy(format!("set it {what}, in the job's script or in /etc/nccl.conf"))
    }));
    if !harmless.is_empty() {
        let text = format!("hosts may differ in these: {}", harmless.join("; "));
        checks.push(Check::new(ID, Level::Ok, text));
    }
    checks
}

/// Compares what the plugins say over the wire. Plugins of one protocol work together.
fn releases(here: &Summary, there: &Summary) -> Vec<Check> {
    let (Some(ours), Some(theirs)) = (&here.plugin, &there.plugin) else { return Vec::new() };
    if ours == theirs {
        return Vec::new();
    }
    let text =
        format!("plugin {ours} here ({}), {} there ({})", here.host, short(&theirs.to_string()), there.host);
    if ours.protocol == theirs.protocol {
        return vec![Check::new(ID, Level::Ok, text)];
    }
    let text = format!("{text}: use one version of the plugin on all hosts");
    vec![Check::new(ID, Level::Fail, text).remedy("install the newer release on both: mpib --version")]
}
