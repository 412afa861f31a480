//! Registered memory and what moves through it.

use std::{
    ffi::{c_int, c_void},
    ptr::NonNull,
};

use crate::raw::Ptr;

/// Most receives that [`RecvComm::irecv`](crate::RecvComm::irecv) takes, as NCCL's core does.
pub const MAX_GROUP: usize = 8;

/// The place into which `test` writes sizes. As large as NCCL's, since a plugin may write zeros
/// behind the sizes of its request.
pub type Sizes = [c_int; 64];

/// Sizes before a call of `test`.
pub const NO_SIZES: Sizes = [0; 64];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Owner {
    Caller,
    Buffer,
}

/// A registration. Dropping it does not end it; see [`Comm::dereg_mr`](crate::Comm::dereg_mr).
#[derive(Debug)]
pub struct Mr {
    pub(crate) ptr: NonNull<c_void>,
    pub(crate) comm: u64,
    pub(crate) addr: *mut u8,
    pub(crate) len: usize,
    pub(crate) owner: Owner,
}

// SAFETY: NCCL itself passes registrations between its threads.
unsafe impl Send for Mr {}

impl Mr {
    /// Returns the pointer that `regMr` gave. For calls of [`Raw`](crate::Raw).
    pub const fn as_ptr(&self) -> Ptr {
        self.ptr.as_ptr()
    }

    /// Returns where the memory begins.
    pub const fn addr(&self) -> *mut u8 {
        self.addr
    }

    /// Returns how many bytes are registered.
    #[allow(clippy::len_without_is_empty, reason = "an empty registration is of no use")]
    pub const fn len(&self) -> usize {
        self.len
    }
}

/// Registered bytes that the crate owns, from [`Comm::register`](crate::Comm::register) to
/// [`Comm::release`](crate::Comm::release). Dropping a buffer leaks them.
#[derive(Debug)]
pub struct Buffer {
    pub(crate) mr: Mr,
    pub(crate) bytes: NonNull<[u8]>,
}

// SAFETY: the bytes are reachable through this buffer alone.
unsafe impl Send for Buffer {}

impl Buffer {
    /// Returns the registration.
    pub const fn mr(&self) -> &Mr {
        &self.mr
    }
}

/// One receive of a group.
#[derive(Debug, Clone, Copy)]
pub struct Recv<'a> {
    /// The registration of the memory.
    pub mr: &'a Mr,
    /// Where in the registration the data goes.
    pub offset: usize,
    /// Room for the message, in bytes.
    pub len: usize,
    /// Which of the peer's messages is meant.
    pub tag: c_int,
}

/// A send, a receive or a flush, in flight until [`Comm::test`](crate::Comm::test) reports that it
/// is done.
#[derive(Debug)]
#[must_use]
pub struct Request {
    pub(crate) ptr: NonNull<c_void>,
    pub(crate) comm: u64,
    pub(crate) receives: usize,
    pub(crate) done: bool,
}

// SAFETY: NCCL itself passes requests between its threads.
unsafe impl Send for Request {}

impl Request {
    /// Returns the pointer that the plugin gave. For calls of [`Raw`](crate::Raw).
    pub const fn as_ptr(&self) -> Ptr {
        self.ptr.as_ptr()
    }

    /// Returns whether `test` reported that the request is done.
    pub const fn is_done(&self) -> bool {
        self.done
    }
}
