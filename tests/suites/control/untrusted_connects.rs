//! Strangers connect to a listener's port at the same time, and none of them disconnects. The real
//! peer still connects and moves data.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use mpib_proto::{Claim, HELLO_PREFIX_BYTES, Handle, Hello, LinkLayer, Message, TAG_BYTES, Wiring};
use mpib_tests::code::{Code, InvalidUsage, RemoteError, Success};
use mpib_tests::log::{LOG, warnings};
use mpib_tests::misbehaving_peer::{MisbehavingPeer, Misbehaviour, hello};
use mpib_tests::pair::{Buffer, LIMIT, init, pattern, until};
use mpib_tests::peer::{Peer, accepted, recv, wait, word};
use mpib_tests::raw::{Raw, hello_frame};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{NO_WAIT, SHORT, here, isolated, mpib};
use nccl_net_mpib_agent_iface::stats::pages_of;

use super::util::{is_dropped, show_figures};

fn with_listener(test: &str, env: &[(&str, &str)], body: impl FnOnce(&'static Table, Ptr, [u8; 128])) {
    let stderr = isolated(test, &mpib("512", env), || {
        let table = newest();
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(init(table), 0, &mut handle);
        assert_eq!(rc, Success);
        body(table, listen, handle);
        assert_eq!(table.close_listen(listen), Success);
    });
    show_figures(stderr);
}

/// `accept` gives nobody, and no error.
fn none_yet(table: &Table, listen: Ptr) {
    let (rc, comm) = table.accept(listen);
    assert_eq!((rc, comm.is_null()), (Success, true), "accept");
}

/// The code of `accept`, which fails.
fn fails(table: &Table, listen: Ptr, what: &str) -> Code {
    until(what, || {
        let (rc, comm) = table.accept(listen);
        assert!(comm.is_null(), "{what}");
        (rc != Success).then_some(rc)
    })
}

/// A stranger that sends `bytes` and does not disconnect.
fn stranger(handle: &[u8; 128], bytes: &[u8]) -> TcpStream {
    let port = Handle::decode(handle).unwrap().port();
    let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    // The listener may close the connection during the write.
    let _ = stream.write_all(bytes);
    stream
}

/// A whole HELLO with the right claim. `token` identifies the connector.
fn right_hello(handle: &[u8; 128], token: u8, change: impl FnOnce(&mut Hello)) -> Vec<u8> {
    let mut ours = hello();
    change(&mut ours);
    hello_frame(Handle::decode(handle).unwrap().secret(), [token; 16], ours)
}

/// A peer that sends this HELLO and proves itself.
fn peer(handle: &[u8; 128], token: u8, hello: &[u8]) -> Raw {
    let secret = Handle::decode(handle).unwrap().secret().clone();
    let stream = stranger(handle, hello);
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    Raw::after_hello(stream, &secret, [token; 16], hello)
}

/// A second process connects and sends, checked byte by byte.
fn the_real_peer_gets_in(table: &'static Table, listen: Ptr, handle: &[u8; 128]) {
    let mut peer = Peer::start();
    peer.say(&format!("connect {}", word(handle)));
    let comm = accepted(table, listen);
    assert_eq!(peer.answer(), "ok");
    for len in [1, 70_000] {
        let to = Buffer::new(table, comm, vec![0; len]);
        let request = recv(table, comm, &to, len);
        peer.must(&format!("send {len} 6"));
        assert_eq!(wait(table, request), len);
        assert!(to.bytes == pattern(len, 6));
        to.dereg();
    }
    peer.must("close");
    assert_eq!(table.close_recv(comm), Success);
    peer.finish();
}

//= faults.md: 75
#[test]
fn strangers_keep_nobody_out() {
    with_listener(here!(), &[], |table, listen, handle| {
        let whole = right_hello(&handle, 1, |_| ());
        let [mut wrong_id, mut wrong_tag] = [whole.clone(), whole.clone()];
        wrong_id[HELLO_PREFIX_BYTES - TAG_BYTES - 20] ^= 1;
        wrong_tag[HELLO_PREFIX_BYTES - 1] ^= 1;
        let all = |sayings: &[&[u8]]| -> Vec<TcpStream> {
            sayings.iter().map(|bytes| stranger(&handle, bytes)).collect()
        };
        // Strangers that may still become peers wait beside the real one.
        let mut waiting = all(&[b"", b"\0", &whole[..whole.len() / 2], &whole[..whole.len() - 1]]);
        waiting.extend((0..40).map(|_| stranger(&handle, b"")));
        let wrong = all(&[
            b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
            b"SSH-2.0-OpenSSH_9.6\r\n",
            &pattern(5000, 1),
            &[0; 64],
            &[0xFF; 64],
            &(1u32 << 31).to_le_bytes(),
            // A frame above the limit of length, with a valid beginning.
            &[&100_000u32.to_le_bytes(), &whole[4..]].concat(),
            &wrong_id,
            &wrong_tag,
            // Its first frame is another message.
            &Message::Ready.encode().unwrap(),
        ]);
        // Half a HELLO, then the end.
        drop(stranger(&handle, &whole[..30]));
        none_yet(table, listen);
        the_real_peer_gets_in(table, listen, &handle);
        the_real_peer_gets_in(table, listen, &handle);
        none_yet(table, listen);
        // These strangers cause no line in the log, and get no reason.
        assert!(warnings().is_empty(), "{:?}", warnings());
        wrong.into_iter().for_each(is_dropped);
        drop(waiting);
    });
}

/// Connectors that know the secret and then break the protocol fail only their handshakes, with one
/// line each. accept returns the error, since NCCL makes one connector for each listener, and works
/// again at the next call.
//= reach.md: a failed handshake fails accept unless another is in progress
#[test]
fn misled_connectors_fail_alone() {
    with_listener(here!(), &[], |table, listen, handle| {
        let mut other_version = right_hello(&handle, 21, |_| ());
        let secret = Handle::decode(&handle).unwrap().secret().clone();
        let claim = Claim::of_version(&secret, [21; 16], 77);
        other_version[9] = 77;
        other_version[HELLO_PREFIX_BYTES - TAG_BYTES..HELLO_PREFIX_BYTES].copy_from_slice(&claim.tag);
        // What a peer sends behind its proof: bytes, the body of a frame, or a message.
        enum Then {
            Bytes(Vec<u8>),
            Body(Vec<u8>),
            Message(Message),
            Nothing,
        }
        let whole = |token| right_hello(&handle, token, |_| ());
        let said = |token, message, said| (whole(token), Then::Message(message), said);
        let cases: Vec<(Vec<u8>, Then, &str)> = vec![
            (whole(1), Then::Bytes(b"GET / HTTP/1.1\r\n\r\n".to_vec()), "a frame of"),
            (whole(2), Then::Bytes(pattern(5000, 9)), "sent "),
            (whole(3), Then::Bytes(vec![0; 4]), "a frame of 0 bytes"),
            (whole(4), Then::Bytes((1u32 << 30).to_le_bytes().to_vec()), "at most"),
            (whole(5), Then::Body(vec![99]), "unknown message type 99"),
            said(6, Message::Ready, "READY while WIRING was due"),
            said(
                7,
                Message::Probed { mask: 3, reasons: Vec::new(), accepts: false },
                "PROBED while WIRING was due",
            ),
            said(8, Message::Bye, "has closed the connection"),
            said(9, Message::Welcome { challenge: [0; 16], proof: [0; 16] }, "WELCOME"),
            said(17, Message::Proof, "PROOF within a connection"),
            said(10, Message::Refuse { reason: "just so".into() }, "refuses: just so"),
            said(11, Message::Hello(hello()), "HELLO while WIRING was due"),
            (right_hello(&handle, 12, |h| h.rails.clear()), Then::Nothing, "no rail reaches"),
            (
                right_hello(&handle, 14, |h| {
                    h.rails.iter_mut().for_each(|r| r.link_layer = LinkLayer::InfiniBand)
                }),
                Then::Nothing,
                "is InfiniBand",
            ),
            (
                right_hello(&handle, 15, |h| h.rails.iter_mut().for_each(|r| r.addrs[0].gid = [0; 16])),
                Then::Nothing,
                "no rail reaches",
            ),
        ];
        let mut all = Vec::new();
        let expect = |said: &str, before: usize| {
            assert!([InvalidUsage, RemoteError].contains(&fails(table, listen, said)), "{said}");
            none_yet(table, listen);
            let lines = warnings();
            assert_eq!(lines.len(), before + 1, "{:?}", &lines[before..]);
            let parts = [said, "127.0.0.1:"];
            assert!(
                parts.iter().all(|part| lines[before].contains(part)),
                "{parts:?} in {:?}",
                lines[before]
            );
        };
        for (bytes, then, said) in cases {
            let before = warnings().len();
            let mut one = peer(&handle, bytes[HELLO_PREFIX_BYTES - TAG_BYTES - 1], &bytes);
            let sent = match then {
                Then::Bytes(bytes) => bytes,
                Then::Body(body) => one.sealed_body(&body),
                Then::Message(message) => one.sealed(&message),
                Then::Nothing => Vec::new(),
            };
            let _ = one.stream.write_all(&sent);
            all.push(one.stream);
            expect(said, before);
        }
        let before = warnings().len();
        all.push(stranger(&handle, &other_version));
        expect("protocol 77", before);
        // One that has but one of the rails is no failure. Beside it, as it stays silent, others'
        // failures are lines alone.
        all.push(peer(&handle, 13, &right_hello(&handle, 13, |h| h.rails.truncate(1))).stream);
        until("the line on the rail", || {
            none_yet(table, listen);
            warnings().last().is_some_and(|line| line.contains("rails without a route")).then_some(())
        });
        // Others that stay silent behind a right HELLO, more than the listener keeps in line.
        for token in 100..200 {
            all.push(stranger(&handle, &whole(token)));
            none_yet(table, listen);
        }
        // A frame with a wrong tag may be somebody else's: the connector may come again.
        let mut one = peer(&handle, 16, &whole(16));
        one.stream.write_all(&[&17u32.to_le_bytes()[..], &[4; 17]].concat()).unwrap();
        all.push(one.stream);
        let forged = || pages_of(std::process::id()).unwrap()[0].summary().forged;
        until("the count", || {
            none_yet(table, listen);
            (forged() == 1).then_some(())
        });
        the_real_peer_gets_in(table, listen, &handle);
        drop(all);
    });
}

/// A handshake that fails beside another one is one line; the last one is the error of accept.
//= reach.md: a failed handshake fails accept unless another is in progress
#[test]
fn a_handshake_that_fails_beside_another_is_no_error_of_accept() {
    with_listener(here!(), &[], |table, listen, handle| {
        let mut first = peer(&handle, 1, &right_hello(&handle, 1, |_| ()));
        // It is under way once it has the plugin's HELLO, which comes behind WELCOME.
        let (mut reader, mut said) = (first.stream.try_clone().unwrap(), [0; 32]);
        reader.set_nonblocking(true).unwrap();
        let mut got = 0;
        until("the plugin's HELLO", || {
            none_yet(table, listen);
            got += reader.read(&mut said[got..]).unwrap_or(0);
            (got == said.len()).then_some(())
        });
        let second = peer(&handle, 2, &right_hello(&handle, 2, |hello| hello.rails.clear()));
        until("the second to fail", || {
            none_yet(table, listen);
            warnings().iter().any(|line| line.contains("no rail reaches")).then_some(())
        });
        assert!(warnings().iter().all(|line| line.contains("others may still come")), "{:?}", warnings());
        // It gives up; a FIN or a reset could be the network's.
        let bye = first.sealed(&Message::Bye);
        first.stream.write_all(&bye).unwrap();
        assert_eq!(fails(table, listen, "the first to fail"), RemoteError);
        let last = warnings().pop().unwrap();
        assert!(last.contains("accept: ") && last.contains("waited for WIRING"), "{last}");
        assert_eq!(warnings().len(), 2, "{:?}", warnings());
        // A later connector still works.
        the_real_peer_gets_in(table, listen, &handle);
        drop((first, reader, second));
    });
}

/// Holders of the secret by the dozen: each proves itself and then sends nothing. Queue pairs and
/// memory exist for a few of them.
//= reach.md: few handshakes of a listener are in progress at once
#[test]
fn holders_of_the_secret_keep_nobody_out() {
    with_listener(here!(), &[], |table, listen, handle| {
        let one = |token| peer(&handle, token, &right_hello(&handle, token, |_| ()));
        none_yet(table, listen);
        let mut all = Vec::new();
        for token in 0..100 {
            all.push(one(token));
            none_yet(table, listen);
        }
        let begin = std::time::Instant::now();
        the_real_peer_gets_in(table, listen, &handle);
        eprintln!("a peer got in beside {} holders of the secret in {:?}", all.len(), begin.elapsed());
        let given_up = || {
            let lines = LOG.lock().unwrap();
            lines.iter().filter(|(_, line)| line.contains("is given up for a new peer: 8")).count()
        };
        assert!(given_up() >= 100 - 8, "{}", given_up());
        drop(all);
    });
}

/// Somebody who has copied the HELLO of a connector and cannot go on: no failure of accept, and the
/// connector gets in.
//= protocol.md: authentication: of several connections with one HELLO, the one with the proof counts
#[test]
fn a_copied_hello_is_no_failure_of_accept() {
    with_listener(here!(), &[], |table, listen, handle| {
        let copies: Vec<_> = (1..=3).map(|n| stranger(&handle, &right_hello(&handle, n, |_| ()))).collect();
        for mut copy in copies {
            copy.set_nonblocking(true).unwrap();
            until("the WELCOME", || {
                none_yet(table, listen);
                copy.read(&mut [0; 64]).ok()
            });
        }
        // Each has been closed by its owner.
        until("the lines", || {
            none_yet(table, listen);
            let lines = LOG.lock().unwrap();
            let unproved =
                lines.iter().filter(|(_, line)| line.contains("before its peer had proved itself"));
            (unproved.count() == 3).then_some(())
        });
        assert!(warnings().is_empty(), "{:?}", warnings());
        the_real_peer_gets_in(table, listen, &handle);
    });
}

/// The claim is the connector's. What follows it is not covered by its tag, and cannot be read.
#[test]
fn a_copied_claim_before_an_unreadable_hello_is_no_failure_of_accept() {
    with_listener(here!(), &[], |table, listen, handle| {
        let hello = right_hello(&handle, 1, |h| h.rails.clear());
        // The last byte is the number of unusable rails, and the byte before it that of usable
        // rails.
        let end = hello.len();
        for (at, said) in [
            (end - 1, "rails that cannot be used: 255 long, at most 32 are allowed"),
            (end - 2, "rails: 255 long, at most 32 are allowed"),
        ] {
            let mut copy = hello.clone();
            copy[at] = 255;
            let mut copy = peer(&handle, 1, &copy);
            assert_eq!(
                until("the REFUSE", || {
                    none_yet(table, listen);
                    Some(copy.recv())
                }),
                Message::Refuse { reason: format!("its HELLO cannot be read: {said}") }
            );
        }
        none_yet(table, listen);
        assert!(warnings().is_empty(), "{:?}", warnings());
        the_real_peer_gets_in(table, listen, &handle);
    });
}

/// Queue pairs that do not exist, or belong to another connection.
#[test]
fn wrong_queue_pairs_fail_alone() {
    with_listener(here!(), &[&SHORT[..], &[NO_WAIT]].concat(), |table, listen, handle| {
        let cases: [fn(&mut Wiring); 4] = [
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 0),
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 1),
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 0xFF_FFFF),
            // Each rail's queue pair is the other's.
            |w| {
                let first = w.routes[0].qps[0].qpn;
                assert_ne!(first, w.routes[1].qps[0].qpn, "the lie");
                w.routes[0].qps[0].qpn = w.routes[1].qps[0].qpn;
                w.routes[1].qps[0].qpn = first;
            },
        ];
        for (i, lie) in cases.into_iter().enumerate() {
            let before = warnings().len();
            let misbehaviour = Misbehaviour { wiring: Some(lie), ..Misbehaviour::default() };
            let liar = std::thread::spawn(move || MisbehavingPeer::connect(&handle, &misbehaviour));
            assert_eq!(fails(table, listen, "the handshake to fail"), RemoteError, "case {i}");
            // One message, in as many lines as it takes; nothing beside it.
            let last = warnings()[before..].concat();
            assert!(last.starts_with("NET/MPIB : accept: "), "case {i}: {last:?}");
            for part in ["no rail works to", "liar", "to soft0:1 (192.168.200.1", "to soft1:1 (192.168.201.1"]
            {
                assert!(last.contains(part), "case {i}: {part:?} is not in {last:?}");
            }
            drop(liar.join().unwrap());
        }
        the_real_peer_gets_in(table, listen, &handle);
    });
}
