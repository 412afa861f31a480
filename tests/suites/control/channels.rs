//! Control connections over real sockets: how they come about, and how they end.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::Duration;

use mpib_proto::{Addr, HELLO_PREFIX_BYTES, Handle, Memory, Message, TAG_BYTES, Wiring};
use mpib_tests::pair::{LIMIT, until};
use mpib_tests::peer::{Peer, commands, handle_of, word};
use mpib_tests::process::Role;
use mpib_tests::raw::Raw;
use mpib_tests::{here, isolated_with};
use nccl_net_mpib::simulation::control::{Channel, ChannelState};

use super::util::{
    SILENCE, a_real_peer_gets_in, accept, connect, control, handle_with, hello, listen, raw_peer, recv,
};

/// Both ends of a connection.
fn pair() -> (Channel, Channel) {
    let listener = listen();
    let connector = connect(&listener);
    let acceptor = accept(&listener);
    until("the connector to know", || connector.peer());
    (connector, acceptor)
}

#[test]
fn hello_is_the_first_message_on_both_ends() {
    let listener = listen();
    a_real_peer_gets_in(&listener);
    a_real_peer_gets_in(&listener);
}

#[test]
fn a_channel_has_the_addresses_and_names_of_both_ends() {
    let (connector, acceptor) = pair();
    acceptor.send(&Message::Hello(hello("acceptor"))).unwrap();
    recv(&connector);
    assert_eq!(connector.peer(), acceptor.local());
    assert_eq!(connector.local(), acceptor.peer());
    let peer = acceptor.peer().unwrap();
    assert_eq!(*acceptor.describe(), format!("{peer} (connector, pid 42)"));
    assert_eq!((connector.state(), acceptor.state()), (ChannelState::Open, ChannelState::Open));
}

#[test]
fn each_address_of_a_handle_leads_to_the_listener() {
    let listener = listen();
    let handle = listener.handle();
    for addr in handle.addrs() {
        let alone = Handle::new(handle.secret().clone(), handle.port(), &[*addr]).unwrap();
        let connector =
            Channel::connect(control(), &alone, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
        let acceptor = accept(&listener);
        acceptor.send(&Message::Ready).unwrap();
        assert_eq!(recv(&connector), Message::Ready);
        assert_eq!(connector.peer().unwrap().ip(), addr.ip());
    }
}

/// A channel to the addresses of this handle ends when its time is over, and the error has all of
/// `parts`. On a busy machine the time may be over before they were seen: then another one is made.
fn ends_without_an_answer(handle: &Handle, parts: &[&str]) {
    until("an error that says what was found", || {
        let timeout = Duration::from_millis(300);
        let from = hello("connector");
        let channel = Channel::connect(control(), handle, (&from, None), timeout, SILENCE).unwrap();
        let error = until("the end", || channel.try_recv().err()).to_string();
        assert!(error.contains("no answer within 300 ms (MPIB_CONNECT_TIMEOUT_MS)"), "{error}");
        assert_eq!(channel.state(), ChannelState::Lost);
        let has_all = parts.iter().all(|part| error.contains(part));
        if !has_all {
            eprintln!("not {parts:?}: {error}");
        }
        has_all.then_some(())
    });
}

/// Somebody who has not proved to be the listener cannot end the connection with a REFUSE.
//= protocol.md: authentication: a REFUSE without a proof is kept for the error
//= faults.md: 76: a stranger listens at an address of a handle: connect goes on to the right listener, and the secret stays unknown
#[test]
fn a_refusal_without_a_proof_is_kept_for_the_error() {
    let stranger = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = stranger.local_addr().unwrap().port();
    let answers = thread::spawn(move || {
        let refuse = Message::Refuse { reason: "not today\n".into() }.encode().unwrap();
        for stream in stranger.incoming() {
            let mut stream = stream.unwrap();
            let mut first = [0; HELLO_PREFIX_BYTES];
            // The last connection is the one that ends this thread.
            if stream.read_exact(&mut first).is_err() {
                return;
            }
            stream.write_all(&refuse).unwrap();
            // Not closed before the connector has read it.
            let _ = stream.read_to_end(&mut Vec::new());
        }
    });
    ends_without_an_answer(
        &handle_with(port, &["127.0.0.1"]),
        &[&format!("127.0.0.1:{port}: it refuses the connection and has not proved who it is: not today?")],
    );
    drop(TcpStream::connect((Ipv4Addr::LOCALHOST, port)).unwrap());
    answers.join().unwrap();
    // The listener is at another address, beside such a stranger.
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let stranger = TcpListener::bind(("127.0.0.9", port)).unwrap();
    let handle = handle_with(port, &["127.0.0.9", "127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    let mut refuses = accept_tcp(&stranger);
    refuses.write_all(&Message::Refuse { reason: "no".into() }.encode().unwrap()).unwrap();
    accept_raw(&server, &handle).send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
}

/// A listener that has proved itself ends the connection by its REFUSE.
#[test]
fn a_refusal_with_a_proof_reaches_the_connector_as_a_sentence() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(server.local_addr().unwrap().port(), &["127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    let mut listener = accept_raw(&server, &handle);
    listener.send(&Message::Refuse { reason: "not today\n".into() });
    assert_eq!(recv(&channel), Message::Refuse { reason: "not today?".into() });
}

/// Accepts on `server`, and answers WELCOME as the listener of `handle`.
fn accept_raw(server: &TcpListener, handle: &Handle) -> Raw {
    Raw::accept(accept_tcp(server), handle.secret())
}

fn accept_tcp(server: &TcpListener) -> TcpStream {
    server.set_nonblocking(true).unwrap();
    let (stream, _) = until("a connection", || server.accept().ok());
    stream.set_nonblocking(false).unwrap();
    stream
}

#[test]
fn a_listener_that_closes_without_an_answer_is_tried_again() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(server.local_addr().unwrap().port(), &["127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    drop(accept_tcp(&server));
    accept_raw(&server, &handle).send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
}

//= protocol.md: addresses of local networks are tried one soon after the other, and silence delays none
//= adapters.md: A3: a dead address does not delay the next
#[test]
fn a_silent_address_does_not_hold_up_the_next() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = server.local_addr().unwrap().port();
    let _silent = TcpListener::bind(("127.0.0.4", port)).unwrap();
    let handle = handle_with(port, &["127.0.0.4", "127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    accept_raw(&server, &handle).send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    assert_eq!(channel.peer(), Some(SocketAddr::from((Ipv4Addr::LOCALHOST, port))));
}

/// None waits for the end of an attempt before it, which has the time of the handshake. The unit
/// test of `targets.rs` has the times between them.
//= protocol.md: addresses of local networks are tried one soon after the other, and silence delays none
#[test]
fn all_addresses_of_own_networks_are_tried_soon() {
    let ips = ["127.0.0.7", "127.0.0.8", "127.0.0.9"];
    let first = TcpListener::bind((ips[0], 0)).unwrap();
    let port = first.local_addr().unwrap().port();
    let others = [ips[1], ips[2]].map(|ip| TcpListener::bind((ip, port)).unwrap());
    let handle = handle_with(port, &ips);
    let channel =
        Channel::connect(control(), &handle, (&hello("connector"), None), 60 * LIMIT, SILENCE).unwrap();
    // All are open at the end.
    let attempts: Vec<_> = std::iter::once(&first).chain(&others).map(accept_tcp).collect();
    assert!(channel.try_recv().unwrap().is_none());
    drop(attempts);
}

/// Somebody who has the HELLO and not the secret: it can copy the WELCOME of another connection, or
/// make one up.
//= protocol.md: authentication: a WELCOME without the right proof is no answer
//= faults.md: 76
#[test]
fn a_false_welcome_is_no_answer() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(server.local_addr().unwrap().port(), &["127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    let mut first = accept_tcp(&server);
    let welcome = Message::Welcome { challenge: [1; 16], proof: [2; 16] };
    first.write_all(&welcome.encode().unwrap()).unwrap();
    // With another secret.
    let _second = Raw::accept(accept_tcp(&server), &[1; 16].into());
    // The connector gives these up, and tries again.
    accept_raw(&server, &handle).send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
}

/// Not one byte of the secret is in what a connector sends, before the listener has proved itself
/// and after.
//= protocol.md: authentication: the secret is not sent
//= faults.md: 76
#[test]
fn the_secret_is_not_sent() {
    let server = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(server.local_addr().unwrap().port(), &["127.0.0.1"]);
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    let mut raw = accept_raw(&server, &handle);
    raw.send(&Message::Ready);
    assert_eq!(recv(&channel), Message::Ready);
    channel.send(&Message::Ready).unwrap();
    channel.close();
    let mut all = raw.hello;
    let hello = all.len();
    raw.stream.shutdown(Shutdown::Write).unwrap();
    raw.stream.read_to_end(&mut all).unwrap();
    assert!(all.len() - hello > 3 * 16, "PROOF, READY and BYE with their tags");
    assert!(!all.windows(4).any(|w| w == &handle.secret().bytes()[..4]));
}

//= reach.md: an address that fails is retried; a refused connection fails soon
#[test]
fn a_missing_listener_is_reported_soon_with_every_address() {
    let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap().local_addr().unwrap().port();
    let handle = handle_with(port, &["127.0.0.1", "127.0.0.2"]);
    // Long before the time of the handshake is over.
    let channel = Channel::connect(control(), &handle, (&hello("c"), None), 60 * LIMIT, SILENCE).unwrap();
    let text = until("the failure", || channel.try_recv().err()).to_string();
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
    let silent = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let handle = handle_with(silent.local_addr().unwrap().port(), &["127.0.0.1"]);
    ends_without_an_answer(&handle, &["connected, no answer"]);
}

#[test]
fn many_ways_to_one_listener_are_one_channel() {
    let listener = listen();
    let addrs = ["127.0.0.5", "127.0.0.6", "127.0.0.1"].map(|ip| Addr::new(ip.parse().unwrap(), 8).unwrap());
    let handle = Handle::new(listener.handle().secret().clone(), listener.handle().port(), &addrs).unwrap();
    let connector =
        Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
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
    let text = |i: usize| Message::Probed {
        mask: i as u8,
        reasons: vec![(0, format!("{i}").repeat(200)); 8],
        accepts: false,
    };
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
    until("the BYE", || (acceptor.state() == ChannelState::ByePeer).then_some(()));
    assert_eq!(recv(&acceptor), wiring);
    assert_eq!(recv(&acceptor), Message::Ready);
    acceptor.expect("READY");
    let text = acceptor.try_recv().unwrap_err().to_string();
    assert!(
        text.ends_with("(connector, pid 42) has closed the connection while this end waited for READY"),
        "{text}"
    );
    assert!(acceptor.send(&Message::Ready).is_err());
    assert_eq!(acceptor.state(), ChannelState::ByePeer);
}

#[test]
fn a_close_with_much_unsent_still_delivers_it_all() {
    let listener = listen();
    let mut peer = raw_peer(&listener);
    let channel = until("the peer", || listener.try_accept().unwrap());
    let large = Message::Probed { mask: 1, reasons: vec![(0, "x".repeat(1000)); 8], accepts: false };
    let len = large.encode().unwrap().len() + TAG_BYTES;
    let count = (16 << 20) / len;
    for _ in 0..count {
        channel.send(&large).unwrap();
    }
    channel.close();
    for _ in 0..count {
        assert_eq!(peer.recv(), large);
    }
    assert_eq!(peer.recv(), Message::Bye);
    assert_eq!(peer.stream.read(&mut [0]).unwrap(), 0);
}

/// Of two ends that close at the same time, each waits for the end of the other.
//= protocol.md: after BYE an end sends nothing more, and reads on
#[test]
fn a_close_ends_one_direction_at_once() {
    let listener = listen();
    let mut peer = raw_peer(&listener);
    let channel = until("the peer", || listener.try_accept().unwrap());
    channel.close();
    assert_eq!(peer.recv(), Message::Bye);
    assert_eq!(peer.stream.read(&mut [0]).unwrap(), 0);
    // A closed socket would answer the first of them with a reset.
    for _ in 0..2 {
        let frame = peer.sealed(&Message::Ready);
        peer.stream.write_all(&frame).expect("a socket that reads on");
    }
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
    until("the BYE", || (acceptor.state() == ChannelState::ByePeer).then_some(()));
    acceptor.close();
}

#[test]
fn a_drop_without_close_is_a_loss() {
    let (connector, acceptor) = pair();
    connector.send(&Message::Ready).unwrap();
    assert_eq!(recv(&acceptor), Message::Ready);
    drop(connector);
    until("the loss", || (acceptor.state() == ChannelState::Lost).then_some(()));
    let text = acceptor.try_recv().unwrap_err().to_string();
    assert!(text.contains("(connector, pid 42): "), "{text}");
}

/// The other process of `a_killed_peer_is_lost`: connects to the listener in its environment, and
/// waits to be killed. A second process that connects to the listener of this handle, and stays.
fn connects_and_stays() {
    let word = commands().next().unwrap();
    let handle = Handle::decode(&handle_of(&word)).unwrap();
    let channel = Channel::connect(control(), &handle, (&hello("connector"), None), LIMIT, SILENCE).unwrap();
    channel.send(&Message::Ready).unwrap();
    // The first process kills this one.
    thread::sleep(LIMIT);
    drop(channel);
}

#[test]
fn a_killed_peer_is_lost() {
    isolated_with(here!(), &[], connects_and_stays, || {
        let listener = listen();
        let mut peer = Peer::start_as(Role::Second, &[]);
        peer.say(&word(&listener.handle().encode()));
        let channel = accept(&listener);
        assert_eq!(recv(&channel), Message::Ready);
        assert_eq!(channel.state(), ChannelState::Open);
        peer.kill();
        until("the loss", || (channel.state() == ChannelState::Lost).then_some(()));
        let text = channel.try_recv().unwrap_err().to_string();
        assert!(text.contains("did its process end?") && text.contains("(connector, pid 42)"), "{text}");
    });
}
