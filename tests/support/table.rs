//! Every version's table behind one trait. The calls go through the C function pointers of the
//! exported statics.

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::ptr::{null_mut, without_provenance_mut};
use std::sync::Mutex;
use std::sync::atomic::{AtomicI32, Ordering};

use nccl_net_abi as abi;

use crate::code::{Code, Success};
use crate::log::c_logger;

/// A handle of C's.
pub type Ptr = *mut c_void;

/// What a test asserts of a device.
#[derive(Debug, Clone, PartialEq)]
pub struct Props {
    pub name: String,
    pub pci_path: Option<String>,
    pub guid: u64,
    pub ptr_support: c_int,
    pub speed: c_int,
    pub port: c_int,
    pub max_comms: c_int,
    pub max_recvs: c_int,
}

/// One version's table. Every call gives NCCL's code and what was written; pointers that C writes
/// start as null.
pub trait Table: Sync {
    fn version(&self) -> u32;
    fn name(&self) -> String;
    fn init(&self) -> (Code, Ptr);
    fn finalize(&self, ctx: Ptr) -> Code;
    fn devices(&self) -> (Code, c_int);
    fn properties(&self, dev: c_int) -> (Code, Option<Props>);
    fn listen(&self, ctx: Ptr, dev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr);
    fn connect(&self, ctx: Ptr, dev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr);
    fn accept(&self, listen: Ptr) -> (Code, Ptr);
    fn reg_mr(&self, comm: Ptr, addr: usize, len: usize, kind: c_int) -> (Code, Ptr);
    fn reg_mr_dma_buf(
        &self,
        comm: Ptr,
        buffer: (usize, usize),
        kind: c_int,
        file: (u64, c_int),
    ) -> (Code, Ptr);
    fn dereg_mr(&self, comm: Ptr, mr: Ptr) -> Code;
    fn isend(&self, comm: Ptr, addr: usize, len: usize, tag: c_int, mr: Ptr) -> (Code, Ptr);
    fn irecv(&self, comm: Ptr, buffers: &[(usize, usize, c_int, Ptr)]) -> (Code, Ptr) {
        self.irecv_as(comm, buffers, 0)
    }
    /// With `hint` where the request is to be put.
    fn irecv_as(&self, comm: Ptr, buffers: &[(usize, usize, c_int, Ptr)], hint: usize) -> (Code, Ptr);
    fn iflush(&self, comm: Ptr, buffers: &[(usize, usize, Ptr)]) -> (Code, Ptr);
    /// Code, done, sizes.
    fn test(&self, request: Ptr) -> (Code, bool, [c_int; 8]);
    fn close_send(&self, comm: Ptr) -> Code;
    fn close_recv(&self, comm: Ptr) -> Code;
    fn close_listen(&self, listen: Ptr) -> Code;
}

/// An address as C passes it.
fn p(addr: usize) -> Ptr {
    without_provenance_mut(addr)
}

/// Eight values of one member of each buffer, the rest zero.
fn column<B, T: Copy>(buffers: &[B], blank: T, get: impl Fn(&B) -> T) -> [T; 16] {
    let mut out = [blank; 16];
    for (place, b) in out.iter_mut().zip(buffers) {
        *place = get(b);
    }
    out
}

fn string(text: *const c_char) -> Option<String> {
    // SAFETY: null, or a C string that the plugin keeps.
    (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_str().unwrap().to_owned())
}

macro_rules! tables {
    ($(
        $name:ident = $module:ident::$symbol:ident, $number:literal, size $size:ty, reg $reg:ty,
        init |$t:ident, $ctx:ident| $init:expr,
        listen |$ldev:ident, $lhandle:ident, $lctx:ident, $lout:ident| ($($largs:expr),*),
        connect |$cdev:ident, $chandle:ident, $cctx:ident, $cout:ident| ($($cargs:expr),*),
        dev_handle ($($dh:expr)?),
        phandle ($($ph:expr)?),
        finalize |$f:ident, $fctx:ident| $finalize:expr;
    )*) => {$(
        struct $name;

        impl Table for $name {
            fn version(&self) -> u32 { $number }
            fn name(&self) -> String { string(nccl_net_mpib::$symbol.name).unwrap() }
            fn init(&self) -> (Code, Ptr) {
                let $t = &nccl_net_mpib::$symbol;
                let mut $ctx: Ptr = null_mut();
                // SAFETY: valid arguments of this version.
                let rc = unsafe { $init };
                (Code::from(rc), $ctx)
            }
            fn finalize(&self, $fctx: Ptr) -> Code {
                let $f = &nccl_net_mpib::$symbol;
                $finalize
            }
            fn devices(&self) -> (Code, c_int) {
                let mut n = -1;
                // SAFETY: a writable int.
                let rc = unsafe { nccl_net_mpib::$symbol.devices.unwrap()(&raw mut n) };
                (Code::from(rc), n)
            }
            fn properties(&self, dev: c_int) -> (Code, Option<Props>) {
                // SAFETY: a struct of integers and pointers.
                let mut props: abi::$module::Props = unsafe { std::mem::zeroed() };
                // SAFETY: a writable struct of this version.
                let rc = Code::from(unsafe { nccl_net_mpib::$symbol.getProperties.unwrap()(dev, &raw mut props) });
                let props = (rc == Success).then(|| Props {
                    name: string(props.name).unwrap(),
                    pci_path: string(props.pciPath),
                    guid: props.guid,
                    ptr_support: props.ptrSupport,
                    speed: props.speed,
                    port: props.port,
                    max_comms: props.maxComms,
                    max_recvs: props.maxRecvs,
                });
                (rc, props)
            }
            fn listen(&self, $lctx: Ptr, $ldev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr) {
                let $lhandle: Ptr = handle.as_mut_ptr().cast();
                let mut out: Ptr = null_mut();
                let $lout = &raw mut out;
                let _ = $lctx;
                // SAFETY: a handle of 128 bytes, a writable pointer.
                let rc = unsafe { nccl_net_mpib::$symbol.listen.unwrap()($($largs),*) };
                (Code::from(rc), out)
            }
            fn connect(&self, $cctx: Ptr, $cdev: c_int, handle: &mut [u8; 128]) -> (Code, Ptr) {
                let $chandle: Ptr = handle.as_mut_ptr().cast();
                let mut out: Ptr = null_mut();
                let $cout = &raw mut out;
                let _ = $cctx;
                // SAFETY: a handle of 128 bytes, a writable pointer.
                let rc = unsafe { nccl_net_mpib::$symbol.connect.unwrap()($($cargs),*) };
                (Code::from(rc), out)
            }
            fn accept(&self, listen: Ptr) -> (Code, Ptr) {
                let mut out: Ptr = null_mut();
                // SAFETY: the test's handle, a writable pointer.
                let rc = unsafe { nccl_net_mpib::$symbol.accept.unwrap()(listen, &raw mut out $(, $dh)?) };
                (Code::from(rc), out)
            }
            fn reg_mr(&self, comm: Ptr, addr: usize, len: usize, kind: c_int) -> (Code, Ptr) {
                let mut out: Ptr = null_mut();
                // SAFETY: the test's handle, a writable pointer.
                let rc = unsafe { nccl_net_mpib::$symbol.regMr.unwrap()(comm, p(addr), len as $reg, kind, &raw mut out) };
                (Code::from(rc), out)
            }
            fn reg_mr_dma_buf(
                &self,
                comm: Ptr,
                (addr, len): (usize, usize),
                kind: c_int,
                (offset, fd): (u64, c_int),
            ) -> (Code, Ptr) {
                let mut out: Ptr = null_mut();
                // SAFETY: the test's handle, a writable pointer.
                let rc = unsafe {
                    nccl_net_mpib::$symbol.regMrDmaBuf.unwrap()(
                        comm, p(addr), len, kind, offset, fd, &raw mut out,
                    )
                };
                (Code::from(rc), out)
            }
            fn dereg_mr(&self, comm: Ptr, mr: Ptr) -> Code {
                // SAFETY: the test's handles.
                Code::from(unsafe { nccl_net_mpib::$symbol.deregMr.unwrap()(comm, mr) })
            }
            fn isend(&self, comm: Ptr, addr: usize, len: usize, tag: c_int, mr: Ptr) -> (Code, Ptr) {
                let mut out: Ptr = null_mut();
                // SAFETY: the test's handles and buffer, a writable pointer.
                let rc = unsafe {
                    nccl_net_mpib::$symbol.isend.unwrap()(comm, p(addr), len as $size, tag, mr, $(first($ph),)? &raw mut out)
                };
                (Code::from(rc), out)
            }
            fn irecv_as(&self, comm: Ptr, buffers: &[(usize, usize, c_int, Ptr)], hint: usize) -> (Code, Ptr) {
                let mut data = column(buffers, null_mut(), |b| p(b.0));
                let mut sizes = column(buffers, 0, |b| b.1 as $size);
                let mut tags = column(buffers, 0, |b| b.2);
                let mut mrs = column(buffers, null_mut(), |b| b.3);
                let mut out: Ptr = p(hint);
                // SAFETY: arrays of sixteen, of which the first `n` are the test's.
                let rc = unsafe {
                    nccl_net_mpib::$symbol.irecv.unwrap()(
                        comm, buffers.len() as c_int, data.as_mut_ptr(), sizes.as_mut_ptr(), tags.as_mut_ptr(),
                        mrs.as_mut_ptr(), $($ph,)? &raw mut out,
                    )
                };
                (Code::from(rc), out)
            }
            fn iflush(&self, comm: Ptr, buffers: &[(usize, usize, Ptr)]) -> (Code, Ptr) {
                let mut data = column(buffers, null_mut(), |b| p(b.0));
                let mut sizes = column(buffers, 0, |b| b.1 as c_int);
                let mut mrs = column(buffers, null_mut(), |b| b.2);
                let mut out: Ptr = null_mut();
                // SAFETY: arrays of sixteen, of which the first `n` are the test's.
                let rc = unsafe {
                    nccl_net_mpib::$symbol.iflush.unwrap()(
                        comm, buffers.len() as c_int, data.as_mut_ptr(), sizes.as_mut_ptr(), mrs.as_mut_ptr(), &raw mut out,
                    )
                };
                (Code::from(rc), out)
            }
            fn test(&self, request: Ptr) -> (Code, bool, [c_int; 8]) {
                let (mut done, mut sizes) = (0, [0; 8]);
                // SAFETY: the test's handle, writable ints.
                let rc = unsafe { nccl_net_mpib::$symbol.test.unwrap()(request, &raw mut done, sizes.as_mut_ptr()) };
                (Code::from(rc), done != 0, sizes)
            }
            fn close_send(&self, comm: Ptr) -> Code {
                // SAFETY: the test's handle.
                Code::from(unsafe { nccl_net_mpib::$symbol.closeSend.unwrap()(comm) })
            }
            fn close_recv(&self, comm: Ptr) -> Code {
                // SAFETY: the test's handle.
                Code::from(unsafe { nccl_net_mpib::$symbol.closeRecv.unwrap()(comm) })
            }
            fn close_listen(&self, listen: Ptr) -> Code {
                // SAFETY: the test's handle.
                Code::from(unsafe { nccl_net_mpib::$symbol.closeListen.unwrap()(listen) })
            }
        }
    )*

        /// All versions, oldest first.
        pub const TABLES: &[&dyn Table] = &[$(&$name),*];
    };
}

/// The communicators' traffic class; -1 is none.
static CLASS: AtomicI32 = AtomicI32::new(-1);

/// Gives communicators a traffic class from now on: by `init` of v11 and v12, by `connect` of v10.
pub fn set_traffic_class(class: c_int) {
    CLASS.store(class, Ordering::Relaxed);
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

/// NULL, or eight handles.
fn profiler_handles() -> *mut Ptr {
    HANDLES.with_borrow_mut(|handles| handles.as_mut().map_or(null_mut(), |handles| handles.as_mut_ptr()))
}

/// The first of such handles.
fn first(handles: *mut Ptr) -> Ptr {
    // SAFETY: null, or eight handles of this thread.
    if handles.is_null() { null_mut() } else { unsafe { *handles } }
}

/// A configuration with the class.
fn config<T>() -> *mut T {
    CLASS.as_ptr().cast()
}

/// As [`config`]; null where there is no class, as some releases give it.
fn config_or_null<T>() -> *mut T {
    if CLASS.load(Ordering::Relaxed) < 0 { null_mut() } else { config() }
}

tables! {
    V6 = v6::ncclNetPlugin_v6, 6, size c_int, reg c_int,
        init |t, _ctx| t.init.unwrap()(c_logger()),
        listen |dev, handle, ctx, out| (dev, handle, out),
        connect |dev, handle, ctx, out| (dev, handle, out),
        dev_handle (), phandle (),
        finalize |_f, _ctx| Success;
    V7 = v7::ncclNetPlugin_v7, 7, size c_int, reg c_int,
        init |t, _ctx| t.init.unwrap()(c_logger()),
        listen |dev, handle, ctx, out| (dev, handle, out),
        connect |dev, handle, ctx, out| (dev, handle, out, null_mut()),
        dev_handle (null_mut()), phandle (),
        finalize |_f, _ctx| Success;
    V8 = v8::ncclNetPlugin_v8, 8, size c_int, reg usize,
        init |t, _ctx| t.init.unwrap()(c_logger()),
        listen |dev, handle, ctx, out| (dev, handle, out),
        connect |dev, handle, ctx, out| (dev, handle, out, null_mut()),
        dev_handle (null_mut()), phandle (),
        finalize |_f, _ctx| Success;
    V9 = v9::ncclNetPlugin_v9, 9, size usize, reg usize,
        init |t, _ctx| t.init.unwrap()(c_logger()),
        listen |dev, handle, ctx, out| (dev, handle, out),
        connect |dev, handle, ctx, out| (dev, handle, out, null_mut()),
        dev_handle (null_mut()), phandle (),
        finalize |_f, _ctx| Success;
    V10 = v10::ncclNetPlugin_v10, 10, size usize, reg usize,
        init |t, _ctx| t.init.unwrap()(c_logger(), profiler()),
        listen |dev, handle, ctx, out| (dev, handle, out),
        connect |dev, handle, ctx, out| (dev, config_or_null(), handle, out, null_mut()),
        dev_handle (null_mut()), phandle (profiler_handles()),
        finalize |_f, _ctx| Success;
    V11 = v11::ncclNetPlugin_v11, 11, size usize, reg usize,
        init |t, ctx| t.init.unwrap()(&raw mut ctx, 1, config(), c_logger(), profiler()),
        listen |dev, handle, ctx, out| (ctx, dev, handle, out),
        connect |dev, handle, ctx, out| (ctx, dev, handle, out, null_mut()),
        dev_handle (null_mut()), phandle (profiler_handles()),
        // SAFETY: the test's context.
        finalize |f, ctx| Code::from(unsafe { f.finalize.unwrap()(ctx) });
    V12 = v12::ncclNetPlugin_v12, 12, size usize, reg usize,
        init |t, ctx| t.init.unwrap()(&raw mut ctx, 1, config(), c_logger(), profiler()),
        listen |dev, handle, ctx, out| (ctx, dev, handle, out),
        connect |dev, handle, ctx, out| (ctx, dev, handle, out, null_mut()),
        dev_handle (null_mut()), phandle (profiler_handles()),
        // SAFETY: the test's context.
        finalize |f, ctx| Code::from(unsafe { f.finalize.unwrap()(ctx) });
}

/// The newest version, for tests that are not about versions.
pub fn newest() -> &'static dyn Table {
    TABLES[TABLES.len() - 1]
}

/// A C string that outlives everything, for tests that need one.
pub fn leaked(text: &str) -> *mut c_char {
    CString::new(text).unwrap().into_raw()
}
