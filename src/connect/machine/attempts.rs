//! The routes that a handshake tries, their order, and the reports on those that do not work.
//!
//! Both ends know both HELLOs and, after each attempt, both masks of PROBED. They therefore choose
//! the same next attempt and the same routes for the connection without another message.

use crate::config::Config;
use crate::error::{Error, Result};
use crate::policy::{Plan, Stripes};
use crate::proto::{Ends, Hello, MAX_RAILS, RailInfo, RailRole, Role};
use crate::route::{Choice, End, Route};

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
    /// Routes of later attempts, the best first.
    later: Vec<Route>,
    /// Routes that do not work, with the reason.
    failed: Vec<(Route, String)>,
    /// Whether an attempt without any working route precedes the current one.
    repeated: bool,
}

/// What follows an attempt.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The connection uses these routes: indices into the attempt's.
    Keep(Vec<usize>),
    /// No route works, and others can be tried.
    Retry,
    /// No route works, and none is left.
    GiveUp,
}

/// A report on a device and the peer's host, to be logged for the first such connection only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Report {
    /// Whether a failure is the cause: a warning. Otherwise the line is informational.
    pub(crate) fault: bool,
    pub(crate) text: String,
}

impl Attempts {
    /// Chooses the routes of the first attempt.
    ///
    /// # Errors
    /// No pair of rails is a route. The text has every pair and the reason.
    pub(crate) fn new(role: Role, local: Hello, remote: Hello, peer: &str) -> Result<Self> {
        let hellos = Ends::new(role, local, remote);
        let Ends { connector, acceptor } = &hellos;
        let plan = Plan::new(&connector.terms, &acceptor.terms, &connector.rails, &acceptor.rails);
        let choice = plan.choose(connector.terms.route, connector, acceptor, connector.rotation);
        if choice.first.is_empty() {
            let table = choice.table(&hellos.as_ref().map(End::from), &[]);
            return Err(Error::Usage(format!("no rail reaches {peer}: {table}")));
        }
        // Routes that the plan does without are tried after its own routes have failed.
        let joins = |r: &Route| plan.joins(connector.rails[r.rails.connector].role);
        let (mut current, mut later): (Vec<Route>, Vec<Route>) = choice.first.iter().partition(|r| joins(r));
        if current.is_empty() {
            std::mem::swap(&mut current, &mut later);
        }
        later.append(&mut choice.rest.clone());
        let mut attempts =
            Self { role, hellos, plan, choice, current, later, failed: Vec::new(), repeated: false };
        attempts.current.truncate(attempts.limit());
        Ok(attempts)
    }

    /// Returns the layout of a route's queue pairs. It does not depend on the number of routes that
    /// work.
    fn layout(&self, route: &Route) -> Stripes {
        self.plan.stripes(&self.local().terms, self.rail_role(route), self.choice.width)
    }

    /// Returns the number of routes that an attempt may have.
    fn limit(&self) -> usize {
        MAX_RAILS / self.current.first().map_or(1, |route| self.layout(route).stripes)
    }

    /// Returns the routes of the current attempt.
    pub(crate) fn current(&self) -> &[Route] {
        &self.current
    }

    /// Returns the stripes of the current attempt, in the order of WIRING: each with its route and
    /// its number of queue pairs.
    pub(crate) fn stripes(&self) -> Vec<(Route, usize)> {
        let stripes = |r: &Route| vec![(*r, self.layout(r).turns.max(1)); self.layout(r).stripes];
        self.current.iter().flat_map(stripes).collect()
    }

    /// Ends the current attempt. `works` has for each of its routes whether the route works at both
    /// ends; `why` returns the reason of one that does not.
    pub(crate) fn conclude(&mut self, works: &[bool], why: impl Fn(usize) -> String) -> Next {
        let failed = self.current.iter().enumerate().filter(|(i, _)| !works[*i]);
        self.failed.extend(failed.map(|(i, route)| (*route, why(i))));
        let kept = self.choice.keep(&self.current, |i| works[i]);
        if !kept.is_empty() {
            return Next::Keep(kept);
        }
        if self.later.is_empty() {
            return Next::GiveUp;
        }
        self.repeated = true;
        let next = self.later.len().min(self.limit());
        self.current = self.later.drain(..next).collect();
        Next::Retry
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
        let missing = self.choice.unmatched(&self.ends(), |role| self.plan.joins(role));
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
        let mut what = format!("{what}: {}", missing.join("; "));
        let has_home = |home: &RailRole| kept.iter().any(|r| self.rail_role(r) == *home);
        if let (Plan::Isolated(class), Some(home)) = (self.plan, self.plan.home().filter(|h| !has_home(h))) {
            what += &format!("; {class} data belongs on {home} (MPIB_MODE=0)");
        }
        let what = config.degraded(what)?;
        let name = |r: &Route| match self.local().terms.fused {
            true => self.local_rail(r).role.to_string(),
            false => self.local_rail(r).name.clone(),
        };
        let kept: Vec<String> = kept.iter().map(name).collect();
        Ok(Some(format!("{what}; the connection goes on with {} alone", kept.join(", "))))
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

    /// Returns a report if a rail that NCCL did not request carries the connection, or if an
    /// earlier attempt failed.
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
            self.repeated || (substitute && self.local().unusable.iter().any(|unusable| unusable.requested));
        if !fault && !substitute {
            return Ok(None);
        }
        let how = self.choice.substitution(&self.ends(), chosen, &self.failed);
        let what = format!("a connection of {device} with {peer} {how}");
        let what = if fault { config.degraded(what)? } else { what };
        let text = format!(
            "{what}. Further connections of the two are only counted; MPIB_ROUTE=strict refuses them"
        );
        Ok(Some(Report { fault, text }))
    }
}
