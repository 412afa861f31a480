//! Strangers connect to a listener's port at the same time, and none of them disconnects. The real
//! peer still connects and moves data.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use mpib_tests::code::{Code, InvalidUsage, RemoteError, Success};
use mpib_tests::evil::{Evil, Lies, hello};
use mpib_tests::log::warnings;
use mpib_tests::pair::{Buffer, init, pattern, until};
use mpib_tests::peer::{Peer, accepted, recv, wait, word};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{here, isolated, mpib};
use nccl_net_mpib::proto::{Handle, Hello, LinkLayer, Message, Wiring};

use super::util::is_dropped;

fn with_listener(test: &str, env: &[(&str, &str)], body: impl FnOnce(&'static Table, Ptr, [u8; 128])) {
    isolated(test, &mpib("512", env), || {
        let table = newest();
        let mut handle = [0; 128];
        let (rc, listen) = table.listen(init(table), 0, &mut handle);
        assert_eq!(rc, Success);
        body(table, listen, handle);
        assert_eq!(table.close_listen(listen), Success);
    });
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

/// A whole HELLO with the right nonce. `token` identifies the connector.
fn right_hello(handle: &[u8; 128], token: u8, change: impl FnOnce(&mut Hello)) -> Vec<u8> {
    let mut ours = Hello { nonce: *Handle::decode(handle).unwrap().nonce(), token: [token; 16], ..hello() };
    change(&mut ours);
    Message::Hello(ours).encode().unwrap()
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
        let mut wrong_nonce = whole.clone();
        wrong_nonce[12] ^= 1;
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
            &wrong_nonce,
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

/// Connectors that know the nonce and then break the protocol fail only their handshakes, with one
/// line each. accept returns the error, since NCCL makes one connector for each listener, and works
/// again at the next call.
//= reach.md: a failed handshake fails accept unless another is in progress
#[test]
fn misled_connectors_fail_alone() {
    with_listener(here!(), &[], |table, listen, handle| {
        let with = |token, tail: &[u8]| [right_hello(&handle, token, |_| ()), tail.to_vec()].concat();
        let frame = |message: Message| message.encode().unwrap();
        let mut too_many = right_hello(&handle, 20, |h| h.rails.clear());
        // The last byte is the number of unusable rails, and the byte before it that of usable rails.
        let mut too_many_rails = too_many.clone();
        *too_many.last_mut().unwrap() = 255;
        let at = too_many_rails.len() - 2;
        too_many_rails[at] = 255;
        let mut other_version = with(21, b"");
        other_version[9] = 77;
        let cases: Vec<(Vec<u8>, &str)> = vec![
            (with(1, b"GET / HTTP/1.1\r\n\r\n"), "a frame of"),
            (with(2, &pattern(5000, 9)), "sent "),
            (with(3, &[0; 4]), "a frame of 0 bytes"),
            (with(4, &(1u32 << 30).to_le_bytes()), "at most"),
            (with(5, &[1, 0, 0, 0, 99]), "unknown message type 99"),
            (with(6, &frame(Message::Ready)), "READY while WIRING was due"),
            (
                with(7, &frame(Message::Probed { mask: 3, reasons: Vec::new() })),
                "PROBED while WIRING was due",
            ),
            (with(8, &frame(Message::Bye)), "has closed the connection"),
            (with(9, &frame(Message::Welcome { token: [0; 16] })), "WELCOME"),
            (with(10, &frame(Message::Refuse { reason: "just so".into() })), "refuses: just so"),
            (with(11, &right_hello(&handle, 11, |_| ())), "HELLO while WIRING was due"),
            (right_hello(&handle, 12, |h| h.rails.clear()), "no rail reaches"),
            (
                right_hello(&handle, 14, |h| {
                    h.rails.iter_mut().for_each(|r| r.link_layer = LinkLayer::InfiniBand)
                }),
                "is InfiniBand",
            ),
            (
                right_hello(&handle, 15, |h| h.rails.iter_mut().for_each(|r| r.addrs[0].gid = [0; 16])),
                "no rail reaches",
            ),
            (too_many, "rails that cannot be used: 255 long, at most 32"),
            (too_many_rails, "rails: 255 long, at most 32"),
            (other_version, "version 77"),
        ];
        let mut all = Vec::new();
        for (bytes, said) in &cases {
            let before = warnings().len();
            all.push(stranger(&handle, bytes));
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
        }
        // One that has but one of the rails is no failure. Beside it, as it stays silent, others'
        // failures are lines alone.
        all.push(stranger(&handle, &right_hello(&handle, 13, |h| h.rails.truncate(1))));
        until("the line on the rail", || {
            none_yet(table, listen);
            warnings().last().is_some_and(|line| line.contains("rails without a route")).then_some(())
        });
        // Others that stay silent behind a right HELLO, more than the listener keeps in line.
        for token in 100..200 {
            all.push(stranger(&handle, &with(token, b"")));
            none_yet(table, listen);
        }
        the_real_peer_gets_in(table, listen, &handle);
        drop(all);
    });
}

/// A handshake that fails beside another one is one line; the last one is the error of accept.
//= reach.md: a failed handshake fails accept unless another is in progress
#[test]
fn a_handshake_that_fails_beside_another_is_no_error_of_accept() {
    with_listener(here!(), &[], |table, listen, handle| {
        let first = stranger(&handle, &right_hello(&handle, 1, |_| ()));
        // It is under way once it has the plugin's HELLO, which comes behind WELCOME (21 bytes).
        let (mut reader, mut said) = (first.try_clone().unwrap(), [0; 32]);
        reader.set_nonblocking(true).unwrap();
        let mut got = 0;
        until("the plugin's HELLO", || {
            none_yet(table, listen);
            got += reader.read(&mut said[got..]).unwrap_or(0);
            (got == said.len()).then_some(())
        });
        let second = stranger(&handle, &right_hello(&handle, 2, |hello| hello.rails.clear()));
        until("the second to fail", || {
            none_yet(table, listen);
            warnings().iter().any(|line| line.contains("no rail reaches")).then_some(())
        });
        assert!(warnings().iter().all(|line| line.contains("others may still come")), "{:?}", warnings());
        drop((first, reader));
        assert_eq!(fails(table, listen, "the first to fail"), RemoteError);
        let last = warnings().pop().unwrap();
        assert!(last.contains("accept: ") && last.contains("waited for WIRING"), "{last}");
        assert_eq!(warnings().len(), 2, "{:?}", warnings());
        // A later connector still works.
        the_real_peer_gets_in(table, listen, &handle);
        drop(second);
    });
}

/// Queue pairs that do not exist, or belong to another connection.
#[test]
fn wrong_queue_pairs_fail_alone() {
    with_listener(here!(), &mpib_tests::SHORT, |table, listen, handle| {
        let cases: [fn(&mut Wiring); 4] = [
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 0),
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 1),
            |w| w.routes.iter_mut().for_each(|r| r.qps[0].qpn = 0xFF_FFFF),
            // Each rail's queue pair is the other's.
            |w| {
                let first = w.routes[0].qps[0].qpn;
                w.routes[0].qps[0].qpn = w.routes[1].qps[0].qpn;
                w.routes[1].qps[0].qpn = first;
            },
        ];
        for (i, lie) in cases.into_iter().enumerate() {
            let before = warnings().len();
            let lies = Lies { wiring: Some(lie), ..Lies::default() };
            let evil = std::thread::spawn(move || Evil::connect(&handle, &lies));
            assert_eq!(fails(table, listen, "the handshake to fail"), RemoteError, "case {i}");
            // One message, in as many lines as it takes; nothing beside it.
            let last = warnings()[before..].concat();
            assert!(last.starts_with("NET/MPIB : accept: "), "case {i}: {last:?}");
            for part in ["no rail works to", "evil", "to soft0:1 (192.168.200.1", "to soft1:1 (192.168.201.1"]
            {
                assert!(last.contains(part), "case {i}: {part:?} is not in {last:?}");
            }
            drop(evil.join().unwrap());
        }
        the_real_peer_gets_in(table, listen, &handle);
    });
}
