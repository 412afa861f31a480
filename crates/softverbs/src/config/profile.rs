//! What a provider of rdma-core and its kernel driver do within the freedom of the verbs
//! specification, and against it.
//!
//! A profile is a row of data. Each field is read in one place. [`STRICT`] is a device that does what
//! the specification says; `providers` has the rows.

use rdma_sys as sys;
use rdma_sys::ibv_wc_status as wc;

use super::{Capability, DeviceSpec, Quirks};
use crate::abi::border::Errno;
use crate::fault::CompletionStatus;
use crate::limits::{MAX_GIDS, MAX_INLINE, MAX_MSG, MAX_SGE, MAX_SRQ_SGE};

/// The names of the counters in `hw_counters`, in the order of `process::hw_counters::Counter`;
/// `None` where the driver has no such counter.
pub(crate) type CounterNames = [Option<&'static str>; 4];

/// Shared receive queues of an adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Srqs {
    Works,
    /// `max_srq` is 0, and `ibv_create_srq` fails with EOPNOTSUPP.
    Missing,
    /// As `Missing`, but `max_srq_wr` is reported all the same.
    MissingWithDepth,
}

/// Enhanced connection establishment of a provider.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ece {
    /// The calls fail with EOPNOTSUPP.
    Missing,
    /// As the device's description says.
    Described,
    /// A device whose description has no options has these.
    Always(u32),
}

/// What a requester gets from a responder that cannot carry its request out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// A NAK: remote operational error.
    Nak,
    /// Nothing.
    Silence,
    /// A NAK: receiver not ready. The responder's queue pair stays as it was.
    NotReady,
}

/// The answers of a queue pair, by what of it has failed.
pub(crate) struct Answers {
    /// The queue pair itself.
    pub(crate) qp: Answer,
    /// The completion queue of its receives.
    pub(crate) cq: Answer,
    /// Its shared receive queue, if the request needs a receive.
    pub(crate) srq: Answer,
}

/// See the module.
pub(crate) struct Profile {
    pub(crate) quirks: Quirks,
    pub(crate) name: &'static str,

    // Limits of the device. The description of a device can lower them further.
    pub(crate) max_send_sge: u32,
    pub(crate) max_recv_sge: u32,
    pub(crate) max_srq_sge: u32,
    pub(crate) max_inline: u32,
    pub(crate) max_msg: u32,

    // Features.
    pub(crate) srqs: Srqs,
    pub(crate) dmabuf: bool,
    pub(crate) ece: Ece,
    /// The device reports iWARP.
    pub(crate) iwarp: bool,
    pub(crate) immediates: bool,

    // Creation of queues.
    /// Why `ibv_create_qp` refuses capabilities that are within the limits.
    pub(crate) refuses: fn(&sys::ibv_qp_cap) -> Option<&'static str>,
    /// How many of the adapter's entries for a send queue (`limits::MAX_QP_WR`) a work request takes.
    pub(crate) entries_per_send: fn(&sys::ibv_qp_cap) -> u32,
    /// The capabilities that the queue pair really has.
    pub(crate) grants: fn(&mut sys::ibv_qp_cap),
    /// `ibv_create_qp` returns NULL and leaves `errno` alone.
    pub(crate) fails_without_errno: bool,
    /// `max_srq_wr` is more than an SRQ can have, by this number.
    pub(crate) srq_wr_short: u32,
    /// The depth that an SRQ really has.
    pub(crate) grants_srq_wr: fn(u32) -> u32,
    /// An SRQ without SGEs is refused.
    pub(crate) srq_needs_sge: bool,

    // Posts.
    /// For more SGEs in a send than the queue pair has.
    pub(crate) too_many_send_sges: i32,
    /// For more SGEs in a receive than the queue has.
    pub(crate) too_many_recv_sges: i32,
    /// For more inline data than the queue pair has.
    pub(crate) too_much_inline: i32,
    /// For a send before RTS; `None`: it waits in the queue.
    pub(crate) send_before_rts: Option<i32>,
    /// For any post in ERR; `None`: it is flushed.
    pub(crate) post_in_err: Option<i32>,
    /// The errnos that posts return with a negative sign.
    pub(crate) negative: &'static [i32],
    /// `ibv_post_send` may fail without setting `bad_wr`.
    pub(crate) hides_bad_wr: bool,
    /// Every so many calls, a receive is not posted, with EAGAIN; 0 is never.
    pub(crate) puts_receives_off: u32,
    /// WRITEs without an immediate, READs and receives use `sg_list[0]` even if `num_sge` is 0, unless
    /// `sg_list` is null or the data inline.
    pub(crate) reads_first_sge: bool,
    /// A receive without an SGE is refused.
    pub(crate) receives_need_sge: bool,
    /// A receive without an SGE in an SRQ is malformed: it fails when a message consumes it.
    pub(crate) srq_receives_need_sge: bool,

    // Completions.
    /// Statuses of failed sends that the provider reports as others.
    pub(crate) send_statuses: &'static [(u32, u32)],
    /// The same for receives.
    pub(crate) recv_statuses: &'static [(u32, u32)],
    /// `vendor_err` of failures.
    pub(crate) vendor_err: u32,
    /// `vendor_err` of flushed work requests.
    pub(crate) flush_vendor_err: u32,
    /// Failed and flushed completions have an opcode. The specification leaves it undefined.
    pub(crate) opcode_in_errors: bool,
    /// The completions of a queue pair stay in the CQ when it is destroyed or reset.
    pub(crate) keeps_completions: bool,
    /// Completions that were in a CQ when it failed, or when the device was removed, can be polled.
    pub(crate) polls_after_failure: bool,

    // Queue pairs.
    /// A new queue pair gets the lowest free number. Otherwise a number comes back late.
    pub(crate) lowest_qpn: bool,
    /// What a peer sees of a failed object.
    pub(crate) answers: Answers,
    /// A device that fails raises `QP_FATAL` for each of its queue pairs, and `DEVICE_FATAL` only when
    /// the kernel takes it away (core/uverbs_std_types_async_fd.c), which is here when it returns.
    pub(crate) fatal_by_queue_pair: bool,
    /// The event of a queue pair whose retries are over.
    pub(crate) event_after_retries: Option<u32>,
    /// The event that the driver raises in place of all events of a queue pair's failure.
    pub(crate) only_qp_event: Option<u32>,

    // Port.
    /// `gid_tbl_len`, the places of a GID table. Those behind the addresses are empty.
    pub(crate) gids: usize,
    /// LID of a RoCE port.
    pub(crate) roce_lid: u16,
    /// `port_cap_flags` of a RoCE port.
    pub(crate) roce_cap_flags: u32,
    /// `active_speed` and `active_width` for any rate.
    pub(crate) fixed_speed: Option<(u32, u8)>,
    pub(crate) counters: CounterNames,
}

/// What mlx5 calls its counters, and those who follow it.
pub(crate) const MLX5_COUNTERS: CounterNames = [
    Some("roce_adp_retrans"),
    Some("local_ack_timeout_err"),
    Some("packet_seq_err"),
    Some("rnr_nak_retry_err"),
];
/// `IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS`
const ROCE_CAPS: u32 = 1 << 16 | 1 << 26;

/// The specification, with the most generous limits.
pub(crate) const STRICT: Profile = Profile {
    quirks: Quirks::None,
    name: "none",
    max_send_sge: MAX_SGE,
    max_recv_sge: MAX_SGE,
    max_srq_sge: MAX_SRQ_SGE,
    max_inline: MAX_INLINE,
    max_msg: MAX_MSG,
    srqs: Srqs::Works,
    dmabuf: true,
    ece: Ece::Described,
    iwarp: false,
    immediates: true,
    refuses: |_| None,
    entries_per_send: |_| 1,
    grants: |_| {},
    fails_without_errno: false,
    srq_wr_short: 0,
    grants_srq_wr: |depth| depth,
    srq_needs_sge: false,
    too_many_send_sges: libc::EINVAL,
    too_many_recv_sges: libc::EINVAL,
    too_much_inline: libc::ENOMEM,
    send_before_rts: Some(libc::EINVAL),
    post_in_err: None,
    negative: &[],
    hides_bad_wr: false,
    puts_receives_off: 0,
    reads_first_sge: false,
    receives_need_sge: false,
    srq_receives_need_sge: false,
    send_statuses: &[],
    recv_statuses: &[],
    vendor_err: 0,
    flush_vendor_err: 0,
    opcode_in_errors: true,
    keeps_completions: false,
    polls_after_failure: false,
    lowest_qpn: false,
    answers: Answers { qp: Answer::Silence, cq: Answer::Nak, srq: Answer::Nak },
    fatal_by_queue_pair: false,
    event_after_retries: None,
    only_qp_event: None,
    gids: MAX_GIDS,
    roce_lid: 0,
    roce_cap_flags: ROCE_CAPS,
    fixed_speed: None,
    counters: MLX5_COUNTERS,
};

fn mapped(statuses: &[(u32, u32)], status: u32) -> u32 {
    statuses.iter().find(|(from, _)| *from == status).map_or(status, |(_, to)| *to)
}

impl Profile {
    /// Returns the device that is described, with the limits and features of the adapter.
    pub(crate) fn limit(&self, mut spec: DeviceSpec) -> DeviceSpec {
        spec.max_inline_data = spec.max_inline_data.min(self.max_inline);
        spec.max_msg = spec.max_msg.min(self.max_msg);
        spec.dmabuf &= self.dmabuf;
        spec.ece = match self.ece {
            Ece::Missing => None,
            Ece::Described => spec.ece,
            Ece::Always(options) => spec.ece.or(Some(options)),
        };
        if self.srqs != Srqs::Works {
            spec.without.push(Capability::Srq);
        }
        if self.iwarp {
            spec.without.push(Capability::IbTransport);
        }
        spec
    }

    /// Returns the errno of a post with the sign that the provider gives it.
    pub(crate) fn post_errno(&self, errno: Errno) -> Errno {
        if self.negative.contains(&errno.0) { Errno(-errno.0) } else { errno }
    }

    /// Returns how a failed send completes.
    pub(crate) fn failed_send(&self, status: u32) -> CompletionStatus {
        CompletionStatus { status: mapped(self.send_statuses, status), vendor_err: self.vendor_err }
    }

    /// Returns how a failed receive completes.
    pub(crate) fn failed_recv(&self, status: u32) -> CompletionStatus {
        CompletionStatus { status: mapped(self.recv_statuses, status), vendor_err: self.vendor_err }
    }

    /// Returns how a flushed work request completes.
    pub(crate) fn flushed(&self) -> CompletionStatus {
        CompletionStatus { status: wc::IBV_WC_WR_FLUSH_ERR, vendor_err: self.flush_vendor_err }
    }
}
