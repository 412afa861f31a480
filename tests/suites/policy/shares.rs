//! The split of each message, counted on two rails of different speed: exactly as the rule gives
//! it, while hints change all the time, and every byte arrives.

use std::collections::{HashSet, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use mpib_tests::agent::{Agent, Place};
use mpib_tests::code::Success;
use mpib_tests::log::{has_logged, take_warnings};
use mpib_tests::pair::{Buffer, init, pattern, until};
use mpib_tests::peer::{Peer, send, to_peer, wait};
use mpib_tests::rng::Rng;
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{SPLIT_ALL, TWO_RAILS, here, isolated, set};

use super::shares_util::{Part, Rig, by_the_rule, carried, message, since};

/// Shares around every edge.
const SHARES: [u16; 7] = [0, 1, 256, 512, 768, 1023, 1024];
/// Sizes around the edges of the split and of the immediate.
const SIZES: [usize; 22] = [
    0,
    1,
    127,
    128,
    129,
    255,
    256,
    257,
    4095,
    4096,
    4097,
    65_535,
    131_072,
    (1 << 20) - 1,
    1 << 20,
    (1 << 20) + 1,
    (2 << 20) - 1,
    2 << 20,
    (2 << 20) + 1,
    (2 << 20) + 128,
    8 << 20,
    (8 << 20) + 4099,
];
/// The smallest size at which no two shares cut alike.
const TELLING: usize = 128 << 10;

/// Two rails of 4 and 2 GB/s; SOUT has an address of an island, or one outside of any.
const INTRA: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,rate=4GB;soft1:addr=10.2.0.1/16,rate=2GB");
const INTER: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=169.254.0.1/16,rate=4GB;soft1:addr=10.2.0.1/16,rate=2GB");
/// The IPv4 address of either.
const GID: (&str, &str) = ("NCCL_IB_GID_INDEX", "3");
/// Hosts of this one's island and of another.
const NEAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16");
const FAR: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.1.3/16;soft1:addr=10.2.1.3/16");

/// Has the agent say `new` where it said `old`, and exchanges the group until the new share counts,
/// and then once more. Each time its sends have the old share or the new one, and none the old
/// after the new.
fn change(rig: &mut Rig, agent: &mut Agent, (old, new): (u16, u16), group: &[Part], order: &[usize]) {
    let cut = |switch: usize| {
        let share = |turn| if turn < switch { old } else { new };
        let sends: Vec<_> = order.iter().enumerate().map(|(turn, &i)| (group[i].len, share(turn))).collect();
        by_the_rule(&sends, true)
    };
    let telling = |share| by_the_rule(&[(TELLING, share)], true);
    let allowed: Vec<_> = (0..=order.len()).map(cut).collect();
    let (all_new, all_old) = (allowed[0], allowed[order.len()]);
    agent.tell(&format!("set 1 {new}"));
    let mut arrived = false;
    until("the new share", || {
        let rails = rig.exchange(group, order);
        let good = if arrived { rails == all_new } else { allowed.contains(&rails) };
        assert!(good, "{group:?}: {rails:?} with {new} after {old}, seen before: {arrived}");
        arrived |= rails != all_old;
        let rails = rig.exchange(&message(TELLING), &[0]);
        assert!(rails == telling(new) || !arrived && rails == telling(old), "{rails:?}, {new} after {old}");
        arrived |= rails == telling(new);
        arrived.then_some(())
    });
    assert_eq!(rig.exchange(group, order), all_new, "{group:?} with {new} after {old}");
}

/// What a test with an agent does, once the connection is registered.
fn hinted(test: &str, addresses: (&'static str, &'static str), body: impl FnOnce(Rig, &mut Agent, Rng)) {
    let env = [("MPIB_MODE", "1"), ("MPIB_HINT_POLL_US", "100"), SPLIT_ALL, GID, addresses];
    let env = [&TWO_RAILS[..], &env].concat();
    isolated(test, &env, || {
        let (_, rng) = Rng::from_env();
        let place = Place::create();
        set("MPIB_AGENT_SOCKET", Some(place.socket()));
        set("MPIB_HINTS", Some(place.file()));
        let mut agent = place.agent();
        let rig = Rig::new();
        for _ in 0..2 {
            agent.event("registered");
        }
        let class = if addresses == INTRA { "intra-island, split" } else { "inter-island, split" };
        assert!(has_logged(class), "not {class}");
        body(rig, &mut agent, rng);
        assert_eq!(take_warnings(), [""; 0]);
    });
}

/// Every share after another one, and every size with a share that the message before did not have.
fn every_message(mut rig: Rig, agent: &mut Agent, mut rng: Rng) {
    let mut shares = VecDeque::new();
    let mut old = 0;
    for round in 0..4 {
        for size in SIZES {
            if shares.is_empty() {
                shares.extend(SHARES);
                shares.extend((0..5).map(|_| rng.below(1025) as u16));
                rng.shuffle(shares.make_contiguous());
            }
            let new = shares.pop_front().unwrap();
            let size = if round < 2 { size } else { rng.below(300_000) };
            if new != old {
                change(&mut rig, agent, (old, new), &message(size), &[0]);
                old = new;
            }
        }
    }
    rig.close();
}

//= mpib.md: each message uses the hint of its time
#[test]
fn every_message_within_an_island_is_cut_by_the_hint_of_its_time() {
    hinted(here!(), INTRA, every_message);
}

//= mpib.md: each message uses the hint of its time
#[test]
fn every_message_between_islands_is_cut_by_the_hint_of_its_time() {
    hinted(here!(), INTER, every_message);
}

/// 2 to 8 receives, some sends shorter than their receives, some empty, in any order.
fn random_group(rng: &mut Rng) -> (Vec<Part>, Vec<usize>) {
    let n = 2 + rng.below(7);
    let empty = rng.below(10) == 0;
    let parts = (0..n).map(|_| {
        let room = match rng.below(4) {
            0 => rng.below(300),
            1 => rng.pick(&[127, 128, 129, 4096, 65_536, 1 << 20]),
            _ => rng.below(200_000),
        };
        let len = match rng.below(4) {
            0 => 0,
            1 => rng.below(room + 1),
            _ => room,
        };
        Part { room, len: if empty { 0 } else { len } }
    });
    let parts: Vec<_> = parts.collect();
    let mut order: Vec<_> = (0..n).collect();
    rng.shuffle(&mut order);
    (parts, order)
}

fn every_group(mut rig: Rig, agent: &mut Agent, mut rng: Rng) {
    let mut old = 0;
    for turn in 0..60 {
        let new = if turn % 3 == 0 { rng.pick(&SHARES) } else { rng.below(1025) as u16 };
        let (group, order) = random_group(&mut rng);
        if new != old {
            change(&mut rig, agent, (old, new), &group, &order);
            old = new;
        }
    }
    rig.close();
}

//= mpib.md: each send of a group uses the hint of its time
#[test]
fn every_group_within_an_island_is_cut_by_the_hints_of_its_time() {
    hinted(here!(), INTRA, every_group);
}

//= mpib.md: each send of a group uses the hint of its time
#[test]
fn every_group_between_islands_is_cut_by_the_hints_of_its_time() {
    hinted(here!(), INTER, every_group);
}

/// Stops the thread that changes hints, even if the test panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Up to eight messages under way while the hints change at random. Each has a share that the agent
/// said, in the order in which it said them. None is so large that softverbs goes on with it after
/// the post: what is counted during a post is that message's.
fn under_way(mut rig: Rig, agent: &mut Agent, mut rng: Rng) {
    const AT_ONCE: usize = 8;
    const ROOM: usize = TELLING;
    let said = Mutex::new(vec![0u16]);
    let stop = AtomicBool::new(false);
    let mut changes = Rng::new(rng.draw());
    std::thread::scope(|scope| {
        let _stop = Stop(&stop);
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let share =
                    if changes.below(3) == 0 { changes.pick(&SHARES) } else { changes.below(1025) as u16 };
                // Before the agent does it: what is seen was always said.
                said.lock().unwrap().push(share);
                agent.tell(&format!("set 1 {share}"));
            }
        });
        let mut place = 0;
        let mut seen = HashSet::new();
        let mut flights: VecDeque<(Ptr, Ptr, usize, usize, usize)> = VecDeque::new();
        let mut sent = 0;
        until("messages of many shares", || {
            let index = sent % AT_ONCE;
            if flights.len() == AT_ONCE {
                land(&mut rig, flights.pop_front().unwrap());
            }
            let len = if rng.below(2) == 0 { TELLING } else { rng.below(ROOM) };
            let (at, source) = (index * (ROOM + 64), rig.source());
            let recv = rig.pair.irecv(&[(rig.to.addr() + at, ROOM, 1, rig.to.mr)]);
            let before = carried();
            let send = rig.pair.isend(rig.from.addr() + source, len, 1, rig.from.mr);
            let rails = since(before);
            let said = said.lock().unwrap();
            let fits = |share: &u16| by_the_rule(&[(len, *share)], false) == rails;
            let found = said[place..].iter().position(fits);
            place += found.unwrap_or_else(|| panic!("{len} bytes: {rails:?}, shares {:?}", &said[place..]));
            if len == TELLING {
                seen.insert(said[place]);
            }
            flights.push_back((recv, send, at, source, len));
            sent += 1;
            (sent >= 2000 && seen.len() >= 50).then_some(())
        });
        flights.into_iter().for_each(|flight| land(&mut rig, flight));
        eprintln!("{sent} messages, {} shares seen of {} said", seen.len(), said.lock().unwrap().len());
    });
    rig.close();
}

/// Waits for one message and checks it.
fn land(rig: &mut Rig, (recv, send, at, source, len): (Ptr, Ptr, usize, usize, usize)) {
    assert_eq!([recv, send].map(|request| rig.pair.wait(request)[0] as usize), [len; 2]);
    assert!(rig.to.bytes[at..at + len] == rig.from.bytes[source..source + len], "{len} bytes differ");
    rig.to.bytes[at..at + len].fill(0xEE);
}

//= mpib.md: messages in flight use shares that the agent wrote
#[test]
fn messages_in_flight_within_an_island_have_hinted_shares() {
    hinted(here!(), INTRA, under_way);
}

//= mpib.md: messages in flight use shares that the agent wrote
#[test]
fn messages_in_flight_between_islands_have_hinted_shares() {
    hinted(here!(), INTER, under_way);
}

/// `MPIB_SUP_SHARE`, which wants no agent.
fn fixed(test: &str, addresses: (&'static str, &'static str)) {
    isolated(test, &[&TWO_RAILS[..], &[addresses, GID, SPLIT_ALL]].concat(), || {
        let (_, mut rng) = Rng::from_env();
        for share in SHARES.into_iter().chain((0..5).map(|_| rng.below(1025) as u16)).collect::<Vec<_>>() {
            set("MPIB_SUP_SHARE", Some(share.to_string()));
            let mut rig = Rig::new();
            for size in SIZES {
                let rails = rig.exchange(&message(size), &[0]);
                assert_eq!(rails, by_the_rule(&[(size, share)], true), "{size} bytes with {share}");
            }
            for _ in 0..10 {
                let (group, order) = random_group(&mut rng);
                let sends: Vec<_> = group.iter().map(|part| (part.len, share)).collect();
                assert_eq!(rig.exchange(&group, &order), by_the_rule(&sends, true), "{group:?} with {share}");
            }
            rig.close();
        }
    });
}

//= mpib.md: SUP carries size * share / 1024 bytes, in multiples of 128
//= configuration.md: MPIB_SUP_SHARE
#[test]
fn fixed_shares_within_an_island_are_exact() {
    fixed(here!(), INTRA);
}

//= mpib.md: SUP carries size * share / 1024 bytes, in multiples of 128
#[test]
fn fixed_shares_between_islands_are_exact() {
    fixed(here!(), INTER);
}

/// A threshold keeps what is small on SOUT between islands, and there only: with an agent that
/// wants all on SUP.
//= mpib.md: MPIB_BDP_THRESHOLD keeps small inter-island transfers on SOUT
//= configuration.md: MPIB_BDP_THRESHOLD
#[test]
fn the_threshold_keeps_small_messages_to_the_other_island_on_sout() {
    let env = [("MPIB_MODE", "1"), ("MPIB_BDP_THRESHOLD", "4096"), ("MPIB_HINT_POLL_US", "100"), INTRA];
    isolated(here!(), &[&TWO_RAILS[..], &env].concat(), || {
        let place = Place::create();
        set("MPIB_AGENT_SOCKET", Some(place.socket()));
        set("MPIB_HINTS", Some(place.file()));
        let mut agent = place.agent();
        let (table, ctx) = (newest(), init(newest()));
        for (other, host, below) in [(FAR, 3, 0), (NEAR, 2, 1024)] {
            let mut peer = Peer::start_with(&[other]);
            let comm = to_peer(table, ctx, &mut peer);
            agent.event("registered");
            agent.event("registered");
            agent.tell(&format!("set {host} 1024"));
            let from = Buffer::new(table, comm, pattern(1 << 20, 5));
            let mut to = |len: usize| {
                let before = carried();
                peer.say(&format!("recv {len} 5"));
                assert_eq!(wait(table, send(table, comm, &from, len)), len);
                assert_eq!(peer.answer(), "ok");
                since(before)
            };
            until("the hint", || (to(1 << 20) == by_the_rule(&[(1 << 20, 1024)], false)).then_some(()));
            for (len, share) in [(1, below), (4095, below), (4096, below), (4097, 1024), (65_536, 1024)] {
                assert_eq!(to(len), by_the_rule(&[(len, share)], false), "{len} bytes to {other:?}");
            }
            from.dereg();
            assert_eq!(table.close_send(comm), Success);
            peer.must("close");
            peer.finish();
        }
    });
}
