//! Every opcode between two QPs of one process.

use crate::common::*;

#[test]
fn write_notifies_only_the_writer() {
    let (mut a, b) = pair(Opts::default(), Opts::default());
    for (i, byte) in a.buf.iter_mut().enumerate() {
        *byte = i as u8;
    }
    let to = b.address();
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(3, 1000)]).to(&to, 5).id(77)), 0);
    let wc = a.poll_send();
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (77, 0, sys::ibv_wc_opcode::IBV_WC_RDMA_WRITE));
    assert_eq!(b.buf[5..1005], a.buf[3..1003]);
    assert_eq!((b.buf[4], b.buf[1005]), (0, 0));
    assert!(poll(b.rcq).is_none());
}

#[test]
fn write_with_immediate_consumes_a_receive() {
    let (mut a, b) = pair(Opts::default(), Opts::default());
    a.buf[..8].copy_from_slice(b"immediat");
    assert_eq!(b.recv(5, 0, 0), 0);
    let to = b.address();
    let mut sges = [a.sge(0, 8)];
    let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0).imm(0xdead_beef);
    assert_eq!(a.send(wr), 0);
    assert_eq!(a.poll_send().status, 0);
    let wc = b.poll_recv();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, imm(&wc)), (5, 0, 8, 0xdead_beef));
    assert_eq!(wc.opcode, sys::ibv_wc_opcode::IBV_WC_RECV_RDMA_WITH_IMM);
    assert_eq!((wc.wc_flags, wc.qp_num), (2, to.qpn));
    assert_eq!(&b.buf[..8], b"immediat");
}

#[test]
fn send_gathers_and_scatters() {
    let (mut a, b) = pair(Opts::default(), Opts::default());
    for (i, byte) in a.buf.iter_mut().enumerate() {
        *byte = (i * 7) as u8;
    }
    assert_eq!(b.recv_list(9, &mut [b.sge(0, 10), b.sge(100, 0), b.sge(200, 90)]), 0);
    let mut gather = [a.sge(0, 33), a.sge(1000, 20)];
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND_WITH_IMM, &mut gather).imm(42)), 0);
    let wc = b.poll_recv();
    assert_eq!((wc.wr_id, wc.status, wc.byte_len, imm(&wc)), (9, 0, 53, 42));
    let sent: Vec<u8> = a.buf[..33].iter().chain(&a.buf[1000..1020]).copied().collect();
    let got: Vec<u8> = b.buf[..10].iter().chain(&b.buf[200..243]).copied().collect();
    assert_eq!(sent, got);
    assert_eq!(b.buf[243], 0);
    assert_eq!(a.poll_send().opcode, sys::ibv_wc_opcode::IBV_WC_SEND);
}

#[test]
fn read_fetches_remote_data() {
    let (a, mut b) = pair(Opts::default(), Opts::default());
    b.buf[10..20].copy_from_slice(b"0123456789");
    let to = b.address();
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut [a.sge(0, 4), a.sge(50, 6)]).to(&to, 10)), 0);
    let wc = a.poll_send();
    assert_eq!((wc.status, wc.opcode, wc.byte_len), (0, sys::ibv_wc_opcode::IBV_WC_RDMA_READ, 10));
    assert_eq!((&a.buf[..4], &a.buf[50..56]), (&b"0123"[..], &b"456789"[..]));
}

#[test]
fn atomics_return_the_old_value() {
    let (a, mut b) = pair(Opts::default(), Opts::default());
    b.buf[8..16].copy_from_slice(&100_u64.to_ne_bytes());
    let to = b.address();
    let old = |a: &End| u64::from_ne_bytes(a.buf[..8].try_into().expect("8 bytes"));
    let new = |b: &End| u64::from_ne_bytes(b.buf[8..16].try_into().expect("8 bytes"));
    let mut sges = [a.sge(0, 8)];
    let mut add = Send::new(op::IBV_WR_ATOMIC_FETCH_AND_ADD, &mut sges).to(&to, 8);
    add.compare_add = 11;
    assert_eq!(a.send(add), 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!((old(&a), new(&b)), (100, 111));
    for (compare, after) in [(5, 111), (111, 7)] {
        let mut swap = Send::new(op::IBV_WR_ATOMIC_CMP_AND_SWP, &mut sges).to(&to, 8);
        (swap.compare_add, swap.swap) = (compare, 7);
        assert_eq!(a.send(swap), 0);
        assert_eq!(a.poll_send().opcode, sys::ibv_wc_opcode::IBV_WC_COMP_SWAP);
        assert_eq!((old(&a), new(&b)), (111, after));
    }
}

#[test]
fn inline_data_is_copied_at_the_post_and_needs_no_key() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    let mut outside = *b"not registered";
    let addr = outside.as_ptr().expose_provenance() as u64;
    let mut sges = [sys::ibv_sge { addr, length: 14, lkey: 0 }];
    // No receive yet: the work request waits, and must not read the memory again.
    let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0).flags(SIGNALED | INLINE);
    assert_eq!(a.send(wr), 0);
    outside.fill(b'x');
    assert!(poll(a.scq).is_none());
    assert_eq!(b.recv(1, 0, 0), 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(&b.buf[..14], b"not registered");
}

#[test]
fn unsignaled_work_requests_have_no_completion_unless_sig_all() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    for i in 0..3 {
        let flags = if i == 2 { SIGNALED } else { 0 };
        let mut sges = [a.sge(0, 8)];
        assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).id(i).flags(flags)), 0);
    }
    assert_eq!(a.poll_send().wr_id, 2);
    assert!(poll(a.scq).is_none());
    let (a, b) = pair(Opts { sig_all: true, ..Opts::default() }, Opts::default());
    let to = b.address();
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 8)]).to(&to, 0).flags(0)), 0);
    assert_eq!(a.poll_send().status, 0);
}

#[test]
fn a_chain_is_posted_in_order_up_to_the_bad_one() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    let (mut one, mut two, mut three) = ([a.sge(0, 8)], [a.sge(0, 8)], [a.sge(0, 8)]);
    let mut wrs = [
        Send::new(op::IBV_WR_RDMA_WRITE, &mut one).to(&to, 0).id(1).wr(),
        Send::new(99, &mut two).to(&to, 0).id(2).wr(),
        Send::new(op::IBV_WR_RDMA_WRITE, &mut three).to(&to, 0).id(3).wr(),
    ];
    let first = wrs.as_mut_ptr();
    let second = first.wrapping_add(1);
    let mut bad = std::ptr::null_mut();
    // SAFETY: a chain of three work requests and a QP, which are alive.
    let rc = unsafe {
        (*first).next = second;
        (*second).next = first.wrapping_add(2);
        sys::ibv_post_send(a.qp, first, &raw mut bad)
    };
    assert_eq!((rc, bad), (libc::EINVAL, second));
    assert_eq!(a.poll_send().wr_id, 1);
    assert!(poll(a.scq).is_none());
}

#[test]
fn memory_regions_with_an_iova_are_addressed_by_it() {
    let (mut a, b) = pair(Opts::default(), Opts::default());
    a.buf[..4].copy_from_slice(b"iova");
    // SAFETY: a living PD; the buffer outlives the registration.
    let mr =
        unsafe { sys::ibv_reg_mr_iova2(b.pd, b.buf.as_ptr().cast_mut().cast(), 100, 0x1000, 3 | 1 << 20) };
    assert!(!mr.is_null());
    // SAFETY: alive until deregistered below.
    let to = Address { addr: 0x1000, rkey: unsafe { (*mr).rkey }, ..b.address() };
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut [a.sge(0, 4)]).to(&to, 96)), 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(&b.buf[96..100], b"iova");
    // SAFETY: owned by this test and deregistered once.
    assert_eq!(unsafe { sys::ibv_dereg_mr(mr) }, 0);
}

#[test]
fn a_qp_connected_to_itself_serves_itself() {
    let mut a = End::new(Opts::default());
    a.connect(&a.address());
    a.buf[..4].copy_from_slice(b"self");
    let to = a.address();
    let mut sges = [a.sge(0, 4)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 100)), 0);
    assert_eq!(a.poll_send().status, 0);
    assert_eq!(&a.buf[100..104], b"self");
    // Its faults are its own too: the locks are taken one after the other.
    let bad = Address { rkey: 0, ..to };
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_READ, &mut sges).to(&bad, 0)), 0);
    assert_eq!(a.poll_send().status, status::IBV_WC_REM_ACCESS_ERR);
}

#[test]
fn work_is_counted_per_qp_and_device() {
    let (a, b) = pair(Opts::default(), Opts::default());
    let to = b.address();
    assert_eq!((b.recv(1, 0, 0), b.recv(2, 0, 8)), (0, 0));
    let mut sges = [a.sge(0, 8)];
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE, &mut sges).to(&to, 0).flags(0)), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 0)), 0);
    assert_eq!(a.send(Send::new(op::IBV_WR_SEND, &mut sges)), 0);
    for wc in [a.poll_send(), a.poll_send(), b.poll_recv(), b.poll_recv()] {
        assert_eq!(wc.status, 0);
    }
    let devices = softverbs::counters();
    let of = |end: &End| {
        let qpn = end.address().qpn;
        devices[0].qps.iter().find(|qp| qp.qpn == qpn).expect("counted").counters
    };
    let (mine, theirs) = (of(&a), of(&b));
    assert_eq!((mine.writes, mine.writes_with_imm, mine.sends, mine.reads), (1, 1, 1, 0));
    assert_eq!((mine.bytes, mine.doorbells, mine.send_cqes, mine.recv_cqes), (24, 3, 2, 0));
    assert_eq!((theirs.receives, theirs.recv_cqes, theirs.errors), (2, 2, 0));
    // Other tests of this process count too: the device has at least as much.
    assert!(devices[0].total.bytes >= 24 && devices[0].name == "soft0");
    // As C reads them: the size first, then the text.
    // SAFETY: no buffer, then one of the requested size with room for what other tests count
    // meanwhile.
    let text = unsafe {
        let size = softverbs::softverbs_counters_json(std::ptr::null_mut(), 0) + 4096;
        let mut buffer = vec![0_u8; size];
        softverbs::softverbs_counters_json(buffer.as_mut_ptr().cast(), size);
        std::ffi::CStr::from_ptr(buffer.as_ptr().cast()).to_string_lossy().into_owned()
    };
    assert!(
        text.contains(&format!("{{\"qpn\":{},\"writes\":1,\"writes_with_imm\":1,", to_qpn(&a))),
        "{text}"
    );
}

fn to_qpn(end: &End) -> u32 {
    end.address().qpn
}

#[test]
fn threads_that_send_both_ways_at_once_lose_nothing() {
    let pairs: Vec<(End, End)> = (0..4).map(|_| pair(Opts::default(), Opts::default())).collect();
    let ends: Vec<Shared> = pairs.iter().flat_map(|(a, b)| [(a, b), (b, a)]).map(Shared).collect();
    std::thread::scope(|scope| {
        for end in ends {
            scope.spawn(move || end.exchange());
        }
    });
}

/// An end and its peer, each used by one thread, which libibverbs permits.
struct Shared<'a>((&'a End, &'a End));
// SAFETY: the raw pointers in an end refer to verbs objects, which any thread may use.
unsafe impl std::marker::Send for Shared<'_> {}

impl Shared<'_> {
    fn exchange(&self) {
        let (a, b) = self.0;
        let (to, mut sges) = (b.address(), [a.sge(0, 256)]);
        for id in 0..8 {
            assert_eq!(a.recv(id, 0, 0), 0);
        }
        let (mut sent, mut done, mut got) = (0, 0, 0);
        while done < 2000 || got < 2000 {
            if sent < 2000 && sent - done < 8 {
                let wr = Send::new(op::IBV_WR_RDMA_WRITE_WITH_IMM, &mut sges).to(&to, 512);
                assert_eq!(a.send(wr.imm(sent)), 0);
                sent += 1;
            }
            if let Some(wc) = poll(a.scq) {
                assert_eq!(wc.status, 0);
                done += 1;
            }
            if let Some(wc) = poll(a.rcq) {
                assert_eq!((wc.status, imm(&wc)), (0, got));
                got += 1;
                assert_eq!(a.recv(8, 0, 0), 0);
            }
        }
    }
}
