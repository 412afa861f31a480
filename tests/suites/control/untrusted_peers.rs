//! Whom a listener admits: not strangers, incomplete HELLOs, or peers that break the protocol.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use mpib_tests::pair::{LIMIT, until};
use nccl_net_mpib::control::{ChannelState, Listener, Options};
use nccl_net_mpib::proto::{HELLO_PREFIX_BYTES, Message};

use super::util::{
    a_real_peer_gets_in, accept, connect, control, hello, hello_bytes, is_dropped, listen, options, recv,
    stranger,
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
fn a_wrong_nonce_is_dropped_before_the_hello_is_whole() {
    let (listener, other) = (listen(), listen());
    let mut bytes = hello_bytes(&listener);
    bytes[HELLO_PREFIX_BYTES - 1] ^= 1;
    let mut stream = stranger(&listener);
    stream.write_all(&bytes[..HELLO_PREFIX_BYTES]).unwrap();
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
    a_real_peer_gets_in(&listener);
    is_dropped(silent);
    is_dropped(half);
    // Half a HELLO, then the end.
    let mut gone = stranger(&listener);
    gone.write_all(&bytes[..30]).unwrap();
    drop(gone);
    a_real_peer_gets_in(&listener);
}

//= faults.md: 75
#[test]
fn a_hello_that_drips_ends_in_time() {
    let listener =
        Listener::open(control(), &Options { timeout: Duration::from_millis(300), ..options() }).unwrap();
    let bytes = hello_bytes(&listener);
    let mut slow = stranger(&listener);
    slow.set_nodelay(true).unwrap();
    let until = Instant::now() + LIMIT;
    // One byte after the other, and never the last: each comes soon after the one before.
    let mut dripping = bytes[..bytes.len() - 1].iter();
    let cut = loop {
        let Some(byte) = dripping.next() else { break slow.read(&mut [0]).is_ok_and(|n| n == 0) };
        if slow.write_all(&[*byte]).is_err() {
            break true;
        }
        assert!(Instant::now() < until);
        thread::sleep(Duration::from_millis(10));
    };
    assert!(cut);
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_second_hello_with_the_same_token_is_dropped() {
    let listener = listen();
    let bytes = hello_bytes(&listener);
    let mut first = stranger(&listener);
    first.write_all(&bytes).unwrap();
    let mut welcome = [0; 21];
    first.read_exact(&mut welcome).unwrap();
    assert_eq!(Message::decode(&welcome[4..]).unwrap(), Message::Welcome { token: hello("x").token });
    let mut second = stranger(&listener);
    second.write_all(&bytes).unwrap();
    is_dropped(second);
    let first = until("the first", || listener.try_accept().unwrap());
    assert!(matches!(recv(&first), Message::Hello(h) if h.host == "stranger"));
    assert!(listener.try_accept().unwrap().is_none());
}

#[test]
fn what_comes_right_behind_a_hello_is_read() {
    let listener = listen();
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8] };
    let mut peer = stranger(&listener);
    peer.write_all(&[hello_bytes(&listener), large.encode().unwrap().repeat(7)].concat()).unwrap();
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    for _ in 0..7 {
        assert_eq!(recv(&channel), large);
    }
}

#[test]
fn another_version_gets_a_refusal_with_both_versions() {
    let listener = listen();
    let mut bytes = hello_bytes(&listener);
    bytes[9] = 8;
    // The refusal comes with the part that no version changes: the rest may have any form.
    for bytes in [&bytes[..HELLO_PREFIX_BYTES], &bytes] {
        let mut stream = stranger(&listener);
        stream.write_all(bytes).unwrap();
        let mut len = [0; 4];
        stream.read_exact(&mut len).unwrap();
        let mut answer = vec![0; u32::from_le_bytes(len) as usize];
        stream.read_exact(&mut answer).unwrap();
        match Message::decode(&answer).unwrap() {
            Message::Refuse { reason } => {
                assert!(reason.starts_with("the peer speaks protocol version 8, this plugin 9"), "{reason}")
            }
            other => panic!("{other:?}"),
        }
    }
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_hello_in_pieces_gets_in() {
    let listener = listen();
    let bytes = hello_bytes(&listener);
    for size in [1, 3, HELLO_PREFIX_BYTES] {
        let mut peer = stranger(&listener);
        peer.set_nodelay(true).unwrap();
        // Another connector each time.
        let mut bytes = bytes.clone();
        bytes[HELLO_PREFIX_BYTES] = size as u8;
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
    let mut peer = stranger(&listener);
    peer.write_all(&hello_bytes(&listener)).unwrap();
    peer.write_all(&Message::Ready.encode().unwrap()).unwrap();
    peer.write_all(&[1, 0, 0, 0, 77]).unwrap();
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
    let mut peer = stranger(&listener);
    peer.write_all(&hello_bytes(&listener)).unwrap();
    // It may be cut off while it writes.
    let _ = peer.write_all(&Message::Ready.encode().unwrap().repeat(1000));
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
    // At once, not when a stranger's time is up.
    silent.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    is_dropped(silent);
    until("the second to be lost", || (waiting.state() == ChannelState::Lost).then_some(()));
    until("the port to be closed", || {
        TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).err()
    });
    accepted.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
}
