//! Whom a listener admits: not strangers, incomplete HELLOs, or peers that break the protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use mpib_proto::{Claim, HELLO_PREFIX_BYTES, Message, Release, TAG_BYTES, Transcript};
use mpib_tests::pair::{LIMIT, until};
use mpib_tests::raw::{Raw, hello_frame, read_plain};
use nccl_net_mpib::simulation::control::{Channel, ChannelState, Listener, Options};

use super::util::{
    TOKEN, a_real_peer_gets_in, a_real_peer_gets_in_again, accept, connect, control, hello, hello_bytes,
    is_dropped, is_open, listen, options, raw_peer, recv, stranger,
};

//= faults.md: 75: strangers send garbage, lie, drip or stay silent: they are dropped in time
#[test]
fn garbage_is_dropped() {
    let listener = listen();
    for bytes in [&b"GET / HTTP/1.0\r\n\r\n"[..], &[0; 64], &[0xff; 64], b"SSH-2.0-x\r\n", &[23, 0, 0, 0, 9]]
    {
        let mut stream = stranger(&listener);
        stream.write_all(bytes).unwrap();
        is_dropped(stream);
    }
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_wrong_claim_is_dropped_before_the_hello_is_whole() {
    let (listener, other) = (listen(), listen());
    let mut bytes = hello_bytes(&listener);
    bytes[HELLO_PREFIX_BYTES - 1] ^= 1;
    let silent = stranger(&listener);
    let mut stream = stranger(&listener);
    stream.write_all(&bytes[..HELLO_PREFIX_BYTES]).unwrap();
    assert_eq!(stream.read(&mut [0]).unwrap(), 0);
    // At once: the time of a stranger that came before is not over.
    is_open(&silent);
    // Whole.
    let mut stream = stranger(&listener);
    stream.write_all(&bytes).unwrap();
    is_dropped(stream);
    // Another listener's, whole.
    let mut stream = stranger(&listener);
    stream.write_all(&hello_bytes(&other)).unwrap();
    is_dropped(stream);
    a_real_peer_gets_in(&listener);
}

//= faults.md: 75
#[test]
fn an_oversized_hello_is_dropped() {
    let listener = listen();
    let mut stream = stranger(&listener);
    stream.write_all(&(1u32 << 17).to_le_bytes()).unwrap();
    is_dropped(stream);
    a_real_peer_gets_in(&listener);
}

//= faults.md: 75
#[test]
fn silence_and_half_a_hello_delay_nobody_and_end_in_time() {
    let listener =
        Listener::open(control(), &Options { timeout: Duration::from_millis(200), ..options() }).unwrap();
    let silent = stranger(&listener);
    let mut half = stranger(&listener);
    let bytes = hello_bytes(&listener);
    half.write_all(&bytes[..bytes.len() - 1]).unwrap();
    a_real_peer_gets_in_again(&listener);
    is_dropped(silent);
    is_dropped(half);
    // Half a HELLO, then the end.
    let mut early_leaver = stranger(&listener);
    early_leaver.write_all(&bytes[..30]).unwrap();
    drop(early_leaver);
    a_real_peer_gets_in_again(&listener);
}

//= faults.md: 75
#[test]
fn a_hello_that_drips_ends_in_time() {
    let listener =
        Listener::open(control(), &Options { timeout: Duration::from_millis(300), ..options() }).unwrap();
    let mut bytes = hello_bytes(&listener);
    // A frame of the greatest length: it is not whole before the test has given up.
    bytes[..4].copy_from_slice(&(64u32 << 10).to_le_bytes());
    let mut slow = stranger(&listener);
    slow.set_nodelay(true).unwrap();
    let until = Instant::now() + LIMIT;
    // One byte after the other: each comes soon after the one before.
    for byte in bytes.into_iter().chain(std::iter::repeat(0)) {
        if slow.write_all(&[byte]).is_err() {
            break;
        }
        assert!(Instant::now() < until, "it may drip for ever");
        thread::sleep(Duration::from_millis(10));
    }
    a_real_peer_gets_in_again(&listener);
}

/// A copy of a HELLO: even if the copy comes first, the connector alone can go on.
//= protocol.md: authentication: of several connections with one HELLO, the one with the proof counts
#[test]
fn a_second_hello_with_the_same_token_is_dropped_once_the_first_has_proved_itself() {
    let listener = listen();
    let bytes = hello_bytes(&listener);
    let first = raw_peer(&listener);
    let mut second = stranger(&listener);
    let accepted = until("the first", || listener.try_accept().unwrap());
    until("the proof", || accepted.is_proved().then_some(()));
    second.write_all(&bytes).unwrap();
    is_dropped(second);
    assert!(matches!(recv(&accepted), Message::Hello(h) if h.host == "stranger"));
    assert!(listener.try_accept().unwrap().is_none());
    drop(first);
}

/// A connection with a copy of a HELLO, and what the listener makes of it.
fn copied(listener: &Listener, hello: &[u8]) -> (TcpStream, Channel) {
    let mut thief = stranger(listener);
    thief.write_all(hello).unwrap();
    (thief, until("the copy", || listener.try_accept().unwrap()))
}

/// It has proved nothing when its time is over, and the connector's own connection takes its place.
//= protocol.md: authentication: of several connections with one HELLO, the one with the proof counts
#[test]
fn a_thief_that_is_first_with_a_copied_hello_gets_nothing() {
    let listener = listen();
    let bytes = hello_bytes(&listener);
    let (mut thief, stolen) = copied(&listener, &bytes);
    assert!(matches!(read_plain(&mut thief), Message::Welcome { .. }));
    let mut right = stranger(&listener);
    right.write_all(&bytes).unwrap();
    let channel = until("the connector", || listener.try_accept().unwrap());
    let mut right = Raw::after_hello(right, listener.handle().secret(), TOKEN, &bytes);
    assert!(matches!(recv(&channel), Message::Hello(h) if h.host == "stranger"));
    right.send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    assert!(channel.is_proved() && !stolen.is_proved());
    assert_eq!(stolen.state(), ChannelState::Lost);
    // By a reset: a connector whose connection it was begins again.
    let end = thief.read(&mut [0]).map_err(|e| e.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
}

/// The proof of somebody who does not have the secret is the end of its connection alone.
//= protocol.md: authentication: of several connections with one HELLO, the one with the proof counts
#[test]
fn a_thief_that_makes_up_a_proof_is_dropped() {
    let listener = listen();
    let bytes = hello_bytes(&listener);
    let (mut thief, stolen) = copied(&listener, &bytes);
    assert!(matches!(read_plain(&mut thief), Message::Welcome { .. }));
    let mut proof = Message::Proof.encode().unwrap();
    Transcript::new(&[0; 16].into(), &bytes).early_key().seal(&mut proof);
    thief.write_all(&proof).unwrap();
    is_dropped(thief);
    let _right = raw_peer(&listener);
    let channel = until("the connector", || listener.try_accept().unwrap());
    until("its proof", || channel.is_proved().then_some(()));
    assert!(!stolen.is_proved());
}

/// The copy has been accepted and has ended before the connector comes.
#[test]
fn a_copy_that_has_ended_does_not_take_the_connectors_place() {
    let listener = listen();
    let (thief, copy) = copied(&listener, &hello_bytes(&listener));
    drop(thief);
    until("its end", || {
        // Behind the HELLO.
        copy.try_recv().is_err().then_some(())
    });
    drop(copy);
    let _right = raw_peer(&listener);
    let channel = until("the connector", || listener.try_accept().unwrap());
    until("its proof", || channel.is_proved().then_some(()));
}

#[test]
fn what_comes_right_behind_a_hello_is_read() {
    let listener = listen();
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8], accepts: false };
    let mut bytes = hello_bytes(&listener);
    let mut key = Transcript::new(listener.handle().secret(), &bytes).early_key();
    for _ in 0..7 {
        let mut frame = large.encode().unwrap();
        key.seal(&mut frame);
        bytes.extend(frame);
    }
    let mut peer = stranger(&listener);
    peer.write_all(&bytes).unwrap();
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    for _ in 0..7 {
        assert_eq!(recv(&channel), large);
    }
}

/// A HELLO that was changed on its way: what follows it has wrong tags.
#[test]
fn a_changed_hello_proves_nothing() {
    let listener = listen();
    let whole = hello_bytes(&listener);
    let mut key = Transcript::new(listener.handle().secret(), &whole).early_key();
    let mut changed = whole.clone();
    // The process id.
    changed[HELLO_PREFIX_BYTES] ^= 1;
    let mut ready = Message::Ready.encode().unwrap();
    key.seal(&mut ready);
    let mut peer = stranger(&listener);
    peer.write_all(&[changed, ready].concat()).unwrap();
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    let text = until("the error", || channel.try_recv().err()).to_string();
    assert!(text.contains("sent a frame with a wrong authentication tag"), "{text}");
    assert!(!channel.is_proved());
}

//= protocol.md: versions: ends of different versions name both
//= faults.md: 80: the ends have different protocol versions: both refuse and name both versions
#[test]
fn another_version_gets_a_refusal_with_both_versions() {
    let listener = listen();
    let mut bytes = hello_bytes(&listener);
    let with = |version: u16, bytes: &mut Vec<u8>| bytes[9..11].copy_from_slice(&version.to_le_bytes());
    // A version that the tag does not cover is a stranger's.
    with(11, &mut bytes);
    bytes[11..21].copy_from_slice(&[0, 4, 1, 0, 0x94, 0xb8, 0x89, 0xc4, 0xd0, 0xeb]);
    let mut liar = stranger(&listener);
    liar.write_all(&bytes).unwrap();
    is_dropped(liar);
    let prefix = Claim::of_version(listener.handle().secret(), TOKEN, 11);
    bytes[HELLO_PREFIX_BYTES - TAG_BYTES..HELLO_PREFIX_BYTES].copy_from_slice(&prefix.tag);
    // The refusal comes with the part that no version changes: the rest may have any form.
    for bytes in [&bytes[..HELLO_PREFIX_BYTES], &bytes] {
        let mut stream = stranger(&listener);
        stream.write_all(bytes).unwrap();
        match read_plain(&mut stream) {
            Message::Refuse { reason } => {
                let theirs =
                    "the peer's plugin is version 0.4.1 (commit 94b889c4d0eb) with protocol 11, this one ";
                let ours = format!("{} with protocol 10", Release::ours());
                assert!(reason.starts_with(theirs) && reason[theirs.len()..].starts_with(&ours), "{reason}")
            }
            other => panic!("{other:?}"),
        }
        let text = until("the report", || listener.refused()).to_string();
        assert!(text.contains("with protocol 11, this one version "), "{text}");
    }
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_hello_in_pieces_gets_in() {
    let listener = listen();
    for size in [1, 3, HELLO_PREFIX_BYTES] {
        let mut peer = stranger(&listener);
        peer.set_nodelay(true).unwrap();
        // Another connector each time.
        let bytes = hello_frame(listener.handle().secret(), [size as u8; 16], hello("stranger"));
        for piece in bytes.chunks(size) {
            peer.write_all(piece).unwrap();
            thread::yield_now();
        }
        let channel = until("the peer", || listener.try_accept().unwrap());
        assert!(matches!(recv(&channel), Message::Hello(h) if h.host == "stranger"));
    }
}

#[test]
fn a_broken_frame_is_a_protocol_error() {
    let listener = listen();
    let mut peer = raw_peer(&listener);
    peer.send(&Message::Ready);
    let unknown = peer.sealed_body(&[77]);
    peer.stream.write_all(&unknown).unwrap();
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    assert_eq!(recv(&channel), Message::Ready);
    let text = until("the error", || channel.try_recv().err()).to_string();
    assert!(
        text.starts_with("protocol error: 127.0.0.1:") && text.ends_with("unknown message type 77"),
        "{text}"
    );
    assert_eq!(channel.state(), ChannelState::Lost);
}

#[test]
fn a_flood_of_messages_is_a_protocol_error() {
    let listener = listen();
    let mut peer = raw_peer(&listener);
    // It may be cut off while it writes.
    (0..1000).for_each(|_| peer.send(&Message::Ready));
    let channel = until("the peer", || listener.try_accept().unwrap());
    until("the end", || (channel.state() == ChannelState::Lost).then_some(()));
    let messages = std::iter::from_fn(|| channel.try_recv().ok().flatten()).count();
    assert_eq!(messages, 64);
    assert!(channel.try_recv().unwrap_err().to_string().contains("more than 64 messages"));
}

#[test]
fn a_closed_listener_takes_what_nobody_accepted_with_it() {
    let listener = listen();
    let port = listener.handle().port();
    let silent = stranger(&listener);
    let connector = connect(&listener);
    let accepted = accept(&listener);
    let waiting = connect(&listener);
    until("the second to be let in", || waiting.peer());
    drop(listener);
    is_dropped(silent);
    until("the second to be lost", || (waiting.state() == ChannelState::Lost).then_some(()));
    until("the port to be closed", || {
        TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).err()
    });
    accepted.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
}
