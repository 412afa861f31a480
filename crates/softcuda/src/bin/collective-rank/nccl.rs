//! The functions of `nccl.h` that a rank uses.

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};

use softcuda::{
    DataType,
    rank::{Collective, Operator},
};

use crate::{Result, cuda::Stream, library::Library};

/// `ncclUniqueId`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

type RawComm = *mut c_void;
type Pointer = *mut c_void;

const IN_PROGRESS: c_int = 7;
/// `NCCL_WIN_COLL_SYMMETRIC`.
const WINDOW_FLAGS: c_int = 1;

/// The library of a release.
#[derive(Debug)]
pub(crate) struct Nccl {
    get_version: unsafe extern "C" fn(*mut c_int) -> c_int,
    get_unique_id: unsafe extern "C" fn(*mut UniqueId) -> c_int,
    init_rank: unsafe extern "C" fn(*mut RawComm, c_int, UniqueId, c_int) -> c_int,
    destroy: unsafe extern "C" fn(RawComm) -> c_int,
    abort: unsafe extern "C" fn(RawComm) -> c_int,
    async_error: unsafe extern "C" fn(RawComm, *mut c_int) -> c_int,
    last_error: unsafe extern "C" fn(RawComm) -> *const c_char,
    all_reduce: unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, RawComm, Stream) -> c_int,
    all_gather: unsafe extern "C" fn(Pointer, Pointer, usize, c_int, RawComm, Stream) -> c_int,
    reduce_scatter: unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, RawComm, Stream) -> c_int,
    broadcast: unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, RawComm, Stream) -> c_int,
    reduce: unsafe extern "C" fn(Pointer, Pointer, usize, c_int, c_int, c_int, RawComm, Stream) -> c_int,
    send: unsafe extern "C" fn(Pointer, usize, c_int, c_int, RawComm, Stream) -> c_int,
    recv: unsafe extern "C" fn(Pointer, usize, c_int, c_int, RawComm, Stream) -> c_int,
    group_start: unsafe extern "C" fn() -> c_int,
    group_end: unsafe extern "C" fn() -> c_int,
    /// From 2.19 on.
    register: Option<unsafe extern "C" fn(RawComm, Pointer, usize, *mut Pointer) -> c_int>,
    deregister: Option<unsafe extern "C" fn(RawComm, Pointer) -> c_int>,
    /// From 2.27 on.
    window_register: Option<unsafe extern "C" fn(RawComm, Pointer, usize, *mut Pointer, c_int) -> c_int>,
    window_deregister: Option<unsafe extern "C" fn(RawComm, Pointer) -> c_int>,
    mem_alloc: Option<unsafe extern "C" fn(*mut Pointer, usize) -> c_int>,
    mem_free: Option<unsafe extern "C" fn(Pointer) -> c_int>,
}

impl Nccl {
    /// Looks the functions up.
    pub(crate) fn of(library: &Library) -> Result<Self> {
        macro_rules! function {
            ($name:literal) => {
                // SAFETY: the function of nccl.h, whose signature the field has.
                unsafe { library.function($name)? }
            };
        }
        macro_rules! newer {
            ($name:literal) => {
                // SAFETY: as above.
                unsafe { library.function($name) }.ok()
            };
        }
        Ok(Self {
            get_version: function!(c"ncclGetVersion"),
            get_unique_id: function!(c"ncclGetUniqueId"),
            init_rank: function!(c"ncclCommInitRank"),
            destroy: function!(c"ncclCommDestroy"),
            abort: function!(c"ncclCommAbort"),
            async_error: function!(c"ncclCommGetAsyncError"),
            last_error: function!(c"ncclGetLastError"),
            all_reduce: function!(c"ncclAllReduce"),
            all_gather: function!(c"ncclAllGather"),
            reduce_scatter: function!(c"ncclReduceScatter"),
            broadcast: function!(c"ncclBroadcast"),
            reduce: function!(c"ncclReduce"),
            send: function!(c"ncclSend"),
            recv: function!(c"ncclRecv"),
            group_start: function!(c"ncclGroupStart"),
            group_end: function!(c"ncclGroupEnd"),
            register: newer!(c"ncclCommRegister"),
            deregister: newer!(c"ncclCommDeregister"),
            window_register: newer!(c"ncclCommWindowRegister"),
            window_deregister: newer!(c"ncclCommWindowDeregister"),
            mem_alloc: newer!(c"ncclMemAlloc"),
            mem_free: newer!(c"ncclMemFree"),
        })
    }

    fn last_error(&self, comm: RawComm) -> String {
        // SAFETY: takes a communicator or null, and returns a C string of the library.
        let text = unsafe { (self.last_error)(comm) };
        if text.is_null() {
            return "no message".into();
        }
        // SAFETY: not null.
        unsafe { CStr::from_ptr(text) }.to_string_lossy().trim_end().to_owned()
    }

    fn check(&self, call: &str, code: c_int) -> Result<()> {
        if code == 0 {
            return Ok(());
        }
        Err(format!("{call} returned {code}: {}", self.last_error(null_mut())).into())
    }

    pub(crate) fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: a place for a number.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&raw mut version) })?;
        Ok(version)
    }

    pub(crate) fn unique_id(&self) -> Result<UniqueId> {
        let mut id = UniqueId([0; 128]);
        // SAFETY: a place for an id.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&raw mut id) })?;
        Ok(id)
    }

    /// Joins the other ranks.
    pub(crate) fn join(&self, id: UniqueId, rank: u32, ranks: u32) -> Result<Comm<'_>> {
        let mut raw = null_mut();
        let (rank, ranks) = (rank.cast_signed(), ranks.cast_signed());
        // SAFETY: a place for a communicator; rank 0 made the id.
        let code = unsafe { (self.init_rank)(&raw mut raw, ranks, id, rank) };
        self.check("ncclCommInitRank", code)?;
        Ok(Comm { nccl: self, raw, rank, ranks })
    }
}

/// Memory of NCCL's, and its window.
#[derive(Debug)]
pub(crate) struct Window {
    memory: Pointer,
    /// NULL if the communicator has no windows. That is a success for NCCL.
    handle: Pointer,
}

impl Window {
    /// Returns whether NCCL returned a handle.
    pub(crate) fn has_handle(&self) -> bool {
        !self.handle.is_null()
    }
}

/// A communicator.
#[derive(Debug)]
pub(crate) struct Comm<'a> {
    nccl: &'a Nccl,
    raw: RawComm,
    rank: c_int,
    ranks: c_int,
}

/// The arguments of a collective.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    pub(crate) collective: Collective,
    pub(crate) element: DataType,
    pub(crate) operator: Operator,
    pub(crate) root: u32,
    pub(crate) count: usize,
    pub(crate) send: Pointer,
    pub(crate) receive: Pointer,
    pub(crate) stream: Stream,
}

impl Comm<'_> {
    /// Adds a collective to a stream.
    ///
    /// # Safety
    ///
    /// The buffers must have the elements of the collective and stay until the stream is done.
    pub(crate) unsafe fn enqueue(&self, call: Call) -> Result<()> {
        let Call { send, receive, count, stream, .. } = call;
        let (element, operator) = (call.element as c_int, call.operator as c_int);
        let (nccl, comm, root) = (self.nccl, self.raw, call.root.cast_signed());
        // SAFETY: buffers of the right size (caller), this communicator and a stream of its device.
        let code = unsafe {
            match call.collective {
                Collective::AllReduce => {
                    (nccl.all_reduce)(send, receive, count, element, operator, comm, stream)
                }
                Collective::AllReduceInPlace => {
                    (nccl.all_reduce)(receive, receive, count, element, operator, comm, stream)
                }
                Collective::AllGather => (nccl.all_gather)(send, receive, count, element, comm, stream),
                Collective::ReduceScatter => {
                    (nccl.reduce_scatter)(send, receive, count, element, operator, comm, stream)
                }
                Collective::Broadcast => (nccl.broadcast)(send, receive, count, element, root, comm, stream),
                Collective::Reduce => {
                    (nccl.reduce)(send, receive, count, element, operator, root, comm, stream)
                }
                Collective::SendRecv => return self.send_recv(call),
            }
        };
        nccl.check(call.collective.name(), code)
    }

    /// Sends to the next rank and receives from the one before.
    ///
    /// # Safety
    ///
    /// As [`Self::enqueue`].
    unsafe fn send_recv(&self, call: Call) -> Result<()> {
        let Call { send, receive, count, stream, .. } = call;
        let (nccl, element) = (self.nccl, call.element as c_int);
        let next = (self.rank + 1) % self.ranks;
        let before = (self.rank + self.ranks - 1) % self.ranks;
        // SAFETY: as in `enqueue`; the group is closed even if a call in it fails.
        let codes = unsafe {
            [
                (nccl.group_start)(),
                (nccl.send)(send, count, element, next, self.raw, stream),
                (nccl.recv)(receive, count, element, before, self.raw, stream),
                (nccl.group_end)(),
            ]
        };
        codes.into_iter().try_for_each(|code| nccl.check("send-recv", code))
    }

    /// Returns the asynchronous error, if there is one.
    pub(crate) fn asynchronous_error(&self) -> Result<Option<(i32, String)>> {
        let mut error = 0;
        // SAFETY: this communicator and a place for a number.
        let code = unsafe { (self.nccl.async_error)(self.raw, &raw mut error) };
        self.nccl.check("ncclCommGetAsyncError", code)?;
        let failed = error != 0 && error != IN_PROGRESS;
        Ok(failed.then(|| (error, self.nccl.last_error(self.raw))))
    }

    /// Registers a buffer. Returns the handle for [`Self::deregister`]; 2.19 returns none if no part
    /// of it can use the registration.
    ///
    /// # Safety
    ///
    /// The buffer must stay until it is deregistered.
    pub(crate) unsafe fn register(&self, buffer: Pointer, len: usize) -> Result<Option<Pointer>> {
        let register = self.nccl.register.ok_or("this release has no ncclCommRegister")?;
        let mut handle = null_mut();
        // SAFETY: a buffer that stays (caller) and a place for a handle.
        let code = unsafe { register(self.raw, buffer, len, &raw mut handle) };
        self.nccl.check("ncclCommRegister", code).map(|()| (!handle.is_null()).then_some(handle))
    }

    /// Ends a registration.
    ///
    /// # Safety
    ///
    /// The handle must be one of [`Self::register`] that was not used here before.
    pub(crate) unsafe fn deregister(&self, handle: Pointer) -> Result<()> {
        let deregister = self.nccl.deregister.ok_or("this release has no ncclCommDeregister")?;
        // SAFETY: a handle of this communicator (caller).
        self.nccl.check("ncclCommDeregister", unsafe { deregister(self.raw, handle) })
    }

    /// Allocates memory and registers it as a window, together with the other ranks.
    pub(crate) fn register_window(&self, len: usize) -> Result<Window> {
        let lacks = "this release has no ncclCommWindowRegister";
        let (allocate, register) = self.nccl.mem_alloc.zip(self.nccl.window_register).ok_or(lacks)?;
        let (mut memory, mut handle) = (null_mut(), null_mut());
        // SAFETY: a place for an address.
        self.nccl.check("ncclMemAlloc", unsafe { allocate(&raw mut memory, len) })?;
        // SAFETY: the memory stays until `deregister_window`, or until the process ends; a place for
        // a handle.
        let code = unsafe { register(self.raw, memory, len, &raw mut handle, WINDOW_FLAGS) };
        self.nccl.check("ncclCommWindowRegister", code).map(|()| Window { memory, handle })
    }

    /// Ends a window of this communicator and frees its memory.
    pub(crate) fn deregister_window(&self, window: Window) -> Result<()> {
        let lacks = "this release has no ncclCommWindowDeregister";
        let (free, deregister) = self.nccl.mem_free.zip(self.nccl.window_deregister).ok_or(lacks)?;
        // SAFETY: a window of `register_window`, or NULL, which NCCL ignores.
        let code = unsafe { deregister(self.raw, window.handle) };
        self.nccl.check("ncclCommWindowDeregister", code)?;
        // SAFETY: allocated by `register_window`, and no longer a window.
        self.nccl.check("ncclMemFree", unsafe { free(window.memory) })
    }

    /// Ends the communicator after all work.
    pub(crate) fn destroy(self) -> Result<()> {
        // SAFETY: this communicator, which is not used afterwards.
        self.nccl.check("ncclCommDestroy", unsafe { (self.nccl.destroy)(self.raw) })
    }

    /// Ends the communicator with its work. The communicator must not be used afterwards.
    pub(crate) fn abort(&self) -> Result<()> {
        // SAFETY: this communicator; the rank ends without another call.
        self.nccl.check("ncclCommAbort", unsafe { (self.nccl.abort)(self.raw) })
    }
}
