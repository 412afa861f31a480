//! Adapters that do not reach themselves: connections over them work, and flushes do not. The
//! sender is another process, since such an adapter does not reach its other queue pairs either.

use mpib_tests::code::{InvalidUsage, Success};
use mpib_tests::log::{assert_last_warning, take_warning, take_warnings, warnings};
use mpib_tests::pair::{Buffer, init, until};
use mpib_tests::peer::{Peer, accepted, from_peer, recv, wait, word};
use mpib_tests::table::{Ptr, Table, newest};
use mpib_tests::{PEERMEM, SHORT, here, mpib, with_sys};
use softverbs::Call;

use super::flush_util::{during, iflush};

const CUDA: i32 = 2;
/// The sender's adapters.
const SENDER: [(&str, &str); 1] = [("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.2/16;soft1:addr=10.2.0.2/16")];
/// The receiver's: neither of them reaches itself.
const NEITHER: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16,loopback=off;soft1:addr=10.2.0.1/16,loopback=off");
/// The receiver's: only the first reaches itself.
const FIRST: (&str, &str) =
    ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16,loopback=off");
const BOTH: (&str, &str) = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16");

/// The settings of a receiver with GPU memory, whose messages use both rails.
fn env<'a>(more: &[(&'a str, &'a str)]) -> Vec<(&'a str, &'a str)> {
    mpib("512", &[&SHORT, more].concat())
}

/// A connection from the peer, with a buffer that is registered as GPU memory as well.
struct End {
    table: &'static Table,
    comm: Ptr,
    to: Buffer,
    gpu: Ptr,
}

const LEN: usize = 100_000;
/// A message of this size is not split: all of it is on SOUT.
const SMALL: usize = 100;

impl End {
    fn new(ctx: Ptr, peer: &mut Peer) -> Self {
        let table = newest();
        let comm = from_peer(table, ctx, peer);
        let to = Buffer::new(table, comm, vec![0; 2 * LEN]);
        let (rc, gpu) = table.reg_mr(comm, to.addr(), 2 * LEN, CUDA);
        assert_eq!(rc, Success);
        Self { table, comm, to, gpu }
    }

    /// One message to the start of the buffer, over the peer's connection `at`.
    fn message(&self, peer: &mut Peer, len: usize, at: usize) {
        let request = recv(self.table, self.comm, &self.to, len);
        peer.must(&format!("send {len} 1 {at}"));
        assert_eq!(wait(self.table, request), len);
    }

    /// Flushes `len` bytes of GPU memory, which completes; the reads of each rail.
    fn flushes(&self, len: usize) -> [u64; 2] {
        let flush = || wait(self.table, iflush(self.table, self.comm, &[(self.to.addr(), len, self.gpu)]));
        during(flush).0
    }

    /// Flushes `len` bytes of GPU memory, which is an error with these words.
    fn cannot_flush(&self, len: usize, parts: &[&str]) {
        let group = [(self.to.addr(), len, self.gpu)];
        let (none, (rc, request)) = during(|| self.table.iflush(self.comm, &group));
        assert_eq!((none, rc, request.is_null()), ([0, 0], InvalidUsage, true));
        take_warning(parts);
    }

    fn close(self) {
        assert_eq!(self.table.dereg_mr(self.comm, self.gpu), Success);
        self.to.dereg();
        assert_eq!(self.table.close_recv(self.comm), Success);
    }
}

/// The warning for each port that does not reach itself.
fn lost(ports: &[&str], why: &str) {
    let lines = take_warnings();
    assert_eq!(lines.len(), ports.len(), "{lines:?}");
    for port in ports {
        let parts =
            [&format!("{port} does not reach itself, so it cannot flush: "), why, "MPIB_FLUSH=0", "loopback"];
        assert!(
            lines.iter().any(|line| parts.iter().all(|part| line.contains(part))),
            "{parts:?}: {lines:?}"
        );
    }
}

/// The connection works, and host memory needs no flush.
//= mpib.md: an adapter that does not reach itself costs the flush alone
#[test]
fn a_connection_works_without_flushes() {
    with_sys(here!(), &[PEERMEM], &env(&[NEITHER]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        let end = End::new(ctx, &mut peer);
        lost(&["soft0:1", "soft1:1"], "IBV_WC_RETRY_EXC_ERR");
        end.message(&mut peer, LEN, 0);
        assert!(iflush(end.table, end.comm, &[(end.to.addr(), LEN, end.to.mr)]).is_null(), "host memory");
        assert_eq!(take_warnings(), [""; 0]);
        end.cannot_flush(
            LEN,
            &["over rail 0 (soft0:1), which cannot flush", "IBV_WC_RETRY_EXC_ERR", "MPIB_FLUSH=0"],
        );
        end.message(&mut peer, LEN, 0);
        // The next connection does not try, and logs nothing.
        let (tried, again) = during(|| End::new(ctx, &mut peer));
        assert_eq!((tried, take_warnings()), ([0, 0], Vec::new()));
        again.message(&mut peer, LEN, 1);
        again.cannot_flush(LEN, &["over rail 0 (soft0:1), which cannot flush"]);
        peer.must("close");
        end.close();
        again.close();
        peer.finish();
    });
}

/// A flush reads on the rails that can, if no other has carried its data.
//= mpib.md: an adapter that does not reach itself costs the flush alone
//= adapters.md: A5: a failed loopback costs the flush and not the rail
#[test]
fn only_data_of_the_rail_that_cannot_flush_is_not_flushed() {
    with_sys(here!(), &[PEERMEM], &env(&[FIRST]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        let end = End::new(ctx, &mut peer);
        lost(&["soft1:1"], "IBV_WC_RETRY_EXC_ERR");
        end.message(&mut peer, SMALL, 0);
        assert_eq!(end.flushes(SMALL), [1, 0]);
        end.message(&mut peer, LEN, 0);
        end.cannot_flush(LEN, &["over rail 1 (soft1:1), which cannot flush"]);
        // The latest message to this buffer has not used it.
        end.message(&mut peer, SMALL, 0);
        assert_eq!(end.flushes(SMALL), [1, 0]);
        // No receive into this place is known, so any rail may have carried its data.
        let group = [(end.to.addr() + LEN, SMALL, end.gpu)];
        assert_eq!(end.table.iflush(end.comm, &group).0, InvalidUsage);
        take_warning(&["over rail 1 (soft1:1), which cannot flush"]);
        // 256 later receives into other memory.
        let other = Buffer::new(end.table, end.comm, vec![0; SMALL]);
        for _ in 0..256 {
            let request = recv(end.table, end.comm, &other, SMALL);
            peer.must(&format!("send {SMALL} 1 0"));
            wait(end.table, request);
        }
        end.cannot_flush(SMALL, &["over rail 1 (soft1:1), which cannot flush"]);
        other.dereg();
        peer.must("close");
        end.close();
        peer.finish();
    });
}

/// A read that is not answered in time counts as a failed one.
//= mpib.md: an adapter that does not reach itself costs the flush alone
//= adapters.md: A5: a failed loopback costs the flush and not the rail
#[test]
fn a_read_that_gets_no_answer_costs_the_flush_alone() {
    let slow = [FIRST, ("NCCL_IB_TIMEOUT", "22"), ("MPIB_PROBE_TIMEOUT_MS", "300")];
    with_sys(here!(), &[PEERMEM], &env(&slow), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        let end = End::new(ctx, &mut peer);
        lost(&["soft1:1"], "MPIB_PROBE_TIMEOUT_MS");
        end.message(&mut peer, LEN, 0);
        end.cannot_flush(LEN, &["over rail 1 (soft1:1), which cannot flush", "MPIB_PROBE_TIMEOUT_MS"]);
        peer.must("close");
        end.close();
        peer.finish();
    });
}

//= mpib.md: an adapter that does not reach itself costs the flush alone
#[test]
fn a_queue_pair_that_cannot_be_connected_to_itself_costs_the_flush_alone() {
    with_sys(here!(), &[PEERMEM], &env(&[BOTH]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        softverbs::fail("soft1", Call::ModifyLoopback.fails(libc::ENETUNREACH)).unwrap();
        let (tried, end) = during(|| End::new(ctx, &mut peer));
        assert_eq!(tried, [1, 0]);
        lost(&["soft1:1"], "ibv_modify_qp");
        end.message(&mut peer, LEN, 0);
        end.cannot_flush(LEN, &["over rail 1 (soft1:1), which cannot flush", "ibv_modify_qp"]);
        end.message(&mut peer, SMALL, 0);
        assert_eq!(end.flushes(SMALL), [1, 0]);
        peer.must("close");
        end.close();
        peer.finish();
    });
}

/// The kernel may need time for the port's own address.
//= configuration.md: NCCL_IB_MQP_RETRY_CNT
#[test]
fn connecting_to_itself_is_tried_again() {
    with_sys(here!(), &[PEERMEM], &env(&[BOTH, ("NCCL_IB_MQP_RETRY_SLEEP_MSEC", "1")]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        softverbs::fail("soft1", Call::ModifyLoopback.fails(libc::ETIMEDOUT).times(3)).unwrap();
        let end = End::new(ctx, &mut peer);
        assert_eq!(take_warnings(), [""; 0]);
        end.message(&mut peer, LEN, 0);
        assert_eq!(end.flushes(LEN), [1, 1]);
        peer.must("close");
        end.close();
        peer.finish();
    });
}

//= mpib.md: MPIB_FLUSH=0 disables flushes
#[test]
fn without_flushes_nothing_is_tried_or_missed() {
    with_sys(here!(), &[PEERMEM], &env(&[NEITHER, ("MPIB_FLUSH", "0")]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        let end = End::new(ctx, &mut peer);
        assert!(softverbs::qp_attributes().iter().all(|qp| !qp.loopback), "no loopback");
        end.message(&mut peer, LEN, 0);
        assert!(iflush(end.table, end.comm, &[(end.to.addr(), LEN, end.gpu)]).is_null());
        assert_eq!(take_warnings(), [""; 0]);
        peer.must("close");
        end.close();
        peer.finish();
    });
}

//= mpib.md: an adapter that does not reach itself costs the flush alone
//= configuration.md: MPIB_STRICT
#[test]
fn a_strict_connection_does_not_go_without_flushes() {
    with_sys(here!(), &[PEERMEM], &env(&[FIRST, ("MPIB_STRICT", "1")]), || {
        let (table, ctx) = (newest(), init(newest()));
        let mut peer = Peer::start_with(&SENDER);
        // Each connection tries again.
        for _ in 0..2 {
            let mut handle = [0; 128];
            let (rc, listen) = table.listen(ctx, 0, &mut handle);
            assert_eq!(rc, Success);
            peer.say(&format!("connect-fails {}", word(&handle)));
            until("accept to fail", || {
                let (rc, comm) = table.accept(listen);
                assert!(comm.is_null(), "accepted");
                (rc != Success).then_some(())
            });
            assert_last_warning(&["soft1:1 does not reach itself, so it cannot flush", "(MPIB_STRICT=1)"]);
            peer.answer();
            assert_eq!(table.close_listen(listen), Success);
            assert!(!warnings().is_empty());
            take_warnings();
        }
        peer.finish();
    });
    let _ = accepted;
}

/// A port that reaches nobody has another fault than one that does not reach itself.
//= mpib.md: an adapter that does not reach itself costs the flush alone
#[test]
fn a_port_that_reaches_nobody_is_left_out_for_that() {
    let lost = ("SOFTVERBS_DEVICES", "soft0:addr=10.1.0.1/16;soft1:addr=10.2.0.1/16,wire=9,loopback=off");
    with_sys(here!(), &[PEERMEM], &env(&[lost]), || {
        let ctx = init(newest());
        let mut peer = Peer::start_with(&SENDER);
        let end = End::new(ctx, &mut peer);
        let line = take_warning(&["rails that do not work", "soft1:1", "goes on with SOUT alone"]);
        assert!(!line.contains("itself"), "{line}");
        end.message(&mut peer, LEN, 0);
        assert_eq!(end.flushes(LEN), [1, 0]);
        peer.must("close");
        end.close();
        peer.finish();
    });
}
