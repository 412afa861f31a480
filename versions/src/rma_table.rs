//! The parts of the modules of RMA tables: thunks of every signature, and the macro that builds a
//! table.

/// Builds the RMA table of a version. `slot: thunk` lists the slots that differ between versions, and
/// `dmabuf` has the thunk of `regMrSymDmaBuf`, which is NULL without the feature.
macro_rules! rma_table {
    ($version:literal; dmabuf: $dmabuf:expr; $($slot:ident: $thunk:expr,)*) => {
        /// Returns the table of an implementation, for the symbol that NCCL looks up.
        pub const fn table<P: $crate::RmaPlugin>() -> Rma {
            use $crate::rma_table::thunk;
            Rma {
                name: P::NAME.as_ptr(),
                init: Some(thunk::init::<P, $version>),
                devices: Some($crate::table::thunk::devices::<P>),
                getProperties: Some(thunk::get_properties::<P>),
                listen: Some(thunk::listen::<P>),
                connect: Some(thunk::connect::<P>),
                regMrSymDmaBuf: if P::DMABUF { Some($dmabuf) } else { None },
                deregMrSym: Some(thunk::dereg_mr_sym::<P>),
                destroyContext: Some(thunk::destroy_context::<P>),
                closeColl: Some(thunk::close_coll::<P>),
                closeListen: Some(thunk::close_listen::<P>),
                iflush: Some(thunk::iflush::<P>),
                test: Some(thunk::test::<P>),
                queryLastError: Some(thunk::query_last_error::<P>),
                finalize: Some(thunk::finalize::<P>),
                $($slot: Some($thunk),)*
            }
        }
    };
}

/// Thunks, named after the call and the first version with the signature if there are several.
pub(crate) mod thunk {
    use core::ffi::{c_int, c_void};

    use nccl_net_abi::{self as abi, ncclResult_t, rma_v13, rma_v14, rma_v16, v12};

    use crate::RmaPlugin;
    use crate::calls::rma::{self as calls, RawSignal, Transfer};
    use crate::guard::{guard, guard_data};

    type Ptr = *mut c_void;

    macro_rules! rma_thunks {
        ($guard:ident: $(
            $thunk:ident $([$($generic:tt)+])? ($($arg:ident: $ty:ty),* $(,)?) $name:literal => $call:expr;
        )+) => {$(
            #[allow(clippy::too_many_arguments, reason = "the argument lists are NCCL's")]
            pub(crate) unsafe extern "C" fn $thunk<P: RmaPlugin $(, $($generic)+)?>(
                $($arg: $ty),*
            ) -> ncclResult_t {
                $guard::<P>($name, || {
                    // SAFETY: NCCL keeps the promises listed in `calls`.
                    unsafe { $call }
                })
            }
        )+};
    }

    rma_thunks! { guard:
        init[const V: u32](ctx: *mut Ptr, comm_id: u64, log: abi::ncclDebugLogger_t) "init"
            => calls::init::<P>(V, ctx, comm_id, log);
        finalize(ctx: Ptr) "finalize" => calls::finalize::<P>(ctx);
        get_properties(dev: c_int, props: *mut v12::Props) "getProperties"
            => calls::get_properties::<P>(dev, props);
        get_rma_properties(coll: Ptr, props: *mut rma_v16::Properties) "getRmaProperties"
            => calls::get_rma_properties::<P>(coll, props);
        listen(ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr) "listen"
            => calls::listen::<P>(ctx, dev, handle, comm);
        close_listen(comm: Ptr) "closeListen" => calls::close_listen::<P>(comm);
        connect(_ctx: Ptr, handles: *mut Ptr, ranks: c_int, rank: c_int, listen: Ptr, coll: *mut Ptr) "connect"
            => calls::connect::<P>(handles, ranks, rank, listen, coll);
        close_coll(coll: Ptr) "closeColl" => calls::close_coll::<P>(coll);
        create_context_v13(
            coll: Ptr,
            config: *mut rma_v13::Config,
            ctx: *mut Ptr,
            device: *mut *mut abi::v11::DeviceHandle,
        ) "createContext" => {
            if let Some(device) = device.as_mut() {
                *device = core::ptr::null_mut();
            }
            calls::create_context::<P>(coll, calls::config_v13(config), ctx)
        };
        create_context_v14(coll: Ptr, config: *mut rma_v14::Config, ctx: *mut Ptr) "createContext"
            => calls::create_context::<P>(coll, config.as_ref().copied(), ctx);
        destroy_context(ctx: Ptr) "destroyContext" => calls::destroy_context::<P>(ctx);
        reg_mr_sym_v13(
            coll: Ptr, data: Ptr, size: usize, mem: c_int, flags: u64, mhandle: *mut Ptr, of_gin: *mut Ptr,
        ) "regMrSym" => {
            if let Some(of_gin) = of_gin.as_mut() {
                *of_gin = core::ptr::null_mut();
            }
            calls::reg_mr_sym::<P>(coll, (data, size), mem, None, flags, mhandle)
        };
        reg_mr_sym_v14(
            coll: Ptr, data: Ptr, size: usize, mem: c_int, flags: u64, mhandle: *mut Ptr,
        ) "regMrSym" => calls::reg_mr_sym::<P>(coll, (data, size), mem, None, flags, mhandle);
        reg_mr_sym_dma_buf_v13(
            coll: Ptr, data: Ptr, size: usize, mem: c_int, offset: u64, fd: c_int, flags: u64,
            mhandle: *mut Ptr, of_gin: *mut Ptr,
        ) "regMrSymDmaBuf" => {
            if let Some(of_gin) = of_gin.as_mut() {
                *of_gin = core::ptr::null_mut();
            }
            calls::reg_mr_sym::<P>(coll, (data, size), mem, Some((offset, fd)), flags, mhandle)
        };
        reg_mr_sym_dma_buf_v14(
            coll: Ptr, data: Ptr, size: usize, mem: c_int, offset: u64, fd: c_int, flags: u64,
            mhandle: *mut Ptr,
        ) "regMrSymDmaBuf"
            => calls::reg_mr_sym::<P>(coll, (data, size), mem, Some((offset, fd)), flags, mhandle);
        dereg_mr_sym(coll: Ptr, mhandle: Ptr) "deregMrSym" => calls::dereg_mr_sym::<P>(coll, mhandle);
        query_last_error(ctx: Ptr, has_error: *mut bool) "queryLastError"
            => calls::query_last_error::<P>(ctx, has_error);
    }

    rma_thunks! { guard_data:
        iput_v13(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            request: *mut Ptr,
        ) "iput" => {
            let (from, to) = ((from, from_off), (to, to_off));
            calls::put::<P>(ctx, &Transfer { context, from, size, to, rank, flags: 0 }, None, request)
        };
        iput_v15(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            flags: u32, request: *mut Ptr,
        ) "iput" => {
            let (from, to) = ((from, from_off), (to, to_off));
            calls::put::<P>(ctx, &Transfer { context, from, size, to, rank, flags }, None, request)
        };
        iput_signal_v13(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            offset: u64, mhandle: Ptr, value: u64, operation: u32, request: *mut Ptr,
        ) "iputSignal" => {
            let (from, to) = ((from, from_off), (to, to_off));
            let signal = RawSignal { place: (mhandle, offset), value, operation, strong: true };
            calls::put::<P>(ctx, &Transfer { context, from, size, to, rank, flags: 0 }, Some(signal), request)
        };
        iput_signal_v14(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            offset: u64, mhandle: Ptr, value: u64, operation: u32, strong: bool, request: *mut Ptr,
        ) "iputSignal" => {
            let (from, to) = ((from, from_off), (to, to_off));
            let signal = RawSignal { place: (mhandle, offset), value, operation, strong };
            calls::put::<P>(ctx, &Transfer { context, from, size, to, rank, flags: 0 }, Some(signal), request)
        };
        iput_signal_v15(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            offset: u64, mhandle: Ptr, value: u64, operation: u32, strong: bool, flags: u32,
            request: *mut Ptr,
        ) "iputSignal" => {
            let (from, to) = ((from, from_off), (to, to_off));
            let signal = RawSignal { place: (mhandle, offset), value, operation, strong };
            calls::put::<P>(ctx, &Transfer { context, from, size, to, rank, flags }, Some(signal), request)
        };
        iget_v13(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            request: *mut Ptr,
        ) "iget" => {
            let (from, to) = ((from, from_off), (to, to_off));
            calls::get::<P>(ctx, &Transfer { context, from, size, to, rank, flags: 0 }, request)
        };
        iget_v15(
            ctx: Ptr, context: c_int, from_off: u64, from: Ptr, size: usize, to_off: u64, to: Ptr, rank: u32,
            flags: u32, request: *mut Ptr,
        ) "iget" => {
            let (from, to) = ((from, from_off), (to, to_off));
            calls::get::<P>(ctx, &Transfer { context, from, size, to, rank, flags }, request)
        };
        iflush(ctx: Ptr, context: c_int, mhandle: Ptr, rank: u32, request: *mut Ptr) "iflush"
            => calls::flush::<P>(ctx, context, mhandle, rank, request);
        test(coll: Ptr, request: Ptr, done: *mut c_int) "test" => calls::test::<P>(coll, request, done);
        progress(ctx: Ptr) "rmaProgress" => calls::progress::<P>(ctx);
    }
}
