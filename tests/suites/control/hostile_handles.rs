//! Handles without a listener: `connect` fails in time, and the log names the attempts.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};

use mpib_proto::{
    Addr, HELLO_PREFIX_BYTES, Handle, HelloPrefix, Message, PROTOCOL_VERSION, Release, STATE_OFFSET, Secret,
};
use mpib_tests::code::{Code, InvalidArgument, RemoteError, Success};
use mpib_tests::log::{LOG, has_logged, warnings};
use mpib_tests::pair::{init, pattern, try_connect, until};
use mpib_tests::table::{Ptr, TABLES, Table, newest};
use mpib_tests::{here, isolated, mpib};

/// An address of a network that does not exist (RFC 5737).
const NOWHERE: &str = "192.0.2.77";

fn with_deadline(test: &str, body: impl FnOnce(&'static Table, Ptr)) {
    isolated(test, &mpib("512", &[("MPIB_CONNECT_TIMEOUT_MS", "400")]), || {
        let table = newest();
        body(table, init(table));
    });
}

/// The handle of a listener that stays open.
fn good(table: &Table, ctx: Ptr) -> ([u8; 128], Ptr) {
    let mut handle = [0; 128];
    let (rc, listen) = table.listen(ctx, 0, &mut handle);
    assert_eq!(rc, Success, "listen");
    (handle, listen)
}

fn to(ips: &[&str], port: u16) -> [u8; 128] {
    let addrs: Vec<Addr> = ips.iter().map(|ip| Addr::new(ip.parse().unwrap(), 24).unwrap()).collect();
    Handle::new([7; 16], port, &addrs).unwrap().encode()
}

/// Fails with `code`; the line of the log that says why.
fn failed(table: &Table, ctx: Ptr, mut handle: [u8; 128], code: Code, parts: &[&str]) -> String {
    let before = warnings().len();
    let rc = until("connect to fail", || {
        let (rc, comm) = table.connect(ctx, 0, &mut handle);
        assert!(comm.is_null(), "{parts:?}");
        (rc != Success).then_some(rc)
    });
    assert_eq!(rc, code, "{parts:?}");
    assert_eq!(handle[STATE_OFFSET..], [0; 8], "what is left of an attempt: {parts:?}");
    let mut lines = warnings().split_off(before);
    assert_eq!(lines.len(), 1, "{lines:?}");
    lines.remove(0)
}

/// Fails with `code`, and one line of the log has all of `parts`.
fn refused(table: &Table, ctx: Ptr, handle: [u8; 128], code: Code, parts: &[&str]) {
    let line = failed(table, ctx, handle, code, parts);
    for part in ["connect"].iter().chain(parts) {
        assert!(line.contains(part), "{part:?} is not in {line:?}");
    }
}

/// The kernel refuses to connect to either at once.
//= protocol.md: the handle: an address that is named twice is dialled once
#[test]
fn an_address_that_is_named_twice_is_dialled_once() {
    with_deadline(here!(), |table, ctx| {
        let broadcast = "255.255.255.255";
        refused(table, ctx, to(&[broadcast, broadcast], 9), RemoteError, &[broadcast]);
    });
}

/// Fails by the deadline, and one line of the log has all of `parts`. On a busy machine the deadline
/// may pass before they were seen: then it is tried again.
fn late(table: &Table, ctx: Ptr, handle: [u8; 128], parts: &[&str]) {
    let deadline = "no answer within 400 ms (MPIB_CONNECT_TIMEOUT_MS)";
    until("an error that says what was found", || {
        let line = failed(table, ctx, handle, RemoteError, parts);
        assert!(line.contains("connect") && line.contains(deadline), "{line}");
        parts.iter().all(|part| line.contains(part)).then_some(())
    });
}

/// Connects as ever. On a busy machine the deadline may pass first: then it is tried again.
fn goes_on(table: &'static Table, ctx: Ptr) {
    let pair = until("a connection within the deadline", || try_connect(table, ctx, 0).ok());
    pair.message(5000, 5000, 1);
    pair.close();
}

#[test]
fn bytes_that_are_no_handle_are_refused_at_once() {
    with_deadline(here!(), |table, ctx| {
        let (good, listen) = good(table, ctx);
        let with = |at: usize, byte: u8| {
            let mut handle = good;
            handle[at] = byte;
            handle
        };
        let cases: Vec<([u8; 128], &str)> = vec![
            ([0; 128], "all zeroes"),
            (with(0, b'X'), "not an MPIB handle"),
            (with(4, 9), "of an unknown version with protocol 9, this one version "),
            (with(5, 1), "with protocol 266"),
            (
                {
                    let mut h = with(6, 0);
                    h[7] = 0;
                    h
                },
                "port 0",
            ),
            (with(32, 0), "no address"),
            (with(32, good[32] + 1), "address"),
            (with(32, 255), "address"),
            (with(43, 5), "family is neither 4 nor 6"),
            (with(44, 200), "prefix is too long"),
            (with(119, 1), "data behind its"),
        ];
        for (handle, said) in cases {
            refused(table, ctx, handle, InvalidArgument, &[said]);
        }
        // Each length of a handle that was cut off; the last one that differs lacks one byte of its
        // last address.
        let end = (0..STATE_OFFSET).rev().find(|i| good[*i] != 0).unwrap() + 1;
        for len in (0..end).filter(|len| !(6..43).contains(len)) {
            let mut handle = good;
            handle[len..].fill(0);
            // The last byte of an address may be any: a handle without it leads to another host.
            if Handle::decode(&handle).is_err() {
                refused(table, ctx, handle, InvalidArgument, &["handle"]);
            }
        }
        assert_eq!(table.close_listen(listen), Success);
        goes_on(table, ctx);
    });
}

/// Through every version's table: the bytes are C's.
#[test]
fn random_bytes_are_refused_by_every_version() {
    isolated(here!(), &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            for seed in 0..500 {
                let mut handle: [u8; 128] = pattern(128, seed).try_into().unwrap();
                if seed % 2 == 0 {
                    // Magic and version are right, so the rest is decoded.
                    handle[..4].copy_from_slice(b"MPIB");
                    handle[4..6].copy_from_slice(&PROTOCOL_VERSION.to_le_bytes());
                }
                handle[STATE_OFFSET..].fill(0);
                refused(table, ctx, handle, InvalidArgument, &["handle"]);
            }
        }
        goes_on(newest(), init(newest()));
    });
}

#[test]
fn a_forged_state_of_the_connector_is_refused() {
    with_deadline(here!(), |table, ctx| {
        let (good, listen) = good(table, ctx);
        let attempt = |state: u64| {
            let mut handle = good;
            handle[STATE_OFFSET..].copy_from_slice(&state.to_le_bytes());
            handle
        };
        // One attempt is in progress during all of this.
        let mut begun = good;
        assert_eq!(table.connect(ctx, 0, &mut begun).0, Success);
        let ours = u64::from_le_bytes(begun[STATE_OFFSET..].try_into().unwrap());
        let below = (1..ours).last().unwrap_or(ours + 7);
        for state in [u64::MAX, ours + 1, below, ours << 32, u64::from_be_bytes(ours.to_be_bytes()) << 8 | 1]
        {
            let mut handle = attempt(state);
            let before = warnings().len();
            let (rc, comm) = table.connect(ctx, 0, &mut handle);
            assert_eq!((rc, comm.is_null()), (InvalidArgument, true), "{state}");
            let lines = warnings();
            assert_eq!(lines.len(), before + 1);
            assert!(lines[before].contains(&format!("connection attempt {state}")), "{}", lines[before]);
        }
        // The right number in a handle with another address.
        let mut elsewhere = to(&["127.0.0.1"], 9);
        elsewhere[STATE_OFFSET..].copy_from_slice(&begun[STATE_OFFSET..]);
        assert_eq!(table.connect(ctx, 0, &mut elsewhere).0, InvalidArgument);
        let mut ends = (Ptr::default(), Ptr::default());
        until("the attempt that was under way", || {
            if ends.0.is_null() {
                let (rc, comm) = table.connect(ctx, 0, &mut begun);
                assert_eq!(rc, Success);
                ends.0 = comm;
            }
            if ends.1.is_null() {
                ends.1 = table.accept(listen).1;
            }
            (!ends.0.is_null() && !ends.1.is_null()).then_some(())
        });
        // The attempt has ended: its number is not valid any more.
        assert_eq!(table.connect(ctx, 0, &mut attempt(ours)).0, InvalidArgument);
        assert_eq!((table.close_send(ends.0), table.close_recv(ends.1)), (Success, Success));
        assert_eq!(table.close_listen(listen), Success);
    });
}

#[test]
fn a_closed_listener_is_reported_with_its_addresses() {
    with_deadline(here!(), |table, ctx| {
        let (handle, listen) = good(table, ctx);
        assert_eq!(table.close_listen(listen), Success);
        let listener = Handle::decode(&handle).unwrap();
        // The thread closes the port soon.
        until("the port to be closed", || TcpStream::connect(("127.0.0.1", listener.port())).err());
        let loopback = format!("127.0.0.1:{}: ", listener.port());
        let refusal = ["none of its addresses answers", &loopback, "refused"];
        refused(table, ctx, handle, RemoteError, &refusal);
        goes_on(table, ctx);
    });
}

//= faults.md: 1
#[test]
fn a_closed_listener_with_a_connector_in_its_line() {
    with_deadline(here!(), |table, ctx| {
        let (mut handle, listen) = good(table, ctx);
        let (rc, comm) = table.connect(ctx, 0, &mut handle);
        assert_eq!((rc, comm.is_null()), (Success, true));
        assert_eq!(table.close_listen(listen), Success);
        let code = until("connect to fail", || {
            let (rc, comm) = table.connect(ctx, 0, &mut handle);
            assert!(comm.is_null());
            (rc != Success).then_some(rc)
        });
        assert_eq!(code, RemoteError);
        // Whether it was in the line of the port or in that of the listener.
        let last = warnings().pop().unwrap();
        let ends = ["none of its addresses answers", "did its process end?"];
        assert!(ends.iter().any(|end| last.contains(end)), "{last:?}");
        goes_on(table, ctx);
    });
}

//= configuration.md: MPIB_CONNECT_TIMEOUT_MS
#[test]
fn addresses_that_nothing_answers_at_fail_by_the_deadline() {
    with_deadline(here!(), |table, ctx| {
        // A host that takes no connections: the line of its port is full, and it answers no further
        // ones.
        let full = TcpListener::bind("127.0.0.1:0").unwrap();
        // SAFETY: a listening socket; listening again only changes the length of its line.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&full), 0) }, 0);
        let addr = full.local_addr().unwrap();
        let short = std::time::Duration::from_millis(100);
        let mut line = Vec::new();
        while let Ok(stream) = TcpStream::connect_timeout(&addr, short) {
            line.push(stream);
        }
        let waiting = format!("{addr}: no connection yet");
        late(table, ctx, to(&["127.0.0.1"], addr.port()), &[&waiting]);
        // With a second address, which no host has: the error names both.
        let nowhere = format!("{NOWHERE}:{}: ", addr.port());
        late(table, ctx, to(&[NOWHERE, "127.0.0.1"], addr.port()), &[&waiting, &nowhere]);
        // A listener that accepts and is no plugin.
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = silent.local_addr().unwrap().port();
        let connected = format!("127.0.0.1:{port}: connected, no answer");
        late(table, ctx, to(&["127.0.0.1"], port), &[&connected]);
        drop(line);
        goes_on(table, ctx);
    });
}

/// A socket that is bound, and listens from when that is asked for: until then its port refuses
/// connections.
fn bound() -> TcpListener {
    // SAFETY: plain system calls on a socket of ours, with an address of the right length.
    unsafe {
        let fd = libc::socket(libc::AF_INET, libc::SOCK_STREAM | libc::SOCK_CLOEXEC, 0);
        assert!(fd >= 0);
        let mut addr: libc::sockaddr_in = std::mem::zeroed();
        addr.sin_family = libc::AF_INET as u16;
        addr.sin_addr.s_addr = u32::from_ne_bytes([127, 0, 0, 1]);
        assert_eq!(libc::bind(fd, (&raw const addr).cast(), size_of_val(&addr) as u32), 0);
        std::os::fd::FromRawFd::from_raw_fd(fd)
    }
}

/// The first attempt fails, as in a flood of connections or before the neighbour is resolved.
//= reach.md: an address that fails is retried; a refused connection fails soon
#[test]
fn a_port_that_refuses_at_first_is_tried_again() {
    isolated(here!(), &mpib("512", &[]), || {
        let (table, server) = (newest(), bound());
        let ctx = init(table);
        let addr = server.local_addr().unwrap();
        let mut handle = to(&["127.0.0.1"], addr.port());
        let reported = format!("its addresses are retried: {addr}: Connection refused");
        let mut go_on = || assert_eq!(table.connect(ctx, 0, &mut handle), (Success, Ptr::default()));
        until("the first try to fail", || {
            go_on();
            has_logged(&reported).then_some(())
        });
        // SAFETY: a socket of ours that is bound.
        assert_eq!(unsafe { libc::listen(std::os::fd::AsRawFd::as_raw_fd(&server), 8) }, 0);
        server.set_nonblocking(true).unwrap();
        let (mut peer, _) = until("another try", || {
            go_on();
            server.accept().ok()
        });
        peer.set_nonblocking(false).unwrap();
        let mut start = [0; HELLO_PREFIX_BYTES];
        peer.read_exact(&mut start).unwrap();
        assert_eq!(HelloPrefix::at(&start).unwrap().unwrap().claim.id, *Secret::from([7; 16]).id());
        let lines = LOG.lock().unwrap().clone();
        assert_eq!(lines.iter().filter(|(_, text)| text.contains("are retried")).count(), 1, "{lines:?}");
        assert!(warnings().is_empty(), "{:?}", warnings());
        assert_eq!(table.finalize(ctx), Success);
    });
}

/// The connector's error names both versions, and the listener learns of them.
//= protocol.md: versions: ends of different versions name both
#[test]
fn a_listener_of_another_version_learns_that() {
    with_deadline(here!(), |table, ctx| {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut handle = to(&["127.0.0.1"], server.local_addr().unwrap().port());
        let secret = Handle::decode(&handle).unwrap().secret().clone();
        handle[4] = 11;
        handle[33..43].copy_from_slice(&[0, 4, 1, 1, 0x94, 0xb8, 0x89, 0xc4, 0xd0, 0xeb]);
        let ours = Release::ours();
        let both = [
            "the plugin that made the handle is version 0.4.1-dev (commit 94b889c4d0eb) with protocol 11, this one",
            &format!("this one {ours} with protocol 10: use one version"),
        ];
        refused(table, ctx, handle, InvalidArgument, &both);
        let (mut stream, _) = server.accept().unwrap();
        let mut start = [0; HELLO_PREFIX_BYTES];
        stream.read_exact(&mut start).unwrap();
        let prefix = HelloPrefix::at(&start).unwrap().unwrap();
        assert_eq!((prefix.version, prefix.claim.release), (10, ours));
        assert!(prefix.claim.is_for(&secret, 10));
        // One report is enough.
        stream.write_all(&Message::Refuse { reason: "no".into() }.encode().unwrap()).unwrap();
        assert_eq!(stream.read(&mut [0]).unwrap(), 0);
        goes_on(table, ctx);
    });
}

/// Another listener of the plugin has the port now: it drops the HELLO.
#[test]
fn another_listener_at_the_same_port_does_not_answer() {
    with_deadline(here!(), |table, ctx| {
        let (handle, listen) = good(table, ctx);
        let port = Handle::decode(&handle).unwrap().port();
        let closed = format!("127.0.0.1:{port}: ");
        let deadline = "no answer within 400 ms (MPIB_CONNECT_TIMEOUT_MS)";
        refused(table, ctx, to(&["127.0.0.1"], port), RemoteError, &[deadline, &closed]);
        let (rc, comm) = table.accept(listen);
        assert_eq!((rc, comm.is_null()), (Success, true));
        assert_eq!(table.close_listen(listen), Success);
    });
}
