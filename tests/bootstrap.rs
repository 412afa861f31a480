//! Control connections over real sockets: who comes in, who does not, and how a connection ends.

mod bootstrap_util;

use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use bootstrap_util::{connect, handle_with, hello, listen, options, patience, recv, wait};
use nccl_net_mpib::bootstrap::{Channel, Listener, Options, State};
use nccl_net_mpib::proto::{Addr, HELLO_PREFIX_BYTES, Handle, Hello, Memory, Message, Wiring};

/// A stranger's connection to the listener.
fn stranger(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.handle().port())).unwrap();
    stream.set_read_timeout(Some(patience())).unwrap();
    stream
}

/// The bytes of a HELLO as this listener's peers send them.
fn hello_bytes(listener: &Listener) -> Vec<u8> {
    Message::Hello(Hello { nonce: *listener.handle().nonce(), ..hello("stranger") }).encode().unwrap()
}

/// Accepts one channel, and checks that it is the real peer's.
fn accept(listener: &Listener) -> Channel {
    let channel = wait("a channel to accept", || listener.try_accept().unwrap());
    match recv(&channel) {
        Message::Hello(hello) => assert_eq!(hello.host, "connector"),
        other => panic!("first message {other:?}"),
    }
    channel
}

/// Both ends of a connection.
fn pair() -> (Channel, Channel) {
    let listener = listen();
    let connector = connect(&listener);
    let acceptor = accept(&listener);
    wait("the connector to know", || connector.peer());
    (connector, acceptor)
}

/// The stranger sees the end of its connection, without a word.
fn is_dropped(mut stream: TcpStream) {
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => assert_eq!(answer, b""),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

fn a_real_peer_gets_in(listener: &Listener) {
    let connector = connect(listener);
    let acceptor = accept(listener);
    acceptor.send(&Message::Hello(hello("acceptor"))).unwrap();
    assert!(matches!(recv(&connector), Message::Hello(h) if h.host == "acceptor"));
    assert!(listener.try_accept().unwrap().is_none(), "only one came in");
}

#[test]
fn hello_is_the_first_message_on_both_ends() {
    let listener = listen();
    a_real_peer_gets_in(&listener);
    a_real_peer_gets_in(&listener);
}

#[test]
fn addresses_and_names_are_told() {
    let (connector, acceptor) = pair();
    acceptor.send(&Message::Hello(hello("acceptor"))).unwrap();
    recv(&connector);
    assert_eq!(connector.peer(), acceptor.local());
    assert_eq!(connector.local(), acceptor.peer());
    let peer = acceptor.peer().unwrap();
    assert_eq!(acceptor.describe(), format!("{peer} (connector, pid 42)"));
    assert_eq!((connector.state(), acceptor.state()), (State::Open, State::Open));
}

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

#[test]
fn an_oversized_hello_is_dropped() {
    let listener = listen();
    let mut stream = stranger(&listener);
    stream.write_all(&(1u32 << 17).to_le_bytes()).unwrap();
    is_dropped(stream);
    a_real_peer_gets_in(&listener);
}

#[test]
fn silence_and_half_a_hello_delay_nobody_and_end_in_time() {
    let listener = Listener::open(&Options { timeout: Duration::from_millis(200), ..options() }).unwrap();
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

#[test]
fn a_hello_that_drips_ends_in_time() {
    let listener = Listener::open(&Options { timeout: Duration::from_millis(300), ..options() }).unwrap();
    let bytes = hello_bytes(&listener);
    let mut slow = stranger(&listener);
    slow.set_nodelay(true).unwrap();
    let until = Instant::now() + patience();
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
    let first = wait("the first", || listener.try_accept().unwrap());
    assert!(matches!(recv(&first), Message::Hello(h) if h.host == "stranger"));
    assert!(listener.try_accept().unwrap().is_none());
}

#[test]
fn what_comes_right_behind_a_hello_is_read() {
    let listener = listen();
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8] };
    let mut peer = stranger(&listener);
    peer.write_all(&[hello_bytes(&listener), large.encode().unwrap().repeat(7)].concat()).unwrap();
    let channel = wait("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    for _ in 0..7 {
        assert_eq!(recv(&channel), large);
    }
}

#[test]
fn each_address_of_a_handle_leads_to_the_listener() {
    let listener = listen();
    let handle = listener.handle();
    for addr in handle.addrs() {
        let alone = Handle::new(*handle.nonce(), handle.port(), &[*addr]).unwrap();
        let connector = Channel::connect(&alone, &hello("connector"), patience()).unwrap();
        let acceptor = accept(&listener);
        acceptor.send(&Message::Ready).unwrap();
        assert_eq!(recv(&connector), Message::Ready);
        assert_eq!(connector.peer().unwrap().ip(), addr.ip());
    }
}

#[test]
fn another_version_is_told_both_versions() {
    let listener = listen();
    let mut bytes = hello_bytes(&listener);
    bytes[9] = 9;
    let mut stream = stranger(&listener);
    stream.write_all(&bytes).unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    match Message::decode(&answer[4..]).unwrap() {
        Message::Refuse { reason } => assert!(reason.contains("version 9, this plugin 1"), "{reason}"),
        other => panic!("{other:?}"),
    }
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_refusal_reaches_the_connector_as_a_sentence() {
    let server = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let answer = thread::spawn(move || {
        let (mut stream, _) = server.accept().unwrap();
        let mut first = [0; HELLO_PREFIX_BYTES];
        stream.read_exact(&mut first).unwrap();
        stream.write_all(&Message::Refuse { reason: "not today\n".into() }.encode().unwrap()).unwrap();
        // Not closed before the connector has read it.
        let _ = stream.read_to_end(&mut Vec::new());
    });
    let channel =
        Channel::connect(&handle_with(port, &["127.0.0.1"]), &hello("connector"), patience()).unwrap();
    let error = wait("the refusal", || channel.try_recv().err()).to_string();
    assert_eq!(error, format!("127.0.0.1:{port} refuses the connection: not today?"));
    assert_eq!(channel.state(), State::Lost);
    answer.join().unwrap();
}

#[test]
fn no_listener_is_told_at_once_with_every_address() {
    let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let handle = handle_with(port, &["127.0.0.1", "127.0.0.2"]);
    let channel = Channel::connect(&handle, &hello("c"), patience()).unwrap();
    let text = wait("the failure", || channel.try_recv().err()).to_string();
    for part in [
        "none of its addresses answers",
        &format!("127.0.0.1:{port}: "),
        &format!("127.0.0.2:{port}: "),
        "refused",
    ] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn a_port_that_accepts_and_says_nothing_ends_in_time() {
    let silent = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(silent.local_addr().unwrap().port(), &["127.0.0.1"]);
    let channel = Channel::connect(&handle, &hello("c"), Duration::from_millis(150)).unwrap();
    let text = wait("the failure", || channel.try_recv().err()).to_string();
    for part in ["no answer within 150 ms (MPIB_CONNECT_TIMEOUT_MS)", "connected, no answer"] {
        assert!(text.contains(part), "{part} in {text}");
    }
}

#[test]
fn wrong_hosts_among_the_addresses_do_no_harm() {
    let listener = listen();
    let port = listener.handle().port();
    // The first addresses lead to a host that closes, and to one that never answers; the others to the listener.
    let closing = std::net::TcpListener::bind(("127.0.0.3", 0)).unwrap();
    let addr = |ip: &str| Addr::new(ip.parse().unwrap(), 8).unwrap();
    drop(closing);
    let handle =
        Handle::new(*listener.handle().nonce(), port, &["127.0.0.5", "127.0.0.6", "127.0.0.1"].map(addr))
            .unwrap();
    let connector = Channel::connect(&handle, &hello("connector"), patience()).unwrap();
    let acceptor = accept(&listener);
    acceptor.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
    assert!(listener.try_accept().unwrap().is_none());
}

#[test]
fn both_directions_at_once_keep_their_order() {
    let (connector, acceptor) = pair();
    // Each end runs ahead of what it reads, by less than may wait unread.
    let (rounds, ahead) = (2000, 16);
    let text =
        |i: usize| Message::Probed { mask: i as u8, reasons: vec![(0, format!("{i}").repeat(200)); 8] };
    thread::scope(|scope| {
        for end in [&connector, &acceptor] {
            scope.spawn(move || {
                for i in 0..rounds + ahead {
                    if i < rounds {
                        end.send(&text(i)).unwrap();
                    }
                    if i >= ahead {
                        assert_eq!(recv(end), text(i - ahead));
                    }
                }
            });
        }
    });
}

#[test]
fn close_delivers_everything_and_then_says_bye() {
    let (connector, acceptor) = pair();
    let wiring =
        Message::Wiring(Wiring { routes: Vec::new(), memory: Memory { addr: 1, len: 2, rkeys: vec![3] } });
    connector.send(&wiring).unwrap();
    connector.send(&Message::Ready).unwrap();
    connector.close();
    wait("the BYE", || (acceptor.state() == State::ByePeer).then_some(()));
    assert_eq!(recv(&acceptor), wiring);
    assert_eq!(recv(&acceptor), Message::Ready);
    acceptor.expect("READY");
    let text = acceptor.try_recv().unwrap_err().to_string();
    assert!(
        text.ends_with("(connector, pid 42) has closed the connection while this end waited for READY"),
        "{text}"
    );
    assert!(acceptor.send(&Message::Ready).is_err());
    assert_eq!(acceptor.state(), State::ByePeer);
}

#[test]
fn a_close_with_much_unsent_still_delivers_it_all() {
    let listener = listen();
    let mut peer = stranger(&listener);
    peer.write_all(&hello_bytes(&listener)).unwrap();
    let channel = wait("the peer", || listener.try_accept().unwrap());
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8] };
    let frame = large.encode().unwrap();
    let count = (16 << 20) / frame.len();
    for _ in 0..count {
        channel.send(&large).unwrap();
    }
    channel.close();
    let mut all = Vec::new();
    peer.read_to_end(&mut all).unwrap();
    assert_eq!(all.len(), 21 + count * frame.len() + 5, "WELCOME, the messages, BYE");
    assert!(all.ends_with(&Message::Bye.encode().unwrap()));
}

#[test]
fn both_ends_may_close_at_once() {
    for _ in 0..20 {
        let (connector, acceptor) = pair();
        thread::scope(|scope| {
            scope.spawn(|| connector.close());
            scope.spawn(|| acceptor.close());
        });
    }
    let (connector, acceptor) = pair();
    connector.close();
    wait("the BYE", || (acceptor.state() == State::ByePeer).then_some(()));
    acceptor.close();
}

#[test]
fn a_drop_without_close_is_a_loss() {
    let (connector, acceptor) = pair();
    connector.send(&Message::Ready).unwrap();
    assert_eq!(recv(&acceptor), Message::Ready);
    drop(connector);
    wait("the loss", || (acceptor.state() == State::Lost).then_some(()));
    let text = acceptor.try_recv().unwrap_err().to_string();
    assert!(text.contains("(connector, pid 42): "), "{text}");
}

#[test]
fn a_broken_frame_is_a_protocol_error() {
    let listener = listen();
    let mut peer = stranger(&listener);
    peer.write_all(&hello_bytes(&listener)).unwrap();
    peer.write_all(&Message::Ready.encode().unwrap()).unwrap();
    peer.write_all(&[1, 0, 0, 0, 77]).unwrap();
    let channel = wait("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(_)));
    assert_eq!(recv(&channel), Message::Ready);
    let text = wait("the error", || channel.try_recv().err()).to_string();
    assert!(
        text.starts_with("protocol error: 127.0.0.1:") && text.ends_with("unknown message type 77"),
        "{text}"
    );
    assert_eq!(channel.state(), State::Lost);
}

#[test]
fn a_flood_of_messages_is_a_protocol_error() {
    let listener = listen();
    let mut peer = stranger(&listener);
    peer.write_all(&hello_bytes(&listener)).unwrap();
    // It may be cut off while it writes.
    let _ = peer.write_all(&Message::Ready.encode().unwrap().repeat(1000));
    let channel = wait("the peer", || listener.try_accept().unwrap());
    wait("the end", || (channel.state() == State::Lost).then_some(()));
    let messages = std::iter::from_fn(|| channel.try_recv().ok().flatten()).count();
    assert_eq!(messages, 64);
    assert!(channel.try_recv().unwrap_err().to_string().contains("more than 64 messages"));
}

#[test]
fn a_step_that_takes_too_long_is_named() {
    let listener = Listener::open(&Options { timeout: Duration::from_millis(50), ..options() }).unwrap();
    // The connector is patient, and a stranger's limit does not count for one who has shown its HELLO.
    let _connector = connect(&listener);
    let acceptor = accept(&listener);
    acceptor.expect("WIRING");
    let text = wait("the limit", || acceptor.try_recv().err()).to_string();
    let end =
        "(connector, pid 42): nothing came within 50 ms while waiting for WIRING (MPIB_CONNECT_TIMEOUT_MS)";
    assert!(text.ends_with(end), "{text}");
    acceptor.settled();
    assert_eq!(acceptor.try_recv().unwrap(), None);
    assert_eq!(acceptor.state(), State::Open);
}

#[test]
fn a_closed_listener_takes_what_nobody_accepted_with_it() {
    let listener = listen();
    let port = listener.handle().port();
    let silent = stranger(&listener);
    let connector = connect(&listener);
    let accepted = accept(&listener);
    let waiting = connect(&listener);
    wait("the second to be let in", || waiting.peer());
    drop(listener);
    is_dropped(silent);
    wait("the second to be lost", || (waiting.state() == State::Lost).then_some(()));
    wait("the port to be closed", || TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).err());
    accepted.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
}

/// The other process of `a_killed_peer_is_lost`: connects to the listener in its environment, and waits to be killed.
#[test]
fn child_that_connects() {
    let Ok(port) = std::env::var("BOOTSTRAP_TEST_PORT") else { return };
    let nonce = std::env::var("BOOTSTRAP_TEST_NONCE").unwrap();
    let nonce: Vec<u8> = nonce.split(',').map(|b| b.parse().unwrap()).collect();
    let addr = Addr::new(Ipv4Addr::LOCALHOST.into(), 8).unwrap();
    let handle = Handle::new(nonce.try_into().unwrap(), port.parse().unwrap(), &[addr]).unwrap();
    let channel = Channel::connect(&handle, &hello("connector"), patience()).unwrap();
    channel.send(&Message::Ready).unwrap();
    thread::sleep(patience());
    drop(channel);
}

#[test]
fn a_killed_peer_is_lost() {
    let listener = listen();
    let nonce: Vec<String> = listener.handle().nonce().iter().map(ToString::to_string).collect();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_connects"])
        .env("BOOTSTRAP_TEST_PORT", listener.handle().port().to_string())
        .env("BOOTSTRAP_TEST_NONCE", nonce.join(","))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let channel = accept(&listener);
    assert_eq!(recv(&channel), Message::Ready);
    assert_eq!(channel.state(), State::Open);
    child.kill().unwrap();
    child.wait().unwrap();
    wait("the loss", || (channel.state() == State::Lost).then_some(()));
    let text = channel.try_recv().unwrap_err().to_string();
    assert!(text.contains("did its process end?") && text.contains("(connector, pid 42)"), "{text}");
}
