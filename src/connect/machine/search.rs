//! The part of a handshake that searches for routes which answer, after those of the first attempt did
//! not. Only the connector probes: an acknowledgement needs both directions.

use std::time::{Duration, Instant};

use mpib_proto::{Found, MAX_SEARCH, Message, RailInfo, Role, Search};

use super::attempts::{Attempts, Failure};
use super::{Action, Machine, Stage};
use crate::error::{Error, Result};
use crate::route::Route;

/// How long a search waits for the first answer. One that works answers within milliseconds, and the
/// adapter repeats a lost packet within this time.
const LIMIT: Duration = Duration::from_millis(250);

/// How long an acceptor may take to connect the queue pairs of a search. The kernel may take a second
/// to find that nobody has an address.
const CONNECT: Duration = Duration::from_secs(1);

/// The routes of a search.
#[derive(Debug)]
pub(crate) struct Sought {
    pub(crate) routes: Vec<Route>,
    /// The rails of the peer's HELLO.
    pub(crate) rails: Vec<RailInfo>,
    /// The host name in the peer's HELLO.
    pub(crate) host: String,
}

/// What a search has found of a route.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Reply {
    Answers,
    /// It does not work, and why.
    Fails(String),
    /// The time was up, or others answered sooner.
    Open,
}

/// What a search has shown of a route, for later connections.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Learnt {
    pub(crate) route: Route,
    /// Why nothing answers. `None`: the route answers.
    pub(crate) why: Option<String>,
}

/// The reasons of routes that fail at one end, by their place.
type Reasons = [(u8, String)];

/// Returns the reason of the route at a place.
pub(super) fn reason(reasons: &Reasons, i: usize) -> Option<String> {
    reasons.iter().find(|(place, _)| usize::from(*place) == i).map(|(_, why)| why.clone())
}

impl Machine {
    /// Begins a search. The peer comes to the same one.
    pub(super) fn search(&mut self, now: Instant, attempts: Attempts) {
        self.actions.push_back(Action::Flush);
        if self.role == Role::Connector {
            self.actions.push_back(Action::MakeSearch(attempts.sought()));
            self.stage = Stage::MakeSearch(attempts, None);
        } else {
            self.await_search(now, attempts);
        }
    }

    fn await_search(&mut self, now: Instant, attempts: Attempts) {
        self.expect("SEARCH", now, Duration::ZERO);
        self.stage = Stage::SearchDue(attempts);
    }

    pub(super) fn on_search(&mut self, now: Instant, attempts: Attempts, search: Search) -> Result<()> {
        let (found, expected) = (search.qps.len(), attempts.next_search().len());
        if found != expected {
            let what = format!("SEARCH of {}: {found} routes, expected {expected}", self.peer);
            return Err(Error::Protocol(what));
        }
        if self.role == Role::Acceptor {
            self.actions.push_back(Action::AnswerSearch(attempts.sought(), search));
            self.stage = Stage::MakeSearch(attempts, Some(now + CONNECT));
        } else {
            let reasons = search.reasons.clone();
            self.actions.push_back(Action::Search(search));
            self.stage = Stage::Search(attempts, Some(now + LIMIT), reasons);
        }
        Ok(())
    }

    pub(super) fn on_search_made(&mut self, now: Instant, attempts: Attempts, search: Search) {
        let reasons = search.reasons.clone();
        self.send(Message::Search(search));
        if self.role == Role::Connector {
            self.await_search(now, attempts);
        } else {
            self.expect("FOUND", now, Duration::ZERO);
            self.stage = Stage::FoundDue(attempts, reasons);
        }
    }

    /// Handles the end of this connector's search. `theirs` are the acceptor's reasons.
    pub(super) fn on_searched(
        &mut self,
        now: Instant,
        attempts: Attempts,
        replies: &[Reply],
        theirs: &Reasons,
    ) -> Result<()> {
        let n = attempts.next_search().len();
        if replies.len() != n {
            return Err(Error::Internal(format!("{} replies of {n}", replies.len())));
        }
        let set = |of: Reply| {
            let is_it = |i: &usize| replies[*i] == of && reason(theirs, *i).is_none();
            (0..n).filter(is_it).fold(0, |set, i| set | 1 << i)
        };
        let why = |(i, reply): (u8, &Reply)| match reply {
            Reply::Fails(why) => Some((i, why.clone())),
            Reply::Answers | Reply::Open => None,
        };
        let reasons = (0..).zip(replies).filter_map(why).collect();
        let found = Found { answers: set(Reply::Answers), open: set(Reply::Open), reasons };
        self.send(Message::Found(found.clone()));
        self.conclude_search(now, attempts, &found, (&found.reasons, theirs))
    }

    /// Handles the end of the connector's search. `ours` are the reasons of this end.
    pub(super) fn on_found(
        &mut self,
        now: Instant,
        attempts: Attempts,
        found: &Found,
        ours: &Reasons,
    ) -> Result<()> {
        self.conclude_search(now, attempts, found, (ours, &found.reasons))
    }

    fn conclude_search(
        &mut self,
        now: Instant,
        mut attempts: Attempts,
        found: &Found,
        (ours, theirs): (&Reasons, &Reasons),
    ) -> Result<()> {
        let routes = attempts.next_search().to_vec();
        let all = u64::MAX >> (MAX_SEARCH - routes.len());
        let (answers, open) = (found.answers, found.open);
        if (answers | open) & !all != 0 || answers & open != 0 || open == all {
            return Err(Error::Protocol(format!(
                "FOUND of {}: routes {answers:#x} answer and {open:#x} are open, of {}",
                self.peer,
                routes.len()
            )));
        }
        let has = |set: u64, i: usize| set >> i & 1 == 1;
        let each: Vec<Option<Result<(), Failure>>> = (0..routes.len())
            .map(|i| match (has(answers, i), has(open, i)) {
                (_, true) => None,
                (true, _) => Some(Ok(())),
                _ => Some(Err(Failure::new(self.role, reason(ours, i), reason(theirs, i)))),
            })
            .collect();
        let learnt = routes.iter().zip(&each).filter_map(|(route, result)| match result.as_ref()? {
            Ok(()) => Some(Learnt { route: *route, why: None }),
            Err(failure) => failure.silent.then(|| Learnt { route: *route, why: Some(failure.why.clone()) }),
        });
        self.actions.push_back(Action::Learn(learnt.collect()));
        let next = attempts.searched(each);
        self.go_on(now, attempts, next)
    }
}
