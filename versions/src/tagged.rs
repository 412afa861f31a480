//! Values that C holds by address.

use core::ops::Deref;
use core::sync::atomic::{AtomicU64, Ordering};

/// What a handle is. The numbers lie in memory as readable text.
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
    /// A request for a pool.
    pub const fn new(value: T) -> Self {
        Self::of(Kind::Request, value)
    }

    pub(crate) const fn of(kind: Kind, value: T) -> Self {
        Self { tag: AtomicU64::new(kind.tag()), value }
    }

    pub(crate) fn is(&self, kind: Kind) -> bool {
        self.tag.load(Ordering::Relaxed) == kind.tag()
    }

    /// Marks the value as gone, so that a handle kept too long is likely caught.
    pub(crate) fn retire(&self) {
        // Atomic stores to memory that is freed next may in theory be dropped by the compiler; in practice
        // none does, and the allocator's own bookkeeping overwrites the place as well.
        self.tag.store(GONE, Ordering::Release);
    }

    pub(crate) fn into_value(self) -> T {
        self.value
    }
}

impl<T> Deref for Tagged<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}
