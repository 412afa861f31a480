//! What the tests of control connections share.

use std::io::Read;
use std::net::{Ipv4Addr, TcpStream};
use std::time::Duration;

use mpib_proto::{Addr, Handle, Message};
use mpib_tests::pair::{LIMIT, until};
pub(crate) use mpib_tests::raw::hello;
use mpib_tests::raw::{Raw, hello_frame};
use nccl_net_mpib::simulation::control::{Channel, Control, Listener, Options};
use nccl_net_mpib::simulation::process::Process;

/// The token of a stranger.
pub(crate) const TOKEN: [u8; 16] = [5; 16];
/// Half-open connections that a process keeps, at most.
pub(crate) const HALF_OPEN: usize = 64;
/// How long a host may be silent: longer than any test takes.
pub(crate) const SILENCE: Duration = Duration::from_secs(600);

/// The next message.
pub(crate) fn recv(channel: &Channel) -> Message {
    until("a message", || channel.try_recv().unwrap())
}

/// Returns the control thread of this process.
pub(crate) fn control() -> &'static Control {
    &Process::global().control
}

pub(crate) fn options() -> Options<'static> {
    let (timeout, silence) = (LIMIT, SILENCE);
    Options {
        interfaces: None,
        sout: None,
        adapters: &Vec::new,
        family: None,
        timeout,
        silence,
        failover: None,
    }
}

pub(crate) fn listen() -> Listener {
    Listener::open(control(), &options()).unwrap()
}

pub(crate) fn connect(listener: &Listener) -> Channel {
    Channel::connect(control(), listener.handle(), (&hello("connector"), None), LIMIT, SILENCE).unwrap()
}

/// A handle that nobody wrote, with these addresses.
pub(crate) fn handle_with(port: u16, ips: &[&str]) -> Handle {
    let addrs: Vec<Addr> = ips.iter().map(|ip| Addr::new(ip.parse().unwrap(), 8).unwrap()).collect();
    Handle::new([7; 16], port, &addrs).unwrap()
}

/// A stranger's connection to the listener.
pub(crate) fn stranger(listener: &Listener) -> TcpStream {
    let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, listener.handle().port())).unwrap();
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    stream
}

/// The bytes of a HELLO as this listener's peers send them.
pub(crate) fn hello_bytes(listener: &Listener) -> Vec<u8> {
    hello_frame(listener.handle().secret(), TOKEN, hello("stranger"))
}

/// A peer of the listener that this test plays. It has proved itself.
pub(crate) fn raw_peer(listener: &Listener) -> Raw {
    let bytes = hello_bytes(listener);
    let mut stream = stranger(listener);
    std::io::Write::write_all(&mut stream, &bytes).unwrap();
    Raw::after_hello(stream, listener.handle().secret(), TOKEN, &bytes)
}

/// Accepts one channel, and checks that it is the real peer's.
pub(crate) fn accept(listener: &Listener) -> Channel {
    let channel = until("a channel to accept", || listener.try_accept().unwrap());
    match recv(&channel) {
        Message::Hello(hello) => assert_eq!(hello.host, "connector"),
        other => panic!("first message {other:?}"),
    }
    channel
}

/// The stranger sees the end of its connection, without a word.
pub(crate) fn is_dropped(mut stream: TcpStream) {
    stream.set_read_timeout(Some(LIMIT)).unwrap();
    let mut answer = Vec::new();
    match stream.read_to_end(&mut answer) {
        Ok(_) => assert_eq!(answer, b""),
        Err(e) => assert_eq!(e.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

/// The stranger's connection goes on.
pub(crate) fn is_open(stream: &TcpStream) {
    stream.set_nonblocking(true).unwrap();
    assert_eq!(stream.peek(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::WouldBlock);
}

pub(crate) fn a_real_peer_gets_in(listener: &Listener) {
    let connector = connect(listener);
    let acceptor = accept(listener);
    acceptor.send(&Message::Hello(hello("acceptor"))).unwrap();
    assert!(matches!(recv(&connector), Message::Hello(h) if h.host == "acceptor"));
    assert!(listener.try_accept().unwrap().is_none(), "only one came in");
}

/// As [`a_real_peer_gets_in`], at a listener with a short time for a handshake. On a busy machine the
/// time may be over first: then the peer comes again.
pub(crate) fn a_real_peer_gets_in_again(listener: &Listener) {
    until("a real peer within the listener's time", || {
        let connector = connect(listener);
        let acceptor = until("the peer, or its end", || match listener.try_accept().unwrap() {
            Some(channel) => Some(Some(channel)),
            None => connector.try_recv().is_err().then_some(None),
        })?;
        let heard = until("the first message, or the end", || acceptor.try_recv().transpose());
        match heard {
            Ok(Message::Hello(hello)) => assert_eq!(hello.host, "connector"),
            Ok(other) => panic!("first message {other:?}"),
            Err(_) => return None,
        }
        acceptor.send(&Message::Hello(hello("acceptor"))).ok()?;
        until("the answer, or the end", || connector.try_recv().transpose())
            .is_ok_and(|message| matches!(message, Message::Hello(h) if h.host == "acceptor"))
            .then_some(())
    });
}

/// Prints what a test in its own process has measured.
pub(crate) fn show_figures(stderr: Option<String>) {
    stderr.iter().flat_map(|text| text.lines()).filter(|line| line.contains(" got in ")).for_each(|line| {
        println!("{line}");
    });
}
