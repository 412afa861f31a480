//! A verbs test with a seeded fault: what does a program see when the link of its peer goes down?
//!
//! ```text
//! cargo run -p softverbs --example link_fault
//! ```
#![allow(missing_docs, reason = "a program")]

use std::mem::zeroed;
use std::ptr::null_mut;

use rdma_sys as sys;
use softverbs::DeviceSpec;
use sys::ibv_qp_attr_mask as mask;
use sys::ibv_wc_status::{IBV_WC_RETRY_EXC_ERR, IBV_WC_SUCCESS};

fn main() {
    // 1. Two hosts with one device each, on one subnet. The fabric is private to this process.
    softverbs::set_fabric(&format!("link-fault-{}", std::process::id()));
    let device = |name, last| DeviceSpec::roce(name, &[([10, 0, 0, last].into(), 24)]);
    softverbs::configure(vec![device("left", 1), device("right", 2)]).expect("two valid devices");

    // 2. The program under test: a connection and an RDMA WRITE.
    let (left, right) = (End::open(0), End::open(1));
    left.connect(&right);
    right.connect(&left);
    assert_eq!(left.write_to(&right, 0x42), IBV_WC_SUCCESS);
    assert_eq!(right.first_byte(), 0x42);

    // 3. The fault: the write gets no answer, and the retries run out.
    softverbs::set_link("right", false).expect("the device exists");
    assert_eq!(left.write_to(&right, 0x43), IBV_WC_RETRY_EXC_ERR);
    assert_eq!(right.first_byte(), 0x42);

    // 4. What the program did, from the counters.
    let sent = softverbs::counters()[0].total;
    assert_eq!((sent.writes, sent.errors), (2, 1));
    println!("write to a port that is down: IBV_WC_RETRY_EXC_ERR, as on hardware");
}

/// Bytes of memory of each end. The peer writes the first byte; the second is the source of writes.
const SIZE: usize = 4096;

/// One end of a connection. The program ends with it, therefore nothing is destroyed.
struct End {
    context: *mut sys::ibv_context,
    cq: *mut sys::ibv_cq,
    qp: *mut sys::ibv_qp,
    mr: *mut sys::ibv_mr,
    memory: *mut u8,
}

impl End {
    fn open(device: usize) -> Self {
        let memory = Box::leak(Box::new([0_u8; SIZE])).as_mut_ptr();
        // SAFETY: plain use of libibverbs. `device` is in the list, and the memory is never freed.
        unsafe {
            let list = sys::ibv_get_device_list(null_mut());
            let context = sys::ibv_open_device(*list.add(device));
            sys::ibv_free_device_list(list);
            let pd = sys::ibv_alloc_pd(context);
            let cq = sys::ibv_create_cq(context, 16, null_mut(), null_mut(), 0);
            let access = sys::ibv_access_flags::IBV_ACCESS_LOCAL_WRITE.0
                | sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            let mr = sys::ibv_reg_mr(pd, memory.cast(), SIZE, access as i32);
            let mut init: sys::ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq) = (cq, cq);
            (init.cap.max_send_wr, init.cap.max_send_sge) = (16, 1);
            init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            init.sq_sig_all = 1;
            let qp = sys::ibv_create_qp(pd, &raw mut init);
            assert!(!mr.is_null() && !qp.is_null());
            Self { context, cq, qp, mr, memory }
        }
    }

    /// Moves the QP to INIT, RTR and RTS.
    fn connect(&self, peer: &Self) {
        // SAFETY: the objects of both ends are alive, and zero is valid for each attribute.
        unsafe {
            let mut attr: sys::ibv_qp_attr = zeroed();
            attr.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
            attr.port_num = 1;
            attr.qp_access_flags = sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0;
            self.modify(&mut attr, mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS);

            attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
            attr.path_mtu = sys::ibv_mtu::IBV_MTU_4096;
            attr.dest_qp_num = (*peer.qp).qp_num;
            attr.ah_attr.is_global = 1;
            attr.ah_attr.port_num = 1;
            // Index 3 is RoCE v2 on the first address.
            attr.ah_attr.grh.sgid_index = 3;
            let dgid = &raw mut attr.ah_attr.grh.dgid;
            assert_eq!(sys::ibv_query_gid(peer.context, 1, 3, dgid), 0);
            self.modify(
                &mut attr,
                mask::IBV_QP_AV
                    | mask::IBV_QP_PATH_MTU
                    | mask::IBV_QP_DEST_QPN
                    | mask::IBV_QP_RQ_PSN
                    | mask::IBV_QP_MAX_DEST_RD_ATOMIC
                    | mask::IBV_QP_MIN_RNR_TIMER,
            );

            attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
            // 4.096 us * 2^8, about 1 ms, and two retries.
            (attr.timeout, attr.retry_cnt) = (8, 2);
            self.modify(
                &mut attr,
                mask::IBV_QP_TIMEOUT
                    | mask::IBV_QP_RETRY_CNT
                    | mask::IBV_QP_RNR_RETRY
                    | mask::IBV_QP_SQ_PSN
                    | mask::IBV_QP_MAX_QP_RD_ATOMIC,
            );
        }
    }

    fn modify(&self, attr: &mut sys::ibv_qp_attr, bits: mask) {
        // SAFETY: the QP is alive.
        let rc = unsafe { sys::ibv_modify_qp(self.qp, attr, (bits | mask::IBV_QP_STATE).0 as i32) };
        assert_eq!(rc, 0);
    }

    fn first_byte(&self) -> u8 {
        // SAFETY: the memory is never freed.
        unsafe { self.memory.read_volatile() }
    }

    /// Writes one byte into the peer's memory and returns the completion status.
    fn write_to(&self, peer: &Self, byte: u8) -> u32 {
        // SAFETY: the objects and the memory of both ends are never freed. `sge` and `wr` outlive
        // the post.
        unsafe {
            let source = self.memory.add(1);
            source.write_volatile(byte);
            let addr = source.expose_provenance() as u64;
            let mut sge = sys::ibv_sge { addr, length: 1, lkey: (*self.mr).lkey };
            let mut wr: sys::ibv_send_wr = zeroed();
            wr.opcode = sys::ibv_wr_opcode::IBV_WR_RDMA_WRITE;
            (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
            wr.wr.rdma = sys::rdma_t { remote_addr: (*peer.mr).addr as u64, rkey: (*peer.mr).rkey };
            let mut bad = null_mut();
            assert_eq!(sys::ibv_post_send(self.qp, &raw mut wr, &raw mut bad), 0);
            let mut completion: sys::ibv_wc = zeroed();
            while sys::ibv_poll_cq(self.cq, 1, &raw mut completion) == 0 {}
            completion.status
        }
    }
}
