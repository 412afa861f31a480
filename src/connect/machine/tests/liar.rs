//! An end that breaks the protocol: between an honest machine and the network stands somebody who
//! alters its messages.

use mpib_proto::{Found, Hello, Memory, Message, QpWiring, RailRole, Role, RouteWiring, Search, Wiring};
use proptest::prelude::*;

use super::scenario::Scenario;

/// What happens to a message.
#[derive(Debug, Clone)]
pub(super) enum Lie {
    /// It is not sent.
    Drop,
    /// It is sent twice.
    Double,
    /// It is sent after the next one.
    Delay,
    /// Another one is sent first.
    Before(Message),
    /// Many others are sent first.
    Flood(Message),
    /// Another one is sent instead.
    Instead(Message),
    /// A number in it is altered.
    Alter(u8),
}

/// The messages of the lying end so far.
#[derive(Debug)]
pub(super) struct Liar {
    lies: Option<(Role, Vec<(u8, Lie)>)>,
    sent: u8,
    delayed: Option<Message>,
}

impl Liar {
    pub(super) fn new(scenario: &Scenario) -> Self {
        Self { lies: scenario.lies.clone(), sent: 0, delayed: None }
    }

    /// Returns what is sent instead of a message.
    pub(super) fn mangle(&mut self, from: Role, message: Message) -> Vec<Message> {
        let Some((_, lies)) = self.lies.as_ref().filter(|(liar, _)| *liar == from) else {
            return vec![message];
        };
        let lie = lies.iter().find(|(n, _)| *n == self.sent).map(|(_, lie)| lie.clone());
        self.sent = self.sent.saturating_add(1);
        let mut out = match lie {
            None => vec![message],
            Some(Lie::Drop) => Vec::new(),
            Some(Lie::Double) => vec![message.clone(), message],
            Some(Lie::Before(other)) => vec![other, message],
            Some(Lie::Flood(other)) => [vec![other; 80], vec![message]].concat(),
            Some(Lie::Instead(other)) => vec![other],
            Some(Lie::Alter(how)) => vec![alter(message, how)],
            Some(Lie::Delay) => {
                let earlier = self.delayed.replace(message);
                return earlier.into_iter().collect();
            }
        };
        out.extend(self.delayed.take());
        out
    }
}

/// Alters one number or the length of one list.
fn alter(mut message: Message, how: u8) -> Message {
    let n = usize::from(how / 8);
    match &mut message {
        Message::Hello(hello) => alter_hello(hello, how % 8, n),
        Message::Wiring(wiring) => alter_wiring(wiring, how % 8, n),
        Message::Probed { mask, accepts, .. } => {
            *mask ^= how;
            *accepts ^= how >= 128;
        }
        Message::Search(search) => match how % 3 {
            0 => search.qps.truncate(n % search.qps.len().max(1)),
            1 => search.qps.fill(None),
            _ => search.reasons.iter_mut().for_each(|(route, _)| *route ^= how % 64),
        },
        Message::Found(found) => match how % 3 {
            0 => found.answers ^= u64::from(how),
            1 => found.open ^= u64::from(how),
            _ => found.reasons.clear(),
        },
        _ => {}
    }
    message
}

fn alter_hello(hello: &mut Hello, what: u8, n: usize) {
    let rail = n % hello.rails.len().max(1);
    match what {
        0 => hello.rails.clear(),
        1 => hello.rails.truncate(rail),
        2 => hello.rails.extend(hello.rails.clone()),
        3 => hello.rotation = u32::MAX - n as u32,
        4 => hello.terms.fused ^= true,
        5 if n.is_multiple_of(2) => hello.wiring_follows ^= true,
        5 => hello.terms.plain_qps = 1 + n as u8,
        6 => hello.rails.iter_mut().for_each(|r| r.role = RailRole::SUP),
        _ => hello.rails.iter_mut().skip(rail).for_each(|r| r.requested ^= true),
    }
}

fn alter_wiring(wiring: &mut Wiring, what: u8, n: usize) {
    let route = n % wiring.routes.len().max(1);
    match what {
        0 => wiring.routes.truncate(route),
        1 => wiring.routes.extend(wiring.routes.clone().into_iter().take(8 - wiring.routes.len().min(8))),
        2 => wiring.memory.rkeys.truncate(route),
        3 => wiring.memory.len = n as u64,
        4 => wiring.memory.addr = u64::MAX - n as u64,
        5 => wiring.routes.iter_mut().skip(route).for_each(|r| r.qps.clear()),
        6 => wiring.routes.iter_mut().skip(route).for_each(|r| r.local_rail ^= 1 + n as u8 % 31),
        _ => wiring.routes.reverse(),
    }
}

/// Any message that the codec lets through, with no regard for what is due.
fn any_message() -> impl Strategy<Value = Message> {
    let qps = prop::collection::vec(Just(QpWiring { qpn: 1, psn: 2 }), 0..4);
    let route = (0u8..32, 0u8..32, qps).prop_map(|(local_rail, remote_rail, qps)| RouteWiring {
        local_rail,
        remote_rail,
        qps,
        service_level: 0,
        traffic_class: 0,
        ece: None,
    });
    let memory = (any::<u64>(), any::<u64>(), prop::collection::vec(any::<u32>(), 0..=8));
    let memory = memory.prop_map(|(addr, len, rkeys)| Memory { addr, len, rkeys });
    let wiring = (prop::collection::vec(route, 0..=8), memory);
    let reasons = prop::collection::vec((0u8..8, Just("cable cut".to_owned())), 0..=8);
    prop_oneof![
        3 => Just(Message::Ready),
        3 => (any::<u8>(), reasons, any::<bool>())
            .prop_map(|(mask, reasons, accepts)| Message::Probed { mask, reasons, accepts }),
        3 => wiring.prop_map(|(routes, memory)| Message::Wiring(Wiring { routes, memory })),
        1 => prop::collection::vec(prop::option::of(Just(QpWiring { qpn: 1, psn: 2 })), 0..=64).prop_map(|qps| {
            Message::Search(Search { qps, reasons: Vec::new(), service_level: 0, traffic_class: 0 })
        }),
        1 => any::<[u64; 2]>()
            .prop_map(|[answers, open]| Message::Found(Found { answers, open, reasons: Vec::new() })),
        2 => Just(Message::Refuse { reason: "no wish to".into() }),
        1 => Just(Message::Bye),
        1 => Just(Message::Welcome { challenge: [0; 16], proof: [0; 16] }),
    ]
}

pub(super) fn any_lie() -> impl Strategy<Value = Lie> {
    prop_oneof![
        1 => Just(Lie::Drop),
        1 => Just(Lie::Double),
        1 => Just(Lie::Delay),
        2 => any_message().prop_map(Lie::Before),
        1 => any_message().prop_map(Lie::Flood),
        2 => any_message().prop_map(Lie::Instead),
        4 => any::<u8>().prop_map(Lie::Alter),
    ]
}
