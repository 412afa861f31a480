//! The parts of the version modules of one-sided transfers: thunks of every signature, and the macro
//! that builds a table.

/// Builds the table of a version. `slot: thunk` lists the slots that differ between versions. A
/// missing slot, a duplicate slot and a thunk of a wrong type do not compile.
macro_rules! rma_table {
    ($($slot:ident: $thunk:expr,)*) => {
        /// Returns the table of an implementation, for the symbol that NCCL looks up.
        pub const fn table<P: $crate::RmaPlugin>() -> Rma {
            use $crate::rma::thunk;
            Rma {
                name: P::NAME.as_ptr(),
                devices: Some(thunk::devices::<P>),
                getProperties: Some(thunk::get_properties::<P>),
                listen: Some(thunk::listen::<P>),
                connect: Some(thunk::connect::<P>),
                deregMrSym: Some(thunk::dereg_mr::<P>),
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

    use nccl_net_abi::{self as abi, ncclResult_t, rma_v13, rma_v14, rma_v16};

    use crate::RmaPlugin;
    use crate::calls::rma::{self as calls, ConfigArgs, GetArgs, MemoryArgs, PutArgs, RawPlace, SignalArgs};
    use crate::calls::{devices as count, get_properties as properties};
    use crate::guard::{guard, guard_data};

    type Ptr = *mut c_void;
    /// v13 and v14 have no flags of requests.
    const NO_FLAGS: u32 = abi::ncclRmaOptFlagsDefault;

    type DevHandle = *mut *mut abi::v11::DeviceHandle;

    // The names in reports differ from those of a network: one plugin may have both tables.
    thunks! { guard RmaPlugin:
        init[const V: u32](ctx: *mut Ptr, comm_id: u64, log: abi::ncclDebugLogger_t) "RMA init"
            => calls::init::<P>(V, ctx, comm_id, log);
        finalize(ctx: Ptr) "RMA finalize" => calls::finalize::<P>(ctx);
        devices(ndev: *mut c_int) "RMA devices" => count(ndev, P::devices);
        get_properties(dev: c_int, props: *mut abi::v12::Props) "RMA getProperties"
            => properties(dev, props, calls::properties::<P>);
        coll_properties(coll: Ptr, props: *mut rma_v16::Properties) "RMA getRmaProperties"
            => calls::coll_properties::<P>(coll, props);
        query_last_error(ctx: Ptr, has_error: *mut bool) "RMA queryLastError"
            => calls::has_error::<P>(ctx, has_error);

        listen(ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr) "RMA listen"
            => calls::listen::<P>(ctx, dev, handle, comm);
        connect(_ctx: Ptr, handles: *mut Ptr, nranks: c_int, rank: c_int, comm: Ptr, coll: *mut Ptr)
            "RMA connect" => calls::connect::<P>(handles, nranks, rank, comm, coll);
        create_context_v13(
            coll: Ptr,
            config: *mut rma_v13::Config,
            ctx: *mut Ptr,
            dev_handle: DevHandle,
        ) "RMA createContext" => {
            calls::write_null(dev_handle);
            let config = config.as_ref().map(|config| ConfigArgs {
                contexts: config.nContexts,
                class: config.trafficClass,
                rank_stride: 1,
            });
            calls::create_context::<P>(coll, config, ctx)
        };
        create_context_v14(coll: Ptr, config: *mut rma_v14::Config, ctx: *mut Ptr) "RMA createContext" => {
            let config = config.as_ref().map(|config| ConfigArgs {
                contexts: config.nContexts,
                class: config.trafficClass,
                rank_stride: config.rankStride,
            });
            calls::create_context::<P>(coll, config, ctx)
        };
        destroy_context(ctx: Ptr) "RMA destroyContext" => calls::destroy_context::<P>(ctx);
        close_coll(coll: Ptr) "RMA closeColl" => calls::close_coll::<P>(coll);
        close_listen(comm: Ptr) "RMA closeListen" => calls::close_listen::<P>(comm);

        reg_mr_v13(
            coll: Ptr,
            data: Ptr,
            size: usize,
            mem: c_int,
            flags: u64,
            mhandle: *mut Ptr,
            gin_handle: *mut Ptr,
        ) "RMA regMrSym" => {
            calls::write_null(gin_handle);
            calls::reg_mr::<P>(coll, MemoryArgs { data, size, mem, dma_buf: None, flags }, mhandle)
        };
        reg_mr_v14(coll: Ptr, data: Ptr, size: usize, mem: c_int, flags: u64, mhandle: *mut Ptr)
            "RMA regMrSym"
            => calls::reg_mr::<P>(coll, MemoryArgs { data, size, mem, dma_buf: None, flags }, mhandle);
        reg_mr_dma_buf_v13(
            coll: Ptr,
            data: Ptr,
            size: usize,
            mem: c_int,
            offset: u64,
            fd: c_int,
            flags: u64,
            mhandle: *mut Ptr,
            gin_handle: *mut Ptr,
        ) "RMA regMrSymDmaBuf" => {
            calls::write_null(gin_handle);
            let dma_buf = Some((offset, fd));
            calls::reg_mr::<P>(coll, MemoryArgs { data, size, mem, dma_buf, flags }, mhandle)
        };
        reg_mr_dma_buf_v14(
            coll: Ptr,
            data: Ptr,
            size: usize,
            mem: c_int,
            offset: u64,
            fd: c_int,
            flags: u64,
            mhandle: *mut Ptr,
        ) "RMA regMrSymDmaBuf" => {
            let dma_buf = Some((offset, fd));
            calls::reg_mr::<P>(coll, MemoryArgs { data, size, mem, dma_buf, flags }, mhandle)
        };
        dereg_mr(coll: Ptr, mhandle: Ptr) "RMA deregMrSym" => calls::dereg_mr::<P>(coll, mhandle);
    }

    thunks! { guard_data RmaPlugin:
        iflush(ctx: Ptr, context: c_int, mhandle: Ptr, rank: u32, request: *mut Ptr) "RMA iflush"
            => calls::iflush::<P>(ctx, context, mhandle, rank, request);
        test(coll: Ptr, request: Ptr, done: *mut c_int) "RMA test"
            => calls::test::<P>(coll, request, done);
        progress(ctx: Ptr) "RMA progress" => calls::progress::<P>(ctx);
        iput_v13(
            ctx: Ptr,
            context: c_int,
            src_off: u64,
            src: Ptr,
            size: usize,
            dst_off: u64,
            dst: Ptr,
            rank: u32,
            request: *mut Ptr,
        ) "RMA iput" => {
            let (src, dst) = (RawPlace(src_off, src), RawPlace(dst_off, dst));
            calls::iput::<P>(
                PutArgs { ctx, context, src, size, dst, rank, signal: None, flags: NO_FLAGS },
                request,
            )
        };
        iput_v15(
            ctx: Ptr,
            context: c_int,
            src_off: u64,
            src: Ptr,
            size: usize,
            dst_off: u64,
            dst: Ptr,
            rank: u32,
            flags: u32,
            request: *mut Ptr,
        ) "RMA iput" => {
            let (src, dst) = (RawPlace(src_off, src), RawPlace(dst_off, dst));
            calls::iput::<P>(
                PutArgs { ctx, context, src, size, dst, rank, signal: None, flags },
                request,
            )
        };
        iput_signal_v13(
            ctx: Ptr,
            context: c_int,
            src_off: u64,
            src: Ptr,
            size: usize,
            dst_off: u64,
            dst: Ptr,
            rank: u32,
            signal_off: u64,
            signal: Ptr,
            value: u64,
            op: u32,
            request: *mut Ptr,
        ) "RMA iputSignal" => {
            let place = RawPlace(signal_off, signal);
            let signal = SignalArgs { place, value, op, strong: true };
            let (src, dst) = (RawPlace(src_off, src), RawPlace(dst_off, dst));
            calls::iput::<P>(
                PutArgs { ctx, context, src, size, dst, rank, signal: Some(signal), flags: NO_FLAGS },
                request,
            )
        };
        iput_signal_v14(
            ctx: Ptr,
            context: c_int,
            src_off: u64,
            src: Ptr,
            size: usize,
            dst_off: u64,
            dst: Ptr,
            rank: u32,
            signal_off: u64,
            signal: Ptr,
            value: u64,
            op: u32,
            strong: bool,
            request: *mut Ptr,
        ) "RMA iputSignal" => {
            let place = RawPlace(signal_off, signal);
            let signal = SignalArgs { place, value, op, strong };
            let (src, dst) = (RawPlace(src_off, src), RawPlace(dst_off, dst));
            calls::iput::<P>(
                PutArgs { ctx, context, src, size, dst, rank, signal: Some(signal), flags: NO_FLAGS },
                request,
            )
        };
        iput_signal_v15(
            ctx: Ptr,
            context: c_int,
            src_off: u64,
            src: Ptr,
            size: usize,
            dst_off: u64,
            dst: Ptr,
            rank: u32,
            signal_off: u64,
            signal: Ptr,
            value: u64,
            op: u32,
            strong: bool,
            flags: u32,
            request: *mut Ptr,
        ) "RMA iputSignal" => {
            let place = RawPlace(signal_off, signal);
            let signal = SignalArgs { place, value, op, strong };
            let (src, dst) = (RawPlace(src_off, src), RawPlace(dst_off, dst));
            calls::iput::<P>(
                PutArgs { ctx, context, src, size, dst, rank, signal: Some(signal), flags },
                request,
            )
        };
        iget_v13(
            ctx: Ptr,
            context: c_int,
            remote_off: u64,
            remote: Ptr,
            size: usize,
            local_off: u64,
            local: Ptr,
            rank: u32,
            request: *mut Ptr,
        ) "RMA iget" => {
            let (remote, local) = (RawPlace(remote_off, remote), RawPlace(local_off, local));
            calls::iget::<P>(GetArgs { ctx, context, remote, size, local, rank, flags: NO_FLAGS }, request)
        };
        iget_v15(
            ctx: Ptr,
            context: c_int,
            remote_off: u64,
            remote: Ptr,
            size: usize,
            local_off: u64,
            local: Ptr,
            rank: u32,
            flags: u32,
            request: *mut Ptr,
        ) "RMA iget" => {
            let (remote, local) = (RawPlace(remote_off, remote), RawPlace(local_off, local));
            calls::iget::<P>(GetArgs { ctx, context, remote, size, local, rank, flags }, request)
        };
    }
}
