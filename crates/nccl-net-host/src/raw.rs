//! The functions of a table as C has them.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
};

use nccl_net_abi::{ncclDebugLogger_t, ncclProfilerCallback_t, v6, v7, v8, v9, v10, v11, v12};

use crate::{Call, Code, Properties, Table, properties::FromProps, table::Slots};

/// A pointer of C's.
pub type Ptr = *mut c_void;

/// Most receives of one [`Raw::irecv`]: twice what any plugin may offer.
pub const MAX_RAW_GROUP: usize = 16;

/// The functions of a table with the newest version's arguments, for tests that call a plugin in
/// ways that NCCL never would: NULL pointers, wrong sizes, closed comms.
///
/// An argument that the table's version does not have is ignored. A size is cut to the width of the
/// version's type, as a C compiler does it. Every method returns the plugin's result code, or
/// [`Code::NoFunction`] if there is no function.
///
/// A `Raw` comes from [`Table::raw`], whose safety contract covers the pointers of all later calls.
#[derive(Debug, Clone, Copy)]
pub struct Raw {
    table: Table,
}

/// Calls the function of the table's version with the arguments in that version's line.
macro_rules! call {
    ($raw:ident.$slot:ident as $call:ident { $($($version:ident)+ => $args:tt;)+ }) => {
        #[allow(unreachable_patterns, reason = "some functions are in every version")]
        match $raw.table.slots {
            $($(Slots::$version(table) => call!(@slot $raw table.$slot, $call, $args),)+)+
            _ => Code::NoFunction,
        }
    };
    ($raw:ident.$slot:ident as $call:ident $args:tt) => {
        call!($raw.$slot as $call { V6 V7 V8 V9 V10 V11 V12 => $args; })
    };
    (@slot $raw:ident $table:ident.$slot:ident, $call:ident, ($($arg:expr),*)) => {
        match $table.$slot {
            Some(function) => {
                // SAFETY: the function has this version's signature, and the maker of the `Raw`
                // answers for the pointers.
                Code::from($raw.table.during(Call::$call, || unsafe { function($($arg),*) }))
            }
            None => Code::NoFunction,
        }
    };
}

#[allow(clippy::too_many_arguments, reason = "the argument lists are NCCL's")]
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "`Table::raw` is unsafe, and its contract covers the pointers"
)]
impl Raw {
    pub(crate) const fn new(table: Table) -> Self {
        Self { table }
    }

    /// Returns the table.
    pub const fn table(&self) -> Table {
        self.table
    }

    /// Calls `init`. `ctx`, `comm_id` and `config` are v11's, `prof` is v10's.
    pub fn init(
        &self,
        ctx: *mut Ptr,
        comm_id: u64,
        config: *mut v11::CommConfig,
        log: ncclDebugLogger_t,
        prof: ncclProfilerCallback_t,
    ) -> Code {
        call!(self.init as Init {
            V6 V7 V8 V9 => (log);
            V10 => (log, prof);
            V11 V12 => (ctx, comm_id, config, log, prof);
        })
    }

    /// Calls `devices`.
    pub fn devices(&self, count: *mut c_int) -> Code {
        call!(self.devices as Devices(count))
    }

    /// Calls `getProperties`. `props` is NULL or points to the structure of the table's own
    /// version.
    pub fn get_properties(&self, dev: c_int, props: Ptr) -> Code {
        call!(self.getProperties as GetProperties (dev, props.cast()))
    }

    /// Calls `getProperties` with a structure of the table's version, and reads it if the call
    /// succeeded.
    pub fn properties(&self, dev: c_int) -> (Code, Option<Properties>) {
        match self.table.slots {
            Slots::V6(_) => self.properties_as::<v6::Props>(dev),
            Slots::V7(_) => self.properties_as::<v7::Props>(dev),
            Slots::V8(_) => self.properties_as::<v8::Props>(dev),
            Slots::V9(_) => self.properties_as::<v9::Props>(dev),
            Slots::V10(_) => self.properties_as::<v10::Props>(dev),
            Slots::V11(_) => self.properties_as::<v11::Props>(dev),
            Slots::V12(_) => self.properties_as::<v12::Props>(dev),
        }
    }

    fn properties_as<P: FromProps>(&self, dev: c_int) -> (Code, Option<Properties>) {
        let mut props = MaybeUninit::<P>::zeroed();
        let code = self.get_properties(dev, props.as_mut_ptr().cast());
        // SAFETY: zeroed, and perhaps written by the plugin; every bit pattern of the integers and
        // pointers in it is valid.
        let props = unsafe { props.assume_init() };
        // SAFETY: after success, the strings are NULL or C strings that the plugin keeps for NCCL.
        (code, code.is_success().then(|| unsafe { props.read() }))
    }

    /// Calls `listen`. `ctx` is v11's.
    pub fn listen(&self, ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr) -> Code {
        call!(self.listen as Listen {
            V6 V7 V8 V9 V10 => (dev, handle, comm);
            V11 V12 => (ctx, dev, handle, comm);
        })
    }

    /// Calls `connect`. `ctx` is v11's, `config` v10's alone, `device` v7's.
    pub fn connect(
        &self,
        ctx: Ptr,
        dev: c_int,
        config: *mut v10::CommConfig,
        handle: Ptr,
        comm: *mut Ptr,
        device: *mut *mut v7::DeviceHandle,
    ) -> Code {
        call!(self.connect as Connect {
            V6 => (dev, handle, comm);
            V7 V8 V9 => (dev, handle, comm, device);
            V10 => (dev, config, handle, comm, device);
            V11 V12 => (ctx, dev, handle, comm, device);
        })
    }

    /// Calls `accept`. `device` is v7's.
    pub fn accept(&self, listen: Ptr, comm: *mut Ptr, device: *mut *mut v7::DeviceHandle) -> Code {
        call!(self.accept as Accept {
            V6 => (listen, comm);
            V7 V8 V9 V10 V11 V12 => (listen, comm, device);
        })
    }

    /// Calls `regMr`. The size is an `int` before v8.
    pub fn reg_mr(&self, comm: Ptr, data: Ptr, size: usize, kind: c_int, mr: *mut Ptr) -> Code {
        call!(self.regMr as RegMr {
            V6 V7 => (comm, data, size as c_int, kind, mr);
            V8 V9 V10 V11 V12 => (comm, data, size, kind, mr);
        })
    }

    /// Calls `regMrDmaBuf`.
    pub fn reg_mr_dma_buf(
        &self,
        comm: Ptr,
        data: Ptr,
        size: usize,
        kind: c_int,
        offset: u64,
        fd: c_int,
        mr: *mut Ptr,
    ) -> Code {
        call!(self.regMrDmaBuf as RegMrDmaBuf(comm, data, size, kind, offset, fd, mr))
    }

    /// Calls `deregMr`.
    pub fn dereg_mr(&self, comm: Ptr, mr: Ptr) -> Code {
        call!(self.deregMr as DeregMr(comm, mr))
    }

    /// Calls `isend`. The size is an `int` before v9; `operation`, the profiler's handle, is v10's.
    #[inline]
    pub fn isend(
        &self,
        comm: Ptr,
        data: Ptr,
        size: usize,
        tag: c_int,
        mr: Ptr,
        operation: Ptr,
        request: *mut Ptr,
    ) -> Code {
        call!(self.isend as Isend {
            V6 V7 V8 => (comm, data, size as c_int, tag, mr, request);
            V9 => (comm, data, size, tag, mr, request);
            V10 V11 V12 => (comm, data, size, tag, mr, operation, request);
        })
    }

    /// Calls `irecv`. `n` need not be the number of sizes; `None` passes NULL. The sizes are `int`
    /// before v9; `operations`, the profiler's handles, are v10's.
    ///
    /// # Panics
    /// If there are more than [`MAX_RAW_GROUP`] sizes.
    #[inline]
    pub fn irecv(
        &self,
        comm: Ptr,
        n: c_int,
        data: *mut Ptr,
        sizes: Option<&[usize]>,
        tags: *mut c_int,
        mrs: *mut Ptr,
        operations: *mut Ptr,
        request: *mut Ptr,
    ) -> Code {
        // Copies, since the functions take pointers to what they could write to.
        let mut words = [0usize; MAX_RAW_GROUP];
        let mut ints: [c_int; MAX_RAW_GROUP] = [0; MAX_RAW_GROUP];
        for (at, size) in sizes.into_iter().flatten().enumerate() {
            words[at] = *size;
            ints[at] = *size as c_int;
        }
        let words = if sizes.is_some() { words.as_mut_ptr() } else { std::ptr::null_mut() };
        let ints = if sizes.is_some() { ints.as_mut_ptr() } else { std::ptr::null_mut() };
        call!(self.irecv as Irecv {
            V6 V7 V8 => (comm, n, data, ints, tags, mrs, request);
            V9 => (comm, n, data, words, tags, mrs, request);
            V10 V11 V12 => (comm, n, data, words, tags, mrs, operations, request);
        })
    }

    /// Calls `iflush`.
    pub fn iflush(
        &self,
        comm: Ptr,
        n: c_int,
        data: *mut Ptr,
        sizes: *mut c_int,
        mrs: *mut Ptr,
        request: *mut Ptr,
    ) -> Code {
        call!(self.iflush as Iflush(comm, n, data, sizes, mrs, request))
    }

    /// Calls `test`.
    #[inline]
    pub fn test(&self, request: Ptr, done: *mut c_int, sizes: *mut c_int) -> Code {
        call!(self.test as Test(request, done, sizes))
    }

    /// Calls `closeSend`.
    pub fn close_send(&self, comm: Ptr) -> Code {
        call!(self.closeSend as CloseSend(comm))
    }

    /// Calls `closeRecv`.
    pub fn close_recv(&self, comm: Ptr) -> Code {
        call!(self.closeRecv as CloseRecv(comm))
    }

    /// Calls `closeListen`.
    pub fn close_listen(&self, listen: Ptr) -> Code {
        call!(self.closeListen as CloseListen(listen))
    }

    /// Calls `getDeviceMr`, which came with v7.
    pub fn get_device_mr(&self, comm: Ptr, mr: Ptr, device_mr: *mut Ptr) -> Code {
        call!(self.getDeviceMr as GetDeviceMr { V7 V8 V9 V10 V11 V12 => (comm, mr, device_mr); })
    }

    /// Calls `irecvConsumed`, which came with v7.
    pub fn irecv_consumed(&self, comm: Ptr, n: c_int, request: Ptr) -> Code {
        call!(self.irecvConsumed as IrecvConsumed { V7 V8 V9 V10 V11 V12 => (comm, n, request); })
    }

    /// Calls `makeVDevice`, which came with v9. `props` is NULL or points to the structure of the
    /// table's own version.
    pub fn make_vdevice(&self, dev: *mut c_int, props: Ptr) -> Code {
        call!(self.makeVDevice as MakeVDevice { V9 V10 V11 V12 => (dev, props.cast()); })
    }

    /// Calls `finalize`, which came with v11.
    pub fn finalize(&self, ctx: Ptr) -> Code {
        call!(self.finalize as Finalize { V11 V12 => (ctx); })
    }

    /// Calls `setNetAttr`, which came with v11.
    pub fn set_net_attr(&self, ctx: Ptr, attr: *mut v11::NetAttr) -> Code {
        call!(self.setNetAttr as SetNetAttr { V11 V12 => (ctx, attr); })
    }

    /// Returns whether the table has a `regMrDmaBuf`, without which NCCL registers no DMA-BUF.
    pub const fn has_reg_mr_dma_buf(&self) -> bool {
        match self.table.slots {
            Slots::V6(table) => table.regMrDmaBuf.is_some(),
            Slots::V7(table) => table.regMrDmaBuf.is_some(),
            Slots::V8(table) => table.regMrDmaBuf.is_some(),
            Slots::V9(table) => table.regMrDmaBuf.is_some(),
            Slots::V10(table) => table.regMrDmaBuf.is_some(),
            Slots::V11(table) => table.regMrDmaBuf.is_some(),
            Slots::V12(table) => table.regMrDmaBuf.is_some(),
        }
    }
}
