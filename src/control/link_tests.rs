//! What the end of a TCP connection means, whichever call of the socket finds it.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener};

use mpib_proto::{Addr, Callback, HEADER_BYTES, Keys, Peeked, Transcript};
use socket2::SockRef;

use super::*;
use crate::control::socket;

/// The peer of a link: its socket and its keys.
pub(in crate::control) struct Peer {
    pub(in crate::control) socket: std::net::TcpStream,
    keys: Keys,
}

impl Peer {
    fn send(&mut self, message: &Message) {
        let mut frame = message.encode().unwrap();
        self.keys.seal(&mut frame);
        self.socket.write_all(&frame).unwrap();
    }
}

fn transcript() -> Transcript {
    Transcript::new(&[5; 16].into(), b"a HELLO")
}

/// A link of an acceptor with failover in its handshake, and its peer, which has proved itself.
fn begun() -> (Link, Peer) {
    let link = Link::new(Some(RedialTerms::new(Role::Acceptor, [2; 16], Duration::from_secs(60))));
    let session = transcript().session(&[6; 16]);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let stream = socket::connect(addr).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let keys = session.keys_of(Role::Acceptor, Some(transcript().early_key()));
    link.begin(Wire::new(stream, keys, Vec::new()), Role::Acceptor, addr, session.resume).unwrap();
    let addrs = vec![Addr::new(Ipv4Addr::LOCALHOST.into(), 8).unwrap()];
    let callback = Callback { id: [3; 8], port: 1, addrs, ended: [4; 16] };
    let mut first = Message::Callback(callback).encode().unwrap();
    transcript().early_key().seal(&mut first);
    peer.write_all(&first).unwrap();
    let agreed = || link.lock().redial.as_ref().is_some_and(RedialTerms::is_agreed);
    while !agreed() {
        assert_eq!(link.on_ready(), ChannelState::Open);
    }
    assert!(!link.is_proved());
    let mut peer = Peer { socket: peer, keys: session.keys_of(Role::Connector, None) };
    peer.send(&Message::Proof);
    while !link.is_proved() {
        assert_eq!(link.on_ready(), ChannelState::Open);
    }
    (link, peer)
}

/// As [`begun`], and established.
pub(in crate::control) fn established() -> (Link, Peer) {
    let (link, peer) = begun();
    link.set_established();
    (link, peer)
}

/// Sends until a write has failed.
fn send_until_it_fails(link: &Link) {
    let is_open = || link.lock().phase.wire().is_some_and(|wire| !wire.is_faulty());
    while is_open() {
        send(link, &Message::Ready);
    }
}

fn send(link: &Link, message: &Message) {
    link.enqueue(message).unwrap();
    link.flush();
}

/// How long a link may take that has something to read: longer than any machine needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Steps the link until its socket is closed.
fn step(link: &Link) -> ChannelState {
    let begin = Instant::now();
    loop {
        match link.on_ready() {
            ChannelState::Open => assert!(begin.elapsed() < LIMIT, "the link stays open"),
            end => return end,
        }
    }
}

fn reset(peer: Peer) {
    SockRef::from(&peer.socket).set_linger(Some(Duration::ZERO)).unwrap();
}

/// It is no message for the owner, whose inbox bounds the others.
#[test]
fn a_second_callback_ends_the_connection() {
    let (link, mut peer) = established();
    peer.send(&Message::Callback(Callback { id: [3; 8], port: 2, addrs: Vec::new(), ended: [4; 16] }));
    assert_eq!(step(&link), ChannelState::Lost);
    let why = link.try_recv().unwrap_err().to_string();
    assert!(why.contains("CALLBACK for the second time"), "{why}");
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_breaks_the_connection() {
    let (link, peer) = established();
    reset(peer);
    assert_eq!((step(&link), link.state()), (ChannelState::Broken, ChannelState::Broken));
    assert!(link.broken().unwrap().to_string().contains("the connection broke: "));
    assert_eq!(link.try_recv().unwrap(), None);
    // It is lost, and no error.
    send(&link, &Message::Ready);
}

/// The kernel reports a reset once, to whichever call comes first. A read finds the end of the
/// bytes then, as after a FIN.
//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_that_a_write_has_found_is_no_fin() {
    let (link, peer) = established();
    reset(peer);
    send_until_it_fails(&link);
    send(&link, &Message::Ready);
    assert_eq!((step(&link), link.state()), (ChannelState::Broken, ChannelState::Broken));
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_fin_is_the_end_even_if_a_write_has_failed_since() {
    for writes in [false, true] {
        let (link, peer) = established();
        drop(peer);
        if writes {
            send_until_it_fails(&link);
        }
        assert_eq!((step(&link), link.state()), (ChannelState::Lost, ChannelState::Lost));
        assert!(link.try_recv().unwrap_err().to_string().contains("did its process end?"));
    }
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn before_the_end_of_the_handshake_a_reset_is_a_loss() {
    let (link, peer) = begun();
    reset(peer);
    assert_eq!((step(&link), link.state()), (ChannelState::Lost, ChannelState::Lost));
}

/// A frame with a wrong tag, a frame that comes again, and one from before the proof.
//= protocol.md: authentication: a frame with a wrong tag ends the TCP connection alone
#[test]
fn a_wrong_tag_breaks_the_connection_and_a_redial_may_replace_it() {
    let sealed = |peer: &mut Peer| {
        let mut frame = Message::Ready.encode().unwrap();
        peer.keys.seal(&mut frame);
        frame
    };
    let forge: [fn(&mut Vec<u8>); 4] = [
        |frame| *frame.last_mut().unwrap() ^= 1,
        |frame| frame[HEADER_BYTES] = 4 ^ 1,
        |frame| frame.extend_from_within(..),
        |frame| {
            let mut early = Message::Ready.encode().unwrap();
            transcript().early_key().seal(&mut early);
            *frame = early;
        },
    ];
    for (i, forge) in forge.into_iter().enumerate() {
        for is_established in [true, false] {
            let (link, mut peer) = if is_established { established() } else { begun() };
            peer.send(&Message::Ready);
            let mut frame = sealed(&mut peer);
            forge(&mut frame);
            peer.socket.write_all(&frame).unwrap();
            let status = step(&link);
            // What came before counts.
            assert_eq!(link.try_recv().unwrap(), Some(Message::Ready), "case {i}");
            if i == 2 {
                assert_eq!(link.try_recv().unwrap(), Some(Message::Ready), "the first copy");
            }
            if is_established {
                assert_eq!((status, link.state()), (ChannelState::Broken, ChannelState::Broken), "case {i}");
                let why = link.broken().unwrap().to_string();
                assert!(
                    why.contains("the peer's address sent a frame with a wrong authentication tag"),
                    "{why}"
                );
                assert_eq!(link.try_recv().unwrap(), None);
            } else {
                assert_eq!((status, link.state()), (ChannelState::Lost, ChannelState::Lost), "case {i}");
                let text = link.try_recv().unwrap_err().to_string();
                assert!(text.contains("wrong authentication tag"), "{text}");
            }
        }
    }
}

#[test]
fn what_waits_for_the_tcp_connection_follows_the_proof() {
    let link = Link::new(None);
    send(&link, &Message::Ready);
    let session = transcript().session(&[6; 16]);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let stream = socket::connect(addr).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let wire = Wire::new(stream, session.keys_of(Role::Connector, None), Vec::new());
    link.begin(wire, Role::Connector, addr, session.resume).unwrap();
    send(&link, &Message::Bye);
    link.leave().unwrap().hang_up();
    let mut sent = Vec::new();
    peer.read_to_end(&mut sent).unwrap();
    let mut keys = session.keys_of(Role::Acceptor, None);
    let mut rest = &sent[..];
    for expected in [Message::Proof, Message::Ready, Message::Bye] {
        let Ok(Peeked::Whole { len }) = Peeked::at(rest) else { panic!("no frame") };
        let body = keys.open(&rest[HEADER_BYTES..HEADER_BYTES + len]).unwrap();
        assert_eq!(Message::decode(body), Ok(expected));
        rest = &rest[HEADER_BYTES + len..];
    }
    assert!(rest.is_empty());
}
