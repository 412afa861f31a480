//! Strangers at the listener for re-dials.

use std::io::{Read, Write};
use std::net::Ipv4Addr;

use mpib_proto::{Callback, Message, Redial, Role, Secret, Transcript, ended_commitment};
use mpib_tests::holdings::descriptors;
use mpib_tests::pair::{LIMIT, until};
use mpib_tests::proxy::reset;
use mpib_tests::raw::{Raw, dial, hello_frame, read_frame, read_plain, welcome};
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::control::{Channel, ChannelState, Listener};

use super::redial::listen;
use super::util::{HALF_OPEN, control, handle_with, hello, is_dropped, recv};

/// A channel of this process whose peer is this test, and what the peer knows.
struct Known {
    channel: Channel,
    peer: Raw,
    /// The CALLBACK of the process.
    callback: Callback,
}

/// What the process of the test would show if the connection had ended there.
const ENDED: [u8; 16] = [8; 16];

/// Connects as a peer whose own listener for re-dials has this port. The handshake runs.
fn begun(listener: &Listener, callback_port: u16) -> Known {
    // The token of another connector.
    let mut token = [0; 16];
    getrandom::fill(&mut token).unwrap();
    let mut peer = Raw::connect(listener.handle(), token, hello("stranger"));
    let mut addrs = listener.handle().addrs().to_vec();
    addrs.retain(|addr| addr.ip() == Ipv4Addr::LOCALHOST);
    let ended = ended_commitment(&ENDED);
    peer.send(&Message::Callback(Callback { id: [9; 8], port: callback_port, addrs, ended }));
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    let Message::Callback(callback) = peer.recv() else { panic!("no CALLBACK") };
    // The process knows this end's CALLBACK once it has read what follows.
    peer.send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    Known { channel, peer, callback }
}

/// As [`begun`], and ends the handshake.
fn known(listener: &Listener, callback_port: u16) -> Known {
    let known = begun(listener, callback_port);
    known.channel.end_handshake().unwrap();
    known
}

impl Known {
    fn key(&self) -> Secret {
        self.peer.session.resume.into()
    }

    fn redial(&self, from: Role) -> Redial {
        Redial::new(&self.key(), self.callback.id, self.peer.token, from, [4; 16])
    }

    /// Dials the process as this end, up to its WELCOME.
    fn dial(&self, from: Role) -> Raw {
        let frame = Message::Redial(self.redial(from)).encode().unwrap();
        let mut stream = dial(self.callback.port);
        // In pieces.
        frame.chunks(7).for_each(|piece| stream.write_all(piece).unwrap());
        let mut raw = Raw::unproved(stream, &self.key(), self.peer.token, &frame);
        raw.keys = raw.session.keys_of(from, None);
        raw
    }
}

//= protocol.md: nobody else can replace a control connection
//= protocol.md: dialling again: an unknown token is answered with ENDED
#[test]
fn a_redial_without_all_secrets_is_dropped() {
    let listener = listen();
    let known = known(&listener, 1);
    let (key, port) = (known.key(), known.callback.port);
    let (id, token) = (known.callback.id, known.peer.token);
    let frame = |redial: Redial| Message::Redial(redial).encode().unwrap();
    let hello = hello_frame(&key, token, hello("stranger"));
    let resume = Message::Resume.encode().unwrap();
    let right = known.redial(Role::Connector);
    let wrong_key = frame(Redial::new(&[1; 16].into(), id, token, Role::Connector, [4; 16]));
    for bytes in [
        wrong_key.clone(),
        frame(Redial::new(&key, [1; 8], token, Role::Connector, [4; 16])),
        frame(Redial { challenge: [5; 16], ..right.clone() }),
        hello,
        resume.clone(),
        vec![255; 70],
        b"GET / HTTP/1.1\r\n\r\n".repeat(4),
        [wrong_key, resume.clone()].concat(),
    ] {
        let mut one = dial(port);
        one.write_all(&bytes).unwrap();
        is_dropped(one);
    }
    // A peer of this process whose connection has ended here gets an answer, and no connection. The
    // channel is no connector's.
    let other = Redial::new(&key, id, [1; 16], Role::Connector, [4; 16]);
    for (redial, same_token) in [(other, false), (known.redial(Role::Acceptor), true)] {
        let mut one = dial(port);
        one.write_all(&frame(redial)).unwrap();
        let Message::Ended { proof } = read_plain(&mut one) else { panic!("no ENDED") };
        // That the connector's end has closed is not that the acceptor's has.
        assert_ne!(ended_commitment(&proof), known.callback.ended, "{same_token}");
    }
    // A copy of a REDIAL gets a WELCOME, and no further.
    let mut copy = dial(port);
    copy.write_all(&frame(right)).unwrap();
    assert!(matches!(read_plain(&mut copy), Message::Welcome { .. }));
    copy.write_all(&resume).unwrap();
    is_dropped(copy);
    // One that knows all and does not go on replaces nothing either.
    drop(known.dial(Role::Connector));
    let Known { channel, mut peer, .. } = known;
    peer.send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    assert_eq!(channel.state(), ChannelState::Open);
}

/// After the end of a connection its process shows that, to each process that dials it again.
//= protocol.md: dialling again: an unknown token is answered with ENDED
#[test]
fn the_end_of_a_connection_has_a_proof() {
    let listener = listen();
    let known = known(&listener, 1);
    // Keeps the listener for re-dials.
    let _other = self::known(&listener, 1);
    let redial = Message::Redial(known.redial(Role::Connector)).encode().unwrap();
    known.channel.close();
    let mut one = dial(known.callback.port);
    one.write_all(&redial).unwrap();
    let Message::Ended { proof } = read_plain(&mut one) else { panic!("no ENDED") };
    assert_eq!(ended_commitment(&proof), known.callback.ended);
}

/// A reader of CALLBACK gets no proof for later.
//= protocol.md: dialling again: a connection whose handshake is not over gets no answer
#[test]
fn a_handshake_that_runs_has_no_proof_of_its_end() {
    let listener = listen();
    let redial = |known: &Known, from| Message::Redial(known.redial(from)).encode().unwrap();
    // At the acceptor.
    let acceptor = begun(&listener, 1);
    let mut early = dial(acceptor.callback.port);
    early.write_all(&redial(&acceptor, Role::Connector)).unwrap();
    is_dropped(early);
    acceptor.channel.end_handshake().unwrap();
    drop(acceptor.dial(Role::Connector));
    // At the connector.
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(server.local_addr().unwrap().port(), &["127.0.0.1"]);
    let tolerance = super::redial::tolerance();
    let channel =
        Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, tolerance).unwrap();
    let mut peer = Raw::accept(server.accept().unwrap().0, handle.secret());
    let Message::Callback(callback) = peer.recv() else { panic!("no CALLBACK") };
    let connector = Known { channel, peer, callback };
    let mut early = dial(connector.callback.port);
    early.write_all(&redial(&connector, Role::Acceptor)).unwrap();
    is_dropped(early);
    // A handshake that fails is an end.
    connector.peer.stream.shutdown(std::net::Shutdown::Both).unwrap();
    until("the end of the handshake", || connector.channel.try_recv().is_err().then_some(()));
    let mut late = dial(connector.callback.port);
    late.write_all(&redial(&connector, Role::Acceptor)).unwrap();
    let Message::Ended { proof } = read_plain(&mut late) else { panic!("no ENDED") };
    assert_eq!(ended_commitment(&proof), connector.callback.ended);
}

/// Anyone who has read a CALLBACK can send REDIALs with unknown tokens, and not close.
//= faults.md: 38
#[test]
fn strangers_that_stay_after_an_ended_reply_are_bounded() {
    isolated(here!(), &[], || {
        let listener = listen();
        let known = known(&listener, 1);
        let before = descriptors();
        let mut ended = Vec::new();
        for n in 0..300_u16 {
            let mut token = [1; 16];
            token[..2].copy_from_slice(&n.to_le_bytes());
            let redial = Redial::new(&known.key(), known.callback.id, token, Role::Connector, [4; 16]);
            let mut one = dial(known.callback.port);
            one.write_all(&Message::Redial(redial).encode().unwrap()).unwrap();
            assert!(matches!(read_plain(&mut one), Message::Ended { .. }), "{n}");
            ended.push(one);
        }
        // Those of this end, and of the listener's at most as many as may be half open.
        let held = descriptors() - before - ended.len();
        assert!((1..=HALF_OPEN).contains(&held), "{held}");
        // The others have room as before.
        let known = self::known(&listener, 1);
        drop(known.dial(Role::Connector));
        drop(ended);
    });
}

/// The process that dials again believes nobody else that the connection has ended.
//= protocol.md: authentication: a REFUSE without a proof is kept for the error
#[test]
fn an_end_without_its_proof_is_not_believed() {
    let listener = listen();
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let known = known(&listener, server.local_addr().unwrap().port());
    reset(&known.peer.stream);
    let lies = [Message::Refuse { reason: "it has ended".into() }, Message::Ended { proof: [7; 16] }];
    for lie in lies {
        let (mut stream, _) = server.accept().unwrap();
        let Message::Redial(redial) = read_plain(&mut stream) else { panic!("no REDIAL") };
        assert_eq!((redial.id, redial.from), ([9; 8], Role::Acceptor));
        assert!(redial.is_by_holder_of(&known.key()));
        stream.write_all(&lie.encode().unwrap()).unwrap();
        // It comes again.
    }
    let (mut stream, _) = server.accept().unwrap();
    assert_eq!(known.channel.state(), ChannelState::Broken);
    stream.write_all(&Message::Ended { proof: ENDED }.encode().unwrap()).unwrap();
    until("the end", || (known.channel.state() == ChannelState::Lost).then_some(()));
    let text = known.channel.received().unwrap_err().to_string();
    assert!(text.contains("its process has closed the connection"), "{text}");
}

//= protocol.md: dialling again: a frame that was not read whole is dropped
#[test]
fn the_new_connection_begins_with_a_whole_frame() {
    let listener = listen();
    let mut known = known(&listener, 1);
    let half = known.peer.sealed(&Message::Refuse { reason: "x".repeat(500) });
    known.peer.stream.write_all(&half[..100]).unwrap();
    // More than the socket holds: this end has sent a part of a frame, too.
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8], accepts: false };
    for _ in 0..2000 {
        known.channel.send(&large).unwrap();
    }
    // With a message behind the last one.
    let mut new = known.dial(Role::Connector);
    let probed = Message::Probed { mask: 3, reasons: Vec::new(), accepts: false };
    let both = [&Message::Resume, &probed].map(|message| new.sealed(message)).concat();
    new.stream.write_all(&both).unwrap();
    let Known { channel, mut peer, .. } = known;
    assert_eq!(recv(&channel), probed);
    channel.send(&Message::Ready).unwrap();
    assert_eq!(new.recv(), Message::Ready);
    // The old one is reset.
    let end = peer.stream.read_to_end(&mut Vec::new()).map_err(|e| e.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    drop(new);
    until("the loss", || (channel.state() == ChannelState::Lost).then_some(()));
}

/// A connector that does not dial, as behind a firewall that lets only its peer through.
//= protocol.md: dialling again: either end begins
#[test]
fn an_acceptor_reaches_a_connector_that_does_not_dial() {
    let listener = listen();
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let known = known(&listener, server.local_addr().unwrap().port());
    reset(&known.peer.stream);
    let (mut stream, _) = server.accept().unwrap();
    let hello = read_frame(&mut stream);
    let (answer, session) = welcome(&Transcript::new(&known.key(), &hello));
    stream.write_all(&answer).unwrap();
    let keys = session.keys_of(Role::Connector, None);
    let mut new = Raw { stream, keys, session, token: known.peer.token, hello };
    assert_eq!(new.recv(), Message::Resume);
    new.send(&Message::Ready);
    assert_eq!(recv(&known.channel), Message::Ready);
    assert_eq!(known.channel.state(), ChannelState::Open);
    known.channel.send(&Message::Ready).unwrap();
    assert_eq!(new.recv(), Message::Ready);
}

/// However often the peer's address refuses it, or closes it without an answer.
//= protocol.md: dialling again: no failed dial is the end of the process
#[test]
fn no_number_of_failed_dials_ends_a_broken_connection() {
    let listener = listen();
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let asked = known(&listener, silent.local_addr().unwrap().port());
    let refused = known(&listener, free);
    reset(&asked.peer.stream);
    reset(&refused.peer.stream);
    // Each of them dials, again and again.
    for _ in 0..4 {
        let (mut attempt, _) = silent.accept().unwrap();
        let Message::Redial(redial) = read_plain(&mut attempt) else { panic!("no REDIAL") };
        assert_eq!((redial.id, redial.from), ([9; 8], Role::Acceptor));
    }
    for known in [&asked, &refused] {
        assert_eq!(known.channel.state(), ChannelState::Broken);
        let why = known.channel.broken().unwrap().to_string();
        assert!(why.contains("the connection broke"), "{why}");
        // What is sent meanwhile is lost, and no error.
        known.channel.send(&Message::Ready).unwrap();
        assert_eq!(known.channel.received().unwrap(), None);
    }
    let broke = || Some(refused.channel.broken()?.to_string());
    let refusal = || broke().filter(|why| why.contains("refused"));
    let why = until("a refused dial", refusal);
    assert!(why.contains("dialled again: 127.0.0.1:"), "{why}");
}
