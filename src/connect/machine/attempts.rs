//! The routes that a handshake tries, their order, and the reports on those that do not work.
//!
//! Both ends know both HELLOs and, after each attempt, both masks of PROBED. They therefore choose
//! the same next attempt and the same routes for the connection without another message.
//!
//! An end may refuse a route without a probe, by what its kernel or an earlier connection knows of
//! it. Such knowledge may be wrong or old. If nothing works, the last attempt therefore repeats the
//! first one, and all its routes are probed.
//!
//! With `MPIB_ROUTE=any` the first HELLOs list the requested rails alone. If none of their routes
//! works and an end has other ports, each end sends a second HELLO with all ports of its process,
//! and the attempts go on.

use super::{Sought, Stripes};
use mpib_proto::{
    Ends, Hello, MAX_RAILS, MAX_SEARCH, NO_ANSWER, PORT_CHANGED, RailInfo, RailRole, Role, SRQ_FAILED,
};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::route::{Choice, Class, End, Route, is_disjoint, is_unrouted, joined};
use crate::split::{self, Plan};

/// The routes of one handshake.
#[derive(Debug)]
pub(crate) struct Attempts {
    role: Role,
    hellos: Ends<Hello>,
    /// The plan that both HELLOs result in.
    pub(crate) plan: Plan,
    choice: Choice,
    /// Routes of the current attempt.
    current: Vec<Route>,
    /// Routes that have answered a search, for the next attempts, the best first.
    found: Vec<Route>,
    /// Routes that a search has yet to try, the best first.
    later: Vec<Route>,
    /// Routes that do not work, with the reason.
    failed: Vec<(Route, String)>,
    /// Those of them for which the kernel of an end has no route, which are no faults.
    unrouted: Vec<Route>,
    /// Whether a route that failed may work later: its port has changed meanwhile, or nothing answers.
    may_heal: bool,
    /// Whether an attempt without any working route precedes the current one.
    repeated: bool,
    /// How many of them precede the routes of the connection.
    preceding: usize,
    /// Whether one of those failed for another reason than that the kernel has no route.
    faulty: bool,
    /// Whether no other attempt follows: all its routes are tried.
    last: bool,
    /// Routes that were tried again because shared receive queues had failed on them.
    without_srq: Vec<Route>,
    /// Whether the HELLOs list all ports.
    complete: bool,
    /// Whether a route has failed by its probe.
    pub(super) unanswered: bool,
}

/// Why a route does not work.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    pub(super) why: String,
    /// Whether the reason at one of the ends is that its kernel has no route to the peer's address:
    /// a property of the network, and no fault.
    pub(super) unrouted: bool,
    /// Whether a receive in the acceptor's shared receive queue failed. The acceptor uses none from
    /// then on.
    pub(super) srq: bool,
    /// Whether the port of an end has changed meanwhile: its link may have been down.
    pub(super) changed: bool,
    /// Whether no packet has got through.
    pub(super) silent: bool,
    /// Whether a verbs call failed at one of the ends. Its error says what to do.
    pub(super) refused: bool,
}

impl Failure {
    /// Returns the failure of a route with the reasons of this end and of the peer.
    pub(super) fn new(role: Role, local: Option<String>, reported: Option<String>) -> Self {
        let begins = |with: &str| local.iter().chain(&reported).any(|why| why.starts_with(with));
        let (changed, silent, refused) = (begins(PORT_CHANGED), begins(NO_ANSWER), begins("ibv_"));
        let unrouted = local.iter().chain(&reported).any(|why| is_unrouted(why));
        let of_acceptor = if role == Role::Acceptor { &local } else { &reported };
        let srq = of_acceptor.as_ref().is_some_and(|why| why.starts_with(SRQ_FAILED));
        let remote = reported.map(|reason| format!("reported by the peer: {reason}"));
        let why = [local, remote].into_iter().flatten().collect::<Vec<_>>().join("; ");
        Self { why, unrouted, srq, changed, silent, refused }
    }
}

/// What follows an attempt or a search.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The connection uses these routes: indices into the attempt's.
    Keep(Vec<usize>),
    /// The same routes are tried again: shared receive queues have failed on these.
    Repeat(Vec<Route>),
    /// Some routes work. They are tried again, with other addresses in place of those that do not.
    Replace,
    /// No route works. There is another attempt.
    Retry,
    /// No route works. A search shows which others answer.
    Search,
    /// No route works, and the ends have not listed all their ports.
    List,
    /// No route works, and none is left.
    GiveUp,
}

/// A rail of the connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Member {
    /// A stripe that works, by its index in the attempt.
    Works {
        /// Its route.
        route: Route,
        /// The index.
        stripe: usize,
    },
    /// A stripe without queue pairs: its rail does not work. Both ends make it once it does.
    Dead {
        /// Its route, by the addresses that both ends had when they began.
        route: Route,
        /// The number of its queue pairs.
        queues: usize,
        /// The peer's rail.
        peer: Box<RailInfo>,
        /// Why it does not work.
        why: String,
    },
}

impl Member {
    pub(crate) fn route(&self) -> &Route {
        match self {
            Self::Works { route, .. } | Self::Dead { route, .. } => route,
        }
    }
}

/// A rail of this end that the connection expects and does not have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LeftOut {
    /// HCA and port.
    pub(crate) name: String,
    pub(crate) role: RailRole,
    /// Why the connection does not have it.
    pub(crate) why: String,
}

/// A report on a device and the peer's host, to be logged for the first such connection only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Whether a failure is the cause: a warning. Otherwise the line is informational.
    pub(crate) fault: bool,
    pub(crate) text: String,
    /// A second line, always informational.
    pub(crate) more: Option<String>,
}

impl Attempts {
    /// Chooses the routes of the first attempt from the first HELLOs. There may be none, if not all
    /// ports are listed: [`extend`](Self::extend) follows then.
    ///
    /// # Errors
    /// No pair of rails is a route. The text has every pair and the reason.
    pub(crate) fn new(role: Role, local: Hello, remote: Hello, peer: &str) -> Result<Self> {
        let hellos = Ends::new(role, local, remote);
        let Ends { connector, acceptor } = &hellos;
        let plan = Plan::new(&connector.terms, &acceptor.terms, &connector.rails, &acceptor.rails);
        let choice = plan.choose(connector.terms.route, connector, acceptor, connector.rotation);
        let complete = !connector.others && !acceptor.others;
        let mut attempts = Self {
            role,
            hellos,
            plan,
            choice,
            current: Vec::new(),
            found: Vec::new(),
            later: Vec::new(),
            failed: Vec::new(),
            unrouted: Vec::new(),
            may_heal: false,
            repeated: false,
            preceding: 0,
            faulty: false,
            last: false,
            without_srq: Vec::new(),
            unanswered: false,
            complete,
        };
        attempts.start(peer)?;
        Ok(attempts)
    }

    /// Begins the first attempt, if there is a route for it.
    fn start(&mut self, peer: &str) -> Result<()> {
        if self.choice.first.is_empty() && self.complete && !self.may_wait() {
            return Err(Error::Usage(format!("no rail reaches {peer}: {}", self.table())));
        }
        let mut first = self.in_order(&self.choice.first);
        self.current = self.take_attempt(&mut first);
        self.later = self.in_order(&[first, self.choice.rest.clone()].concat());
        self.last = self.later.is_empty() && self.complete;
        Ok(())
    }

    /// Goes on with the second HELLOs, which list all ports.
    ///
    /// # Errors
    /// The peer's second HELLO contradicts its first; no pair of rails is a route.
    pub(super) fn extend(&mut self, local: Hello, remote: Hello, peer: &str) -> Result<()> {
        let before = self.remote();
        if remote.terms != before.terms
            || !remote.rails.starts_with(&before.rails)
            || remote.others
            || remote.wiring_follows
        {
            let what = format!("{peer} sent a second HELLO that contradicts its first one");
            return Err(Error::Protocol(what));
        }
        self.hellos = Ends::new(self.role, local, remote);
        self.complete = true;
        let Ends { connector, acceptor } = &self.hellos;
        self.choice = self.plan.choose(connector.terms.route, connector, acceptor, connector.rotation);
        if self.failed.is_empty() {
            return self.start(peer);
        }
        let all = [&self.choice.first[..], &self.choice.rest].concat();
        let failed = |route: &Route| self.failed.iter().any(|(failed, _)| failed == route);
        let is_later = |route: &&Route| self.later.contains(route) || !failed(route);
        let later: Vec<Route> = all.iter().filter(is_later).copied().collect();
        self.later = self.in_order(&later);
        Ok(())
    }

    /// Returns what follows: the attempt with what a search has found, a search, or the last attempt.
    pub(super) fn advance(&mut self) -> Next {
        let mut routes = std::mem::take(&mut self.found);
        if routes.is_empty() {
            if !self.complete {
                return Next::List;
            }
            if !self.later.is_empty() {
                return Next::Search;
            }
            self.last = true;
            routes = self.in_order(&self.choice.first);
        }
        self.current = self.take_attempt(&mut routes);
        self.found = routes;
        Next::Retry
    }

    /// Returns the routes of the next search.
    pub(super) fn next_search(&self) -> &[Route] {
        &self.later[..self.later.len().min(MAX_SEARCH)]
    }

    /// Describes the next search to the driver.
    pub(super) fn sought(&self) -> Sought {
        let routes = self.next_search().to_vec();
        Sought { routes, rails: self.remote().rails.clone(), host: self.remote().host.clone() }
    }

    /// Ends a search. `each` has for each of its routes whether the route answers, or why not; `None`
    /// stays open.
    pub(super) fn searched(&mut self, each: Vec<Option<Result<(), Failure>>>) -> Next {
        let sought: Vec<Route> = self.later.drain(..each.len().min(self.later.len())).collect();
        let mut open = Vec::new();
        for (route, result) in sought.into_iter().zip(each) {
            match result {
                None => open.push(route),
                Some(Ok(())) => {
                    if let Some(i) = self.failed.iter().position(|(failed, _)| *failed == route) {
                        self.failed.remove(i);
                        self.preceding -= usize::from(i < self.preceding);
                    }
                    self.found.push(route);
                }
                Some(Err(failure)) => self.fail(route, failure, self.found.is_empty()),
            }
        }
        self.later.splice(..0, open);
        self.advance()
    }

    /// Returns whether the plan uses the rails of a route.
    fn joins(&self, route: &Route) -> bool {
        self.plan.joins(self.hellos.connector.rails[route.rails.connector].role)
    }

    /// Moves the routes that the plan does without to the end: they are tried after all others have
    /// failed.
    fn in_order(&self, routes: &[Route]) -> Vec<Route> {
        let (joined, others): (Vec<Route>, Vec<Route>) = routes.iter().partition(|r| self.joins(r));
        [joined, others].concat()
    }

    /// Takes the routes of an attempt: the best one and, as far as a connection has room, those that
    /// share no rail with it and that the plan treats alike.
    fn take_attempt(&self, routes: &mut Vec<Route>) -> Vec<Route> {
        let Some(best) = routes.first().copied() else { return Vec::new() };
        let most = self.choice.width.min(MAX_RAILS / self.layout(&best).stripes);
        let mut taken: Vec<Route> = Vec::new();
        routes.retain(|route| {
            let fits = self.joins(route) == self.joins(&best) && taken.len() < most;
            let takes = fits && is_disjoint(&taken, route);
            if takes {
                taken.push(*route);
            }
            !takes
        });
        taken
    }

    /// Returns the layout of a route's queue pairs. It does not depend on the number of routes that
    /// work.
    fn layout(&self, route: &Route) -> split::Stripes {
        self.plan.stripes(&self.local().terms, self.rail_role(route), self.choice.width)
    }

    /// Returns the routes of the current attempt.
    pub(crate) fn current(&self) -> &[Route] {
        &self.current
    }

    /// Returns whether the current attempt is the last one: all its routes are tried.
    pub(crate) fn is_last(&self) -> bool {
        self.last
    }

    /// Returns the stripes of the current attempt.
    pub(crate) fn stripes(&self) -> Stripes {
        let stripes = |r: &Route| vec![(*r, self.layout(r).turns.max(1)); self.layout(r).stripes];
        Stripes { each: self.current.iter().flat_map(stripes).collect(), has_mailbox: self.has_mailbox() }
    }

    /// Ends the current attempt. `works` has for each of its routes whether the route works at both
    /// ends; `why` returns the reason of one that does not.
    pub(super) fn conclude(&mut self, works: &[bool], why: impl Fn(usize) -> Failure) -> Next {
        let failures: Vec<Option<Failure>> =
            works.iter().enumerate().map(|(i, works)| (!works).then(|| why(i))).collect();
        let of_srq = self.current.iter().zip(&failures).filter(|(route, failure)| {
            failure.as_ref().is_some_and(|failure| failure.srq) && !self.without_srq.contains(route)
        });
        let of_srq: Vec<Route> = of_srq.map(|(route, _)| *route).collect();
        if !of_srq.is_empty() {
            self.without_srq.extend(&of_srq);
            return Next::Repeat(of_srq);
        }
        let kept = self.choice.keep(&self.current, |i| works[i]);
        let mut silent = Vec::new();
        for ((i, route), failure) in self.current.clone().iter().enumerate().zip(failures) {
            let Some(failure) = failure else { continue };
            silent.extend((failure.silent && !self.last).then_some(*route));
            self.fail(*route, failure, kept.first().is_none_or(|first| i < *first));
        }
        if !kept.is_empty() {
            return if self.replace(works, &kept) { Next::Replace } else { Next::Keep(kept) };
        }
        if self.last {
            return Next::GiveUp;
        }
        // Their first packet may have been lost.
        if !self.repeated {
            self.later.splice(..0, silent);
        }
        self.repeated = true;
        self.advance()
    }

    /// Notes that a route does not work. `precedes`: no better one does.
    fn fail(
        &mut self,
        route: Route,
        Failure { why, unrouted, changed, silent, refused, .. }: Failure,
        precedes: bool,
    ) {
        self.unanswered |= !refused;
        if unrouted && !self.unrouted.contains(&route) {
            self.unrouted.push(route);
        }
        self.may_heal |= changed || (silent && self.is_expected(&route));
        match self.failed.iter_mut().find(|(failed, _)| *failed == route) {
            Some((_, before)) if self.last => *before += &format!("; tried nevertheless: {why}"),
            Some(_) => {}
            None => self.failed.push((route, why)),
        }
        if precedes {
            self.preceding = self.failed.len();
            self.faulty |= !unrouted;
        }
    }

    /// Begins an attempt that has the routes to keep, and for rails whose route has failed the next
    /// addresses, if there are any.
    fn replace(&mut self, works: &[bool], kept: &[usize]) -> bool {
        let mut next: Vec<Route> = kept.iter().map(|i| self.current[*i]).collect();
        for (_, failed) in self.current.iter().enumerate().filter(|(i, _)| !works[*i]) {
            let alternate = self.later.iter().position(|r| r.rails == failed.rails);
            let fits = |i: &usize| next.len() < self.choice.width && is_disjoint(&next, &self.later[*i]);
            if let Some(i) = alternate.filter(fits) {
                next.push(self.later.remove(i));
            }
        }
        if next.len() == kept.len() {
            return false;
        }
        next.sort_by_key(|r| r.rails.connector);
        self.current = next;
        true
    }

    /// Returns whether both ends carry on without a rail that does not work.
    pub(crate) fn has_failover(&self) -> bool {
        self.hellos.connector.terms.failover && self.hellos.acceptor.terms.failover
    }

    /// Returns whether a rail may work later although none does now: a port is not active or has
    /// changed meanwhile, or nothing answers on a route.
    pub(super) fn may_wait(&self) -> bool {
        self.has_failover() && self.complete && (self.may_heal || !self.choice.down.is_empty())
    }

    /// Returns whether a route is expected to work: it was requested, and no kernel lacks it.
    fn is_expected(&self, route: &Route) -> bool {
        route.requested == 2 && !self.unrouted.contains(route)
    }

    /// Returns the rails that the connection begins without and uses once they work, beside the `kept`
    /// ones: those that have failed, and those whose port is down. They are expected to
    /// work.
    pub(super) fn dead(&self, kept: &[Route]) -> Vec<Route> {
        let mut all = kept.to_vec();
        let failed = self.failed.iter().map(|(route, _)| *route);
        let failed = failed.filter(|route| self.is_expected(route));
        for route in failed.chain(self.choice.down.iter().copied()).filter(|_| self.has_failover()) {
            if self.joins(&route) && all.len() < self.choice.width && is_disjoint(&all, &route) {
                all.push(route);
            }
        }
        all.split_off(kept.len())
    }

    /// Returns the rails of the connection in order: the `kept` routes of the attempt, whose stripes
    /// work, and those that it begins without.
    pub(super) fn members(&self, kept: &[usize]) -> Vec<Member> {
        let routes: Vec<Route> = kept.iter().map(|i| self.current[*i]).collect();
        let each = |route: &Route| self.layout(route).stripes;
        let first = |i: usize| self.current[..i].iter().map(each).sum::<usize>();
        let mut members = Vec::new();
        for (i, route) in kept.iter().zip(&routes) {
            members.extend((0..each(route)).map(|n| Member::Works { route: *route, stripe: first(*i) + n }));
        }
        for route in self.dead(&routes) {
            let queues = self.layout(&route).turns.max(1);
            let peer = self.remote().rails[*route.rails.remote(self.role)].clone();
            let dead = Member::Dead { route, queues, peer: Box::new(peer), why: self.why(&route) };
            members.extend(vec![dead; each(&route)]);
        }
        // The stripes of a rail stay in order.
        members.sort_by_key(|member| member.route().rails.connector);
        members
    }

    /// Returns the rails of this end that the plan requires and that are no members, with the reasons.
    pub(super) fn left_out(&self, members: &[Member]) -> Vec<LeftOut> {
        let (end, mut left) = (self.local(), Vec::new());
        let is_wanted = |requested: bool, role| requested && self.plan.requires(role);
        let of = |route: &Route| *route.rails.local(self.role);
        for (i, rail) in end.rails.iter().enumerate().filter(|(_, rail)| is_wanted(rail.requested, rail.role))
        {
            if members.iter().any(|member| of(member.route()) == i) {
                continue;
            }
            let failed = self.failed.iter().find(|(route, _)| of(route) == i);
            let why =
                failed.map_or_else(|| self.choice.why_unmatched(&self.ends(), self.role, i), |f| f.1.clone());
            left.push(LeftOut { name: rail.name.clone(), role: rail.role, why });
        }
        let unusable = end.unusable.iter().filter(|rail| is_wanted(rail.requested, rail.role));
        left.extend(unusable.map(|rail| LeftOut {
            name: rail.name.clone(),
            role: rail.role,
            why: rail.why.clone(),
        }));
        left
    }

    /// Returns why a route does not work.
    fn why(&self, route: &Route) -> String {
        let failed = self.failed.iter().find(|(failed, _)| failed == route);
        failed.map_or_else(|| route.down(&self.ends()), |(_, why)| why.clone())
    }

    /// Returns whether the connection has a mailbox if it has the routes of this attempt: two routes
    /// join different pairs of rails, so one can carry the control frames about the other.
    fn has_mailbox(&self) -> bool {
        let dead = self.dead(&self.current);
        let mut all = self.current.iter().chain(&dead);
        all.next().is_some_and(|first| all.any(|route| route.rails != first.rails))
    }

    /// Returns every pair of rails with the reason why the connection does not use it.
    pub(crate) fn table(&self) -> String {
        self.choice.table(&self.ends(), &self.failed)
    }

    fn rail_role(&self, route: &Route) -> RailRole {
        self.hellos.connector.rails[route.rails.connector].role
    }

    fn local(&self) -> &Hello {
        self.hellos.local(self.role)
    }

    /// Returns the peer's HELLO.
    pub(crate) fn remote(&self) -> &Hello {
        self.hellos.remote(self.role)
    }

    /// Returns this end's rail of a route.
    fn local_rail(&self, route: &Route) -> &RailInfo {
        &self.local().rails[*route.rails.local(self.role)]
    }

    fn ends(&self) -> Ends<End<'_>> {
        self.hellos.as_ref().map(End::from)
    }

    /// Returns a warning that names the requested rails without a route.
    ///
    /// # Errors
    /// `MPIB_STRICT=1`: the same text.
    pub(crate) fn unreached(&self, config: &Config, peer: &str) -> Result<Option<String>> {
        let missing = self.choice.unmatched(&self.ends(), |role| self.plan.requires(role));
        self.degraded(config, &format!("rails without a route to {peer}"), &missing, &self.current)
    }

    /// Returns a warning that names the routes that do not work; `kept` are those of the
    /// connection, or of the next attempt.
    ///
    /// # Errors
    /// `MPIB_STRICT=1`: the same text.
    pub(crate) fn broken(&self, config: &Config, peer: &str, kept: &[Route]) -> Result<Option<String>> {
        let row = |(route, why): &(Route, String)| format!("{}: {why}", route.describe(&self.ends()));
        let failed: Vec<String> = self.failed.iter().map(row).collect();
        self.degraded(config, &format!("rails that do not work to {peer}"), &failed, kept)
    }

    fn degraded(
        &self,
        config: &Config,
        what: &str,
        missing: &[String],
        kept: &[Route],
    ) -> Result<Option<String>> {
        if missing.is_empty() {
            return Ok(None);
        }
        let mut what = format!("{what}: {}", joined(missing));
        let has_home = |home: &RailRole| kept.iter().any(|r| self.rail_role(r) == *home);
        if let Some(home) = self.plan.home().filter(|home| !has_home(home)) {
            let class = if home == RailRole::SUP { Class::Intra } else { Class::Inter };
            what += &format!("; {class} data belongs on {home} (MPIB_MODE=0)");
        }
        let what = config.degraded(what)?;
        let name = |r: &Route| match self.local().terms.fused {
            true => self.local_rail(r).role.to_string(),
            false => self.local_rail(r).name.clone(),
        };
        let named = |routes: &[Route]| routes.iter().map(name).collect::<Vec<_>>().join(", ");
        let (dead, kept) = (self.dead(kept), named(kept));
        let back = if dead.is_empty() { String::new() } else { format!(" until {} works", named(&dead)) };
        Ok(Some(format!("{what}; the connection goes on with {kept} alone{back}")))
    }

    /// Returns whether these routes use a rail of this end that NCCL did not request.
    pub(crate) fn is_substitute(&self, kept: &[Route]) -> bool {
        kept.iter().any(|r| !self.local_rail(r).requested)
    }

    /// Returns whether the connection has fewer routes than the attempt, and the attempt is not a
    /// replacement for another one.
    pub(crate) fn is_partial(&self, works: &[bool]) -> bool {
        works.contains(&false) && (self.plan != Plan::Plain || !self.repeated)
    }

    /// Returns a report if a rail that NCCL did not request carries the connection, or if a better
    /// route failed.
    ///
    /// # Errors
    /// `MPIB_STRICT=1` and a failure is the cause: the same text.
    pub(crate) fn substitution(
        &self,
        config: &Config,
        device: &str,
        peer: &str,
        kept: &[Route],
    ) -> Result<Option<Report>> {
        let Some(chosen) = kept.first() else { return Ok(None) };
        let substitute = self.is_substitute(kept);
        let fault =
            self.faulty || (substitute && self.local().unusable.iter().any(|unusable| unusable.requested));
        if !fault && !substitute {
            return Ok(None);
        }
        let how = self.choice.substitution(&self.ends(), chosen, &self.failed[..self.preceding]);
        let what = format!("a connection of {device} with {peer}");
        if fault {
            config.degraded(format!("{what} {}", how.whole()))?;
        }
        let text = format!(
            "{what} {}. Further connections of the two are only counted; MPIB_ROUTE=strict refuses them",
            how.short()
        );
        let more = how.others().map(|others| format!("{what} does not use: {others}"));
        Ok(Some(Report { fault, text, more }))
    }
}
