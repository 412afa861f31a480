//! What control connections cost: descriptors and one thread.

use std::io::Write;

use mpib_proto::Message;
use mpib_tests::holdings::{self, descriptors};
use mpib_tests::pair::until;
use mpib_tests::{here, isolated};
use nccl_net_mpib::simulation::control::{ChannelState, Listener};

use super::util::{connect, control, listen, recv, stranger};

/// Threads of ours.
fn threads() -> usize {
    holdings::threads().iter().filter(|name| *name == "mpib-bootstrap").count()
}

#[test]
fn strangers_cost_nothing_and_the_thread_ends_with_its_last_user() {
    isolated(here!(), &[], || {
        assert_eq!(threads(), 0, "nothing runs before it is needed");
        // The socket by which the kernel announces changes of interfaces stays.
        control().interfaces().unwrap();
        let before = descriptors();
        let listener = listen();
        // A thread gives itself its name when it first runs.
        until("the thread", || (threads() == 1).then_some(()));

        // Half of them stay silent, half of them say something that is no HELLO. None of them
        // closes.
        let mut strangers = Vec::new();
        for i in 0..2000 {
            let mut stream = stranger(&listener);
            if i % 2 == 0 {
                stream.write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            }
            strangers.push(stream);
            if strangers.len() == 250 {
                // A real peer gets in while they are all there.
                let connector = connect(&listener);
                let acceptor = until("the peer", || listener.try_accept().unwrap());
                assert!(matches!(recv(&acceptor), Message::Hello(h) if h.host == "connector"));
                assert_eq!(connector.state(), ChannelState::Open);
                // The peer was behind them all in the backlog, so each of them has been taken or
                // evicted by now. Ours are the listener, the thread's own, both ends of the peer,
                // at most 64 strangers, and a few tries of the peer.
                let ours = descriptors() - before - strangers.len();
                assert!(ours <= 64 + 16, "{ours} descriptors");
                strangers.clear();
            }
        }
        until("the last strangers to be closed", || (descriptors() <= before + 8).then_some(()));

        // More listeners and channels share the one thread.
        let others: Vec<Listener> = (0..8).map(|_| listen()).collect();
        let connectors: Vec<_> = others.iter().map(connect).collect();
        let acceptors: Vec<_> = others.iter().map(|l| until("a peer", || l.try_accept().unwrap())).collect();
        assert_eq!(threads(), 1);
        drop(listener);
        drop(others);
        drop(acceptors);
        for connector in &connectors {
            until("the loss", || (connector.state() == ChannelState::Lost).then_some(()));
        }
        assert_eq!(threads(), 1, "the connectors still use it");
        drop(connectors);
        until("the thread to end", || (threads() == 0).then_some(()));
        until("all descriptors to be closed", || (descriptors() == before).then_some(()));

        // And it starts again; a channel closed in good order is flushed even after the last user
        // has ended.
        let listener = listen();
        let connector = connect(&listener);
        let acceptor = until("the peer", || listener.try_accept().unwrap());
        drop(listener);
        until("the connector to know", || connector.peer());
        connector.close();
        until("the BYE", || (acceptor.state() == ChannelState::ByePeer).then_some(()));
        acceptor.close();
        until("the thread to end", || (threads() == 0).then_some(()));
        until("all descriptors to be closed", || (descriptors() == before).then_some(()));
    });
}
