//! The transitions: what each message and each piece of finished work leads to.

use std::time::{Duration, Instant};

use mpib_proto::{Ece, Hello, Message, RailSet, Role, Wiring, written_bytes};

use super::attempts::{Attempts, Failure, Next};
use super::search::reason;
use super::{
    AGAIN, Action, BringUp, Keep, Machine, Outcome, ProbeLimits, Stage, Step, check_wiring, wiring_difference,
};
use crate::error::{Error, RETRY_EXC, Result, wc_status};
use crate::route::Route;
use crate::split::Plan;

/// How long a route may be silent, if there is another one or if it can be used later. One that works
/// answers within milliseconds.
const SILENCE: Duration = Duration::from_millis(500);

impl Machine {
    /// Handles a message while no local work is in progress.
    pub(super) fn handle(&mut self, now: Instant, message: Message) {
        let done = match (std::mem::replace(&mut self.stage, Stage::Ended), message) {
            (Stage::Hello, Message::Hello(hello)) => self.on_hello(now, hello),
            (Stage::Guess(hello), Message::Wiring(wiring)) => self.on_hellos(now, hello, Some(wiring)),
            (Stage::Again, Message::Hello(hello)) => self.on_hellos(now, hello, None),
            (Stage::Others(attempts), Message::Hello(hello)) => self.on_others(now, attempts, hello),
            (Stage::Wiring(attempts, local), Message::Wiring(wiring)) => {
                self.on_wiring(attempts, local, wiring)
            }
            (Stage::Ready(attempts), Message::Ready) => {
                // The peer waits for PROBED as long as its settings allow: stay well within that.
                let limit = self.config.probe_timeout.min(self.config.connect_timeout / 2);
                let silence = SILENCE.min(limit / 2);
                let limits = ProbeLimits { silent: Some(now + silence), end: Some(now + limit) };
                self.stage = Stage::Probe(attempts, limits);
                self.actions.push_back(Action::Probe);
                Ok(())
            }
            (Stage::Probed(attempts, results), Message::Probed { mask, reasons, accepts }) => {
                self.on_peer_probes(now, attempts, &results, (mask, &reasons, accepts))
            }
            (Stage::SearchDue(attempts), Message::Search(search)) => self.on_search(now, attempts, search),
            (Stage::FoundDue(attempts, ours), Message::Found(found)) if self.role == Role::Acceptor => {
                self.on_found(now, attempts, &found, &ours)
            }
            (Stage::Hint { plan, by, peer_ready: false }, Message::Ready) => {
                self.stage = Stage::Hint { plan, by, peer_ready: true };
                Ok(())
            }
            (Stage::Commit, Message::Ready) => {
                self.establish();
                Ok(())
            }
            (stage, message) => {
                let (peer, found) = (&self.peer, message.name());
                Err(Error::Protocol(format!("{peer} sent {found} while {} was due", stage.due())))
            }
        };
        self.fail_if(done);
    }

    /// Handles the outcome of local work.
    pub(super) fn finish_work(&mut self, now: Instant, outcome: Outcome) -> Result<()> {
        match (std::mem::replace(&mut self.stage, Stage::Ended), outcome) {
            (_, Outcome::Failed(e)) => Err(e),
            (Stage::ListPorts(attempts), Outcome::Listed(hello)) => {
                self.local = hello;
                self.send_others(now, attempts);
                Ok(())
            }
            (Stage::ListAgain, Outcome::Listed(hello)) => {
                self.local = hello;
                self.send(Message::Hello(self.local.clone()));
                self.expect("HELLO", now, Duration::ZERO);
                self.stage = Stage::Again;
                Ok(())
            }
            (Stage::MakeEndpoint(attempts, remote), Outcome::Made(wiring)) => {
                self.on_endpoint(now, attempts, wiring, remote)
            }
            (Stage::BringUp(attempts, wiring), Outcome::BroughtUp(eces)) => {
                self.on_brought_up(now, attempts, wiring, &eces);
                Ok(())
            }
            (Stage::Probe(attempts, _), Outcome::Probed(results)) => {
                self.on_local_probes(now, attempts, results)
            }
            (Stage::MakeSearch(attempts, _), Outcome::SearchMade(search)) => {
                self.on_search_made(now, attempts, search);
                Ok(())
            }
            (Stage::Search(attempts, _, theirs), Outcome::Searched(replies)) => {
                self.on_searched(now, attempts, &replies, &theirs)
            }
            (Stage::Keep { plan, accepted }, Outcome::Kept { registered }) => {
                let peer_ready = accepted && self.role == Role::Acceptor;
                if registered && self.config.strict {
                    let by = Some(now + self.hint_patience);
                    self.actions.push_back(Action::AwaitHint);
                    self.stage = Stage::Hint { plan, by, peer_ready };
                } else if accepted && self.role == Role::Connector {
                    self.await_commit(now, plan);
                } else {
                    self.commit(now, plan, peer_ready);
                }
                Ok(())
            }
            (Stage::Hint { plan, peer_ready, .. }, Outcome::Hinted) => {
                self.commit(now, plan, peer_ready);
                Ok(())
            }
            _ => Err(Error::Internal("the handshake does not wait for the work that has ended".into())),
        }
    }

    fn on_hello(&mut self, now: Instant, hello: Hello) -> Result<()> {
        match (self.role, hello.wiring_follows) {
            (Role::Connector, true) => {
                let what = format!("{} announced a WIRING, which only a connector may do", self.peer);
                Err(Error::Protocol(what))
            }
            (Role::Connector, false) => {
                let sent = self.sent.take();
                self.on_hellos(now, hello, sent)
            }
            (Role::Acceptor, false) => self.on_hellos(now, hello, None),
            (Role::Acceptor, true) => {
                self.expect("WIRING", now, Duration::ZERO);
                self.stage = Stage::Guess(hello);
                Ok(())
            }
        }
    }

    /// Chooses the routes: both ends know both HELLOs now, and the WIRING that the connector has
    /// sent with its own.
    fn on_hellos(&mut self, now: Instant, hello: Hello, guess: Option<Wiring>) -> Result<()> {
        let differences = self.local.terms.differences(&hello.terms);
        if !differences.is_empty() {
            return Err(Error::Usage(format!(
                "settings that must be equal at both ends differ from those of {}: {}",
                self.peer,
                differences.join("; ")
            )));
        }
        self.until = now + self.config.connect_timeout;
        let attempts = Attempts::new(self.role, self.local.clone(), hello, &self.peer)?;
        self.first_attempt(now, attempts, guess)
    }

    /// Begins the first attempt. The connector's guess is used if it has the rails and the numbers of
    /// queue pairs of the attempt. Both ends come to the same conclusion.
    fn first_attempt(&mut self, now: Instant, attempts: Attempts, guess: Option<Wiring>) -> Result<()> {
        if attempts.current().is_empty() {
            if attempts.may_wait() {
                return self.wait_for_rail(now, &attempts);
            }
            self.list_others(now, attempts);
            return Ok(());
        }
        self.warn(attempts.unreached(&self.config, &self.peer)?);
        let stripes = attempts.stripes();
        match (
            self.role,
            guess.filter(|guess| {
                // The memory of a connection with a mailbox is no lie for one without.
                let other = written_bytes(!stripes.has_mailbox) as u64;
                guess.memory.len != other && wiring_difference(Role::Connector, &stripes, guess).is_none()
            }),
        ) {
            (_, None) => self.attempt(attempts),
            (Role::Connector, Some(local)) => {
                self.actions.push_back(Action::Adopt(stripes));
                self.expect("WIRING", now, Duration::ZERO);
                self.stage = Stage::Wiring(attempts, local);
            }
            // The peer has nothing to do before it has this end's WIRING: one packet is enough.
            (Role::Acceptor, remote) => self.make_endpoint(attempts, remote),
        }
        Ok(())
    }

    /// Waits until a rail works, for the shorter of the times that a handshake and an established
    /// connection may take without one. The peer comes to the same conclusion. Then both ends describe
    /// their ports again.
    ///
    /// # Errors
    /// The time is over.
    fn wait_for_rail(&mut self, now: Instant, attempts: &Attempts) -> Result<()> {
        let wait = self.config.connect_timeout.min(self.config.failover_wait);
        let (peer, table) = (&self.peer, attempts.table());
        match self.patience {
            None if !wait.is_zero() => {
                self.patience = Some(now + wait);
                let ms = wait.as_millis();
                self.warn(Some(format!(
                    "no rail works to {peer}; the connection waits up to {ms} ms for one (MPIB_CONNECT_TIMEOUT_MS, \
                     MPIB_FAILOVER_WAIT): {table}"
                )));
            }
            Some(until) if now < until => {}
            _ => return Err(self.no_rail(attempts)),
        }
        self.actions.push_back(Action::Flush);
        self.await_message(None);
        self.stage = Stage::Pause(now + AGAIN);
        Ok(())
    }

    /// Returns the error of a handshake without a rail that works.
    fn no_rail(&self, attempts: &Attempts) -> Error {
        // An unanswered probe has the same causes on every route.
        let advice = attempts.unanswered.then(|| format!(". {}", wc_status(RETRY_EXC).advice));
        let (table, advice) = (attempts.table(), advice.unwrap_or_default());
        Error::Peer(format!("no rail works to {}: {table}{advice}", self.peer))
    }

    /// Lists all ports of the process: the requested ones do not reach the peer, which comes to the
    /// same conclusion and does the same.
    fn list_others(&mut self, now: Instant, attempts: Attempts) {
        if self.local.others {
            self.actions.push_back(Action::ListPorts(self.local.clone()));
            self.stage = Stage::ListPorts(attempts);
        } else {
            self.send_others(now, attempts);
        }
    }

    fn send_others(&mut self, now: Instant, attempts: Attempts) {
        self.send(Message::Hello(self.local.clone()));
        self.expect("HELLO with all ports", now, Duration::ZERO);
        self.stage = Stage::Others(attempts);
    }

    fn on_others(&mut self, now: Instant, mut attempts: Attempts, hello: Hello) -> Result<()> {
        let is_first = attempts.current().is_empty();
        attempts.extend(self.local.clone(), hello, &self.peer)?;
        if is_first {
            return self.first_attempt(now, attempts, None);
        }
        let next = attempts.advance();
        self.go_on(now, attempts, next)
    }

    fn attempt(&mut self, attempts: Attempts) {
        self.actions.push_back(Action::Flush);
        self.make_endpoint(attempts, None);
    }

    fn make_endpoint(&mut self, attempts: Attempts, remote: Option<Wiring>) {
        self.actions.push_back(Action::MakeEndpoint(attempts.stripes()));
        self.stage = Stage::MakeEndpoint(attempts, remote);
    }

    fn on_endpoint(
        &mut self,
        now: Instant,
        attempts: Attempts,
        local: Wiring,
        remote: Option<Wiring>,
    ) -> Result<()> {
        if let Some(remote) = remote {
            return self.on_wiring(attempts, local, remote);
        }
        if self.role == Role::Connector {
            self.send(Message::Wiring(local.clone()));
        }
        self.expect("WIRING", now, Duration::ZERO);
        self.stage = Stage::Wiring(attempts, local);
        Ok(())
    }

    fn on_wiring(&mut self, attempts: Attempts, local: Wiring, remote: Wiring) -> Result<()> {
        check_wiring(self.role, &self.peer, &attempts.stripes(), &remote)?;
        let Hello { rails, host, .. } = attempts.remote();
        let (rails, host) = (rails.clone(), host.clone());
        let (retry_until, last) = (self.until - self.config.connect_timeout / 2, attempts.is_last());
        self.actions.push_back(Action::BringUp(BringUp { wiring: remote, rails, host, retry_until, last }));
        self.stage = Stage::BringUp(attempts, local);
        Ok(())
    }

    fn on_brought_up(&mut self, now: Instant, attempts: Attempts, mut wiring: Wiring, eces: &[Option<Ece>]) {
        if self.role == Role::Acceptor {
            wiring.set_eces(eces);
            self.send(Message::Wiring(wiring));
        }
        self.send(Message::Ready);
        self.expect("READY", now, Duration::ZERO);
        self.stage = Stage::Ready(attempts);
    }

    fn on_local_probes(
        &mut self,
        now: Instant,
        attempts: Attempts,
        results: Vec<Result<(), String>>,
    ) -> Result<()> {
        let stripes = attempts.stripes().each.len();
        if results.len() != stripes {
            return Err(Error::Internal(format!("{} probes of {stripes}", results.len())));
        }
        let works: RailSet = (0..stripes).filter(|i| results[*i].is_ok()).collect();
        let reasons = (0..).zip(&results).filter_map(|(i, r)| Some((i, r.clone().err()?))).collect();
        let accepts = self.accepts(&results);
        self.send(Message::Probed { mask: works.bits(), reasons, accepts });
        self.expect("PROBED", now, Duration::ZERO);
        self.stage = Stage::Probed(attempts, results);
        Ok(())
    }

    /// Returns whether this end uses the connection if the peer's probes succeed, too. A connector
    /// says so with its own results, and the acceptor, which learns all results first, is done a
    /// message earlier. With `MPIB_STRICT=1` there is more to wait for.
    fn accepts(&self, results: &[Result<(), String>]) -> bool {
        self.role == Role::Connector && !self.config.strict && results.iter().all(Result::is_ok)
    }

    /// Concludes the attempt: the stripes that work at both ends are the connection. `peer` are the
    /// fields of its PROBED.
    fn on_peer_probes(
        &mut self,
        now: Instant,
        mut attempts: Attempts,
        results: &[Result<(), String>],
        peer: (u8, &[(u8, String)], bool),
    ) -> Result<()> {
        let (n, (mask, reasons, accepts)) = (results.len(), peer);
        if accepts && self.role == Role::Connector {
            let what = format!(
                "{} accepted the connection before its READY, which only a connector may do",
                self.peer
            );
            return Err(Error::Protocol(what));
        }
        let theirs = RailSet::from_bits(mask);
        if !RailSet::first(n).includes(theirs) {
            return Err(Error::Protocol(format!("{} probed rails {theirs} of {n}", self.peer)));
        }
        let (routes, each) = (attempts.current().to_vec(), n / attempts.current().len().max(1));
        let remote = |i: usize| theirs.contains(i);
        let good = |i: &usize| results[*i].is_ok() && remote(*i);
        // A route works if each of its stripes does.
        let stripes = |route: usize| route * each..(route + 1) * each;
        let works: Vec<bool> = (0..routes.len()).map(|route| stripes(route).all(|i| good(&i))).collect();
        let why = |route: usize| {
            let failed = stripes(route).find(|i| !good(i));
            let local = failed.and_then(|i| results[i].clone().err());
            let remote = failed.filter(|i| !remote(*i));
            let reported = remote.map(|i| reason(reasons, i).unwrap_or_else(|| "no reason".to_owned()));
            Failure::new(self.role, local, reported)
        };
        match attempts.conclude(&works, why) {
            Next::Keep(kept) => {
                let members = attempts.members(&kept);
                let left_out = attempts.left_out(&members);
                let routes: Vec<_> = kept.iter().map(|i| routes[*i]).collect();
                self.report(&attempts, &works, &routes)?;
                self.await_message(None);
                let (plan, substitute) = (attempts.plan, attempts.is_substitute(&routes));
                let failover = attempts.has_failover();
                self.actions.push_back(Action::Keep(Keep { members, left_out, plan, substitute, failover }));
                let accepted = (accepts || self.accepts(results)) && (0..n).all(|i| good(&i));
                self.stage = Stage::Keep { plan, accepted };
            }
            next => return self.go_on(now, attempts, next),
        }
        Ok(())
    }

    /// Goes on after an attempt or a search without a connection. The peer knows the same, and comes to
    /// the same next step.
    pub(super) fn go_on(&mut self, now: Instant, attempts: Attempts, next: Next) -> Result<()> {
        match next {
            Next::Repeat(routes) => {
                self.actions.push_back(Action::Forget(routes));
                self.attempt(attempts);
            }
            Next::Replace => self.attempt(attempts),
            Next::Retry if now < self.until => {
                if attempts.plan != Plan::Plain {
                    self.warn(attempts.broken(&self.config, &self.peer, attempts.current())?);
                }
                self.attempt(attempts);
            }
            Next::Search if now < self.until => self.search(now, attempts),
            Next::List if now < self.until => self.list_others(now, attempts),
            Next::GiveUp if attempts.may_wait() => return self.wait_for_rail(now, &attempts),
            Next::Keep(_) | Next::Retry | Next::Search | Next::List | Next::GiveUp => {
                return Err(self.no_rail(&attempts));
            }
        }
        Ok(())
    }

    /// Reports the routes that do not work, or the rails that replace the requested ones.
    fn report(&mut self, attempts: &Attempts, works: &[bool], kept: &[Route]) -> Result<()> {
        if attempts.is_partial(works) {
            self.warn(attempts.broken(&self.config, &self.peer, kept)?);
        } else if attempts.plan == Plan::Plain {
            let report = attempts.substitution(&self.config, &self.device, &self.peer, kept)?;
            self.actions.extend(report.map(Action::Report));
        }
        Ok(())
    }

    /// Commits to the connection, which the peer may have done before.
    fn commit(&mut self, now: Instant, plan: Plan, peer_ready: bool) {
        self.send(Message::Ready);
        match peer_ready {
            true => self.establish(),
            false => self.await_commit(now, plan),
        }
    }

    /// Waits for the peer to commit.
    fn await_commit(&mut self, now: Instant, plan: Plan) {
        // A peer with MPIB_STRICT=1 may wait for a hint as long as this end would.
        let more = if plan.takes_hints(&self.config) { self.hint_patience } else { Duration::ZERO };
        self.expect("its READY to use the connection", now, more);
        self.stage = Stage::Commit;
    }

    fn establish(&mut self) {
        self.await_message(None);
        self.actions.push_back(Action::Established);
        self.stage = Stage::Ended;
    }

    pub(super) fn fail_if(&mut self, done: Result<()>) {
        if let Err(e) = done {
            self.fail(e);
        }
    }

    /// Ends the handshake and sends the reason to the peer.
    pub(super) fn fail(&mut self, e: Error) {
        self.stage = Stage::Ended;
        self.send(Message::Refuse { reason: e.to_string() });
        self.actions.push_back(Action::Fail(e));
    }

    pub(super) fn send(&mut self, message: Message) {
        self.actions.push_back(Action::Send(message));
    }

    fn warn(&mut self, text: Option<String>) {
        self.actions.extend(text.map(Action::Warn));
    }

    fn await_message(&mut self, name: Option<&'static str>) {
        self.actions.push_back(Action::Await(name));
    }

    /// Begins to wait for a message, for `more` than the time of the settings.
    pub(super) fn expect(&mut self, name: &'static str, now: Instant, more: Duration) {
        self.step = Step::new(name, now, self.config.connect_timeout.saturating_add(more));
        self.await_message(Some(name));
    }
}
