//! One interface to all tables of one-sided transfers, and what most tests need.

use std::ffi::{c_int, c_void};
use std::ptr;

use nccl_net_versions::abi::*;
use nccl_net_versions::{self as versions, RmaPlugin};

use super::fake::{Fake, Record, record};
use super::net::{DATA, Ptr, STALE};

/// A table of any version.
#[derive(Debug, Clone, Copy)]
pub enum Rma {
    V13(rma_v13::Rma),
    V14(rma_v14::Rma),
    V15(rma_v15::Rma),
    V16(rma_v16::Rma),
}

/// Settings of a context.
#[derive(Debug, Clone, Copy)]
pub struct Config {
    pub contexts: c_int,
    pub class: c_int,
    /// Not in v13.
    pub stride: c_int,
}

/// A place, as C passes it.
#[derive(Debug, Clone, Copy)]
pub struct At(pub Ptr, pub u64);

/// The arguments that all versions of `iput` and `iget` have. The first place is the source of a put,
/// and the remote one of a get.
#[derive(Debug, Clone, Copy)]
pub struct Transfer {
    pub ctx: Ptr,
    pub context: c_int,
    pub first: At,
    pub size: usize,
    pub second: At,
    pub rank: u32,
    /// From v15 on.
    pub flags: u32,
}

/// The other arguments of `iputSignal`.
#[derive(Debug, Clone, Copy)]
pub struct SignalOf {
    pub at: At,
    pub value: u64,
    pub op: u32,
    /// From v14 on.
    pub strong: bool,
}

/// Calls a slot with the arguments of v13, of v14, and of v15 and later.
macro_rules! slots {
    ($rma:ident.$slot:ident: 13 $early:tt 14 $middle:tt 15 $late:tt) => {
        match $rma {
            Rma::V13(table) => slots!(@ table.$slot $early),
            Rma::V14(table) => slots!(@ table.$slot $middle),
            Rma::V15(table) => slots!(@ table.$slot $late),
            Rma::V16(table) => slots!(@ table.$slot $late),
        }
    };
    (@ $table:ident.$slot:ident($($arg:expr),*)) => {{
        let call = $table.$slot.expect("never NULL");
        // SAFETY: the tests pass valid arguments, or arguments that the adapters promise to refuse.
        unsafe { call($($arg),*) }
    }};
}

/// Declares calls whose signature all versions have.
macro_rules! calls {
    ($($name:ident = $slot:ident($($arg:ident: $ty:ty),*);)+) => {$(
        pub fn $name(&self, $($arg: $ty),*) -> ncclResult_t {
            slots!(self.$slot: 13 ($($arg),*) 14 ($($arg),*) 15 ($($arg),*))
        }
    )+};
}

impl Rma {
    pub fn of<P: RmaPlugin>(version: u32) -> Self {
        match version {
            13 => Self::V13(versions::rma_v13::table::<P>()),
            14 => Self::V14(versions::rma_v14::table::<P>()),
            15 => Self::V15(versions::rma_v15::table::<P>()),
            16 => Self::V16(versions::rma_v16::table::<P>()),
            other => panic!("no version {other}"),
        }
    }

    calls! {
        init = init(ctx: *mut Ptr, id: u64, log: ncclDebugLogger_t);
        finalize = finalize(ctx: Ptr);
        devices = devices(n: *mut c_int);
        properties = getProperties(dev: c_int, props: *mut v12::Props);
        listen = listen(ctx: Ptr, dev: c_int, handle: Ptr, comm: *mut Ptr);
        connect = connect(
            ctx: Ptr, handles: *mut Ptr, nranks: c_int, rank: c_int, listen: Ptr, coll: *mut Ptr
        );
        dereg_mr = deregMrSym(coll: Ptr, mhandle: Ptr);
        destroy_context = destroyContext(ctx: Ptr);
        close_coll = closeColl(coll: Ptr);
        close_listen = closeListen(listen: Ptr);
        iflush = iflush(ctx: Ptr, context: c_int, mhandle: Ptr, rank: u32, request: *mut Ptr);
        test = test(coll: Ptr, request: Ptr, done: *mut c_int);
        query_last_error = queryLastError(ctx: Ptr, error: *mut bool);
    }

    pub fn progress(&self, ctx: Ptr) -> ncclResult_t {
        match self {
            Self::V13(table) => slots!(@ table.ginProgress(ctx)),
            Self::V14(table) => slots!(@ table.rmaProgress(ctx)),
            Self::V15(table) => slots!(@ table.rmaProgress(ctx)),
            Self::V16(table) => slots!(@ table.rmaProgress(ctx)),
        }
    }

    /// `None` passes NULL. Also checks that v13 returns no handle for devices.
    pub fn create_context(&self, coll: Ptr, config: Option<Config>, ctx: *mut Ptr) -> ncclResult_t {
        let mut late = config.map(|config| rma_v14::Config {
            nContexts: config.contexts,
            trafficClass: config.class,
            rankStride: config.stride,
        });
        let mut early = config.map(|config| rma_v13::Config {
            nSignals: 101,
            nCounters: 102,
            nContexts: config.contexts,
            queueDepth: 103,
            trafficClass: config.class,
        });
        let late = late.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        let early = early.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
        self.without_device_handle(|device| {
            slots!(self.createContext:
                13 (coll, early, ctx, device.cast())
                14 (coll, late, ctx)
                15 (coll, late, ctx))
        })
    }

    /// Also checks that v13 returns no handle for devices.
    pub fn reg_mr(
        &self,
        coll: Ptr,
        data: Ptr,
        size: usize,
        mem: c_int,
        flags: u64,
        mhandle: *mut Ptr,
    ) -> ncclResult_t {
        self.without_device_handle(|device| {
            slots!(self.regMrSym:
                13 (coll, data, size, mem, flags, mhandle, device)
                14 (coll, data, size, mem, flags, mhandle)
                15 (coll, data, size, mem, flags, mhandle))
        })
    }

    /// Registers 64 bytes by a DMA-BUF. Also checks that v13 returns no handle for devices.
    pub fn reg_mr_dma_buf(
        &self,
        coll: Ptr,
        mem: c_int,
        offset: u64,
        fd: c_int,
        flags: u64,
        mhandle: *mut Ptr,
    ) -> ncclResult_t {
        self.without_device_handle(|device| {
            slots!(self.regMrSymDmaBuf:
                13 (coll, DATA, 64, mem, offset, fd, flags, mhandle, device)
                14 (coll, DATA, 64, mem, offset, fd, flags, mhandle)
                15 (coll, DATA, 64, mem, offset, fd, flags, mhandle))
        })
    }

    /// Passes a place for a handle for devices, which only v13 has, and checks that it gets NULL.
    fn without_device_handle(&self, call: impl Fn(*mut Ptr) -> ncclResult_t) -> ncclResult_t {
        let mut device = STALE;
        let rc = call(&raw mut device);
        assert_eq!(device.is_null(), matches!(self, Self::V13(_)));
        rc
    }

    pub fn iput(&self, t: Transfer, request: *mut Ptr) -> ncclResult_t {
        let Transfer { ctx, context, first: At(src, src_off), size, second: At(dst, dst_off), rank, flags } =
            t;
        slots!(self.iput:
            13 (ctx, context, src_off, src, size, dst_off, dst, rank, request)
            14 (ctx, context, src_off, src, size, dst_off, dst, rank, request)
            15 (ctx, context, src_off, src, size, dst_off, dst, rank, flags, request))
    }

    pub fn iput_signal(&self, t: Transfer, signal: SignalOf, request: *mut Ptr) -> ncclResult_t {
        let Transfer { ctx, context, first: At(src, src_off), size, second: At(dst, dst_off), rank, flags } =
            t;
        let SignalOf { at: At(word, off), value, op, strong } = signal;
        slots!(self.iputSignal:
            13 (ctx, context, src_off, src, size, dst_off, dst, rank, off, word, value, op, request)
            14 (ctx, context, src_off, src, size, dst_off, dst, rank, off, word, value, op, strong, request)
            15 (ctx, context, src_off, src, size, dst_off, dst, rank, off, word, value, op, strong, flags,
                request))
    }

    pub fn iget(&self, t: Transfer, request: *mut Ptr) -> ncclResult_t {
        let Transfer { ctx, context, first: At(from, from_off), size, second: At(to, to_off), rank, flags } =
            t;
        slots!(self.iget:
            13 (ctx, context, from_off, from, size, to_off, to, rank, request)
            14 (ctx, context, from_off, from, size, to_off, to, rank, request)
            15 (ctx, context, from_off, from, size, to_off, to, rank, flags, request))
    }
}

/// One version's table of a separate fake.
#[derive(Debug, Clone, Copy)]
pub struct Rig<const ID: u32> {
    pub version: u32,
    pub rma: Rma,
    pub record: &'static Record,
}

/// A handle of each kind. The numbers that the fake gives them are 1 to 5, in this order, and 6 for the
/// second registration.
#[derive(Debug, Clone, Copy)]
pub struct Open {
    pub ctx: Ptr,
    pub listen: Ptr,
    pub coll: Ptr,
    pub rma: Ptr,
    pub mr: Ptr,
    pub other_mr: Ptr,
}

impl<const ID: u32> Rig<ID> {
    pub fn new(version: u32) -> Self {
        Self { version, rma: Rma::of::<Fake<ID>>(version), record: record(ID) }
    }

    /// Makes a handle of each kind: a group of one rank.
    pub fn open(&self) -> Open {
        let [mut ctx, mut listen, mut coll, mut rma, mut mr, mut other_mr] = [STALE; 6];
        let mut handle = [0u8; 128];
        let mut place = handle.as_mut_ptr().cast::<c_void>();
        assert_eq!(self.rma.init(&raw mut ctx, 7, None), ncclSuccess);
        assert_eq!(self.rma.listen(ctx, 0, place, &raw mut listen), ncclSuccess);
        assert_eq!(self.rma.connect(ctx, &raw mut place, 1, 0, listen, &raw mut coll), ncclSuccess);
        let config = Config { contexts: 4, class: NCCL_RMA_TRAFFIC_CLASS_UNDEF, stride: 1 };
        assert_eq!(self.rma.create_context(coll, Some(config), &raw mut rma), ncclSuccess);
        for place in [&raw mut mr, &raw mut other_mr] {
            assert_eq!(self.rma.reg_mr(coll, DATA, 64, NCCL_PTR_HOST, 0, place), ncclSuccess);
        }
        Open { ctx, listen, coll, rma, mr, other_mr }
    }

    /// Closes what [`Rig::open`] has made.
    pub fn close(&self, open: Open) {
        assert_eq!(self.rma.dereg_mr(open.coll, open.mr), ncclSuccess);
        assert_eq!(self.rma.dereg_mr(open.coll, open.other_mr), ncclSuccess);
        assert_eq!(self.rma.destroy_context(open.rma), ncclSuccess);
        assert_eq!(self.rma.close_coll(open.coll), ncclSuccess);
        assert_eq!(self.rma.close_listen(open.listen), ncclSuccess);
        assert_eq!(self.rma.finalize(open.ctx), ncclSuccess);
    }

    /// Makes wrong handles be reported again, as each `init` does.
    pub fn forget_reports(&self) {
        let mut ctx = STALE;
        assert_eq!(self.rma.init(&raw mut ctx, 7, None), ncclSuccess);
        assert_eq!(self.rma.finalize(ctx), ncclSuccess);
    }
}
