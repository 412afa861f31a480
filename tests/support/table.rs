//! The plugin's exported tables. The calls go through `nccl_net_host`; here they have fewer
//! arguments and return what C writes.

use std::cell::RefCell;
use std::ffi::c_int;
use std::ptr::{NonNull, null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use nccl_net_abi as abi;
use nccl_net_host as host;
use nccl_net_host::{MAX_RAW_GROUP, Properties, Raw};

pub use nccl_net_host::Ptr;

use crate::code::{Code, Success, known};
use crate::log::c_logger;

/// One version's table. Every call returns NCCL's code and what C has written; pointers that C
/// writes start as null.
#[derive(Debug)]
pub struct Table(Raw);

macro_rules! tables {
    ($($symbol:ident),*) => {
        /// All versions, oldest first.
        pub const TABLES: &[&Table] = &[$({
            // SAFETY: the plugin's functions do what the header asks of them.
            let table = unsafe { host::Table::from_static(&nccl_net_mpib::$symbol) };
            // SAFETY: the plugin promises to refuse NULL, closed handles and wrong sizes. The tests
            // that pass such arguments test this promise; all others keep to the header.
            &Table(unsafe { table.raw() })
        }),*];
    };
}

tables! {
    ncclNetPlugin_v6, ncclNetPlugin_v7, ncclNetPlugin_v8, ncclNetPlugin_v9, ncclNetPlugin_v10,
    ncclNetPlugin_v11, ncclNetPlugin_v12
}

/// Returns the newest version, for tests that are not about versions.
pub fn newest() -> &'static Table {
    TABLES[TABLES.len() - 1]
}

/// Returns the table of a version.
#[track_caller]
pub fn table(version: u32) -> &'static Table {
    TABLES.iter().find(|table| table.version() == version).expect("a version from v6 to v12")
}

/// Returns an address as C passes it.
fn p(addr: usize) -> Ptr {
    without_provenance_mut(addr)
}

/// Returns one member of each buffer, then zeros.
fn column<B, T: Copy>(buffers: &[B], blank: T, get: impl Fn(&B) -> T) -> [T; MAX_RAW_GROUP] {
    let mut out = [blank; MAX_RAW_GROUP];
    for (place, b) in out.iter_mut().zip(buffers) {
        *place = get(b);
    }
    out
}

/// Runs a call with a place for a pointer. Returns the code and the pointer.
#[track_caller]
fn out(call: impl FnOnce(*mut Ptr) -> Code) -> (Code, Ptr) {
    let mut out = null_mut();
    let code = known(call(&raw mut out));
    (code, out)
}

/// A search for leaks finds the tables of files here.
static OF_FILES: Mutex<Vec<&Table>> = Mutex::new(Vec::new());

impl Table {
    /// Returns the table of a plugin's file, for as long as the process lives.
    ///
    /// # Safety
    /// `symbol` is the table of this version. The plugin is never unmapped and keeps its promises.
    pub unsafe fn at(version: u32, symbol: Ptr) -> &'static Self {
        // SAFETY: the caller's promise.
        let table = unsafe { host::Table::from_ptr(version, NonNull::new(symbol).unwrap()) };
        // SAFETY: as above.
        let table = Box::leak(Box::new(Self(unsafe { table.expect("a known version").raw() })));
        OF_FILES.lock().unwrap().push(table);
        table
    }

    /// Returns the functions with the arguments of C.
    pub const fn raw(&self) -> Raw {
        self.0
    }

    pub fn version(&self) -> u32 {
        self.0.table().version()
    }

    pub fn name(&self) -> String {
        self.0.table().name().expect("a name")
    }

    /// Calls `init` with the tests' logger, traffic class and profiler.
    #[track_caller]
    pub fn init(&self) -> (Code, Ptr) {
        out(|ctx| self.0.init(ctx, 1, config(), c_logger(), profiler()))
    }

    /// Calls `finalize`. Versions before v11 have none and succeed.
    #[track_caller]
    pub fn finalize(&self, ctx: Ptr) -> Code {
        if self.version() < 11 { Success } else { known(self.0.finalize(ctx)) }
    }

    #[track_caller]
    pub fn devices(&self) -> (Code, c_int) {
        let mut n = -1;
        let code = known(self.0.devices(&raw mut n));
        (code, n)
    }

    /// Returns a device's properties. A device must have a name.
    #[track_caller]
    pub fn properties(&self, dev: c_int) -> (Code, Option<Properties>) {
        let (code, properties) = self.0.properties(dev);
        assert!(properties.iter().all(|p| p.name.is_some()), "device {dev} has no name");
        (known(code), properties)
    }

    #[track_caller]
    pub fn listen(&self, ctx: Ptr, dev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr) {
        out(|comm| self.0.listen(ctx, dev, handle.as_mut_ptr().cast(), comm))
    }

    #[track_caller]
    pub fn connect(&self, ctx: Ptr, dev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr) {
        let handle = handle.as_mut_ptr().cast();
        out(|comm| self.0.connect(ctx, dev, config_or_null(), handle, comm, null_mut()))
    }

    #[track_caller]
    pub fn accept(&self, listen: Ptr) -> (Code, Ptr) {
        out(|comm| self.0.accept(listen, comm, null_mut()))
    }

    #[track_caller]
    pub fn reg_mr(&self, comm: Ptr, addr: usize, len: usize, kind: c_int) -> (Code, Ptr) {
        out(|mr| self.0.reg_mr(comm, p(addr), len, kind, mr))
    }

    #[track_caller]
    pub fn reg_mr_dma_buf(
        &self,
        comm: Ptr,
        (addr, len): (usize, usize),
        kind: c_int,
        (offset, fd): (u64, c_int),
    ) -> (Code, Ptr) {
        out(|mr| self.0.reg_mr_dma_buf(comm, p(addr), len, kind, offset, fd, mr))
    }

    #[track_caller]
    pub fn dereg_mr(&self, comm: Ptr, mr: Ptr) -> Code {
        known(self.0.dereg_mr(comm, mr))
    }

    #[track_caller]
    pub fn isend(&self, comm: Ptr, addr: usize, len: usize, tag: c_int, mr: Ptr) -> (Code, Ptr) {
        let operation = first(profiler_handles());
        out(|request| self.0.isend(comm, p(addr), len, tag, mr, operation, request))
    }

    #[track_caller]
    pub fn irecv(&self, comm: Ptr, buffers: &[(usize, usize, c_int, Ptr)]) -> (Code, Ptr) {
        self.irecv_as(comm, buffers, 0)
    }

    /// Calls `irecv` with `hint` in the place of the request.
    #[track_caller]
    pub fn irecv_as(&self, comm: Ptr, buffers: &[(usize, usize, c_int, Ptr)], hint: usize) -> (Code, Ptr) {
        let mut data = column(buffers, null_mut(), |b| p(b.0));
        let sizes = column(buffers, 0, |b| b.1);
        let mut tags = column(buffers, 0, |b| b.2);
        let mut mrs = column(buffers, null_mut(), |b| b.3);
        let (data, tags, mrs) = (data.as_mut_ptr(), tags.as_mut_ptr(), mrs.as_mut_ptr());
        let (n, operations) = (buffers.len() as c_int, profiler_handles());
        out(|request| {
            // SAFETY: `out` passes the address of a local variable.
            unsafe { *request = p(hint) };
            self.0.irecv(comm, n, data, Some(&sizes), tags, mrs, operations, request)
        })
    }

    #[track_caller]
    pub fn iflush(&self, comm: Ptr, buffers: &[(usize, usize, Ptr)]) -> (Code, Ptr) {
        let mut data = column(buffers, null_mut(), |b| p(b.0));
        let mut sizes = column(buffers, 0, |b| b.1 as c_int);
        let mut mrs = column(buffers, null_mut(), |b| b.2);
        let (data, sizes, mrs) = (data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr());
        out(|request| self.0.iflush(comm, buffers.len() as c_int, data, sizes, mrs, request))
    }

    /// Returns code, done, sizes.
    #[track_caller]
    pub fn test(&self, request: Ptr) -> (Code, bool, [c_int; 8]) {
        let (mut done, mut sizes) = (0, [0; 8]);
        let code = known(self.0.test(request, &raw mut done, sizes.as_mut_ptr()));
        (code, done != 0, sizes)
    }

    #[track_caller]
    pub fn close_send(&self, comm: Ptr) -> Code {
        known(self.0.close_send(comm))
    }

    #[track_caller]
    pub fn close_recv(&self, comm: Ptr) -> Code {
        known(self.0.close_recv(comm))
    }

    #[track_caller]
    pub fn close_listen(&self, listen: Ptr) -> Code {
        known(self.0.close_listen(listen))
    }
}

/// The communicators' traffic class; -1 is none.
static CLASS: AtomicI32 = AtomicI32::new(-1);

/// Gives communicators a traffic class from now on: by `init` of v11 and v12, by `connect` of v10.
pub fn set_traffic_class(class: c_int) {
    CLASS.store(class, Ordering::Relaxed);
}

/// Returns a configuration with the class. v10 and v11 have a type each, of the same layout.
fn config<T>() -> *mut T {
    CLASS.as_ptr().cast()
}

/// As [`config`]; null if there is no class, as some releases pass it.
fn config_or_null<T>() -> *mut T {
    if CLASS.load(Ordering::Relaxed) < 0 { null_mut() } else { config() }
}

/// The profiler's callback of NCCL, for `init` of v10 and later.
static PROFILER: Mutex<abi::ncclProfilerCallback_t> = Mutex::new(None);

/// Gives each `init` of v10 and later a profiler's callback from now on.
pub fn set_profiler(callback: abi::ncclProfilerCallback_t) {
    *PROFILER.lock().unwrap() = callback;
}

fn profiler() -> abi::ncclProfilerCallback_t {
    *PROFILER.lock().unwrap()
}

thread_local! {
    static HANDLES: RefCell<Option<Box<[Ptr; 8]>>> = const { RefCell::new(None) };
}

/// Gives `isend` (the first) and `irecv` of v10 and later, called by this thread, these handles for
/// the profiler from now on; at first there are none.
pub fn set_profiler_handles(handles: Option<[Ptr; 8]>) {
    HANDLES.set(handles.map(Box::new));
}

/// Returns NULL or eight handles.
fn profiler_handles() -> *mut Ptr {
    HANDLES.with_borrow_mut(|handles| handles.as_mut().map_or(null_mut(), |handles| handles.as_mut_ptr()))
}

/// Returns the first of such handles.
fn first(handles: *mut Ptr) -> Ptr {
    // SAFETY: null, or eight handles of this thread.
    if handles.is_null() { null_mut() } else { unsafe { *handles } }
}
