//! Each call of the interface once, in the widest form any version has. The thunks of a version fill in what
//! that version lacks.
//!
//! All of these are unsafe for one reason, and NCCL is trusted for it: a pointer argument is NULL or leads where
//! the header says, arrays have `n` entries, and a handle is not closed while another call uses it. NULL, wrong
//! handles, counts and sizes are checked here. Results are written in every case: first to NULL or 0, then to
//! what the call gives.

mod connection;
mod data;
mod memory;
mod setup;

pub(crate) use connection::{accept, close_listen, close_recv, close_send, connect, listen};
pub(crate) use data::{iflush, irecv, isend, test};
pub(crate) use memory::{dereg_mr, reg_mr, reg_mr_dma_buf};
pub(crate) use setup::{
    devices, finalize, get_properties, init_comm, init_process, make_vdevice, set_net_attr,
};

use core::ffi::{c_int, c_void};
use core::ptr::{self, NonNull};

use nccl_net_abi as abi;

use crate::{Buffer, CommConfig, NetPlugin, Refusal, handle, state};

/// Where a result goes.
struct Out<T>(NonNull<T>);

impl<T> Out<T> {
    /// # Safety
    /// `place` is NULL, or writable while this value lives.
    #[inline]
    unsafe fn new(what: &'static str, place: *mut T) -> Result<Self, Refusal> {
        NonNull::new(place).map(Self).ok_or(Refusal::Null(what))
    }

    /// As [`Out::new`], and holds `first` from now on.
    ///
    /// # Safety
    /// As [`Out::new`].
    #[inline]
    unsafe fn holding(what: &'static str, place: *mut T, first: T) -> Result<Self, Refusal> {
        // SAFETY: the caller's promise.
        let out = unsafe { Self::new(what, place) }?;
        out.put(first);
        Ok(out)
    }

    #[inline]
    fn put(&self, value: T) {
        // SAFETY: writable while this value lives, as promised to `new`.
        unsafe { self.0.write(value) }
    }
}

impl Out<*mut c_void> {
    /// As [`Out::holding`] NULL.
    ///
    /// # Safety
    /// As [`Out::new`].
    #[inline]
    unsafe fn null(what: &'static str, place: *mut *mut c_void) -> Result<Self, Refusal> {
        // SAFETY: the caller's promise.
        unsafe { Self::holding(what, place, ptr::null_mut()) }
    }

    /// As [`Out::null`], with the address that stood there, where that is `told`.
    ///
    /// # Safety
    /// As [`Out::new`], and readable where `told`.
    #[inline]
    unsafe fn nulled(
        what: &'static str,
        place: *mut *mut c_void,
        told: bool,
    ) -> Result<(Self, usize), Refusal> {
        // SAFETY: the caller's promise.
        let out = unsafe { Self::new(what, place) }?;
        // SAFETY: the caller's promise.
        let entry = if told { unsafe { out.0.read() }.addr() } else { 0 };
        out.put(ptr::null_mut());
        Ok((out, entry))
    }
}

/// A size as a version gives it. v9 widened messages to `size_t` and brought the hint in irecv's `*request`.
pub(crate) trait Length: Copy {
    /// Whether `*request` means something on entry to an `irecv` with sizes of this type.
    const RECV_HINT: bool;

    /// Bytes.
    fn bytes(self) -> Result<usize, Refusal>;
}

impl Length for c_int {
    const RECV_HINT: bool = false;

    #[inline]
    fn bytes(self) -> Result<usize, Refusal> {
        usize::try_from(self).map_err(|_| Refusal::Negative { what: "size", value: self })
    }
}

impl Length for usize {
    const RECV_HINT: bool = true;

    #[inline]
    fn bytes(self) -> Result<usize, Refusal> {
        Ok(self)
    }
}

/// A device index.
fn device(dev: c_int) -> Result<usize, Refusal> {
    usize::try_from(dev).map_err(|_| Refusal::Negative { what: "dev", value: dev })
}

/// Memory of NCCL's. Zero bytes may lie nowhere.
#[inline]
fn buffer(data: *mut c_void, len: usize) -> Result<Buffer, Refusal> {
    if data.is_null() && len > 0 {
        return Err(Refusal::Null("data"));
    }
    Ok(Buffer { addr: data.expose_provenance(), len })
}

/// A context as C holds it (v11 and later): with the settings that its connections take.
pub(crate) struct CommContext<P: NetPlugin> {
    context: P::Context,
    config: CommConfig,
}

/// Where `listen` and `connect` have their context from.
#[derive(Debug, Clone, Copy)]
pub(crate) enum ContextOf {
    /// From the one init of the process, with the settings of this connection (v6 to v10).
    Process(CommConfig),
    /// From the caller (v11 and later).
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
                // SAFETY: the caller's promise.
                let held = unsafe { handle::borrow::<P, CommContext<P>>("ctx", ctx) }?;
                Ok((&held.context, held.config))
            }
        }
    }
}

/// Copies a communicator's settings; NCCL gives NULL where it has none, and keeps them on its stack.
///
/// # Safety
/// `config` is NULL or readable.
pub(crate) unsafe fn comm_config(config: *const abi::v10::CommConfig) -> CommConfig {
    // SAFETY: the caller's promise.
    let class = unsafe { config.as_ref() }.map(|c| c.trafficClass);
    CommConfig { traffic_class: class.filter(|&class| class != abi::NCCL_NET_TRAFFIC_CLASS_UNDEF) }
}
