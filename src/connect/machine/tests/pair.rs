//! Two machines, a simulated network and a simulated clock.
//!
//! The network keeps the order of messages, as TCP does. It delays them, and it can lose the
//! connection: then both ends learn of the loss, and messages in flight do not arrive. Local work
//! takes a while and may fail. Each end is polled at a fixed interval, as NCCL polls `connect` and
//! `accept`; the two intervals may differ. All choices come from the [`Scenario`].

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use mpib_proto::{Ends, Hello, Message, NO_ANSWER, QpWiring, Role, SRQ_FAILED, Search};

use super::liar::Liar;
use super::scenario::{Dice, How, PATIENCE, Scenario};
use super::wirings::{fits, wiring};
use crate::connect::machine::{
    Action, BringUp, Keep, Machine, Member, Outcome, Reply, Sought, Stripes, expected_stripes,
};
use crate::error::Error;
use crate::route::Route;

/// Polls of one end, at most.
const MAX_POLLS: usize = 600;

/// What came of a simulated handshake.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) nodes: Ends<Node>,
    /// Each input and action, with its time in milliseconds.
    pub(super) trace: Vec<String>,
}

/// One end with its driver.
#[derive(Debug)]
pub(super) struct Node {
    machine: Machine,
    role: Role,
    poll_interval: u64,
    work: Work,
    /// Messages on their way to this end, each with its time of arrival.
    inbox: VecDeque<(u64, Message)>,
    /// When the connection is established.
    connected_at: u64,
    /// Whether the machine knows.
    connected: bool,
    /// When this end learns that the connection is lost, and why.
    lost: Option<(u64, String)>,
    works_done: u8,
    pub(super) stripes: Stripes,
    /// The routes of the last search.
    sought: Vec<Route>,
    /// Whether the attempt is the last one.
    last: bool,
    /// Routes on which a receive in the acceptor's shared receive queue has failed.
    without_srq: Vec<Route>,
    /// Results of the last probes.
    results: Vec<Result<(), String>>,
    pub(super) kept: Option<Keep>,
    /// Whether READY was sent after the probes.
    committed: bool,
    /// Whether the last PROBED accepted the connection.
    accepted: bool,
    pub(super) end: Option<Result<(), Error>>,
    pub(super) warnings: Vec<String>,
    polls: usize,
}

/// Local objects and work in progress, as in the real driver; the outcome has the time of its end.
#[derive(Debug)]
enum Work {
    None,
    Local,
    BringUp(u64, Outcome),
    Joined,
    /// `None`: a completion is missing.
    Probe(Option<u64>),
    /// The acceptor connects the queue pairs of a search, or has.
    AnswerSearch(Option<u64>, Search),
    /// The connector has made its queue pairs, or waits for answers; with what it will find.
    Search(Option<u64>, Vec<Reply>),
    Formed,
    /// `None`: the agent never answers.
    Hint(Option<u64>),
}

impl Node {
    /// Returns the routes of the connection, in order, and whether each works.
    pub(super) fn routes(&self) -> Option<Vec<(Route, bool)>> {
        let works = |member: &Member| (*member.route(), matches!(member, Member::Works { .. }));
        Some(self.kept.as_ref()?.members.iter().map(works).collect())
    }

    /// Returns whether this end has committed to the connection with this peer: by its READY, or
    /// before by its PROBED, if all probes of both ends have succeeded.
    pub(super) fn has_committed(&self, peer: &Self) -> bool {
        let works = |node: &Self| node.results.iter().all(Result::is_ok);
        self.committed || (self.accepted && works(self) && works(peer))
    }

    /// Returns whether a REFUSE or the loss of the connection is on its way to this end.
    pub(super) fn will_learn(&self) -> bool {
        self.lost.is_some() || self.inbox.iter().any(|(_, m)| matches!(m, Message::Refuse { .. }))
    }

    /// Returns when this end is polled next with something to do.
    fn wake(&self, start: Instant, now: u64) -> Option<u64> {
        if self.end.is_some() {
            return None;
        }
        let work = match self.work {
            Work::BringUp(at, _) | Work::Probe(Some(at)) | Work::Hint(Some(at)) => Some(at),
            Work::AnswerSearch(at, _) | Work::Search(at, _) => at,
            Work::None | Work::Local | Work::Joined | Work::Formed => None,
            Work::Probe(None) | Work::Hint(None) => None,
        };
        let connect = (!self.connected).then_some(self.connected_at);
        let deadline = self.machine.deadline().map(|at| {
            let since = at.duration_since(start);
            since.as_millis() as u64 + u64::from(since.subsec_nanos() % 1_000_000 != 0)
        });
        let arrival = self.inbox.front().map(|m| m.0);
        let events = [work, connect, deadline, arrival, self.lost.as_ref().map(|l| l.0)];
        let next = events
            .into_iter()
            .flatten()
            .min()
            .unwrap_or_else(|| panic!("the {} waits for nothing: {self:?}", self.role));
        Some(next.max(now).next_multiple_of(self.poll_interval))
    }
}

/// Simulates a handshake.
pub(super) fn run(scenario: &Scenario) -> Run {
    // Nothing depends on it: only differences of times count.
    static START: LazyLock<Instant> = LazyLock::new(Instant::now);
    let start = *START;
    let mut dice = Dice::new(&scenario.dice);
    let mut node = |role: Role| {
        let (config, _) = scenario.end(role);
        let first = scenario.first(role);
        let guess = Some(&first).filter(|_| scenario.guesses && role == Role::Connector);
        let stripes = guess.and_then(expected_stripes);
        let sent = stripes.as_ref().map(|stripes| wiring(role, stripes));
        let machine = Machine::new(role, start, &Arc::new(config), "dev0".into(), (first, sent), PATIENCE);
        Node {
            machine,
            role,
            poll_interval: *scenario.poll_interval.local(role),
            work: if stripes.is_some() { Work::Local } else { Work::None },
            inbox: VecDeque::new(),
            connected_at: if role == Role::Connector { dice.delay() } else { 0 },
            connected: false,
            lost: scenario.lost_at.map(|at| (at + dice.delay(), "the connection broke".to_owned())),
            works_done: 0,
            stripes: stripes.unwrap_or_default(),
            sought: Vec::new(),
            last: false,
            without_srq: Vec::new(),
            results: Vec::new(),
            kept: None,
            committed: false,
            accepted: false,
            end: None,
            warnings: Vec::new(),
            polls: 0,
        }
    };
    let mut nodes = Ends { connector: node(Role::Connector), acceptor: node(Role::Acceptor) };
    // The connector's HELLO opens the connection, and the acceptor accepts later.
    let stripes = &nodes.connector.stripes;
    let sent = (!stripes.each.is_empty()).then(|| wiring(Role::Connector, stripes));
    let hello = Hello { wiring_follows: sent.is_some(), ..scenario.first(Role::Connector) };
    let at = nodes.connector.connected_at;
    nodes.acceptor.connected_at = at;
    let mut sim = Sim { scenario, start, now: 0, dice, liar: Liar::new(scenario), trace: Vec::new() };
    for message in [Some(Message::Hello(hello)), sent.map(Message::Wiring)].into_iter().flatten() {
        sim.transmit(Role::Connector, message, &mut nodes.acceptor);
    }
    loop {
        let wakes = Role::ALL.map(|role| (nodes.local(role).wake(start, sim.now), role));
        let next = wakes.into_iter().filter_map(|(at, role)| Some((at?, role))).min_by_key(|(at, _)| *at);
        let Some((at, role)) = next else { break };
        sim.now = at;
        let Ends { connector, acceptor } = &mut nodes;
        match role {
            Role::Connector => sim.poll(connector, acceptor),
            Role::Acceptor => sim.poll(acceptor, connector),
        }
    }
    Run { nodes, trace: sim.trace }
}

struct Sim<'a> {
    scenario: &'a Scenario,
    start: Instant,
    /// Milliseconds since the start.
    now: u64,
    dice: Dice<'a>,
    liar: Liar,
    trace: Vec<String>,
}

impl Sim<'_> {
    fn instant(&self) -> Instant {
        self.start + Duration::from_millis(self.now)
    }

    fn note(&mut self, role: Role, what: impl std::fmt::Display) {
        self.trace.push(format!("{:6} {role}: {what}", self.now));
    }

    /// One poll of an end, in the order of the real driver.
    fn poll(&mut self, node: &mut Node, peer: &mut Node) {
        node.polls += 1;
        assert!(node.polls <= MAX_POLLS, "{MAX_POLLS} polls and no end");
        loop {
            while let Some(action) = node.machine.poll_action() {
                assert!(node.end.is_none(), "{action:?} after the end");
                self.note(node.role, brief(&action));
                self.perform(node, peer, action);
            }
            if node.end.is_some() {
                return;
            }
            let now = self.instant();
            if let Some(outcome) = self.finished(node) {
                self.note(node.role, "has finished its work");
                node.machine.on_done(now, outcome);
            } else if node.inbox.front().is_some_and(|(at, _)| *at <= self.now)
                && let Some((_, message)) = node.inbox.pop_front()
            {
                self.note(node.role, format_args!("receives {}", message.name()));
                node.machine.set_peer(format!("the {}", peer.role).into());
                node.machine.on_message(now, message);
            } else if node.lost.as_ref().is_some_and(|(at, _)| *at <= self.now) {
                node.inbox.clear();
                let (_, why) = node.lost.clone().expect("just seen");
                node.machine.on_lost(Error::Peer(why));
            } else {
                if node.connected_at <= self.now {
                    node.connected = true;
                    node.machine.on_connected(now);
                }
                let due = |node: &Node| node.machine.deadline().is_some_and(|at| at <= now);
                if !due(node) {
                    return;
                }
                node.machine.on_timer(now);
                assert!(!due(node), "a timer that is due again at once");
            }
        }
    }

    /// Returns the outcome of work that has ended.
    fn finished(&mut self, node: &mut Node) -> Option<Outcome> {
        let (work, outcome) = match std::mem::replace(&mut node.work, Work::None) {
            Work::BringUp(at, outcome) if at <= self.now => (Work::Joined, outcome),
            Work::Probe(Some(at)) if at <= self.now => (Work::Joined, Outcome::Probed(node.results.clone())),
            Work::AnswerSearch(Some(at), search) if at <= self.now => {
                (Work::AnswerSearch(None, search.clone()), Outcome::SearchMade(search))
            }
            Work::Search(Some(at), replies) if at <= self.now => {
                (Work::Search(None, Vec::new()), Outcome::Searched(replies))
            }
            Work::Hint(Some(at)) if at <= self.now => (Work::Formed, Outcome::Hinted),
            work => {
                node.work = work;
                return None;
            }
        };
        node.work = work;
        Some(self.spoil(node, outcome))
    }

    /// The work fails instead, if the scenario has it so.
    fn spoil(&mut self, node: &mut Node, outcome: Outcome) -> Outcome {
        node.works_done += 1;
        match self.scenario.failing_work {
            Some((role, n)) if role == node.role && n == node.works_done => {
                Outcome::Failed(Error::Internal("out of memory".into()))
            }
            _ => outcome,
        }
    }

    fn perform(&mut self, node: &mut Node, peer: &mut Node, action: Action) {
        let work = std::mem::replace(&mut node.work, Work::None);
        match (action, work) {
            (Action::Send(message), work) => {
                node.committed |= message == Message::Ready && node.kept.is_some();
                if let Message::Probed { accepts, .. } = message {
                    node.accepted = accepts;
                }
                node.work = work;
                self.transmit(node.role, message, peer);
            }
            (Action::Await(_) | Action::Flush, work) => node.work = work,
            (Action::Warn(text), work) => {
                node.warnings.push(text);
                node.work = work;
            }
            (Action::Report(report), work) => {
                node.warnings.extend(report.fault.then_some(report.text));
                node.work = work;
            }
            (Action::Established, Work::Formed) => node.end = Some(Ok(())),
            (Action::Fail(e), _) => {
                node.end = Some(Err(e));
                // It closes the connection behind its REFUSE.
                let closed = peer.inbox.back().map_or(self.now, |m| m.0.max(self.now));
                peer.lost.get_or_insert((closed, "has closed the connection".into()));
            }
            (action, work) => self.work(node, action, work),
        }
    }

    /// Carries out an action that is local work.
    fn work(&mut self, node: &mut Node, action: Action, work: Work) {
        let now = self.instant();
        match (action, work) {
            (Action::MakeEndpoint(stripes), _) => {
                assert!((1..=8).contains(&stripes.each.len()), "{} stripes", stripes.each.len());
                node.stripes = stripes;
                node.work = Work::Local;
                let made = Outcome::Made(wiring(node.role, &node.stripes));
                let made = self.spoil(node, made);
                node.machine.on_done(now, made);
            }
            (Action::Adopt(stripes), Work::Local) => {
                fits(node.role, &stripes, &wiring(node.role.other(), &node.stripes));
                node.stripes = stripes;
                node.work = Work::Local;
            }
            (Action::ListPorts(first), work) => {
                assert_eq!(first, self.scenario.first(node.role));
                node.work = work;
                let listed = self.spoil(node, Outcome::Listed(self.scenario.end(node.role).1));
                node.machine.on_done(now, listed);
            }
            (Action::ListAgain(rotation), _) => {
                let first = self.scenario.first(node.role);
                assert_eq!(rotation, first.rotation);
                let listed = self.spoil(node, Outcome::Listed(first));
                node.machine.on_done(now, listed);
            }
            (Action::BringUp(BringUp { wiring, rails, retry_until, last, .. }), Work::Local) => {
                node.last = last;
                fits(node.role, &node.stripes, &wiring);
                assert!(node.stripes.each.iter().all(|(r, _)| *r.rails.remote(node.role) < rails.len()));
                assert!(retry_until <= now + self.scenario.end(node.role).0.connect_timeout);
                let outcome = Outcome::BroughtUp(vec![None; node.stripes.each.len()]);
                node.work = Work::BringUp(self.now + self.dice.delay(), outcome);
            }
            (Action::Probe, Work::Joined) => {
                let result = |i: usize| {
                    let route = &node.stripes.each[i].0;
                    let before = node.stripes.each[..i].iter().filter(|s| s.0 == *route).count();
                    match self.scenario.failure(node.role, route, before) {
                        Some(How::Refused | How::Doubted) if !node.last => {
                            Err("no route from here to there".to_owned())
                        }
                        Some(How::Silent | How::Refused) => Err(format!("{NO_ANSWER}the probe failed")),
                        Some(How::Srq) if !node.without_srq.contains(route) => Err(match node.role {
                            Role::Acceptor => format!("{SRQ_FAILED}status=2"),
                            Role::Connector => "status=11".to_owned(),
                        }),
                        None | Some(How::Doubted | How::Srq) => Ok(()),
                    }
                };
                node.results = (0..node.stripes.each.len()).map(result).collect();
                let failed = |(i, (route, _)): (usize, &(Route, usize))| {
                    let stripe = node.stripes.each[..i].iter().filter(|s| s.0 == *route).count();
                    (self.scenario.failure(node.role, route, stripe) == Some(How::Srq)).then_some(*route)
                };
                node.without_srq.extend(node.stripes.each.iter().enumerate().filter_map(failed));
                let delay = self.dice.delay();
                node.work = Work::Probe((delay < 900).then_some(self.now + delay));
            }
            (Action::EndSilent { all }, Work::Probe(ends)) => {
                // What nothing answers is the last to complete.
                let is_silent =
                    |result: &Result<(), String>| matches!(result, Err(why) if why.starts_with(NO_ANSWER));
                let over = node.results.iter().all(|result| result.is_ok() || is_silent(result));
                node.work = Work::Probe(if all && over { Some(self.now) } else { ends });
            }
            (Action::MakeSearch(sought), _) => {
                let made = self.search(node, &sought);
                node.sought = sought.routes;
                node.work = Work::Search(None, Vec::new());
                let made = self.spoil(node, Outcome::SearchMade(made));
                node.machine.on_done(now, made);
            }
            (Action::AnswerSearch(sought, peer), _) => {
                assert_eq!(sought.routes.len(), peer.qps.len());
                let made = self.search(node, &sought);
                node.sought = sought.routes;
                node.work = Work::AnswerSearch(Some(self.now + self.dice.delay()), made);
            }
            (Action::Search(peer), Work::Search(None, _)) => {
                let has_qp = |i: usize| peer.qps[i].is_some();
                let reply = |(i, route): (usize, &Route)| {
                    let doubts = |role| self.scenario.failure(role, route, 0);
                    match Role::ALL.map(doubts) {
                        [Some(How::Refused | How::Doubted), _] | [_, Some(How::Refused | How::Doubted)] => {
                            Reply::Fails("no route from here to there".into())
                        }
                        [Some(How::Silent), _] | [_, Some(How::Silent)] => {
                            Reply::Fails(format!("{NO_ANSWER}silence"))
                        }
                        _ if !has_qp(i) => Reply::Open,
                        _ => Reply::Answers,
                    }
                };
                let replies: Vec<Reply> = node.sought.iter().enumerate().map(reply).collect();
                let delay = self.dice.delay();
                node.work = Work::Search(Some(self.now + delay), replies);
            }
            (Action::Stop, Work::Search(_, mut replies)) => {
                for reply in replies.iter_mut().filter(|reply| **reply == Reply::Answers) {
                    *reply = Reply::Fails(format!("{NO_ANSWER}too late"));
                }
                node.work = Work::Search(Some(self.now), replies);
            }
            (Action::Stop, Work::AnswerSearch(_, mut search)) => {
                // One of them at least was tried.
                let open = search.qps.len() / 2;
                search.qps[..open].fill(None);
                node.work = Work::AnswerSearch(Some(self.now), search);
            }
            (Action::Learn(learnt), _) => {
                assert!(learnt.iter().all(|learnt| node.sought.contains(&learnt.route)));
                node.work = Work::None;
            }
            (Action::Stop, Work::Probe(_)) => {
                node.results.fill(Err("too late".into()));
                node.work = Work::Probe(Some(self.now));
            }
            (Action::Abandon(which), Work::Probe(ends)) => {
                let excluded = |i: usize| which.contains(i);
                for (i, result) in node.results.iter_mut().enumerate().filter(|(i, _)| excluded(*i)) {
                    *result = Err(format!("stripe {i} is abandoned"));
                }
                // A completion that is missing may have been one of theirs.
                let all = (0..node.results.len()).all(excluded);
                node.work = Work::Probe(if all { Some(self.now) } else { ends });
            }
            // No more of the peer's immediates arrive, which the results have already.
            (Action::PeerFailed(_) | Action::Forget(_), work) => node.work = work,
            (Action::Keep(keep), Work::Joined) => {
                let works = |member: &Member| match member {
                    Member::Works { stripe, .. } => Some(*stripe),
                    Member::Dead { .. } => None,
                };
                let kept: Vec<usize> = keep.members.iter().filter_map(works).collect();
                assert!(!kept.is_empty() && keep.members.len() <= 8);
                for i in kept {
                    assert!(node.results[i].is_ok(), "stripe {i} is kept and does not work");
                }
                let hinted = keep.plan.takes_hints(&self.scenario.end(node.role).0);
                node.kept = Some(keep);
                node.work = Work::Formed;
                let kept = self.spoil(node, Outcome::Kept { registered: hinted });
                node.machine.on_done(now, kept);
            }
            (Action::AwaitHint, Work::Formed) => {
                let delay = self.dice.delay();
                node.work = Work::Hint((delay < 900).then_some(self.now + delay));
            }
            (Action::Stop, Work::Hint(_)) => {
                node.machine.on_done(now, Outcome::Failed(Error::Usage("no hint".into())));
            }
            (action, work) => panic!("{action:?} while the driver is at {work:?}"),
        }
    }

    /// Returns an end of a search.
    fn search(&self, node: &Node, sought: &Sought) -> Search {
        let doubts = |route: &Route| {
            matches!(self.scenario.failure(node.role, route, 0), Some(How::Refused | How::Doubted))
        };
        let qp = |route: &Route| (!doubts(route)).then_some(QpWiring { qpn: 7, psn: 0 });
        let reasons = (0..).zip(&sought.routes).filter(|(_, route)| doubts(route));
        Search {
            qps: sought.routes.iter().map(qp).collect(),
            reasons: reasons.map(|(i, _)| (i, "no route from here to there".into())).collect(),
            service_level: 0,
            traffic_class: 0,
        }
    }

    /// Sends over the network, which a liar may have altered before.
    fn transmit(&mut self, from: Role, message: Message, to: &mut Node) {
        let sent = self.now.max(to.connected_at) + self.dice.delay();
        for message in self.liar.mangle(from, message) {
            let at = to.inbox.back().map_or(sent, |last| sent.max(last.0));
            if to.lost.as_ref().is_none_or(|(lost, _)| at <= *lost) {
                to.inbox.push_back((at, message));
            }
        }
    }
}

/// An action in few words.
fn brief(action: &Action) -> String {
    match action {
        Action::Send(message) => format!("sends {}", message.name()),
        Action::MakeEndpoint(stripes) => {
            let rails = |(route, _): &(Route, usize)| (route.rails.connector, route.rails.acceptor);
            format!("MakeEndpoint {:?}", stripes.each.iter().map(rails).collect::<Vec<_>>())
        }
        Action::Adopt(_) => "Adopt".into(),
        Action::ListPorts(_) => "ListPorts".into(),
        Action::BringUp(_) => "BringUp".into(),
        Action::MakeSearch(sought) => format!("MakeSearch of {}", sought.routes.len()),
        Action::AnswerSearch(..) => "AnswerSearch".into(),
        Action::Search(_) => "Search".into(),
        action => format!("{action:?}"),
    }
}
