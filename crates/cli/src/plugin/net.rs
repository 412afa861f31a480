//! One face for every version of the table, in Rust types.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::NonNull,
};

use nccl_net_abi::ncclResult_t;
use serde::{Deserialize, Serialize};

use super::{logger, watch::Call};
use crate::failure::{Failure, Kind};

/// `NCCL_NET_HANDLE_MAXSIZE`
pub const HANDLE_BYTES: usize = nccl_net_abi::NCCL_NET_HANDLE_MAXSIZE;
/// Most receives that this tool puts into one `irecv`.
pub const MAX_GROUP: usize = 8;

/// The buffer that goes from `listen` to the peer's `connect`. Aligned as memory from malloc is.
#[derive(Debug, Clone)]
#[repr(C, align(16))]
pub struct Handle(pub [u8; HANDLE_BYTES]);

/// A non-NULL pointer that a plugin gave, of one of its kinds.
macro_rules! opaque {
    ($($(#[$doc:meta])+ $name:ident;)+) => {
        $($(#[$doc])+ #[derive(Debug, Clone, Copy, PartialEq, Eq)] pub struct $name(pub(super) NonNull<c_void>);)+
    };
}

opaque! {
    /// A listening, sending or receiving comm.
    Comm;
    /// A registration.
    Mr;
    /// A send or a receive under way.
    Request;
}

/// The properties that a driver needs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Device {
    /// `name`
    pub name: String,
    /// `speed`, Mb/s.
    pub speed: i32,
    /// `maxRecvs`
    pub max_recvs: i32,
    /// Bits of `NCCL_PTR_*`.
    pub ptr_support: i32,
    /// `maxP2pBytes`; 1 GiB where the version has no such field, as NCCL's core takes it.
    pub max_bytes: usize,
}

/// One receive of a group.
#[derive(Debug, Clone, Copy)]
pub struct Recv {
    /// Where the data goes.
    pub addr: *mut u8,
    /// Room there, in bytes.
    pub len: usize,
    /// Whose message is meant.
    pub tag: c_int,
    /// Registration of the memory.
    pub mr: Mr,
}

/// A plugin's table. Methods are its functions; errors say which one and what it returned.
///
/// Addresses must be of memory that stays where it is until the request that uses it is done, and be within the
/// registration given; handles must be of this table and not closed.
pub trait Net {
    /// The table's `name`.
    fn name(&self) -> String;
    /// As NCCL does for a communicator.
    fn init(&mut self) -> Result<(), Failure>;
    /// How many there are.
    fn devices(&self) -> Result<c_int, Failure>;
    /// Of one device.
    fn properties(&self, dev: c_int) -> Result<Device, Failure>;
    /// One device made of several; its index. A version or plugin that cannot is a failure.
    fn make_vdevice(&self, devices: &[c_int]) -> Result<c_int, Failure>;
    /// Fills the handle that the peer connects with.
    fn listen(&self, dev: c_int, handle: &mut Handle) -> Result<Comm, Failure>;
    /// `None`: not yet, call again with the same buffer.
    fn connect(&self, dev: c_int, handle: &mut Handle) -> Result<Option<Comm>, Failure>;
    /// `None`: not yet, call again.
    fn accept(&self, listen: Comm) -> Result<Option<Comm>, Failure>;
    /// Host memory.
    fn reg_mr(&self, comm: Comm, addr: *mut u8, len: usize) -> Result<Mr, Failure>;
    /// Ends a registration of this comm.
    fn dereg_mr(&self, comm: Comm, mr: Mr) -> Result<(), Failure>;
    /// `None`: not now, call again.
    fn isend(
        &self,
        comm: Comm,
        addr: *mut u8,
        len: usize,
        tag: c_int,
        mr: Mr,
    ) -> Result<Option<Request>, Failure>;
    /// At most [`MAX_GROUP`]; `None`: not now, call again.
    fn irecv(&self, comm: Comm, recvs: &[Recv]) -> Result<Option<Request>, Failure> {
        self.irecv_as(comm, recvs, false)
    }
    /// As [`irecv`](Self::irecv). `optional`: with the hint of v9 and later that the data itself shows when it is there, as NCCL gives it
    /// for single receives of its protocols LL and LL128. The request may be done before, and tell another size.
    fn irecv_as(&self, comm: Comm, recvs: &[Recv], optional: bool) -> Result<Option<Request>, Failure>;
    /// Makes what a finished receive brought visible to a GPU; each `len` is the size that arrived. `None`: nothing to wait for.
    fn iflush(&self, comm: Comm, recvs: &[Recv]) -> Result<Option<Request>, Failure>;
    /// Whether the request is done; `sizes` is filled when it is.
    fn test(&self, request: Request, sizes: &mut Sizes) -> Result<bool, Failure>;
    /// Tells that a finished receive's data was taken, to plugins that want to know.
    fn irecv_consumed(&self, comm: Comm, n: usize, request: Request) -> Result<(), Failure>;
    /// Ends a sending comm.
    fn close_send(&self, comm: Comm) -> Result<(), Failure>;
    /// Ends a receiving comm.
    fn close_recv(&self, comm: Comm) -> Result<(), Failure>;
    /// Ends a listening comm.
    fn close_listen(&self, comm: Comm) -> Result<(), Failure>;
    /// Nothing before v11.
    fn finalize(&mut self) -> Result<(), Failure>;
}

/// What `test` writes sizes into: as many as NCCL's core offers.
pub type Sizes = [c_int; 64];

/// `ncclResult_t` as NCCL prints it.
fn result_name(code: c_int) -> &'static str {
    match code {
        0 => "ncclSuccess",
        1 => "ncclUnhandledCudaError",
        2 => "ncclSystemError",
        3 => "ncclInternalError",
        4 => "ncclInvalidArgument",
        5 => "ncclInvalidUsage",
        6 => "ncclRemoteError",
        7 => "ncclInProgress",
        8 => "ncclTimeout",
        _ => "not a value of ncclResult_t",
    }
}

/// Turns what a call returned into a sentence, with the plugin's own last warning.
pub(super) fn returned(call: Call, result: ncclResult_t) -> Result<(), Failure> {
    if result.0 == 0 {
        return Ok(());
    }
    let mut message =
        format!("the plugin's {} returned {} ({})", call.name(), result.0, result_name(result.0));
    match logger::last_warning() {
        Some(line) => message += &format!("; its last warning: {line}"),
        None => message += "; it logged no warning",
    }
    Err(Failure::new(Kind::Call, message))
}

/// A call that succeeded but did not give what it must give.
pub(super) fn gave_null(call: Call, what: &str) -> Failure {
    Failure::new(
        Kind::Call,
        format!("the plugin's {} returned ncclSuccess but no {what} (NULL)", call.name()),
    )
}

/// NCCL would take the hint for a request.
pub(super) fn left_hint() -> Failure {
    Failure::new(
        Kind::Call,
        "the plugin's irecv returned ncclSuccess and left NCCL's hint for optional receives (0x1) where it must put a request, or NULL"
            .to_owned(),
    )
}

/// A string of a table or of properties; `None` for NULL.
///
/// # Safety
/// NULL or NUL-terminated, and not freed during the call.
pub(super) unsafe fn string(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: not NULL; the rest is the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}
