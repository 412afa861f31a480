//! The functions of an RMA table as C has them.

use std::ffi::c_int;
use std::mem::MaybeUninit;
use std::ptr::NonNull;

use nccl_net_abi::{ncclDebugLogger_t, rma_v13, rma_v14, rma_v15, rma_v16, v12};

use crate::properties::FromProps;
use crate::table::string;
use crate::{Call, Code, Properties, Ptr, Watch};

/// The versions of RMA tables.
pub const RMA_VERSIONS: [u32; 4] = [13, 14, 15, 16];

/// A plugin's RMA table, with the newest version's arguments.
///
/// An argument that the table's version does not have is ignored. Every method returns the plugin's
/// result code, or [`Code::NoFunction`] if there is no function.
#[derive(Debug, Clone, Copy)]
pub struct Rma {
    slots: Slots,
    watch: Option<&'static Watch>,
}

#[derive(Debug, Clone, Copy)]
enum Slots {
    V13(&'static rma_v13::Rma),
    V14(&'static rma_v14::Rma),
    V15(&'static rma_v15::Rma),
    V16(&'static rma_v16::Rma),
}

/// A place in a window: its handle, and the offset in bytes.
pub type Place = (Ptr, u64);

/// Calls the function of the table's version with the arguments in that version's line.
macro_rules! call {
    ($rma:ident.$slot:ident as $call:ident { $($($version:ident)+ => $args:tt;)+ }) => {
        match $rma.slots {
            $($(Slots::$version(table) => call!(@slot $rma table.$slot, $call, $args),)+)+
            _ => Code::NoFunction,
        }
    };
    ($rma:ident.$slot:ident as $call:ident $args:tt) => {
        call!($rma.$slot as $call { V13 V14 V15 V16 => $args; })
    };
    (@slot $rma:ident $table:ident.$slot:ident, $call:ident, ($($arg:expr),*)) => {
        match $table.$slot {
            Some(function) => {
                // SAFETY: the function has this version's signature, and the maker of the table
                // answers for the pointers.
                Code::from($rma.during(Call::$call, || unsafe { function($($arg),*) }))
            }
            None => Code::NoFunction,
        }
    };
}

#[allow(clippy::too_many_arguments, reason = "the argument lists are NCCL's")]
#[allow(unreachable_patterns, reason = "some functions are in every version")]
#[allow(
    clippy::not_unsafe_ptr_arg_deref,
    reason = "`Rma::from_ptr` is unsafe, and its contract covers the pointers"
)]
impl Rma {
    /// Returns the table at an address; `None` if its version is unknown.
    ///
    /// # Safety
    /// `table` is the table of this version, of a plugin that is never unmapped. The pointers of all
    /// later calls are what the header asks for, or the plugin promises to refuse them.
    pub unsafe fn from_ptr(version: u32, table: NonNull<std::ffi::c_void>) -> Option<Self> {
        // SAFETY: a table of the version, as the caller promises.
        let slots = unsafe {
            match version {
                13 => Slots::V13(table.cast().as_ref()),
                14 => Slots::V14(table.cast().as_ref()),
                15 => Slots::V15(table.cast().as_ref()),
                16 => Slots::V16(table.cast().as_ref()),
                _ => return None,
            }
        };
        Some(Self { slots, watch: None })
    }

    /// Marks every call in `watch` from now on, as [`Table::watched`](crate::Table::watched) does.
    #[must_use]
    pub const fn watched(mut self, watch: &'static Watch) -> Self {
        self.watch = Some(watch);
        self
    }

    /// Runs a call of the plugin, marked in the watch if there is one.
    #[inline]
    fn during<T>(&self, call: Call, run: impl FnOnce() -> T) -> T {
        match self.watch {
            Some(watch) => watch.during(call, run),
            None => run(),
        }
    }

    /// Returns the table's `name`; `None` if it is NULL.
    pub fn name(&self) -> Option<String> {
        let name = match self.slots {
            Slots::V13(table) => table.name,
            Slots::V14(table) => table.name,
            Slots::V15(table) => table.name,
            Slots::V16(table) => table.name,
        };
        // SAFETY: NULL, or a string that the plugin keeps as long as the table.
        unsafe { string(name) }
    }

    /// Returns the version.
    pub const fn version(&self) -> u32 {
        match self.slots {
            Slots::V13(_) => 13,
            Slots::V14(_) => 14,
            Slots::V15(_) => 15,
            Slots::V16(_) => 16,
        }
    }

    /// Calls `init`.
    pub fn init(&self, ctx: *mut Ptr, comm_id: u64, log: ncclDebugLogger_t) -> Code {
        call!(self.init as Init(ctx, comm_id, log))
    }

    /// Calls `finalize`.
    pub fn finalize(&self, ctx: Ptr) -> Code {
        call!(self.finalize as Finalize(ctx))
    }

    /// Calls `devices`.
    pub fn devices(&self, count: *mut c_int) -> Code {
        call!(self.devices as Devices(count))
    }

    /// Calls `getProperties`, and reads the structure if the call succeeded.
    pub fn properties(&self, dev: c_int) -> (Code, Option<Properties>) {
        let mut props = MaybeUninit::<v12::Props>::zeroed();
        let code = call!(self.getProperties as GetProperties(dev, props.as_mut_ptr()));
        // SAFETY: zeroed, and perhaps written by the plugin; every bit pattern of the integers and
        // pointers in it is valid.
        let props = unsafe { props.assume_init() };
        // SAFETY: after success, the strings are NULL or C strings that the plugin keeps for NCCL.
        (code, code.is_success().then(|| unsafe { props.read() }))
    }

    /// Calls `getRmaProperties` (v16): whether any signal proves all puts.
    pub fn flushes_all_puts(&self, coll: Ptr) -> (Code, bool) {
        let mut properties = rma_v16::Properties { flushesAllPutsOnAnySignal: false };
        let code = call!(self.getRmaProperties as GetRmaProperties { V16 => (coll, &raw mut properties); });
        (code, properties.flushesAllPutsOnAnySignal)
    }

    /// Calls `listen`.
    pub fn listen(&self, ctx: Ptr, dev: c_int, handle: Ptr, listen: *mut Ptr) -> Code {
        call!(self.listen as Listen(ctx, dev, handle, listen))
    }

    /// Calls `closeListen`.
    pub fn close_listen(&self, listen: Ptr) -> Code {
        call!(self.closeListen as CloseListen(listen))
    }

    /// Calls `connect`. `handles` has the handle of each rank.
    pub fn connect(&self, ctx: Ptr, handles: &mut [Ptr], rank: c_int, listen: Ptr, coll: *mut Ptr) -> Code {
        call!(self.connect as Connect(ctx, handles.as_mut_ptr(), handles.len() as c_int, rank, listen, coll))
    }

    /// Calls `closeColl`.
    pub fn close_coll(&self, coll: Ptr) -> Code {
        call!(self.closeColl as CloseColl(coll))
    }

    /// Calls `createContext`, with an undefined traffic class.
    pub fn create_context(&self, coll: Ptr, contexts: c_int, ctx: *mut Ptr) -> Code {
        let undefined = nccl_net_abi::NCCL_NET_TRAFFIC_CLASS_UNDEF;
        let mut config = rma_v14::Config { nContexts: contexts, trafficClass: undefined, rankStride: 1 };
        let mut of_gin = rma_v13::Config {
            nSignals: 0,
            nCounters: 0,
            nContexts: contexts,
            queueDepth: 0,
            trafficClass: undefined,
        };
        let mut device = std::ptr::null_mut();
        call!(self.createContext as CreateContext {
            V13 => (coll, &raw mut of_gin, ctx, &raw mut device);
            V14 V15 V16 => (coll, &raw mut config, ctx);
        })
    }

    /// Calls `destroyContext`.
    pub fn destroy_context(&self, ctx: Ptr) -> Code {
        call!(self.destroyContext as DestroyContext(ctx))
    }

    /// Calls `regMrSym`.
    pub fn reg_mr(&self, coll: Ptr, data: Ptr, size: usize, kind: c_int, flags: u64, mr: *mut Ptr) -> Code {
        let mut of_gin = std::ptr::null_mut();
        call!(self.regMrSym as RegMrSym {
            V13 => (coll, data, size, kind, flags, mr, &raw mut of_gin);
            V14 V15 V16 => (coll, data, size, kind, flags, mr);
        })
    }

    /// Calls `regMrSymDmaBuf`. `file` is an offset in bytes and a descriptor.
    pub fn reg_mr_dma_buf(
        &self,
        coll: Ptr,
        (data, size): (Ptr, usize),
        kind: c_int,
        (offset, fd): (u64, c_int),
        flags: u64,
        mr: *mut Ptr,
    ) -> Code {
        let mut of_gin = std::ptr::null_mut();
        call!(self.regMrSymDmaBuf as RegMrSymDmaBuf {
            V13 => (coll, data, size, kind, offset, fd, flags, mr, &raw mut of_gin);
            V14 V15 V16 => (coll, data, size, kind, offset, fd, flags, mr);
        })
    }

    /// Calls `deregMrSym`.
    pub fn dereg_mr(&self, coll: Ptr, mr: Ptr) -> Code {
        call!(self.deregMrSym as DeregMrSym(coll, mr))
    }

    /// Calls `iput`.
    pub fn iput(
        &self,
        ctx: Ptr,
        context: c_int,
        (src, src_off): Place,
        size: usize,
        (dst, dst_off): Place,
        rank: u32,
        request: *mut Ptr,
    ) -> Code {
        call!(self.iput as Iput {
            V13 V14 => (ctx, context, src_off, src, size, dst_off, dst, rank, request);
            V15 V16 => (ctx, context, src_off, src, size, dst_off, dst, rank, 0, request);
        })
    }

    /// Calls `iputSignal`. `signal` is the place, the value and the operation. `strong` is v14's.
    pub fn iput_signal(
        &self,
        ctx: Ptr,
        context: c_int,
        (src, src_off): Place,
        size: usize,
        (dst, dst_off): Place,
        rank: u32,
        ((mr, offset), value, operation): (Place, u64, u32),
        strong: bool,
        request: *mut Ptr,
    ) -> Code {
        call!(self.iputSignal as IputSignal {
            V13 => (
                ctx, context, src_off, src, size, dst_off, dst, rank, offset, mr, value, operation, request
            );
            V14 => (
                ctx, context, src_off, src, size, dst_off, dst, rank, offset, mr, value, operation, strong,
                request
            );
            V15 V16 => (
                ctx, context, src_off, src, size, dst_off, dst, rank, offset, mr, value, operation, strong, 0,
                request
            );
        })
    }

    /// Calls `iget`.
    pub fn iget(
        &self,
        ctx: Ptr,
        context: c_int,
        (remote, remote_off): Place,
        size: usize,
        (local, local_off): Place,
        rank: u32,
        request: *mut Ptr,
    ) -> Code {
        call!(self.iget as Iget {
            V13 V14 => (ctx, context, remote_off, remote, size, local_off, local, rank, request);
            V15 V16 => (ctx, context, remote_off, remote, size, local_off, local, rank, 0, request);
        })
    }

    /// Calls `iflush`.
    pub fn iflush(&self, ctx: Ptr, context: c_int, mr: Ptr, rank: u32, request: *mut Ptr) -> Code {
        call!(self.iflush as Iflush(ctx, context, mr, rank, request))
    }

    /// Calls `test`.
    pub fn test(&self, coll: Ptr, request: Ptr, done: *mut c_int) -> Code {
        call!(self.test as Test(coll, request, done))
    }

    /// Calls `rmaProgress`, `ginProgress` in v13.
    pub fn progress(&self, ctx: Ptr) -> Code {
        match self.slots {
            Slots::V13(table) => call!(@slot self table.ginProgress, Progress, (ctx)),
            Slots::V14(table) => call!(@slot self table.rmaProgress, Progress, (ctx)),
            Slots::V15(table) => call!(@slot self table.rmaProgress, Progress, (ctx)),
            Slots::V16(table) => call!(@slot self table.rmaProgress, Progress, (ctx)),
        }
    }

    /// Calls `queryLastError`, with a context of `createContext` as NCCL does.
    pub fn has_error(&self, ctx: Ptr) -> (Code, bool) {
        let mut has_error = false;
        let code = call!(self.queryLastError as QueryLastError(ctx, &raw mut has_error));
        (code, has_error)
    }
}
