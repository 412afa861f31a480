//! What is said of routes: to the log, and to whoever asks.

use super::{Choice, End, Refused, Route, gid_addr};
use crate::proto::{Ends, LinkLayer, LostRail, RailInfo, RailRole, Role, RoutePolicy};

/// Why a pair is not tried that routers would have to join.
pub(super) fn no_subnet(policy: RoutePolicy) -> String {
    format!("no common subnet, which MPIB_ROUTE={policy} wants; where routers lead there, set MPIB_ROUTE=any")
}

/// A rail with the address that it is joined by.
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
    /// "mlx5_0:1 (10.0.1.1/24) to mlx5_2:1 (10.0.1.2/24)", the connector's rail first.
    pub fn describe(&self, ends: &Ends<End<'_>>) -> String {
        let (c, a) = (&ends.connector.rails[self.rails.connector], &ends.acceptor.rails[self.rails.acceptor]);
        format!("{} to {}", rail(c, self.addrs.connector), rail(a, self.addrs.acceptor))
    }

    /// What puts it before others.
    pub fn why(&self) -> &'static str {
        match (self.requested, self.one_subnet) {
            (2, true) => "both rails were asked for and share a subnet",
            (1, true) => "they share a subnet, and one of them was asked for",
            (_, true) => "they share a subnet",
            (2, false) => "both rails were asked for; they share no subnet, so that routers must join them",
            (1, false) => "one of them was asked for; they share no subnet, so that routers must join them",
            (_, false) => "they share no subnet, so that routers must join them",
        }
    }
}

/// The rails that cannot be used and that are `wanted`, of both ends.
fn lost(ends: &Ends<End<'_>>, wanted: impl Fn(&LostRail) -> bool, by_role: bool) -> Vec<String> {
    let named = |end: Role, lost: &LostRail| {
        let part = if by_role { format!("{} ", lost.role) } else { String::new() };
        format!("the {end}'s {part}{}: {}", lost.name, lost.why)
    };
    let of = |end: Role| ends.local(end).lost.iter().filter(|l| wanted(l)).map(move |l| named(end, l));
    Role::ALL.into_iter().flat_map(of).collect()
}

fn row(ends: &Ends<End<'_>>, refused: &Refused) -> String {
    let (c, a) =
        (&ends.connector.rails[refused.rails.connector], &ends.acceptor.rails[refused.rails.acceptor]);
    format!("{} to {}: {}", c.name, a.name, refused.why)
}

impl Choice {
    /// The rails that were asked for and have no route, of either end, each with its reasons; only those whose index in
    /// their device is `wanted`. None where other rails stand in for them, which [`instead`](Self::instead) tells.
    pub fn left_out(&self, ends: &Ends<End<'_>>, wanted: impl Fn(RailRole) -> bool) -> Vec<String> {
        if self.first.iter().any(|r| r.requested < 2) {
            return Vec::new();
        }
        let mut out = lost(ends, |l| l.requested && wanted(l.role), self.by_role);
        out.extend(Role::ALL.into_iter().flat_map(|end| self.unmatched(ends, end, &wanted)));
        out
    }

    /// Those of one end.
    fn unmatched(&self, ends: &Ends<End<'_>>, name: Role, wanted: &impl Fn(RailRole) -> bool) -> Vec<String> {
        let (end, other) = (ends.local(name), ends.remote(name));
        let of = |rails: &Ends<usize>| *rails.local(name);
        let mut out = Vec::new();
        for (i, rail) in end.rails.iter().enumerate() {
            if !rail.requested || !wanted(rail.role) || self.first.iter().any(|r| of(&r.rails) == i) {
                continue;
            }
            let why = if self.by_role && !other.rails.iter().any(|r| r.role == rail.role) {
                if other.lost.iter().any(|l| l.role == rail.role) {
                    // It was told with its reason.
                    continue;
                }
                format!("the other end has no {} to offer", rail.role)
            } else {
                let refused = self.refused.iter().filter(|r| of(&r.rails) == i);
                let mut why: Vec<String> = refused.map(|r| r.why.clone()).collect();
                let later = self.rest.iter().filter(|r| of(&r.rails) == i && r.requested == 2);
                why.extend(later.filter_map(|r| self.taken_by(ends, r)));
                why.dedup();
                if why.is_empty() { "the other end has no rail for it".to_owned() } else { why.join("; ") }
            };
            out.push(format!("the {name}'s {}: {why}", rail.name));
        }
        out
    }

    /// The route that has a rail of `route`.
    fn taken_by(&self, ends: &Ends<End<'_>>, route: &Route) -> Option<String> {
        let found = self.first.iter().find(|r| r.shares_a_rail(route))?.rails;
        let (c, a) = (&ends.connector.rails[found.connector], &ends.acceptor.rails[found.acceptor]);
        Some(format!(
            "the connector's {} and the acceptor's {} are a route as good or better",
            c.name, a.name
        ))
    }

    /// Why a connection goes by `chosen` and not by the rails that were asked for: one sentence, for when an end's rail is not
    /// one of those, or another route was tried before.
    pub fn instead(&self, ends: &Ends<End<'_>>, chosen: &Route, tried: &[(Route, String)]) -> String {
        let mut why = lost(ends, |l| l.requested, false);
        let requested = |pair: &Ends<usize>| {
            ends.connector.rails[pair.connector].requested && ends.acceptor.rails[pair.acceptor].requested
        };
        why.extend(tried.iter().map(|(route, why)| format!("{}: {why}", route.describe(ends))));
        let refused = self.refused.iter().filter(|r| requested(&r.rails));
        why.extend(refused.map(|r| row(ends, r)));
        let worse = |r: &&Route| r.requested == 2 && *r != chosen && !tried.iter().any(|(t, _)| t == *r);
        let worse = self.rest.iter().filter(worse);
        why.extend(worse.map(|r| format!("{}: no common subnet", r.describe(ends))));
        let why = if why.is_empty() { "nothing else can be joined".to_owned() } else { why.join("; ") };
        format!(
            "goes from {}, since {}, and not as NCCL asked for: {why}",
            chosen.describe(ends),
            chosen.why()
        )
    }

    /// Every pair, the connector's rail first, and why it is none; and every rail that cannot be used. For the error that no
    /// route exists, or that none of those works which were `tried`.
    pub fn table(&self, ends: &Ends<End<'_>>, tried: &[(Route, String)]) -> String {
        let tried_row = |(route, why): &(Route, String)| {
            let far = if route.one_subnet { "" } else { ", no common subnet" };
            format!("{}{far}: {why}", route.describe(ends))
        };
        let mut rows: Vec<String> = tried.iter().map(tried_row).collect();
        let open = self.first.iter().chain(&self.rest).filter(|r| !tried.iter().any(|(t, _)| t == *r));
        rows.extend(open.map(|r| format!("{}: not tried, the time was up", r.describe(ends))));
        rows.extend(self.refused.iter().map(|r| row(ends, r)));
        if rows.is_empty() {
            rows.push("an end has no rail to offer".into());
        }
        rows.extend(lost(ends, |_| true, self.by_role));
        rows.join("; ")
    }
}
