//! Reliable-connected queue pairs. Only a connected one can post.

use std::marker::PhantomData;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use mpib_proto::{Ece, LinkLayer};
use rdma_sys as sys;
use sys::ibv_qp_attr_mask as bits;

use crate::error::{Error, Fast, Result};

use super::library::Verbs;
use super::sends::Prepared;
use super::{
    Blanks, Chain, Cq, Gid, ImmWrite, Pd, Port, Srq, WordsWrite, failed, is_put_off, is_removal, log_failure,
    make, zero,
};

/// How often a post that the provider puts off is tried again: some microseconds in all.
const TRIES: u32 = 1000;

/// A queue pair that is not connected yet.
#[derive(Debug)]
pub struct Fresh;
/// A queue pair in RTS.
#[derive(Debug)]
pub struct Ready;

/// How to create a queue pair.
#[derive(Debug, Clone, Copy)]
pub struct QpOptions {
    /// Depth of the send queue. The plugin uses no more than this, even if the device provides
    /// more.
    pub send_depth: u32,
    /// Bytes of inline data to request. The queue pair has 0 if the device has no room for them.
    pub inline: u32,
    /// Depth of the queue pair's own receive queue. Without effect if it has an SRQ.
    pub receives: u32,
}

/// What the peer may do with registered memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// RDMA writes.
    Write,
    /// RDMA reads.
    Read,
    /// Both.
    Both,
}

/// The path from the local port to the peer's queue pair.
#[derive(Debug, Clone, Copy)]
pub struct Path {
    /// Number of the local port.
    pub port: u8,
    /// Index of the local GID.
    pub gid_index: u8,
    /// Index in the local P_Key table.
    pub pkey_index: u16,
    /// The smaller `enum ibv_mtu` of both ends.
    pub mtu: u8,
    /// The DLID (InfiniBand): the base LID of the peer in one subnet, its FLID behind a router.
    pub lid: u16,
    /// The peer's GID if packets carry a GRH. RoCE packets always do.
    pub gid: Option<[u8; 16]>,
    /// Service level.
    pub service_level: u8,
    /// Traffic class of the GRH.
    pub traffic_class: u8,
    /// Number of the peer's queue pair.
    pub qpn: u32,
    /// First packet sequence number of the peer.
    pub peer_psn: u32,
    /// First packet sequence number of this end.
    pub psn: u32,
    /// The access that the peer gets.
    pub access: Access,
    /// The peer's options of enhanced connection establishment, if both ends use it.
    pub ece: Option<Ece>,
}

impl Path {
    /// Returns the path of a queue pair to itself, which the port loops back.
    pub(crate) fn to_itself(port: &Port, gid: &Gid, pkey_index: u16, qpn: u32, access: Access) -> Self {
        let roce = port.link == LinkLayer::Ethernet;
        Self {
            port: port.number,
            gid_index: gid.index,
            pkey_index,
            mtu: port.mtu,
            lid: if roce { 0 } else { port.lid },
            gid: (roce || port.grh_required).then_some(gid.raw),
            service_level: 0,
            traffic_class: 0,
            qpn,
            peer_psn: 0,
            psn: 0,
            access,
            ece: None,
        }
    }
}

/// How long a queue pair waits for acknowledgements.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// ACK timeout exponent, 0 to 31: 4.096 µs times 2 to this power.
    pub timeout: u8,
    /// Retry count, 0 to 7.
    pub retries: u8,
}

/// Attributes with no field set.
fn blank() -> sys::ibv_qp_attr {
    // SAFETY: all-zero is a valid struct of integers.
    unsafe { std::mem::zeroed() }
}

/// A queue pair, [`Fresh`] or [`Ready`].
#[derive(Debug)]
pub struct Qp<S> {
    raw: Raw,
    state: PhantomData<S>,
}

/// How far a queue pair's bring-up has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Reached {
    Reset,
    Init,
    Rtr,
    Rts,
}

#[derive(Debug)]
struct Raw {
    qp: NonNull<sys::ibv_qp>,
    /// The provider's `ibv_post_send`, which never changes while the context is open.
    post_send: PostSend,
    number: u32,
    send_depth: u32,
    inline: u32,
    reached: Reached,
    /// `ibv_destroy_qp` was called.
    is_destroyed: bool,
    cq: Arc<Cq>,
    _srq: Option<Arc<Srq>>,
    _pd: Arc<Pd>,
}

/// A provider's `ibv_post_send`.
type PostSend =
    unsafe extern "C" fn(*mut sys::ibv_qp, *mut sys::ibv_send_wr, *mut *mut sys::ibv_send_wr) -> i32;

// SAFETY: providers lock the queue; a QP may be used from any thread.
unsafe impl Send for Raw {}
// SAFETY: as above.
unsafe impl Sync for Raw {}

impl Drop for Raw {
    fn drop(&mut self) {
        if !self.is_destroyed {
            let rc = self.destroy();
            log_failure("ibv_destroy_qp", self.cq.context().name(), rc);
        }
    }
}

impl Raw {
    fn verbs(&self) -> &'static Verbs {
        self.cq.context().verbs()
    }

    /// Calls `ibv_destroy_qp`, once. If it succeeds, no device accesses memory for the queue pair.
    fn destroy(&mut self) -> i32 {
        self.is_destroyed = true;
        // SAFETY: called once, by the only owner, who does not use the queue pair any more.
        unsafe { (self.verbs().ibv_destroy_qp)(self.qp.as_ptr()) }
    }
}

impl Qp<Fresh> {
    /// Calls `ibv_create_qp`. A queue pair receives immediates from its SRQ, else from its own
    /// receive queue.
    pub fn new(pd: &Arc<Pd>, cq: &Arc<Cq>, srq: Option<&Arc<Srq>>, options: QpOptions) -> Result<Self> {
        // SAFETY: open context.
        let post_send = unsafe { (*pd.context().as_ptr()).ops.post_send }
            .ok_or_else(|| Error::Internal(format!("{} has no ibv_post_send", pd.context().name())))?;
        // SAFETY: all-zero is a valid struct: integers and null pointers.
        let mut init: sys::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.send_cq = cq.as_ptr();
        init.recv_cq = cq.as_ptr();
        init.srq = srq.map_or(ptr::null_mut(), |s| s.as_ptr());
        init.qp_type = sys::ibv_qp_type::IBV_QPT_RC;
        init.cap.max_send_wr = options.send_depth;
        init.cap.max_send_sge = 1;
        init.cap.max_inline_data = options.inline;
        // Some providers refuse a receive queue of length 0, or one for receives without buffers.
        let receives = if srq.is_some() { 0 } else { options.receives.max(1) };
        init.cap.max_recv_wr = receives;
        init.cap.max_recv_sge = receives.min(1);
        let on = || {
            let name = pd.context().name();
            format!("{name} with {} send requests and {receives} receives", options.send_depth)
        };
        let create = || {
            // SAFETY: live PD, CQ and SRQ; filled struct.
            let qp = unsafe { (pd.context().verbs().ibv_create_qp)(pd.as_ptr(), &raw mut init) };
            if !qp.is_null() || options.inline == 0 {
                return qp;
            }
            init.cap.max_send_wr = options.send_depth;
            init.cap.max_inline_data = 0;
            init.cap.max_recv_wr = receives;
            // SAFETY: as above.
            unsafe { (pd.context().verbs().ibv_create_qp)(pd.as_ptr(), &raw mut init) }
        };
        let qp = make("ibv_create_qp", on, create)?;
        let raw = Raw {
            qp,
            post_send,
            // SAFETY: just made.
            number: unsafe { qp.as_ref().qp_num },
            // The device may provide a deeper queue, but the CQ was made for the requested depth.
            send_depth: init.cap.max_send_wr.min(options.send_depth),
            // All or none: mlx5 and ionic have some even if none are requested.
            inline: if init.cap.max_inline_data < options.inline { 0 } else { init.cap.max_inline_data },
            reached: Reached::Reset,
            is_destroyed: false,
            cq: Arc::clone(cq),
            _srq: srq.cloned(),
            _pd: Arc::clone(pd),
        };
        Ok(Self { raw, state: PhantomData })
    }

    /// Moves the queue pair to INIT, RTR and RTS. After a failure it stays in the state it has
    /// reached; another call with the same path continues from there.
    pub fn advance(&mut self, path: &Path, timing: Timing) -> Result<()> {
        if self.raw.reached < Reached::Init {
            self.enter_init(path)?;
        }
        if self.raw.reached < Reached::Rtr {
            self.enter_rtr(path)?;
        }
        if self.raw.reached < Reached::Rts {
            self.enter_rts(path, timing)?;
        }
        Ok(())
    }

    /// Returns the number of completed state changes.
    pub(crate) fn changes(&self) -> u32 {
        self.raw.reached as u32
    }

    /// Returns whether the queue pair is in RTS.
    pub(crate) fn is_connected(&self) -> bool {
        self.raw.reached == Reached::Rts
    }

    /// Returns the queue pair as one that can post.
    ///
    /// # Errors
    /// [`advance`](Self::advance) has not reached RTS.
    pub fn ready(self) -> Result<Qp<Ready>> {
        let Raw { number, reached, .. } = self.raw;
        if reached < Reached::Rts {
            return Err(Error::Internal(format!("queue pair {number} is to be used in state {reached:?}")));
        }
        Ok(Qp { raw: self.raw, state: PhantomData })
    }

    fn enter_init(&mut self, path: &Path) -> Result<()> {
        let mut init = blank();
        init.qp_state = sys::ibv_qp_state::IBV_QPS_INIT;
        init.port_num = path.port;
        init.pkey_index = path.pkey_index;
        init.qp_access_flags = match path.access {
            Access::Write => sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE.0,
            Access::Read => sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ.0,
            Access::Both => {
                (sys::ibv_access_flags::IBV_ACCESS_REMOTE_WRITE
                    | sys::ibv_access_flags::IBV_ACCESS_REMOTE_READ)
                    .0
            }
        };
        let what =
            bits::IBV_QP_STATE | bits::IBV_QP_PKEY_INDEX | bits::IBV_QP_PORT | bits::IBV_QP_ACCESS_FLAGS;
        self.modify(Reached::Init, &mut init, what.0, path)
    }

    fn enter_rtr(&mut self, path: &Path) -> Result<()> {
        if let Some(ece) = path.ece {
            // SAFETY: live QP.
            let rc = unsafe { self.raw.verbs().set_ece(self.raw.qp.as_ptr(), ece) };
            zero("ibv_set_ece", rc, || self.describe("RTR", path))?;
        }
        let mut rtr = blank();
        rtr.qp_state = sys::ibv_qp_state::IBV_QPS_RTR;
        rtr.path_mtu = path.mtu.into();
        rtr.dest_qp_num = path.qpn;
        rtr.rq_psn = path.peer_psn;
        rtr.max_dest_rd_atomic = 1;
        rtr.min_rnr_timer = 12;
        rtr.ah_attr.port_num = path.port;
        rtr.ah_attr.sl = path.service_level;
        rtr.ah_attr.dlid = path.lid;
        if let Some(gid) = path.gid {
            rtr.ah_attr.is_global = 1;
            rtr.ah_attr.grh.dgid = sys::ibv_gid { raw: gid };
            rtr.ah_attr.grh.sgid_index = path.gid_index;
            rtr.ah_attr.grh.hop_limit = 255;
            rtr.ah_attr.grh.traffic_class = path.traffic_class;
        }
        let what = bits::IBV_QP_STATE
            | bits::IBV_QP_AV
            | bits::IBV_QP_PATH_MTU
            | bits::IBV_QP_DEST_QPN
            | bits::IBV_QP_RQ_PSN
            | bits::IBV_QP_MAX_DEST_RD_ATOMIC
            | bits::IBV_QP_MIN_RNR_TIMER;
        self.modify(Reached::Rtr, &mut rtr, what.0, path)
    }

    fn enter_rts(&mut self, path: &Path, timing: Timing) -> Result<()> {
        let mut rts = blank();
        rts.qp_state = sys::ibv_qp_state::IBV_QPS_RTS;
        rts.timeout = timing.timeout;
        rts.retry_cnt = timing.retries;
        rts.rnr_retry = 7;
        rts.sq_psn = path.psn;
        rts.max_rd_atomic = 1;
        let what = bits::IBV_QP_STATE
            | bits::IBV_QP_TIMEOUT
            | bits::IBV_QP_RETRY_CNT
            | bits::IBV_QP_RNR_RETRY
            | bits::IBV_QP_SQ_PSN
            | bits::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(Reached::Rts, &mut rts, what.0, path)
    }

    fn modify(&mut self, to: Reached, attr: &mut sys::ibv_qp_attr, mask: u32, path: &Path) -> Result<()> {
        // SAFETY: live QP, filled struct.
        let rc = unsafe { (self.raw.verbs().ibv_modify_qp)(self.raw.qp.as_ptr(), attr, mask as i32) };
        zero("ibv_modify_qp", rc, || self.describe(&format!("{to:?}").to_uppercase(), path))?;
        self.raw.reached = to;
        Ok(())
    }

    fn describe(&self, state: &str, path: &Path) -> String {
        let device = self.raw.cq.context().name();
        let to = path
            .gid
            .map_or_else(|| format!("LID {}", path.lid), |gid| std::net::Ipv6Addr::from(gid).to_string());
        format!(
            "to {state}, {device} port {} GID index {} QP {}, towards {to} QP {}",
            path.port, path.gid_index, self.raw.number, path.qpn
        )
    }
}

impl<S> Qp<S> {
    /// Destroys the queue pair.
    ///
    /// # Errors
    /// The adapter may still access memory for it. An adapter that was removed does not: the kernel
    /// destroys what is left on it.
    pub(crate) fn destroy(mut self) -> Result<()> {
        let rc = self.raw.destroy();
        let on = || {
            let (name, number) = (self.raw.cq.context().name(), self.raw.number);
            format!("{name} QP {number}, which may still receive, so no memory of its connection is safe")
        };
        match zero("ibv_destroy_qp", rc, on) {
            Err(Error::Verbs { source, .. }) if is_removal(&source) => Ok(()),
            result => result,
        }
    }

    /// Returns the options of enhanced connection establishment: the device's own before the
    /// connection, the ones in effect after it. `None` if the device or the library does not
    /// support it.
    pub(crate) fn ece(&self) -> Result<Option<Ece>> {
        // SAFETY: live QP.
        let (rc, ece) = unsafe { self.raw.verbs().query_ece(self.raw.qp.as_ptr()) };
        if rc == libc::EOPNOTSUPP {
            return Ok(None);
        }
        zero("ibv_query_ece", rc, || format!("{} QP {}", self.raw.cq.context().name(), self.raw.number))?;
        Ok(Some(ece))
    }

    /// Returns the queue pair's number.
    pub fn number(&self) -> u32 {
        self.raw.number
    }

    /// Returns the depth of the send queue.
    #[inline]
    pub(crate) fn send_depth(&self) -> u32 {
        self.raw.send_depth
    }

    /// Returns the number of bytes that a work request may carry inline.
    #[inline]
    pub(crate) fn inline(&self) -> u32 {
        self.raw.inline
    }
}

impl Qp<Ready> {
    /// Posts the chain with one `ibv_post_send`, which is one doorbell, and empties it.
    #[inline(always)]
    pub fn post(&self, chain: &mut Chain) -> Fast<()> {
        let first = chain.first();
        if first.is_null() {
            return Ok(());
        }
        let mut bad = ptr::null_mut();
        // SAFETY: live QP in RTS, and a linked chain whose entries and inline bytes live during the
        // call. The device checks registered memory.
        let rc = unsafe { (self.raw.post_send)(self.raw.qp.as_ptr(), first, &raw mut bad) };
        chain.clear();
        if rc == 0 { Ok(()) } else { self.post_rest(rc, bad) }
    }

    /// Posts `n` of the receives, or all if there are fewer, to the queue pair's own receive queue
    /// with one call. Returns how many are posted: fewer if the provider asks to try again soon.
    pub fn post_receives(&self, blanks: &Blanks, n: usize) -> Result<usize> {
        // SAFETY: live QP past RESET, and a chain that the provider reads and does not write.
        let posted =
            blanks.post(n, |first, bad| unsafe { sys::ibv_post_recv(self.raw.qp.as_ptr(), first, bad) });
        let on = || format!("{} QP {}", self.raw.cq.context().name(), self.raw.number);
        posted.map_err(|rc| failed("ibv_post_recv", rc, on))
    }

    /// Posts the write: one doorbell.
    #[inline(always)]
    pub(crate) fn post_imm(&self, write: &mut ImmWrite) -> Fast<()> {
        self.post_prepared(write.prepared())
    }

    /// Posts the write: one doorbell.
    #[inline(always)]
    pub(crate) fn post_words<const N: usize>(&self, write: &mut WordsWrite<N>) -> Fast<()> {
        self.post_prepared(write.prepared())
    }

    #[inline(always)]
    fn post_prepared(&self, write: &mut Prepared) -> Fast<()> {
        let mut bad = ptr::null_mut();
        // SAFETY: live QP in RTS, and one work request with its entry, which live during the call
        // with the bytes that they contain. The device checks registered memory.
        let rc = unsafe { (self.raw.post_send)(self.raw.qp.as_ptr(), write.as_ptr(), &raw mut bad) };
        if rc == 0 { Ok(()) } else { self.post_rest(rc, bad) }
    }

    /// Posts the work requests from `bad` on again as long as the provider asks to try again soon
    /// (EAGAIN), and no more than [`TRIES`] times. Work requests before it are posted.
    ///
    /// # Errors
    /// The provider refuses for another reason, or still after that.
    #[cold]
    fn post_rest(&self, mut rc: i32, mut bad: *mut sys::ibv_send_wr) -> Fast<()> {
        for _ in 0..TRIES {
            if !is_put_off(rc) || bad.is_null() {
                break;
            }
            std::hint::spin_loop();
            let rest = bad;
            // SAFETY: live QP in RTS, and the rest of a chain whose entries and inline bytes live
            // during the call of the caller.
            rc = unsafe { (self.raw.post_send)(self.raw.qp.as_ptr(), rest, &raw mut bad) };
        }
        match rc {
            0 => Ok(()),
            _ => Err(failed("ibv_post_send", rc, || self.raw.cq.context().name().to_owned()).into()),
        }
    }
}
