//! What the tests of control connections share.

use std::thread;
use std::time::{Duration, Instant};

use nccl_net_mpib::bootstrap::{Channel, Listener, Options};
use nccl_net_mpib::proto::{Addr, Handle, Hello, Message};

/// How long a test waits before it says that something never happened.
pub(crate) fn patience() -> Duration {
    Duration::from_secs(60)
}

/// Asks until there is an answer.
pub(crate) fn wait<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let until = Instant::now() + patience();
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < until, "{what}: never");
        thread::sleep(Duration::from_millis(1));
    }
}

/// The next message.
pub(crate) fn recv(channel: &Channel) -> Message {
    wait("a message", || channel.try_recv().unwrap())
}

pub(crate) fn options() -> Options {
    Options { interfaces: None, family: None, timeout: patience() }
}

pub(crate) fn listen() -> Listener {
    Listener::open(&options()).unwrap()
}

pub(crate) fn hello(host: &str) -> Hello {
    Hello { nonce: [0; 16], token: [5; 16], pid: 42, host: host.into(), rails: Vec::new() }
}

pub(crate) fn connect(listener: &Listener) -> Channel {
    Channel::connect(listener.handle(), &hello("connector"), patience()).unwrap()
}

/// A handle that nobody wrote, with these addresses.
#[allow(dead_code, reason = "each test file takes what it needs")]
pub(crate) fn handle_with(port: u16, ips: &[&str]) -> Handle {
    let addrs: Vec<Addr> = ips.iter().map(|ip| Addr::new(ip.parse().unwrap(), 8).unwrap()).collect();
    Handle::new([7; 16], port, &addrs).unwrap()
}
