//! The calls of libibverbs, and how long each takes on a device.

use std::time::Duration;

use rdma_sys::ibv_qp_state as state;

use super::quantity;

/// A time that does not end: the call hangs until `heal`.
pub(crate) const NEVER: u64 = u64::MAX;

macro_rules! calls {
    ($($(#[doc = $doc:literal])+ $call:ident = $name:literal,)*) => {
        /// A call of libibverbs on a device. The changes of state of a queue pair count as calls.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum Call { $($(#[doc = $doc])+ $call,)* }

        impl Call {
            /// All calls, in the order of their numbers.
            pub const ALL: &[Self] = &[$(Self::$call,)*];

            /// Returns the name of the call in faults and in the key `verb_time`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$call => $name,)* }
            }
        }

        /// The number of calls.
        pub(crate) const CALLS: usize = [$(Call::$call,)*].len();
    };
}

calls! {
    /// `ibv_open_device`
    OpenDevice = "open_device",
    /// `ibv_close_device`
    CloseDevice = "close_device",
    /// `ibv_query_device` and `ibv_query_device_ex`
    QueryDevice = "query_device",
    /// `ibv_query_port`
    QueryPort = "query_port",
    /// `ibv_query_gid`, `ibv_query_gid_ex`, `ibv_query_gid_table` and `ibv_query_gid_type`
    QueryGid = "query_gid",
    /// `ibv_query_pkey` and `ibv_get_pkey_index`
    QueryPkey = "query_pkey",
    /// `ibv_alloc_pd`
    AllocPd = "alloc_pd",
    /// `ibv_dealloc_pd`
    DeallocPd = "dealloc_pd",
    /// `ibv_create_cq`
    CreateCq = "create_cq",
    /// `ibv_destroy_cq`
    DestroyCq = "destroy_cq",
    /// `ibv_create_srq`
    CreateSrq = "create_srq",
    /// `ibv_destroy_srq`
    DestroySrq = "destroy_srq",
    /// `ibv_create_qp`
    CreateQp = "create_qp",
    /// `ibv_destroy_qp`
    DestroyQp = "destroy_qp",
    /// `ibv_modify_qp` to RESET
    ModifyReset = "modify_reset",
    /// `ibv_modify_qp` to INIT
    ModifyInit = "modify_init",
    /// `ibv_modify_qp` to RTR
    ModifyRtr = "modify_rtr",
    /// `ibv_modify_qp` to RTS
    ModifyRts = "modify_rts",
    /// `ibv_modify_qp` to SQD
    ModifySqd = "modify_sqd",
    /// `ibv_modify_qp` to ERR
    ModifyErr = "modify_err",
    /// `ibv_modify_qp` that connects a queue pair to itself, besides the change to RTR
    ModifyLoopback = "modify_loopback",
    /// `ibv_reg_mr` and its variants for memory of the process
    RegMr = "reg_mr",
    /// `ibv_reg_dmabuf_mr`
    RegDmabufMr = "reg_dmabuf_mr",
    /// `ibv_dereg_mr`
    DeregMr = "dereg_mr",
    /// `ibv_get_async_event` while an event waits
    GetAsyncEvent = "get_async_event",
    /// The post of a work request to a send queue
    PostSend = "post_send",
    /// The post of a receive to a queue pair or a shared receive queue
    PostRecv = "post_recv",
    /// `ibv_poll_cq`, which returns the errno negated
    PollCq = "poll_cq",
}

/// `modify_qp` in text: a change to any state.
const MODIFY: &str = "modify_qp";
const MODIFIES: [Call; 6] =
    [Call::ModifyReset, Call::ModifyInit, Call::ModifyRtr, Call::ModifyRts, Call::ModifySqd, Call::ModifyErr];

impl Call {
    /// Returns the change of a queue pair to a state (`enum ibv_qp_state`).
    pub(crate) const fn modify_to(to: u32) -> Option<Self> {
        Some(match to {
            state::IBV_QPS_RESET => Self::ModifyReset,
            state::IBV_QPS_INIT => Self::ModifyInit,
            state::IBV_QPS_RTR => Self::ModifyRtr,
            state::IBV_QPS_RTS => Self::ModifyRts,
            state::IBV_QPS_SQD => Self::ModifySqd,
            state::IBV_QPS_ERR => Self::ModifyErr,
            _ => return None,
        })
    }

    /// Whether it is a command to the adapter, which may take time. Posts and polls are none.
    pub(crate) const fn is_command(self) -> bool {
        !matches!(self, Self::PostSend | Self::PostRecv | Self::PollCq)
    }

    /// Parses a name, which may stand for several calls.
    pub(crate) fn parse(text: &str) -> Result<Vec<Self>, String> {
        if text == MODIFY {
            return Ok(MODIFIES.to_vec());
        }
        let call = Self::ALL.iter().find(|call| call.name() == text);
        call.map(|call| vec![*call]).ok_or_else(|| {
            let names: Vec<_> = Self::ALL.iter().map(|call| call.name()).collect();
            format!("found {:?}, expected one of the calls {MODIFY}, {}", text, names.join(", "))
        })
    }
}

/// Parses a time of a call: a time with its unit, or `never`.
pub(crate) fn time(text: &str) -> Result<u64, String> {
    match text {
        "never" => Ok(NEVER),
        _ => quantity::nanoseconds(text).map_err(|why| format!("{why}, or never")),
    }
}

/// Returns the nanoseconds of a time; [`Duration::MAX`] does not end.
pub(crate) fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(NEVER)
}

/// How long each call of a device takes, in nanoseconds: a verb is a command to the adapter's
/// firmware.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerbTime([u64; CALLS]);

impl Default for VerbTime {
    fn default() -> Self {
        Self([0; CALLS])
    }
}

impl VerbTime {
    /// Lets a call take this long, at most 10 s. [`Duration::MAX`]: it hangs until
    /// [`heal`](crate::heal). Posts and polls take no time.
    pub fn set(&mut self, call: Call, time: Duration) {
        self.0[call as usize] = nanoseconds(time);
    }

    /// Returns the nanoseconds of a call.
    pub(crate) const fn of(&self, call: Call) -> u64 {
        self.0[call as usize]
    }

    /// Returns the longest time that ends.
    pub(crate) fn slowest(&self) -> u64 {
        self.0.iter().copied().filter(|ns| *ns != NEVER).max().unwrap_or(0)
    }

    /// Whether a post or a poll takes time.
    pub(crate) fn slows_posts(&self) -> bool {
        Call::ALL.iter().any(|call| !call.is_command() && self.of(*call) > 0)
    }

    /// Parses the key `verb_time`: `CALL:TIME`, joined by `+`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut times = Self::default();
        for one in text.split('+') {
            let (call, text) =
                one.split_once(':').ok_or("expected calls with their times, like destroy_qp:5ms")?;
            let ns = time(text)?;
            Call::parse(call)?.into_iter().for_each(|call| times.0[call as usize] = ns);
        }
        Ok(times)
    }
}
