//! Flushes of GPU memory, which NCCL requests for GPUs that need them. The test makes the `/sys`,
//! since there is no GPU.

use mpib_tests::code::Success;
use mpib_tests::pair::{Pair, connect, init};
use mpib_tests::table::{TABLES, newest};
use mpib_tests::{PEERMEM, here, mpib, with_sys};

use super::flush_util::{during, force_flush, iflush, line};

const CUDA: i32 = 2;

/// Nothing set: what NCCL asks for is done.
//= mpib.md: by default only GPU memory is flushed
#[test]
fn gpu_memory_is_flushed_where_nccl_asks_and_host_memory_is_not() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[]), || {
        for table in TABLES {
            let ctx = init(table);
            let (tried, pair) = during(|| connect(table, ctx, 0));
            assert_eq!(tried, [1, 1], "each rail's way to itself is tried");
            pair.message(100_000, 100_000, 1);
            let to = pair.recv_buffer(1000);
            let (none, request) = during(|| iflush(table, pair.recv, &[(to.addr(), 1000, to.mr)]));
            assert!(none == [0, 0] && request.is_null(), "host memory");
            let (rc, gpu) = table.reg_mr(pair.recv, to.addr(), 1000, CUDA);
            assert_eq!(rc, Success);
            let flush = || pair.wait(iflush(table, pair.recv, &[(to.addr(), 1000, gpu)]));
            assert_eq!(during(flush).0, [1, 1], "GPU memory, on both rails");
            assert_eq!(table.dereg_mr(pair.recv, gpu), Success);
            to.dereg();
            pair.close();
        }
        assert_eq!(force_flush(), [false; 4], "NCCL knows best when to ask");
        assert!(
            line().contains("when NCCL requests it") && line().contains("MPIB_FLUSH is unset"),
            "{}",
            line()
        );
    });
}

//= mpib.md: MPIB_FLUSH=0 disables flushes
#[test]
fn nothing_is_flushed_if_disabled() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[("MPIB_FLUSH", "0")]), || {
        let table = newest();
        let ctx = init(table);
        let (tried, pair) = during(|| connect(table, ctx, 0));
        assert_eq!(tried, [0, 0]);
        pair.message(100_000, 100_000, 1);
        let to = pair.recv_buffer(1000);
        let (rc, gpu) = table.reg_mr(pair.recv, to.addr(), 1000, CUDA);
        assert_eq!(rc, Success);
        let (read, request) = during(|| iflush(table, pair.recv, &[(to.addr(), 1000, gpu)]));
        assert!(read == [0, 0] && request.is_null());
        assert_eq!(table.dereg_mr(pair.recv, gpu), Success);
        to.dereg();
        pair.close();
        assert_eq!(force_flush(), [false; 4]);
        assert!(line().contains("flush is disabled") && line().contains("MPIB_FLUSH=0"), "{}", line());
    });
}

/// A flush reads the group's GPU memory if the group has any.
//= mpib.md: groups, empty buffers, and mixed memory are flushed
#[test]
fn gpu_memory_of_a_group_goes_before_the_hosts() {
    with_sys(here!(), &[PEERMEM], &mpib("512", &[("MPIB_FLUSH", "1")]), || {
        let (table, pair) = (newest(), Pair::new(newest()));
        pair.message(100_000, 100_000, 1);
        // Separate registrations: one can be revoked without the other.
        let (host, gpu) = (pair.recv_buffer(1 << 18), pair.recv_buffer(1 << 18));
        let (rc, gpu_mr) = table.reg_mr(pair.recv, gpu.addr() + (1 << 17), 100, CUDA);
        assert_eq!(rc, Success);
        let (host_part, gpu_part) =
            ((host.addr() + (1 << 17), 100, host.mr), (gpu.addr() + (1 << 17), 100, gpu_mr));
        pair.wait(iflush(table, pair.recv, &[host_part]));
        // After this a read of the host memory would fail.
        assert_eq!(softverbs::mr_access_at(host.addr() + (1 << 17)).len(), 2);
        softverbs::revoke_mrs_at(host.addr() + (1 << 17));
        assert!(softverbs::mr_access_at(host.addr() + (1 << 17)).is_empty());
        for group in [&[gpu_part, host_part][..], &[host_part, gpu_part], &[host_part, gpu_part, host_part]] {
            pair.wait(iflush(table, pair.recv, group));
        }
        assert_eq!(table.dereg_mr(pair.recv, gpu_mr), Success);
        gpu.dereg();
        host.dereg();
        pair.close();
    });
}
