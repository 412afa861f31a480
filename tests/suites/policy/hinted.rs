//! Hints from an agent process decide the split of each transfer in advanced mode, with and without
//! a working agent.

use mpib_tests::agent::{Agent, Place};
use mpib_tests::code::{InvalidUsage, RemoteError, Success};
use mpib_tests::log::{take_warnings, warnings};
use mpib_tests::pair::{Pair, both_fail, connect, init, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{TWO_RAILS, here, isolated, set};
use nccl_net_mpib_agent_iface::agent::entry_offset;

const MIB: usize = 1 << 20;

/// Bytes that this process has sent on SUP.
fn sup_bytes() -> u64 {
    let counters = softverbs::counters();
    counters.iter().find(|d| d.name == "soft1").unwrap().qps.iter().map(|q| q.counters.bytes).sum()
}

/// Sends 1 MiB after 1 MiB until SUP carries `new` of it; before that each has one of `old`.
fn until_sup_carries(pair: &Pair, old: &[u64], new: u64) {
    until("the new share", || {
        let before = sup_bytes();
        pair.message(MIB, MIB, 3);
        let carried = sup_bytes() - before;
        assert!(
            old.contains(&carried) || carried == new,
            "{carried} bytes on SUP, neither {old:?} nor {new}"
        );
        (carried == new).then_some(())
    });
}

//= mpib.md: advanced: both rails are joined, the hint splits each transfer
//= configuration.md: MPIB_HINTS
//= configuration.md: MPIB_AGENT_SOCKET
#[test]
fn hints_move_data_between_the_rails() {
    isolated(here!(), &[&TWO_RAILS[..], &[("MPIB_MODE", "1")]].concat(), || {
        let place = Place::create();
        set("MPIB_AGENT_SOCKET", Some(place.socket()));
        set("MPIB_HINTS", Some(place.file()));
        let mut agent = place.agent();
        // Sender and receiver, both ends of one connection, are registered each by itself.
        let pair = Pair::new(newest());
        for _ in 0..2 {
            agent.event("registered");
        }
        let mut old = 0;
        for (share, new) in [(256, 262_144), (1024, MIB as u64), (512, 524_288), (0, 0), (768, 786_432)] {
            agent.tell(&format!("set 1 {share}"));
            until_sup_carries(&pair, &[old], new);
            old = new;
        }
        assert_eq!(take_warnings(), [""; 0], "nothing is wrong yet");
        // The last good hint stays.
        agent.kill();
        until("a warning", || take_warnings().iter().any(|w| w.contains("agent.sock")).then_some(()));
        until_sup_carries(&pair, &[old], old);
        let mut agent = place.agent();
        for _ in 0..2 {
            agent.event("registered");
        }
        agent.tell("set 1 256");
        // The slot of a new agent has the share 0 until then.
        until_sup_carries(&pair, &[old, 0], 262_144);
        pair.close();
        for _ in 0..2 {
            agent.event("deregistered");
        }
    });
}

/// Settings of a place, in a process that demands hints.
fn strictly(test: &str, body: impl FnOnce(&Place)) {
    isolated(test, &[&TWO_RAILS[..], &[("MPIB_MODE", "1"), ("MPIB_STRICT", "1")]].concat(), || {
        let place = Place::create();
        set("MPIB_AGENT_SOCKET", Some(place.socket()));
        set("MPIB_HINTS", Some(place.file()));
        body(&place);
    });
}

/// Checks that neither end gets a comm, and that both name `path`, the reason and the remedy.
fn refused(path: &std::path::Path, why: &str) {
    let (table, ctx) = (newest(), init(newest()));
    let mut handle = [0; 128];
    let (_, listen) = table.listen(ctx, 0, &mut handle);
    let reported = |said: &[String]| said.iter().filter(|l| l.contains("(MPIB_STRICT=1)")).count();
    let [code, _] = both_fail(table, ctx, &mut handle, listen);
    assert_eq!(reported(&warnings()), 2, "{:?}", warnings());
    // Both ends wait for the same time from nearly the same moment. The connector either reaches
    // its limit first, or receives the refusal of the other end.
    let refused = |line: &String| line.contains("connect: ") && line.contains(" refuses: no hint");
    let reported = warnings().iter().any(refused);
    assert_eq!(
        code,
        if reported { RemoteError } else { InvalidUsage },
        "ncclRemoteError where the other end was first, else ncclInvalidUsage"
    );
    let said = take_warnings();
    for line in said.iter().filter(|l| l.contains("(MPIB_STRICT=1)")) {
        for part in [
            "no hint for the connection with",
            path.to_str().unwrap(),
            why,
            "Start the agent",
            "MPIB_AGENT_SOCKET",
        ] {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
    }
    assert_eq!(table.close_listen(listen), Success);
}

//= faults.md: 28
//= agent.md: MPIB_STRICT=1 requires an agent, its answer and a hint file
#[test]
fn strict_refuses_a_connection_where_there_is_no_agent() {
    strictly(here!(), |place| refused(place.socket(), "nobody listens there"));
}

//= agent.md: MPIB_STRICT=1 requires an agent, its answer and a hint file
#[test]
fn strict_refuses_a_connection_where_the_agent_does_not_answer() {
    strictly(here!(), |place| {
        let mut agent = place.agent();
        agent.tell("mode silent");
        refused(place.socket(), "answer");
    });
}

//= agent.md: MPIB_STRICT=1 requires an agent, its answer and a hint file
#[test]
fn strict_refuses_a_connection_where_there_is_no_hint_file() {
    strictly(here!(), |place| {
        let _agent: Agent = place.agent();
        std::fs::remove_file(place.file()).unwrap();
        refused(place.file(), "no such file");
    });
}

/// An agent that comes while a connection waits for it is in time; once it has said something, it
/// may go.
//= agent.md: MPIB_STRICT=1 waits for an agent that starts in time, and goes on without it later
#[test]
fn strict_waits_for_an_agent_that_begins_to_listen_and_goes_on_without_it() {
    strictly(here!(), |place| {
        let mut agent = place.idle_agent();
        agent.tell("hints");
        let (table, ctx) = (newest(), init(newest()));
        let mut handle = [0; 128];
        let (_, listen) = table.listen(ctx, 0, &mut handle);
        let mut comms = [Ptr::default(); 2];
        let mut poll = |handle: &mut [u8; 128]| {
            if comms[0].is_null() {
                let (rc, comm) = table.connect(ctx, 0, handle);
                assert_eq!(rc, Success, "connect");
                comms[0] = comm;
            }
            if comms[1].is_null() {
                comms[1] = table.accept(listen).1;
            }
            comms.iter().all(|comm| !comm.is_null()).then_some(comms)
        };
        until("a warning", || {
            assert!(poll(&mut handle).is_none(), "connected without a hint");
            take_warnings().iter().any(|w| w.contains("nobody listens there")).then_some(())
        });
        agent.tell("listen");
        let [send, recv] = until("both ends", || poll(&mut handle));
        assert_eq!(table.close_listen(listen), Success);
        let pair = Pair { table, send, recv };
        agent.tell("set 1 512");
        until_sup_carries(&pair, &[0], 524_288);
        agent.kill();
        for _ in 0..20 {
            until_sup_carries(&pair, &[524_288], 524_288);
        }
        pair.close();
    });
}

/// Else a hint would be there within milliseconds, as in the other tests.
//= configuration.md: MPIB_HINT_POLL_US
#[test]
fn hints_are_read_at_the_configured_interval() {
    strictly(here!(), |place| {
        set("MPIB_HINT_POLL_US", Some("60000000"));
        let mut agent = place.agent();
        // Made once both ends have their first hint, which is 0.
        let pair = Pair::new(newest());
        agent.tell("set 1 256");
        let written = || std::fs::read(place.file()).unwrap();
        let hint = entry_offset(0);
        until("the agent's hint", || (written()[hint..hint + 4] == 256u32.to_le_bytes()).then_some(()));
        for _ in 0..20 {
            until_sup_carries(&pair, &[0], 0);
        }
        // Read again with another connection's first.
        let other = Pair::new(newest());
        until_sup_carries(&pair, &[0], 262_144);
        other.close();
        pair.close();
    });
}

/// Where no hint can count, strict or not, no agent is missed.
//= agent.md: MPIB_STRICT=1 needs no agent in vanilla mode or with a fixed share
#[test]
fn strict_needs_no_agent_in_vanilla_mode_or_with_a_fixed_share() {
    strictly(here!(), |_| {
        for (variable, value) in [("MPIB_SUP_SHARE", "512"), ("MPIB_MODE", "0")] {
            set(variable, Some(value));
            let pair = connect(newest(), init(newest()), 0);
            pair.message(MIB, MIB, 1);
            pair.close();
            set("MPIB_SUP_SHARE", None::<&str>);
        }
        assert_eq!(take_warnings(), [""; 0]);
    });
}
