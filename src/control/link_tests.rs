//! What the end of a TCP connection means, whichever call of the socket finds it.

use std::io::Write;
use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use socket2::SockRef;

use super::*;
use crate::proto::{Addr, Callback, Handle, Role};

/// An established link with failover, and its peer's socket.
fn established() -> (Link, std::net::TcpStream) {
    let handle = || Handle::new([1; 16], 1, &[Addr::new(Ipv4Addr::LOCALHOST.into(), 8).unwrap()]).unwrap();
    let terms = RedialTerms::new(Role::Acceptor, [2; 16], handle(), Duration::from_secs(60)).unwrap();
    let link = Link::with_redial(Some(terms));
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let addr = listener.local_addr().unwrap();
    let stream = socket::connect(addr).unwrap();
    let (mut peer, _) = listener.accept().unwrap();
    let callback = Message::Callback(Callback { handle: handle(), key: [3; 16] });
    peer.write_all(&callback.encode().unwrap()).unwrap();
    link.establish(stream, addr, Vec::new());
    link.set_established();
    while !link.lock().may_resume() {
        assert_eq!(link.on_ready(), LinkStatus::Open);
    }
    (link, peer)
}

/// Steps the link until its socket is closed.
fn step(link: &Link) -> LinkStatus {
    loop {
        match link.on_ready() {
            LinkStatus::Open => {}
            end => return end,
        }
    }
}

fn reset(peer: std::net::TcpStream) {
    SockRef::from(&peer).set_linger(Some(Duration::ZERO)).unwrap();
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_breaks_the_connection() {
    let (link, peer) = established();
    reset(peer);
    assert_eq!((step(&link), link.state()), (LinkStatus::Broken, ChannelState::Broken));
    assert!(link.broken().unwrap().1.contains("the connection broke: "));
    assert_eq!(link.try_recv().unwrap(), None);
    link.send(&Message::Ready).unwrap();
    assert_eq!(link.unsent(), 0);
}

/// The kernel reports a reset once, to whichever call comes first. A read finds the end of the bytes
/// then, as after a FIN.
//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_reset_that_a_write_has_found_is_no_fin() {
    let (link, peer) = established();
    reset(peer);
    while link.lock().fault.is_none() {
        link.send(&Message::Ready).unwrap();
    }
    link.send(&Message::Ready).unwrap();
    assert_eq!((step(&link), link.state()), (LinkStatus::Broken, ChannelState::Broken));
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn a_fin_is_the_end_even_if_a_write_has_failed_since() {
    for writes in [false, true] {
        let (link, peer) = established();
        drop(peer);
        while writes && link.lock().fault.is_none() {
            link.send(&Message::Ready).unwrap();
        }
        assert_eq!((step(&link), link.state()), (LinkStatus::Closed, ChannelState::Lost));
        assert!(link.try_recv().unwrap_err().to_string().contains("did its process end?"));
    }
}

//= protocol.md: dialling again: a FIN is the end of the process, a reset is not
#[test]
fn before_the_end_of_the_handshake_a_reset_is_a_loss() {
    let (link, peer) = established();
    link.lock().established = false;
    reset(peer);
    assert_eq!((step(&link), link.state()), (LinkStatus::Closed, ChannelState::Lost));
}
