//! Where no rail stands in: without failover, without another rail, and for a peer that lies.

use mpib_proto::{ImmLayout, Message, Numbered, OpenGroup, Replay, SenderState, Sequence, Verdict};
use mpib_tests::code::{Code, RemoteError, Success, SystemError};
use mpib_tests::log::{assert_warned, assert_warned_one_of, take_warnings, warnings};
use mpib_tests::misbehaving_peer::{receiver, sender};
use mpib_tests::pair::{Buffer, Pair, failure, init, pattern, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{NO_PINGS, SHORT, here, isolated, mpib};
use nccl_net_mpib::simulation::control::Channel;
use softverbs::{CqOf, Direction, Fault, Only, heal, inject_at};

use super::points::{Ends, env, two_hosts, two_hosts_with};

/// Makes up to `n` transfers on a connection, until both ends fail. Returns the codes of the sender
/// and of the receiver.
pub(super) fn transfer(pair: &Pair, n: usize) -> [Code; 2] {
    let data = pattern(5000, 9);
    let (from, mut to) = (pair.send_buffer(data.clone()), pair.recv_buffer(5000));
    let (mut requests, mut codes, mut left) = ([Ptr::default(); 2], [Success; 2], [n; 2]);
    until("transfers, or both ends to fail", || {
        for end in 0..2 {
            if !codes[end].is_success() || left[end] == 0 {
                continue;
            }
            if requests[end].is_null() {
                (codes[end], requests[end]) = match end {
                    0 => pair.table.isend(pair.send, from.addr(), 5000, 1, from.mr),
                    _ => pair.table.irecv(pair.recv, &[(to.addr(), 5000, 1, to.mr)]),
                };
                continue;
            }
            let (rc, done, _) = pair.table.test(requests[end]);
            codes[end] = rc;
            if done {
                (requests[end], left[end]) = (Ptr::default(), left[end] - 1);
                if end == 1 {
                    assert!(to.bytes == data, "a transfer differs");
                    to.bytes.fill(0);
                }
            }
        }
        (left == [0; 2] || codes.iter().all(|code| !code.is_success())).then_some(())
    });
    from.dereg();
    to.dereg();
    codes
}

/// A connection on which these adapters fail. The receiver learns it from the sender, and not from a
/// ping that nobody answers any more.
fn fails(test: &str, more: &[(&str, &str)], die: &[&str], fault: Fault, causes: &[&[&str]]) {
    let devices = two_hosts(2);
    isolated(test, &env(&devices, &[more, &[NO_PINGS]].concat()), || {
        let ends = Ends::two_hosts(12, 2);
        let pair = ends.connect();
        pair.message(5000, 5000, 1);
        take_warnings();
        for device in die {
            inject_at(device, fault, 1, Only::ALL).unwrap();
        }
        let codes = transfer(&pair, usize::MAX);
        assert!(codes.iter().all(|code| [RemoteError, SystemError].contains(code)), "{codes:?}");
        assert_warned_one_of(causes);
        // The other end may notice its own last rail first, by either kind of write.
        let own = [&["mailbox write", "failed on rail"][..], &["CTS write", "failed on rail"]];
        assert_warned_one_of(&[&[&["gave the connection up"][..]][..], &own].concat());
        pair.close();
    });
}

//= failover.md: fault: an end with `MPIB_FAILOVER=0`
//= configuration.md: MPIB_FAILOVER
#[test]
fn without_failover_a_dead_rail_fails_its_connection() {
    let cause = ["failed on rail 0", "IBV_WC_RETRY_EXC_ERR"];
    fails(here!(), &[("MPIB_FAILOVER", "0")], &["s0"], Fault::LinkDown, &[&cause]);
}

//= failover.md: without failover (`MPIB_FAILOVER=0`): the link is down, and the adapter keeps its work requests without an error, as the kernel's rxe may
#[test]
fn without_failover_an_adapter_that_reports_nothing_fails_its_connection() {
    let devices = two_hosts_with(2, ",without=retries");
    isolated(here!(), &env(&devices, &[("MPIB_FAILOVER", "0")]), || {
        for device in ["s0", "r0"] {
            let ends = Ends::two_hosts(12, 2);
            let pair = ends.connect();
            pair.message(5000, 5000, 1);
            take_warnings();
            inject_at(device, Fault::LinkDown, 1, Only::ALL).unwrap();
            let codes = transfer(&pair, usize::MAX);
            assert!(codes.iter().all(|code| !code.is_success()), "{codes:?}");
            assert_warned_one_of(&[
                &["rail 0", "is down", "has reported no error"],
                &["IBV_WC_RETRY_EXC_ERR"],
            ]);
            assert!(device == "r0" || warnings().iter().any(|line| line.contains("has reported no error")));
            pair.close();
            heal(device).unwrap();
        }
    });
}

//= failover.md: MPIB_STRICT=1 turns failover off unless a setting requests it
#[test]
fn with_a_strict_setting_a_dead_rail_fails_its_connection() {
    let cause = ["failed on rail 0", "IBV_WC_RETRY_EXC_ERR"];
    fails(here!(), &[("MPIB_STRICT", "1")], &["s0"], Fault::LinkDown, &[&cause]);
}

#[test]
fn a_connection_fails_with_its_last_rail() {
    let cause = ["failed on rail", "IBV_WC_RETRY_EXC_ERR"];
    let silence = Fault::Silence(Direction::Both);
    fails(here!(), &[("MPIB_FAILOVER_WAIT", "0")], &["s0", "s1"], silence, &[&cause]);
}

#[test]
fn a_connection_fails_with_its_last_port() {
    // The event of the port, or a completion that came before it.
    let causes = [&["s", "link went down"][..], &["s", ":1 is down since", "the port is not active"]];
    fails(here!(), &[("MPIB_FAILOVER_WAIT", "0")], &["s0", "s1"], Fault::LinkDown, &causes);
}

/// Where the receiver's completions are lost with its adapter, the sender may have let go of data
/// that the receiver cannot know to be there. Both ends go on, or fail by that name.
fn goes_on_or_loses_by_name(ends: &Ends, device: &str, fault: Fault, at: u64) {
    let pair = ends.connect();
    take_warnings();
    inject_at(device, fault, at, Only::ALL).unwrap();
    let codes = transfer(&pair, 30);
    let lost = warnings().iter().any(|line| line.contains("acknowledged its data and did not deliver it"));
    assert_eq!(codes, if lost { [RemoteError; 2] } else { [Success; 2] }, "{fault:?} at {at} on {device}");
    assert!(!lost || device.starts_with('r'), "{fault:?} at {at} on {device}: the sender holds everything");
    pair.close();
}

//= failover.md: fault: a receiver's completion queue that fails (`IBV_EVENT_CQ_ERR`) while data arrives
#[test]
fn completion_queues_of_receivers_that_fail() {
    let devices = two_hosts(2);
    isolated(here!(), &env(&devices, &[]), || {
        let ends = Ends::two_hosts(12, 2);
        for of in [CqOf::Send, CqOf::Recv] {
            for at in 1..=6 {
                goes_on_or_loses_by_name(&ends, "r0", Fault::CqError(of), at);
                heal("r0").unwrap();
            }
        }
    });
}

/// An adapter that is removed does not come back for its process.
//= failover.md: fault: an adapter that fails or is removed (`IBV_EVENT_DEVICE_FATAL`)
//= faults.md: 26
#[test]
fn adapters_that_are_removed() {
    let devices = two_hosts(2);
    for device in ["s0", "s1", "r0"] {
        for at in ["1", "2", "5"] {
            let more = [("TEST_DEVICE", device), ("TEST_AT", at)];
            isolated(here!(), &env(&devices, &more), || {
                let [device, at] = ["TEST_DEVICE", "TEST_AT"].map(|name| std::env::var(name).unwrap());
                let ends = Ends::two_hosts(12, 2);
                goes_on_or_loses_by_name(&ends, &device, Fault::DeviceFatal, at.parse().unwrap());
            });
            if mpib_tests::is_child(here!()) {
                return;
            }
        }
    }
}

/// Numbers the messages of a misbehaving peer.
struct Numbers<'a>(&'a Channel, u64);

impl Numbers<'_> {
    fn say(&mut self, message: &Message) {
        self.1 += 1;
        let numbered = Numbered { number: self.1, received: 0, message: Box::new(message.clone()) };
        self.0.send(&Message::Numbered(numbered)).unwrap();
    }
}

/// The next message of the end that is tested.
fn answer(channel: &Channel) -> Option<Message> {
    match channel.try_recv() {
        Ok(Some(Message::Numbered(numbered))) => Some(*numbered.message),
        _ => None,
    }
}

fn state(dead: u8, next: u64, open: Vec<OpenGroup>) -> Message {
    Message::State(SenderState { epoch: 1, dead, next: Sequence::from_number(next), open })
}

fn open(seq: u64, mask: u8, lost: u8) -> OpenGroup {
    OpenGroup { seq: Sequence::from_number(seq), mask, lost, size: Some(100) }
}

/// What a misbehaving sender says on a receiver of two offered groups, and the words of the error.
type Lie = (Vec<Message>, Vec<u32>, &'static str);

//= protocol.md: episode: a lying peer fails its own connection
#[test]
fn a_receiver_refuses_a_sender_that_lies_about_its_rails() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &[("MPIB_FAILOVER_WAIT", "0")]].concat()), || {
        let (table, ctx, layout) = (newest(), init(newest()), ImmLayout::new(2).unwrap());
        let arrives = layout.encode(1, 0b11, layout.size(100));
        let lies: Vec<Lie> = vec![
            (vec![state(0b100, 1, vec![])], vec![], "gives up rails 0b100"),
            (vec![state(1, 9, vec![])], vec![], "has group 9 as the next"),
            (vec![state(1, 2, vec![open(5, 1, 1)])], vec![], "has open group 5"),
            (vec![state(1, 2, vec![open(1, 0b101, 1)])], vec![], "has open group 1"),
            (vec![state(1, 3, vec![open(1, 1, 1), open(1, 1, 1)])], vec![], "has group 1 twice"),
            (vec![state(0b11, 1, vec![])], vec![], "no rail"),
            (vec![Message::Down { epoch: 0, rails: 1 }], vec![], "sent DOWN"),
            (vec![Message::Verdict(Verdict { epoch: 1, again: vec![] })], vec![], "sent VERDICT"),
            // The sender has completed group 1, which has not arrived.
            (vec![state(1, 2, vec![])], vec![], "acknowledged its data and did not deliver it"),
            // Nobody has requested a part again.
            (vec![], vec![layout.encode_replay(Replay::new(1, 0, 1))], "was sent again and not requested"),
            // Another epoch's.
            (
                vec![state(1, 2, vec![open(1, 1, 1)])],
                vec![layout.encode_replay(Replay::new(1, 0, 2))],
                "was sent again and not requested",
            ),
            // The part has arrived on a rail that works, beside the request to send it again.
            (
                vec![state(1, 2, vec![open(1, 0b11, 0b11)])],
                vec![arrives, layout.encode_replay(Replay::new(1, 1, 1))],
                "was sent again and not requested",
            ),
        ];
        for (messages, words, said) in lies {
            let (comm, liar) = receiver(ctx);
            let to = Buffer::new(table, comm, vec![0; 4096]);
            let offer = || table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]).1;
            let (first, _second) = (offer(), offer());
            let answered = messages.len() == 1 && !words.is_empty();
            let mut numbers = Numbers(&liar.channel, 0);
            messages.iter().for_each(|message| numbers.say(message));
            let mut words = words.into_iter();
            let code = until(said, || {
                let (rc, done, _) = table.test(first);
                assert!(!done, "{said}");
                let verdict = || matches!(answer(&liar.channel), Some(Message::Verdict(_)));
                if !answered || verdict() {
                    words.by_ref().for_each(|word| liar.signal(1, word));
                }
                (!rc.is_success()).then_some(rc)
            });
            assert_eq!(code, RemoteError, "{said}");
            assert_warned(&[said]);
            to.dereg();
            assert_eq!(table.close_recv(comm), Success);
        }
    });
}

/// The sender has completed everything, so it closes as soon as NCCL wants it to.
//= failover.md: fault: an adapter that acknowledged data and then failed before the data was in the receiver's memory
//= failover.md: a BYE does not hide that data is lost
#[test]
fn a_sender_that_closes_does_not_hide_that_data_is_lost() {
    isolated(here!(), &mpib("512", &SHORT), || {
        let table = newest();
        let (comm, liar) = receiver(init(table));
        let to = Buffer::new(table, comm, vec![0; 4096]);
        let (rc, request) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
        assert_eq!(rc, Success);
        Numbers(&liar.channel, 0).say(&state(1, 2, vec![]));
        liar.channel.close();
        assert_eq!(failure(table, request), RemoteError);
        assert_warned(&["group 1 from ", "acknowledged its data and did not deliver it"]);
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}

//= failover.md: a BYE does not hide that data is lost
#[test]
fn a_sender_that_closes_before_it_has_answered_for_a_failed_rail() {
    isolated(here!(), &mpib("512", &SHORT), || {
        let table = newest();
        let (comm, liar) = receiver(init(table));
        let to = Buffer::new(table, comm, vec![0; 4096]);
        let (rc, request) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
        assert_eq!(rc, Success);
        softverbs::set_link("soft1", false).unwrap();
        until("DOWN", || {
            assert_eq!(table.test(request).0, Success);
            answer(&liar.channel).filter(|message| matches!(message, Message::Down { .. }))
        });
        liar.channel.close();
        assert_eq!(failure(table, request), RemoteError);
        assert_warned(&[
            "closed the connection with receives outstanding",
            "the ends had not agreed yet on what soft1:1 has lost",
            "the first failure: ",
        ]);
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}

//= protocol.md: episode: a lying peer fails its own connection
//= protocol.md: episode: a VERDICT of another epoch has no effect
#[test]
fn a_sender_refuses_a_receiver_that_lies_about_its_rails() {
    isolated(here!(), &mpib("512", &[&SHORT[..], &[("MPIB_FAILOVER_WAIT", "0")]].concat()), || {
        let (table, ctx) = (newest(), init(newest()));
        let verdict = |again| Message::Verdict(Verdict { epoch: 1, again });
        let seq = Sequence::FIRST;
        let down = || Message::Down { epoch: 0, rails: 1 };
        let lies = [
            (vec![Message::Down { epoch: 0, rails: 0b100 }], "DOWN of rails 0b100"),
            (vec![state(1, 1, vec![])], "sent STATE"),
            // Nothing is sent yet.
            (vec![down(), verdict(vec![(seq, 1)])], "VERDICT requests parts 0b01 of group 1"),
            (vec![Message::Down { epoch: 0, rails: 0b11 }], "no rail"),
        ];
        for (messages, said) in lies {
            let (comm, liar) = sender(ctx);
            let from = Buffer::new(table, comm, vec![0; 4096]);
            let (first, rest) = messages.split_first().unwrap();
            let mut numbers = Numbers(&liar.channel, 0);
            numbers.say(first);
            let mut rest = rest.iter();
            let code = until(said, || {
                if matches!(answer(&liar.channel), Some(Message::State(_))) {
                    rest.by_ref().for_each(|message| numbers.say(message));
                }
                let (rc, request) = table.isend(comm, from.addr(), 1000, 1, from.mr);
                assert!(request.is_null(), "{said}");
                (!rc.is_success()).then_some(rc)
            });
            assert_eq!(code, RemoteError, "{said}");
            assert_warned(&[said]);
            from.dereg();
            assert_eq!(table.close_send(comm), Success);
        }
        // A VERDICT that answers no STATE, and one of another epoch, change nothing.
        let (comm, liar) = sender(ctx);
        take_warnings();
        Numbers(&liar.channel, 0).say(&verdict(vec![(seq, 1)]));
        let from = Buffer::new(table, comm, vec![0; 4096]);
        (0..1000).for_each(|_| {
            assert_eq!(table.isend(comm, from.addr(), 10, 1, from.mr), (Success, Ptr::default()))
        });
        // A verdict on a route of the connections before may come late.
        let of_route = |line: &String| line.contains("the route from");
        assert!(warnings().iter().all(of_route), "{:?}", warnings());
        from.dereg();
        drop(liar);
        assert_eq!(table.close_send(comm), Success);
    });
}

/// Housekeeping finds that, and NCCL's call that returns the error does not overtake its reason.
//= protocol.md: a part that is announced and does not come ends the connection
#[test]
fn a_part_that_is_announced_and_does_not_come_ends_the_connection() {
    let env = [&SHORT[..], &[("MPIB_PEER_TIMEOUT_MS", "1000")]].concat();
    isolated(here!(), &mpib("512", &env), || {
        let (table, layout) = (newest(), ImmLayout::new(2).unwrap());
        let (comm, liar) = receiver(init(table));
        let to = Buffer::new(table, comm, vec![0; 4096]);
        let (rc, request) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
        assert_eq!(rc, Success);
        liar.signal(1, layout.encode(1, 0b11, layout.size(1000)));
        assert_eq!(failure(table, request), RemoteError);
        let parts = ["a part of group 1 on rail 1 (soft1:1)", "a part on rail 0 (soft0:1)", "for 1.0 s"];
        assert_warned(&parts);
        to.dereg();
        drop(liar);
        assert_eq!(table.close_recv(comm), Success);
    });
}

/// An adapter may acknowledge data before the receiver sees its completion.
#[test]
fn a_verdict_waits_for_data_that_the_sender_has_completed() {
    isolated(here!(), &mpib("512", &SHORT), || {
        let (table, ctx, layout) = (newest(), init(newest()), ImmLayout::new(2).unwrap());
        let (comm, liar) = receiver(ctx);
        let to = Buffer::new(table, comm, vec![0; 4096]);
        let (rc, request) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
        assert_eq!(rc, Success);
        Numbers(&liar.channel, 0).say(&state(1, 2, vec![]));
        let answer = || match liar.channel.try_recv() {
            Ok(Some(Message::Numbered(numbered))) => match *numbered.message {
                Message::Verdict(verdict) => Some(verdict),
                other => panic!("{other:?}"),
            },
            Ok(_) => None,
            Err(e) => panic!("the receiver has given up: {e}"),
        };
        until("the receiver to handle STATE", || {
            assert!(!table.test(request).1 && answer().is_none(), "judged without the data");
            warnings().iter().any(|line| line.contains("the peer has given it up")).then_some(())
        });
        (0..100)
            .for_each(|_| assert!(!table.test(request).1 && answer().is_none(), "judged without the data"));
        liar.signal(1, layout.encode(1, 0b10, layout.size(100)));
        let size = until("the data", || {
            let (rc, done, sizes) = table.test(request);
            assert_eq!(rc, Success);
            done.then_some(sizes[0])
        });
        assert_eq!(size, 100);
        // A call that finds no request to test judges, too.
        let verdict = until("VERDICT", || {
            assert_eq!(table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]).0, Success);
            answer()
        });
        assert_eq!(verdict, Verdict { epoch: 1, again: vec![] });
        to.dereg();
        drop(liar);
        assert_eq!(table.close_recv(comm), Success);
    });
}

//= protocol.md: episode: a lying peer fails its own connection
//= rail-life.md: the word of a peer costs no other connection a rail
#[test]
fn a_rail_that_one_peer_gives_up_stays_in_use_for_others() {
    isolated(here!(), &mpib("512", &SHORT), || {
        let (table, ctx) = (newest(), init(newest()));
        let peers = [sender(ctx), sender(ctx)];
        for ((comm, liar), rails) in peers.iter().zip([0b01, 0b10]) {
            let from = Buffer::new(table, *comm, vec![0; 4096]);
            Numbers(&liar.channel, 0).say(&Message::Down { epoch: 0, rails });
            let state = until("STATE", || {
                assert_eq!(table.isend(*comm, from.addr(), 1000, 1, from.mr), (Success, Ptr::default()));
                answer(&liar.channel)
            });
            assert!(matches!(&state, Message::State(state) if state.dead == rails), "{state:?}");
            from.dereg();
        }
        for (comm, liar) in peers {
            drop(liar);
            assert_eq!(table.close_send(comm), Success);
        }
    });
}
