//! The checks.

mod data;
mod failover;
mod faults;
mod life;
mod nccl;
mod policy;

use crate::host::Outcome;
use crate::world::World;

/// Worlds in which a check can run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Where {
    Both,
    /// Only with the kernel: the check changes a network interface or reads the kernel's state.
    Kernel,
}

pub(crate) struct Check {
    pub(crate) name: &'static str,
    /// Whether `--short` includes the check.
    pub(crate) short: bool,
    pub(crate) place: Where,
    pub(crate) run: fn(&World) -> Outcome,
    /// Returns the requirement of the check that this run does not meet, if any.
    pub(crate) lacks: fn(&World) -> Option<&'static str>,
}

const fn check(name: &'static str, run: fn(&World) -> Outcome) -> Check {
    Check { name, short: false, place: Where::Both, run, lacks: |_| None }
}

impl Check {
    const fn telling(self) -> Self {
        Self { short: true, ..self }
    }

    const fn kernel(self) -> Self {
        Self { place: Where::Kernel, ..self }
    }
}

/// All checks, the cheap ones first.
pub(crate) const LIST: &[Check] = &[
    check("library", data::library).telling(),
    check("table-v6", |w| data::table(w, 6)),
    check("table-v8", |w| data::table(w, 8)),
    check("table-v11", |w| data::table(w, 11)),
    check("table-v12", |w| data::table(w, 12)).telling(),
    check("both-directions", data::both_directions).telling(),
    check("relaxed-ordering", data::relaxed_ordering).kernel(),
    check("share-0", |w| policy::share(w, 0)),
    check("share-256", |w| policy::share(w, 256)).telling(),
    check("share-512", |w| policy::share(w, 512)),
    check("share-1024", |w| policy::share(w, 1024)),
    check("vanilla-intra-island", policy::within_an_island).telling(),
    check("vanilla-inter-island", policy::between_islands).telling(),
    check("live-hints", policy::hints).telling(),
    check("gid-choice", policy::gid_choice).kernel(),
    check("ipv6-rails", policy::ipv6),
    check("mtu-of-one-end", |w| faults::mtu(w, 1)),
    check("mtu-of-one-rail", |w| faults::mtu(w, 2)),
    check("loss", faults::loss).kernel(),
    check("rail-down-at-connect", faults::down_at_connect).telling(),
    check("rail-dead-at-connect", faults::dead_at_connect).kernel(),
    check("rail-down-in-transfer", faults::down_in_transfer).telling(),
    check("rail-dead-in-transfer", faults::dead_in_transfer).kernel(),
    check("sup-down-and-up-at-sender", |w| failover::down(w, 1, 0)).telling(),
    check("sup-down-and-up-at-receiver", |w| failover::down(w, 1, 1)),
    check("sout-down-and-up-at-sender", |w| failover::down(w, 0, 0)),
    check("sout-down-and-up-at-receiver", |w| failover::down(w, 0, 1)).telling(),
    check("sup-silent-at-sender", |w| failover::silence(w, 1, 0)).kernel(),
    check("sup-silent-at-receiver", |w| failover::silence(w, 1, 1)).kernel(),
    check("sout-silent-at-sender", |w| failover::silence(w, 0, 0)).kernel(),
    check("sout-silent-at-receiver", |w| failover::silence(w, 0, 1)).kernel(),
    check("sender-killed", |w| faults::killed(w, 0)),
    check("receiver-killed", |w| faults::killed(w, 1)).telling(),
    Check { lacks: nccl::lacks, ..check("nccl-loader", nccl::loader).kernel() },
    check("connect-cycles", life::cycles),
];
