//! The agent's client against a real agent process that fails in every way.

use std::fs;
use std::path::Path;
use std::time::Duration;

use mpib_tests::agent::{Agent, Place, overwrite, wait_share};
use mpib_tests::pair::{init, until};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::agent::Subscription;
use nccl_net_mpib_agent_iface::agent::entry_offset;
use nccl_net_mpib_agent_iface::stats::StatsWriter;

fn warnings(place: &Place) -> Vec<String> {
    place.log().into_iter().filter(|line| line.0).map(|line| line.1).collect()
}

/// The agent registers a connection, and the flow gets a share; `host` is the last byte of its
/// peer.
fn gets_share(agent: &mut Agent, flow: &Subscription, host: u8, share: u16) {
    agent.event("registered");
    agent.tell(&format!("set {host} {share}"));
    wait_share(flow, share);
}

/// A connection with a hint of 256 in slot 0.
fn hinted(place: &Place) -> (Agent, Subscription) {
    let mut agent = place.agent();
    let flow = place.flow(2);
    gets_share(&mut agent, &flow, 2, 256);
    (agent, flow)
}

//= agent-interface.md: register, hint, deregister; shares above 1024 count as 1024
#[test]
fn a_connection_is_registered_hinted_and_deregistered() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let mut agent = place.agent();
        let flow = place.flow(2);
        assert_eq!(flow.share(), 0);
        assert_eq!(agent.event("registered"), format!("registered {} 10.1.0.2 0", flow.conn_id()));
        for share in [1, 1023, 1024, 0, 512] {
            agent.tell(&format!("set 2 {share}"));
            wait_share(&flow, share);
        }
        // More than all is all.
        for odd in [1025u32, 65536 + 3, u32::MAX] {
            overwrite(place.file(), entry_offset(0) as u64, &odd.to_le_bytes());
            wait_share(&flow, 1024);
            agent.tell("set 2 7");
            wait_share(&flow, 7);
        }
        let id = flow.conn_id();
        drop(flow);
        agent.event(&format!("deregistered {id}"));
        // The last one has ended, and the thread with it.
        agent.event("closed");
        let log = place.log();
        assert!(log.iter().all(|line| !line.0), "{log:?}");
        place.wait_line(0, false, "the agent answers");
        place.wait_line(0, false, "the hint file is good");
        assert_eq!(log.len(), 2, "{log:?}");
    });
}

//= agent-interface.md: one agent connection per process, one slot per pair of hosts
#[test]
fn connections_of_a_process_share_one_agent_connection_and_a_pair_one_slot() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let mut agent = place.agent();
        let flows: Vec<_> = (0..40).map(|i| place.flow(2 + i % 4)).collect();
        let mut ids: Vec<String> = flows.iter().map(|_| agent.event("registered")).collect();
        ids.sort();
        ids.dedup();
        assert_eq!(ids.len(), 40, "each connection has an identifier of its own");
        for last in 2..6 {
            agent.tell(&format!("set {last} {}", last * 100));
        }
        for (i, flow) in flows.iter().enumerate() {
            wait_share(flow, (2 + i as u16 % 4) * 100);
        }
        assert_eq!(agent.so_far("connected").len(), 1);
        drop(flows);
        for _ in 0..40 {
            agent.event("deregistered");
        }
        agent.event("closed");
        // A new first connection starts again.
        let flow = place.flow(3);
        agent.event("registered");
        wait_share(&flow, 300);
    });
}

//= faults.md: 28: there is no agent: one warning; an error with MPIB_STRICT=1; a later one is found
//= agent.md: an agent that starts later is found
#[test]
fn an_agent_that_appears_later_is_found() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let flow = place.flow(2);
        let line = place.wait_line(0, true, "nobody listens there");
        assert!(line.1.contains(place.socket().to_str().unwrap()), "{line:?}");
        assert!(
            line.1.contains("0 of 1 connections with their last good hint, the others by MPIB_SPLIT"),
            "{line:?}"
        );
        assert_eq!(flow.share(), 0);
        let mut agent = place.agent();
        gets_share(&mut agent, &flow, 2, 700);
        place.wait_line(0, false, "the agent answers again, after ");
        assert_eq!(warnings(&place).len(), 1, "{:?}", place.log());
    });
}

//= faults.md: 29: the agent dies: its last hints stay, connections register with the next
//= agent.md: the last hints outlive a killed agent; its successor may assign other slots
#[test]
fn a_killed_agent_leaves_its_hints_and_a_new_one_may_give_other_slots() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let (agent, flow) = hinted(&place);
        let closed = place.flow(3);
        agent.kill();
        place.wait_line(0, true, "agent.sock");
        // Dropped while there is no agent: no agent hears of it later.
        let closed_id = closed.conn_id();
        drop(closed);
        assert_eq!(flow.share(), 256);
        let mut agent = place.idle_agent();
        agent.tell("hints");
        agent.tell("next 77");
        agent.tell("listen");
        assert_eq!(agent.event("registered"), format!("registered {} 10.1.0.2 77", flow.conn_id()));
        agent.tell("set 2 99");
        wait_share(&flow, 99);
        place.wait_line(0, false, "the agent answers again, after ");
        assert_eq!(warnings(&place).len(), 1, "{:?}", place.log());
        let id = flow.conn_id();
        drop(flow);
        agent.event(&format!("deregistered {id}"));
        agent.event("closed");
        assert!(agent.so_far(&format!("registered {closed_id}")).is_empty());
    });
}

//= agent.md: a closed connection is not registered with a restarted agent
#[test]
fn a_connection_whose_end_a_killed_agent_never_confirmed_is_not_registered_again() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let (mut agent, flow) = hinted(&place);
        let closed = place.flow(3);
        agent.event("registered");
        agent.tell("mode silent");
        let closed_id = closed.conn_id();
        drop(closed);
        agent.event(&format!("deregistered {closed_id}"));
        agent.kill();
        let mut agent = place.agent();
        assert_eq!(agent.event("registered"), format!("registered {} 10.1.0.2 0", flow.conn_id()));
        let id = flow.conn_id();
        drop(flow);
        agent.event(&format!("deregistered {id}"));
        agent.event("closed");
        assert!(agent.so_far("registered").is_empty());
    });
}

//= faults.md: 32: the hint file is cut, damaged, replaced or removed: the last hint stays
//= agent.md: a damaged, missing or replaced hint file keeps the last hint
#[test]
fn a_damaged_hint_file_keeps_the_last_hint_until_a_good_file_appears() {
    isolated(here!(), &[], || {
        type Vandal = fn(&Path);
        let vandals: [(&str, Vandal); 9] = [
            ("0 bytes, expected 4112", |path| fs::File::create(path).map(drop).unwrap()),
            ("4111 bytes, expected 4112", |path| {
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4111).unwrap();
            }),
            ("4113 bytes, expected 4112", |path| {
                fs::OpenOptions::new().write(true).open(path).unwrap().set_len(4113).unwrap();
            }),
            ("not a hint file: magic 0x4d504958 at byte 0, expected 0x4d504948", |path| {
                overwrite(path, 0, b"X")
            }),
            ("not a hint file: 257 entries according to byte 4, expected 256", |path| {
                overwrite(path, 4, &[1])
            }),
            ("no such file", |path| fs::remove_file(path).unwrap()),
            ("not a regular file", |path| {
                fs::remove_file(path).unwrap();
                // Opening it for reading would wait for a writer.
                assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
            }),
            ("is a symbolic link to nowhere", |path| {
                fs::remove_file(path).unwrap();
                std::os::unix::fs::symlink("nowhere", path).unwrap();
            }),
            ("4 bytes, expected 4112", |path| {
                let new = path.with_extension("other");
                fs::write(&new, "text").unwrap();
                fs::rename(new, path).unwrap();
            }),
        ];
        for (what, vandal) in vandals {
            let place = Place::create();
            let (mut agent, flow) = hinted(&place);
            vandal(place.file());
            let line = place.wait_line(0, true, what);
            assert!(line.1.contains(place.file().to_str().unwrap()), "{line:?}");
            assert!(line.1.contains("1 of 1 connections with their last good hint"), "{line:?}");
            assert_eq!(flow.share(), 256);
            // A new file with the old slots, put in place in one step.
            agent.tell("hints");
            agent.tell("set 2 300");
            wait_share(&flow, 300);
            place.wait_line(0, false, "the hint file is good again, after ");
            let warnings = warnings(&place);
            // Between the two steps of some, there is no file for a moment.
            let moment = warnings.iter().filter(|w| w.contains("no such file")).count();
            assert!(warnings.len() == 1 || (warnings.len() == 2 && moment == 1), "{warnings:#?}");
        }
    });
}

//= faults.md: 32
//= agent.md: a valid replacement of the hint file is no fault
#[test]
fn a_file_that_another_good_one_replaces_is_no_fault() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let (mut agent, flow) = hinted(&place);
        for share in [300, 400] {
            agent.tell("hints");
            agent.tell(&format!("set 2 {share}"));
            wait_share(&flow, share);
        }
        assert!(warnings(&place).is_empty(), "{:?}", place.log());
    });
}

//= faults.md: 33: the agent stops within an entry: the last hint stays, with a warning
//= agent.md: a writer that stops half way leaves the last hint
#[test]
fn a_writer_that_stops_in_the_middle_leaves_the_last_hint() {
    isolated(here!(), &[], || {
        let mut place = Place::create();
        place.options.settle_timeout = Duration::from_millis(150);
        let (mut agent, flow) = hinted(&place);
        agent.tell("stop 0");
        let line = place.wait_line(
            0,
            true,
            "slot 0, of 10.0.0.1 -> 10.0.0.2, stays half-written (sequence number 5)",
        );
        assert!(line.1.contains("/hints: for "), "{line:?}");
        assert_eq!(flow.share(), 256);
        agent.tell("set 2 300");
        wait_share(&flow, 300);
        place.wait_line(0, false, "no slot stays half-written again, after ");
        assert_eq!(warnings(&place).len(), 1, "{:?}", place.log());
    });
}

//= agent-interface.md: a slot with other addresses gives no hint
#[test]
fn a_slot_of_other_addresses_gives_no_hint() {
    isolated(here!(), &[], || {
        let mut place = Place::create();
        place.options.settle_timeout = Duration::from_millis(20);
        let (mut agent, flow) = hinted(&place);
        agent.tell("free 0");
        place.wait_line(0, true, "slot 0 is of 0.0.0.0 -> 0.0.0.0, expected 10.0.0.1 -> 10.0.0.2");
        assert_eq!(flow.share(), 256);
        agent.tell("hints");
        agent.tell("set 2 300");
        wait_share(&flow, 300);
        place.wait_line(0, false, "every slot has its connection's addresses again, after ");
    });
}

//= agent-interface.md: a reader never gets the hint of an earlier owner of a slot
#[test]
fn a_slot_that_changes_hands_never_gives_the_hint_of_another() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let (mut agent, flow) = hinted(&place);
        agent.tell("set 2 100");
        wait_share(&flow, 100);
        std::thread::scope(|scope| {
            let done = scope.spawn(|| {
                agent.tell("flip 0");
                agent.tell("set 2 500");
            });
            let mut seen = [0usize; 3];
            until("the end", || {
                loop {
                    match flow.share() {
                        0 => seen[0] += 1,
                        100 => seen[1] += 1,
                        500 => return Some(()),
                        other => panic!("share {other}, which is another pair's"),
                    }
                    if done.is_finished() || seen[1] % 4096 == 0 {
                        return None;
                    }
                }
            });
            done.join().unwrap();
        });
    });
}

//= faults.md: 30
//= agent-interface.md: a refused registration is repeated
#[test]
fn a_refused_connection_registers_again() {
    isolated(here!(), &[], || {
        for (status, meaning) in [(1, "no free slot"), (2, "invalid request"), (7, "without a meaning")] {
            let place = Place::create();
            let mut agent = place.agent();
            agent.tell(&format!("mode refuse {status}"));
            let flow = place.flow(2);
            let line = place.wait_line(0, true, "the agent gives 10.0.0.1 -> 10.0.0.2 no slot");
            assert!(line.1.contains(&format!("status {status}")) && line.1.contains(meaning), "{line:?}");
            assert_eq!(flow.share(), 0);
            agent.tell("mode answer");
            gets_share(&mut agent, &flow, 2, 300);
            place.wait_line(0, false, "every connection has a slot again, after ");
            assert_eq!(warnings(&place).len(), 1, "{:?}", place.log());
        }
    });
}

//= faults.md: 30: the agent sends garbage, refuses or hangs: it is left and tried again
//= agent.md: an agent that breaks the protocol is disconnected and retried
#[test]
fn an_agent_that_breaks_the_protocol_is_disconnected_and_retried() {
    isolated(here!(), &[], || {
        for (mode, what) in [
            ("garbage", "does not speak the agent's protocol: magic 0x50545448, expected 0x4d504952"),
            ("twice", "which no request was sent for"),
            ("wrong", "an answer without a slot to REGISTER"),
            ("slot 256", "a slot 256 for connection"),
            ("hang-up", "has closed the connection"),
            ("no-memory", "for a memory file that has not come (SCM_RIGHTS)"),
            ("unsealed", "not sealed against shrinking and growing"),
            ("strange-slot", "slot 0 of its memory file is of 9.9.9.9 -> 10.0.0.2, expected 10.0.0.1"),
            ("literal", "its answer has no header. REGISTER has 28 bytes"),
        ] {
            let place = Place::create();
            let mut agent = place.agent();
            agent.tell(&format!("mode {mode}"));
            let flow = place.flow(2);
            place.wait_line(0, true, what);
            agent.tell("mode answer");
            gets_share(&mut agent, &flow, 2, 300);
            place.wait_line(0, false, "the agent answers again, after ");
            // The agent that answers twice is good for a moment each time.
            assert!(warnings(&place).len() == 1 || mode == "twice", "{mode}: {:?}", place.log());
        }
    });
}

//= agent-interface.md: agents that do not know the flags of REGISTER are served as before
#[test]
fn an_agent_that_refuses_flags_gets_messages_without_them() {
    isolated(here!(), &[], || {
        for mode in ["no-flags", "invalid-flags"] {
            let place = Place::create();
            let mut agent = place.agent();
            agent.tell(&format!("mode {mode}"));
            let flow = place.flow(2);
            gets_share(&mut agent, &flow, 2, 300);
            place.wait_line(0, false, "the agent answers");
            assert_eq!(warnings(&place).len(), usize::from(mode == "no-flags"), "{:?}", place.log());
        }
    });
}

//= faults.md: 35: a stranger owns an agent folder: it is skipped by name, the next one counts
//= agent.md: the places of the socket are tried in order; what is not safe is not used and is named
#[test]
fn a_place_that_others_could_change_is_not_used_and_is_named() {
    isolated(here!(), &[], || {
        let (strange, missing, mut place) = (Place::create(), Place::create(), Place::create());
        let _other = strange.agent();
        let folder = strange.socket().parent().unwrap();
        fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
        place.options.sockets = [&strange, &missing, &place].map(|place| place.socket().to_owned()).to_vec();
        place.options.files = [&strange, &missing].map(|place| place.file().to_owned()).to_vec();
        let mut agent = place.idle_agent();
        agent.tell("hints");
        agent.tell("listen");
        let flow = place.flow(2);
        // The hint file beside the socket counts, wherever else files may be.
        gets_share(&mut agent, &flow, 2, 300);
        let line = strange.wait_line(0, true, "not used");
        let expected = format!("its folder {} has mode 777: other users may write to it", folder.display());
        assert!(line.1.contains(&expected), "{line:?}");
        assert_eq!(warnings(&strange).len(), 1, "once");
        assert_eq!(warnings(&missing), [""; 0]);
    });
}

//= faults.md: 30
//= agent.md: an agent that does not answer is disconnected and retried
#[test]
fn an_agent_that_does_not_answer_is_disconnected_and_retried() {
    isolated(here!(), &[], || {
        for (mode, what) in [
            ("silent", "no answer to a request within 100ms"),
            ("half", "only 9 bytes of an answer to a request within 100ms"),
        ] {
            let mut place = Place::create();
            place.options.answer_timeout = Duration::from_millis(100);
            let mut agent = place.agent();
            agent.tell(&format!("mode {mode}"));
            let flow = place.flow(2);
            place.wait_line(0, true, what);
            agent.tell("mode answer");
            gets_share(&mut agent, &flow, 2, 300);
            place.wait_line(0, false, "the agent answers again, after ");
        }
    });
}

//= agent.md: connections close while the agent hangs
#[test]
fn connections_that_end_while_the_agent_is_silent_end() {
    isolated(here!(), &[], || {
        let place = Place::create();
        let mut agent = place.agent();
        let flows: Vec<_> = (2..12).map(|i| place.flow(i)).collect();
        for _ in &flows {
            agent.event("registered");
        }
        agent.tell("mode silent");
        drop(flows);
        agent.event("deregistered");
        agent.event("closed");
    });
}

/// The kernel drops the descriptor: such an agent gets the bytes that it has always got.
//= agent-interface.md: agents that read no descriptors go on working
#[test]
fn an_agent_that_reads_no_descriptors_gives_hints_to_a_process_with_a_page() {
    isolated(here!(), &[], || {
        let _ctx = init(newest());
        assert!(StatsWriter::descriptor().is_some(), "a page");
        let place = Place::create();
        let (_agent, flow) = hinted(&place);
        assert_eq!(flow.share(), 256);
    });
}

//= faults.md: 31: the agent is another user: it is not used unless MPIB_AGENT_UID names it
//= configuration.md: MPIB_AGENT_UID
//= agent.md: socket and file of another user are refused unless MPIB_AGENT_UID names it
#[test]
fn socket_and_file_of_a_stranger_are_not_used_unless_the_settings_name_him() {
    isolated(here!(), &[], || {
        if !nix::unistd::geteuid().is_root() {
            return eprintln!("skipped: only root can play another user");
        }
        let mut place = Place::create();
        let mut agent = place.idle_agent();
        agent.tell("hints");
        agent.tell("listen 12345");
        let flow = place.flow(2);
        let line = place.wait_line(0, true, "belongs to user 12345, expected root or user 0");
        assert!(line.1.contains("agent.sock") && line.1.contains("set MPIB_AGENT_UID=12345"), "{line:?}");
        agent.tell("listen");
        gets_share(&mut agent, &flow, 2, 256);
        std::os::unix::fs::chown(place.file(), Some(12345), None).unwrap();
        // The socket's line, which says the same of its owner, may be in the log already.
        let line = place.wait_line(0, true, "hint file");
        assert!(line.1.contains("belongs to user 12345"), "{line:?}");
        agent.tell("set 2 300");
        // Of another thread, with other settings, to which he is welcome.
        place.options.agent_uid = Some(12345);
        let welcome = place.flow(2);
        wait_share(&welcome, 300);
        assert_eq!(flow.share(), 256);
    });
}
