//! Control connections that break during the handshake.

use mpib_proto::Handle;
use mpib_tests::code::Success;
use mpib_tests::log::take_warnings;
use mpib_tests::pair::{Pair, connect_both, init};
use mpib_tests::proxy::{Break, Proxy, Side};
use mpib_tests::table::newest;
use mpib_tests::vdevices::Rig;
use mpib_tests::{here, isolated, mpib};

/// Pieces of a handshake before the acceptor uses the connection: HELLO and WIRING; the acceptor's
/// WELCOME, HELLO, WIRING and READY; PROOF and READY.
const PIECES: usize = 3;

const BOTH: &[Side] = &[Side::Connector, Side::Acceptor];
const ONE: &[Side] = &[Side::Connector];

//= faults.md: 89: the control connection breaks in the handshake: the handshake begins again
//= reach.md: a handshake whose control connection breaks begins again
#[test]
fn a_handshake_whose_control_connection_breaks_begins_again() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let resets = [Break::Reset(BOTH), Break::Reset(ONE)];
        for how in resets.into_iter().chain([Break::Close(BOTH), Break::Close(ONE), Break::Change]) {
            // Before its WELCOME a FIN shows no more than that no listener is there.
            let first = if matches!(how, Break::Close(_)) { 3 } else { 1 };
            for piece in first..=PIECES {
                let mut handle = [0; 128];
                let (rc, listen) = table.listen(ctx, 0, &mut handle);
                assert_eq!(rc, Success, "listen");
                let direct = Handle::decode(&handle).unwrap();
                let proxy = Proxy::before(&direct);
                proxy.break_at(piece, how);
                let mut handle = proxy.handle(&direct).encode();
                let (send, recv) = connect_both(table, ctx, 0, &mut handle, listen);
                assert!(proxy.has_broken(), "a handshake has fewer than {piece} pieces");
                assert_eq!(table.close_listen(listen), Success);
                let mut rig = Rig::of(Pair { table, send, recv }, 1 << 20);
                rig.exchange(&[1 << 20]);
                rig.close();
            }
        }
        assert!(take_warnings().is_empty());
        assert_eq!(table.finalize(ctx), Success);
    });
}
