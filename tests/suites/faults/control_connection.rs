//! Faults of the control connection while data moves, and deaths that a forked child hides.

use mpib_proto::Handle;
use mpib_tests::code::{RemoteError, Success};
use mpib_tests::log::{assert_last_warning, has_logged, warnings};
use mpib_tests::pair::{Buffer, failure, init, pattern, until};
use mpib_tests::peer::{Grandchild, Peer, connected, from_peer, handle_of, recv, send, wait};
use mpib_tests::proxy::{Proxy, Side};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};

//= faults.md: 50: the control connection is reset: data moves on while it is dialled again
//= reach.md: a control connection that breaks is dialled again
#[test]
fn data_moves_on_while_the_control_connection_is_dialled_again() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let direct = Handle::decode(&handle_of(&peer.ask("listen"))).unwrap();
        let proxy = Proxy::before(&direct);
        peer.say("accept");
        let comm = connected(table, ctx, &mut proxy.handle(&direct).encode());
        assert_eq!(peer.answer(), "ok");
        let from = Buffer::new(table, comm, pattern(100_000, 1));
        let message = |peer: &mut Peer| {
            peer.say("recv 100000 1");
            assert_eq!(wait(table, send(table, comm, &from, 100_000)), 100_000);
            assert_eq!(peer.answer(), "ok");
        };
        message(&mut peer);
        proxy.reset(&[Side::Connector, Side::Acceptor]);
        message(&mut peer);
        until("the new connection", || has_logged("works again").then_some(()));
        message(&mut peer);
        assert!(warnings().is_empty(), "{:?}", warnings());
        from.dereg();
        peer.must("close");
        assert_eq!(table.close_send(comm), Success);
        peer.finish();
    });
}

/// The limit of silence, 150 s, is longer than this test may take.
//= faults.md: 9: a peer with a forked child is killed: its death is known at once
//= reach.md: the death of a process is known at once
#[test]
fn a_killed_sender_is_lost_though_its_child_lives() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 1000]);
        let requests = [(); 2].map(|()| recv(table, comm, &to, 1000));
        peer.must("send 1000 1");
        assert_eq!(wait(table, requests[0]), 1000);
        let _child = Grandchild(peer.ask("fork").parse().unwrap());
        peer.kill();
        assert_eq!(failure(table, requests[1]), RemoteError);
        assert_last_warning(&["was lost with receives outstanding", "did its process end?", &peer.name()]);
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}
