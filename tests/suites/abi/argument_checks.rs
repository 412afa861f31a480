//! Arguments that the plugin checks: handles, buffers, requests.

use mpib_proto::STATE_OFFSET;
use mpib_tests::code::{InvalidArgument, InvalidUsage, Success};
use mpib_tests::log::assert_warned;
use mpib_tests::pair::{Pair, connect, init, until};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{here, isolated, mpib};

#[test]
fn handles_are_checked() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut handle = [0; 128];
        assert_eq!(table.connect(ctx, 0, &mut handle).0, InvalidArgument);
        assert_warned(&["connect", "all zeroes"]);
        handle = [0x5A; 128];
        handle[STATE_OFFSET..].fill(0);
        assert_eq!(table.connect(ctx, 0, &mut handle).0, InvalidArgument);
        assert_warned(&["not an MPIB handle"]);
        let (rc, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!((rc, &handle[STATE_OFFSET..]), (Success, &[0; 8][..]));
        let fresh = handle;
        // A number that no call of ours gave.
        handle[STATE_OFFSET..].copy_from_slice(&77u64.to_le_bytes());
        assert_eq!(table.connect(ctx, 0, &mut handle).0, InvalidArgument);
        assert_warned(&["connection attempt 77", "there is none"]);
        // One of another handle.
        let mut begun = fresh;
        assert_eq!(table.connect(ctx, 0, &mut begun).0, Success);
        let mut other = [0; 128];
        let (_, second) = table.listen(ctx, 0, &mut other);
        other[STATE_OFFSET..].copy_from_slice(&begun[STATE_OFFSET..]);
        assert_eq!(table.connect(ctx, 0, &mut other).0, InvalidArgument);
        // The rightful one goes on.
        let mut send = Ptr::default();
        let recv = until("accept", || {
            if send.is_null() {
                let (rc, comm) = table.connect(ctx, 0, &mut begun);
                assert_eq!(rc, Success);
                send = comm;
            }
            Some(table.accept(listen).1).filter(|comm| !comm.is_null())
        });
        until("connect", || {
            if send.is_null() {
                send = table.connect(ctx, 0, &mut begun).1;
            }
            (!send.is_null()).then_some(())
        });
        let pair = Pair { table, send, recv };
        pair.message(10, 10, 1);
        pair.close();
        assert_eq!((table.close_listen(listen), table.close_listen(second)), (Success, Success));
    });
}

//= faults.md: 83
#[test]
fn what_finalize_leaves_is_dropped() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut handle = [0; 128];
        let (_, listen) = table.listen(ctx, 0, &mut handle);
        assert_eq!(table.connect(ctx, 0, &mut handle).0, Success);
        assert_ne!(handle[STATE_OFFSET..], [0; 8]);
        assert_eq!((table.close_listen(listen), table.finalize(ctx)), (Success, Success));
        let ctx = init(table);
        assert_eq!(table.connect(ctx, 0, &mut handle).0, InvalidArgument);
        let pair = connect(table, ctx, 0);
        pair.message(100, 100, 1);
        pair.close();
        assert_eq!(table.finalize(ctx), Success);
    });
}

#[test]
fn memory_is_checked() {
    isolated(here!(), &mpib("512", &[]), || {
        let pair = Pair::new(newest());
        let to = pair.recv_buffer(1000);
        let from = pair.send_buffer(vec![0; 1000]);
        let table = newest();
        assert_eq!(table.reg_mr(pair.send, from.addr(), 10, 4).0, InvalidUsage);
        assert_warned(&["regMr", "expected regMrDmaBuf"]);
        assert_eq!(table.reg_mr(pair.send, 0, 10, 1).0, InvalidArgument);
        for (addr, len) in [(to.addr(), 1001), (to.addr() - 1, 10), (to.addr() + 1000, 1), (usize::MAX, 1)] {
            assert_eq!(
                table.irecv(pair.recv, &[(addr, len, 1, to.mr)]).0,
                InvalidArgument,
                "{addr:#x} {len}"
            );
        }
        assert_eq!(table.irecv(pair.recv, &[(to.addr(), 10, 1, Ptr::default())]).0, InvalidArgument);
        let recv = pair.irecv(&[(to.addr(), 1000, 1, to.mr)]);
        for (addr, len) in [(from.addr() + 1, 1000), (from.addr() - 1, 10)] {
            assert_eq!(table.isend(pair.send, addr, len, 1, from.mr).0, InvalidArgument);
        }
        // None of these failed the comm.
        let send = pair.isend(from.addr(), 1000, 1, from.mr);
        assert_eq!((pair.wait(send)[0], pair.wait(recv)[0]), (1000, 1000));
        // A request is over when it is done.
        assert_eq!(table.test(send).0, InvalidArgument);
        assert_eq!(table.test(recv).0, InvalidArgument);
        let (rc, flush) = table.iflush(pair.recv, &[(to.addr(), 1000, to.mr)]);
        assert_eq!((rc, flush.is_null()), (Success, true));
        // The size may belong to another buffer, the address may not.
        assert_eq!(table.iflush(pair.recv, &[(to.addr(), 1001, to.mr)]).0, Success);
        for addr in [to.addr() - 1, to.addr() + 1000] {
            assert_eq!(table.iflush(pair.recv, &[(addr, 1, to.mr)]).0, InvalidArgument);
        }
        to.dereg();
        from.dereg();
        pair.close();
    });
}

#[test]
fn a_request_ends_with_its_comm() {
    isolated(here!(), &mpib("512", &[]), || {
        let table = newest();
        let pair = Pair::new(table);
        let to = pair.recv_buffer(1000);
        let from = pair.send_buffer(vec![7; 1000]);
        // One in flight, one that is done and not collected, one that is collected.
        let collected = pair.irecv(&[(to.addr(), 1000, 1, to.mr)]);
        let sent = pair.isend(from.addr(), 1000, 1, from.mr);
        assert_eq!((pair.wait(collected)[0], pair.wait(sent)[0]), (1000, 1000));
        let done = pair.irecv(&[(to.addr(), 1000, 2, to.mr)]);
        let sent = pair.isend(from.addr(), 1000, 2, from.mr);
        let in_flight = pair.irecv(&[(to.addr(), 1000, 3, to.mr)]);
        assert!(!table.test(in_flight).1);
        to.dereg();
        from.dereg();
        pair.close();
        for request in [collected, done, sent, in_flight] {
            assert_eq!(table.test(request).0, InvalidArgument);
            assert_warned(&["test", "request"]);
        }
    });
}
