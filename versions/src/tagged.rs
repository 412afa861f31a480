//! Values that C holds by their address.

use core::cell::UnsafeCell;
use core::ffi::c_int;
use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

use nccl_net_abi::{NCCL_NET_TRAFFIC_CLASS_UNDEF, v11};

use crate::CommConfig;

/// The kind of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Listen,
    Send,
    Recv,
    Mr,
    Request,
    /// What `init` of an RMA table makes.
    RmaContext,
    RmaListen,
    RmaColl,
    /// What `createContext` of an RMA table makes.
    RmaCtx,
    RmaMr,
    RmaRequest,
}

impl Kind {
    /// Returns the tag of a value. It is readable text in a memory dump.
    pub(crate) const fn tag(self) -> u64 {
        u64::from_ne_bytes(match self {
            Self::Context => *b"net ctx ",
            Self::Listen => *b"net list",
            Self::Send => *b"net send",
            Self::Recv => *b"net recv",
            Self::Mr => *b"net mr  ",
            Self::Request => *b"net req ",
            Self::RmaContext => *b"rma init",
            Self::RmaListen => *b"rma list",
            Self::RmaColl => *b"rma coll",
            Self::RmaCtx => *b"rma ctx ",
            Self::RmaMr => *b"rma mr  ",
            Self::RmaRequest => *b"rma req ",
        })
    }

    /// Returns the name for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Context | Self::RmaContext => "context",
            Self::Listen | Self::RmaListen => "listenComm",
            Self::Send => "sendComm",
            Self::Recv => "recvComm",
            Self::Mr | Self::RmaMr => "mhandle",
            Self::Request | Self::RmaRequest => "request",
            Self::RmaColl => "collComm",
            Self::RmaCtx => "rmaCtx",
        }
    }
}

/// The tag of a value that was closed.
pub(crate) const CLOSED: u64 = u64::from_ne_bytes(*b"net done");

/// The front of a handle that NCCL also passes to others: its settings, in the layout of
/// `ncclNetCommConfig`.
///
/// NCCL's host RMA, since 2.29.2, passes the net plugin's context to `connect` of another table
/// (`connect(comm->netContext, …)`, src/rma/rma_proxy.cc). If that table is of NCCL's own
/// InfiniBand code, it takes the first int of the context for the traffic class of its queue pairs,
/// and from 2.30.3 on it also writes the communicator's class there. So the int holds that class,
/// and is never read here.
#[repr(C)]
#[derive(Debug)]
pub(crate) struct SharedConfig {
    _config: UnsafeCell<v11::CommConfig>,
    _spare: UnsafeCell<c_int>,
}

impl SharedConfig {
    pub(crate) fn new(config: &CommConfig) -> Self {
        let class = config.traffic_class.unwrap_or(NCCL_NET_TRAFFIC_CLASS_UNDEF);
        Self { _config: UnsafeCell::new(v11::CommConfig { trafficClass: class }), _spare: UnsafeCell::new(0) }
    }
}

/// A value behind a tag that identifies its kind, which C holds by its address.
///
/// An implementation keeps its requests in this form, at addresses that stay valid as long as the
/// comm: in a [`Slab`](crate::Slab) or a [`RequestPool`](crate::RequestPool), by which a request is
/// recognised after the end of its comm, too. The adapters make all other handles.
///
/// `Front` is what others than the adapters may read and write at the address: nothing for a
/// request.
#[repr(C)]
#[derive(Debug)]
pub struct Tagged<T, Front = ()> {
    pub(crate) front: Front,
    /// Atomic: a faulty caller may read it while another thread closes the handle.
    pub(crate) tag: AtomicU64,
    pub(crate) value: T,
}

impl<T, Front> Tagged<T, Front> {
    /// Returns whether a handle has the tag of this kind.
    ///
    /// # Safety
    /// `handle` is aligned, and readable up to the end of its tag.
    #[inline(always)]
    pub(crate) unsafe fn has_tag(handle: *const Self, kind: Kind) -> bool {
        // SAFETY: aligned and readable, as the caller promises.
        unsafe { (*handle).tag.load(Ordering::Relaxed) == kind.tag() }
    }

    /// Changes the tag.
    pub(crate) fn mark(&self, tag: u64) {
        self.tag.store(tag, Ordering::Release);
    }
}

impl<T, Front> Deref for Tagged<T, Front> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}
