//! A peer that breaks the protocol fails its own connection, with a line in the log, and nothing
//! else.

use mpib_proto::{Cts, ImmLayout, Memory, Message, RECORD_BYTES, Sequence, SizeQ, Wiring};
use mpib_tests::code::{InvalidUsage, RemoteError, Success};
use mpib_tests::log::{assert_last_warning, assert_warned, warnings};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, Misbehaviour, receiver, sender};
use mpib_tests::pair::{Buffer, Pair, init, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{here, mpib, with_and_without_srq};

/// Receives in the group, immediates as (rail, word), what is said of them.
type Case<'a> = (usize, &'a [(usize, u32)], &'a str);

/// The peer got the reason, in the same words.
fn gets_refusal(liar: &MisbehavingPeer, said: &str) {
    let reason = until("REFUSE", || match liar.channel.try_recv() {
        Ok(Some(Message::Refuse { reason })) => Some(reason),
        Ok(_) => None,
        Err(e) => panic!("the channel ended without a reason: {e}"),
    });
    assert!(reason.contains(said), "{said:?} is not in {reason:?}");
}

//= faults.md: 78: the peer lies in immediates, CTS entries or keys: the comm fails by name
#[test]
fn immediates_that_contradict_each_other() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let layout = ImmLayout::new(2).unwrap();
        // The first receive of a comm is in slot 1; its room is 1000 bytes.
        let word = |slot, mask, size| layout.encode(slot, mask, layout.size(size));
        let record = |slot, mask| layout.encode(slot, mask, SizeQ::RECORD);
        let cases: &[Case<'_>] = &[
            (1, &[(0, word(60, 1, 0))], "slot 60, where no receive waits"),
            // There are 64 slots.
            (1, &[(0, word(64, 1, 0))], "an immediate that no sender makes"),
            (1, &[(0, word(1, 3, 9)), (0, word(1, 3, 9))], "rail 0 delivered two immediates"),
            (1, &[(0, word(1, 3, 9)), (1, word(1, 2, 9))], "has mask 0b10 after an earlier one with 0b11"),
            (1, &[(0, word(1, 2, 9))], "came on rail 0, which it does not name"),
            (1, &[(1, 1)], "slot 1: part 0 was sent again and not requested"),
            (1, &[(1, 1 | 1 << 31)], "an immediate that no sender makes"),
            // One unit of 128 bytes, which the byte unit encodes.
            (1, &[(0, 1 | 1 << 8 | (1 << 21 | 1) << 10)], "an immediate that no sender makes"),
            (1, &[(0, word(1, 3, 9)), (1, word(1, 3, 10))], "rails carry different sizes"),
            // A group of one receive, and of several, or the other way round.
            (1, &[(0, word(1, 3, 9)), (1, record(1, 3))], "rails carry different sizes"),
            (2, &[(0, record(1, 3)), (1, word(1, 3, 9))], "rails carry different sizes"),
            (1, &[(0, word(1, 1, 1001))], "1001 bytes arrived for a receive of 1000"),
            (2, &[(0, word(1, 1, 10))], "a group of 2 receives got one size"),
            // The record's second size is too large, see below.
            (2, &[(0, record(1, 1))], "has 1001 bytes for receive 1"),
            // The slot was free again after the first arrival.
            (1, &[(0, word(1, 1, 9)), (0, word(1, 1, 9))], "slot 1, where no receive waits"),
        ];
        for (n, words, said) in cases {
            let (comm, liar) = receiver(ctx);
            let buffer = Buffer::new(table, comm, vec![0; 4096]);
            let group: Vec<_> =
                (0..*n).map(|i| (buffer.addr() + 1000 * i, 1000, i as i32, buffer.mr)).collect();
            let (rc, request) = table.irecv(comm, &group);
            assert_eq!(rc, Success);
            // A second receive keeps the comm busy where the first is fulfilled.
            let (rc, second) = table.irecv(comm, &group);
            assert_eq!(rc, Success);
            let mut sizes = [0; RECORD_BYTES];
            sizes[8..16].copy_from_slice(&1001u64.to_le_bytes());
            liar.poke(Sequence::FIRST.record_offset(), &sizes);
            words.iter().for_each(|(rail, word)| liar.signal(*rail, *word));
            let code = until(said, || {
                let (rc, _, _) = table.test(second);
                (rc != Success).then_some(rc)
            });
            assert_eq!(code, RemoteError, "{said}");
            assert_last_warning(&[said]);
            gets_refusal(&liar, said);
            let lines = warnings().len();
            // All further calls fail with the same code and log nothing.
            assert_eq!(table.test(second).0, RemoteError);
            assert_eq!(table.irecv(comm, &group).0, RemoteError);
            assert_eq!(warnings().len(), lines);
            let _ = request;
            buffer.dereg();
            assert_eq!(table.close_recv(comm), Success);
        }
        let pair = Pair::new(table);
        pair.message(1000, 1000, 1);
        pair.close();
    });
}

//= faults.md: 78
#[test]
fn cts_entries_that_no_receiver_writes() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let good = Cts { addr: 4096, size: 100, rkeys: [0; 8], tag: 1, count: 2, index: 0, seq: 1 };
        let second = Cts { index: 1, ..good };
        let cases: &[(&[Cts], &str)] = &[
            (&[Cts { count: 0, ..good }], "a group of 0 receives"),
            (&[Cts { count: 9, ..good }], "a group of 9 receives"),
            (&[Cts { index: 2, ..good }], "number 2 of a group of 2"),
            (&[Cts { index: 1, ..good }], "CTS entry 0 of a group of 2 is numbered 1"),
            (&[good, Cts { count: 3, ..second }], "is numbered 1 of 3"),
            (&[Cts { seq: 2, ..good }], "running number 2, expected 1"),
            (&[good, Cts { seq: u64::MAX, ..second }], "expected 1"),
        ];
        for (entries, said) in cases {
            let (comm, liar) = sender(ctx);
            let buffer = Buffer::new(table, comm, vec![0; 64]);
            let bytes: Vec<u8> = entries.iter().flat_map(Cts::encode).collect();
            liar.poke(Sequence::FIRST.cts_offset(0), &bytes);
            let code = until(said, || {
                let (rc, request) = table.isend(comm, buffer.addr(), 64, 1, buffer.mr);
                assert!(request.is_null());
                (rc != Success).then_some(rc)
            });
            assert_eq!(code, RemoteError, "{said}");
            assert_last_warning(&[said]);
            gets_refusal(&liar, said);
            assert_eq!(table.isend(comm, buffer.addr(), 64, 1, buffer.mr).0, RemoteError);
            buffer.dereg();
            assert_eq!(table.close_send(comm), Success);
        }
    });
}

/// A send that has been matched with the first group would never complete.
//= protocol.md: CTS entry: the count of a group does not change
//= faults.md: 79: the receiver changes a group between two sends: both ends fail by name
#[test]
fn a_group_whose_count_changes_between_its_sends() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        // Entries that arrive, and the group that they claim: the last entry of a larger group is missing.
        for (before, count, entries, len) in
            [(2, 1, 1, 64), (2, 1, 1, 0), (2, 1, 1, 5000), (2, 3, 2, 64), (3, 2, 2, 64)]
        {
            let (comm, liar) = sender(ctx);
            let buffer = Buffer::new(table, comm, vec![0; 5000]);
            let poke = |entries: u8, count: u8, tag: fn(u8) -> i32| {
                let cts = |index| Cts {
                    addr: 4096,
                    size: 5000,
                    rkeys: [0; 8],
                    tag: tag(index),
                    count,
                    index,
                    seq: 1,
                };
                let bytes: Vec<u8> = (0..entries).flat_map(|index| cts(index).encode()).collect();
                liar.poke(Sequence::FIRST.cts_offset(0), &bytes);
            };
            poke(before, before, i32::from);
            let matched = until("a send that is matched", || {
                let (rc, request) = table.isend(comm, buffer.addr(), 64, 0, buffer.mr);
                assert_eq!(rc, Success);
                (!request.is_null()).then_some(request)
            });
            poke(entries, count, |_| 1);
            let said = format!("a CTS entry is of a group of {count} receives, which had {before} before");
            assert_eq!(table.isend(comm, buffer.addr(), len, 1, buffer.mr).0, RemoteError, "{said}");
            assert_last_warning(&[&said]);
            gets_refusal(&liar, &said);
            assert_eq!(table.test(matched).0, RemoteError);
            buffer.dereg();
            assert_eq!(table.close_send(comm), Success);
        }
    });
}

/// A remote key that the receiver never gave out: the NIC refuses the write, and both ends hear of
/// it.
//= faults.md: 78
#[test]
fn a_cts_with_a_wrong_key_is_a_failed_completion() {
    with_and_without_srq(here!(), &mpib("0", &[]), || {
        let table = newest();
        let (comm, liar) = sender(init(table));
        let buffer = Buffer::new(table, comm, vec![0; 64]);
        let cts = Cts { addr: 4096, size: 100, rkeys: [0xdead; 8], tag: 1, count: 1, index: 0, seq: 1 };
        liar.poke(Sequence::FIRST.cts_offset(0), &cts.encode());
        let request = until("isend", || {
            let (rc, request) = table.isend(comm, buffer.addr(), 64, 1, buffer.mr);
            assert_eq!(rc, Success);
            (!request.is_null()).then_some(request)
        });
        let code = until("a failed completion", || Some(table.test(request).0).filter(|rc| *rc != Success));
        assert_eq!(code, RemoteError);
        // The refusing end is in this process, too, and its event has a line.
        assert_warned(&["data write", "rail 0", "soft0:1", "vendor error", "IBV_WC_REM_ACCESS_ERR", "liar"]);
        gets_refusal(&liar, "data write");
        assert_eq!(table.test(request).0, RemoteError);
        assert_eq!(table.isend(comm, buffer.addr(), 64, 1, buffer.mr).0, RemoteError);
        buffer.dereg();
        assert_eq!(table.close_send(comm), Success);
    });
}

/// What may be wrong in a handshake, and what the log says of it.
fn handshakes() -> Vec<(Misbehaviour, &'static str)> {
    fn wiring(lie: fn(&mut Wiring)) -> Misbehaviour {
        Misbehaviour { wiring: Some(lie), ..Misbehaviour::default() }
    }
    let refuse = || Some(Message::Refuse { reason: "no wish to".into() });
    vec![
        (wiring(|w| drop(w.routes.pop())), "1 routes, expected 2"),
        (wiring(|w| w.routes.clear()), "0 routes, expected 2"),
        (wiring(|w| w.routes.swap(0, 1)), "route 0 joins our rail and its rail (1, 1), expected (0, 0)"),
        (wiring(|w| w.routes[1].remote_rail = 0), "route 1 joins"),
        (wiring(|w| w.routes[0].qps.truncate(1)), "1 queue pairs for route 0, expected 2"),
        (wiring(|w| w.memory.len = 100), "100 bytes at"),
        (wiring(|w| w.memory.addr = u64::MAX - 5), "bytes at 0xfffffffffffffffa"),
        (wiring(|w| w.memory.rkeys.truncate(1)), "1 remote keys for 2 routes"),
        (
            Misbehaviour {
                ready: Some(Message::Probed { mask: 3, reasons: Vec::new(), accepts: false }),
                ..Misbehaviour::default()
            },
            "PROBED while READY was due",
        ),
        (Misbehaviour { ready: refuse(), ..Misbehaviour::default() }, "refuses: no wish to"),
        (
            Misbehaviour {
                probed: Some(Message::Probed { mask: 7, reasons: Vec::new(), accepts: false }),
                ..Misbehaviour::default()
            },
            "of 2",
        ),
        (
            Misbehaviour {
                probed: Some(Message::Probed {
                    mask: 0,
                    reasons: vec![(0, "cable cut".into())],
                    accepts: false,
                }),
                ..Misbehaviour::default()
            },
            "no rail works to",
        ),
        (
            Misbehaviour {
                probed: Some(Message::Wiring(Wiring {
                    routes: Vec::new(),
                    memory: Memory { addr: 0, len: 0, rkeys: Vec::new() },
                })),
                ..Misbehaviour::default()
            },
            "WIRING while PROBED was due",
        ),
        // The rails work, and the peer does not take the connection so.
        (Misbehaviour { last: refuse(), ..Misbehaviour::default() }, "refuses: no wish to"),
        (
            Misbehaviour {
                last: Some(Message::Probed { mask: 3, reasons: Vec::new(), accepts: false }),
                ..Misbehaviour::default()
            },
            "PROBED while READY to use the connection was due",
        ),
        (Misbehaviour { last: Some(Message::Bye), ..Misbehaviour::default() }, "has closed the connection"),
        (Misbehaviour { hello: Some(|h| h.rails.clear()), ..Misbehaviour::default() }, "no rail reaches"),
        (
            Misbehaviour {
                hello: Some(|h| {
                    h.rails.iter_mut().for_each(|r| r.link_layer = mpib_proto::LinkLayer::InfiniBand)
                }),
                ..Misbehaviour::default()
            },
            "is InfiniBand",
        ),
    ]
}

//= faults.md: 77: the peer lies in its messages: its handshake fails by name, others get in
//= reach.md: a failed handshake fails accept unless another is in progress
//= mpib.md: MPIB_STRICT=1 refuses a connection that lacks its rail
#[test]
fn a_lying_connector_does_not_keep_others_out() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        for (misbehaviour, said) in handshakes() {
            let mut handle = [0; 128];
            let (rc, listen) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            let liar = std::thread::spawn(move || MisbehavingPeer::connect(&handle, &misbehaviour));
            let code = until(said, || {
                let (rc, comm) = table.accept(listen);
                assert!(comm.is_null(), "{said}");
                (rc != Success).then_some(rc)
            });
            assert!([InvalidUsage, RemoteError].contains(&code), "{said}: {code}");
            assert_last_warning(&[said]);
            drop(liar.join().unwrap());
            // The real one comes after it.
            let (mut send, mut recv) = (Ptr::default(), Ptr::default());
            until("a real peer", || {
                if send.is_null() {
                    let (rc, comm) = table.connect(ctx, 0, &mut handle);
                    assert_eq!(rc, Success);
                    send = comm;
                }
                if recv.is_null() {
                    recv = table.accept(listen).1;
                }
                (!send.is_null() && !recv.is_null()).then_some(())
            });
            assert_eq!(table.close_listen(listen), Success);
            let pair = Pair { table, send, recv };
            pair.message(5000, 5000, 1);
            pair.close();
        }
    });
}

//= faults.md: 77
//= mpib.md: MPIB_STRICT=1 refuses a connection that lacks its rail
#[test]
fn a_lying_listener_fails_connect() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        for (misbehaviour, said) in handshakes() {
            let listener = MisbehavingPeer::listen();
            let mut handle = listener.handle().encode();
            let liar = std::thread::spawn(move || MisbehavingPeer::accept(&listener, &misbehaviour));
            let code = until(said, || {
                let (rc, comm) = table.connect(ctx, 0, &mut handle);
                assert!(comm.is_null(), "{said}");
                (rc != Success).then_some(rc)
            });
            assert!([InvalidUsage, RemoteError].contains(&code), "{said}: {code}");
            assert_last_warning(&[said]);
            assert_eq!(handle[120..], [0; 8], "the handle is as new");
            drop(liar.join().unwrap());
        }
    });
}

/// Reads are for flushes, and those are between an adapter and itself.
//= receives.md: a flush does not need the peer; the peer may write and not read
#[test]
fn a_peer_may_write_and_not_read() {
    with_and_without_srq(here!(), &mpib("512", &[("MPIB_FLUSH", "1")]), || {
        let ctx = init(newest());
        for rail in [0, 1] {
            // IBV_WC_REM_INV_REQ_ERR
            let (comm, liar) = receiver(ctx);
            assert_eq!((liar.read(rail), newest().close_recv(comm)), (9, Success));
            let (comm, liar) = sender(ctx);
            assert_eq!((liar.read(rail), newest().close_send(comm)), (9, Success));
        }
    });
}
