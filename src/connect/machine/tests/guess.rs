//! The WIRING that a connector sends with its HELLO, for the routes that it expects.

use std::sync::Arc;
use std::time::Instant;

use mpib_proto::{Hello, Memory, Message, QpWiring, Role, Wiring};

use super::scenario::PATIENCE;
use super::single::{End, SECOND, scenario, wiring};
use crate::connect::machine::{Action, BringUp, Machine, Outcome};

/// An acceptor that has the connector's HELLO, which announces a WIRING.
fn announced() -> End {
    let (scenario, now) = (scenario(false), Instant::now());
    let first = (scenario.first(Role::Acceptor), None);
    let config = Arc::new(scenario.end(Role::Acceptor).0);
    let mut machine = Machine::new(Role::Acceptor, now, &config, "dev0".into(), first, PATIENCE);
    machine.set_peer("node7".into());
    let hello = Hello { wiring_follows: true, ..scenario.first(Role::Connector) };
    let mut acceptor = End { machine, scenario, now };
    acceptor.receive(Message::Hello(hello));
    acceptor
}

/// HELLO, WIRING and READY of the acceptor are one packet: nothing is flushed between them.
#[test]
fn a_right_guess_is_used_by_both_ends() {
    let mut acceptor = announced();
    let found = acceptor.actions();
    assert!(
        matches!(
            found[..],
            [Action::Await(_), Action::Send(Message::Hello(_)), Action::Await(Some("WIRING"))]
        ),
        "{found:?}"
    );
    acceptor.receive(Message::Wiring(wiring()));
    assert!(matches!(acceptor.actions()[..], [Action::MakeEndpoint(_)]));
    acceptor.done(Outcome::Made(wiring()));
    match &acceptor.actions()[..] {
        [Action::BringUp(BringUp { wiring: found, .. })] => assert_eq!(*found, wiring()),
        other => panic!("{other:?}"),
    }
    acceptor.done(Outcome::BroughtUp(vec![None, None]));
    let found = acceptor.actions();
    assert!(
        matches!(
            found[..],
            [Action::Send(Message::Wiring(_)), Action::Send(Message::Ready), Action::Await(_)]
        ),
        "{found:?}"
    );

    let mut connector = End::with(scenario(false), Some(wiring()));
    connector.actions();
    connector.receive(Message::Hello(connector.scenario.first(Role::Acceptor)));
    match &connector.actions()[..] {
        [Action::Adopt(stripes), Action::Await(Some("WIRING"))] => {
            assert_eq!(stripes.each.iter().map(|(_, qps)| *qps).collect::<Vec<_>>(), [1, 4]);
        }
        other => panic!("{other:?}"),
    }
    connector.receive(Message::Wiring(wiring()));
    assert!(matches!(connector.actions()[..], [Action::BringUp(_)]));
}

/// Wrong in the number of routes, in their order, or in the number of queue pairs.
fn wrong_guesses() -> [Wiring; 3] {
    let (mut fewer, mut reversed, mut more) = (wiring(), wiring(), wiring());
    fewer.routes.pop();
    fewer.memory.rkeys.pop();
    reversed.routes.reverse();
    more.routes[0].qps.push(QpWiring { qpn: 1, psn: 2 });
    [fewer, reversed, more]
}

#[test]
fn a_wrong_guess_is_dropped_by_both_ends() {
    for guess in wrong_guesses() {
        let mut acceptor = announced();
        acceptor.actions();
        acceptor.receive(Message::Wiring(guess.clone()));
        assert!(matches!(acceptor.actions()[..], [Action::Flush, Action::MakeEndpoint(_)]));
        acceptor.done(Outcome::Made(wiring()));
        assert!(matches!(acceptor.actions()[..], [Action::Await(Some("WIRING"))]));
        acceptor.receive(Message::Wiring(wiring()));
        assert!(matches!(acceptor.actions()[..], [Action::BringUp(_)]));

        let mut connector = End::with(scenario(false), Some(guess));
        connector.actions();
        connector.receive(Message::Hello(connector.scenario.first(Role::Acceptor)));
        assert!(matches!(connector.actions()[..], [Action::Flush, Action::MakeEndpoint(_)]));
        connector.done(Outcome::Made(wiring()));
        let found = connector.actions();
        assert!(matches!(found[..], [Action::Send(Message::Wiring(_)), Action::Await(_)]), "{found:?}");
    }
}

/// What fits the HELLOs is checked as any WIRING is: a liar gets no queue pair of this end connected.
#[test]
fn a_guess_that_lies_about_its_memory_is_refused() {
    let lies: [fn(&mut Memory); 3] =
        [|m| m.len = 4096, |m| m.addr = u64::MAX - 4096, |m| m.rkeys.truncate(1)];
    for lie in lies {
        let (mut acceptor, mut guess) = (announced(), wiring());
        lie(&mut guess.memory);
        acceptor.receive(Message::Wiring(guess));
        acceptor.done(Outcome::Made(wiring()));
        let why = acceptor.failure();
        assert!(why.starts_with("protocol error: WIRING of node7: "), "{why}");
    }
}

#[test]
fn an_announced_wiring_has_to_come() {
    let mut acceptor = announced();
    acceptor.actions();
    acceptor.pass(SECOND);
    let expected = "node7: nothing came within 1000 ms while waiting for WIRING (MPIB_CONNECT_TIMEOUT_MS)";
    assert_eq!(acceptor.failure(), expected);
    let mut acceptor = announced();
    acceptor.receive(Message::Ready);
    assert_eq!(acceptor.failure(), "protocol error: node7 sent READY while WIRING was due");
}

/// Only a connector may announce one: the acceptor's WIRING answers the connector's.
#[test]
fn an_acceptor_that_announces_a_wiring_is_refused() {
    let mut connector = End::new(false);
    let hello = Hello { wiring_follows: true, ..connector.scenario.first(Role::Acceptor) };
    connector.receive(Message::Hello(hello));
    let expected = "protocol error: node7 announced a WIRING, which only a connector may do";
    assert_eq!(connector.failure(), expected);
}
