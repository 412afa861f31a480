//! The handshake as a state machine: messages, finished work and timers in, actions out.
//!
//! [`Machine`] decides everything that a handshake decides: the comparison of the HELLOs, the
//! attempts, the check of WIRING, the meaning of both masks, strictness, each time limit and the
//! final commit. It has no socket, no clock and no verbs object: its driver
//! ([`handshake`](super::handshake)) passes the time as an argument and carries out each
//! [`Action`]. Two machines and a simulated network are therefore a complete test.
//!
//! Messages, outcomes and timers are accepted in any order and at any time: a message that arrives
//! during local work is queued, REFUSE and the loss of the peer end the handshake at once.
//!
//! The module is here and not in `proto`, since the choice of routes and the plan of a connection
//! belong to `route` and `split`, which stand above `proto`.
//!
//! A connector creates queue pairs for the routes that it expects, and sends their WIRING with its
//! HELLO. If both HELLOs result in these routes, the acceptor answers with HELLO, WIRING and READY in
//! one packet. Otherwise both ends drop that WIRING, and the connector sends another.
//!
//! Life cycle of a connector whose guess was wrong; an acceptor differs in the order of WIRING alone:
//!
//! ```text
//! HELLO -> MakeEndpoint -> WIRING -> BringUp -> READY -> Probe -> PROBED
//!               ^                                                    |
//!               +-- other addresses are left, or a search has answers +
//!                                                                    |
//!                               Established <- READY <- [hint] <- Keep
//! ```

mod attempts;
mod search;
#[cfg(any(test, feature = "simulation"))]
#[cfg_attr(not(test), allow(dead_code, unused_imports, reason = "the tests use all of it"))]
mod tests;
mod transitions;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{Ece, Hello, Message, RailInfo, RailSet, Role, Search, Wiring, written_bytes};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::route::{Route, is_untried};
use crate::split::Plan;

use attempts::Attempts;
pub(crate) use attempts::{LeftOut, Member, Report};
pub(crate) use search::{Learnt, Reply, Sought};
#[cfg(any(test, feature = "simulation"))]
pub use tests::simulated;

/// How long an end pauses before it describes its ports again, if no rail works.
const AGAIN: Duration = Duration::from_millis(100);

/// Messages that may arrive while local work is in progress. A correct peer sends one.
const MAX_EARLY: usize = 64;

/// What the driver has to do next.
#[derive(Debug)]
pub(crate) enum Action {
    /// Send a message. The loss of the peer is reported by [`Machine::on_lost`], not as an error of
    /// this action.
    Send(Message),
    /// Use this name of the message that is due in the errors of the control connection.
    Await(Option<&'static str>),
    /// Send what has been queued by [`Send`](Self::Send): the peer works at the same time as this
    /// end.
    Flush,
    /// Describe all ports of the process behind those of this first HELLO: [`Outcome::Listed`].
    ListPorts(Hello),
    /// Describe the ports again, as in the first HELLO with this rotation: [`Outcome::Listed`].
    ListAgain(u32),
    /// Create the queue pairs of these stripes: [`Outcome::Made`].
    MakeEndpoint(Stripes),
    /// Use the queue pairs that the connector created before the handshake for these stripes: the
    /// same rails and numbers of queue pairs, but the addresses that the HELLOs result in.
    Adopt(Stripes),
    /// Connect the queue pairs to the peer's: [`Outcome::BroughtUp`].
    BringUp(BringUp),
    /// Probe the stripes: [`Outcome::Probed`].
    Probe,
    /// End the probes of stripes on which nothing has answered; or, unless `all`, of those alone that
    /// are behind another one that has been answered.
    EndSilent {
        /// Whether none need have been answered: these routes are tried again.
        all: bool,
    },
    /// Create one queue pair for each of these routes: [`Outcome::SearchMade`].
    MakeSearch(Sought),
    /// Create one queue pair for each of these routes and connect it to the connector's:
    /// [`Outcome::SearchMade`].
    AnswerSearch(Sought, Search),
    /// Connect the queue pairs to the acceptor's and see which routes answer: [`Outcome::Searched`].
    Search(Search),
    /// The search has ended, and has shown this of these routes.
    Learn(Vec<Learnt>),
    /// End the work in progress, which takes too long, with the results so far.
    Stop,
    /// End the probes of these stripes: the peer does not try them.
    Abandon(RailSet),
    /// The peer's probes of these stripes have failed: no more of them arrives.
    PeerFailed(RailSet),
    /// Forget the failures of these routes in the last attempt: they are tried again in another way.
    Forget(Vec<Route>),
    /// Form the connection of some stripes, destroy the others and register it with the agent:
    /// [`Outcome::Kept`].
    Keep(Keep),
    /// Wait for the first hint of the agent: [`Outcome::Hinted`].
    AwaitHint,
    /// Log a warning.
    Warn(String),
    /// Log a report on the device and the peer's host, if it is the first.
    Report(Report),
    /// The connection is in use. No action follows.
    Established,
    /// The handshake has failed, and the peer has been sent REFUSE. No action follows.
    Fail(Error),
}

/// The stripes of an attempt, in the order of WIRING.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Stripes {
    /// Each with its route and its number of queue pairs.
    pub(crate) each: Vec<(Route, usize)>,
    /// Whether the connection has a mailbox if all of them work.
    pub(crate) has_mailbox: bool,
}

/// The connection of the local queue pairs to the peer's.
#[derive(Debug)]
pub(crate) struct BringUp {
    /// The peer's queue pairs and memory. Its lists fit the stripes.
    pub(crate) wiring: Wiring,
    /// The rails of the peer's HELLO.
    pub(crate) rails: Vec<RailInfo>,
    /// The host name in the peer's HELLO.
    pub(crate) host: String,
    /// No change of a queue pair is retried later: the peer waits twice as long.
    pub(crate) retry_until: Instant,
    /// Whether no other attempt follows: every stripe is tried.
    pub(crate) last: bool,
}

/// The connection that results from the probes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Keep {
    /// The stripes of the connection, in order.
    pub(crate) members: Vec<Member>,
    /// The rails of this end that the connection expects and does not have.
    pub(crate) left_out: Vec<LeftOut>,
    pub(crate) plan: Plan,
    /// Whether one of them is on a rail of this end that NCCL did not request.
    pub(crate) substitute: bool,
    /// Whether both ends carry on without a failed rail.
    pub(crate) failover: bool,
}

/// Work that the driver has finished.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The HELLO with all ports of the process, which begins with those of the first one; or the first
    /// one as the ports are now.
    Listed(Hello),
    /// The endpoint exists, and this describes it. An acceptor's ECE options follow with
    /// [`Outcome::BroughtUp`].
    Made(Wiring),
    /// Bring-up has ended on each stripe. The ECE options are those in effect.
    BroughtUp(Vec<Option<Ece>>),
    /// The probes have ended: of each stripe, why it does not work.
    Probed(Vec<Result<(), String>>),
    /// This end of the search exists. That of an acceptor is connected.
    SearchMade(Search),
    /// What a connector has found of each route.
    Searched(Vec<Reply>),
    /// The connection is formed.
    Kept {
        /// Whether the connection is registered with the agent.
        registered: bool,
    },
    /// The agent has given the first hint.
    Hinted,
    /// The work has failed, and the handshake with it.
    Failed(Error),
}

/// One end of a handshake.
#[derive(Debug)]
pub(crate) struct Machine {
    role: Role,
    config: Arc<Config>,
    /// Name of the device that NCCL requested.
    device: String,
    /// Time that an agent has for the first hint.
    hint_patience: Duration,
    /// This end's latest HELLO.
    local: Hello,
    /// The WIRING that a connector has sent with its HELLO.
    sent: Option<Wiring>,
    /// Name of the peer, for logs and errors.
    peer: Arc<str>,
    /// Whether the control connection is established. Its own time limit counts before.
    connected: bool,
    /// No attempt begins later.
    until: Instant,
    /// Until when a rail that works is waited for, once that has begun.
    patience: Option<Instant>,
    step: Step,
    early: VecDeque<Message>,
    actions: VecDeque<Action>,
    stage: Stage,
}

impl Machine {
    /// Begins a handshake. `local` is this end's first HELLO, and `sent` the WIRING of the queue
    /// pairs that a connector has created for the stripes that it expects
    /// ([`expected_stripes`]). Those of a connector have been sent as the first bytes of the control
    /// connection. The HELLO of an acceptor is the first action.
    pub(crate) fn new(
        role: Role,
        now: Instant,
        config: &Arc<Config>,
        device: String,
        (local, sent): (Hello, Option<Wiring>),
        hint_patience: Duration,
    ) -> Self {
        let limit = config.connect_timeout;
        // The peer's HELLO comes with the first call of accept. A rank may be busy for long before
        // it.
        let step = match role {
            Role::Connector => Step::patient("the first call of accept", now, limit),
            Role::Acceptor => Step::new("HELLO", now, limit),
        };
        let mut actions = VecDeque::from([Action::Await(Some(step.name()))]);
        if role == Role::Acceptor {
            actions.push_back(Action::Send(Message::Hello(local.clone())));
        }
        Self {
            role,
            config: Arc::clone(config),
            device,
            hint_patience,
            local,
            sent,
            peer: "the peer".into(),
            connected: role == Role::Acceptor,
            until: now + limit,
            patience: None,
            step,
            early: VecDeque::new(),
            actions,
            stage: Stage::Hello,
        }
    }

    /// Returns the next action.
    pub(crate) fn poll_action(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// Returns when [`on_timer`](Self::on_timer) is due. `None` while the machine waits for work of
    /// the driver that has its own end, and before the control connection is established.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.stage {
            Stage::ListPorts(_)
            | Stage::ListAgain
            | Stage::MakeEndpoint(..)
            | Stage::BringUp(..)
            | Stage::Keep { .. }
            | Stage::Ended => None,
            Stage::Pause(until) => Some(until),
            Stage::Probe(_, limits) => limits.next(),
            Stage::MakeSearch(_, until) | Stage::Search(_, until, _) => until,
            Stage::Hint { by, .. } => by,
            Stage::Hello
            | Stage::Guess(_)
            | Stage::Others(_)
            | Stage::Again
            | Stage::Wiring(..)
            | Stage::Ready(_)
            | Stage::Probed(..)
            | Stage::SearchDue(_)
            | Stage::FoundDue(..)
            | Stage::Commit => self.connected.then(|| self.step.deadline()),
        }
    }

    /// Names the peer in logs and errors.
    pub(crate) fn set_peer(&mut self, name: Arc<str>) {
        self.peer = name;
    }

    /// Handles the establishment of the control connection: the time of the first step begins now.
    pub(crate) fn on_connected(&mut self, now: Instant) {
        if !self.connected {
            self.connected = true;
            self.step.restart(now);
        }
    }

    /// Handles a message. REFUSE ends the handshake at any time; other messages wait for the end of
    /// local work.
    pub(crate) fn on_message(&mut self, now: Instant, message: Message) {
        self.connected = true;
        match message {
            _ if self.has_ended() => {}
            Message::Refuse { reason } => {
                let how = if self.is_peer_ready() { "gave the connection up" } else { "refuses" };
                self.fail(Error::Peer(format!("{} {how}: {reason}", self.peer)));
            }
            message if !self.is_working() => self.handle(now, message),
            _ if self.early.len() == MAX_EARLY => {
                let what = format!("{} sent more than {MAX_EARLY} messages that are not due", self.peer);
                self.fail(Error::Protocol(what));
            }
            message => {
                if let (Stage::Probe(..), Message::Probed { reasons, .. }) = (&self.stage, &message) {
                    let (untried, failed): (Vec<_>, Vec<_>) =
                        reasons.iter().partition(|(_, why)| is_untried(why));
                    let set = |routes: Vec<&(u8, String)>| {
                        Some(routes.iter().map(|(i, _)| usize::from(*i)).collect::<RailSet>())
                            .filter(|set| !set.is_empty())
                    };
                    self.actions.extend(set(untried).map(Action::Abandon));
                    self.actions.extend(set(failed).map(Action::PeerFailed));
                }
                self.early.push_back(message);
            }
        }
    }

    /// Handles the end of the control connection, after all messages that arrived on it.
    pub(crate) fn on_lost(&mut self, why: Error) {
        if self.has_ended() {
            return;
        }
        let why = match self.is_peer_ready() {
            true => Error::Peer(format!("lost the connection to {} during the handshake: {why}", self.peer)),
            false => why,
        };
        self.fail(why);
    }

    /// Handles a deadline that has passed. The driver passes messages and finished work first.
    pub(crate) fn on_timer(&mut self, now: Instant) {
        if self.deadline().is_none_or(|deadline| now < deadline) {
            return;
        }
        if let Stage::Probe(attempts, ProbeLimits { silent, end }) = &mut self.stage
            && silent.take().is_some()
            && end.is_some_and(|end| now < end)
        {
            // What has not answered is tried again. In the last attempt a rail that returns by itself
            // later is not waited for.
            let all = !attempts.is_last();
            if all || (attempts.has_failover() && !self.config.strict) {
                self.actions.push_back(Action::EndSilent { all });
            }
            return;
        }
        if let Stage::Probe(_, ProbeLimits { end: limit, .. })
        | Stage::MakeSearch(_, limit)
        | Stage::Search(_, limit, _)
        | Stage::Hint { by: limit, .. } = &mut self.stage
        {
            *limit = None;
            self.actions.push_back(Action::Stop);
            return;
        }
        if let Stage::Pause(_) = self.stage {
            self.stage = Stage::ListAgain;
            self.actions.push_back(Action::ListAgain(self.local.rotation));
            return;
        }
        match self.step.expire(now, &self.peer) {
            Overdue::Warn(text) => self.actions.push_back(Action::Warn(text)),
            Overdue::Fail(why) => self.fail(Error::Peer(why)),
        }
    }

    /// Handles the end of local work.
    pub(crate) fn on_done(&mut self, now: Instant, outcome: Outcome) {
        if self.has_ended() {
            return;
        }
        let done = self.finish_work(now, outcome);
        self.fail_if(done);
        self.handle_early(now);
    }

    /// Returns whether the driver works on an action, or the machine pauses. Messages are queued
    /// meanwhile.
    fn is_working(&self) -> bool {
        matches!(
            self.stage,
            Stage::ListPorts(_)
                | Stage::Pause(_)
                | Stage::ListAgain
                | Stage::MakeEndpoint(..)
                | Stage::BringUp(..)
                | Stage::Probe(..)
                | Stage::MakeSearch(..)
                | Stage::Search(..)
                | Stage::Keep { .. }
        )
    }

    pub(crate) fn has_ended(&self) -> bool {
        matches!(self.stage, Stage::Ended)
    }

    /// Returns whether the peer has committed to the connection, and this end has not.
    fn is_peer_ready(&self) -> bool {
        matches!(self.stage, Stage::Hint { peer_ready: true, .. })
    }

    /// Handles the messages that arrived during the work.
    fn handle_early(&mut self, now: Instant) {
        while !self.is_working() && !self.has_ended() {
            let Some(message) = self.early.pop_front() else { return };
            self.handle(now, message);
        }
    }
}

/// What the machine waits for: a message of the peer, or work of the driver.
#[derive(Debug)]
enum Stage {
    Hello,
    /// An acceptor has the connector's HELLO. The WIRING that the connector has sent with it is due.
    Guess(Hello),
    /// The driver lists all ports of the process.
    ListPorts(Attempts),
    /// The peer's second HELLO is due.
    Others(Attempts),
    /// No rail works. Until then the ends wait for one.
    Pause(Instant),
    /// The driver lists its ports again.
    ListAgain,
    /// The peer's HELLO with the present state of its ports is due.
    Again,
    /// With the connector's WIRING, if the acceptor has it already.
    MakeEndpoint(Attempts, Option<Wiring>),
    /// The local WIRING has been sent by a connector; an acceptor sends it after bring-up.
    Wiring(Attempts, Wiring),
    BringUp(Attempts, Wiring),
    Ready(Attempts),
    Probe(Attempts, ProbeLimits),
    /// With the results of the local probes.
    Probed(Attempts, Vec<Result<(), String>>),
    /// The driver makes this end of a search: until the time limit, if it is an acceptor's.
    MakeSearch(Attempts, Option<Instant>),
    /// The peer's SEARCH is due.
    SearchDue(Attempts),
    /// The connector searches, until the time limit. With the reasons of the acceptor.
    Search(Attempts, Option<Instant>, Vec<(u8, String)>),
    /// The connector's FOUND is due. With the reasons of this end.
    FoundDue(Attempts, Vec<(u8, String)>),
    /// `accepted`: the connector has committed to the connection with its PROBED.
    Keep {
        plan: Plan,
        accepted: bool,
    },
    /// `MPIB_STRICT=1`: the first hint has to come until `by`.
    Hint {
        plan: Plan,
        by: Option<Instant>,
        peer_ready: bool,
    },
    /// The peer's second READY.
    Commit,
    Ended,
}

/// The time limits of probes, until they are over.
#[derive(Debug, Clone, Copy)]
struct ProbeLimits {
    /// Those that nothing has answered.
    silent: Option<Instant>,
    /// All of them.
    end: Option<Instant>,
}

impl ProbeLimits {
    fn next(&self) -> Option<Instant> {
        self.silent.or(self.end)
    }
}

impl Stage {
    /// Returns the name of the message that the peer has to send.
    const fn due(&self) -> &'static str {
        match self {
            Self::Hello | Self::Again => "HELLO",
            Self::Others(_) => "HELLO with all ports",
            Self::Guess(_) | Self::Wiring(..) => "WIRING",
            Self::Ready(_) => "READY",
            Self::Probed(..) => "PROBED",
            Self::SearchDue(_) => "SEARCH",
            Self::FoundDue(..) => "FOUND",
            Self::Commit | Self::Hint { peer_ready: false, .. } => "READY to use the connection",
            Self::ListPorts(_)
            | Self::Pause(_)
            | Self::ListAgain
            | Self::MakeEndpoint(..)
            | Self::BringUp(..)
            | Self::Probe(..)
            | Self::MakeSearch(..)
            | Self::Search(..)
            | Self::Keep { .. }
            | Self::Hint { .. }
            | Self::Ended => "nothing",
        }
    }
}

/// A wait for one message of the peer.
#[derive(Debug)]
struct Step {
    name: &'static str,
    limit: Duration,
    until: Instant,
    /// Number of warnings so far; `None` if the step ends with its time.
    warnings: Option<u32>,
}

/// The consequence of a step whose time is over.
#[derive(Debug, PartialEq, Eq)]
enum Overdue {
    /// A line for the log. The wait goes on.
    Warn(String),
    /// The reason why the handshake fails.
    Fail(String),
}

impl Step {
    /// Begins a wait that ends after `limit`.
    fn new(name: &'static str, now: Instant, limit: Duration) -> Self {
        Self { name, limit, until: now + limit, warnings: None }
    }

    /// Begins a wait without an end. A warning follows each `interval`.
    fn patient(name: &'static str, now: Instant, interval: Duration) -> Self {
        Self { warnings: Some(0), ..Self::new(name, now, interval) }
    }

    const fn name(&self) -> &'static str {
        self.name
    }

    const fn deadline(&self) -> Instant {
        self.until
    }

    /// Begins again: the peer has all of the step's time.
    fn restart(&mut self, now: Instant) {
        self.until = now + self.limit;
    }

    /// Ends the wait, or prolongs a patient one.
    fn expire(&mut self, now: Instant, peer: &str) -> Overdue {
        let (name, ms) = (self.name, self.limit.as_millis());
        let Some(warnings) = &mut self.warnings else {
            return Overdue::Fail(format!(
                "{peer}: nothing came within {ms} ms while waiting for {name} (MPIB_CONNECT_TIMEOUT_MS)"
            ));
        };
        *warnings = warnings.saturating_add(1);
        let ms = ms.saturating_mul((*warnings).into());
        self.until = now + self.limit;
        Overdue::Warn(format!("connect: connected to {peer}; still waiting for {name} after {ms} ms"))
    }
}

/// Returns the stripes of the first attempt with a peer that has the same rails as this end, on the
/// same networks, and the same settings: the usual peer. The addresses in the routes are meaningless.
/// `None` if there is no such attempt, or if the choice of rails depends on the peer's addresses.
pub(crate) fn expected_stripes(local: &Hello) -> Option<Stripes> {
    let attempts = Attempts::new(Role::Connector, local.clone(), local.clone(), "").ok()?;
    if matches!(attempts.plan, Plan::Isolated(_) | Plan::StandIn) {
        return None;
    }
    Some(attempts.stripes()).filter(|stripes| !stripes.each.is_empty())
}

/// Accepts a WIRING that has this end's routes in order, each with its number of queue pairs and a
/// remote key, and memory of the peer's role.
///
/// # Errors
/// The first difference, with the value found and the value expected.
pub(crate) fn check_wiring(role: Role, peer: &str, stripes: &Stripes, wiring: &Wiring) -> Result<()> {
    let refuse = |what: String| Err(Error::Protocol(format!("WIRING of {peer}: {what}")));
    if let Some(what) = wiring_difference(role.other(), stripes, wiring) {
        return refuse(what);
    }
    let (memory, needed) = (&wiring.memory, written_bytes(stripes.has_mailbox) as u64);
    if memory.len < needed || memory.addr.checked_add(needed).is_none() {
        return refuse(format!("{} bytes at {:#x}, expected {needed}", memory.len, memory.addr));
    }
    if memory.rkeys.len() != stripes.each.len() {
        return refuse(format!("{} remote keys for {} routes", memory.rkeys.len(), stripes.each.len()));
    }
    Ok(())
}

/// Returns how the routes of the WIRING of an end, `from`, differ from these stripes in their rails
/// or their numbers of queue pairs, if they do.
fn wiring_difference(from: Role, stripes: &Stripes, wiring: &Wiring) -> Option<String> {
    if wiring.routes.len() != stripes.each.len() {
        return Some(format!("{} routes, expected {}", wiring.routes.len(), stripes.each.len()));
    }
    wiring.routes.iter().zip(&stripes.each).enumerate().find_map(|(i, (found, (route, qps)))| {
        let pair = (usize::from(found.remote_rail), usize::from(found.local_rail));
        let expected = (*route.rails.remote(from), *route.rails.local(from));
        if pair != expected {
            return Some(format!("route {i} joins our rail and its rail {pair:?}, expected {expected:?}"));
        }
        // None: the end could not make them.
        let n = found.qps.len();
        (n != *qps && n > 0).then(|| format!("{n} queue pairs for route {i}, expected {qps}"))
    })
}
