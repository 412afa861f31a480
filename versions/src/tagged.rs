//! Values that C holds by address.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

/// What a handle is.
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
    /// The number in front of a value. It reads as text in a memory dump.
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

    /// The name in messages.
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

/// What a tag becomes when its value goes.
const GONE: u64 = u64::from_ne_bytes(*b"net gone");

/// A value that C holds by address: a tag in front tells what it is. An implementation keeps its requests
/// in this shape, in a pool that lives as long as the comm; the adapters make all others.
#[repr(C)]
#[derive(Debug)]
pub struct Tagged<T> {
    /// Atomic, since a caller in error may look while another thread frees.
    tag: AtomicU64,
    value: T,
}

impl<T> Tagged<T> {
    /// A request for a pool. It must stay where it is while NCCL holds it.
    pub const fn new(value: T) -> Self {
        Self::of(Kind::Request, value)
    }

    pub(crate) const fn of(kind: Kind, value: T) -> Self {
        Self { tag: AtomicU64::new(kind.tag()), value }
    }

    /// Marks the value as gone, so that a handle kept too long is likely caught. Where the compiler drops this
    /// store to memory that is freed next, the allocator's own bookkeeping does the same.
    pub(crate) fn retire(&self) {
        self.tag.store(GONE, Ordering::Release);
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
