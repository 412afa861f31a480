//! Strangers at the listener for re-dials.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};

use mpib_tests::pair::{LIMIT, until};
use mpib_tests::proxy::reset;
use nccl_net_mpib::control::{Channel, ChannelState, Listener};
use nccl_net_mpib::proto::{
    Callback, HEADER_BYTES, HELLO_PREFIX_BYTES, Handle, Hello, Message, Redial, Role,
};

use super::redial::listen;
use super::util::{hello, hello_bytes, is_dropped, recv, stranger};

/// A channel of this process whose peer is this test, and what the peer knows.
struct Known {
    channel: Channel,
    stream: TcpStream,
    redial: Redial,
    port: u16,
}

/// The next message.
fn read(stream: &mut TcpStream) -> Message {
    let mut len = [0; HEADER_BYTES];
    stream.read_exact(&mut len).unwrap();
    let mut body = vec![0; u32::from_le_bytes(len) as usize];
    stream.read_exact(&mut body).unwrap();
    Message::decode(&body).unwrap()
}

fn say(stream: &mut TcpStream, message: &Message) {
    stream.write_all(&message.encode().unwrap()).unwrap();
}

/// Connects as a peer whose own listener for re-dials has this port.
fn known(listener: &Listener, callback_port: u16) -> Known {
    let mut stream = stranger(listener);
    let mut bytes = hello_bytes(listener);
    // The token of another connector.
    getrandom::fill(&mut bytes[HELLO_PREFIX_BYTES..HELLO_PREFIX_BYTES + 16]).unwrap();
    stream.write_all(&bytes).unwrap();
    let mut addrs = listener.handle().addrs().to_vec();
    addrs.retain(|addr| addr.ip() == Ipv4Addr::LOCALHOST);
    let ours = Handle::new([9; 16], callback_port, &addrs).unwrap();
    say(&mut stream, &Message::Callback(Callback { handle: ours, key: [8; 16] }));
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    channel.end_handshake().unwrap();
    let Message::Welcome { token } = read(&mut stream) else { panic!("no WELCOME") };
    let Message::Callback(Callback { handle, key }) = read(&mut stream) else { panic!("no CALLBACK") };
    let redial = Redial { nonce: *handle.nonce(), token, key, from: Role::Connector };
    Known { channel, stream, redial, port: handle.port() }
}

fn dial(port: u16) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

//= reach.md: nobody else can replace a control connection
//= protocol.md: dialling again: an unknown token is answered with REFUSE
#[test]
fn whoever_does_not_know_all_secrets_is_dropped() {
    let listener = listen();
    let Known { channel, mut stream, redial, port } = known(&listener, 1);
    let wrong = |redial: &Redial| Message::Redial(redial.clone()).encode().unwrap();
    let other = |[nonce, token, key]: [u8; 3]| {
        let mut redial = redial.clone();
        redial.nonce[0] ^= nonce;
        redial.token[15] ^= token;
        redial.key[15] ^= key;
        wrong(&redial)
    };
    let hello = Message::Hello(Hello { nonce: redial.nonce, token: redial.token, ..hello("stranger") });
    let resume = Message::Resume.encode().unwrap();
    for bytes in [
        other([1, 0, 0]),
        other([0, 0, 1]),
        hello.encode().unwrap(),
        resume.clone(),
        vec![255; 60],
        b"GET / HTTP/1.1\r\n\r\n".repeat(4),
        // The channel is no connector's.
        [other([0, 0, 1]), resume.clone()].concat(),
    ] {
        let mut one = dial(port);
        one.write_all(&bytes).unwrap();
        is_dropped(one);
    }
    // A peer of this process whose connection has ended here gets an answer, and no connection.
    for redial in [other([0, 1, 0]), wrong(&Redial { from: Role::Acceptor, ..redial.clone() })] {
        let mut one = dial(port);
        one.write_all(&redial).unwrap();
        let Message::Refuse { reason } = read(&mut one) else { panic!("no REFUSE") };
        assert_eq!(reason, "its process has closed the connection");
    }
    // One that knows all and does not go on replaces nothing either.
    let mut one = dial(port);
    say(&mut one, &Message::Redial(redial.clone()));
    assert_eq!(read(&mut one), Message::Welcome { token: redial.token });
    drop(one);
    say(&mut stream, &Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    assert_eq!(channel.state(), ChannelState::Open);
}

//= protocol.md: dialling again: a frame that was not read whole is dropped
#[test]
fn the_new_connection_begins_with_a_whole_frame() {
    let listener = listen();
    let Known { channel, mut stream, redial, port } = known(&listener, 1);
    say(&mut stream, &Message::Ready);
    let half = Message::Refuse { reason: "x".repeat(500) }.encode().unwrap();
    stream.write_all(&half[..100]).unwrap();
    assert_eq!(recv(&channel), Message::Ready);
    // More than the socket holds: this end has sent a part of a frame, too.
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8] };
    for _ in 0..2000 {
        channel.send(&large).unwrap();
    }
    // In pieces, and with a message behind the last one.
    let mut new = dial(port);
    for piece in Message::Redial(redial.clone()).encode().unwrap().chunks(7) {
        new.write_all(piece).unwrap();
    }
    assert_eq!(read(&mut new), Message::Welcome { token: redial.token });
    let probed = Message::Probed { mask: 3, reasons: Vec::new() };
    new.write_all(&[Message::Resume, probed.clone()].map(|m| m.encode().unwrap()).concat()).unwrap();
    assert_eq!(recv(&channel), probed);
    channel.send(&Message::Ready).unwrap();
    assert_eq!(read(&mut new), Message::Ready);
    // The old one is reset.
    let end = stream.read_to_end(&mut Vec::new()).map_err(|e| e.kind());
    assert_eq!(end, Err(std::io::ErrorKind::ConnectionReset));
    drop(new);
    until("the loss", || (channel.state() == ChannelState::Lost).then_some(()));
}

/// The connector's host refuses: it is dead. One that does not answer may be alive.
//= protocol.md: dialling again: refusals of the established address are the end of the process
#[test]
fn refusals_of_the_established_address_are_death_and_silence_is_not() {
    let listener = listen();
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let free = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let alive = known(&listener, silent.local_addr().unwrap().port());
    let dead = known(&listener, free);
    reset(&alive.stream);
    reset(&dead.stream);
    until("the loss", || (dead.channel.state() == ChannelState::Lost).then_some(()));
    assert_eq!(alive.channel.state(), ChannelState::Broken);
    let (_, why) = alive.channel.broken().unwrap();
    assert!(why.contains("the connection broke"), "{why}");
    // It is asked to dial.
    let (mut asked, _) = silent.accept().unwrap();
    let Message::Redial(redial) = read(&mut asked) else { panic!("no REDIAL") };
    assert_eq!((redial.nonce, redial.key, redial.from), ([9; 16], [8; 16], Role::Acceptor));
    // What is sent meanwhile is lost, and no error.
    alive.channel.send(&Message::Ready).unwrap();
    assert_eq!(alive.channel.received().unwrap(), None);
}
