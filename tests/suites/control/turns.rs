//! How often the ends wait for each other while they set a connection up.

use mpib_proto::Handle;
use mpib_tests::code::Success;
use mpib_tests::pair::{connect_both, init};
use mpib_tests::proxy::{Proxy, Side};
use mpib_tests::table::newest;
use mpib_tests::{here, isolated, mpib};

/// Connections. The one with the fewest turns counts, since what the ends send at the same time
/// may pass the proxy in any order.
const TRIES: usize = 20;
/// HELLO and WIRING; WELCOME, HELLO, WIRING and READY; PROOF, READY and PROBED; PROBED and READY.
const TURNS: usize = 4;

/// The proof of the connector shares a packet with a message that the handshake needs anyway.
//= protocol.md: authentication: the handshake takes no turn more than without proofs
#[test]
fn a_proof_costs_no_turn() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let turns = || {
            let mut handle = [0; 128];
            let (_, listen) = table.listen(ctx, 0, &mut handle);
            let listener = Handle::decode(&handle).unwrap();
            let proxy = Proxy::before(&listener);
            let mut through = proxy.handle(&listener).encode();
            let (send, recv) = connect_both(table, ctx, 0, &mut through, listen);
            let sent = proxy.sent();
            let closed = [table.close_send(send), table.close_recv(recv), table.close_listen(listen)];
            assert_eq!(closed, [Success; 3]);
            assert_eq!(sent[0], Side::Connector);
            sent.len()
        };
        let fewest = (0..TRIES).map(|_| turns()).min();
        assert_eq!(fewest, Some(TURNS));
        assert_eq!(table.finalize(ctx), Success);
    });
}
