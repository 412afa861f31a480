//! Ten thousand strangers of every kind, while peers come and go: memory and descriptors stay
//! bounded, and no real peer is lost.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

use mpib_proto::{HELLO_PREFIX_BYTES, Message};
use mpib_tests::holdings::{descriptors, resident};
use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::control::{Channel, ChannelState, Listener};
use socket2::{Domain, Socket, Type};

use super::util::{TOKEN, connect, hello_bytes, listen, raw_peer, recv};

const STRANGERS: usize = 10_000;
/// Strangers that stay until others take their place.
const STAYING: usize = 600;

/// Connects stranger `n`. Every 5,000 strangers have a different source address, because one
/// address has too few ports: a closed connection keeps its port for a while.
fn stranger(listener: &Listener, n: usize) -> TcpStream {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None).unwrap();
    let from = Ipv4Addr::new(127, 9, (n / 5000) as u8, 1);
    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
    socket.connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, listener.handle().port())).into()).unwrap();
    socket.into()
}

/// Bytes that the `n`-th stranger sends.
fn saying(right: &[u8], n: usize) -> Vec<u8> {
    let mut hello = right.to_vec();
    match n % 8 {
        0 => Vec::new(),
        1 => b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec(),
        // A HELLO that never ends. The connection is open until another one takes its place.
        2 => hello[..1 + n / 8 % (hello.len() - 1)].to_vec(),
        3 => {
            hello[HELLO_PREFIX_BYTES - 1] ^= 1;
            hello
        }
        // The HELLO of a connector that connected before.
        4 => hello,
        // A frame above the limit of length, with a valid beginning.
        5 => [&(1u32 << 20).to_le_bytes()[..], &hello[4..], &[0; 60_000]].concat(),
        // A frame of the greatest length, which is never complete.
        6 => [&(64u32 << 10).to_le_bytes()[..], &hello[4..], &[0; 60_000]].concat(),
        _ => vec![0xFF; 1 << (n % 13)],
    }
}

/// Checks that messages arrive in both directions.
fn works(connector: &Channel, acceptor: &Channel) {
    for (from, to) in [(connector, acceptor), (acceptor, connector)] {
        from.send(&Message::Ready).unwrap();
        assert_eq!(recv(to), Message::Ready);
    }
}

fn next(listener: &Listener) -> Channel {
    let acceptor = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&acceptor), Message::Hello(h) if h.host == "connector"));
    acceptor
}

//= reach.md: 10,000 strangers cost little and delay nobody
#[test]
fn ten_thousand_strangers_cost_little_and_keep_nobody_out() {
    isolated(here!(), &[], || {
        let listener = listen();
        // A peer that the listener has accepted. Strangers repeat its HELLO.
        let first = {
            let peer = raw_peer(&listener);
            (until("the first peer", || listener.try_accept().unwrap()), peer)
        };
        assert!(matches!(recv(&first.0), Message::Hello(h) if h.claim.token == TOKEN));
        until("its proof", || first.0.is_proved().then_some(()));
        let right = hello_bytes(&listener);
        let connector = connect(&listener);
        let acceptor = next(&listener);
        let mut staying = std::collections::VecDeque::new();
        let before = resident();
        let (mut most, mut peers) = ((0, 0), Vec::new());
        for n in 0..STRANGERS {
            let mut stream = stranger(&listener, n);
            // The listener may close the connection during the write.
            stream.set_nonblocking(true).unwrap();
            let _ = stream.write_all(&saying(&right, n));
            staying.push_back(stream);
            if staying.len() > STAYING {
                staying.pop_front();
            }
            if n % 500 == 499 {
                // A peer connects after all of them, and stays connected.
                let connector = connect(&listener);
                let acceptor = next(&listener);
                works(&connector, &acceptor);
                peers.push((connector, acceptor));
                most.0 = most.0.max(resident());
                most.1 = most.1.max(descriptors() - 2 * peers.len());
            }
        }
        // Strangers may hold 64 incomplete frames of 64 KiB, and 64 descriptors.
        assert!(most.0 - before <= 64 * 64, "{before} KiB, then {}", most.0);
        assert!(most.1 <= STAYING + 64 + 32, "{} descriptors", most.1);
        works(&connector, &acceptor);
        for (connector, acceptor) in &peers {
            works(connector, acceptor);
            assert_eq!((connector.state(), acceptor.state()), (ChannelState::Open, ChannelState::Open));
        }
        assert_eq!(peers.len(), STRANGERS / 500);
        assert_eq!(first.0.state(), ChannelState::Open);
        // The listener has accepted none of the strangers, including those that repeated the HELLO
        // of a peer.
        assert!(listener.try_accept().unwrap().is_none());
    });
}
