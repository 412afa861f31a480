//! What happens in a simulated handshake.

use std::time::Duration;

use mpib_proto::{Claim, Ends, Hello, Mode, RailInfo, Role};
use proptest::prelude::*;

use super::liar::{Lie, any_lie};
use crate::config::Config;
use crate::route::Route;
use crate::route::tests::roce;
use crate::split;

/// Time of the agent for the first hint.
pub(super) const PATIENCE: Duration = Duration::from_millis(500);

/// A simulated handshake, as data: the same scenario always runs the same way.
#[derive(Debug, Clone)]
pub(super) struct Scenario {
    /// SOUT and SUP rather than plain rails.
    pub(super) fused: bool,
    pub(super) advanced: bool,
    pub(super) strict: Ends<bool>,
    /// Queue pairs of each plain rail, and whether a message is cut into parts for them.
    pub(super) plain: (u8, bool),
    /// The network of each rail, and whether NCCL requested the rail; SOUT and SUP always are.
    pub(super) rails: Ends<Vec<(u8, bool)>>,
    /// Whether each rail has a second address, all of one network.
    pub(super) dual_stack: bool,
    /// The connector sends the WIRING of the queue pairs that it expects with its HELLO.
    pub(super) guesses: bool,
    /// The ends' settings contradict each other.
    pub(super) terms_differ: bool,
    /// Routes whose probes fail.
    pub(super) dead: Vec<Dead>,
    /// The work that fails: an end's, counted from 1.
    pub(super) failing_work: Option<(Role, u8)>,
    /// Milliseconds until the connection breaks.
    pub(super) lost_at: Option<u64>,
    /// Milliseconds between two polls.
    pub(super) poll_interval: Ends<u64>,
    /// The end that lies, and what it does to which of its messages.
    pub(super) lies: Option<(Role, Vec<(u8, Lie)>)>,
    /// The source of all delays.
    pub(super) dice: Vec<u8>,
}

/// A route that does not work at one end.
#[derive(Debug, Clone)]
pub(super) struct Dead {
    pub(super) role: Role,
    /// The rails of the connector and of the acceptor.
    pub(super) rails: (usize, usize),
    /// Which of the pairs of addresses; `None`: all of them.
    pub(super) alternate: Option<u8>,
    /// The stripe that fails; `None`: all of them.
    pub(super) stripe: Option<usize>,
    pub(super) how: How,
}

/// How a route fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum How {
    /// The probe is not answered.
    Silent,
    /// The end does not try the route until nothing else is left, and is right.
    Refused,
    /// The end does not try the route until nothing else is left, and is wrong.
    Doubted,
    /// The first time, a receive in the acceptor's shared receive queue fails, and so do the probes
    /// of both ends. Then the acceptor uses none.
    Srq,
}

/// Delays. After the last number all are short.
#[derive(Debug)]
pub(super) struct Dice<'a> {
    numbers: std::slice::Iter<'a, u8>,
}

impl<'a> Dice<'a> {
    pub(super) fn new(numbers: &'a [u8]) -> Self {
        Self { numbers: numbers.iter() }
    }

    /// Returns 1 ms to about 1.6 s, most often less than 0.5 s.
    pub(super) fn delay(&mut self) -> u64 {
        let n: u64 = self.numbers.next().copied().unwrap_or(0).into();
        1 + n * n / 40
    }
}

impl Scenario {
    /// Returns the first HELLO of an end: the policy is `any`, so it lists the requested rails alone.
    pub(super) fn first(&self, role: Role) -> Hello {
        let (_, mut first) = self.end(role);
        let all = first.rails.len();
        first.rails.retain(|rail| rail.requested);
        Hello { others: first.rails.len() < all, ..first }
    }

    /// Returns the settings of an end, and its HELLO with all ports.
    pub(super) fn end(&self, role: Role) -> (Config, Hello) {
        let config = Config {
            strict: *self.strict.local(role),
            mode: if self.advanced { Mode::Advanced } else { Mode::Vanilla },
            ib_qps: self.plain.0 + u8::from(self.terms_differ && role == Role::Acceptor),
            ib_split: self.plain.1,
            sout_qp: 1 + u8::from(self.terms_differ && role == Role::Acceptor),
            sup_qp: 4,
            connect_timeout: Duration::from_millis(1000),
            probe_timeout: Duration::from_millis(300),
            ..Config::default()
        };
        let rail = |(i, (net, requested)): (usize, &(u8, bool))| {
            let ip = format!("10.0.{net}.{}", 2 * i + role as usize + 1);
            let rail_role = if self.fused { i.min(1) } else { i };
            let mut rail = roce(&format!("{role}{i}"), &ip, 24, rail_role as u8);
            if self.dual_stack {
                let ip = format!("2001:db8::{}", 2 * i + role as usize + 1);
                rail.addrs.extend(roce("", &ip, 64, 0).addrs);
            }
            RailInfo { requested: *requested || self.fused, ..rail }
        };
        let most = if self.fused { 2 } else { 4 };
        let hello = Hello {
            claim: Claim::default(),
            pid: 1,
            host: role.to_string(),
            terms: split::terms(&config, self.fused),
            rotation: 0,
            rails: self.rails.local(role).iter().take(most).enumerate().map(rail).collect(),
            unusable: Vec::new(),
            others: false,
            wiring_follows: false,
        };
        (config, hello)
    }

    /// Returns how a stripe of a route fails at an end, if it does.
    pub(super) fn failure(&self, role: Role, route: &Route, stripe: usize) -> Option<How> {
        let rails = (route.rails.connector, route.rails.acceptor);
        let fails = |dead: &&Dead| {
            (dead.role == role || dead.how == How::Srq)
                && dead.rails == rails
                && dead.alternate.is_none_or(|n| n == route.alternate)
                && dead.stripe.is_none_or(|n| n == stripe)
        };
        // The worst one counts.
        let mut found = self.dead.iter().filter(fails).map(|dead| dead.how);
        let worst = found.clone().find(|how| matches!(how, How::Silent | How::Refused));
        worst.or_else(|| found.clone().find(|how| *how == How::Srq)).or_else(|| found.next())
    }

    /// Returns whether a stripe of a route does not work at an end.
    pub(super) fn is_dead(&self, role: Role, route: &Route, stripe: usize) -> bool {
        self.failure(role, route, stripe).is_some_and(|how| !matches!(how, How::Doubted | How::Srq))
    }

    /// Nothing goes wrong, and nobody is slow.
    pub(super) fn is_benign(&self) -> bool {
        !self.terms_differ
            && self.strict == Ends { connector: false, acceptor: false }
            && self.dead.is_empty()
            && self.failing_work.is_none()
            && self.lost_at.is_none()
            && self.lies.is_none()
            && self.poll_interval.connector.max(self.poll_interval.acceptor) <= 20
            && self.dice.iter().all(|n| *n < 30)
    }
}

fn any_role() -> impl Strategy<Value = Role> {
    prop_oneof![Just(Role::Connector), Just(Role::Acceptor)]
}

pub(super) fn any_dead() -> impl Strategy<Value = Dead> {
    let stripe = prop::option::of(0usize..4);
    let how = prop_oneof![Just(How::Silent), Just(How::Refused), Just(How::Doubted), Just(How::Srq)];
    let rails = (0usize..4, 0usize..4);
    (any_role(), rails, prop::option::of(0u8..2), stripe, how)
        .prop_map(|(role, rails, alternate, stripe, how)| Dead { role, rails, alternate, stripe, how })
}

fn any_rails() -> impl Strategy<Value = Vec<(u8, bool)>> {
    // The requested ones come first in a HELLO.
    prop::collection::vec((0u8..3, prop::bool::weighted(0.7)), 1..=4).prop_map(|mut rails| {
        rails.sort_by_key(|(_, requested)| !requested);
        rails
    })
}

fn both<T: Clone + std::fmt::Debug>(
    of: impl Strategy<Value = T> + Clone,
) -> impl Strategy<Value = Ends<T>> + Clone {
    (of.clone(), of).prop_map(|(connector, acceptor)| Ends { connector, acceptor })
}

/// Most delays are well within the limits.
fn any_delay() -> impl Strategy<Value = u8> {
    prop_oneof![6 => 0u8..60, 1 => any::<u8>()]
}

fn sometimes<T: Clone + std::fmt::Debug + 'static>(
    ever: bool,
    of: impl Strategy<Value = T> + 'static,
) -> BoxedStrategy<Option<T>> {
    if ever { prop::option::weighted(0.3, of).boxed() } else { Just(None).boxed() }
}

/// Any scenario of honest ends; `trouble` has work and connections fail.
pub(super) fn honest(trouble: bool) -> impl Strategy<Value = Scenario> {
    let dead = prop::collection::vec(any_dead(), 0..10);
    let some = if trouble { 0.3 } else { 0.0 };
    (
        (any::<bool>(), any::<bool>(), both(prop::bool::weighted(some))),
        (
            (1u8..=4, any::<bool>(), prop::bool::weighted(0.3)),
            (any_rails(), any_rails(), prop::bool::weighted(0.7)),
        ),
        (prop::bool::weighted(some / 6.0), if trouble { dead.boxed() } else { Just(Vec::new()).boxed() }),
        sometimes(trouble, (any_role(), 1u8..10)),
        sometimes(trouble, 0u64..2000),
        both(if trouble { 1u64..=300 } else { 1..=20 }),
        prop::collection::vec(if trouble { any_delay().boxed() } else { (0u8..=29).boxed() }, 0..40),
    )
        .prop_map(
            |(
                (fused, advanced, strict),
                (plain, (c, a, guesses)),
                rest,
                failing_work,
                lost_at,
                poll,
                dice,
            )| {
                Scenario {
                    fused,
                    advanced,
                    strict,
                    plain: (plain.0, plain.1),
                    rails: Ends { connector: c, acceptor: a },
                    dual_stack: plain.2,
                    guesses,
                    terms_differ: rest.0,
                    dead: rest.1,
                    failing_work,
                    lost_at,
                    poll_interval: poll,
                    lies: None,
                    dice,
                }
            },
        )
}

/// Any scenario of an honest end and a liar.
pub(super) fn lying() -> impl Strategy<Value = Scenario> {
    let lies = (any_role(), prop::collection::vec((0u8..8, any_lie()), 1..4));
    (honest(true), lies).prop_map(|(honest, lies)| Scenario { lies: Some(lies), ..honest })
}
