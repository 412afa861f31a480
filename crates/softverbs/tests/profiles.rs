//! What each profile of a provider limits, grants and refuses, as programs see it.

use std::ptr::null_mut;

use crate::common::*;
use crate::peer::own_process;
use softverbs::{Direction, Fault};

const NAMES: [&str; 9] = ["none", "mlx5", "bnxt_re", "irdma", "ionic", "erdma", "hns", "rxe", "siw"];
const RTS: u32 = sys::ibv_qp_state::IBV_QPS_RTS;
const ERR: u32 = sys::ibv_qp_state::IBV_QPS_ERR;
const FLUSHED: u32 = status::IBV_WC_WR_FLUSH_ERR;
const QP_FATAL: Option<u32> = Some(1);
const QP_ACCESS_ERR: Option<u32> = Some(3);
const DEVICE_FATAL: Option<u32> = Some(8);
const EINVAL: i32 = libc::EINVAL;
const ENOMEM: i32 = libc::ENOMEM;
const EIO: i32 = libc::EIO;
const UNSUPPORTED: i32 = libc::EOPNOTSUPP;

/// Gives this process a device of each profile, in the order of `NAMES`, named as its profile.
fn devices() {
    let device = |(i, name)| format!("{name}:addr=10.0.{i}.1/24,quirks={name},dmabuf=on,ece=0x7");
    let list: Vec<_> = NAMES.iter().enumerate().map(device).collect();
    softverbs::configure(softverbs::DeviceSpec::parse_list(&list.join(";")).expect("a good list"))
        .expect("before first use");
}

/// Runs `probe` on the device of each profile, and compares what it returns with the rows.
fn each<T: std::fmt::Debug + PartialEq>(probe: impl Fn(usize) -> T, rows: [(&str, T); NAMES.len()]) {
    for (device, (name, expected)) in rows.into_iter().enumerate() {
        assert_eq!(name, NAMES[device]);
        assert_eq!(probe(device), expected, "{name}");
    }
}

/// Opts that every device grants.
fn on(device: usize) -> Opts {
    Opts { device, sge: 1, inline: 0, ..Opts::default() }
}

/// The result of a call that returns a pointer: 0, or its errno.
fn made<T>(object: *mut T) -> i32 {
    if object.is_null() { errno() } else { 0 }
}

/// The exported functions that rdma-sys does not declare.
mod newer {
    use super::sys;

    unsafe extern "C" {
        pub(super) fn ibv_query_ece(qp: *mut sys::ibv_qp, ece: *mut [u32; 3]) -> i32;
    }
}

//= softverbs-model.md: each profile has the limits and features of its provider
#[test]
fn each_profile_has_its_own_limits_and_features() {
    own_process!();
    devices();
    // Largest SGE list, max_srq, max_srq_wr; errno of an SRQ of max_srq_wr, of a DMA-BUF, of ECE; LID.
    let probe = |device: usize| {
        // SAFETY: plain libibverbs use; zero is a value of every attribute.
        unsafe {
            let end = End::new(on(device));
            let mut attr: sys::ibv_device_attr = std::mem::zeroed();
            assert_eq!(sys::ibv_query_device(end.ctx, &raw mut attr), 0);
            let mut port: sys::ibv_port_attr = std::mem::zeroed();
            assert_eq!(sys::ibv_query_port(end.ctx, 1, (&raw mut port).cast()), 0);
            let mut init: sys::ibv_srq_init_attr = std::mem::zeroed();
            (init.attr.max_wr, init.attr.max_sge) = (attr.max_srq_wr.cast_unsigned(), 1);
            let srq = made(sys::ibv_create_srq(end.pd, &raw mut init));
            let file = libc::memfd_create(c"profiles".as_ptr(), 0);
            assert_eq!(libc::ftruncate(file, 4096), 0);
            let dmabuf = made(sys::ibv_reg_dmabuf_mr(end.pd, 0, 4096, 0, file, ALL_ACCESS));
            let mut options = [0; 3];
            let ece = newer::ibv_query_ece(end.qp, &raw mut options);
            let has = [attr.max_srq > 0, attr.max_srq_wr > 0];
            (attr.max_sge, has, [srq, dmabuf, ece], port.lid)
        }
    };
    let (all, none) = ([true, true], [false, false]);
    each(
        probe,
        [
            ("none", (32, all, [0, 0, 0], 0)),
            ("mlx5", (32, all, [0, 0, 0], 0)),
            ("bnxt_re", (6, all, [EINVAL, 0, UNSUPPORTED], 0)),
            ("irdma", (13, [false, true], [UNSUPPORTED, 0, UNSUPPORTED], 1)),
            ("ionic", (16, none, [EINVAL, 0, UNSUPPORTED], 0)),
            ("erdma", (6, none, [EINVAL, UNSUPPORTED, UNSUPPORTED], 0)),
            ("hns", (32, all, [0, UNSUPPORTED, UNSUPPORTED], 0)),
            ("rxe", (32, all, [0, UNSUPPORTED, UNSUPPORTED], 0)),
            ("siw", (6, all, [0, UNSUPPORTED, UNSUPPORTED], 0)),
        ],
    );
}

/// Creates a queue pair with these sends, inline data and receives. Returns what it has of the first
/// two, or the errno.
fn granted(device: usize, sends: u32, inline: u32, receives: u32) -> Result<(u32, u32), i32> {
    let end = End::new(on(device));
    // SAFETY: plain libibverbs use; zero is a value of every attribute.
    unsafe {
        let mut init: sys::ibv_qp_init_attr = std::mem::zeroed();
        (init.send_cq, init.recv_cq, init.qp_type) = (end.scq, end.rcq, sys::ibv_qp_type::IBV_QPT_RC);
        (init.cap.max_send_wr, init.cap.max_send_sge, init.cap.max_inline_data) = (sends, 1, inline);
        (init.cap.max_recv_wr, init.cap.max_recv_sge) = (receives, u32::from(receives > 0));
        *libc::__errno_location() = 0;
        let qp = sys::ibv_create_qp(end.pd, &raw mut init);
        if qp.is_null() {
            return Err(errno());
        }
        assert_eq!(sys::ibv_destroy_qp(qp), 0);
        Ok((init.cap.max_send_wr, init.cap.max_inline_data))
    }
}

//= softverbs-model.md: each profile grants the capabilities of queue pairs as its provider does
#[test]
fn each_profile_grants_its_own_capabilities() {
    own_process!();
    devices();
    let asked = [(256, 0, 1), (256, 64, 1), (256, 1024, 1), (16384, 64, 1), (0, 0, 1), (1, 0, 0)];
    let probe = |device| asked.map(|(sends, inline, receives)| granted(device, sends, inline, receives));
    let invalid = Err(EINVAL);
    let exactly = |inline| [Ok((256, 0)), Ok((256, 64)), inline, Ok((16384, 64)), Ok((0, 0)), Ok((1, 0))];
    each(
        probe,
        [
            ("none", exactly(Ok((256, 1024)))),
            ("mlx5", [Ok((256, 60)), Ok((409, 124)), invalid, Ok((26214, 124)), Ok((0, 60)), Ok((1, 60))]),
            ("bnxt_re", exactly(Err(0))),
            ("irdma", [Ok((766, 0)), Ok((447, 64)), invalid, invalid, Ok((0, 0)), Ok((254, 0))]),
            (
                "ionic",
                [Ok((511, 32)), Ok((511, 96)), Ok((511, 1024)), Ok((32767, 96)), Ok((63, 32)), Ok((63, 32))],
            ),
            ("erdma", [Ok((256, 0)), Ok((256, 64)), invalid, Ok((16384, 64)), invalid, invalid]),
            ("hns", [Ok((256, 0)), Ok((256, 64)), Ok((256, 1024)), Ok((16384, 64)), invalid, Ok((64, 0))]),
            ("rxe", [Ok((256, 0)), Ok((256, 64)), invalid, Ok((16384, 64)), Ok((0, 0)), Ok((1, 0))]),
            ("siw", [Ok((256, 0)), Ok((256, 64)), invalid, Ok((16384, 64)), invalid, Ok((1, 0))]),
        ],
    );
}

/// Posts a WRITE to the end itself. Returns the errno, and whether `bad_wr` was set.
fn post(end: &End, sges: usize, len: usize, flags: u32) -> (i32, bool) {
    let mut list = vec![end.sge(0, len); sges];
    let mut wr = Send::new(op::IBV_WR_RDMA_WRITE, &mut list).to(&end.address(), 0).flags(flags).wr();
    let mut bad = null_mut();
    // SAFETY: a living QP and one work request.
    let rc = unsafe { sys::ibv_post_send(end.qp, &raw mut wr, &raw mut bad) };
    (rc, !bad.is_null())
}

//= softverbs-model.md: each profile refuses posts as its provider does
#[test]
fn each_profile_refuses_posts_in_its_own_way() {
    own_process!();
    devices();
    // Errnos: a send before RTS, one with too many SGEs, too much inline data, into a full queue, in
    // ERR; a receive in ERR. Last, whether a refused send sets bad_wr.
    let probe = |device: usize| {
        let end = End::new(on(device));
        let early = post(&end, 1, 8, SIGNALED).0;
        end.set_state(sys::ibv_qp_state::IBV_QPS_RESET);
        end.connect(&end.address());
        let (many, sets_bad) = post(&end, 17, 8, SIGNALED);
        let inline = post(&end, 1, 2048, SIGNALED | INLINE).0;
        let full = (0..1 << 10).map(|_| post(&end, 1, 8, 0).0).find(|rc| *rc != 0).expect("a full queue");
        assert_eq!(end.set_state(ERR), 0);
        while poll(end.scq).is_some() {}
        let late = End::looped(on(device));
        assert_eq!(late.set_state(ERR), 0);
        ([early, many, inline, full, post(&late, 1, 8, SIGNALED).0, late.recv(1, 0, 8)], sets_bad)
    };
    each(
        probe,
        [
            ("none", ([EINVAL, EINVAL, ENOMEM, ENOMEM, 0, 0], true)),
            ("mlx5", ([ENOMEM, ENOMEM, ENOMEM, ENOMEM, 0, 0], true)),
            ("bnxt_re", ([0, ENOMEM, ENOMEM, ENOMEM, 0, 0], true)),
            ("irdma", ([0, EINVAL, EINVAL, ENOMEM, 0, 0], true)),
            ("ionic", ([EINVAL, EINVAL, EINVAL, ENOMEM, 0, 0], true)),
            ("erdma", ([0, -EINVAL, -EINVAL, -ENOMEM, -EIO, -EIO], true)),
            ("hns", ([EINVAL, EINVAL, EINVAL, ENOMEM, 0, 0], true)),
            ("rxe", ([0, EINVAL, EINVAL, ENOMEM, 0, 0], false)),
            ("siw", ([0, -EINVAL, -EINVAL, -ENOMEM, 0, 0], true)),
        ],
    );
}

//= softverbs-model.md: each profile completes failed work requests as its provider does
#[test]
fn each_profile_completes_failures_in_its_own_way() {
    own_process!();
    devices();
    // Status of a WRITE from memory that is not registered, whether it has a vendor error, whether the
    // WRITE flushed behind it has an opcode (that of a WRITE is 1) and a vendor error; whether a
    // completion outlives its queue pair.
    let probe = |device: usize| {
        let end = End::looped(on(device));
        let mut bad = [sys::ibv_sge { lkey: 0, ..end.sge(0, 8) }];
        assert_eq!(end.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut bad).to(&end.address(), 8)), 0);
        let failed = end.poll_send();
        let next = End::looped(on(device));
        softverbs::inject(NAMES[device], Fault::Silence(Direction::Both)).expect("a device");
        assert_eq!(post(&next, 1, 8, SIGNALED), (0, false));
        assert_eq!(next.set_state(ERR), 0);
        let flushed = next.poll_send();
        assert_eq!(flushed.status, FLUSHED);
        softverbs::heal(NAMES[device]).expect("a device");
        let last = End::looped(on(device));
        assert_eq!(post(&last, 1, 8, SIGNALED), (0, false));
        assert_eq!(last.set_state(sys::ibv_qp_state::IBV_QPS_RESET), 0);
        let stays = poll(last.scq).is_some();
        let vendor = |wc: &sys::ibv_wc| wc.vendor_err != 0;
        (failed.status, vendor(&failed), flushed.opcode == 1, vendor(&flushed), stays)
    };
    let (protection, access) = (status::IBV_WC_LOC_PROT_ERR, status::IBV_WC_LOC_ACCESS_ERR);
    each(
        probe,
        [
            ("none", (protection, false, true, false, false)),
            ("mlx5", (protection, true, true, true, false)),
            ("bnxt_re", (protection, true, true, false, false)),
            ("irdma", (protection, true, true, false, false)),
            ("ionic", (protection, true, false, false, false)),
            ("erdma", (access, true, true, false, false)),
            ("hns", (protection, true, true, false, false)),
            ("rxe", (protection, false, true, false, true)),
            ("siw", (protection, false, true, false, true)),
        ],
    );
}

//= softverbs-model.md: each profile ends queue pairs and devices as its provider does
#[test]
fn each_profile_ends_queue_pairs_and_devices_in_its_own_way() {
    own_process!();
    devices();
    // The status after all retries and the event of its queue pair; whether a new queue pair has the
    // number of one just destroyed; whether a completion can be polled after the removal of the device.
    let probe = |device: usize| {
        let end = End::looped(Opts { timeout: 1, retry: 0, ..on(device) });
        softverbs::inject(NAMES[device], Fault::Silence(Direction::Both)).expect("a device");
        assert_eq!(post(&end, 1, 8, SIGNALED), (0, false));
        let failed = end.poll_send().status;
        // Where there is one, it may come after the completion.
        let is_raised = matches!(NAMES[device], "bnxt_re" | "irdma" | "erdma");
        let event = async_event(end.ctx, is_raised);
        softverbs::heal(NAMES[device]).expect("a device");
        let number = || End::new(on(device)).address().qpn;
        let reused = number() == number();
        let next = End::looped(on(device));
        assert_eq!((post(&next, 1, 8, SIGNALED), next.state()), ((0, false), RTS));
        softverbs::inject(NAMES[device], Fault::DeviceFatal).expect("a device");
        let fatal = async_event(next.ctx, true);
        assert_eq!((async_event(next.ctx, false), next.set_state(ERR)), (None, EIO), "one event");
        let polled = poll(next.scq).is_some();
        // A device that is removed is not in the list, which gives the others their numbers.
        softverbs::heal(NAMES[device]).expect("a device");
        let later = if fatal == QP_FATAL { DEVICE_FATAL } else { None };
        assert_eq!(async_event(next.ctx, later.is_some()), later, "the removal");
        (failed, event, reused, fatal, polled)
    };
    let (retry, general) = (status::IBV_WC_RETRY_EXC_ERR, status::IBV_WC_GENERAL_ERR);
    each(
        probe,
        [
            ("none", (retry, None, false, DEVICE_FATAL, false)),
            ("mlx5", (retry, None, false, DEVICE_FATAL, true)),
            ("bnxt_re", (retry, QP_ACCESS_ERR, false, QP_FATAL, true)),
            ("irdma", (retry, QP_FATAL, false, DEVICE_FATAL, true)),
            ("ionic", (retry, None, true, DEVICE_FATAL, true)),
            ("erdma", (retry, QP_FATAL, false, DEVICE_FATAL, true)),
            ("hns", (retry, None, false, DEVICE_FATAL, true)),
            ("rxe", (retry, None, false, DEVICE_FATAL, true)),
            ("siw", (general, None, true, DEVICE_FATAL, true)),
        ],
    );
}

//= softverbs-model.md: each profile has the length of its GID table
#[test]
fn the_places_of_a_gid_table_are_those_of_each_profile() {
    own_process!();
    devices();
    // What the port reports, and how entries behind the addresses are read.
    let probe = |device: usize| {
        let ctx = open(device);
        // SAFETY: an open context and writable structs.
        unsafe {
            let mut attr: sys::ibv_port_attr = std::mem::zeroed();
            assert_eq!(sys::ibv_query_port(ctx, 1, (&raw mut attr).cast()), 0);
            let read = |index| {
                let mut gid: sys::ibv_gid = std::mem::zeroed();
                (sys::ibv_query_gid(ctx, 1, index, &raw mut gid) == 0).then_some(gid.raw)
            };
            let length = attr.gid_tbl_len;
            assert_eq!((read(length - 1), read(length)), (Some([0; 16]), None));
            length
        }
    };
    each(
        probe,
        [
            ("none", 32),
            ("mlx5", 256),
            ("bnxt_re", 256),
            ("irdma", 32),
            ("ionic", 256),
            ("erdma", 32),
            ("hns", 32),
            ("rxe", 1024),
            ("siw", 32),
        ],
    );
}

/// Posts a receive with `num_sge` 0 and a list of one SGE of the last eight bytes. Returns the errno.
fn recv_without_sges(end: &End) -> i32 {
    let mut sge = end.sge(end.buf.len() - 8, 8);
    let mut wr = sys::ibv_recv_wr { wr_id: 1, next: null_mut(), sg_list: &raw mut sge, num_sge: 0 };
    let mut bad = null_mut();
    // SAFETY: a living QP and one work request.
    unsafe { sys::ibv_post_recv(end.qp, &raw mut wr, &raw mut bad) }
}

//= softverbs-model.md: irdma: a receive uses the first SGE even if num_sge is 0
#[test]
fn receives_and_immediates_are_those_of_each_profile() {
    own_process!();
    devices();
    // The errno of a receive without SGEs, and the status of a SEND of eight bytes into it; the errno
    // of a WRITE with an immediate.
    let probe = |device: usize| {
        let end = End::looped(on(device));
        let mut sges = [end.sge(0, 8)];
        let rc = recv_without_sges(&end);
        let sent = (rc == 0).then(|| {
            assert_eq!(end.send(Send::new(op::IBV_WR_SEND, &mut sges)), 0);
            end.poll_send().status
        });
        let next = End::looped(on(device));
        let imm = next.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&next.address(), 8));
        (rc, sent, imm)
    };
    // The receive has no room. erdma has no such status.
    let (invalid, general) = (status::IBV_WC_REM_INV_REQ_ERR, status::IBV_WC_GENERAL_ERR);
    each(
        probe,
        [
            ("none", (0, Some(invalid), 0)),
            ("mlx5", (0, Some(invalid), 0)),
            ("bnxt_re", (0, Some(invalid), 0)),
            ("irdma", (0, Some(0), 0)),
            ("ionic", (0, Some(invalid), 0)),
            ("erdma", (0, Some(general), 0)),
            ("hns", (0, Some(invalid), 0)),
            ("rxe", (0, Some(invalid), 0)),
            ("siw", (-EINVAL, None, -EINVAL)),
        ],
    );
}

//= softverbs-model.md: ionic: now and then a receive is put off with a negative EAGAIN
#[test]
fn ionic_puts_receives_off_and_takes_them_when_posted_again() {
    own_process!();
    devices();
    let end = End::looped(Opts { recv_depth: 64, ..on(4) });
    let posted: Vec<_> = (0..64).map(|id| end.recv(id, 0, 8)).collect();
    let put_off: Vec<_> = (0..64).filter(|i| posted[*i] != 0).map(|i| (i, posted[i])).collect();
    assert_eq!(put_off, [(31, -libc::EAGAIN), (63, -libc::EAGAIN)]);
    assert_eq!((end.recv(31, 0, 8), end.recv(63, 0, 8)), (0, 0));
}
