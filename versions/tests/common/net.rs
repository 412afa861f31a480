//! One interface to the seven tables, with the arguments of the newest one.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::ptr;

use nccl_net_versions::abi::{self, ncclResult_t, ncclSuccess};
use nccl_net_versions::{NetPlugin, v6, v7, v8, v9, v10, v11, v12};

pub type Ptr = *mut c_void;

/// One version's table.
#[derive(Debug, Clone, Copy)]
pub enum Net {
    V6(abi::v6::Net),
    V7(abi::v7::Net),
    V8(abi::v8::Net),
    V9(abi::v9::Net),
    V10(abi::v10::Net),
    V11(abi::v11::Net),
    V12(abi::v12::Net),
}
use Net::*;

/// Expands one expression for every version.
macro_rules! any {
    ($net:expr, $t:ident => $value:expr) => {
        match $net {
            V6($t) => $value,
            V7($t) => $value,
            V8($t) => $value,
            V9($t) => $value,
            V10($t) => $value,
            V11($t) => $value,
            V12($t) => $value,
        }
    };
}

/// `slot(arguments)` of a table.
macro_rules! call {
    ($t:ident.$slot:ident($($arg:expr),*)) => {
        // SAFETY: the tests pass valid arguments, or arguments that the adapters promise to refuse.
        unsafe { ($t.$slot.expect("never NULL"))($($arg),*) }
    };
}

impl Net {
    pub fn of<P: NetPlugin>(version: u32) -> Self {
        match version {
            6 => V6(v6::table::<P>()),
            7 => V7(v7::table::<P>()),
            8 => V8(v8::table::<P>()),
            9 => V9(v9::table::<P>()),
            10 => V10(v10::table::<P>()),
            11 => V11(v11::table::<P>()),
            12 => V12(v12::table::<P>()),
            other => panic!("no version {other}"),
        }
    }

    /// `class` is the traffic class of the settings; `None` passes NULL for the settings.
    pub fn init(
        &self,
        ctx: *mut Ptr,
        comm_id: u64,
        class: Option<c_int>,
        log: abi::ncclDebugLogger_t,
        prof: abi::ncclProfilerCallback_t,
    ) -> ncclResult_t {
        let mut config = class.map(|class| abi::v11::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        match self {
            V6(t) => call!(t.init(log)),
            V7(t) => call!(t.init(log)),
            V8(t) => call!(t.init(log)),
            V9(t) => call!(t.init(log)),
            V10(t) => call!(t.init(log, prof)),
            V11(t) => call!(t.init(ctx, comm_id, config, log, prof)),
            V12(t) => call!(t.init(ctx, comm_id, config, log, prof)),
        }
    }

    pub fn devices(&self, n: *mut c_int) -> ncclResult_t {
        any!(self, t => call!(t.devices(n)))
    }

    /// Reads the properties into a local variable, or into NULL, and drops them.
    pub fn get_properties(&self, dev: c_int, into_null: bool) -> ncclResult_t {
        any!(self, t => {
            let mut props = MaybeUninit::uninit();
            call!(t.getProperties(dev, if into_null { ptr::null_mut() } else { props.as_mut_ptr() }))
        })
    }

    /// Returns `None` if the version has no `setNetAttr`.
    pub fn set_net_attr(&self, ctx: Ptr, attr: *mut abi::v11::NetAttr) -> Option<ncclResult_t> {
        match self {
            V11(t) => Some(call!(t.setNetAttr(ctx, attr))),
            V12(t) => Some(call!(t.setNetAttr(ctx, attr))),
            _ => None,
        }
    }

    /// Returns success without a call if the version has no `finalize`.
    pub fn finalize(&self, ctx: Ptr) -> ncclResult_t {
        match self {
            V11(t) => call!(t.finalize(ctx)),
            V12(t) => call!(t.finalize(ctx)),
            _ => ncclSuccess,
        }
    }

    pub fn listen(&self, ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr) -> ncclResult_t {
        match self {
            V6(t) => call!(t.listen(dev, handle, comm)),
            V7(t) => call!(t.listen(dev, handle, comm)),
            V8(t) => call!(t.listen(dev, handle, comm)),
            V9(t) => call!(t.listen(dev, handle, comm)),
            V10(t) => call!(t.listen(dev, handle, comm)),
            V11(t) => call!(t.listen(ctx, dev, handle, comm)),
            V12(t) => call!(t.listen(ctx, dev, handle, comm)),
        }
    }

    /// `class` is that of [`Net::init`], for v10.
    pub fn connect(
        &self,
        ctx: Ptr,
        dev: c_int,
        class: Option<c_int>,
        handle: Ptr,
        comm: *mut Ptr,
        dev_comm: *mut *mut abi::v7::DeviceHandle,
    ) -> ncclResult_t {
        let mut config = class.map(|class| abi::v10::CommConfig { trafficClass: class });
        let config = config.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        match self {
            V6(t) => call!(t.connect(dev, handle, comm)),
            V7(t) => call!(t.connect(dev, handle, comm, dev_comm)),
            V8(t) => call!(t.connect(dev, handle, comm, dev_comm)),
            V9(t) => call!(t.connect(dev, handle, comm, dev_comm)),
            V10(t) => call!(t.connect(dev, config, handle, comm, dev_comm)),
            V11(t) => call!(t.connect(ctx, dev, handle, comm, dev_comm)),
            V12(t) => call!(t.connect(ctx, dev, handle, comm, dev_comm)),
        }
    }

    pub fn accept(
        &self,
        listener: Ptr,
        comm: *mut Ptr,
        dev_comm: *mut *mut abi::v7::DeviceHandle,
    ) -> ncclResult_t {
        match self {
            V6(t) => call!(t.accept(listener, comm)),
            V7(t) => call!(t.accept(listener, comm, dev_comm)),
            V8(t) => call!(t.accept(listener, comm, dev_comm)),
            V9(t) => call!(t.accept(listener, comm, dev_comm)),
            V10(t) => call!(t.accept(listener, comm, dev_comm)),
            V11(t) => call!(t.accept(listener, comm, dev_comm)),
            V12(t) => call!(t.accept(listener, comm, dev_comm)),
        }
    }

    /// Truncates `size` to the width of the version's argument, as a C caller does.
    pub fn reg_mr(&self, comm: Ptr, data: Ptr, size: isize, mem: c_int, mhandle: *mut Ptr) -> ncclResult_t {
        match self {
            V6(t) => call!(t.regMr(comm, data, size as c_int, mem, mhandle)),
            V7(t) => call!(t.regMr(comm, data, size as c_int, mem, mhandle)),
            V8(t) => call!(t.regMr(comm, data, size as usize, mem, mhandle)),
            V9(t) => call!(t.regMr(comm, data, size as usize, mem, mhandle)),
            V10(t) => call!(t.regMr(comm, data, size as usize, mem, mhandle)),
            V11(t) => call!(t.regMr(comm, data, size as usize, mem, mhandle)),
            V12(t) => call!(t.regMr(comm, data, size as usize, mem, mhandle)),
        }
    }

    #[allow(clippy::too_many_arguments)]
    pub fn reg_mr_dma_buf(
        &self,
        comm: Ptr,
        data: Ptr,
        size: usize,
        mem: c_int,
        offset: u64,
        fd: c_int,
        mhandle: *mut Ptr,
    ) -> ncclResult_t {
        any!(self, t => call!(t.regMrDmaBuf(comm, data, size, mem, offset, fd, mhandle)))
    }

    pub fn dereg_mr(&self, comm: Ptr, mhandle: Ptr) -> ncclResult_t {
        any!(self, t => call!(t.deregMr(comm, mhandle)))
    }

    /// Truncates `size` like [`Net::reg_mr`].
    #[allow(clippy::too_many_arguments)]
    pub fn isend(
        &self,
        comm: Ptr,
        data: Ptr,
        size: isize,
        tag: c_int,
        mhandle: Ptr,
        phandle: Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        match self {
            V6(t) => call!(t.isend(comm, data, size as c_int, tag, mhandle, request)),
            V7(t) => call!(t.isend(comm, data, size as c_int, tag, mhandle, request)),
            V8(t) => call!(t.isend(comm, data, size as c_int, tag, mhandle, request)),
            V9(t) => call!(t.isend(comm, data, size as usize, tag, mhandle, request)),
            V10(t) => call!(t.isend(comm, data, size as usize, tag, mhandle, phandle, request)),
            V11(t) => call!(t.isend(comm, data, size as usize, tag, mhandle, phandle, request)),
            V12(t) => call!(t.isend(comm, data, size as usize, tag, mhandle, phandle, request)),
        }
    }

    /// Truncates `sizes` like [`Net::reg_mr`]; `None` passes NULL.
    #[allow(clippy::too_many_arguments)]
    pub fn irecv(
        &self,
        comm: Ptr,
        n: c_int,
        data: *mut Ptr,
        sizes: Option<&[isize]>,
        tags: *mut c_int,
        mhandles: *mut Ptr,
        phandles: *mut Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        let mut ints: Option<Vec<c_int>> = sizes.map(|s| s.iter().map(|&s| s as c_int).collect());
        let mut words: Option<Vec<usize>> = sizes.map(|s| s.iter().map(|&s| s as usize).collect());
        let ints = ints.as_mut().map_or(ptr::null_mut(), |s| s.as_mut_ptr());
        let words = words.as_mut().map_or(ptr::null_mut(), |s| s.as_mut_ptr());
        match self {
            V6(t) => call!(t.irecv(comm, n, data, ints, tags, mhandles, request)),
            V7(t) => call!(t.irecv(comm, n, data, ints, tags, mhandles, request)),
            V8(t) => call!(t.irecv(comm, n, data, ints, tags, mhandles, request)),
            V9(t) => call!(t.irecv(comm, n, data, words, tags, mhandles, request)),
            V10(t) => call!(t.irecv(comm, n, data, words, tags, mhandles, phandles, request)),
            V11(t) => call!(t.irecv(comm, n, data, words, tags, mhandles, phandles, request)),
            V12(t) => call!(t.irecv(comm, n, data, words, tags, mhandles, phandles, request)),
        }
    }

    pub fn iflush(
        &self,
        comm: Ptr,
        n: c_int,
        data: *mut Ptr,
        sizes: *mut c_int,
        mhandles: *mut Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        any!(self, t => call!(t.iflush(comm, n, data, sizes, mhandles, request)))
    }

    pub fn test(&self, request: Ptr, done: *mut c_int, sizes: *mut c_int) -> ncclResult_t {
        any!(self, t => call!(t.test(request, done, sizes)))
    }

    pub fn close_send(&self, comm: Ptr) -> ncclResult_t {
        any!(self, t => call!(t.closeSend(comm)))
    }

    pub fn close_recv(&self, comm: Ptr) -> ncclResult_t {
        any!(self, t => call!(t.closeRecv(comm)))
    }

    pub fn close_listen(&self, comm: Ptr) -> ncclResult_t {
        any!(self, t => call!(t.closeListen(comm)))
    }

    pub fn has_reg_mr_dma_buf(&self) -> bool {
        any!(self, t => t.regMrDmaBuf.is_some())
    }

    pub fn name(&self) -> *const std::ffi::c_char {
        any!(self, t => t.name)
    }
}

/// A pointer that is not NULL, to see whether it is overwritten.
pub const STALE: Ptr = ptr::without_provenance_mut(0x5115);

/// An address that is never dereferenced.
pub const DATA: Ptr = ptr::without_provenance_mut(4096);
