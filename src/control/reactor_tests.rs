//! A panic of what serves the sockets.

use super::super::end::ChannelState;
use super::super::link::Link;
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
    let link = Arc::new(Link::with_redial(None));
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
