//! Hints from an agent process decide each transfer's split in advanced mode, whatever becomes of the agent.

extern crate softverbs as _;

mod common;
#[allow(dead_code, reason = "each test file uses its own part")]
mod hints_util;

use common::pair::{Pair, until};
use common::table::{newest, take_warnings};
use common::{TWO_RAILS, isolated, set};
use hints_util::{Place, run_agent};

const MIB: usize = 1 << 20;

/// The agent process itself; nothing where this runs as a test.
#[test]
fn agent_process() {
    run_agent();
}

/// Bytes that this process has sent on SUP.
fn sup_bytes() -> u64 {
    let counters = softverbs::counters();
    counters.iter().find(|d| d.name == "soft1").unwrap().qps.iter().map(|q| q.counters.bytes).sum()
}

/// Sends 1 MiB after 1 MiB until SUP carries `new` of it; before that each has `old`.
fn until_sup_carries(pair: &Pair, old: u64, new: u64) {
    until("the new share", || {
        let before = sup_bytes();
        pair.message(MIB, MIB, 3);
        let carried = sup_bytes() - before;
        assert!(carried == old || carried == new, "{carried} bytes on SUP, neither {old} nor {new}");
        (carried == new).then_some(())
    });
}

#[test]
fn hints_move_data_between_the_rails() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::new();
        set("MPIB_AGENT_SOCKET", Some(&place.options.socket));
        set("MPIB_HINTS", Some(&place.options.file));
        let mut agent = place.agent();
        // Sender and receiver, both ends of one connection, are registered each by itself.
        let pair = Pair::new(newest());
        for _ in 0..2 {
            agent.event("registered");
        }
        let mut old = 0;
        for (share, new) in [(256, 262_144), (1024, MIB as u64), (512, 524_288), (0, 0), (768, 786_432)] {
            agent.tell(&format!("set 1 {share}"));
            until_sup_carries(&pair, old, new);
            old = new;
        }
        assert_eq!(take_warnings(), [""; 0], "nothing is wrong yet");
        // The last good hint stays.
        agent.kill();
        until("a warning", || take_warnings().iter().any(|w| w.contains("agent.sock")).then_some(()));
        until_sup_carries(&pair, old, old);
        let mut agent = place.agent();
        for _ in 0..2 {
            agent.event("registered");
        }
        agent.tell("set 1 256");
        until_sup_carries(&pair, old, 262_144);
        pair.close();
        for _ in 0..2 {
            agent.event("deregistered");
        }
    });
}
