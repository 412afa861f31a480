//! Variables that are set but have no effect on this plugin: those of NCCL's own InfiniBand transport,
//! of the NCCL mesh plugin and of MPIB that it does not read, and unknown names. They are logged.
//! Those of the transport have their effect on windows, `ncclPutSignal` and GIN, which it carries
//! beside this plugin.

use std::ffi::OsString;

use super::Config;
use super::form::shown;
use crate::error::BadSetting;

/// The state of a feature, or the effect of a setting, that a user may have requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    /// The user does not get what was requested: a warning, or an error with `MPIB_STRICT=1`.
    pub(crate) degraded: bool,
    /// The sentence for the log.
    pub(crate) text: String,
}

/// A variable that is known and not read.
#[derive(Debug)]
pub(super) struct Other {
    pub(super) variable: &'static str,
    /// Values that request what this plugin does anyway: they are not logged.
    pub(super) as_is: &'static [&'static str],
    /// Whether any other value requests something that this plugin does not do.
    pub(super) missed: bool,
    pub(super) why: &'static str,
}

macro_rules! others {
    ($(#[doc = $doc:literal])+ $list:ident;
     $($variable:literal $([$($as_is:literal)|+])? $word:ident: $why:literal;)*) => {
        $(#[doc = $doc])+
        pub(super) const $list: &[Other] = &[$(Other {
            variable: $variable,
            as_is: &[$($($as_is),+)?],
            missed: others!($word),
            why: $why,
        }),*];
    };
    (note) => { false };
    (missed) => { true };
}

// In brackets the values that request what this plugin does anyway. `missed`: a warning; `note`: an
// informative line.
others! {
    /// The variables that NCCL's own InfiniBand transport or another plugin reads and this plugin does
    /// not.
    OTHERS;
    "NCCL_IB_DISABLE" ["0"] note: "it turns NCCL's own InfiniBand code off, and with it windows, ncclPutSignal and GIN between hosts before NCCL 2.30.7; NCCL_NET chooses the transport of all else";
    "NCCL_IB_EVENT_BASED_LB" ["1"] note: "the shares of plain rails always follow what the rails can carry: MPIB_SPLIT";
    "NCCL_IB_EVENT_BASED_LB_REMOTE" ["0"] missed: "shares do not follow changes of the peer's ports";
    "NCCL_IB_OOO_RQ" ["0"] missed: "queue pairs are made without mlx5's out-of-order delivery";
    "NCCL_IB_PREPOST_RECEIVE_WORK_REQUESTS" ["1"] note: "receives are always posted beforehand";
    "NCCL_IB_QUERY_PORT_SPEED" ["0"] note: "a port's speed follows from the link width and speed that ibv_query_port returns";
    "NCCL_IB_RAIL_POLICY" missed: "rails keep the order in which NCCL joins them";
    "NCCL_IB_RECEIVER_SIDE_MATCHING_SCHEME" note: "immediates always name the receive's slot";
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_MAX_ATTEMPTS" note: "a transfer may fail over any number of times";
    "NCCL_IB_RESILIENCY_PORT_FAILOVER_PROBE_DELAY" note: "the receiver reports what has arrived, without a delay";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY" ["1"] missed: "with failover a rail always returns when it works again";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ACK_TIMEOUT" note: "rails return by probes of this plugin";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_INTERVAL" note: "rails return by probes of this plugin";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_BATCH_SIZE" note: "rails return by probes of this plugin";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_SEQUENCE_SIZE" note: "rails return by probes of this plugin";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ALIVE_MSG_TIMEOUT" note: "rails return by probes of this plugin";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_ATTEMPTS_MAX" note: "attempts to return have no limit";
    "NCCL_IB_RESILIENCY_PORT_RECOVERY_START_DELAY" note: "the hold-down is 0.5 s at first, and doubles";
    "NCCL_IB_SORT_MERGE_NICS" note: "rails keep the order in which NCCL joins them";
    "NCCL_IB_SUBNET_AWARE_ROUTING" ["1"] note: "rails are always paired by their subnets";
    "NCCL_IB_SUBNET_PREFIX_LEN" note: "prefix lengths are those of the interfaces";
    "NCCL_IB_WARN_RAIL_LOCAL" note: "a rail without a partner is always logged";
    "NCCL_IB_WQE_LATENCY_REPORT" note: "mpib stats shows what is under way";
    "NCCL_IB_WQE_LATENCY_THRESHOLD_NS" ["0"] note: "mpib stats shows what is under way";
    "MPIB_CTS_SIGNAL_INTERVAL" note: "a CTS write requests a completion once in half of the send queue, which is every 64th";
    "MPIB_SRQ_HIGH" note: "a shared receive queue has 128 entries, or as many as the adapter allows: a connection needs no more";
    "MPIB_SRQ_LOW" note: "a shared receive queue is refilled when a quarter of it is left, or when the slots in progress need more";
    "NCCL_MESH_DEBUG" note: "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,NET show what this plugin does";
    "NCCL_MESH_GID_INDEX" missed: "NCCL_IB_GID_INDEX is the setting, and without it each connection chooses its GIDs";
}

others! {
    /// Variables of launch scripts that no NCCL of today reads, and what has taken their place.
    OBSOLETE;
    "NCCL_IB_CUDA_SUPPORT" note: "NCCL 2.4 has removed it; NCCL_NET_GDR_LEVEL decides on GPUDirect, which is on where it is possible";
    "NCCL_IB_DISABLE_ECE" ["0"] missed: "NCCL has never read it; NCCL_IB_ECE_ENABLE=0 turns ECE off";
    "NCCL_IB_GDR_LEVEL" note: "NCCL 2.4 has renamed it NCCL_NET_GDR_LEVEL";
}

impl Config {
    /// Describes the settings in `env` that do not have the effect that a user expects: those out
    /// of bounds, for which another value is used, those without effect, and lists with empty items.
    pub(crate) fn findings(&self, env: impl Iterator<Item = (OsString, OsString)>) -> Vec<Finding> {
        let substituted = |(bad, used): &(BadSetting, String)| Finding {
            degraded: true,
            text: format!("{bad}; {used} is used"),
        };
        let substituted = self.substituted.iter().map(substituted);
        let skipped = |variable: &&str| Finding {
            degraded: false,
            text: format!("{variable} has empty items, which are skipped"),
        };
        let skipped = self.with_empty_items.iter().map(skipped);
        let others = without_effect(env).into_iter().chain(self.idle()).chain(self.short_silence());
        substituted.chain(skipped).chain(others).collect()
    }
}

/// Describes the variables of `env` that have no effect.
pub(super) fn without_effect(env: impl Iterator<Item = (OsString, OsString)>) -> Vec<Finding> {
    let mut found: Vec<_> = env
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| {
            let of_nccl = name.starts_with("NCCL_IB_") || OTHERS.iter().any(|o| o.variable == name.as_str());
            name.starts_with("MPIB_") || of_nccl && !value.is_empty()
        })
        .filter(|(name, _)| !Config::VARIABLES.contains(&name.as_str()))
        .collect();
    found.sort();
    found.iter().filter_map(|(name, value)| of_one(name, &value.to_string_lossy())).collect()
}

fn of_one(name: &str, value: &str) -> Option<Finding> {
    let Some(other) = OTHERS.iter().chain(OBSOLETE).find(|o| o.variable == name) else {
        let whose = if name.starts_with("MPIB_") {
            "there is no such setting"
        } else {
            "neither NCCL 2.32 nor this plugin knows it"
        };
        let nearest = nearest_variable(name).map_or(String::new(), |n| format!("; the nearest name is {n}"));
        let name_shown = name.chars().take(60).collect::<String>();
        let text = format!("{name_shown}={} has no effect: {whose}{nearest}", shown(value));
        return Some(Finding { degraded: true, text });
    };
    if other.as_is.contains(&value.trim()) {
        return None;
    }
    Some(Finding {
        degraded: other.missed,
        text: format!("{name}={} has no effect on this plugin: {}", shown(value), other.why),
    })
}

/// Returns the variable that an unknown name most likely means. The beginnings that all names share
/// say nothing of it.
fn nearest_variable(name: &str) -> Option<&'static str> {
    fn own(name: &str) -> &str {
        let beginnings = ["NCCL_IB_", "NCCL_", "MPIB_"].into_iter();
        beginnings.filter_map(|beginning| name.strip_prefix(beginning)).next().unwrap_or(name)
    }
    let all: Vec<&str> = Config::VARIABLES.iter().map(|known| own(known)).collect();
    let nearest = nearest(own(name), &all)?;
    Config::VARIABLES.iter().copied().find(|known| own(known) == nearest)
}

/// Returns the one of `known` that an unknown name most likely means. `None` if more than a third of
/// the name would have to change.
pub(crate) fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let changes = known.iter().map(|known| (strsim::damerau_levenshtein(known, name), *known));
    let (changes, nearest) = changes.min_by_key(|(changes, _)| *changes)?;
    (changes <= name.chars().count() / 3).then_some(nearest)
}
