//! A panic of what serves the sockets.

use std::io::Write;

use super::super::channel::ChannelState;
use super::super::link::{Link, tests::established};
use super::super::sockets::Entry;
use super::*;

#[derive(Debug)]
struct NoCounts;

impl FrameCounts for NoCounts {
    fn forged(&self) {}
}

/// The panic of a call of NCCL that serves the sockets: the thread does not notice it.
//= faults.md: 73
#[test]
fn a_panic_under_the_lock_fails_every_connection() {
    let control = Control::new(Arc::default(), Arc::new(NoCounts));
    let reactor = control.reactor().unwrap();
    let link = Arc::new(Link::new(None));
    let entry = Entry::Link(Arc::clone(&link));
    reactor
        .with(|sockets| {
            let token = sockets.next_token();
            sockets.insert(token, entry);
        })
        .unwrap();
    let bug = catch_unwind(AssertUnwindSafe(|| reactor.with(|_| panic!("a seeded bug"))));
    assert!(bug.is_err());
    assert_eq!(link.state(), ChannelState::Lost);
    assert!(reactor.alive().is_err(), "its users get a new one");
}

#[derive(Debug)]
struct Bug;

impl FrameCounts for Bug {
    fn forged(&self) {
        panic!("a seeded bug");
    }
}

/// The connection that is served is not in the table.
//= faults.md: 73
#[test]
fn a_panic_fails_the_connection_that_is_served() {
    let control = Control::new(Arc::default(), Arc::new(Bug));
    let reactor = control.reactor().unwrap();
    let (link, mut peer) = established();
    let link = Arc::new(link);
    // A frame of 17 bytes, whose tag is wrong.
    peer.socket.write_all(&[&[17, 0, 0, 0][..], &[4; 17]].concat()).unwrap();
    let bug = catch_unwind(AssertUnwindSafe(|| {
        reactor.with(|sockets| {
            let token = sockets.next_token();
            loop {
                sockets.insert(token, Entry::Link(Arc::clone(&link)));
                sockets.step(token);
            }
        })
    }));
    assert!(bug.is_err());
    assert_eq!(link.state(), ChannelState::Lost);
}
