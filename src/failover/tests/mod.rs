//! A sender and a receiver over a simulated fabric. Rails die at any time, together or one by one,
//! also during an episode. A dead rail delivers none, some or all of what is on it, as late as the
//! receiver's queue pair exists, and acknowledges no more. It comes back, noticed or not. The TCP
//! connection breaks and loses what is on it; the mailbox brings messages over a living rail.
//!
//! Safety: a model of the receiver's memory shows that every message arrives as it was sent, and that
//! no byte is written into a buffer that NCCL has got back. Liveness: from each state, once the world
//! is quiet and a rail works, every message arrives and every rail that works is in use.
//!
//! Small worlds are explored whole, breadth first. Larger ones are walked at random.

mod explorer;
mod world;

use proptest::prelude::*;

use mpib_proto::RailSet;
use world::World;
#[cfg(test)]
pub(super) use world::new_rails;

/// What may happen in a world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bounds {
    rails: usize,
    groups: u64,
    /// Whether receives may be optional.
    optional: bool,
    /// Whether a rail carries messages, too.
    mailbox: bool,
    deaths: usize,
    breaks: usize,
    attempts: usize,
}

/// A rule of the model. All but the first are mistakes that the explorer must find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Rule {
    AsItIs,
    /// A receiver sends UP only once parts that are sent again have arrived.
    UpWaitsForParts,
    /// After a break an end repeats its last message alone.
    LastMessageOnly,
    /// A receiver sends RETURN only once its own hold-down is over.
    ReturnWaits,
    /// A hold-down holds the last rail, too.
    HoldsTheLastRail,
    /// An end gives up after a limit without an answer.
    AnswerLimit,
    /// A sender uses rails at UP, whether the new keys are there or not.
    UsesAtOnce,
    /// A receiver closes without ARRIVED.
    ClosesSilently,
}

/// Most choices of one random walk.
const MAX_CHOICES: usize = 2000;

/// Walks between ends with `rails` rails. Asserts that every message arrives, and that all rails
/// come back.
fn walk(rails: usize, choices: impl Iterator<Item = u32>) {
    let many = usize::MAX;
    let bounds = Bounds {
        rails,
        groups: 24,
        optional: true,
        mailbox: true,
        deaths: many,
        breaks: many,
        attempts: many,
    };
    let mut world = World::new(bounds, Rule::AsItIs, RailSet::EMPTY);
    for choice in choices {
        let events = world.events();
        if !events.is_empty() {
            world.step(events[choice as usize % events.len()]);
        }
    }
    let all = RailSet::first(rails);
    world.quiet(all);
    while world.settle() {}
    assert_eq!(world.verdict(all), None, "{world:?}");
}

/// Runs the number of rails and the choices that the bytes stand for.
pub fn simulated(data: &[u8]) {
    let Some((n, choices)) = data.split_first() else { return };
    let choices = choices.as_chunks().0.iter().take(MAX_CHOICES);
    walk(usize::from(n % 4 + 1), choices.map(|bytes| u32::from_le_bytes(*bytes)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    //= protocol.md: episode: every part arrives once, no buffer is written after its time
    #[test]
    fn every_message_arrives_and_no_buffer_is_written_after_its_time(
        n in 1usize..=4,
        choices in prop::collection::vec(any::<u32>(), 0..600),
    ) {
        walk(n, choices.into_iter());
    }
}
