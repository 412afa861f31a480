//! Values that C holds by their address.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

/// The kind of a handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Context,
    Listen,
    Send,
    Recv,
    Mr,
    Request,
}

impl Kind {
    /// Returns the number in front of a value. It is readable text in a memory dump.
    pub(crate) const fn tag(self) -> u64 {
        u64::from_ne_bytes(match self {
            Self::Context => *b"net ctx ",
            Self::Listen => *b"net list",
            Self::Send => *b"net send",
            Self::Recv => *b"net recv",
            Self::Mr => *b"net mr  ",
            Self::Request => *b"net req ",
        })
    }

    /// Returns the name for messages.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Context => "context",
            Self::Listen => "listenComm",
            Self::Send => "sendComm",
            Self::Recv => "recvComm",
            Self::Mr => "mhandle",
            Self::Request => "request",
        }
    }
}

/// The tag of a value that was closed.
const CLOSED: u64 = u64::from_ne_bytes(*b"net done");

/// A value behind a tag that identifies its kind, which C holds by its address.
///
/// An implementation keeps its requests in this form, at stable addresses that live as long as the
/// comm: see [`RequestPool`](crate::RequestPool). The adapters create all other handles.
#[repr(C)]
#[derive(Debug)]
pub struct Tagged<T> {
    /// Atomic: a faulty caller may read it while another thread closes the handle.
    tag: AtomicU64,
    value: T,
}

impl<T> Tagged<T> {
    /// Wraps a request. It must not move while NCCL holds it.
    pub const fn new(value: T) -> Self {
        Self::of(Kind::Request, value)
    }

    pub(crate) const fn of(kind: Kind, value: T) -> Self {
        Self { tag: AtomicU64::new(kind.tag()), value }
    }

    /// Marks the value as closed, to catch later uses of the handle. The compiler may drop this
    /// store before the memory is freed; the allocator usually overwrites the tag then.
    pub(crate) fn retire(&self) {
        self.tag.store(CLOSED, Ordering::Release);
    }

    pub(crate) fn into_value(self) -> T {
        self.value
    }
}

impl<T> Deref for Tagged<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}
