//! The profiles of rdma-core's providers and their kernel drivers, as read in rdma-core 65 and
//! Linux 6.18. None was compared with an adapter.
//!
//! A row has what programs can observe: what differs from [`STRICT`], and nothing that only firmware
//! decides. Where a kernel or an adapter has several limits, the row has the smallest.

use std::ffi::c_int;

use rdma_sys as sys;
use rdma_sys::ibv_wc_status as wc;

use super::Quirks;
use super::profile::{Answer, Answers, Ece, MLX5_COUNTERS, Profile, STRICT, Srqs};
use crate::api::events::{QP_ACCESS_ERR, QP_FATAL};

/// The provider negates each errno of its post functions.
const ALL: &[c_int] = &[libc::EINVAL, libc::ENOMEM, libc::EIO, libc::EAGAIN, libc::EOPNOTSUPP];

/// What they have in common: completions in a CQ are memory of the process, which a failure of the CQ
/// and a removal of the device leave alone, and ECE is mlx5's alone.
const PROVIDER: Profile = Profile { polls_after_failure: true, ece: Ece::Missing, ..STRICT };

fn no_sends(cap: &sys::ibv_qp_cap) -> Option<&'static str> {
    (cap.max_send_wr == 0).then_some("max_send_wr is 0")
}

/// Rounds a depth up to a power of two; 0 stays 0.
fn power(depth: u32) -> u32 {
    if depth == 0 { 0 } else { depth.next_power_of_two() }
}

/// providers/mlx5:
/// - verbs.c `mlx5_calc_send_wqe`, `mlx5_calc_sq_size`: a WQE of an RC queue pair has 192 bytes of
///   headers, the SGEs or the inline data, and is rounded up to 64; it must fit in 1024. What is left
///   of it is inline data. The ring is rounded up in bytes.
/// - verbs.c `set_qp_operational_state`, qp.c `_mlx5_post_send`: no SGE is allowed before RTS.
/// - srq.c `mlx5_alloc_srq_buf`: one entry less than a power of two.
/// - cq.c `mlx5_handle_error_cqe`: flushed completions have a syndrome, too.
/// - the firmware has the length of the GID table: 256 in public outputs of ibv_devinfo.
pub(super) const MLX5: Profile = Profile {
    quirks: Quirks::Mlx5,
    name: "mlx5",
    max_inline: 828,
    ece: Ece::Always(1),
    grants: |cap| {
        const HEADERS: u32 = 192;
        let inline = if cap.max_inline_data > 0 { (4 + cap.max_inline_data).next_multiple_of(16) } else { 0 };
        let wqe = (HEADERS + inline.max(16 * cap.max_send_sge)).next_multiple_of(64);
        cap.max_inline_data = wqe - HEADERS - 4;
        cap.max_send_wr = power(cap.max_send_wr * wqe) / wqe;
        (cap.max_recv_wr, cap.max_recv_sge) = (power(cap.max_recv_wr), power(cap.max_recv_sge));
    },
    grants_srq_wr: |depth| (depth + 1).next_power_of_two() - 1,
    too_many_send_sges: libc::ENOMEM,
    send_before_rts: Some(libc::ENOMEM),
    vendor_err: 0x81,
    flush_vendor_err: 0xf9,
    gids: 256,
    ..PROVIDER
};

/// providers/bnxt_re/verbs.c, in static WQE mode, and drivers/infiniband/hw/bnxt_re:
/// - `bnxt_re_check_qp_limits` returns without an errno.
/// - `bnxt_re_get_sq_slots`: inline data shares the room of six SGEs.
/// - `bnxt_re_create_srq` (kernel): `max_wr` must be less than what is reported.
/// - `bnxt_re_build_srqe` writes no SGE where there is none, `bnxt_re_post_recv` does: the adapter
///   needs one.
/// - main.c (kernel): retries that are over raise `QP_ACCESS_ERR`, and `bnxt_re_dev_stop` raises
///   `QP_FATAL` for each queue pair. ib_verbs.c: up to 256 GIDs.
/// - hw_counters.c (kernel): mlx5's names.
pub(super) const BNXT_RE: Profile = Profile {
    quirks: Quirks::BnxtRe,
    name: "bnxt_re",
    max_send_sge: 6,
    max_recv_sge: 6,
    max_srq_sge: 6,
    max_inline: 96,
    fails_without_errno: true,
    srq_wr_short: 1,
    too_many_send_sges: libc::ENOMEM,
    too_many_recv_sges: libc::ENOMEM,
    send_before_rts: None,
    srq_receives_need_sge: true,
    vendor_err: 1,
    fatal_by_queue_pair: true,
    event_after_retries: Some(QP_ACCESS_ERR),
    gids: 256,
    counters: [None, MLX5_COUNTERS[1], MLX5_COUNTERS[2], MLX5_COUNTERS[3]],
    ..PROVIDER
};

/// The entries of irdma's ring that a work request takes.
fn irdma_entries(cap: &sys::ibv_qp_cap) -> u32 {
    if cap.max_inline_data > 8 { 4 } else { 1 }
}

/// providers/irdma on E810 (its second generation), and drivers/infiniband/hw/irdma:
/// - verbs.c (kernel) `irdma_query_device` reports `max_srq_wr`; uverbs.c has SRQs from the third
///   generation on. `irdma_query_port`: LID 1.
/// - uk.c `irdma_get_wqe_shift`, `irdma_get_sqdepth`: more than 8 bytes of inline data make a work
///   request four times as large, and the ring has a reserve of 258.
/// - uk.c `irdma_uk_rdma_write`, `irdma_uk_rdma_read`, `irdma_uk_post_receive` look at the SGE and not
///   at the number.
/// - uverbs.c `irdma_flush_err_to_ib_wc_status` has no `LOC_ACCESS_ERR` and no `BAD_RESP_ERR`.
/// - utils.c (kernel): retries that are over raise `QP_FATAL`.
/// - verbs.c (kernel) `irdma_hw_stat_descs`: no retransmissions of RoCE before the third generation.
pub(super) const IRDMA: Profile = Profile {
    quirks: Quirks::Irdma,
    name: "irdma",
    max_send_sge: 13,
    max_recv_sge: 13,
    max_inline: 101,
    srqs: Srqs::MissingWithDepth,
    entries_per_send: irdma_entries,
    grants: |cap| {
        let each = irdma_entries(cap);
        if cap.max_send_wr > 0 {
            cap.max_send_wr = (power(cap.max_send_wr * each + 258) - 258) / each;
        }
    },
    too_much_inline: libc::EINVAL,
    send_before_rts: None,
    reads_first_sge: true,
    send_statuses: &[(wc::IBV_WC_LOC_ACCESS_ERR, wc::IBV_WC_GENERAL_ERR)],
    vendor_err: 1 << 16 | 1,
    event_after_retries: Some(QP_FATAL),
    roce_lid: 1,
    // CM and REINIT.
    roce_cap_flags: 1 << 16 | 1 << 18,
    counters: [None; 4],
    ..PROVIDER
};

/// providers/ionic and drivers/infiniband/hw/ionic:
/// - ionic_verbs.c `ionic_qp_sq_init`, ionic_queue.c: WQEs are powers of two, rings too, one entry
///   less, and a page at least.
/// - ionic_verbs.c `ionic_post_recv_common`: EAGAIN, negative, while the adapter has the entry.
/// - ionic_verbs.c: flushes have `wr_id`, `qp_num` and status alone, and failures no opcode.
/// - ionic_controlpath.c (kernel) `ionic_get_qpid`: the lowest free number.
/// - ionic_hw_stats.c (kernel): the firmware names the counters. ionic_ibdev.h: 256 GIDs.
pub(super) const IONIC: Profile = Profile {
    quirks: Quirks::Ionic,
    name: "ionic",
    max_send_sge: 16,
    max_recv_sge: 16,
    srqs: Srqs::Missing,
    grants: |cap| {
        const HEADER: u32 = 32;
        let wqe = (HEADER + cap.max_inline_data.max(16 * cap.max_send_sge)).next_power_of_two();
        cap.max_inline_data = wqe - HEADER;
        cap.max_send_wr = (cap.max_send_wr + 1).next_power_of_two().max(4096 / wqe) - 1;
        if cap.max_recv_wr > 0 {
            cap.max_recv_wr = (cap.max_recv_wr + 1).next_power_of_two() - 1;
        }
    },
    too_much_inline: libc::EINVAL,
    negative: &[libc::EAGAIN, libc::EIO],
    puts_receives_off: 32,
    vendor_err: 1,
    opcode_in_errors: false,
    lowest_qpn: true,
    gids: 256,
    roce_cap_flags: 0,
    counters: [None; 4],
    ..PROVIDER
};

/// providers/erdma and drivers/infiniband/hw/erdma:
/// - erdma_verbs.c (kernel) `erdma_qp_validate_cap`: both queues need an entry. No SRQ, no DMA-BUF.
/// - erdma_verbs.c `erdma_push_one_sqe`, `push_recv_wqe`: six SGEs in a send, one in a receive.
/// - erdma_verbs.c `erdma_post_send`, `erdma_post_recv`: errnos are negative; EIO in ERR.
/// - erdma_verbs.c `map_cqe_status`: keys and addresses are `LOC_ACCESS_ERR` in sends and
///   `REM_ACCESS_ERR` in receives; it has no `RNR_RETRY_EXC_ERR`, `REM_OP_ERR` or `REM_INV_REQ_ERR`.
/// - erdma_eq.c (kernel): each event of a queue pair is `QP_FATAL`.
pub(super) const ERDMA: Profile = Profile {
    quirks: Quirks::Erdma,
    name: "erdma",
    max_send_sge: 6,
    max_recv_sge: 1,
    max_inline: 96,
    srqs: Srqs::Missing,
    dmabuf: false,
    refuses: |cap| no_sends(cap).or((cap.max_recv_wr == 0).then_some("max_recv_wr is 0")),
    too_much_inline: libc::EINVAL,
    send_before_rts: None,
    post_in_err: Some(libc::EIO),
    negative: ALL,
    send_statuses: &[
        (wc::IBV_WC_LOC_PROT_ERR, wc::IBV_WC_LOC_ACCESS_ERR),
        (wc::IBV_WC_RNR_RETRY_EXC_ERR, wc::IBV_WC_GENERAL_ERR),
        (wc::IBV_WC_REM_OP_ERR, wc::IBV_WC_GENERAL_ERR),
        (wc::IBV_WC_REM_INV_REQ_ERR, wc::IBV_WC_GENERAL_ERR),
    ],
    recv_statuses: &[(wc::IBV_WC_LOC_PROT_ERR, wc::IBV_WC_REM_ACCESS_ERR)],
    vendor_err: 0x20,
    event_after_retries: Some(QP_FATAL),
    only_qp_event: Some(QP_FATAL),
    // CM and DEVICE_MGMT.
    roce_cap_flags: 1 << 16 | 1 << 19,
    counters: [None; 4],
    ..PROVIDER
};

/// providers/hns and drivers/infiniband/hw/hns:
/// - hns_roce_u_verbs.c `verify_qp_create_cap`, `hns_roce_set_qp_params`, `verify_srq_create_attr`:
///   queues have 64 entries at least, in powers of two, and none is without SGEs.
/// - hns_roce_main.c (kernel) `hns_roce_query_port`: 10 Gb/s for any link.
/// - hns_roce_hw_v2.c (kernel): counters of packets alone, and none on HIP08. No DMA-BUF.
pub(super) const HNS: Profile = Profile {
    quirks: Quirks::Hns,
    name: "hns",
    dmabuf: false,
    refuses: |cap| {
        let bare = cap.max_recv_wr > 0 && cap.max_recv_sge == 0;
        no_sends(cap).or(bare.then_some("max_recv_sge is 0 although max_recv_wr is not"))
    },
    grants: |cap| {
        cap.max_send_wr = power(cap.max_send_wr).max(64);
        cap.max_inline_data = power(cap.max_inline_data);
        if cap.max_recv_wr > 0 {
            cap.max_recv_wr = power(cap.max_recv_wr).max(64);
        }
    },
    grants_srq_wr: u32::next_power_of_two,
    srq_needs_sge: true,
    too_much_inline: libc::EINVAL,
    vendor_err: 1,
    // CM, REINIT, VENDOR_CLASS and BOOT_MGMT.
    roce_cap_flags: 1 << 16 | 1 << 18 | 1 << 20 | 1 << 23,
    fixed_speed: Some((1, 2)),
    counters: [None; 4],
    ..PROVIDER
};

/// providers/rxe/rxe.c and drivers/infiniband/sw/rxe:
/// - `rxe_post_send`: the doorbell is a system call, whose errno replaces that of the work request and
///   leaves `bad_wr` NULL.
/// - rxe_param.h (kernel): 400 bytes of inline data in older kernels, messages of 8 MiB, 1024 GIDs. No
///   DMA-BUF.
/// - `rxe_poll_cq` copies what the kernel wrote, also for a queue pair that was destroyed.
/// - rxe_hw_counters.c (kernel): one counter of all retries.
/// - rxe_resp.c (kernel): a completion that finds no room ends the queue pair without an answer, and a
///   failed SRQ counts as empty. rxe_recv.c drops requests for a queue pair in ERR.
pub(super) const RXE: Profile = Profile {
    quirks: Quirks::Rxe,
    name: "rxe",
    max_srq_sge: 27,
    max_inline: 400,
    max_msg: 8 << 20,
    dmabuf: false,
    too_much_inline: libc::EINVAL,
    send_before_rts: None,
    hides_bad_wr: true,
    keeps_completions: true,
    answers: Answers { cq: Answer::Silence, srq: Answer::NotReady, ..STRICT.answers },
    gids: 1024,
    // ROCE_UDP_ENCAP alone.
    roce_cap_flags: 1 << 23,
    counters: [None, Some("completer_retry_err"), Some("rcvd_seq_err"), Some("rcvd_rnr_err")],
    ..PROVIDER
};

/// providers/siw/siw.c and drivers/infiniband/sw/siw:
/// - `map_send_opcode` has no immediates, and `push_recv_wqe` no receive without an SGE.
/// - errnos of posts are negative; siw_verbs.c (kernel): a send queue needs an entry.
/// - siw-abi.h: 16 bytes of inline data for each SGE but one; six SGEs are assumed, not read.
/// - siw_qp.c (kernel): the lowest free number.
/// - `copy_cqe`, `map_cqe_status`: ten statuses, and no `vendor_err`.
pub(super) const SIW: Profile = Profile {
    quirks: Quirks::Siw,
    name: "siw",
    max_send_sge: 6,
    max_recv_sge: 6,
    max_srq_sge: 6,
    max_inline: 80,
    dmabuf: false,
    iwarp: true,
    immediates: false,
    refuses: no_sends,
    grants: |cap| {
        (cap.max_send_wr, cap.max_recv_wr) = (power(cap.max_send_wr), power(cap.max_recv_wr));
    },
    too_much_inline: libc::EINVAL,
    send_before_rts: None,
    negative: ALL,
    receives_need_sge: true,
    send_statuses: &[
        (wc::IBV_WC_RETRY_EXC_ERR, wc::IBV_WC_GENERAL_ERR),
        (wc::IBV_WC_REM_OP_ERR, wc::IBV_WC_GENERAL_ERR),
    ],
    keeps_completions: true,
    lowest_qpn: true,
    counters: [None; 4],
    ..PROVIDER
};
