//! The plan of a connection: which rails get queue pairs, and which one carries CTS writes. Also what
//! follows for a device: the speed and the number of connections that NCCL sees.

use std::fmt;
use std::sync::Arc;

use mpib_proto::{Hello, MAX_RAILS, Mode, RailInfo, RailRole, RailSet, RoutePolicy, SHARE_ONE, Terms};

use crate::config::Config;
use crate::device::{Device, Nic};
use crate::route::{self, Choice, Class};
use crate::verbs::DeviceLimits;

/// Entries of a completion queue for each stripe with which the stripes surely share one.
const STRIPE_COMPLETIONS: usize = 2048;

/// Returns the settings that the peer must share. `fused` if the rails of the device are SOUT and
/// SUP.
pub fn terms(config: &Config, fused: bool) -> Terms {
    Terms {
        route: config.route,
        fused,
        mode: config.mode,
        fixed_share: config.sup_share.is_some(),
        island_prefix_len: config.island_prefix_len,
        qps: [config.sout_qp, config.sup_qp],
        plain_qps: config.ib_qps,
        plain_split: config.ib_split,
        failover: config.failover,
    }
}

/// How the queue pairs of one rail share its messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stripes {
    /// Stripes of the rail. Like a rail, each stripe has separate queue pairs, a separate immediate
    /// and a separate bit in the mask.
    pub(crate) stripes: usize,
    /// Queue pairs of each stripe. Successive messages use them round-robin.
    pub(crate) turns: usize,
}

impl Stripes {
    /// Returns the stripes of `rails` plain rails with `qps` queue pairs each. A mask has
    /// [`MAX_RAILS`] bits, so at most that many queue pairs carry one message. Where there are
    /// more, messages use them round-robin.
    pub(crate) fn plain(qps: u8, split: bool, rails: usize) -> Self {
        let qps = usize::from(qps.max(1));
        let stripes = if split { qps.min(MAX_RAILS / rails.clamp(1, MAX_RAILS)) } else { 1 };
        Self { stripes, turns: qps.div_ceil(stripes) }
    }

    /// Returns the number of queue pairs of the rail.
    pub(crate) fn qps(self) -> usize {
        self.stripes * self.turns
    }
}

/// How a connection uses its rails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Plan {
    /// One end's rails are not SOUT and SUP: all usable routes carry data, in proportion to their
    /// speeds.
    Plain,
    /// Vanilla: one rail carries all data. The other one has no queue pairs.
    Isolated(Class),
    /// Vanilla within an island, and both ends have failover: SUP carries all data, and SOUT stands
    /// in while SUP is given up.
    StandIn,
    /// Advanced, or a fixed share: both rails carry data.
    Shared(Class),
}

impl Plan {
    /// Makes the plan from the agreed terms and both ends' rails.
    pub fn new(ours: &Terms, theirs: &Terms, a: &[RailInfo], b: &[RailInfo]) -> Self {
        if !(ours.fused && theirs.fused) {
            return Self::Plain;
        }
        let failover = ours.failover && theirs.failover;
        // Without failover a port that is down is no part of the connection.
        let is_known = |rail: &&RailInfo| failover || !rail.is_down;
        let [a, b] = [a, b].map(|rails| rails.iter().filter(is_known));
        let class = route::class(ours.island_prefix_len, a, b);
        match ours.mode {
            Mode::Vanilla if ours.fixed_share => Self::Shared(class),
            Mode::Vanilla if class == Class::Intra && failover => Self::StandIn,
            Mode::Vanilla => Self::Isolated(class),
            Mode::Advanced => Self::Shared(class),
        }
    }

    /// Returns whether hints of the agent divide the messages of a connection with this plan.
    pub(crate) fn takes_hints(self, config: &Config) -> bool {
        matches!(self, Self::Shared(_)) && config.sup_share.is_none()
    }

    /// Chooses the routes between two ends from their HELLOs. `rotation` selects among equal ones.
    pub fn choose(self, policy: RoutePolicy, connector: &Hello, acceptor: &Hello, rotation: u32) -> Choice {
        match self {
            Self::Plain => route::choose(policy, &connector.rails, &acceptor.rails, rotation),
            Self::Isolated(_) | Self::StandIn | Self::Shared(_) => {
                route::choose_roles(&connector.rails, &acceptor.rails)
            }
        }
    }

    /// Returns whether rails with this role get queue pairs.
    pub(crate) fn joins(self, role: RailRole) -> bool {
        self == Self::StandIn || self.requires(role)
    }

    /// Returns whether a connection without a rail with this role is degraded from the beginning.
    pub(crate) fn requires(self, role: RailRole) -> bool {
        self.home().is_none_or(|home| role == home)
    }

    /// Returns the rail that carries all data as long as it works, if the plan has one.
    pub(crate) fn home(self) -> Option<RailRole> {
        match self {
            Self::Plain | Self::Shared(_) => None,
            Self::Isolated(Class::Intra) | Self::StandIn => Some(RailRole::SUP),
            Self::Isolated(Class::Inter) => Some(RailRole::SOUT),
        }
    }

    /// Returns the rails that carry data as long as they work, for a connection whose rails have
    /// these roles.
    pub(crate) fn carriers(self, roles: &[RailRole]) -> RailSet {
        let home = self.home().and_then(|home| roles.iter().position(|role| *role == home));
        home.map_or(RailSet::first(roles.len().min(MAX_RAILS)), RailSet::of)
    }

    /// Returns the rail that carries CTS writes if the connection has it.
    pub(crate) fn cts(self) -> RailRole {
        self.home().unwrap_or(RailRole::SOUT)
    }

    /// Returns the stripes of a rail with this role, when the connection uses `rails` rails.
    pub(crate) fn stripes(self, terms: &Terms, role: RailRole, rails: usize) -> Stripes {
        match self {
            Self::Plain => Stripes::plain(terms.plain_qps, terms.plain_split, rails),
            Self::Isolated(_) | Self::StandIn | Self::Shared(_) => {
                let turns = terms.qps.get(usize::from(role.index())).map_or(1, |n| (*n).into());
                Stripes { stripes: 1, turns }
            }
        }
    }
}

/// The wording of log lines.
impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Plain => f.write_str("plain rails"),
            Self::Isolated(class) => write!(f, "{class}, all on one rail"),
            Self::StandIn => write!(f, "{}, all on one rail, another one stands in", Class::Intra),
            Self::Shared(class) => write!(f, "{class}, split"),
        }
    }
}

/// Returns the speed in Mb/s that transfers of a device can reach. Plain rails add up. SOUT and SUP
/// add up in advanced mode, and with a fixed share that uses both. In vanilla mode the faster one
/// counts, because a connection uses only one.
pub(crate) fn speed(device: &Device, config: &Config) -> u32 {
    let speed = |rail: usize| device.speed_of(RailSet::of(rail));
    match (config.sup_share, config.mode) {
        (Some(0), _) if device.is_sout_sup => speed(0),
        (Some(SHARE_ONE..), _) if device.is_sout_sup => speed(1),
        (None, Mode::Vanilla) if device.is_sout_sup => speed(0).max(speed(1)),
        _ => device.speed_of(RailSet::first(device.rails.len())),
    }
}

/// Returns how many connections the HCAs of a device have queues for. On each rail a flush needs
/// one more queue pair. Each stripe has one SRQ at a receiver. The stripes of a rail share a
/// completion queue.
pub(crate) fn max_connections(device: &Device, config: &Config) -> u32 {
    let flush = usize::from(device.rails.iter().any(|nic| nic.flushes(config)));
    // A peer may use fewer rails, which then get more stripes.
    let plain = (1..=device.rails.len()).map(|n| Stripes::plain(config.ib_qps, config.ib_split, n));
    let widest = |of: fn(Stripes) -> usize| plain.clone().map(of).max().unwrap_or(1);
    let of_rail = |rail: usize| match rail {
        _ if !device.is_sout_sup => (widest(Stripes::qps), widest(|s| s.stripes)),
        0 => (usize::from(config.sout_qp), 1),
        _ => (usize::from(config.sup_qp), 1),
    };
    let most = |(rail, nic): (usize, &Arc<Nic>)| {
        let (qps, stripes) = of_rail(rail);
        most_on(nic.limits(), nic.has_srq().is_ok(), qps + flush, stripes)
    };
    let fewest = device.rails.iter().enumerate().map(most).min().unwrap_or(0);
    u32::try_from(fewest).unwrap_or(u32::MAX)
}

/// Returns how many connections an HCA has queues for, if each needs so many queue pairs and
/// stripes there.
fn most_on(limits: &DeviceLimits, has_srq: bool, qps: usize, stripes: usize) -> usize {
    let srqs = if has_srq { limits.max_srq } else { u32::MAX };
    let each_own = limits.max_cqe as usize / stripes.max(1) < STRIPE_COMPLETIONS;
    let cqs = if each_own { stripes } else { 1 };
    let needs = [(limits.max_qp, qps), (limits.max_cq, cqs), (srqs, stripes)];
    needs.into_iter().map(|(has, each)| has as usize / each.max(1)).min().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::verbs::open_all;

    #[test]
    fn the_scarcest_queues_limit_the_connections() {
        crate::connect::tests::ports();
        let devices = open_all().unwrap();
        let context = devices.into_iter().find_map(|(_, context)| context.ok()).unwrap();
        let mut limits = context.limits().unwrap();
        (limits.max_qp, limits.max_cq, limits.max_srq) = (1000, 300, 100);
        let (shallow, deep) = (2 * STRIPE_COMPLETIONS as u32 - 1, 4 * STRIPE_COMPLETIONS as u32);
        for (has_srq, qps, stripes, max_cqe, most) in [
            (true, 4, 1, deep, 100),
            (true, 20, 1, deep, 50),
            (true, 4, 4, deep, 25),
            (false, 3, 1, deep, 300),
            (false, 3, 2, deep, 300),
            (false, 4, 4, deep, 250),
            (false, 4, 2, shallow, 150),
        ] {
            limits.max_cqe = max_cqe;
            assert_eq!(most_on(&limits, has_srq, qps, stripes), most, "{qps} queue pairs, {stripes} stripes");
        }
        limits.max_srq = 0;
        assert_eq!(most_on(&limits, false, 5, 1), 200);
    }
}
