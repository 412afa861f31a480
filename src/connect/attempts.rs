//! Which routes a handshake tries, in which order, and what is said of those that do not work. Both ends know the same of
//! each, and so come to the same next round, and to the same end.

use std::collections::HashSet;
use std::net::IpAddr;
use std::sync::{LazyLock, Mutex, PoisonError};

use crate::error::{Error, Result};
use crate::policy::{Plan, Stripes};
use crate::proto::{Ends, Hello, MAX_RAILS, RailInfo, RailRole, Role};
use crate::route::{Choice, End, Route};
use crate::transport::Settings;

/// The routes of one handshake.
#[derive(Debug)]
pub(crate) struct Attempts {
    role: Role,
    hellos: Ends<Hello>,
    /// What both HELLOs made of the connection.
    pub(crate) plan: Plan,
    choice: Choice,
    /// Tried now.
    now: Vec<Route>,
    /// Still to be tried.
    later: Vec<Route>,
    /// Tried, and why they do not work.
    tried: Vec<(Route, String)>,
    /// A round has failed.
    again: bool,
}

/// What a round has come to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// Indices of the routes that the connection uses.
    Kept(Vec<usize>),
    /// Nothing works; others are to be tried.
    Again,
    /// Nothing works, and nothing is left.
    Nothing,
}

impl Attempts {
    /// From both HELLOs. An error where no route exists, naming every pair.
    pub(crate) fn new(role: Role, ours: Hello, theirs: Hello, peer: &str) -> Result<Self> {
        let hellos = Ends::new(role, ours, theirs);
        let Ends { connector, acceptor } = &hellos;
        let plan = Plan::new(&connector.terms, &acceptor.terms, &connector.rails, &acceptor.rails);
        let choice = plan.choose(connector.terms.route, connector, acceptor, connector.turn);
        if choice.first.is_empty() {
            let table = choice.table(&hellos.as_ref().map(End::from), &[]);
            return Err(Error::Usage(format!("no rail reaches {peer}: {table}")));
        }
        // What the plan does without is tried when its own routes fail.
        let joins = |r: &Route| plan.joins(connector.rails[r.rails.connector].role);
        let (mut now, mut later): (Vec<Route>, Vec<Route>) = choice.first.iter().partition(|r| joins(r));
        if now.is_empty() {
            std::mem::swap(&mut now, &mut later);
        }
        later.append(&mut choice.rest.clone());
        let mut attempts = Self { role, hellos, plan, choice, now, later, tried: Vec::new(), again: false };
        attempts.now.truncate(attempts.at_once());
        Ok(attempts)
    }

    /// The queue pairs of a route: the same for each, however many of the routes come to be used.
    pub(crate) fn stripes(&self, route: &Route) -> Stripes {
        self.plan.stripes(&self.hellos.local(self.role).terms, self.role_of(route), self.choice.width)
    }

    /// How many routes a round may try.
    fn at_once(&self) -> usize {
        MAX_RAILS / self.now.first().map_or(1, |route| self.stripes(route).stripes)
    }

    /// Routes of this round.
    pub(crate) fn now(&self) -> &[Route] {
        &self.now
    }

    /// Takes what was found of this round's routes: of each that does not work, why. `true` in `works` is on both ends.
    pub(crate) fn judge(&mut self, works: &[bool], why: impl Fn(usize) -> String) -> Outcome {
        let dead = self.now.iter().enumerate().filter(|(i, _)| !works[*i]);
        self.tried.extend(dead.map(|(i, route)| (*route, why(i))));
        let kept = self.choice.keep(&self.now, |i| works[i]);
        if !kept.is_empty() {
            return Outcome::Kept(kept);
        }
        if self.later.is_empty() {
            return Outcome::Nothing;
        }
        self.again = true;
        let next = self.later.len().min(self.at_once());
        self.now = self.later.drain(..next).collect();
        Outcome::Again
    }

    /// Every pair and why it is none.
    pub(crate) fn table(&self) -> String {
        self.choice.table(&self.ends(), &self.tried)
    }

    /// Index in its device of a route's rail.
    pub(crate) fn role_of(&self, route: &Route) -> RailRole {
        self.hellos.connector.rails[route.rails.connector].role
    }

    fn local(&self) -> &Hello {
        self.hellos.local(self.role)
    }

    /// This end's rail of a route.
    fn local_rail(&self, route: &Route) -> &RailInfo {
        &self.local().rails[*route.rails.local(self.role)]
    }

    /// The peer's HELLO.
    pub(crate) fn theirs(&self) -> &Hello {
        self.hellos.remote(self.role)
    }

    /// What is missing before anything is tried: one warning, or an error where that is not wanted.
    pub(crate) fn missing(&self, settings: &Settings, peer: &str) -> Result<()> {
        let lost = self.choice.left_out(&self.ends(), |role| self.plan.joins(role));
        self.lose(settings, &format!("rails without a route to {peer}"), &lost, &self.now)
    }

    /// What does not work of routes between SOUT and SUP before others are tried, or of a device's several rails beside
    /// `kept`: one warning, or an error where that is not wanted.
    pub(crate) fn failed(&self, settings: &Settings, peer: &str, kept: &[Route]) -> Result<()> {
        let lost: Vec<String> = self.tried.iter().map(|(route, why)| self.row(route, why)).collect();
        self.lose(settings, &format!("rails that do not work to {peer}"), &lost, kept)
    }

    fn row(&self, route: &Route, why: &str) -> String {
        format!("{}: {why}", route.describe(&self.ends()))
    }

    fn lose(&self, settings: &Settings, what: &str, lost: &[String], left: &[Route]) -> Result<()> {
        if lost.is_empty() {
            return Ok(());
        }
        let what = format!("{what}: {}", lost.join("; "));
        let roles: Vec<RailRole> = left.iter().map(|r| self.role_of(r)).collect();
        let what = match (self.plan, self.plan.home().filter(|home| !roles.contains(home))) {
            (Plan::Isolated(class), Some(home)) => {
                format!("{what}; {class} data belongs on {} (MPIB_MODE=0)", home)
            }
            _ => what,
        };
        let what = settings.config.lose(what)?;
        let name = |r: &Route| match self.local().terms.fused {
            true => self.local_rail(r).role.to_string(),
            false => self.local_rail(r).name.clone(),
        };
        let left: Vec<String> = left.iter().map(name).collect();
        tracing::warn!(target: "net", "{what}; the connection goes on with {} alone", left.join(", "));
        Ok(())
    }

    /// Whether a connection of these routes uses a rail of ours that NCCL did not ask for.
    pub(crate) fn elsewhere(&self, kept: &[Route]) -> bool {
        kept.iter().any(|r| !self.local_rail(r).requested)
    }

    /// What is to be told of a connection of these routes, each about the device and the peer's host once: that a rail which
    /// NCCL did not ask for stands in, or (a warning, and an error where that is not wanted) that it does since another failed.
    pub(crate) fn settle(
        &self,
        settings: &Settings,
        device: &str,
        peer: &str,
        host: Option<IpAddr>,
        kept: &[Route],
    ) -> Result<()> {
        if self.plan != Plan::Plain {
            return Ok(());
        }
        if !self.again && !self.tried.is_empty() {
            return self.failed(settings, peer, kept);
        }
        let Some(chosen) = kept.first() else { return Ok(()) };
        let fault =
            self.again || (self.elsewhere(kept) && self.local().lost.iter().any(|lost| lost.requested));
        if !fault && !self.elsewhere(kept) {
            return Ok(());
        }
        let how = self.choice.instead(&self.ends(), chosen, &self.tried);
        let what = format!("a connection of {device} with {peer} {how}");
        let what = if fault { settings.config.lose(what)? } else { what };
        let what =
            format!("{what}. Further ones of the two are only counted; MPIB_ROUTE=strict refuses them");
        match first_time(device, host) {
            true if fault => tracing::warn!(target: "net", "{what}"),
            true => tracing::info!(target: "net", "{what}"),
            false => {}
        }
        Ok(())
    }

    fn ends(&self) -> Ends<End<'_>> {
        self.hellos.as_ref().map(End::from)
    }
}

/// Devices, and hosts that they do not reach as asked for.
type Told = HashSet<(String, Option<IpAddr>)>;

/// Whether nothing was told yet of this device and this host. Hosts beyond a number that no job has are not told of.
fn first_time(device: &str, host: Option<IpAddr>) -> bool {
    const MOST: usize = 1 << 16;
    static TOLD: LazyLock<Mutex<Told>> = LazyLock::new(Mutex::default);
    // The set is whole after a panic: each use is one insertion.
    let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
    told.len() < MOST && told.insert((device.to_owned(), host))
}
