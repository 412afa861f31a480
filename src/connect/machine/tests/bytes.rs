//! Scenarios that bytes stand for. All zeros are one without trouble.

use mpib_proto::{Ends, Memory, Message, QpWiring, Role, RouteWiring, Wiring};

use super::liar::Lie;
use super::scenario::{Dead, How, Scenario};

/// Takes bytes from the front; zeros follow the last one.
struct Bytes<'a>(std::slice::Iter<'a, u8>);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        self.0.next().copied().unwrap_or(0)
    }

    /// Returns a number below `limit`.
    fn below(&mut self, limit: u8) -> u8 {
        self.next() % limit
    }

    fn flag(&mut self) -> bool {
        self.below(2) == 1
    }

    /// Returns something in one of eight cases.
    fn sometimes<T>(&mut self, of: impl FnOnce(&mut Self) -> T) -> Option<T> {
        (self.below(8) == 1).then(|| of(self))
    }

    fn list<T>(&mut self, limit: u8, mut of: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.below(limit)).map(|_| of(self)).collect()
    }

    fn both<T>(&mut self, mut of: impl FnMut(&mut Self) -> T) -> Ends<T> {
        Ends { connector: of(self), acceptor: of(self) }
    }

    fn role(&mut self) -> Role {
        Role::ALL[usize::from(self.below(2))]
    }
}

/// Returns a scenario with honest ends, or with one that lies.
pub(super) fn scenario(data: &[u8]) -> Scenario {
    let mut from = Bytes(data.iter());
    let lies = from.flag();
    let lies = lies.then(|| (from.role(), from.list(5, |from| (from.below(8), lie(from)))));
    Scenario {
        lies,
        fused: from.flag(),
        advanced: from.flag(),
        strict: from.both(|from| from.below(4) == 1),
        plain: (1 + from.below(4), from.flag()),
        rails: from.both(rails),
        dual_stack: from.flag(),
        guesses: from.flag(),
        terms_differ: from.below(16) == 1,
        dead: from.list(6, dead),
        failing_work: from.sometimes(|from| (from.role(), 1 + from.below(9))),
        lost_at: from.sometimes(|from| u64::from(from.next()) * 8),
        poll_interval: from.both(|from| 1 + u64::from(from.next())),
        dice: from.0.take(40).copied().collect(),
    }
}

fn rails(from: &mut Bytes<'_>) -> Vec<(u8, bool)> {
    let mut rails: Vec<_> = (0..=from.below(4)).map(|_| (from.below(3), !from.flag())).collect();
    // The requested ones come first in a HELLO.
    rails.sort_by_key(|(_, requested)| !requested);
    rails
}

fn dead(from: &mut Bytes<'_>) -> Dead {
    Dead {
        role: from.role(),
        rails: (from.below(4).into(), from.below(4).into()),
        alternate: from.sometimes(|from| from.below(2)),
        stripe: from.sometimes(|from| from.below(4).into()),
        how: [How::Silent, How::Refused, How::Doubted, How::Srq][usize::from(from.below(4))],
    }
}

fn lie(from: &mut Bytes<'_>) -> Lie {
    match from.below(7) {
        0 => Lie::Alter(from.next()),
        1 => Lie::Drop,
        2 => Lie::Double,
        3 => Lie::Delay,
        4 => Lie::Before(message(from)),
        5 => Lie::Flood(message(from)),
        _ => Lie::Instead(message(from)),
    }
}

fn message(from: &mut Bytes<'_>) -> Message {
    match from.below(5) {
        0 => Message::Ready,
        1 => Message::Probed {
            mask: from.next(),
            reasons: from.list(8, |from| (from.below(8), "cable cut".to_owned())),
            accepts: from.flag(),
        },
        2 => Message::Wiring(wiring(from)),
        3 => Message::Refuse { reason: "no wish to".into() },
        _ => Message::Bye,
    }
}

fn wiring(from: &mut Bytes<'_>) -> Wiring {
    let route = |from: &mut Bytes<'_>| RouteWiring {
        local_rail: from.below(32),
        remote_rail: from.below(32),
        qps: vec![QpWiring { qpn: 1, psn: 2 }; from.below(5).into()],
        service_level: 0,
        traffic_class: 0,
        ece: None,
    };
    let rkeys = |from: &mut Bytes<'_>| u32::from(from.next());
    let (addr, len) = (u64::from(from.next()) << 56, u64::from(from.next()) << 10);
    Wiring { routes: from.list(9, route), memory: Memory { addr, len, rkeys: from.list(9, rkeys) } }
}
