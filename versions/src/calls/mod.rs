//! Each call of the interface once, with the arguments of the newest version. The thunks of a
//! version supply the arguments that the version lacks.
//!
//! # Safety
//! All calls rely on the same promises of NCCL: a pointer argument is NULL or points to the memory
//! that the header describes, arrays have `n` entries, and no handle is closed while another call
//! uses it. The calls check NULL, handles, counts and sizes. They write every result: first NULL or
//! 0, then the value on success.

mod connection;
mod data;
mod memory;
pub(crate) mod rma;
mod setup;

pub(crate) use connection::{Sender, accept, close_listen, close_recv, close_send, connect, listen};
pub(crate) use data::{DueSend, PendingTest, collect, due, iflush, irecv, isend, test};
pub(crate) use memory::{dereg_mr, reg_mr, reg_mr_dma_buf};
pub(crate) use setup::{
    devices, finalize, get_properties, init_comm, init_process, make_vdevice, properties, set_net_attr,
};

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use nccl_net_abi as abi;

use crate::{Buffer, CommConfig, NetPlugin, Refusal, handle, state};

/// The place of a result.
#[repr(transparent)]
pub(crate) struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// While this value lives, `place` is NULL or writable.
    #[inline]
    unsafe fn new(what: &'static str, place: *mut T) -> Result<Self, Refusal> {
        NonNull::new(place).map(Self).ok_or(Refusal::Null(what))
    }

    /// Like [`Out::new`], and writes `first`.
    ///
    /// # Safety
    /// As for [`Out::new`].
    #[inline]
    unsafe fn holding(what: &'static str, place: *mut T, first: T) -> Result<Self, Refusal> {
        // SAFETY: as the caller promises.
        let out = unsafe { Self::new(what, place) }?;
        out.put(first);
        Ok(out)
    }

    #[inline]
    fn put(&self, value: T) {
        // SAFETY: writable, as promised to `new`.
        unsafe { self.0.write(value) }
    }
}

impl Out<*mut c_void> {
    /// Like [`Out::new`], and writes NULL.
    ///
    /// # Safety
    /// As for [`Out::new`].
    #[inline]
    unsafe fn null(what: &'static str, place: *mut *mut c_void) -> Result<Self, Refusal> {
        // SAFETY: as the caller promises.
        unsafe { Self::holding(what, place, ptr::null_mut()) }
    }

    /// Like [`Out::null`], and returns the address that the place held on entry, or 0 without
    /// `has_hint`.
    ///
    /// # Safety
    /// As for [`Out::new`], and readable if `has_hint`.
    #[inline]
    unsafe fn null_with_hint(
        what: &'static str,
        place: *mut *mut c_void,
        has_hint: bool,
    ) -> Result<(Self, usize), Refusal> {
        // SAFETY: as the caller promises.
        let out = unsafe { Self::new(what, place) }?;
        // SAFETY: as the caller promises.
        let hint = if has_hint { unsafe { out.0.read() }.addr() } else { 0 };
        out.put(ptr::null_mut());
        Ok((out, hint))
    }
}

/// A size argument. v9 widened message sizes to `size_t` and added the hint in `*request` of irecv.
pub(crate) trait Length: Copy {
    /// Whether an `irecv` with sizes of this type defines `*request` on entry.
    const RECV_HINT: bool;

    /// Returns the size in bytes.
    fn bytes(self) -> Result<usize, Refusal>;
}

impl Length for c_int {
    const RECV_HINT: bool = false;

    #[inline]
    fn bytes(self) -> Result<usize, Refusal> {
        index("size", self)
    }
}

impl Length for usize {
    const RECV_HINT: bool = true;

    #[inline]
    fn bytes(self) -> Result<usize, Refusal> {
        Ok(self)
    }
}

/// Checks an index or a number.
#[inline]
fn index(what: &'static str, value: c_int) -> Result<usize, Refusal> {
    usize::try_from(value).map_err(|_| Refusal::Negative { what, value })
}

/// Checks a buffer of NCCL's. An empty one may have the address NULL.
#[inline]
fn buffer(data: *mut c_void, len: usize) -> Result<Buffer, Refusal> {
    if data.is_null() {
        return null_data(len);
    }
    Ok(Buffer { addr: data.expose_provenance(), len })
}

#[cold]
#[inline(never)]
fn null_data(len: usize) -> Result<Buffer, Refusal> {
    if len > 0 { Err(Refusal::Null("data")) } else { Ok(Buffer { addr: 0, len }) }
}

/// A context as C holds it (v11 and later), with the settings of its connections.
pub(crate) struct CommContext<P: NetPlugin> {
    context: P::Context,
    config: CommConfig,
}

/// The source of the context in `listen` and `connect`.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContextOf {
    /// The context of the process, and the settings of this connection (v6 to v10).
    Process(CommConfig),
    /// The context that the caller passes (v11 and later).
    Caller(*mut c_void),
}

impl ContextOf {
    /// # Safety
    /// No other thread finalizes the caller's context during `'a`.
    unsafe fn find<'a, P: NetPlugin>(self) -> Result<(&'a P::Context, CommConfig), Refusal> {
        match self {
            Self::Process(config) => {
                state::context::<P>().map(|context| (context, config)).ok_or(Refusal::NoContext)
            }
            Self::Caller(ctx) => {
                // SAFETY: as the caller promises.
                let held = unsafe { handle::borrow::<P, CommContext<P>>("ctx", ctx) }?;
                Ok((&held.context, held.config))
            }
        }
    }
}

/// Copies the settings of a communicator. NCCL passes NULL without settings, else a pointer into
/// its stack.
///
/// # Safety
/// `config` is NULL or readable.
pub(crate) unsafe fn comm_config(config: *const abi::v10::CommConfig) -> CommConfig {
    // SAFETY: NULL or readable, as the caller promises.
    let class = unsafe { config.as_ref() }.map(|c| c.trafficClass);
    CommConfig { traffic_class: class.filter(|&class| class != abi::NCCL_NET_TRAFFIC_CLASS_UNDEF) }
}
