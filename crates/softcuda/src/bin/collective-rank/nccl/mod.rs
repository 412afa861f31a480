//! The functions of `nccl.h` that a rank uses.

mod one_sided;

use std::{
    ffi::{CStr, c_char, c_int, c_void},
    ptr::null_mut,
};

use softcuda::{
    DataType,
    rank::{Collective, NO_WINDOW, Operator},
};

use self::one_sided::OneSided;
pub(crate) use self::one_sided::Put;
use crate::{Result, cuda::Stream, library::Library};

/// `ncclUniqueId`, which is passed by value.
#[derive(Debug, Clone, Copy)]
#[repr(C)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

type RawComm = *mut c_void;
/// `ncclWindow_t`
pub(crate) type Window = *mut c_void;
type Pointer = *mut c_void;

const IN_PROGRESS: c_int = 7;
/// `NCCL_WIN_COLL_SYMMETRIC`
const SYMMETRIC: c_int = 1;

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
    mem_alloc: Option<unsafe extern "C" fn(*mut Pointer, usize) -> c_int>,
    /// From 2.27 on.
    open_window: Option<unsafe extern "C" fn(RawComm, Pointer, usize, *mut Window, c_int) -> c_int>,
    close_window: Option<unsafe extern "C" fn(RawComm, Window) -> c_int>,
    one_sided: OneSided,
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
            mem_alloc: newer!(c"ncclMemAlloc"),
            open_window: newer!(c"ncclCommWindowRegister"),
            close_window: newer!(c"ncclCommWindowDeregister"),
            one_sided: OneSided::of(library),
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

    /// Allocates memory that can be a window. It stays until the process ends.
    pub(crate) fn mem_alloc(&self, len: usize) -> Result<Pointer> {
        let alloc = self.mem_alloc.ok_or("this release has no ncclMemAlloc")?;
        let mut memory = null_mut();
        // SAFETY: a place for an address.
        self.check("ncclMemAlloc", unsafe { alloc(&raw mut memory, len) }).map(|()| memory)
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
    /// The window of all ranks' receive buffers, if they are one.
    pub(crate) window: Option<Window>,
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
                Collective::PutSignal => return self.put_to_next(call),
            }
        };
        nccl.check(call.collective.name(), code)
    }

    fn next(&self) -> c_int {
        (self.rank + 1) % self.ranks
    }

    fn before(&self) -> c_int {
        (self.rank + self.ranks - 1) % self.ranks
    }

    /// Puts into the window of the next rank and waits for the signal of the one before.
    ///
    /// # Safety
    ///
    /// As [`Self::enqueue`].
    unsafe fn put_to_next(&self, call: Call) -> Result<()> {
        let window = call.window.ok_or(NO_WINDOW)?;
        let put = Put {
            source: call.send,
            count: call.count,
            element: call.element,
            peer: self.next().cast_unsigned(),
            window,
            offset: 0,
        };
        // SAFETY: a buffer with the elements (caller), and a window of all ranks in which the next
        // rank's buffer has as many.
        unsafe { self.put(put, call.stream)? };
        self.wait_signals(&[(self.before().cast_unsigned(), 1)], call.stream)
    }

    /// Sends to the next rank and receives from the one before.
    ///
    /// # Safety
    ///
    /// As [`Self::enqueue`].
    unsafe fn send_recv(&self, call: Call) -> Result<()> {
        let Call { send, receive, count, stream, .. } = call;
        let (nccl, element) = (self.nccl, call.element as c_int);
        let (next, before) = (self.next(), self.before());
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

    /// Makes a window of a buffer, together with all ranks. NCCL makes none without a network for
    /// one-sided transfers.
    ///
    /// # Safety
    ///
    /// The buffer must be memory of [`Nccl::mem_alloc`], of the same size in all ranks.
    pub(crate) unsafe fn open_window(&self, buffer: Pointer, len: usize) -> Result<Option<Window>> {
        let open = self.nccl.open_window.ok_or("this release has no ncclCommWindowRegister")?;
        let mut window = null_mut();
        // SAFETY: a buffer that stays (caller) and a place for a window.
        let code = unsafe { open(self.raw, buffer, len, &raw mut window, SYMMETRIC) };
        self.nccl.check("ncclCommWindowRegister", code).map(|()| (!window.is_null()).then_some(window))
    }

    /// Ends a window.
    ///
    /// # Safety
    ///
    /// The window must be one of [`Self::open_window`] that was not used here before.
    pub(crate) unsafe fn close_window(&self, window: Window) -> Result<()> {
        let close = self.nccl.close_window.ok_or("this release has no ncclCommWindowDeregister")?;
        // SAFETY: a window of this communicator (caller).
        self.nccl.check("ncclCommWindowDeregister", unsafe { close(self.raw, window) })
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
