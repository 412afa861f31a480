//! One machine, its inputs by hand.

use std::sync::Arc;
use std::time::{Duration, Instant};

use mpib_proto::{Ends, Found, Memory, Message, NO_ANSWER, QpWiring, Role, RouteWiring, Search, Wiring};

use super::scenario::{PATIENCE, Scenario};
use crate::connect::machine::{Action, Machine, Member, Outcome};
use crate::error::Error;

pub(super) const SECOND: Duration = Duration::from_secs(1);

/// SOUT and SUP in advanced mode, one queue pair each.
pub(super) fn scenario(strict: bool) -> Scenario {
    Scenario {
        fused: true,
        advanced: true,
        strict: Ends { connector: strict, acceptor: strict },
        plain: (1, false),
        rails: Ends { connector: vec![(0, true), (1, true)], acceptor: vec![(0, true), (1, true)] },
        dual_stack: false,
        guesses: false,
        terms_differ: false,
        dead: Vec::new(),
        failing_work: None,
        lost_at: None,
        poll_interval: Ends { connector: 1, acceptor: 1 },
        lies: None,
        dice: Vec::new(),
    }
}

/// A machine, its clock and its actions. A connector, unless a test has another.
pub(super) struct End {
    pub(super) machine: Machine,
    pub(super) scenario: Scenario,
    pub(super) now: Instant,
}

impl End {
    pub(super) fn new(strict: bool) -> Self {
        Self::with(scenario(strict), None)
    }

    /// One that has sent a WIRING with its HELLO.
    pub(super) fn with(scenario: Scenario, sent: Option<Wiring>) -> Self {
        let (now, first) = (Instant::now(), (scenario.first(Role::Connector), sent));
        let config = Arc::new(scenario.end(Role::Connector).0);
        let machine = Machine::new(Role::Connector, now, &config, "dev0".into(), first, PATIENCE);
        let mut connector = Self { machine, scenario, now };
        connector.machine.set_peer("node7".into());
        connector.machine.on_connected(now);
        connector
    }

    pub(super) fn receive(&mut self, message: Message) {
        self.machine.on_message(self.now, message);
    }

    pub(super) fn done(&mut self, outcome: Outcome) {
        self.machine.on_done(self.now, outcome);
    }

    pub(super) fn pass(&mut self, time: Duration) {
        self.now += time;
        self.machine.on_timer(self.now);
    }

    pub(super) fn actions(&mut self) -> Vec<Action> {
        std::iter::from_fn(|| self.machine.poll_action()).collect()
    }

    /// The reason of the failure, which the peer has been sent.
    pub(super) fn failure(&mut self) -> String {
        match &self.actions()[..] {
            [.., Action::Send(Message::Refuse { reason }), Action::Fail(e)] => {
                assert_eq!(*reason, e.to_string());
                reason.clone()
            }
            other => panic!("{other:?}"),
        }
    }

    /// Until the local probes have succeeded.
    fn reach_probed(&mut self) {
        self.reach(vec![Ok(()), Ok(())]);
    }

    /// Until the local probes have ended with these results.
    fn reach(&mut self, results: Vec<Result<(), String>>) {
        self.receive(Message::Hello(self.scenario.end(Role::Acceptor).1));
        self.done(Outcome::Made(wiring()));
        self.receive(Message::Wiring(wiring()));
        self.done(Outcome::BroughtUp(vec![None, None]));
        self.receive(Message::Ready);
        self.done(Outcome::Probed(results));
    }

    /// Until the connection is formed.
    fn reach_commit(&mut self) {
        self.reach_probed();
        self.receive(Message::Probed { mask: 3, reasons: Vec::new(), accepts: false });
        let keep = self.actions().pop();
        let Some(Action::Keep(keep)) = keep else { panic!("{keep:?}") };
        let works = |i, member: &Member| matches!(member, Member::Works { stripe, .. } if *stripe == i);
        assert!(keep.members.iter().enumerate().all(|(i, member)| works(i, member)), "{keep:?}");
        assert_eq!(keep.members.len(), 2);
        self.done(Outcome::Kept { registered: true });
    }
}

/// WIRING of either end: the lists of both look the same.
pub(super) fn wiring() -> Wiring {
    let qp = QpWiring { qpn: 1, psn: 2 };
    let qps = [1, 4];
    let route = |i: u8| RouteWiring {
        local_rail: i,
        remote_rail: i,
        qps: vec![qp; qps[usize::from(i)]],
        service_level: 0,
        traffic_class: 0,
        ece: None,
    };
    let memory = Memory { addr: 4096, len: 1 << 30, rkeys: vec![1, 2] };
    Wiring { routes: vec![route(0), route(1)], memory }
}

#[test]
fn a_step_that_takes_too_long_is_named() {
    let mut connector = End::new(false);
    connector.receive(Message::Hello(connector.scenario.end(Role::Acceptor).1));
    connector.done(Outcome::Made(wiring()));
    connector.actions();
    assert_eq!(connector.machine.deadline(), Some(connector.now + SECOND));
    connector.pass(SECOND - Duration::from_nanos(1));
    assert!(connector.actions().is_empty());
    connector.pass(Duration::from_nanos(1));
    let expected = "node7: nothing came within 1000 ms while waiting for WIRING (MPIB_CONNECT_TIMEOUT_MS)";
    assert_eq!(connector.failure(), expected);
    assert_eq!(connector.machine.deadline(), None);
}

/// The peer's rank may be busy for long: only its loss ends the wait for its HELLO.
#[test]
fn the_wait_for_the_first_call_of_accept_has_no_end() {
    let mut connector = End::new(false);
    connector.actions();
    for i in 1..4 {
        connector.pass(SECOND);
        let expected = format!(
            "connect: connected to node7; still waiting for the first call of accept after {} ms",
            1000 * i
        );
        let found = connector.actions();
        assert!(matches!(&found[..], [Action::Warn(text)] if *text == expected), "{found:?}");
    }
    connector.machine.on_lost(Error::Peer("ended".into()));
    assert_eq!(connector.failure(), "ended");
}

/// Connecting has its own limit. The time of the first step begins behind it.
#[test]
fn no_step_is_due_before_the_connection() {
    let (scenario, start) = (scenario(false), Instant::now());
    let (config, hello) = scenario.end(Role::Connector);
    let config = Arc::new(config);
    let mut machine = Machine::new(Role::Connector, start, &config, "dev0".into(), (hello, None), PATIENCE);
    assert_eq!(machine.deadline(), None);
    machine.on_timer(start + 10 * SECOND);
    machine.on_connected(start + 10 * SECOND);
    assert_eq!(machine.deadline(), Some(start + 11 * SECOND));
    machine.on_connected(start + 12 * SECOND);
    assert_eq!(machine.deadline(), Some(start + 11 * SECOND));
    let found: Vec<_> = std::iter::from_fn(|| machine.poll_action()).collect();
    assert!(matches!(found[..], [Action::Await(Some("the first call of accept"))]), "{found:?}");
}

#[test]
fn probes_that_take_too_long_are_ended() {
    let mut connector = End::new(false);
    connector.receive(Message::Hello(connector.scenario.end(Role::Acceptor).1));
    connector.done(Outcome::Made(wiring()));
    connector.receive(Message::Wiring(wiring()));
    connector.done(Outcome::BroughtUp(vec![None, None]));
    connector.receive(Message::Ready);
    connector.actions();
    // The rails return by themselves, so one that is silent is not waited for.
    connector.pass(Duration::from_millis(150));
    assert!(matches!(connector.actions()[..], [Action::EndSilent { all: false }]));
    connector.pass(Duration::from_millis(150));
    assert!(matches!(connector.actions()[..], [Action::Stop]));
    assert_eq!(connector.machine.deadline(), None);
    connector.done(Outcome::Probed(vec![Ok(()), Err("too late".into())]));
    match &connector.actions()[..] {
        [
            Action::Send(Message::Probed { mask: 1, reasons, accepts: false }),
            Action::Await(Some("PROBED")),
        ] => {
            assert_eq!(reasons[..], [(1, "too late".to_owned())]);
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_mask_with_absent_routes_is_refused() {
    let mut connector = End::new(false);
    connector.reach_probed();
    connector.receive(Message::Probed { mask: 7, reasons: Vec::new(), accepts: false });
    assert_eq!(connector.failure(), "protocol error: node7 probed rails 0b111 of 2");
}

/// With `MPIB_STRICT=1` the peer's READY may come before the first hint, and does not establish the
/// connection.
#[test]
fn the_commit_waits_for_the_first_hint() {
    let mut connector = End::new(true);
    connector.reach_commit();
    assert!(matches!(connector.actions()[..], [Action::AwaitHint]));
    connector.receive(Message::Ready);
    assert!(connector.actions().is_empty());
    connector.done(Outcome::Hinted);
    let found = connector.actions();
    assert!(
        matches!(found[..], [Action::Send(Message::Ready), Action::Await(None), Action::Established]),
        "{found:?}"
    );
}

#[test]
fn a_peer_that_is_lost_before_the_first_hint_is_named() {
    let waiting = |peer_ready: bool| {
        let mut connector = End::new(true);
        connector.reach_commit();
        if peer_ready {
            connector.receive(Message::Ready);
        }
        connector
    };
    let refuse = || Message::Refuse { reason: "no wish to".into() };
    for (peer_ready, refused, lost) in [
        (false, "node7 refuses: no wish to", "ended"),
        (
            true,
            "node7 gave the connection up: no wish to",
            "lost the connection to node7 during the handshake: ended",
        ),
    ] {
        let mut connector = waiting(peer_ready);
        connector.receive(refuse());
        assert_eq!(connector.failure(), refused);
        let mut connector = waiting(peer_ready);
        connector.machine.on_lost(Error::Peer("ended".into()));
        assert_eq!(connector.failure(), lost);
    }
    // The agent's time is up, and the driver gives the reason.
    let mut connector = waiting(false);
    connector.actions();
    connector.pass(PATIENCE);
    assert!(matches!(connector.actions()[..], [Action::Stop]));
    connector.done(Outcome::Failed(Error::Usage("no hint".into())));
    assert_eq!(connector.failure(), "no hint");
}

/// A connector accepts the connection with its PROBED, and sends no second READY, unless a probe of
/// either end has failed or it has `MPIB_STRICT=1`.
#[test]
fn probes_that_all_succeed_are_the_connectors_commit() {
    let probed = |mut end: End, results| {
        end.reach(results);
        let found = end.actions();
        let accepts = found.iter().find_map(|action| match action {
            Action::Send(Message::Probed { accepts, .. }) => Some(*accepts),
            _ => None,
        });
        (end, accepts)
    };
    let (good, bad) = (|| Ok(()), || Err("too late".to_owned()));
    let (mut all, accepts) = probed(End::new(false), vec![good(), good()]);
    assert_eq!(accepts, Some(true));
    assert_eq!(probed(End::new(false), vec![good(), bad()]).1, Some(false));
    assert_eq!(probed(End::new(true), vec![good(), good()]).1, Some(false));

    // The acceptor's probes have failed in part: the connection is another one.
    all.receive(Message::Probed { mask: 1, reasons: vec![(1, "too late".into())], accepts: false });
    all.done(Outcome::Kept { registered: false });
    let found = all.actions();
    assert!(matches!(found[..], [.., Action::Send(Message::Ready), Action::Await(Some(_))]), "{found:?}");
    all.receive(Message::Ready);
    assert!(matches!(all.actions()[..], [Action::Await(None), Action::Established]));

    let (mut all, _) = probed(End::new(false), vec![good(), good()]);
    all.receive(Message::Probed { mask: 3, reasons: Vec::new(), accepts: true });
    let expected =
        "protocol error: node7 accepted the connection before its READY, which only a connector may do";
    assert_eq!(all.failure(), expected);
}

/// A peer with `MPIB_STRICT=1` may wait for its hint as long as this end would.
#[test]
fn the_peer_has_the_agents_time_for_its_ready() {
    let mut connector = End::new(false);
    connector.reach_commit();
    let found = connector.actions();
    assert!(matches!(found[..], [Action::Await(Some(_))]), "{found:?}");
    connector.pass(SECOND);
    assert!(connector.actions().is_empty());
    connector.pass(PATIENCE);
    let expected = "node7: nothing came within 1500 ms while waiting for its READY to use the connection \
                    (MPIB_CONNECT_TIMEOUT_MS)";
    assert_eq!(connector.failure(), expected);
}

/// REFUSE ends the handshake in the middle of local work as well as between two messages, and
/// nothing follows.
#[test]
fn refuse_ends_every_stage() {
    let hello = |c: &mut End| c.receive(Message::Hello(c.scenario.end(Role::Acceptor).1));
    let steps: [&dyn Fn(&mut End); 7] = [
        &hello,
        &|c| c.done(Outcome::Made(wiring())),
        &|c| c.receive(Message::Wiring(wiring())),
        &|c| c.done(Outcome::BroughtUp(vec![None, None])),
        &|c| c.receive(Message::Ready),
        &|c| c.done(Outcome::Probed(vec![Ok(()), Ok(())])),
        &|c| c.receive(Message::Probed { mask: 3, reasons: Vec::new(), accepts: false }),
    ];
    for n in 0..=steps.len() {
        let mut connector = End::new(false);
        steps[..n].iter().for_each(|step| step(&mut connector));
        connector.actions();
        connector.receive(Message::Refuse { reason: "no wish to".into() });
        assert_eq!(connector.failure(), "node7 refuses: no wish to", "after {n} steps");
        connector.receive(Message::Ready);
        connector.done(Outcome::Hinted);
        connector.machine.on_lost(Error::Peer("ended".into()));
        connector.pass(SECOND);
        assert!(connector.actions().is_empty());
    }
}

/// An acceptor whose requested pair is silent, and that has the connector's SEARCH.
fn searched() -> End {
    let each = vec![(0, true), (0, false)];
    let rails = Ends { connector: each.clone(), acceptor: each };
    let scenario = Scenario { fused: false, rails, ..scenario(false) };
    let (now, first) = (Instant::now(), scenario.first(Role::Acceptor));
    let config = Arc::new(scenario.end(Role::Acceptor).0);
    let machine = Machine::new(Role::Acceptor, now, &config, "dev0".into(), (first, None), PATIENCE);
    let mut acceptor = End { machine, scenario, now };
    acceptor.machine.set_peer("node7".into());
    let one = |wiring: Wiring| {
        let memory = Memory { rkeys: wiring.memory.rkeys[..1].to_vec(), len: 1 << 20, ..wiring.memory };
        Wiring { routes: wiring.routes[..1].to_vec(), memory }
    };
    acceptor.receive(Message::Hello(acceptor.scenario.first(Role::Connector)));
    acceptor.done(Outcome::Made(one(wiring())));
    acceptor.receive(Message::Wiring(one(wiring())));
    acceptor.done(Outcome::BroughtUp(vec![None]));
    acceptor.receive(Message::Ready);
    acceptor.done(Outcome::Probed(vec![Err(format!("{NO_ANSWER}silence"))]));
    acceptor.receive(Message::Probed { mask: 0, reasons: Vec::new(), accepts: false });
    acceptor.done(Outcome::Listed(acceptor.scenario.end(Role::Acceptor).1));
    acceptor.receive(Message::Hello(acceptor.scenario.end(Role::Connector).1));
    acceptor
}

fn search(routes: usize) -> Search {
    let qps = vec![Some(QpWiring { qpn: 7, psn: 0 }); routes];
    Search { qps, reasons: Vec::new(), service_level: 0, traffic_class: 0 }
}

//= protocol.md: SEARCH, FOUND: a search that contradicts itself is refused
#[test]
fn a_search_of_other_routes_is_refused() {
    for routes in [0, 3, 5, 64] {
        let mut acceptor = searched();
        acceptor.receive(Message::Search(search(routes)));
        let text = format!("protocol error: SEARCH of node7: {routes} routes, expected 4");
        assert_eq!(acceptor.failure(), text);
    }
}

//= protocol.md: SEARCH, FOUND: a search that contradicts itself is refused
#[test]
fn answers_that_cannot_be_are_refused() {
    for (answers, open) in [(0, 0b1111), (0b1_0000, 0), (0, 1 << 63), (0b11, 0b10)] {
        let mut acceptor = searched();
        acceptor.receive(Message::Search(search(4)));
        acceptor.done(Outcome::SearchMade(search(4)));
        acceptor.receive(Message::Found(Found { answers, open, reasons: Vec::new() }));
        let text = format!(
            "protocol error: FOUND of node7: routes {answers:#x} answer and {open:#x} are open, of 4"
        );
        assert_eq!(acceptor.failure(), text);
    }
}

//= reach.md: a search tries up to 64 pairs at a time, until one works
#[test]
fn what_stays_open_is_searched_again() {
    let mut acceptor = searched();
    acceptor.receive(Message::Search(search(4)));
    acceptor.done(Outcome::SearchMade(search(4)));
    acceptor.receive(Message::Found(Found { answers: 0, open: 0b1010, reasons: Vec::new() }));
    acceptor.receive(Message::Search(search(2)));
    let last = acceptor.actions().pop();
    assert!(matches!(&last, Some(Action::AnswerSearch(sought, _)) if sought.routes.len() == 2), "{last:?}");
    acceptor.done(Outcome::SearchMade(search(2)));
    acceptor.receive(Message::Found(Found { answers: 0b10, open: 0, reasons: Vec::new() }));
    let last = acceptor.actions().pop();
    assert!(matches!(&last, Some(Action::MakeEndpoint(stripes)) if stripes.each.len() == 1), "{last:?}");
}
