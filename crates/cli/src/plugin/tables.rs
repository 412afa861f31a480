//! [`Net`] over each version's table. What differs between versions is said once, in the lines at the end.

use std::{
    ffi::{c_int, c_void},
    mem::MaybeUninit,
    ptr::{NonNull, null_mut, without_provenance_mut},
    rc::Rc,
};

use nccl_net_abi::{
    NCCL_NET_OPTIONAL_RECV_COMPLETION, NCCL_NET_TRAFFIC_CLASS_UNDEF, NCCL_PTR_HOST, ncclResult_t,
    ncclSuccess, v6, v7, v8, v9, v10, v11, v12,
};

use super::{
    logger,
    net::{
        Comm, Device, Handle, MAX_GROUP, Mr, Net, Recv, Request, Sizes, gave_null, left_hint, returned,
        string,
    },
    watch::{Call, Watch},
};
use crate::failure::{Failure, Kind};

/// What NCCL's core assumes of a plugin whose version does not say (`MAX_NET_SIZE`).
const DEFAULT_MAX_BYTES: usize = 1 << 30;
/// `commId`: any number that is the same for both ends.
const COMM_ID: u64 = 0x6d70_6962_0000_0001;

/// The profiler's callback as NCCL gives it where no profiler is loaded: it does nothing.
unsafe extern "C" fn profiler(
    _handle: *mut *mut c_void,
    _type: c_int,
    _parent: *mut c_void,
    _id: i64,
    _data: *mut c_void,
) -> ncclResult_t {
    ncclSuccess
}

/// Stands for the operation that NCCL passes with each send and receive, for the profiler. Only the callback may look behind it.
static OPERATION: [u64; 64] = [0; 64];

fn operation() -> *mut c_void {
    (&raw const OPERATION).cast_mut().cast()
}

/// A table in the plugin's data segment, and what `init` gave.
struct Driver<T: 'static> {
    table: &'static T,
    watch: Rc<Watch>,
    ctx: *mut c_void,
}

/// An integer argument, where its version's type may be too small.
fn number<N: TryFrom<usize>>(call: Call, len: usize) -> Result<N, Failure> {
    N::try_from(len).map_err(|_| {
        Failure::new(
            Kind::Usage,
            format!("{len} bytes do not fit the {} of this version; take smaller messages", call.name()),
        )
    })
}

/// Calls a function of the table, marked in the watch, and judges what it returned.
macro_rules! call {
    ($self:ident, $field:ident, $call:ident, ($($arg:expr),* $(,)?)) => {{
        let function = $self.table.$field.ok_or_else(|| {
            Failure::new(
                Kind::Load,
                concat!("the table has no ", stringify!($field), " (NULL), which every plugin must have"),
            )
        })?;
        // SAFETY: a function of the plugin's table with this version's signature. Pointers among the arguments are
        // to locals that outlive the call, or are the caller's memory and handles under the terms of `Net`.
        let result = $self.watch.during(Call::$call, || unsafe { function($($arg),*) });
        returned(Call::$call, result)
    }};
}

/// The arguments that came or went between versions. The eras: v6; v7 and v8; v9; v10; v11 on.
macro_rules! era {
    (init v11 $self:ident) => {{
        let mut config = v11::CommConfig { trafficClass: NCCL_NET_TRAFFIC_CLASS_UNDEF };
        let mut ctx = null_mut();
        call!($self, init, Init, (&raw mut ctx, COMM_ID, &raw mut config, logger::callback(), Some(profiler)))?;
        $self.ctx = ctx;
        Ok(())
    }};
    (init v10 $self:ident) => { call!($self, init, Init, (logger::callback(), Some(profiler))) };
    (init $old:ident $self:ident) => { call!($self, init, Init, (logger::callback())) };

    (listen v11 $self:ident $dev:expr, $handle:expr, $out:expr) => {
        call!($self, listen, Listen, ($self.ctx, $dev, $handle, $out))
    };
    (listen $old:ident $self:ident $dev:expr, $handle:expr, $out:expr) => {
        call!($self, listen, Listen, ($dev, $handle, $out))
    };

    (connect v11 $self:ident $dev:expr, $handle:expr, $out:expr) => {{
        let mut device = null_mut();
        call!($self, connect, Connect, ($self.ctx, $dev, $handle, $out, &raw mut device))
    }};
    (connect v10 $self:ident $dev:expr, $handle:expr, $out:expr) => {{
        let mut config = v10::CommConfig { trafficClass: NCCL_NET_TRAFFIC_CLASS_UNDEF };
        let mut device = null_mut();
        call!($self, connect, Connect, ($dev, &raw mut config, $handle, $out, &raw mut device))
    }};
    (connect v9 $($args:tt)*) => { era!(connect v7 $($args)*) };
    (connect v7 $self:ident $dev:expr, $handle:expr, $out:expr) => {{
        let mut device = null_mut();
        call!($self, connect, Connect, ($dev, $handle, $out, &raw mut device))
    }};
    (connect v6 $self:ident $dev:expr, $handle:expr, $out:expr) => {
        call!($self, connect, Connect, ($dev, $handle, $out))
    };

    (accept v6 $self:ident $listen:expr, $out:expr) => { call!($self, accept, Accept, ($listen, $out)) };
    (accept $new:ident $self:ident $listen:expr, $out:expr) => {{
        let mut device = null_mut();
        call!($self, accept, Accept, ($listen, $out, &raw mut device))
    }};

    (isend v6 $($args:tt)*) => { era!(isend_plain $($args)*) };
    (isend v7 $($args:tt)*) => { era!(isend_plain $($args)*) };
    (isend v9 $($args:tt)*) => { era!(isend_plain $($args)*) };
    (isend_plain $self:ident $comm:expr, $addr:expr, $len:expr, $tag:expr, $mr:expr, $out:expr) => {
        call!($self, isend, Isend, ($comm, $addr, $len, $tag, $mr, $out))
    };
    (isend $new:ident $self:ident $comm:expr, $addr:expr, $len:expr, $tag:expr, $mr:expr, $out:expr) => {
        call!($self, isend, Isend, ($comm, $addr, $len, $tag, $mr, operation(), $out))
    };

    // What stands in `*request` of an optional receive. NCCL gives no hint to tables before v9.
    (hint v6) => { 0 };
    (hint v7) => { 0 };
    (hint $new:ident) => { NCCL_NET_OPTIONAL_RECV_COMPLETION };

    (irecv v6 $($args:tt)*) => { era!(irecv_plain $($args)*) };
    (irecv v7 $($args:tt)*) => { era!(irecv_plain $($args)*) };
    (irecv v9 $($args:tt)*) => { era!(irecv_plain $($args)*) };
    (irecv_plain $self:ident $comm:expr, $n:expr, $addrs:expr, $lens:expr, $tags:expr, $mrs:expr, $out:expr) => {
        call!($self, irecv, Irecv, ($comm, $n, $addrs, $lens, $tags, $mrs, $out))
    };
    (irecv $new:ident $self:ident $comm:expr, $n:expr, $addrs:expr, $lens:expr, $tags:expr, $mrs:expr, $out:expr) => {{
        let mut profilers = [operation(); MAX_GROUP];
        call!($self, irecv, Irecv, ($comm, $n, $addrs, $lens, $tags, $mrs, profilers.as_mut_ptr(), $out))
    }};

    (consumed v6 $self:ident $comm:expr, $n:expr, $request:expr) => {{
        let _ = ($comm, $n, $request);
        Ok(())
    }};
    (consumed $new:ident $self:ident $comm:expr, $n:expr, $request:expr) => {
        match $self.table.irecvConsumed {
            Some(_) => call!($self, irecvConsumed, IrecvConsumed, ($comm, $n, $request)),
            None => Ok(()),
        }
    };

    (merge v6 $self:ident $module:ident, $devices:expr) => { era!(merge_not $self $module, $devices) };
    (merge v7 $self:ident $module:ident, $devices:expr) => { era!(merge_not $self $module, $devices) };
    (merge_not $self:ident $module:ident, $devices:expr) => {{
        let _ = $devices;
        let text = concat!(stringify!($module), " has no makeVDevice; take a table of v9 or later");
        Err(Failure::new(Kind::Usage, text))
    }};
    (merge $new:ident $self:ident $module:ident, $devices:expr) => {{
        let mut props = $module::VDeviceProps { ndevs: $devices.len() as c_int, devs: Default::default() };
        if $devices.len() > props.devs.len() {
            let (asked, most) = ($devices.len(), props.devs.len());
            let text = format!("{asked} devices cannot be merged: {} takes at most {most}", stringify!($module));
            return Err(Failure::new(Kind::Usage, text));
        }
        props.devs[..$devices.len()].copy_from_slice($devices);
        let mut index = -1;
        call!($self, makeVDevice, MakeVDevice, (&raw mut index, &raw mut props))?;
        Ok(index)
    }};

    (finalize v11 $self:ident) => { call!($self, finalize, Finalize, (std::mem::replace(&mut $self.ctx, null_mut()))) };
    (finalize $old:ident $self:ident) => { Ok(()) };
}

/// `maxP2pBytes`, where the version has it.
macro_rules! max_bytes {
    (said $props:ident) => {
        $props.maxP2pBytes
    };
    (assumed $props:ident) => {
        DEFAULT_MAX_BYTES
    };
}

macro_rules! tables {
    ($($version:literal: $module:ident, $era:ident, regMr($reg:ty), sizes($size:ty), limit($limit:ident);)+) => {
        /// Every version that this tool can drive, newest first, with its symbol.
        pub const SYMBOLS: &[(u32, &str)] =
            &[$(($version, concat!("ncclNetPlugin_v", $version))),+];

        /// Bytes of a version's table; `None` for a version that this tool does not know.
        pub(super) const fn size(version: u32) -> Option<usize> {
            match version {
                $($version => Some(size_of::<$module::Net>()),)+
                _ => None,
            }
        }

        /// A table of a version that [`SYMBOLS`] has; `None` for any other version. `ctx` is what an `init` that was called
        /// already gave, else NULL.
        ///
        /// # Safety
        /// `table` is a table of that version in a library that is never unloaded.
        pub unsafe fn net(
            version: u32,
            table: NonNull<c_void>,
            ctx: *mut c_void,
            watch: Rc<Watch>,
        ) -> Option<Box<dyn Net>> {
            match version {
                $($version => {
                    // SAFETY: the symbol is a table of this version, and stays (the caller's promise).
                    let table = unsafe { table.cast::<$module::Net>().as_ref() };
                    Some(Box::new(Driver { table, watch, ctx }))
                })+
                _ => None,
            }
        }

        $(impl Net for Driver<$module::Net> {
            fn name(&self) -> String {
                // SAFETY: a table's name is a C string in the plugin.
                unsafe { string(self.table.name) }.unwrap_or_else(|| "(NULL)".into())
            }

            fn init(&mut self) -> Result<(), Failure> {
                era!(init $era self)
            }

            fn devices(&self) -> Result<c_int, Failure> {
                let mut count = 0;
                call!(self, devices, Devices, (&raw mut count))?;
                Ok(count)
            }

            fn properties(&self, dev: c_int) -> Result<Device, Failure> {
                let mut props = MaybeUninit::<$module::Props>::zeroed();
                call!(self, getProperties, GetProperties, (dev, props.as_mut_ptr()))?;
                // SAFETY: zeroed and then written by the plugin; every bit pattern of its fields is valid.
                let props = unsafe { props.assume_init() };
                // SAFETY: NULL or a C string that the plugin keeps for NCCL.
                let name = unsafe { string(props.name) };
                Ok(Device {
                    name: name.ok_or_else(|| gave_null(Call::GetProperties, "name"))?,
                    speed: props.speed,
                    max_recvs: props.maxRecvs,
                    ptr_support: props.ptrSupport,
                    max_bytes: max_bytes!($limit props),
                })
            }

            fn make_vdevice(&self, devices: &[c_int]) -> Result<c_int, Failure> {
                era!(merge $era self $module, devices)
            }

            fn listen(&self, dev: c_int, handle: &mut Handle) -> Result<Comm, Failure> {
                let mut comm = null_mut();
                era!(listen $era self dev, handle.0.as_mut_ptr().cast(), &raw mut comm)?;
                NonNull::new(comm).map(Comm).ok_or_else(|| gave_null(Call::Listen, "listenComm"))
            }

            fn connect(&self, dev: c_int, handle: &mut Handle) -> Result<Option<Comm>, Failure> {
                let mut comm = null_mut();
                era!(connect $era self dev, handle.0.as_mut_ptr().cast(), &raw mut comm)?;
                Ok(NonNull::new(comm).map(Comm))
            }

            fn accept(&self, listen: Comm) -> Result<Option<Comm>, Failure> {
                let mut comm = null_mut();
                era!(accept $era self listen.0.as_ptr(), &raw mut comm)?;
                Ok(NonNull::new(comm).map(Comm))
            }

            fn reg_mr(&self, comm: Comm, addr: *mut u8, len: usize) -> Result<Mr, Failure> {
                let len = number::<$reg>(Call::RegMr, len)?;
                let mut mr = null_mut();
                call!(self, regMr, RegMr, (comm.0.as_ptr(), addr.cast(), len, NCCL_PTR_HOST, &raw mut mr))?;
                NonNull::new(mr).map(Mr).ok_or_else(|| gave_null(Call::RegMr, "mhandle"))
            }

            fn dereg_mr(&self, comm: Comm, mr: Mr) -> Result<(), Failure> {
                call!(self, deregMr, DeregMr, (comm.0.as_ptr(), mr.0.as_ptr()))
            }

            fn isend(
                &self,
                comm: Comm,
                addr: *mut u8,
                len: usize,
                tag: c_int,
                mr: Mr,
            ) -> Result<Option<Request>, Failure> {
                let len = number::<$size>(Call::Isend, len)?;
                let mut request = null_mut();
                era!(isend $era self comm.0.as_ptr(), addr.cast(), len, tag, mr.0.as_ptr(), &raw mut request)?;
                Ok(NonNull::new(request).map(Request))
            }

            fn irecv_as(&self, comm: Comm, recvs: &[Recv], optional: bool) -> Result<Option<Request>, Failure> {
                let mut addrs = [null_mut::<c_void>(); MAX_GROUP];
                let mut lens = [0 as $size; MAX_GROUP];
                let mut tags = [0; MAX_GROUP];
                let mut mrs = [null_mut::<c_void>(); MAX_GROUP];
                for (i, recv) in recvs.iter().enumerate().take(MAX_GROUP) {
                    addrs[i] = recv.addr.cast();
                    lens[i] = number::<$size>(Call::Irecv, recv.len)?;
                    tags[i] = recv.tag;
                    mrs[i] = recv.mr.0.as_ptr();
                }
                let n = recvs.len().min(MAX_GROUP) as c_int;
                let hint = if optional { era!(hint $era) } else { 0 };
                let mut request = without_provenance_mut(hint);
                era!(irecv $era self comm.0.as_ptr(), n, addrs.as_mut_ptr(), lens.as_mut_ptr(), tags.as_mut_ptr(),
                    mrs.as_mut_ptr(), &raw mut request)?;
                if hint != 0 && request.addr() == hint {
                    return Err(left_hint());
                }
                Ok(NonNull::new(request).map(Request))
            }

            fn iflush(&self, comm: Comm, recvs: &[Recv]) -> Result<Option<Request>, Failure> {
                let mut addrs = [null_mut::<c_void>(); MAX_GROUP];
                let mut lens = [0; MAX_GROUP];
                let mut mrs = [null_mut::<c_void>(); MAX_GROUP];
                for (i, recv) in recvs.iter().enumerate().take(MAX_GROUP) {
                    addrs[i] = recv.addr.cast();
                    lens[i] = number::<c_int>(Call::Iflush, recv.len)?;
                    mrs[i] = recv.mr.0.as_ptr();
                }
                let n = recvs.len().min(MAX_GROUP) as c_int;
                let mut request = null_mut();
                call!(self, iflush, Iflush, (comm.0.as_ptr(), n, addrs.as_mut_ptr(), lens.as_mut_ptr(),
                    mrs.as_mut_ptr(), &raw mut request))?;
                Ok(NonNull::new(request).map(Request))
            }

            fn test(&self, request: Request, sizes: &mut Sizes) -> Result<bool, Failure> {
                let mut done = 0;
                call!(self, test, Test, (request.0.as_ptr(), &raw mut done, sizes.as_mut_ptr()))?;
                Ok(done != 0)
            }

            fn irecv_consumed(&self, comm: Comm, n: usize, request: Request) -> Result<(), Failure> {
                era!(consumed $era self comm.0.as_ptr(), n as c_int, request.0.as_ptr())
            }

            fn close_send(&self, comm: Comm) -> Result<(), Failure> {
                call!(self, closeSend, CloseSend, (comm.0.as_ptr()))
            }

            fn close_recv(&self, comm: Comm) -> Result<(), Failure> {
                call!(self, closeRecv, CloseRecv, (comm.0.as_ptr()))
            }

            fn close_listen(&self, comm: Comm) -> Result<(), Failure> {
                call!(self, closeListen, CloseListen, (comm.0.as_ptr()))
            }

            fn finalize(&mut self) -> Result<(), Failure> {
                era!(finalize $era self)
            }
        })+
    };
}

tables! {
    12: v12, v11, regMr(usize), sizes(usize), limit(said);
    11: v11, v11, regMr(usize), sizes(usize), limit(said);
    10: v10, v10, regMr(usize), sizes(usize), limit(said);
    9: v9, v9, regMr(usize), sizes(usize), limit(said);
    8: v8, v7, regMr(usize), sizes(c_int), limit(assumed);
    7: v7, v7, regMr(c_int), sizes(c_int), limit(assumed);
    6: v6, v6, regMr(c_int), sizes(c_int), limit(assumed);
}
