//! The null data path: `complete_at_once`.

use crate::common::*;
use crate::peer::own_process;

fn complete_at_once() -> Result<(), softverbs::Error> {
    // SAFETY: the work requests of these tests name buffers of `End`s.
    unsafe { softverbs::complete_at_once() }
}

fn pair(opts: impl Fn() -> Opts) -> [End; 2] {
    let (a, b) = (End::new(opts()), End::new(opts()));
    a.connect(&b.address());
    b.connect(&a.address());
    [a, b]
}

fn notify(a: &End, b: &End, (offset, len): (usize, usize), (id, imm): (u64, u32)) -> i32 {
    let (to, mut sges) = (b.address(), [a.sge(offset, len)]);
    let send = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges);
    a.send(send.to(&to, 128).id(id).imm(imm))
}

/// What a completion of a write with an immediate has.
fn arrived(wc: &sys::ibv_wc) -> (u64, u32, u32, u32, u32, u32) {
    // SAFETY: both fields of the union are 32-bit integers.
    let imm = unsafe { wc.imm_data_invalidated_rkey_union.imm_data };
    (wc.wr_id, wc.status, wc.opcode, wc.byte_len, imm, wc.qp_num)
}

#[test]
fn work_requests_complete_inside_their_post() {
    own_process!();
    let [mut a, b] = pair(Opts::default);
    for (place, value) in a.buf.iter_mut().zip(1u8..=200) {
        *place = value;
    }
    assert_eq!(b.recv(7, 0, 0), 0, "posted before");
    // Executed before, and not polled yet.
    let (to, mut sges) = (b.address(), [a.sge(0, 8)]);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).id(1)), 0);
    let counted = softverbs::counters();

    complete_at_once().unwrap();
    assert_eq!(notify(&a, &b, (3, 8), (2, 0xabcd)), 0);
    assert_eq!(b.buf[128..138], [4, 5, 6, 7, 8, 9, 10, 11, 0, 0]);
    assert_eq!([a.poll_send(), a.poll_send()].map(|wc| (wc.wr_id, wc.status)), [(1, 0), (2, 0)]);
    let with_imm = sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM;
    let qpn = b.address().qpn;
    let wc = poll(b.rcq).unwrap();
    assert_eq!(arrived(&wc), (7, 0, with_imm, 8, 0xabcd_u32.to_be(), qpn));
    assert_eq!(wc.wc_flags, sys::ibv_wc_flags::IBV_WC_WITH_IMM.0);
    assert!(poll(a.scq).is_none() && poll(b.rcq).is_none());

    // Receives of later posts, in order; a request without a signal has no completion.
    assert_eq!([b.recv(8, 0, 0), b.recv(9, 0, 0)], [0, 0]);
    let mut sges = [a.sge(0, 2), a.sge(100, 1)];
    let quiet = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 256).flags(0);
    assert_eq!(a.send(quiet), 0);
    assert_eq!(b.buf[256..260], [1, 2, 101, 0]);
    assert_eq!(notify(&a, &b, (0, 0), (3, 1)), 0);
    assert_eq!(
        [poll(b.rcq), poll(b.rcq)].map(|wc| wc.map(|wc| (wc.wr_id, wc.byte_len))),
        [Some((8, 3)), Some((9, 0))]
    );
    assert_eq!(poll(a.scq).map(|wc| wc.wr_id), Some(3));

    // The other direction, by a read.
    let mut sges = [b.sge(512, 4)];
    assert_eq!(b.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&a.address(), 10)), 0);
    assert_eq!(b.buf[512..517], [11, 12, 13, 14, 0]);
    assert_eq!(poll(b.scq).map(|wc| (wc.opcode, wc.status)), Some((sys::ibv_wc_opcode::IBV_WC_RDMA_READ, 0)));
    assert_eq!(softverbs::counters(), counted, "nothing is counted");
}

/// Two ends, lent to another thread.
struct Lent<'a>(&'a End, &'a End);

// SAFETY: libibverbs permits each of its calls on any thread, and the lender waits.
unsafe impl std::marker::Send for Lent<'_> {}

impl Lent<'_> {
    fn post_and_poll(&self) {
        let Self(a, b) = self;
        assert!(poll(a.scq).is_none() && poll(b.rcq).is_none(), "they are the first thread's");
        assert_eq!(b.recv(3, 0, 0), 0);
        let mut data = [9_u8; 8];
        let mut sges =
            [sys::ibv_sge { addr: data.as_mut_ptr().expose_provenance() as u64, length: 8, lkey: 0 }];
        let inline = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&b.address(), 256).id(4);
        assert_eq!(a.send(inline.flags(SIGNALED | INLINE)), 0);
        data.fill(0);
        std::hint::black_box(data);
    }
}

/// A library's own thread may post and poll beside the thread that drives the queue pairs.
#[test]
fn what_another_thread_posts_is_executed_with_the_next_call_of_the_first_one() {
    own_process!();
    let [mut a, b] = pair(|| Opts { inline: 64, ..Opts::default() });
    a.buf[..8].fill(5);
    complete_at_once().unwrap();
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(notify(&a, &b, (0, 8), (2, 0)), 0);
    let lent = Lent(&a, &b);
    std::thread::scope(|scope| scope.spawn(move || lent.post_and_poll()).join().unwrap());
    assert_eq!([poll(a.scq), poll(a.scq)].map(|wc| wc.map(|wc| wc.wr_id)), [Some(2), Some(4)]);
    assert_eq!([poll(b.rcq), poll(b.rcq)].map(|wc| wc.map(|wc| wc.wr_id)), [Some(1), Some(3)]);
    assert_eq!(b.buf[256..265], [9, 9, 9, 9, 9, 9, 9, 9, 0]);
}

#[test]
fn a_shared_queue_serves_all_its_queue_pairs() {
    own_process!();
    let shared = Shared::new(0, 4);
    let to = [shared.end(), shared.end()];
    let from = [End::new(Opts::default()), End::new(Opts::default())];
    for (a, b) in from.iter().zip(&to) {
        a.connect(&b.address());
        b.connect(&a.address());
    }
    assert_eq!(to[0].recv(1, 0, 0), 0);
    complete_at_once().unwrap();
    // Four fit, one is posted already.
    assert_eq!([2, 3, 4, 5].map(|id| to[1].recv(id, 0, 0)), [0, 0, 0, libc::ENOMEM]);
    for (turn, id) in [(1, 1), (0, 2), (1, 3)] {
        assert_eq!(notify(&from[turn], &to[turn], (0, 8), (id, 0)), 0);
        let wc = poll(to[turn].rcq).unwrap();
        assert_eq!((wc.wr_id, wc.qp_num), (id, to[turn].address().qpn));
    }
    drop((from, to));
    shared.destroy();
}

#[test]
fn what_cannot_complete_at_once_fails_at_the_post() {
    own_process!();
    let [a, b] = pair(|| Opts { sig_all: true, cqe: 2, ..Opts::default() });
    complete_at_once().unwrap();
    let (to, mut first, mut second) = (b.address(), [a.sge(0, 8)], [a.sge(8, 8)]);
    let mut good = Send::new(op::IBV_WR_RDMA_WRITE, &mut first).to(&to, 0).flags(0);
    let mut unready = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut second).to(&to, 0);
    let (mut good, mut unready) = (good.wr(), unready.wr());
    good.next = &raw mut unready;
    let mut bad = std::ptr::null_mut();
    // SAFETY: a living QP and a list of two work requests.
    let code = unsafe { sys::ibv_post_send(a.qp, &raw mut good, &raw mut bad) };
    assert_eq!((code, bad), (libc::EAGAIN, &raw mut unready), "no receive is posted");
    assert_eq!(poll(a.scq).map(|wc| wc.wr_id), Some(1), "sq_sig_all");
    assert!(poll(a.scq).is_none());
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut sges)), libc::EOPNOTSUPP);
    let write = || a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 8)]).to(&to, 0));
    assert_eq!([write(), write(), write()], [0, 0, libc::EIO], "two completions fit");
}

#[test]
fn queue_pairs_without_a_peer_here_are_named_and_nothing_changes() {
    own_process!();
    let [a, b] = pair(Opts::default);
    let lonely = End::new(Opts::default());
    lonely.connect(&Address { qpn: 0x00ff_fff0, ..b.address() });
    let error = complete_at_once().unwrap_err().to_string();
    let expected = format!("QP {:#x} is connected to QP 0xfffff0, which is not", lonely.address().qpn);
    assert!(error.starts_with(&expected), "{error}");
    drop(lonely);

    // Blocked: no receive is posted.
    assert_eq!(notify(&a, &b, (0, 8), (1, 0)), 0);
    let error = complete_at_once().unwrap_err().to_string();
    assert!(error.contains("work requests that are not executed yet"), "{error}");
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!([a.poll_send(), b.poll_recv()].map(|wc| wc.status), [0, 0]);

    // A queue pair that is not connected yet is not changed, and works later.
    let later = [End::new(Opts::default()), End::new(Opts::default())];
    complete_at_once().unwrap();
    later[0].connect(&later[1].address());
    later[1].connect(&later[0].address());
    assert_eq!(later[1].recv(5, 0, 0), 0);
    assert_eq!(notify(&later[0], &later[1], (0, 8), (1, 0)), 0);
    assert_eq!([later[0].poll_send(), later[1].poll_recv()].map(|wc| wc.status), [0, 0]);
}

#[test]
fn a_queue_pair_connected_to_itself_completes_too() {
    own_process!();
    let own = End::new(Opts::default());
    own.connect(&own.address());
    // SAFETY: as for `complete_at_once`.
    assert_eq!(unsafe { softverbs::softverbs_complete_at_once() }, 0);
    assert_eq!(own.recv(1, 0, 0), 0);
    assert_eq!(notify(&own, &own, (0, 8), (2, 0)), 0);
    assert_eq!((poll(own.scq).map(|wc| wc.wr_id), poll(own.rcq).map(|wc| wc.wr_id)), (Some(2), Some(1)));
}
