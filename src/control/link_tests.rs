//! What the end of a TCP connection means, whichever call of the socket finds it.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use socket2::SockRef;

use super::*;
use crate::control::redial_terms::Here;
use crate::proto::{Addr, Callback, HEADER_BYTES, Handle, Peeked, Transcript};

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

/// An established link of an acceptor with failover, and its peer.
pub(in crate::control) fn established() -> (Link, Peer) {
    let addrs = [Addr::new(Ipv4Addr::LOCALHOST.into(), 8).unwrap()];
    let here = Here { handle: Handle::new([1; 16], 1, &addrs).unwrap(), beginnings: Arc::default() };
    let terms = RedialTerms::new(Role::Acceptor, [2; 16], &here, Duration::from_secs(60));
    let link = Link::with_redial(Some(terms));
    let session = transcript().session(&[6; 16]);
    let early = || transcript().early_key();
    link.secure(&session, Role::Acceptor, Some(early())).unwrap();
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let stream = socket::connect(addr).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let callback = Callback { id: [3; 8], port: 1, addrs: addrs.to_vec(), ended: [4; 16] };
    let mut first = Message::Callback(callback).encode().unwrap();
    early().seal(&mut first);
    peer.write_all(&first).unwrap();
    link.establish(stream, addr, Vec::new());
    link.set_established();
    let mut peer = Peer { socket: peer, keys: session.keys_of(Role::Connector, None) };
    while !link.lock().may_resume() {
        assert_eq!(link.on_ready(), LinkStatus::Open);
    }
    assert!(!link.is_proved());
    peer.send(&Message::Proof);
    while !link.is_proved() {
        assert_eq!(link.on_ready(), LinkStatus::Open);
    }
    (link, peer)
}

/// How long a link may take that has something to read: longer than any machine needs.
const LIMIT: Duration = Duration::from_secs(60);

/// Steps the link until its socket is closed.
fn step(link: &Link) -> LinkStatus {
    let begin = Instant::now();
    loop {
        match link.on_ready() {
            LinkStatus::Open => assert!(begin.elapsed() < LIMIT, "the link stays open"),
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
    assert_eq!(step(&link), LinkStatus::Closed);
    let why = link.try_recv().unwrap_err().to_string();
    assert!(why.contains("CALLBACK for the second time"), "{why}");
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_breaks_the_connection() {
    let (link, peer) = established();
    reset(peer);
    assert_eq!((step(&link), link.state()), (LinkStatus::Broken, ChannelState::Broken));
    assert!(link.broken().unwrap().1.contains("the connection broke: "));
    assert_eq!(link.try_recv().unwrap(), None);
    link.send(&Message::Ready).unwrap();
    assert_eq!(link.unsent(), 0);
}

/// The kernel reports a reset once, to whichever call comes first. A read finds the end of the
/// bytes then, as after a FIN.
//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_that_a_write_has_found_is_no_fin() {
    let (link, peer) = established();
    reset(peer);
    while link.lock().fault.is_none() {
        link.send(&Message::Ready).unwrap();
    }
    link.send(&Message::Ready).unwrap();
    assert_eq!((step(&link), link.state()), (LinkStatus::Broken, ChannelState::Broken));
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_fin_is_the_end_even_if_a_write_has_failed_since() {
    for writes in [false, true] {
        let (link, peer) = established();
        drop(peer);
        while writes && link.lock().fault.is_none() {
            link.send(&Message::Ready).unwrap();
        }
        assert_eq!((step(&link), link.state()), (LinkStatus::Closed, ChannelState::Lost));
        assert!(link.try_recv().unwrap_err().to_string().contains("did its process end?"));
    }
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn before_the_end_of_the_handshake_a_reset_is_a_loss() {
    let (link, peer) = established();
    link.lock().established = false;
    reset(peer);
    assert_eq!((step(&link), link.state()), (LinkStatus::Closed, ChannelState::Lost));
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
        for established_handshake in [true, false] {
            let (link, mut peer) = established();
            link.lock().established = established_handshake;
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
            if established_handshake {
                assert_eq!((status, link.state()), (LinkStatus::Broken, ChannelState::Broken), "case {i}");
                let why = link.broken().unwrap().1;
                assert!(why.contains("wrong authentication tag") && why.ends_with("(number 1)"), "{why}");
                assert_eq!(link.try_recv().unwrap(), None);
            } else {
                assert_eq!((status, link.state()), (LinkStatus::Closed, ChannelState::Lost), "case {i}");
                let text = link.try_recv().unwrap_err().to_string();
                assert!(text.contains("wrong authentication tag"), "{text}");
            }
        }
    }
}

#[test]
fn what_waits_for_the_keys_follows_the_proof() {
    let link = Link::with_redial(None);
    link.send(&Message::Ready).unwrap();
    let session = transcript().session(&[6; 16]);
    link.secure(&session, Role::Connector, None).unwrap();
    link.send(&Message::Bye).unwrap();
    let outbox = link.lock().outbox.clone();
    let mut keys = session.keys_of(Role::Acceptor, None);
    let mut rest = &outbox[..];
    for expected in [Message::Proof, Message::Ready, Message::Bye] {
        let Ok(Peeked::Whole { len }) = Peeked::at(rest) else { panic!("no frame") };
        let body = keys.open(&rest[HEADER_BYTES..HEADER_BYTES + len]).unwrap();
        assert_eq!(Message::decode(body), Ok(expected));
        rest = &rest[HEADER_BYTES + len..];
    }
    assert!(rest.is_empty());
}
