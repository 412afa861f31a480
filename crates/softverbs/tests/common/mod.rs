//! Shared by the tests: one end of a connection, driven through the C functions.
#![allow(unreachable_pub, missing_docs, reason = "nobody else uses it")]

extern crate mpib_test_env as _;

mod shared;

use std::ffi::{CStr, c_int};
use std::mem::{MaybeUninit, zeroed};
use std::ptr::null_mut;
use std::sync::Once;
use std::time::{Duration, Instant};

pub use rdma_sys as sys;
pub use rdma_sys::ibv_wc_status as status;
pub use rdma_sys::ibv_wr_opcode as op;
pub use shared::Shared;
use sys::ibv_qp_attr_mask as mask;

pub const SIGNALED: u32 = 2;
pub const SOLICITED: u32 = 4;
pub const INLINE: u32 = 8;
pub const ALL_ACCESS: c_int = 0xf;
/// Timeout of waits. It only expires if a test fails.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Sets a fabric of this test process, unless its parent has set one.
pub fn setup() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("SOFTVERBS_FABRIC").is_none() {
            softverbs::set_fabric(&fabric());
        }
    });
}

pub fn fabric() -> String {
    std::env::var("SOFTVERBS_FABRIC").unwrap_or_else(|_| format!("test-{}", std::process::id()))
}

pub struct Opts {
    pub device: usize,
    pub port: u8,
    pub depth: u32,
    pub recv_depth: u32,
    pub cqe: c_int,
    pub sge: u32,
    pub inline: u32,
    pub sig_all: bool,
    pub srq: *mut sys::ibv_srq,
    pub channel: bool,
    pub len: usize,
    pub qp_access: u32,
    pub mr_access: c_int,
    pub timeout: u8,
    pub retry: u8,
    pub rnr_retry: u8,
    pub rnr_timer: u8,
    pub max_rd: u8,
}

impl Default for Opts {
    fn default() -> Self {
        Self {
            device: 0,
            port: 1,
            depth: 16,
            recv_depth: 16,
            cqe: 64,
            sge: 4,
            inline: 64,
            sig_all: false,
            srq: null_mut(),
            channel: false,
            len: 1 << 16,
            qp_access: 0xf,
            mr_access: ALL_ACCESS,
            timeout: 8,
            retry: 2,
            rnr_retry: 7,
            rnr_timer: 1,
            max_rd: 4,
        }
    }
}

/// One end: everything from the context to a registered buffer.
pub struct End {
    pub ctx: *mut sys::ibv_context,
    pub pd: *mut sys::ibv_pd,
    pub channel: *mut sys::ibv_comp_channel,
    pub scq: *mut sys::ibv_cq,
    pub rcq: *mut sys::ibv_cq,
    pub qp: *mut sys::ibv_qp,
    pub mr: *mut sys::ibv_mr,
    pub buf: Vec<u8>,
    pub opts: Opts,
}

/// The properties of an end that its peer needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Address {
    pub qpn: u32,
    pub gid: [u8; 16],
    pub addr: u64,
    pub rkey: u32,
}

pub fn open(index: usize) -> *mut sys::ibv_context {
    setup();
    let mut n = 0;
    // SAFETY: plain libibverbs use; the list is freed once.
    unsafe {
        let list = sys::ibv_get_device_list(&raw mut n);
        assert!(!list.is_null() && (index as c_int) < n, "device {index} of {n}");
        let ctx = sys::ibv_open_device(*list.add(index));
        sys::ibv_free_device_list(list);
        assert!(!ctx.is_null());
        ctx
    }
}

/// Returns the names of the devices in the list.
pub fn device_names() -> Vec<String> {
    let mut count = -1;
    // SAFETY: the list has `count` items and is freed once.
    unsafe {
        let list = sys::ibv_get_device_list(&raw mut count);
        assert!(!list.is_null());
        let count = usize::try_from(count).expect("written");
        let name = |i: usize| CStr::from_ptr(sys::ibv_get_device_name(*list.add(i))).to_str().expect("plain");
        let names = (0..count).map(|i| name(i).to_owned()).collect();
        assert!((*list.add(count)).is_null());
        sys::ibv_free_device_list(list);
        names
    }
}

pub fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap_or(0)
}

impl End {
    pub fn new(opts: Opts) -> Self {
        let ctx = open(opts.device);
        // SAFETY: plain libibverbs use.
        let pd = unsafe { sys::ibv_alloc_pd(ctx) };
        Self::on(ctx, pd, opts)
    }

    /// One end that is connected to itself.
    pub fn looped(opts: Opts) -> Self {
        let end = Self::new(opts);
        end.connect(&end.address());
        end
    }

    pub fn on(ctx: *mut sys::ibv_context, pd: *mut sys::ibv_pd, opts: Opts) -> Self {
        // SAFETY: plain libibverbs use; the buffer lives in the result and is never resized.
        unsafe {
            let channel = if opts.channel { sys::ibv_create_comp_channel(ctx) } else { null_mut() };
            let scq = sys::ibv_create_cq(ctx, opts.cqe, null_mut(), channel, 0);
            let rcq = sys::ibv_create_cq(ctx, opts.cqe, null_mut(), channel, 0);
            assert!(!pd.is_null() && !scq.is_null() && !rcq.is_null());
            let mut init: sys::ibv_qp_init_attr = zeroed();
            init.send_cq = scq;
            init.recv_cq = rcq;
            init.srq = opts.srq;
            init.cap.max_send_wr = opts.depth;
            init.cap.max_recv_wr = opts.recv_depth;
            init.cap.max_send_sge = opts.sge;
            init.cap.max_recv_sge = opts.sge;
            init.cap.max_inline_data = opts.inline;
            init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
            init.sq_sig_all = c_int::from(opts.sig_all);
            let qp = sys::ibv_create_qp(pd, &raw mut init);
            assert!(!qp.is_null(), "ibv_create_qp: errno {}", errno());
            let mut buf = vec![0_u8; opts.len];
            let mr = sys::ibv_reg_mr(pd, buf.as_mut_ptr().cast(), buf.len(), opts.mr_access);
            assert!(!mr.is_null(), "ibv_reg_mr: errno {}", errno());
            Self { ctx, pd, channel, scq, rcq, qp, mr, buf, opts }
        }
    }

    /// Registers new pages and unmaps them.
    pub fn unmapped(&self, len: usize) -> (*mut sys::ibv_mr, u64) {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
        // SAFETY: new memory that nothing else uses.
        unsafe {
            let at = libc::mmap(null_mut(), len, protection, flags, -1, 0);
            assert_ne!(at, libc::MAP_FAILED);
            let mr = sys::ibv_reg_mr(self.pd, at, len, ALL_ACCESS);
            assert!(!mr.is_null());
            assert_eq!(libc::munmap(at, len), 0);
            (mr, at as u64)
        }
    }

    pub fn gid(&self) -> [u8; 16] {
        self.gid_at(3)
    }

    pub fn gid_at(&self, index: c_int) -> [u8; 16] {
        // SAFETY: zero is a GID, and the union's bytes are always valid.
        unsafe {
            let mut gid: sys::ibv_gid = zeroed();
            assert_eq!(sys::ibv_query_gid(self.ctx, self.opts.port, index, &raw mut gid), 0);
            gid.raw
        }
    }

    pub fn address(&self) -> Address {
        // SAFETY: alive as long as `self`.
        let (qpn, rkey) = unsafe { ((*self.qp).qp_num, (*self.mr).rkey) };
        Address { qpn, gid: self.gid(), addr: self.at(0), rkey }
    }

    pub fn at(&self, offset: usize) -> u64 {
        self.buf.as_ptr().expose_provenance() as u64 + offset as u64
    }

    pub fn modify(&self, attr: &mut sys::ibv_qp_attr, bits: u32) -> c_int {
        // SAFETY: a living QP.
        unsafe { sys::ibv_modify_qp(self.qp, attr, bits as c_int) }
    }

    pub fn to_init(&self) {
        let (mut attr, bits) = init_attr(&self.opts);
        assert_eq!(self.modify(&mut attr, bits), 0);
    }

    pub fn to_rtr(&self, peer: &Address) {
        let (mut attr, bits) = rtr_attr(&self.opts, peer);
        assert_eq!(self.modify(&mut attr, bits), 0);
    }

    pub fn to_rts(&self) {
        let (mut attr, bits) = rts_attr(&self.opts);
        assert_eq!(self.modify(&mut attr, bits), 0);
    }

    pub fn connect(&self, peer: &Address) {
        self.to_init();
        self.to_rtr(peer);
        self.to_rts();
    }

    pub fn set_state(&self, state: u32) -> c_int {
        // SAFETY: zero is a value of every attribute.
        let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
        attr.qp_state = state;
        self.modify(&mut attr, mask::IBV_QP_STATE.0)
    }

    pub fn state(&self) -> u32 {
        // SAFETY: a living QP and two writable structs.
        unsafe {
            let (mut attr, mut init) = (zeroed::<sys::ibv_qp_attr>(), zeroed::<sys::ibv_qp_init_attr>());
            assert_eq!(sys::ibv_query_qp(self.qp, &raw mut attr, 1, &raw mut init), 0);
            attr.qp_state
        }
    }

    pub fn sge(&self, offset: usize, len: usize) -> sys::ibv_sge {
        // SAFETY: alive as long as `self`.
        let lkey = unsafe { (*self.mr).lkey };
        sys::ibv_sge { addr: self.at(offset), length: len as u32, lkey }
    }

    /// Posts a receive with one scatter item, or with none if `len` is 0.
    pub fn recv(&self, wr_id: u64, offset: usize, len: usize) -> c_int {
        self.recv_list(wr_id, &mut [self.sge(offset, len)][..usize::from(len > 0)])
    }

    pub fn recv_list(&self, wr_id: u64, sges: &mut [sys::ibv_sge]) -> c_int {
        let mut wr = sys::ibv_recv_wr {
            wr_id,
            next: null_mut(),
            sg_list: sges.as_mut_ptr(),
            num_sge: sges.len() as c_int,
        };
        let mut bad = null_mut();
        // SAFETY: a living QP or SRQ and one work request.
        unsafe {
            match self.opts.srq.is_null() {
                true => sys::ibv_post_recv(self.qp, &raw mut wr, &raw mut bad),
                false => sys::ibv_post_srq_recv(self.opts.srq, &raw mut wr, &raw mut bad),
            }
        }
    }

    pub fn post(&self, wr: &mut sys::ibv_send_wr) -> c_int {
        let mut bad = null_mut();
        // SAFETY: a living QP and one work request.
        unsafe { sys::ibv_post_send(self.qp, wr, &raw mut bad) }
    }

    /// Posts `send` and returns the result of ibv_post_send.
    pub fn send(&self, mut send: Send<'_>) -> c_int {
        let mut wr = send.wr();
        self.post(&mut wr)
    }

    pub fn poll_send(&self) -> sys::ibv_wc {
        wait_for(self.scq)
    }

    pub fn poll_recv(&self) -> sys::ibv_wc {
        wait_for(self.rcq)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        // SAFETY: owned by `self` and destroyed once. The PD and the context may be shared and
        // stay.
        unsafe {
            assert_eq!(sys::ibv_destroy_qp(self.qp), 0);
            assert_eq!(sys::ibv_dereg_mr(self.mr), 0);
            assert_eq!(sys::ibv_destroy_cq(self.scq), 0);
            assert_eq!(sys::ibv_destroy_cq(self.rcq), 0);
            if !self.channel.is_null() {
                assert_eq!(sys::ibv_destroy_comp_channel(self.channel), 0);
            }
        }
    }
}

/// A work request under construction.
pub struct Send<'a> {
    pub wr_id: u64,
    pub opcode: u32,
    pub flags: u32,
    pub imm: u32,
    pub sges: &'a mut [sys::ibv_sge],
    pub remote: u64,
    pub rkey: u32,
    pub compare_add: u64,
    pub swap: u64,
}

impl<'a> Send<'a> {
    pub fn new(opcode: u32, sges: &'a mut [sys::ibv_sge]) -> Self {
        Self { wr_id: 1, opcode, flags: SIGNALED, imm: 0, sges, remote: 0, rkey: 0, compare_add: 0, swap: 0 }
    }

    pub fn to(mut self, peer: &Address, offset: u64) -> Self {
        (self.remote, self.rkey) = (peer.addr + offset, peer.rkey);
        self
    }

    pub fn id(mut self, wr_id: u64) -> Self {
        self.wr_id = wr_id;
        self
    }

    pub fn imm(mut self, imm: u32) -> Self {
        self.imm = imm;
        self
    }

    pub fn flags(mut self, flags: u32) -> Self {
        self.flags = flags;
        self
    }

    pub fn wr(&mut self) -> sys::ibv_send_wr {
        // SAFETY: integers and pointers may be zero.
        let mut wr: sys::ibv_send_wr = unsafe { zeroed() };
        wr.wr_id = self.wr_id;
        wr.opcode = self.opcode;
        wr.send_flags = self.flags;
        wr.sg_list = self.sges.as_mut_ptr();
        wr.num_sge = self.sges.len() as c_int;
        wr.imm_data_invalidated_rkey_union.imm_data = self.imm.to_be();
        if matches!(self.opcode, op::IBV_WR_ATOMIC_CMP_AND_SWP | op::IBV_WR_ATOMIC_FETCH_AND_ADD) {
            let (compare_add, swap) = (self.compare_add, self.swap);
            wr.wr.atomic = sys::atomic_t { remote_addr: self.remote, compare_add, swap, rkey: self.rkey };
        } else {
            wr.wr.rdma = sys::rdma_t { remote_addr: self.remote, rkey: self.rkey };
        }
        wr
    }
}

pub fn init_attr(opts: &Opts) -> (sys::ibv_qp_attr, u32) {
    // SAFETY: zero is a value of every attribute.
    let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
    attr.port_num = opts.port;
    attr.qp_access_flags = opts.qp_access;
    let bits = mask::IBV_QP_STATE | mask::IBV_QP_PKEY_INDEX | mask::IBV_QP_PORT | mask::IBV_QP_ACCESS_FLAGS;
    (attr, bits.0)
}

pub fn rtr_attr(opts: &Opts, peer: &Address) -> (sys::ibv_qp_attr, u32) {
    // SAFETY: zero is a value of every attribute.
    let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
    attr.path_mtu = sys::ibv_mtu::IBV_MTU_1024;
    attr.dest_qp_num = peer.qpn;
    attr.rq_psn = 7;
    attr.max_dest_rd_atomic = opts.max_rd;
    attr.min_rnr_timer = opts.rnr_timer;
    attr.ah_attr.is_global = 1;
    attr.ah_attr.port_num = opts.port;
    attr.ah_attr.grh.sgid_index = 3;
    attr.ah_attr.grh.dgid = sys::ibv_gid { raw: peer.gid };
    let bits = mask::IBV_QP_STATE
        | mask::IBV_QP_AV
        | mask::IBV_QP_PATH_MTU
        | mask::IBV_QP_DEST_QPN
        | mask::IBV_QP_RQ_PSN
        | mask::IBV_QP_MAX_DEST_RD_ATOMIC
        | mask::IBV_QP_MIN_RNR_TIMER;
    (attr, bits.0)
}

pub fn rts_attr(opts: &Opts) -> (sys::ibv_qp_attr, u32) {
    // SAFETY: zero is a value of every attribute.
    let mut attr: sys::ibv_qp_attr = unsafe { zeroed() };
    attr.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
    attr.timeout = opts.timeout;
    attr.retry_cnt = opts.retry;
    attr.rnr_retry = opts.rnr_retry;
    attr.sq_psn = 7;
    attr.max_rd_atomic = opts.max_rd;
    let bits = mask::IBV_QP_STATE
        | mask::IBV_QP_TIMEOUT
        | mask::IBV_QP_RETRY_CNT
        | mask::IBV_QP_RNR_RETRY
        | mask::IBV_QP_SQ_PSN
        | mask::IBV_QP_MAX_QP_RD_ATOMIC;
    (attr, bits.0)
}

/// Returns a completion if one is available.
pub fn poll(cq: *mut sys::ibv_cq) -> Option<sys::ibv_wc> {
    let mut wc = MaybeUninit::<sys::ibv_wc>::uninit();
    // SAFETY: a living CQ, room for one; written if the result is 1.
    unsafe {
        match sys::ibv_poll_cq(cq, 1, wc.as_mut_ptr()) {
            0 => None,
            1 => Some(wc.assume_init()),
            n => panic!("ibv_poll_cq: {n}"),
        }
    }
}

/// Waits for the next completion.
pub fn wait_for(cq: *mut sys::ibv_cq) -> sys::ibv_wc {
    let begin = Instant::now();
    loop {
        if let Some(wc) = poll(cq) {
            return wc;
        }
        assert!(begin.elapsed() < PATIENCE, "no completion");
        std::thread::yield_now();
    }
}

pub fn imm(wc: &sys::ibv_wc) -> u32 {
    // SAFETY: both fields of the union are 32-bit integers.
    u32::from_be(unsafe { wc.imm_data_invalidated_rkey_union.imm_data })
}

/// Creates two connected ends in this process.
pub fn pair(a: Opts, b: Opts) -> (End, End) {
    let (a, b) = (End::new(a), End::new(b));
    a.connect(&b.address());
    b.connect(&a.address());
    (a, b)
}

/// Returns the type of the next asynchronous event, or `None` if there is none.
pub fn async_event(ctx: *mut sys::ibv_context, wait: bool) -> Option<u32> {
    // SAFETY: a living context; the event is written if the call gives 0, and its type is read as
    // an integer.
    unsafe {
        let mut poll = libc::pollfd { fd: (*ctx).async_fd, events: libc::POLLIN, revents: 0 };
        let ready = libc::poll(&raw mut poll, 1, if wait { PATIENCE.as_millis() as c_int } else { 0 });
        if ready == 0 {
            return None;
        }
        let mut event = MaybeUninit::<sys::ibv_async_event>::zeroed();
        assert_eq!(sys::ibv_get_async_event(ctx, event.as_mut_ptr()), 0);
        let kind = (&raw const (*event.as_ptr()).event_type).cast::<u32>().read();
        sys::ibv_ack_async_event(event.as_mut_ptr());
        Some(kind)
    }
}

/// Waits for the next event of a channel, acknowledges it, and returns its CQ.
pub fn wait_event(channel: *mut sys::ibv_comp_channel) -> *mut sys::ibv_cq {
    assert!(event_ready(channel, true), "no event");
    let (mut cq, mut context) = (null_mut(), null_mut());
    // SAFETY: a living channel with an event, two writable pointers; the CQ is alive.
    unsafe {
        assert_eq!(sys::ibv_get_cq_event(channel, &raw mut cq, &raw mut context), 0);
        sys::ibv_ack_cq_events(cq, 1);
    }
    cq
}

/// Returns whether the channel has an event within the timeout.
pub fn event_ready(channel: *mut sys::ibv_comp_channel, wait: bool) -> bool {
    // SAFETY: a living channel; one valid entry.
    unsafe {
        let mut poll = libc::pollfd { fd: (*channel).fd, events: libc::POLLIN, revents: 0 };
        libc::poll(&raw mut poll, 1, if wait { PATIENCE.as_millis() as c_int } else { 0 }) > 0
    }
}

pub fn checksum(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, &b| (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3))
}
