//! One implementation of a NCCL network plugin behind every `ncclNetPlugin_vN` table from v6 to v12.
//!
//! An implementation fills in the trait [`NetPlugin`], which is shaped like v11 and speaks Rust types. One line
//! then makes all the symbols that NCCL looks for:
//!
//! ```text
//! nccl_net_versions::export!(MyPlugin);
//! ```
//!
//! The adapters between the two judge what comes from C (NULL, handles of the wrong kind or closed ones, counts,
//! sizes), stop panics, write every result in every case, and bridge what the versions do differently: the
//! modules [`v6`] to [`v12`] say what that is. They cost a few nanoseconds and allocate nothing on the data path.
//! What the implementation must see to itself, device indices that are too large for example, its trait says.

#[macro_use]
mod props;
#[macro_use]
mod table;

mod calls;
mod failure;
mod guard;
mod handle;
mod logger;
mod plugin;
mod profiler;
mod refusal;
mod state;
mod tagged;

pub mod v10;
pub mod v11;
pub mod v12;
pub mod v6;
pub mod v7;
pub mod v8;
pub mod v9;

pub use failure::Failure;
pub use logger::{Level, LogFn, Logger};
pub use nccl_net_abi as abi;
#[doc(hidden)]
pub use paste;
pub use plugin::*;
pub use profiler::{Profiler, ProfilerEvent, ProfilerHandle, QpEvent};
pub use refusal::Refusal;
pub use tagged::Tagged;

/// `NCCL_NET_HANDLE_MAXSIZE` bytes that NCCL carries from listener to connector.
pub type HandleBuf = [u8; nccl_net_abi::NCCL_NET_HANDLE_MAXSIZE];

/// Makes `ncclNetPlugin_v6` to `ncclNetPlugin_v12`, which NCCL looks for, and `ncclNet_vN`, the name in NCCL's
/// documentation, for one implementation. For the root of a `cdylib`.
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
