//! Optional receives whose data does not come. NCCL makes no call while it waits for the data, and
//! the plugin has to find the failure without one.

use std::time::{Duration, Instant};

use mpib_proto::{ImmLayout, SizeQ};
use mpib_tests::code::{RemoteError, Success, SystemError};
use mpib_tests::log::{take_warnings, warnings};
use mpib_tests::pair::{Buffer, Pair, connect, init, pattern, until};
use mpib_tests::peer::{Peer, from_peer};
use mpib_tests::table::{Ptr, newest};
use mpib_tests::{SHORT, here, misbehaving_peer, mpib, provider, with_and_without_srq};
use softverbs::{Direction, EventTarget, Fault, inject, raise_event};

use super::optional_util::{OPTIONAL, here, optional, shown, taken, tested};

/// The peer disappears while data is outstanding and no call is made: a warning is logged, and
/// every later call fails.
fn lost(test: &str, go: impl FnOnce(&mut Peer), said: &[&str]) {
    let env = [("NCCL_IB_TIMEOUT", "10"), ("NCCL_IB_RETRY_CNT", "1")];
    with_and_without_srq(test, &mpib("512", &env), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 1000]);
        let untaken = optional(table, comm, &to, 0, 1000);
        for _ in 0..3 {
            taken(table, optional(table, comm, &to, 0, 1000));
        }
        go(&mut peer);
        let line = until("a warning", || take_warnings().pop());
        for part in said.iter().copied().chain(["receiving: ", "with receives outstanding", &peer.name()]) {
            assert!(line.contains(part), "{part:?} is not in {line:?}");
        }
        // NCCL has not asked for the first.
        assert_eq!(table.test(untaken).0, RemoteError);
        let group = [(to.addr(), 1000, 1, to.mr)];
        assert_eq!(table.irecv_as(comm, &group, OPTIONAL), (RemoteError, Ptr::default()));
        assert_eq!(table.irecv(comm, &group).0, RemoteError);
        assert!(take_warnings().is_empty(), "it was reported twice");
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
    });
}

//= faults.md: 86: NCCL does not test optional receives: the loss of their peer is found
//= receives.md: failures are logged without a call of NCCL
#[test]
fn a_killed_peer_is_reported_without_a_call() {
    lost(here!(), Peer::kill, &["was lost"]);
}

//= receives.md: failures are logged without a call of NCCL
#[test]
fn a_peer_that_closes_with_data_outstanding_is_reported_without_a_call() {
    lost(here!(), |peer| peer.must("close"), &["closed the connection"]);
}

/// Nothing is outstanding when the peer exits, and nothing polls for it. A receive after that is
/// not done: its test says why.
//= receives.md: a receive posted after the death of the peer fails in test
#[test]
fn a_receive_after_the_peer_has_exited_fails_in_its_test() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 1000]);
        taken(table, optional(table, comm, &to, 0, 1000));
        peer.must("send 1000 1");
        until("the data", || here(&to, 0, &pattern(1000, 1)));
        let sockets = || {
            let fds = std::fs::read_dir("/proc/self/fd").unwrap().filter_map(Result::ok);
            let to = fds.filter_map(|fd| std::fs::read_link(fd.path()).ok());
            to.filter(|to| to.to_string_lossy().starts_with("socket:")).count()
        };
        let before = sockets();
        peer.must("close");
        // The good-bye ends the control connection, the one socket of this comm.
        until("the good-bye", || (sockets() < before).then_some(()));
        let request = optional(table, comm, &to, 0, 1000);
        assert_eq!(tested(table, request), (false, 0));
        assert_eq!(
            until("a failure", || Some(table.test(request).0).filter(|rc| *rc != Success)),
            RemoteError
        );
        let last = warnings().pop().unwrap();
        for part in ["test: ", "closed the connection with receives outstanding"] {
            assert!(last.contains(part), "{part:?} is not in {last:?}");
        }
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
        peer.finish();
    });
}

/// All that a peer sent before it closed is taken, though nobody asks, and is no loss.
//= receives.md: a peer that closes after its data is no failure
#[test]
fn a_peer_that_closes_after_its_data_is_no_loss() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let mut peer = Peer::start();
        let comm = from_peer(table, ctx, &mut peer);
        let to = Buffer::new(table, comm, vec![0; 1000]);
        for _ in 0..5 {
            taken(table, optional(table, comm, &to, 0, 1000));
            peer.must("send 1000 1");
        }
        peer.must("close");
        peer.finish();
        until("the arrivals to be taken", || (shown().in_flight() == 0).then_some(()));
        assert_eq!((shown().totals.messages, shown().totals.bytes), (5, 5000));
        to.dereg();
        assert_eq!(table.close_recv(comm), Success);
        assert!(warnings().is_empty(), "{:?}", warnings());
    });
}

/// A CTS write that nobody acknowledges: only a completion shows that.
//= faults.md: 86
//= receives.md: failures are logged without a call of NCCL
#[test]
fn a_failed_write_is_reported_without_a_call() {
    let env = [&SHORT[..], &[("MPIB_FAILOVER_WAIT", "0")]].concat();
    with_and_without_srq(here!(), &mpib("512", &env), || {
        let table = newest();
        let pair = Pair::new(table);
        let to = pair.recv_buffer(100);
        for device in ["soft0", "soft1"] {
            inject(device, Fault::Silence(Direction::Both)).unwrap();
        }
        let untaken = optional(table, pair.recv, &to, 0, 100);
        let line = until("a warning", || take_warnings().into_iter().find(|l| l.contains("receiving: ")));
        // erdma may refuse the next write before the failed one completes.
        let is_refused = provider() == "erdma" && line.contains("ibv_post_send failed");
        assert!(line.contains("CTS write") || is_refused, "{line:?}");
        let code = table.test(untaken).0;
        assert!([RemoteError, SystemError].contains(&code), "{code}");
        assert_eq!(table.irecv_as(pair.recv, &[(to.addr(), 100, 1, to.mr)], OPTIONAL).0, code);
        to.dereg();
        pair.close();
    });
}

//= receives.md: failures are logged without a call of NCCL
#[test]
fn a_failed_adapter_is_reported_without_a_call() {
    with_and_without_srq(here!(), &mpib("512", &[("MPIB_FAILOVER", "0")]), || {
        let table = newest();
        let pair = Pair::new(table);
        let to = pair.recv_buffer(100);
        let untaken = optional(table, pair.recv, &to, 0, 100);
        raise_event(8, EventTarget::Device("soft0")).unwrap();
        // The driver of bnxt_re reports it for each queue pair.
        let event = if provider() == "bnxt_re" { "QP_FATAL" } else { "DEVICE_FATAL" };
        until("a warning", || {
            take_warnings().into_iter().find(|l| l.contains("receiving: ") && l.contains(event))
        });
        assert_eq!(table.test(untaken).0, SystemError);
        to.dereg();
        pair.close();
    });
}

/// An arrival for a receive that is done is right once, if it is right at all.
//= receives.md: immediates of receives that are done are checked
#[test]
fn arrivals_for_done_receives_are_checked() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let layout = ImmLayout::new(2).unwrap();
        let word = |slot, mask, bytes| layout.encode(slot, mask, layout.size(bytes));
        let cases: &[(&[(usize, u32)], &str)] = &[
            (&[(0, word(1, 1, 9)), (0, word(1, 1, 9))], "slot 1, where no receive waits"),
            (&[(0, word(1, 1, 1001))], "1001 bytes arrived for a receive of 1000"),
            (&[(0, word(1, 3, 9)), (1, word(1, 3, 10))], "rails carry different sizes"),
            (&[(0, word(1, 3, 9)), (0, word(1, 3, 9))], "rail 0 delivered two immediates"),
            (&[(0, word(60, 1, 9))], "slot 60, where no receive waits"),
            // Of one message, in a record of zeroes: right. Then once more.
            (&[(0, layout.encode(1, 1, SizeQ::RECORD)); 2], "slot 1, where no receive waits"),
        ];
        for (words, said) in cases {
            let (comm, liar) = misbehaving_peer::receiver(ctx);
            let to = Buffer::new(table, comm, vec![0; 1000]);
            taken(table, optional(table, comm, &to, 0, 1000));
            words.iter().for_each(|(rail, word)| liar.signal(*rail, *word));
            let (rc, second) = table.irecv(comm, &[(to.addr(), 1000, 1, to.mr)]);
            assert_eq!(rc, Success);
            let code = until(said, || Some(table.test(second).0).filter(|rc| *rc != Success));
            assert_eq!(code, RemoteError, "{said}");
            assert!(warnings().iter().any(|line| line.contains(said)), "{said:?}: {:?}", take_warnings());
            take_warnings();
            to.dereg();
            assert_eq!(table.close_recv(comm), Success);
        }
    });
}

/// As after an abort: the peer lives and sends nothing. The first close waits for data that may be on
/// its way; it does not come to the others either.
//= receives.md: receivers that close one after another wait for their data together
#[test]
fn receivers_that_close_one_after_another_wait_together() {
    with_and_without_srq(here!(), &mpib("512", &[]), || {
        let table = newest();
        let ctx = init(table);
        let pairs: Vec<Pair> = (0..20).map(|_| connect(table, ctx, 0)).collect();
        let buffers: Vec<Buffer> = pairs.iter().map(|pair| pair.recv_buffer(100)).collect();
        for (pair, to) in pairs.iter().zip(&buffers) {
            taken(table, optional(table, pair.recv, to, 0, 100));
        }
        buffers.into_iter().for_each(Buffer::dereg);
        let mut times = pairs.iter().map(|pair| {
            let begun = Instant::now();
            assert_eq!(table.close_recv(pair.recv), Success);
            begun.elapsed()
        });
        let first = times.next().unwrap();
        let others: Duration = times.sum();
        // Each would take as long as the first.
        assert!(others < first * 10, "{others:?} after {first:?}");
        pairs.iter().for_each(|pair| assert_eq!(table.close_send(pair.send), Success));
        assert_eq!(table.finalize(ctx), Success);
    });
}
