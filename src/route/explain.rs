//! The texts about routes, for the log, for errors and for `mpib doctor`.

use std::fmt::Display;

use mpib_proto::{Ends, LinkLayer, NOT_TRIED, RailInfo, RailRole, Role, RoutePolicy, UnusableRail};

use super::address::{gid_addr, link_local, may_share};
use super::choice::{Choice, End, Refused, Route};
use super::kernel::is_unrouted;
use crate::device::INACTIVE;

/// Most bytes of a text about the pairs of rails. A peer chooses the names and reasons of its rails,
/// and two ends may have 1,024 pairs.
const TEXT_MAX: usize = 8 << 10;

/// Joins reasons, as many as a text has room for.
pub(crate) fn joined(reasons: &[String]) -> String {
    let mut bytes = 0;
    let fits = |reason: &&String| {
        bytes += reason.len();
        bytes <= TEXT_MAX
    };
    let shown: Vec<&str> = reasons.iter().take_while(fits).map(String::as_str).collect();
    match reasons.len() - shown.len() {
        0 => shown.join("; "),
        left => format!("{}; and {left} more", shown.join("; ")),
    }
}

/// Returns why a pair without a common subnet is refused.
pub(super) fn no_subnet(policy: RoutePolicy) -> String {
    format!(
        "no common subnet, which MPIB_ROUTE={policy} requires; if routers join the two, set MPIB_ROUTE=any"
    )
}

/// Returns the reason of a route that an end does not try; `why` is known of it.
pub(crate) fn untried(why: impl Display) -> String {
    format!("{NOT_TRIED}{why}")
}

/// Returns whether an end has not tried a route, by the reason in its PROBED.
pub(crate) fn is_untried(reason: &str) -> bool {
    reason.starts_with(NOT_TRIED) || is_unrouted(reason)
}

/// Names a rail and the address that the route uses.
fn rail(info: &RailInfo, addr: usize) -> String {
    match (info.link_layer, info.addrs.get(addr)) {
        (LinkLayer::Ethernet, Some(addr)) => {
            let prefix = if addr.prefix_len == 0 { String::new() } else { format!("/{}", addr.prefix_len) };
            format!("{} ({}{prefix})", info.name, gid_addr(addr.gid))
        }
        _ => info.name.clone(),
    }
}

impl Route {
    /// Names both rails, the connector's first: "mlx5_0:1 (10.0.1.1/24) to mlx5_2:1 (10.0.1.2/24)".
    pub fn describe(&self, ends: &Ends<End<'_>>) -> String {
        let (c, a) = (&ends.connector.rails[self.rails.connector], &ends.acceptor.rails[self.rails.acceptor]);
        format!("{} to {}", rail(c, self.addrs.connector), rail(a, self.addrs.acceptor))
    }

    /// Names the ports of the route that are not active.
    pub(crate) fn down(&self, ends: &Ends<End<'_>>) -> String {
        let of = |role: Role| (role, &ends.local(role).rails[*self.rails.local(role)]);
        let is_down = |(_, rail): &(Role, &RailInfo)| rail.is_down;
        let named = |(role, rail): (Role, &RailInfo)| format!("the {role}'s {}: {INACTIVE}", rail.name);
        joined(&Role::ALL.into_iter().map(of).filter(is_down).map(named).collect::<Vec<_>>())
    }

    /// Returns why the route is preferred to others.
    pub(crate) fn why(&self, ends: &Ends<End<'_>>) -> String {
        let subnet = self.subnet(ends);
        match (self.requested, self.one_subnet) {
            (2, true) => format!("both rails were requested and {subnet}"),
            (1, true) => format!("they {subnet}, and one of them was requested"),
            (2, false) => format!("both rails were requested; they {subnet}"),
            (1, false) => format!("one of them was requested; they {subnet}"),
            _ => format!("they {subnet}"),
        }
    }

    /// Describes how the networks of the two addresses are joined, as far as both ends know.
    fn subnet(&self, ends: &Ends<End<'_>>) -> &'static str {
        let (c, a) = (&ends.connector.rails[self.rails.connector], &ends.acceptor.rails[self.rails.acceptor]);
        let addrs = c.addrs.get(self.addrs.connector).zip(a.addrs.get(self.addrs.acceptor));
        match addrs.filter(|_| c.link_layer == LinkLayer::Ethernet) {
            _ if self.one_subnet => "share a subnet",
            Some((x, y)) if link_local(x) && link_local(y) => {
                "have link-local addresses, which reach each other on one link only, such as a cable"
            }
            Some((x, y)) if may_share(x, y) => {
                "may share a subnet: no network interface of one of the hosts has its address, so its prefix is unknown"
            }
            _ => "share no subnet, and routers must join them",
        }
    }
}

/// Names the unusable rails of both ends that are `wanted`.
fn unusable(ends: &Ends<End<'_>>, wanted: impl Fn(&UnusableRail) -> bool, by_role: bool) -> Vec<String> {
    let named = |end: Role, unusable: &UnusableRail| {
        let part = if by_role { format!("{} ", unusable.role) } else { String::new() };
        format!("the {end}'s {part}{}: {}", unusable.name, unusable.why)
    };
    let of = |end: Role| ends.local(end).unusable.iter().filter(|l| wanted(l)).map(move |l| named(end, l));
    Role::ALL.into_iter().flat_map(of).collect()
}

fn row(ends: &Ends<End<'_>>, refused: &Refused) -> String {
    let (c, a) =
        (&ends.connector.rails[refused.rails.connector], &ends.acceptor.rails[refused.rails.acceptor]);
    format!("{} to {}: {}", c.name, a.name, refused.why)
}

/// Why a connection uses other rails than the requested ones, or not the preferred addresses.
#[derive(Debug)]
pub struct Substitution {
    /// The route that it uses.
    how: String,
    /// Why not each better one: the requested ones first.
    why: Vec<String>,
}

impl Substitution {
    /// Returns one sentence, with the first reason and the number of the others.
    pub(crate) fn short(&self) -> String {
        let Self { how, why } = self;
        let first = why.first().map_or("", String::as_str);
        match why.len() {
            0 | 1 => format!("{how}: {first}"),
            n => format!("{how}: {first}; other reasons at INFO: {}", n - 1),
        }
    }

    /// Returns the reasons that [`short`](Self::short) counts, if there are any.
    pub(crate) fn others(&self) -> Option<String> {
        self.why.get(1..).filter(|others| !others.is_empty()).map(joined)
    }

    /// Returns all reasons.
    pub fn whole(&self) -> String {
        format!("{}: {}", self.how, joined(&self.why))
    }
}

impl Choice {
    /// Names the requested rails of both ends that have no route, each with its reasons, as far as
    /// their role is `wanted`. None if other rails substitute them: see
    /// [`substitution`](Self::substitution).
    pub fn unmatched(&self, ends: &Ends<End<'_>>, wanted: impl Fn(RailRole) -> bool) -> Vec<String> {
        if self.first.iter().any(|r| r.requested < 2) {
            return Vec::new();
        }
        let mut out = unusable(ends, |l| l.requested && wanted(l.role), self.by_role);
        out.extend(Role::ALL.into_iter().flat_map(|end| self.unmatched_at(ends, end, &wanted)));
        out
    }

    /// Names those of one end.
    fn unmatched_at(
        &self,
        ends: &Ends<End<'_>>,
        name: Role,
        wanted: &impl Fn(RailRole) -> bool,
    ) -> Vec<String> {
        let (end, other) = (ends.local(name), ends.remote(name));
        let of = |rails: &Ends<usize>| *rails.local(name);
        let is_down_there = |i: usize| !end.rails[i].is_down && self.down.iter().any(|r| of(&r.rails) == i);
        let has = |role| other.rails.iter().any(|r| r.role == role);
        let is_unusable_there = |rail: &RailInfo| {
            self.by_role && !has(rail.role) && other.unusable.iter().any(|l| l.role == rail.role)
        };
        let mut out = Vec::new();
        for (i, rail) in end.rails.iter().enumerate() {
            if !rail.requested || !wanted(rail.role) || self.first.iter().any(|r| of(&r.rails) == i) {
                continue;
            }
            if is_down_there(i) || is_unusable_there(rail) {
                // The other end's rail is in the list.
                continue;
            }
            let why = self.why_unmatched(ends, name, i);
            let part = if self.by_role && rail.is_down { format!("{} ", rail.role) } else { String::new() };
            out.push(format!("the {name}'s {part}{}: {why}", rail.name));
        }
        out
    }

    /// Returns why no route of the first attempt has a rail of an end.
    pub(crate) fn why_unmatched(&self, ends: &Ends<End<'_>>, name: Role, i: usize) -> String {
        let (rail, other) = (&ends.local(name).rails[i], ends.remote(name));
        let of = |rails: &Ends<usize>| *rails.local(name);
        if rail.is_down {
            return INACTIVE.to_owned();
        }
        if self.by_role && !other.rails.iter().any(|r| r.role == rail.role) {
            let unusable = other.unusable.iter().find(|l| l.role == rail.role);
            return unusable.map_or_else(
                || format!("the other end has no {} to offer", rail.role),
                |l| format!("the other end's {}: {}", l.name, l.why),
            );
        }
        let down = self.down.iter().filter(|r| of(&r.rails) == i);
        let mut why: Vec<String> = down.map(|r| r.down(ends)).collect();
        why.extend(self.refused.iter().filter(|r| of(&r.rails) == i).map(|r| r.why.clone()));
        let later = self.rest.iter().filter(|r| of(&r.rails) == i && r.requested == 2);
        why.extend(later.filter_map(|r| self.taken_by(ends, r)));
        why.dedup();
        if why.is_empty() { "the other end has no rail for it".to_owned() } else { joined(&why) }
    }

    /// Names the route that uses a rail of `route`.
    fn taken_by(&self, ends: &Ends<End<'_>>, route: &Route) -> Option<String> {
        let found = self.first.iter().find(|r| r.shares_a_rail(route))?.rails;
        let (c, a) = (&ends.connector.rails[found.connector], &ends.acceptor.rails[found.acceptor]);
        Some(format!(
            "the connector's {} and the acceptor's {} are a route as good or better",
            c.name, a.name
        ))
    }

    /// Returns why a connection uses `chosen`: a rail was not requested, or other routes have been
    /// `tried` before.
    pub fn substitution(
        &self,
        ends: &Ends<End<'_>>,
        chosen: &Route,
        tried: &[(Route, String)],
    ) -> Substitution {
        let mut why = unusable(ends, |l| l.requested, false);
        let requested = |pair: &Ends<usize>| {
            ends.connector.rails[pair.connector].requested && ends.acceptor.rails[pair.acceptor].requested
        };
        why.extend(tried.iter().map(|(route, why)| format!("{}: {why}", route.describe(ends))));
        let refused = self.refused.iter().filter(|r| requested(&r.rails));
        why.extend(refused.map(|r| row(ends, r)));
        let worse =
            |r: &&Route| r.requested == 2 && chosen.requested < 2 && !tried.iter().any(|(t, _)| t == *r);
        let worse = self.rest.iter().filter(worse);
        why.extend(worse.map(|r| format!("{}: no common subnet", r.describe(ends))));
        if why.is_empty() {
            why.push("nothing else can be joined".to_owned());
        }
        let instead = match chosen.requested {
            2 => "and not by the preferred addresses",
            _ => "and not as NCCL requested",
        };
        let how = format!("goes from {}, since {}, {instead}", chosen.describe(ends), chosen.why(ends));
        Substitution { how, why }
    }

    /// Lists every pair, the connector's rail first, with the reason why it is not used, and every
    /// unusable rail. For the error that no route exists, or that none of those `tried` works.
    pub fn table(&self, ends: &Ends<End<'_>>, tried: &[(Route, String)]) -> String {
        let tried_row = |(route, why): &(Route, String)| {
            let far = if route.one_subnet { "" } else { ", no common subnet" };
            format!("{}{far}: {why}", route.describe(ends))
        };
        let mut rows: Vec<String> = tried.iter().map(tried_row).collect();
        let open = self.first.iter().chain(&self.rest).filter(|r| !tried.iter().any(|(t, _)| t == *r));
        rows.extend(open.map(|r| format!("{}: not tried, the time was up", r.describe(ends))));
        rows.extend(self.down.iter().map(|r| format!("{}: {}", r.describe(ends), r.down(ends))));
        rows.extend(self.refused.iter().map(|r| row(ends, r)));
        if rows.is_empty() {
            rows.push("an end has no rail to offer".into());
        }
        rows.extend(unusable(ends, |_| true, self.by_role));
        joined(&rows)
    }
}
