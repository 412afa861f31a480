//! Devices that differ from the specification as the drivers of adapters do.

use std::process::Stdio;

use crate::common::*;
use crate::peer::own_process;
use crate::peer::{again, here};

const DEVICES: &str = "plain:addr=10.0.0.1/24,quirks=none;bnxt:addr=10.0.0.2/24,quirks=bnxt_re;\
     irdma:addr=10.0.0.3/24,quirks=irdma";
const PLAIN: usize = 0;
const BNXT: usize = 1;
const IRDMA: usize = 2;
const ERR: u32 = sys::ibv_qp_state::IBV_QPS_ERR;
const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
const PLAY: &str = "TEST_PLAY";

fn devices() {
    let devices = softverbs::DeviceSpec::parse_list(DEVICES).expect("a good list");
    softverbs::configure(devices).expect("before first use");
}

fn on(device: usize) -> Opts {
    Opts { device, ..Opts::default() }
}

fn joined(a: &End, b: &End) {
    a.connect(&b.address());
    b.connect(&a.address());
}

/// Posts eight bytes that consume a receive. Returns how both ends complete, and their states.
fn message(a: &End, b: &End, opcode: u32) -> [(u32, u32); 2] {
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(opcode, &mut sges).to(&b.address(), 8)), 0);
    let (sent, received) = (a.poll_send(), b.poll_recv());
    [(sent.status, a.state()), (received.status, b.state())]
}

//= softverbs-model.md: bnxt_re: a receive without an SGE fails in a shared receive queue
#[test]
fn a_receive_without_an_sge_fails_in_a_shared_receive_queue_of_bnxt_re() {
    own_process!();
    devices();
    let failed = [(status::IBV_WC_REM_OP_ERR, ERR), (status::IBV_WC_LOC_QP_OP_ERR, ERR)];
    // The device of the receiver decides.
    for (here, there, expected) in [(PLAIN, BNXT, failed), (BNXT, PLAIN, [(0, RTS); 2])] {
        for opcode in [op::IBV_WR_RDMA_WRITE_WITH_IMM, op::IBV_WR_SEND] {
            let shared = Shared::new(there, 8);
            let (a, b) = (End::new(on(here)), shared.end_with(on(there)));
            joined(&a, &b);
            for (id, len) in [(1, 8), (2, 0), (3, 8)] {
                assert_eq!(b.recv(id, 0, len), 0);
            }
            assert_eq!(message(&a, &b, opcode), [(0, RTS); 2], "a receive with an SGE");
            let mut sges = [a.sge(0, if opcode == op::IBV_WR_SEND { 0 } else { 8 })];
            assert_eq!(a.send(Send::new(opcode, &mut sges).to(&b.address(), 8)), 0);
            let (sent, received) = (a.poll_send(), b.poll_recv());
            assert_eq!([(sent.status, a.state()), (received.status, b.state())], expected, "{opcode}");
            assert_eq!(received.wr_id, 2);
            // The receive behind it stays in the queue.
            assert!(poll(b.rcq).is_none());
        }
    }
}

#[test]
fn a_queue_pairs_own_queue_of_bnxt_re_takes_receives_without_an_sge() {
    own_process!();
    devices();
    let (a, b) = pair(on(PLAIN), on(BNXT));
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(message(&a, &b, op::IBV_WR_RDMA_WRITE_WITH_IMM), [(0, RTS); 2]);
}

/// Posts a work request with `num_sge` 0 and a list of one SGE, or null. Returns the error of the
/// post, or the status.
fn without_sges(a: &End, b: &End, opcode: u32, flags: u32, list: *mut sys::ibv_sge) -> Result<u32, i32> {
    let mut none = [];
    let mut wr = Send::new(opcode, &mut none).to(&b.address(), 64).flags(SIGNALED | flags).wr();
    wr.sg_list = list;
    match a.post(&mut wr) {
        0 => Ok(a.poll_send().status),
        errno => Err(errno),
    }
}

//= softverbs-model.md: irdma: a WRITE without an immediate, or a READ, uses the first SGE even if num_sge is 0
#[test]
fn a_write_without_sges_sends_the_first_one_on_irdma() {
    own_process!();
    devices();
    for (device, bytes) in [(PLAIN, 0), (IRDMA, 8)] {
        let (mut a, mut b) = pair(on(device), on(PLAIN));
        a.buf[..16].fill(7);
        let mut stale = a.sge(0, 8);
        assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, 0, &raw mut stale), Ok(0));
        let written = b.buf[64..80].iter().filter(|byte| **byte == 7).count();
        assert_eq!(written, bytes, "device {device}");
        b.buf[64..72].fill(9);
        assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_READ, 0, &raw mut stale), Ok(0));
        assert_eq!(a.buf[..16].iter().filter(|byte| **byte == 9).count(), bytes, "device {device}");

        // It checks the key.
        stale.lkey = 0;
        let key = if bytes > 0 { status::IBV_WC_LOC_PROT_ERR } else { 0 };
        assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, 0, &raw mut stale), Ok(key));
        assert_eq!(a.state(), if bytes > 0 { ERR } else { RTS });
    }
}

#[test]
fn other_work_requests_of_irdma_have_no_sge() {
    own_process!();
    devices();
    let (mut a, b) = pair(on(IRDMA), on(PLAIN));
    a.buf[..8].fill(7);
    let mut stale = sys::ibv_sge { lkey: 0, ..a.sge(0, 8) };
    assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, 0, std::ptr::null_mut()), Ok(0));
    assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, INLINE, &raw mut stale), Ok(0));
    for (id, opcode) in [(1, op::IBV_WR_RDMA_WRITE_WITH_IMM), (2, op::IBV_WR_SEND)] {
        assert_eq!(b.recv(id, 0, 0), 0);
        assert_eq!(without_sges(&a, &b, opcode, 0, &raw mut stale), Ok(0));
        assert_eq!((b.poll_recv().byte_len, b.buf[64]), (0, 0));
    }
    // Where the driver would crash, the call fails.
    let nowhere = std::ptr::without_provenance_mut(8);
    assert_eq!(without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, 0, nowhere), Err(libc::EFAULT));
    assert_eq!(b.recv(3, 0, 0), 0);
    assert_eq!(without_sges(&a, &b, op::IBV_WR_SEND, 0, nowhere), Ok(0));
}

/// Reports what devices with and without quirks in their description do.
fn report() {
    let mut n = 0;
    // SAFETY: plain libibverbs use.
    let list = unsafe { sys::ibv_get_device_list(&raw mut n) };
    if n == 0 {
        eprintln!("no devices");
        return;
    }
    // SAFETY: a list, freed once.
    unsafe { sys::ibv_free_device_list(list) };
    let statuses = [0, 1].map(|device| {
        let (a, b) = pair(on(device), on(device));
        let mut stale = sys::ibv_sge { lkey: 0, ..a.sge(0, 8) };
        without_sges(&a, &b, op::IBV_WR_RDMA_WRITE, 0, &raw mut stale)
    });
    eprintln!("statuses {statuses:?}");
}

//= softverbs.md: SOFTVERBS_QUIRKS applies to devices that name no quirks
#[test]
fn the_environment_gives_quirks_to_devices_that_name_none() {
    own_process!();
    if std::env::var_os(PLAY).is_some() {
        return report();
    }
    const DEFAULT: &str = "a:addr=10.0.0.1/24;b:addr=10.0.1.1/24,quirks=none";
    const NAMED: &str = "a:addr=10.0.0.1/24,quirks=irdma;b:addr=10.0.1.1/24";
    for (devices, quirks, said) in [
        (DEFAULT, "irdma", "statuses [Ok(4), Ok(0)]"),
        (DEFAULT, "none", "statuses [Ok(0), Ok(0)]"),
        (NAMED, "bnxt_re", "statuses [Ok(4), Ok(0)]"),
        (DEFAULT, "irdna", "no devices"),
        (DEFAULT, "irdna", "SOFTVERBS_QUIRKS=\"irdna\": found \"irdna\", expected one of none, mlx5"),
    ] {
        let mut command = again(here!());
        command.env(PLAY, "1").env("SOFTVERBS_FABRIC", format!("quirks-{}", std::process::id()));
        command.env("SOFTVERBS_DEVICES", devices).env("SOFTVERBS_QUIRKS", quirks);
        let out = command.stdin(Stdio::null()).output().expect("this program can be started");
        let text = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success() && text.contains(said), "{devices} {quirks}: {text}");
    }
}
