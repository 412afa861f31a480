//! Crowds at a listener while the right peer comes: connections by the thousand from another
//! process, slow ones, holders of the id without the secret, holders of the secret by the dozen.

use std::io::Write;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use mpib_proto::{HELLO_PREFIX_BYTES, Handle, Message, TAG_BYTES};
use mpib_tests::holdings::descriptors;
use mpib_tests::pair::until;
use mpib_tests::peer::{Peer, answer, commands, handle_of, word};
use mpib_tests::process::Role;
use mpib_tests::raw::{Raw, hello_frame};
use mpib_tests::{here, isolated, isolated_with};
use nccl_net_mpib::simulation::control::{Channel, Listener};
use nccl_net_versions::Logger;
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::util::{HALF_OPEN, TOKEN, connect, hello, hello_bytes, listen, recv, show_figures, stranger};

fn next(listener: &Listener) -> Channel {
    let channel = until("the peer", || listener.try_accept().unwrap());
    assert!(matches!(recv(&channel), Message::Hello(h) if h.host == "connector"));
    channel
}

/// A peer connects and is accepted; how long that took.
fn peer_gets_in(listener: &Listener) -> std::time::Duration {
    let begin = Instant::now();
    let connector = connect(listener);
    let acceptor = next(listener);
    acceptor.send(&Message::Ready).unwrap();
    assert_eq!(recv(&connector), Message::Ready);
    begin.elapsed()
}

/// The other process: connects as fast as it can, and never closes before others take its place.
fn floods() {
    let mut commands = commands();
    let handle = Handle::decode(&handle_of(&commands.next().unwrap())).unwrap();
    let (stop, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for thread in 0..2u8 {
            let (stop, count, port) = (&stop, &count, handle.port());
            scope.spawn(move || {
                let mut open = std::collections::VecDeque::new();
                while !stop.load(Ordering::Relaxed) {
                    let n = count.fetch_add(1, Ordering::Relaxed);
                    // Every 5,000 have another source address: one address has too few ports.
                    let from = Ipv4Addr::new(127, 8 + thread, (n / 5000) as u8, 1);
                    let socket =
                        socket2::Socket::new(socket2::Domain::IPV4, socket2::Type::STREAM, None).unwrap();
                    socket.bind(&SocketAddr::from((from, 0)).into()).unwrap();
                    // The listener's queue may be full.
                    let to = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
                    let limit = std::time::Duration::from_secs(1);
                    if socket.connect_timeout(&to.into(), limit).is_ok() {
                        open.push_back(socket);
                    }
                    if open.len() > 300 {
                        open.pop_front();
                    }
                }
            });
        }
        // Until the first process ends the flood.
        let _ = commands.next();
        stop.store(true, Ordering::Relaxed);
    });
    answer(&count.load(Ordering::Relaxed).to_string());
}

//= reach.md: a flood of connections keeps no peer out
//= faults.md: 39: strangers connect without pause: the right peer gets in
#[test]
fn a_flood_from_another_process_keeps_nobody_out() {
    show_figures(isolated_with(here!(), &[], floods, || {
        let listener = listen();
        let mut flooder = Peer::start_as(Role::Second, &[]);
        flooder.say(&word(&listener.handle().encode()));
        until("the flood", || {
            assert!(listener.try_accept().unwrap().is_none());
            (descriptors() >= HALF_OPEN).then_some(())
        });
        let (begin, mut times, mut most) = (Instant::now(), Vec::new(), 0);
        for _ in 0..40 {
            times.push(peer_gets_in(&listener));
            most = most.max(descriptors());
        }
        let elapsed = begin.elapsed();
        flooder.say("stop");
        let count: usize = flooder.answer().parse().unwrap();
        times.sort();
        eprintln!(
            "40 of 40 peers got in beside {count} strangers ({:.0} per second of the 40): median {:?}, longest {:?}; \
             at most {most} descriptors",
            count as f64 / elapsed.as_secs_f64(),
            times[20],
            times[39],
        );
        assert!(most <= HALF_OPEN + 64, "{most} descriptors");
    }));
}

/// Connections that each send a part of a HELLO, one byte after the other.
//= reach.md: a flood of connections keeps no peer out
//= faults.md: 39
#[test]
fn slow_strangers_keep_nobody_out() {
    isolated(here!(), &[], || {
        let listener = listen();
        let right = hello_bytes(&listener);
        let mut slow: Vec<TcpStream> = (0..1000).map(|_| stranger(&listener)).collect();
        for byte in &right[..4] {
            slow.iter_mut().for_each(|stream| drop(stream.write_all(&[*byte])));
            peer_gets_in(&listener);
        }
        assert!(descriptors() <= 1000 + HALF_OPEN + 64, "{}", descriptors());
        assert!(listener.try_accept().unwrap().is_none());
    });
}

/// A process that was sent a HELLO has the id, the token and the tag. It does not have the secret.
//= protocol.md: authentication: of several connections with one HELLO, the one with the proof counts
#[test]
fn holders_of_the_id_keep_nobody_out() {
    show_figures(isolated(here!(), &[], || {
        let listener = listen();
        let right = hello_bytes(&listener);
        let forged = |n: usize| {
            let mut bytes = right.clone();
            // The token, or the tag.
            bytes[HELLO_PREFIX_BYTES - TAG_BYTES - 1 - n % 8] ^= 1 + (n / 8) as u8;
            bytes
        };
        let mut copies = Vec::new();
        for n in 0..1000 {
            let mut one = stranger(&listener);
            one.set_nonblocking(true).unwrap();
            let _ = one.write_all(&if n % 2 == 0 { forged(n / 2 % 1000) } else { right.clone() });
            copies.push(one);
            if n % 250 == 249 {
                // Of all copies one is a channel, which has proved nothing.
                let mut accepted = std::iter::from_fn(|| listener.try_accept().unwrap());
                assert!(accepted.all(|channel| !channel.is_proved()));
                let begin = Instant::now();
                let connector = connect(&listener);
                let channel = until("the peer", || {
                    listener
                        .try_accept()
                        .unwrap()
                        .filter(|channel| matches!(recv(channel), Message::Hello(h) if h.host == "connector"))
                });
                until("its proof", || channel.is_proved().then_some(()));
                channel.send(&Message::Ready).unwrap();
                assert_eq!(recv(&connector), Message::Ready);
                eprintln!("a peer got in beside {} holders of the id in {:?}", n + 1, begin.elapsed());
            }
        }
    }));
}

/// Holders of the secrets of many listeners: all listeners together have a bound, and each has room
/// for its connector.
//= reach.md: a process has a bound on peers whose handshake is not over
//= faults.md: 38: strangers use up the descriptors of many listeners: all listeners together have a bound, and the right peers get in
#[test]
fn holders_of_many_secrets_keep_nobody_out() {
    isolated(here!(), &[], || {
        static LINES: Mutex<Vec<String>> = Mutex::new(Vec::new());
        nccl_net_mpib::simulation::log::install(Logger::from_fn(|_, _, _, text| {
            LINES.lock().unwrap().push(text.to_string_lossy().into_owned());
        }));
        // An eighth of these, 64, is the bound.
        let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
        setrlimit(Resource::RLIMIT_NOFILE, 512, hard).unwrap();
        let listeners: Vec<Listener> = (0..6).map(|_| listen()).collect();
        let holder = |listener: &Listener, n: usize| {
            let (secret, token) = (listener.handle().secret(), [n as u8; 16]);
            let bytes = hello_frame(secret, token, hello("holder"));
            let mut stream = stranger(listener);
            stream.write_all(&bytes).unwrap();
            // The listener closes the connection if it has no room.
            let answered = matches!(stream.peek(&mut [0]), Ok(1));
            answered.then(|| Raw::after_hello(stream, secret, token, &bytes))
        };
        let held: Vec<Vec<Raw>> =
            listeners.iter().map(|listener| (0..20).filter_map(|n| holder(listener, n)).collect()).collect();
        let accepted: Vec<Vec<Channel>> = listeners
            .iter()
            .map(|listener| std::iter::from_fn(|| listener.try_accept().unwrap()).collect())
            .collect();
        let counts: Vec<usize> = accepted.iter().map(Vec::len).collect();
        let sum: usize = counts.iter().sum();
        assert!((64..=64 + 2 * listeners.len()).contains(&sum), "{counts:?}");
        assert!(counts.iter().all(|count| *count >= 2), "{counts:?}");
        // They still hold their permits.
        for listener in &listeners {
            peer_gets_in(listener);
        }
        let lines = LINES.lock().unwrap();
        let reported =
            lines.iter().filter(|line| line.contains("2 peers of its listener wait for accept already"));
        assert!(reported.count() > 0, "{lines:?}");
        drop((held, accepted));
    });
}

//= protocol.md: a connection to an address that is not advertised is closed
#[test]
fn a_connection_to_an_address_that_is_not_advertised_is_closed() {
    isolated(here!(), &[], || {
        let options = super::util::options();
        let named = Some(("MPIB_OOB_IF", "=lo".parse().unwrap()));
        let only_loopback = nccl_net_mpib::simulation::control::Options { interfaces: named, ..options };
        let listener = Listener::open(super::util::control(), &only_loopback).unwrap();
        let all = nccl_net_mpib::simulation::control::interfaces().unwrap();
        let others = all.iter().map(|i| i.addr.ip()).filter(|ip| ip.is_ipv4() && !ip.is_loopback());
        for ip in others {
            let mut one = TcpStream::connect((ip, listener.handle().port())).unwrap();
            let secret = listener.handle().secret();
            let _ = one.write_all(&hello_frame(secret, TOKEN, hello("stranger")));
            super::util::is_dropped(one);
        }
        assert!(listener.try_accept().unwrap().is_none());
        peer_gets_in(&listener);
    });
}
