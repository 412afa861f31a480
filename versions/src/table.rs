//! The parts of the version modules: thunks of every signature, and the macro that builds a table.

/// Declares `extern "C"` functions, generic over a plugin of the kind that is named. Each is a guarded call of a function in
/// [`crate::calls`].
macro_rules! thunks {
    ($guard:ident $plugin:ident: $(
        $(#[$meta:meta])*
        $thunk:ident $([$($generic:tt)+])? ($($arg:ident: $ty:ty),* $(,)?) $name:literal => $call:expr;
    )+) => {$(
        $(#[$meta])*
        #[allow(unused_unsafe, reason = "the init of v6 to v10 is safe")]
        pub(crate) unsafe extern "C" fn $thunk<P: $plugin $(, $($generic)+)?>($($arg: $ty),*) -> ncclResult_t {
            $guard::<P>($name, || {
                // SAFETY: NCCL keeps the promises listed in `calls`.
                unsafe { $call }
            })
        }
    )+};
}

/// Builds the table of a version. `slot: thunk` lists the slots that differ between versions,
/// `optional` those that are NULL without a feature, `null` those that are always NULL. A missing
/// slot, a duplicate slot and a thunk of a wrong type do not compile.
macro_rules! table {
    ($($slot:ident: $thunk:expr,)* $(; optional $($optional:ident: $has:expr, $opt_thunk:expr,)*)?
     $(; null $($null:ident),+)?) => {
        /// Returns the table of an implementation, for the symbol that NCCL looks up.
        pub const fn table<P: $crate::NetPlugin>() -> Net {
            use $crate::table::thunk;
            Net {
                name: P::NAME.as_ptr(),
                devices: Some(thunk::devices::<P>),
                getProperties: Some(thunk::get_properties::<P, Props>),
                regMrDmaBuf: if P::DMABUF { Some(thunk::reg_mr_dma_buf::<P>) } else { None },
                deregMr: Some(thunk::dereg_mr::<P>),
                iflush: Some(thunk::iflush::<P>),
                test: Some(thunk::test::<P>),
                closeSend: Some(thunk::close_send::<P>),
                closeRecv: Some(thunk::close_recv::<P>),
                closeListen: Some(thunk::close_listen::<P>),
                $($slot: Some($thunk),)*
                $($($optional: if $has { Some($opt_thunk) } else { None },)*)?
                $($($null: None,)+)?
            }
        }
    };
}

/// Thunks, named after the call and the first version with the signature if there are several.
pub(crate) mod thunk {
    use core::ffi::{c_int, c_void};

    use nccl_net_abi::{self as abi, ncclResult_t};

    use crate::calls::{self, ContextOf, Length};
    use crate::guard::{guard, guard_data};
    use crate::props::{FromProperties, VirtualDevice};
    use crate::{CommConfig, NetPlugin, Sizes};

    type Ptr = *mut c_void;
    type DevComm = *mut *mut abi::v7::DeviceHandle;

    /// v6 to v9 have no settings per connection.
    const NO_CONFIG: ContextOf = ContextOf::Process(CommConfig { traffic_class: None });

    // `sendDevComm` and `recvDevComm` are for device-side networking and stay unchanged: NCCL
    // passes NULL, or a pointer to NULL.
    thunks! { guard NetPlugin:
        init_v6[const V: u32](log: abi::ncclDebugLogger_t) "init"
            => calls::init_process::<P>(V, log, None);
        init_v10[const V: u32](log: abi::ncclDebugLogger_t, prof: abi::ncclProfilerCallback_t) "init"
            => calls::init_process::<P>(V, log, prof);
        init_v11[const V: u32](
            ctx: *mut Ptr,
            comm_id: u64,
            config: *mut abi::v11::CommConfig,
            log: abi::ncclDebugLogger_t,
            prof: abi::ncclProfilerCallback_t,
        ) "init" => calls::init_comm::<P>(V, ctx, comm_id, config, log, prof);
        finalize(ctx: Ptr) "finalize" => calls::finalize::<P>(ctx);
        devices(ndev: *mut c_int) "devices" => calls::devices(ndev, P::devices);
        get_properties[T: FromProperties](dev: c_int, props: *mut T) "getProperties"
            => calls::get_properties(dev, props, calls::properties::<P>);
        make_vdevice[V: VirtualDevice](d: *mut c_int, props: *mut V) "makeVDevice"
            => calls::make_vdevice::<P, V>(d, props);
        set_net_attr(ctx: Ptr, attr: *mut abi::v11::NetAttr) "setNetAttr"
            => calls::set_net_attr::<P>(ctx, attr);

        listen_v6(dev: c_int, handle: Ptr, comm: *mut Ptr) "listen"
            => calls::listen::<P>(NO_CONFIG, dev, handle, comm);
        listen_v11(ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr) "listen"
            => calls::listen::<P>(ContextOf::Caller(ctx), dev, handle, comm);
        connect_v6(dev: c_int, handle: Ptr, comm: *mut Ptr) "connect"
            => calls::connect::<P>(NO_CONFIG, dev, handle, comm);
        connect_v7(dev: c_int, handle: Ptr, comm: *mut Ptr, _dev_comm: DevComm) "connect"
            => calls::connect::<P>(NO_CONFIG, dev, handle, comm);
        connect_v10(
            dev: c_int,
            config: *mut abi::v10::CommConfig,
            handle: Ptr,
            comm: *mut Ptr,
            _dev_comm: DevComm,
        ) "connect"
            => calls::connect::<P>(ContextOf::Process(calls::comm_config(config)), dev, handle, comm);
        connect_v11(ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr, _dev_comm: DevComm) "connect"
            => calls::connect::<P>(ContextOf::Caller(ctx), dev, handle, comm);
        accept_v6(listener: Ptr, comm: *mut Ptr) "accept" => calls::accept::<P>(listener, comm);
        accept_v7(listener: Ptr, comm: *mut Ptr, _dev_comm: DevComm) "accept"
            => calls::accept::<P>(listener, comm);
        close_send(comm: Ptr) "closeSend" => calls::close_send::<P>(comm);
        close_recv(comm: Ptr) "closeRecv" => calls::close_recv::<P>(comm);
        close_listen(comm: Ptr) "closeListen" => calls::close_listen::<P>(comm);

        reg_mr[S: Length](comm: Ptr, data: Ptr, size: S, mem: c_int, mhandle: *mut Ptr) "regMr"
            => calls::reg_mr::<P, S>(comm, data, size, mem, mhandle);
        reg_mr_dma_buf(
            comm: Ptr,
            data: Ptr,
            size: usize,
            mem: c_int,
            offset: u64,
            fd: c_int,
            mhandle: *mut Ptr,
        ) "regMrDmaBuf" => calls::reg_mr_dma_buf::<P>(comm, data, size, mem, offset, fd, mhandle);
        dereg_mr(comm: Ptr, mhandle: Ptr) "deregMr" => calls::dereg_mr::<P>(comm, mhandle);
    }

    thunks! { guard_data NetPlugin:
        #[cold]
        #[inline(never)]
        isend_refused(comm: Ptr, request: *mut Ptr) "isend" => calls::isend::<P>(comm, request);
        irecv_v6[S: Length](
            comm: Ptr,
            n: c_int,
            data: *mut Ptr,
            sizes: *mut S,
            tags: *mut c_int,
            mhandles: *mut Ptr,
            request: *mut Ptr,
        ) "irecv"
            => calls::irecv::<P, S>(comm, n, data, sizes, tags, mhandles, core::ptr::null(), request);
        irecv_v10(
            comm: Ptr,
            n: c_int,
            data: *mut Ptr,
            sizes: *mut usize,
            tags: *mut c_int,
            mhandles: *mut Ptr,
            phandles: *mut Ptr,
            request: *mut Ptr,
        ) "irecv" => calls::irecv::<P, usize>(comm, n, data, sizes, tags, mhandles, phandles, request);
        iflush(
            comm: Ptr,
            n: c_int,
            data: *mut Ptr,
            sizes: *mut c_int,
            mhandles: *mut Ptr,
            request: *mut Ptr,
        ) "iflush" => calls::iflush::<P>(comm, n, data, sizes, mhandles, request);
        #[cold]
        #[inline(never)]
        test_refused(request: Ptr, done: *mut c_int, sizes: *mut c_int) "test"
            => calls::test::<P>(request, done, sizes);
    }

    pub(crate) unsafe extern "C" fn isend_v6<P: NetPlugin, S: Length>(
        comm: Ptr,
        data: Ptr,
        size: S,
        tag: c_int,
        mhandle: Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        // SAFETY: NCCL keeps the promises listed in `calls`.
        unsafe { isend::<P, S>(comm, data, size, tag, mhandle, core::ptr::null_mut(), request) }
    }

    pub(crate) unsafe extern "C" fn isend_v10<P: NetPlugin>(
        comm: Ptr,
        data: Ptr,
        size: usize,
        tag: c_int,
        mhandle: Ptr,
        phandle: Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        // SAFETY: NCCL keeps the promises listed in `calls`.
        unsafe { isend::<P, usize>(comm, data, size, tag, mhandle, phandle, request) }
    }

    /// `isend`. A call that comes before the receive, as most do, takes the short way.
    #[inline(always)]
    unsafe fn isend<P: NetPlugin, S: Length>(
        comm: Ptr,
        data: Ptr,
        size: S,
        tag: c_int,
        mhandle: Ptr,
        phandle: Ptr,
        request: *mut Ptr,
    ) -> ncclResult_t {
        // SAFETY: as the caller promises.
        match unsafe { calls::due::<P>(comm, request) } {
            Some(None) => abi::ncclSuccess,
            Some(Some(calls::DueSend { comm, request })) => {
                isend_due::<P, S>(comm, data, size, tag, mhandle, phandle, request)
            }
            // SAFETY: as above.
            None => unsafe { isend_refused::<P>(comm, request) },
        }
    }

    // The arguments of isend in their order: they stay in their registers.
    #[inline(never)]
    extern "C" fn isend_due<P: NetPlugin, S: Length>(
        comm: &calls::Sender<P>,
        data: Ptr,
        size: S,
        tag: c_int,
        mhandle: Ptr,
        phandle: Ptr,
        request: calls::Out<Ptr>,
    ) -> ncclResult_t {
        guard_data::<P>("isend", || {
            // SAFETY: NCCL keeps the promises listed in `calls`.
            unsafe { calls::DueSend::<P> { comm, request }.run::<S>(data, size, tag, mhandle, phandle) }
        })
    }

    /// `test`. A request that is already completed, as most are, takes the short way.
    pub(crate) unsafe extern "C" fn test<P: NetPlugin>(
        request: Ptr,
        done: *mut c_int,
        sizes: *mut c_int,
    ) -> ncclResult_t {
        // SAFETY: NCCL keeps the promises listed in `calls`.
        match unsafe { calls::collect::<P>(request, done, sizes) } {
            Some(None) => abi::ncclSuccess,
            Some(Some(calls::PendingTest { request, done, sizes })) => {
                test_pending::<P>(request, done, sizes)
            }
            // SAFETY: as above.
            None => unsafe { test_refused::<P>(request, done, sizes) },
        }
    }

    // The parts as arguments: they fit in registers. `extern "C"` like its caller, which then jumps.
    #[inline(never)]
    extern "C" fn test_pending<P: NetPlugin>(
        request: &P::Request,
        done: calls::Out<c_int>,
        sizes: Sizes,
    ) -> ncclResult_t {
        guard_data::<P>("test", || calls::PendingTest::<P> { request, done, sizes }.run())
    }
}
