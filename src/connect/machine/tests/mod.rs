//! Pairs of machines under a simulated clock and network, and single machines by hand.

mod bytes;
#[cfg(test)]
mod guess;
mod liar;
mod pair;
mod scenario;
#[cfg(test)]
mod single;
mod wirings;

use mpib_proto::{Ends, Role};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

use crate::route::Route;
use pair::{Node, Run, run};
use scenario::{Dead, How, Scenario, any_dead, honest, lying};

fn is_established(run: &Run, role: Role) -> bool {
    matches!(run.nodes.local(role).end, Some(Ok(())))
}

/// Checks the properties of honest pairs, which hold under every fault.
fn agrees(scenario: &Scenario, run: &Run) -> Result<(), TestCaseError> {
    let Ends { connector, acceptor } = &run.nodes;
    for role in Role::ALL {
        let (node, peer) = (run.nodes.local(role), run.nodes.remote(role));
        prop_assert!(node.end.is_some(), "the {role} is stuck");
        if !is_established(run, role) {
            continue;
        }
        // Both ends use the connection, or the other one has failed since, and this one learns of
        // it.
        prop_assert!(
            node.has_committed(peer) && peer.has_committed(node),
            "the {role} is established too early"
        );
        prop_assert!(is_established(run, role.other()) || node.will_learn());
        // A connector that has accepted the connection early may be lost before it forms it.
        if peer.kept.is_some() || is_established(run, role.other()) {
            prop_assert_eq!(node.routes(), peer.routes());
        }
        let all = node.routes().unwrap();
        let routes: Vec<Route> = all.iter().filter(|(_, works)| *works).map(|(route, _)| *route).collect();
        let stripes = |node: &Node, route| node.stripes.each.iter().filter(|s| s.0 == route).count();
        for (i, route) in routes.iter().enumerate() {
            let nth = routes[..i].iter().filter(|r| *r == route).count();
            let dead = |role| scenario.is_dead(role, route, nth);
            prop_assert!(!dead(Role::Connector) && !dead(Role::Acceptor), "a dead stripe is kept");
            let kept = routes.iter().filter(|r| *r == route).count();
            prop_assert_eq!(kept, stripes(node, *route), "a route is kept in part");
        }
        // A rail is in one route only, whether it works or not.
        for (i, (route, _)) in all.iter().enumerate() {
            for (other, _) in &all[i + 1..] {
                let shared = (
                    other.rails.connector == route.rails.connector,
                    other.rails.acceptor == route.rails.acceptor,
                );
                prop_assert_eq!(shared.0, shared.1, "a rail has two routes");
            }
        }
        if *scenario.strict.local(role) {
            let degraded = node
                .warnings
                .iter()
                .find(|text| !text.contains("still waiting for the first call of accept"));
            prop_assert_eq!(degraded, None, "MPIB_STRICT=1 and less than requested");
        }
    }
    prop_assert!(!scenario.terms_differ || (connector.kept.is_none() && acceptor.kept.is_none()));
    Ok(())
}

/// Returns the text of an end's error.
fn error(run: &Run, role: Role) -> String {
    match &run.nodes.local(role).end {
        Some(Err(e)) => e.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Checks what holds for an honest end whose peer lies.
fn survives(scenario: &Scenario, run: &Run) -> Result<(), TestCaseError> {
    let Some((liar, _)) = &scenario.lies else { return Ok(()) };
    let honest = liar.other();
    let (node, peer) = (run.nodes.local(honest), run.nodes.remote(honest));
    prop_assert!(node.end.is_some());
    if is_established(run, honest) {
        prop_assert!(node.has_committed(peer) && node.kept.is_some());
        prop_assert!(
            is_established(run, *liar) || node.will_learn(),
            "the {honest} uses a connection that the {liar} has refused"
        );
    }
    Ok(())
}

/// Runs the scenario that the bytes stand for, and checks what the tests of this module check.
pub fn simulated(data: &[u8]) {
    let scenario = bytes::scenario(data);
    let run = run(&scenario);
    let checked = match scenario.lies {
        None => agrees(&scenario, &run),
        Some(_) => survives(&scenario, &run),
    };
    checked.unwrap_or_else(|e| panic!("{e}\n{scenario:#?}\n{}", run.trace.join("\n")));
}

/// The scenarios are no empty promise: among some thousand there is each way that a handshake can
/// go.
#[test]
fn scenarios_reach_every_stage() {
    let mut runner = TestRunner::deterministic();
    let mut next = |strategy: &BoxedStrategy<Scenario>| strategy.new_tree(&mut runner).unwrap().current();
    let (honest, lying) = (honest(true).boxed(), lying().boxed());
    let runs: Vec<Run> = (0..12_000).map(|i| run(&next(if i % 2 == 0 { &honest } else { &lying }))).collect();
    let lines =
        |part: &str| runs.iter().filter(|run| run.trace.iter().any(|line| line.contains(part))).count();
    for part in [
        "connector: Established",
        "connector: AwaitHint",
        "acceptor: Stop",
        "still waiting for the first call of accept",
        "MakeEndpoint [(1, 1)]",
        "connector: Adopt",
        "connector: MakeSearch of 3",
        "acceptor: AnswerSearch",
        "EndSilent { all: true }",
        "EndSilent { all: false }",
        "while waiting for SEARCH",
        "while waiting for FOUND",
        "acceptor: ListPorts",
        "while waiting for WIRING",
        "announced a WIRING",
        "connector: Await(Some(\"HELLO with all ports\"))",
        "a second HELLO that contradicts its first one",
        "Report(Report { fault: true",
        "Report(Report { fault: false",
        "and not by the preferred addresses",
        "acceptor: Abandon(",
        "acceptor: PeerFailed(",
        "acceptor: Forget(",
        "connector: Forget(",
        "rails that do not work",
        "settings that must be equal at both ends differ",
        "no rail reaches",
        "no rail works to",
        "not tried, the time was up",
        "nothing came within 1000 ms while waiting for WIRING",
        "nothing came within 1000 ms while waiting for PROBED",
        "waiting for its READY to use the connection",
        "out of memory",
        "the connection broke",
        "(MPIB_STRICT=1)",
        "remote keys for",
        "queue pairs for route",
        "joins our rail and its rail",
        "while READY was due",
        "while READY to use the connection was due",
        "which only a connector may do",
        "messages that are not due",
    ] {
        assert!(lines(part) > 0, "no scenario leads to {part:?}");
    }
    let established = |run: &&Run| Role::ALL.map(|role| is_established(run, role));
    let halves = runs.iter().filter(|run| matches!(established(run), [true, false] | [false, true])).count();
    assert!(halves > 0, "no scenario in which one end alone is established");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// Work fails, connections break, everybody is slow: both ends come to the same connection, or
    /// each learns that there is none.
    #[test]
    fn honest_ends_agree_or_fail(scenario in honest(true)) {
        agrees(&scenario, &run(&scenario))?;
    }

    /// Ends without trouble connect whenever a route exists, and use every rail that the choice of
    /// routes gives them.
    #[test]
    fn ends_without_trouble_connect(scenario in honest(false)) {
        prop_assert!(scenario.is_benign());
        let run = run(&scenario);
        agrees(&scenario, &run)?;
        for role in Role::ALL {
            prop_assert!(
                is_established(&run, role) || error(&run, role).contains("no rail reaches"),
                "{:?}\n{}", run.nodes.local(role).end, run.trace.join("\n")
            );
        }
        // Other ports are listed only if those that NCCL requested do not reach each other.
        if let Some(routes) = run.nodes.connector.routes() {
            let rails = &scenario.rails;
            let requested = |r: &Route| rails.connector[r.rails.connector].1 && rails.acceptor[r.rails.acceptor].1;
            let listed = run.trace.iter().any(|line| line.contains("connector: sends HELLO"));
            prop_assert_eq!(listed, !scenario.fused && !routes.iter().map(|(route, _)| route).all(requested));
        }
    }

    /// Routes that do not work are replaced by others, as long as there are any.
    #[test]
    fn dead_routes_are_replaced(honest in honest(false), dead in prop::collection::vec(any_dead(), 0..12)) {
        let scenario = Scenario { dead, ..honest };
        let run = run(&scenario);
        agrees(&scenario, &run)?;
        if is_established(&run, Role::Connector) {
            prop_assert!(is_established(&run, Role::Acceptor));
            return Ok(());
        }
        // Then every pair of rails is refused or dead: the table has no line of a route that was
        // not tried. Of two ends that wait for a rail, either may be the first to give up.
        let text = error(&run, Role::Connector);
        prop_assert!(text.contains("no rail reaches") || text.contains("no rail works to the "), "{text}");
        prop_assert!(!text.contains("not tried"), "{text}");
    }

    /// What an end wrongly believes of routes costs no connection: if nothing else works, the
    /// requested pair is tried.
    #[test]
    fn a_doubted_pair_is_the_last_resort(
        honest in honest(false),
        dead in prop::collection::vec(any_dead(), 1..6),
    ) {
        let dead = dead.into_iter().map(|dead| Dead { how: How::Doubted, ..dead }).collect();
        let scenario = Scenario { dead, ..honest };
        let run = run(&scenario);
        agrees(&scenario, &run)?;
        for role in Role::ALL {
            let established = is_established(&run, role);
            prop_assert!(established || error(&run, role).contains("no rail reaches"), "{}", run.trace.join("\n"));
        }
    }

    /// Shared receive queues that fail cost no route: all that would be used without the failure are
    /// used, and with receives in the queue pairs' own queues.
    #[test]
    fn failed_shared_receive_queues_cost_no_route(
        honest in honest(false),
        dead in prop::collection::vec(any_dead(), 1..6),
    ) {
        let dead = dead.into_iter().map(|dead| Dead { how: How::Srq, ..dead }).collect();
        let without = run(&honest);
        let run = run(&Scenario { dead, ..honest });
        for role in Role::ALL {
            let routes = |run: &Run| run.nodes.local(role).routes();
            prop_assert_eq!(routes(&run), routes(&without), "{}", run.trace.join("\n"));
            prop_assert_eq!(&run.nodes.local(role).warnings, &without.nodes.local(role).warnings);
        }
    }

    /// An honest end finishes against every liar, and its driver never receives lists of wrong
    /// lengths.
    #[test]
    fn a_liar_harms_nobody_but_itself(scenario in lying()) {
        survives(&scenario, &run(&scenario))?;
    }

    /// The same scenario has the same course.
    #[test]
    fn a_run_is_repeatable(scenario in lying()) {
        prop_assert_eq!(run(&scenario).trace, run(&scenario).trace);
    }
}

/// What is silent is searched, and if nothing answers, tried once more.
//= protocol.md: a pair that is silent is not waited for while others are left
#[test]
fn silent_pairs_are_searched_before_they_are_tried_again() {
    let dead =
        |c, a| Dead { role: Role::Connector, rails: (c, a), alternate: None, stripe: None, how: How::Silent };
    let two = vec![(0, true), (0, true)];
    let scenario = Scenario {
        fused: false,
        rails: Ends { connector: two.clone(), acceptor: two },
        dead: vec![dead(0, 0), dead(0, 1), dead(1, 0), dead(1, 1)],
        ..single::scenario(false)
    };
    let run = run(&scenario);
    agrees(&scenario, &run).unwrap();
    let line = |part: &str| run.trace.iter().position(|line| line.contains(part)).unwrap();
    let last = |part: &str| run.trace.iter().rposition(|line| line.contains(part)).unwrap();
    let search = line("connector: MakeSearch of 4");
    assert!(line("connector: MakeEndpoint [(0, 0), (1, 1)]") < search);
    assert!(last("connector: MakeEndpoint [(0, 0), (1, 1)]") > search);
    for role in Role::ALL {
        let text = error(&run, role);
        assert!(text.contains("no rail works to") && text.contains("; tried nevertheless: "), "{text}");
    }
}
