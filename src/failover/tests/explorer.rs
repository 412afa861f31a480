//! Explores small worlds whole, breadth first.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::{AssertUnwindSafe, catch_unwind};

use mpib_proto::RailSet;

use super::world::{Event, World};
use super::{Bounds, Rule};

/// What the explorer has seen of a world.
#[derive(Debug)]
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) depth: usize,
    /// The shortest way to the first mistake, and what is wrong.
    pub(super) mistake: Option<(Vec<Event>, String)>,
}

/// A hash of a state: states are too large to be kept. Of a million states two have one hash in one of
/// 37 million runs.
type Key = u64;

fn key(world: &World) -> Key {
    let mut hasher = DefaultHasher::new();
    world.hash(&mut hasher);
    hasher.finish()
}

/// Explores everything that can happen from `first` on.
pub(super) fn explore(first: World, rails: usize) -> Explored {
    let mut parents: HashMap<Key, (Key, Event)> = HashMap::new();
    let (mut known, mut sound) = (HashSet::from([key(&first)]), HashSet::new());
    let (mut layer, mut depth) = (vec![first], 0);
    while !layer.is_empty() {
        let mut next = Vec::new();
        for world in layer {
            let from = key(&world);
            let checked = catch_unwind(AssertUnwindSafe(|| unsound(&world, rails, &mut sound)));
            if let Some(why) = checked.unwrap_or_else(|_| Some("an assertion failed once quiet".into())) {
                let trace = trace(&parents, from);
                return Explored { states: known.len(), depth, mistake: Some((trace, why)) };
            }
            for event in world.events() {
                let stepped = catch_unwind(AssertUnwindSafe(|| {
                    let mut after = world.clone();
                    after.step(event);
                    after
                }));
                let Ok(after) = stepped else {
                    let mut trace = trace(&parents, from);
                    trace.push(event);
                    let mistake = Some((trace, "an assertion failed".to_owned()));
                    return Explored { states: known.len(), depth, mistake };
                };
                let to = key(&after);
                if known.insert(to) {
                    parents.insert(to, (from, event));
                    next.push(after);
                }
            }
        }
        (layer, depth) = (next, depth + 1);
    }
    Explored { states: known.len(), depth, mistake: None }
}

/// Returns what is wrong once the world is quiet: with all rails healed, and with each one alone.
fn unsound(world: &World, rails: usize, sound: &mut HashSet<Key>) -> Option<String> {
    let all = RailSet::first(rails);
    let one = (0..rails).map(RailSet::of).filter(|one| *one != all);
    one.chain([all]).find_map(|healed| {
        let mut quiet = world.clone();
        quiet.quiet(healed);
        // What follows is one way, so a state on the way of another one is sound, too.
        let mut way = Vec::new();
        loop {
            let mark = key(&quiet) ^ Key::from(healed.bits());
            if way.contains(&mark) {
                return Some(format!("it goes in a circle with rails {healed} healed: {quiet:?}"));
            }
            if !sound.insert(mark) {
                return None;
            }
            way.push(mark);
            if !quiet.settle() {
                break;
            }
        }
        let why = quiet.verdict(healed);
        if why.is_some() {
            way.iter().for_each(|mark| {
                sound.remove(mark);
            });
        }
        why.map(|why| format!("{why} with rails {healed} healed: {quiet:?}"))
    })
}

fn trace(parents: &HashMap<Key, (Key, Event)>, mut at: Key) -> Vec<Event> {
    let mut events = Vec::new();
    while let Some((parent, event)) = parents.get(&at) {
        events.push(*event);
        at = *parent;
    }
    events.reverse();
    events
}

fn bounds(rails: usize, groups: u64, deaths: usize, breaks: usize) -> Bounds {
    Bounds { rails, groups, optional: true, mailbox: rails > 1, deaths, breaks, attempts: deaths + 1 }
}

/// Asserts that nothing is wrong, and prints how much was seen.
fn is_sound(bounds: Bounds, dead: RailSet) {
    let explored = explore(World::new(bounds, Rule::AsItIs, dead), bounds.rails);
    eprintln!("{bounds:?}, dead {dead}: {} states, depth {}", explored.states, explored.depth);
    assert!(explored.mistake.is_none(), "{:#?}", explored.mistake);
}

#[test]
fn one_rail_that_dies_beside_a_break_is_explored_whole() {
    is_sound(bounds(1, 1, 1, 1), RailSet::EMPTY);
}

#[test]
fn a_rail_that_is_dead_from_the_start_is_explored_whole() {
    is_sound(bounds(1, 1, 0, 1), RailSet::of(0));
}

#[test]
fn two_rails_of_which_one_dies_are_explored_whole() {
    is_sound(Bounds { mailbox: false, ..bounds(2, 1, 1, 0) }, RailSet::EMPTY);
}

#[test]
#[ignore = "takes minutes; make explore runs it"]
fn larger_worlds_are_explored_whole() {
    is_sound(bounds(2, 1, 0, 0), RailSet::of(1));
    is_sound(bounds(1, 2, 1, 1), RailSet::EMPTY);
    is_sound(bounds(1, 1, 2, 1), RailSet::EMPTY);
    let beside_a_break = Bounds { mailbox: false, ..bounds(2, 1, 1, 1) };
    is_sound(beside_a_break, RailSet::EMPTY);
    let of_three_rails = Bounds { mailbox: false, ..bounds(3, 1, 1, 0) };
    is_sound(of_three_rails, RailSet::EMPTY);
    let of_two_groups = Bounds { mailbox: false, ..bounds(2, 2, 1, 0) };
    is_sound(of_two_groups, RailSet::EMPTY);
    // 2.4 million states, in 2 GB.
    is_sound(bounds(2, 1, 1, 0), RailSet::EMPTY);
}

#[test]
fn each_mistake_is_found() {
    use Rule::*;
    for rule in [
        UpWaitsForParts,
        LastMessageOnly,
        ReturnWaits,
        HoldsTheLastRail,
        AnswerLimit,
        UsesAtOnce,
        ClosesSilently,
    ] {
        let explored = explore(World::new(bounds(1, 1, 1, 1), rule, RailSet::EMPTY), 1);
        let Some((trace, why)) = explored.mistake else { panic!("{rule:?} is not found") };
        eprintln!("{rule:?}: after {} states, by {trace:?}: {:.60}", explored.states, why);
    }
}
