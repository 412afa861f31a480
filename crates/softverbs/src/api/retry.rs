//! Work requests that find no receive or get no answer: timeouts and retries, as the attributes of
//! the QP require.

use std::sync::atomic::Ordering::Relaxed;

use rdma_sys::ibv_wc_status as wc;

use crate::api::qp::Qp;
use crate::api::send::on_counters;
use crate::clock;
use crate::config::Capability;
use crate::log::fault;
use crate::process::Process;
use crate::process::counters::Live;
use crate::process::hw_counters::{self, Counter};
use crate::wire::link;
use crate::wire::reach::own_device;
use crate::wire::send_queue::{Block, Connection, SendQueue, Wqe};

/// Minimum interval between retries of polling threads, in nanoseconds.
const PROBE: u64 = 100_000;
/// Retry interval for a peer that does not answer if the QP has no timeout, in nanoseconds.
const NO_TIMEOUT_RETRY: u64 = 100_000_000;
/// Time to the first adaptive retransmission of a packet without an answer, in nanoseconds.
const FIRST_RESEND: u64 = 4_000_000;

impl Qp {
    /// Handles a responder without a receive. Returns `true` if the head is complete (failed).
    pub(super) fn not_ready(&self, process: &Process, sq: &mut SendQueue, wqe: &Wqe, wait: u64) -> bool {
        let now = clock::now();
        let left = match sq.block {
            Some(block) if block.rnr && block.until > now => return false,
            Some(block) if block.rnr => block.left,
            _ => u32::from(sq.connection.rnr_retry),
        };
        on_counters(self, |live| Live::add(&live.rnr, 1));
        hw_counters::count(process, self, Counter::ReceiverNotReady);
        if left == 0 {
            fault!(
                "QP {:#x}, wr_id {:#x}: the peer's QP {:#x} has no receive posted, after {} retries",
                self.qpn,
                wqe.wr_id,
                sq.connection.dest_qpn,
                sq.connection.rnr_retry
            );
            self.failed(
                process,
                sq,
                wqe,
                self.context.device.profile.failed_send(wc::IBV_WC_RNR_RETRY_EXC_ERR),
            );
            return true;
        }
        let left = if left == 7 { 7 } else { left - 1 };
        sq.block = Some(Block { rnr: true, left, until: now + wait, since: now, resend_at: u64::MAX });
        self.probe_at.store(0, Relaxed);
        false
    }

    /// Lets a READ wait for data. That costs no retry.
    pub(super) fn postpone(&self, sq: &mut SendQueue, wait: u64) {
        let now = clock::now();
        let left = match sq.block {
            Some(block) if block.rnr => block.left,
            _ => u32::from(sq.connection.rnr_retry),
        };
        sq.block = Some(Block { rnr: true, left, until: now + wait, since: now, resend_at: u64::MAX });
        self.probe_at.store(now + PROBE, Relaxed);
    }

    /// Handles a peer that does not answer. Returns `true` if the head is complete (failed).
    pub(super) fn no_answer(&self, process: &Process, sq: &mut SendQueue, wqe: &Wqe, why: &str) -> bool {
        let now = clock::now();
        self.probe_at.store(now + PROBE, Relaxed);
        let Connection { timeout, retry, dest_qpn, .. } = sq.connection;
        let wait = if timeout == 0 { NO_TIMEOUT_RETRY } else { 4096_u64 << timeout };
        let endless = timeout == 0 || self.waits_for_link(process);
        let left = match sq.block {
            Some(block) if !block.rnr && block.until > now => return false,
            Some(block) if !block.rnr && endless => block.left,
            Some(block) if !block.rnr && block.left == 0 => {
                hw_counters::count(process, self, Counter::AckTimeouts);
                fault!(
                    "QP {:#x}, wr_id {:#x}: no answer from QP {dest_qpn:#x}: {why}; timeout {timeout} ({} us), {retry} retries",
                    self.qpn,
                    wqe.wr_id,
                    wait / 1000
                );
                self.failed(
                    process,
                    sq,
                    wqe,
                    self.context.device.profile.failed_send(wc::IBV_WC_RETRY_EXC_ERR),
                );
                return true;
            }
            Some(block) if !block.rnr => {
                hw_counters::count(process, self, Counter::AckTimeouts);
                block.left - 1
            }
            _ => u32::from(retry),
        };
        let begun = sq.block.filter(|block| !block.rnr).map(|block| (block.since, block.resend_at));
        let (since, resend_at) = begun.unwrap_or((now, now + FIRST_RESEND));
        sq.block = Some(Block { rnr: false, left, until: now + wait, since, resend_at });
        false
    }

    /// Returns whether the link is down and the device retries nothing until it is up.
    fn waits_for_link(&self, process: &Process) -> bool {
        let waits = self.context.device.spec.without.contains(&Capability::Retries);
        waits && own_device(process, self).is_some_and(|device| link::is_down(&process.fabric, device))
    }

    /// Counts the retransmissions of a head without an answer that an adapter makes before the
    /// timeout, at doubling intervals.
    pub(super) fn resend(&self, process: &Process, sq: &mut SendQueue, now: u64) {
        if let Some(block) = sq.block.as_mut().filter(|block| block.resend_at <= now) {
            block.resend_at = now + (now - block.since);
            hw_counters::count(process, self, Counter::AdaptiveRetransmissions);
        }
    }
}
