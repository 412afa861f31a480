//! What strangers must not disturb.

use std::cell::Cell;
use std::io::Write;

use mpib_proto::{Callback, Message, Nonce, Numbered, Verdict};
use mpib_tests::pair::{LIMIT, until};
use mpib_tests::raw::{Raw, dial, hello, hello_frame};
use nccl_net_mpib::simulation::control::{Channel, ChannelState, Listener};
use nccl_net_mpib::simulation::process::Process;

use super::tolerance;

/// Both ends of a connection of this process.
pub(super) struct Honest {
    connector: Channel,
    acceptor: Channel,
    /// The token of its HELLO, which everybody on the network can read.
    pub(super) token: Nonce,
    /// Where its ends are dialled again, which everybody can read, too.
    pub(super) callback: Callback,
    /// How many messages each end has sent.
    messages: Cell<u32>,
}

impl Honest {
    pub(super) fn new(listener: &Listener) -> Self {
        let callback = callback(listener);
        let (connector, acceptor, token) = connect(listener, "honest");
        acceptor.send(&Message::Ready).expect("an open connection");
        assert_eq!(recv(&connector), Message::Ready);
        for end in [&connector, &acceptor] {
            end.end_handshake().expect("an open connection");
        }
        Self { connector, acceptor, token, callback, messages: Cell::new(0) }
    }

    /// Serves the sockets of handshakes, as NCCL's calls do.
    pub(super) fn drive(&self) {
        let message = self.connector.try_recv().expect("the honest connection");
        assert_eq!(message, None, "a message that the peer has not sent");
    }

    /// Each end sends a message, which the other one gets.
    pub(super) fn exchange(&self) {
        let epoch = self.messages.get() + 1;
        self.messages.set(epoch);
        for (from, to) in [(&self.connector, &self.acceptor), (&self.acceptor, &self.connector)] {
            let verdict = Message::Verdict(Verdict { epoch, again: Vec::new() });
            let (number, received) = (epoch.into(), u64::from(epoch) - 1);
            let message = Message::Numbered(Numbered { number, received, message: Box::new(verdict) });
            from.send(&message).expect("the honest connection");
            assert_eq!(recv(to), message);
            assert_eq!(to.state(), ChannelState::Open);
        }
    }

    pub(super) fn close(self) {
        self.connector.close();
        self.acceptor.close();
    }
}

/// Another peer gets in beside all that wait.
pub(super) fn newcomer(listener: &Listener) {
    let (connector, acceptor, _) = connect(listener, "newcomer");
    connector.close();
    acceptor.close();
}

/// Connects as the host of this name. Returns both ends, and the token of the HELLO. Other channels
/// are dropped.
fn connect(listener: &Listener, host: &str) -> (Channel, Channel, Nonce) {
    let (control, handle) = (&Process::global().control, listener.handle());
    let connector = Channel::connect(control, handle, (&hello(host), None), LIMIT, tolerance());
    let connector = connector.expect("a connector");
    let (acceptor, token) = until(host, || {
        connector.try_recv().expect("a handshake");
        let channel = listener.try_accept().expect("a listener")?;
        match channel.try_recv() {
            Ok(Some(Message::Hello(hello))) if hello.host == host => Some((channel, hello.claim.token)),
            _ => None,
        }
    });
    acceptor.send(&Message::Hello(hello("acceptor"))).expect("an open connection");
    let Message::Hello(answer) = recv(&connector) else { panic!("no HELLO of the acceptor") };
    assert_eq!(answer.host, "acceptor");
    until("a proof", || {
        acceptor.try_recv().expect("a handshake");
        acceptor.is_proved().then_some(())
    });
    (connector, acceptor, token)
}

/// Reads where the process is dialled again.
fn callback(listener: &Listener) -> Callback {
    let (secret, token) = (listener.handle().secret(), [5; 16]);
    let frame = hello_frame(secret, token, hello("reader"));
    let mut stream = dial(listener.handle().port());
    stream.write_all(&frame).expect("a socket with room");
    let _channel = until("a channel", || listener.try_accept().expect("a listener"));
    match Raw::unproved(stream, secret, token, &frame).recv() {
        Message::Callback(callback) => callback,
        other => panic!("{} instead of CALLBACK", other.name()),
    }
}

fn recv(channel: &Channel) -> Message {
    until("a message", || channel.try_recv().expect("an open connection"))
}
