//! One implementation of a NCCL network plugin behind every `ncclNetPlugin_vN` table from v6 to
//! v12, one of a plugin for one-sided transfers behind `ncclRmaPlugin_v13` to `_v16`, and one of a
//! profiler behind `ncclProfiler_v1` to `_v7`.
//!
//! NCCL loads a network plugin as a shared library, looks up a table of C functions in it and moves
//! all inter-node traffic through that table. The table has seven versions in NCCL 2.18 to 2.32,
//! and a release loads only some of them. With this crate a plugin implements one safe trait,
//! [`NetPlugin`], and [`export!`] produces all seven tables:
//!
//! ```text
//!               ncclNetPlugin_v6 ┐
//!   NCCL  ───>  ...              ├─ adapters ───> impl NetPlugin for MyPlugin
//!               ncclNetPlugin_v12┘
//! ```
//!
//! The adapters check what comes from C (NULL, handles of a wrong kind, closed handles, counts,
//! sizes), stop panics, write every result in every case, and bridge the differences between the
//! versions. They cost a few nanoseconds per call and allocate nothing on the data path.
//!
//! # Should I use this crate?
//!
//! Yes, to write a network plugin (`libnccl-net.so`) that loads in every NCCL from 2.18 on, over
//! any transport. Yes, for [one-sided transfers](#one-sided-transfers) where the host drives the
//! adapter.
//!
//! No, to call an existing plugin: `nccl-net-abi` has the C types alone. No, if the plugin needs
//! one of NCCL's other tables: collNet, tuner or environment plugins are not covered, nor
//! is device-side networking: `getDeviceMr`, `irecvConsumed` and the GIN tables.
//!
//! # Life cycle
//!
//! 1. **Load.** NCCL opens the library, reads the name in the newest table that it knows, and calls
//!    [`init`](NetPlugin::init). v6 to v10: once per load; a further call becomes
//!    [`reinit`](NetPlugin::reinit). v11 and v12: once per communicator. *Init thread.*
//! 2. **Devices.** [`devices`](NetPlugin::devices), then [`properties`](NetPlugin::properties) of
//!    each. A plugin with no device is disabled. *Init thread; `properties` from any thread.*
//! 3. **Virtual devices** (v9 and later, optional). [`make_vdevice`](NetPlugin::make_vdevice)
//!    merges devices; NCCL reads the devices again. *Init thread.*
//! 4. **Connect.** The receiver calls [`listen`](NetPlugin::listen), NCCL carries the handle to the
//!    sender. The sender polls [`connect`](NetPlugin::connect), the receiver polls
//!    [`accept`](NetPlugin::accept), until both return a comm. Neither may block. Then the receiver
//!    calls [`close_listen`](NetPlugin::close_listen). *Service thread.*
//! 5. **Register.** [`reg_mr_send`](NetPlugin::reg_mr_send),
//!    [`reg_mr_recv`](NetPlugin::reg_mr_recv) and [`dereg_mr`](NetPlugin::dereg_mr), also while
//!    data moves on the same comm. *Service thread; NCCL 2.20 to 2.23 also use the init and
//!    progress threads if `reg_is_global` is set.*
//! 6. **Move data.** [`isend`](NetPlugin::isend) and [`irecv`](NetPlugin::irecv) start a request,
//!    [`test`](NetPlugin::test) polls it until it is complete. After a receive into GPU memory,
//!    [`iflush`](NetPlugin::iflush) starts another request. Up to 32 requests per comm are in
//!    flight. [`set_net_attr`](NetPlugin::set_net_attr) (v11 and later, optional) announces the
//!    traffic. *Progress thread; `set_net_attr` from the service thread too.*
//! 7. **Close.** [`close_send`](NetPlugin::close_send) and [`close_recv`](NetPlugin::close_recv),
//!    after the progress thread has ended. NCCL forgets a comm whose setup never completed.
//!    *Service thread.*
//! 8. **Finalize** (v11 and later). [`finalize`](NetPlugin::finalize), once per `init`. *Init
//!    thread.*
//!
//! NCCL has one service thread and one progress thread per GPU, so steps 4 to 7 run in parallel for
//! several comms.
//!
//! ## What the older versions never call
//!
//! | | v6 | v7 | v8 | v9 | v10 |
//! |---|---|---|---|---|---|
//! | [`finalize`](NetPlugin::finalize) | never | never | never | never | never |
//! | [`set_net_attr`](NetPlugin::set_net_attr) | never | never | never | never | never |
//! | [`make_vdevice`](NetPlugin::make_vdevice) | never | never | never | yes | yes |
//! | profiler in [`Init`], profiler handles | none | none | none | none | yes |
//! | traffic class | none | none | none | none | in `connect` |
//! | `optional_completion` in [`irecv`](NetPlugin::irecv) | never | never | never | yes | yes |
//!
//! # One-sided transfers
//!
//! NCCL 2.30.7 and later carry windows, `ncclPutSignal`, and GIN without support of the adapter
//! through another table. A plugin implements [`RmaPlugin`], which has their life cycle, and
//! [`export_rma!`] produces its four versions. A type may implement it beside [`NetPlugin`].
//!
//! | | v13 | v14 | v15 | v16 |
//! |---|---|---|---|---|
//! | [`Signal::strong`] | always set | as given | as given | as given |
//! | [`RmaConfig::rank_stride`] | 1 | as given | as given | as given |
//! | [`Put::more`], [`Get::more`] | never set | never set | as given | as given |
//! | [`coll_properties`](RmaPlugin::coll_properties) | never | never | never | yes |
//!
//! # Profiler
//!
//! NCCL 2.23 and later report their operations to a profiler: which collective, how many bytes, when the
//! proxy begins and ends. 2.26 and later also pass on what a network plugin reports. A plugin implements
//! [`ProfilerPlugin`], and [`export_profiler!`] produces its seven versions. NCCL looks for them in the
//! library that `NCCL_PROFILER_PLUGIN` names, and from 2.28 on in that of the network, too.
//!
//! # Example
//!
//! A plugin whose messages vanish, and the table that NCCL would load. `examples/loopback.rs` is a
//! whole plugin that moves data over TCP, and `examples/rma.rs` one for one-sided transfers.
//!
//! ```
//! use std::ffi::{CStr, c_int};
//! use nccl_net_versions::*;
//!
//! struct Null;
//!
//! /// A comm owns its requests. NCCL keeps up to 32 of them in flight.
//! struct Comm(RequestPool<usize>);
//!
//! impl Plugin for Null {
//!     const NAME: &'static CStr = c"Null";
//! }
//!
//! impl NetPlugin for Null {
//!     type Context = ();
//!     type Listen = ();
//!     type Send = Comm;
//!     type Recv = Comm;
//!     type Mr = ();
//!     type Request = Pooled<usize>;
//!
//!     fn init(_: &Init) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     fn devices() -> Result<usize, Failure> {
//!         Ok(1)
//!     }
//!     fn properties(dev: usize) -> Result<Properties, Failure> {
//!         if dev == 0 { Ok(Properties::new(c"null0")) } else { Err(Failure::InvalidArgument) }
//!     }
//!     fn listen(_: &(), _: usize, _: &mut HandleBuf) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     fn connect(
//!         _: &(),
//!         _: usize,
//!         _: &CommConfig,
//!         _: &mut HandleBuf,
//!     ) -> Result<Option<Comm>, Failure> {
//!         Ok(Some(Comm(RequestPool::new(32, |index| index))))
//!     }
//!     fn accept(_: &()) -> Result<Option<Comm>, Failure> {
//!         Ok(Some(Comm(RequestPool::new(32, |index| index))))
//!     }
//!     fn reg_mr_send(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     fn reg_mr_recv(_: &Comm, _: Buffer, _: MemKind, _: Option<DmaBuf>) -> Result<(), Failure> {
//!         Ok(())
//!     }
//!     fn isend<'a>(
//!         comm: &'a Comm,
//!         _: Buffer,
//!         _: c_int,
//!         _: Option<&()>,
//!         _: ProfilerHandle,
//!     ) -> Result<Option<&'a Tagged<Pooled<usize>>>, Failure> {
//!         Ok(comm.0.acquire())
//!     }
//!     fn irecv<'a>(
//!         comm: &'a Comm,
//!         _: &[RecvBuffer<'_, Self>],
//!         _: bool,
//!     ) -> Result<Option<&'a Tagged<Pooled<usize>>>, Failure> {
//!         Ok(comm.0.acquire())
//!     }
//!     fn test(request: &Pooled<usize>, sizes: &mut Sizes) -> Result<bool, Failure> {
//!         sizes.set(0, 0)?;
//!         request.release();
//!         Ok(true)
//!     }
//! }
//!
//! nccl_net_versions::export!(Null);
//!
//! let mut ndev = 0;
//! // SAFETY: a writable int, as NCCL passes.
//! let result = unsafe { ncclNetPlugin_v12.devices.expect("never NULL")(&raw mut ndev) };
//! assert_eq!((result, ndev), (abi::ncclSuccess, 1));
//! assert!(ncclNetPlugin_v12.makeVDevice.is_none(), "an optional call that Null does not provide");
//! ```

#[macro_use]
mod props;
#[macro_use]
mod table;
#[macro_use]
mod rma;

mod callback;
mod calls;
mod failure;
mod guard;
mod handle;
mod logger;
mod plugin;
mod profile;
mod profiler;
mod refusal;
mod request_pool;
mod slab;
mod state;
mod tagged;
mod types;

pub mod rma_v13;
pub mod rma_v14;
pub mod rma_v15;
pub mod rma_v16;
pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

pub use callback::{in_call, in_callback};
pub use failure::Failure;
pub use logger::{Level, LogFn, Logger};
pub use nccl_net_abi as abi;
#[doc(hidden)]
pub use paste;
pub use plugin::{NetPlugin, Plugin};
pub use profile::{
    Communicator, Event, Operation, ProfilerPlugin, profiler_v1, profiler_v2, profiler_v3, profiler_v4,
    profiler_v5, profiler_v6, profiler_v7,
};
pub use profiler::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};
pub use refusal::Refusal;
pub use request_pool::{Pooled, RequestPool};
pub use rma::{Get, MrFlags, Place, Put, RmaConfig, RmaInit, RmaPlugin, RmaProperties, Signal};
pub use slab::Slab;
pub use state::warn;
pub use tagged::Tagged;
pub use types::*;

/// The handle that NCCL carries from the listener to the connector: `NCCL_NET_HANDLE_MAXSIZE`
/// bytes.
pub type HandleBuf = [u8; nccl_net_abi::NCCL_NET_HANDLE_MAXSIZE];

/// Exports the tables of an implementation, for the root of a `cdylib`.
///
/// Defines `ncclNetPlugin_v6` to `ncclNetPlugin_v12`, which NCCL looks up, and `ncclNet_v6` to
/// `ncclNet_v12`, the names in NCCL's documentation.
#[macro_export]
macro_rules! export {
    ($plugin:ty) => {
        $crate::export! { @ $plugin: v6 v7 v8 v9 v10 v11 v12 }
    };
    (@ $plugin:ty: $($version:ident)+) => {
        $crate::paste::paste! {$(
            #[doc = concat!("The ", stringify!($version), " table.")]
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, unsafe_code)]
            pub static [<ncclNetPlugin_ $version>]: $crate::abi::$version::Net =
                $crate::$version::table::<$plugin>();

            #[doc = concat!("The ", stringify!($version), " table under its documented name.")]
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, unsafe_code)]
            pub static [<ncclNet_ $version>]: $crate::abi::$version::Net =
                $crate::$version::table::<$plugin>();
        )+}
    };
}

/// Exports the tables of an implementation of [`RmaPlugin`], for the root of a `cdylib`.
///
/// Defines `ncclRmaPlugin_v13` to `ncclRmaPlugin_v16`, which NCCL looks up in the library of the
/// network plugin, too. Not `ncclGinPlugin_v13`: releases with RMA pass over a GIN plugin of this type
/// and run their own on the RMA table.
#[macro_export]
macro_rules! export_rma {
    ($plugin:ty) => {
        $crate::export_rma! { @ $plugin: v13 v14 v15 v16 }
    };
    (@ $plugin:ty: $($version:ident)+) => {
        $crate::paste::paste! {$(
            #[doc = concat!("The ", stringify!($version), " table of one-sided transfers.")]
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, unsafe_code)]
            pub static [<ncclRmaPlugin_ $version>]: $crate::abi::[<rma_ $version>]::Rma =
                $crate::[<rma_ $version>]::table::<$plugin>();
        )+}
    };
}

/// Exports the tables of an implementation of [`ProfilerPlugin`], for the root of a `cdylib`.
///
/// Defines `ncclProfiler_v1` to `ncclProfiler_v7`.
#[macro_export]
macro_rules! export_profiler {
    ($plugin:ty) => {
        $crate::export_profiler! { @ $plugin: v1 v2 v3 v4 v5 v6 v7 }
    };
    (@ $plugin:ty: $($version:ident)+) => {
        $crate::paste::paste! {$(
            #[doc = concat!("The ", stringify!($version), " table of a profiler.")]
            #[unsafe(no_mangle)]
            #[allow(non_upper_case_globals, unsafe_code)]
            pub static [<ncclProfiler_ $version>]: $crate::abi::[<profiler_ $version>]::Profiler =
                $crate::[<profiler_ $version>]::table::<$plugin>();
        )+}
    };
}
