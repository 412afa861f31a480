//! What a requester sees when an object of its responder has failed, and what the responder sees.

use crate::common::*;
use crate::faulty::{ERR, arrived, write};
use crate::peer::own_process;

const DEVICES: &str = "here:addr=10.0.0.1/24,quirks=none;none:addr=10.0.0.2/24,quirks=none;\
     mlx5:addr=10.0.0.3/24,quirks=mlx5;rxe:addr=10.0.0.4/24,quirks=rxe";
const CQ_ERR: u32 = 0;
const QP_FATAL: u32 = 1;
const SRQ_ERR: u32 = 14;
const LAST_WQE_REACHED: u32 = 16;
const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
const NAK: u32 = status::IBV_WC_REM_OP_ERR;
const SILENT: u32 = status::IBV_WC_RETRY_EXC_ERR;
const NOT_READY: u32 = status::IBV_WC_RNR_RETRY_EXC_ERR;

fn devices() {
    let devices = softverbs::DeviceSpec::parse_list(DEVICES).expect("a good list");
    softverbs::configure(devices).expect("before first use");
}

/// Retries that end soon.
fn short(device: usize) -> Opts {
    Opts { device, timeout: 8, retry: 1, rnr_retry: 2, ..Opts::default() }
}

/// Connects a requester, with a queue of receives that the responder shares or has alone.
fn ends(device: usize, shared: Option<&Shared>) -> [End; 2] {
    let there = shared.map_or_else(|| End::new(short(device)), |srq| srq.end_with(short(device)));
    let here = End::new(short(0));
    here.connect(&there.address());
    there.connect(&here.address());
    for id in 0..4 {
        assert_eq!(there.recv(id, 0, 8), 0);
    }
    [here, there]
}

/// Sends a message that takes a receive. Returns how it completes.
fn notify(from: &End, to: &End) -> u32 {
    let mut sges = [from.sge(8, 8)];
    assert_eq!(from.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to.address(), 8)), 0);
    from.poll_send().status
}

/// Makes a fault strike at the next work request of an end.
fn strike(end: &mut End, peer: &End, device: &str, fault: &str) {
    softverbs::run_faults(&format!("{device}:{fault}")).expect("valid");
    write(end, peer, 9);
}

/// Returns the events that are there once one of this kind has come, without those of a normal life.
fn events(end: &End, last: u32) -> Vec<u32> {
    let mut seen = Vec::new();
    while seen.last() != Some(&last) {
        seen.push(async_event(end.ctx, true).expect("an event"));
    }
    seen.retain(|kind| !matches!(*kind, 4 | LAST_WQE_REACHED));
    seen
}

//= softverbs-model.md: what a requester sees of a failed queue of its responder
#[test]
fn a_requester_sees_what_of_its_responder_has_failed() {
    own_process!();
    devices();
    for (device, name, fault, seen, raised) in [
        (1, "none", "qp_err", SILENT, &[QP_FATAL][..]),
        (1, "none", "cq_err=recv", NAK, &[CQ_ERR]),
        (3, "rxe", "qp_err", SILENT, &[QP_FATAL]),
        (3, "rxe", "cq_err=recv", SILENT, &[CQ_ERR]),
        (1, "none", "srq_err", NAK, &[SRQ_ERR, QP_FATAL]),
        (3, "rxe", "srq_err", NOT_READY, &[SRQ_ERR]),
    ] {
        for with_srq in [true, false] {
            // A queue pair without a shared receive queue has nothing of it that could fail.
            let (seen, raised) = if fault == "srq_err" && !with_srq { (0, &[][..]) } else { (seen, raised) };
            let shared = with_srq.then(|| Shared::new(device, 16));
            let [here, mut there] = ends(device, shared.as_ref());
            assert_eq!(notify(&here, &there), 0);
            strike(&mut there, &here, name, fault);
            let got = notify(&here, &there);
            assert_eq!(got, seen, "{name}:{fault}, with an SRQ: {with_srq}");
            let last = raised.last().map_or_else(Vec::new, |last| events(&there, *last));
            assert_eq!(last, raised, "{name}:{fault}");
            let works = matches!(got, 0 | NOT_READY);
            assert_eq!(there.state(), if works { RTS } else { ERR }, "{name}:{fault}");
            drop(there);
            shared.into_iter().for_each(Shared::destroy);
        }
    }
}

#[test]
fn a_write_without_a_receive_needs_no_shared_receive_queue() {
    own_process!();
    devices();
    let shared = Shared::new(1, 16);
    let [mut here, mut there] = ends(1, Some(&shared));
    strike(&mut there, &here, "none", "srq_err");
    write(&mut here, &there, 3);
    assert_eq!((here.poll_send().status, arrived(&there)), (0, 3));
    drop(there);
    shared.destroy();
}

//= softverbs-model.md: a failed completion queue of a provider returns what it had
#[test]
fn a_failed_completion_queue_of_a_provider_returns_what_it_had() {
    own_process!();
    devices();
    for (device, name, left) in [(1, "none", 0), (2, "mlx5", 2), (3, "rxe", 2)] {
        let [here, mut there] = ends(device, None);
        assert_eq!([notify(&here, &there), notify(&here, &there)], [0, 0]);
        strike(&mut there, &here, name, "cq_err=recv");
        assert_ne!(notify(&here, &there), 0);
        let arrived: Vec<_> =
            std::iter::from_fn(|| poll(there.rcq)).map(|wc| (wc.wr_id, wc.status)).collect();
        assert_eq!(arrived, [(0, 0), (1, 0)][..left], "{name}");
    }
}

/// The data has arrived, but nobody learns of it.
//= softverbs-model.md: a message whose completion finds no room fails at its sender
#[test]
fn a_message_whose_completion_finds_no_room_fails_at_its_sender() {
    own_process!();
    devices();
    for (device, seen) in [(1, NAK), (3, SILENT)] {
        let there = End::new(Opts { cqe: 1, ..short(device) });
        let here = End::new(short(0));
        here.connect(&there.address());
        there.connect(&here.address());
        assert_eq!([there.recv(1, 0, 8), there.recv(2, 0, 8)], [0, 0]);
        assert_eq!([notify(&here, &there), notify(&here, &there)], [0, seen]);
        assert_eq!(events(&there, QP_FATAL), [CQ_ERR, QP_FATAL]);
        assert_eq!((there.state(), there.poll_recv().wr_id), (ERR, 1));
    }
}
