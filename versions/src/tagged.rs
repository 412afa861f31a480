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
pub(crate) const CLOSED: u64 = u64::from_ne_bytes(*b"net done");

/// A value behind a tag that identifies its kind, which C holds by its address.
///
/// An implementation keeps its requests in this form, at addresses that stay valid as long as the
/// comm: in a [`Slab`](crate::Slab) or a [`RequestPool`](crate::RequestPool), by which a request is
/// recognised after the end of its comm, too. The adapters make all other handles.
#[repr(C)]
#[derive(Debug)]
pub struct Tagged<T> {
    /// Atomic: a faulty caller may read it while another thread closes the handle.
    pub(crate) tag: AtomicU64,
    pub(crate) value: T,
}

impl<T> Tagged<T> {
    /// Changes the tag.
    pub(crate) fn mark(&self, tag: u64) {
        self.tag.store(tag, Ordering::Release);
    }
}

impl<T> Deref for Tagged<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        &self.value
    }
}
