//! Shared by the tests: a plugin that records its calls, and one interface to all seven tables.
#![allow(dead_code, unreachable_pub, unused_macros, unused_imports, missing_docs)]

pub mod fake;
pub mod least;
pub mod net;
pub mod rig;
pub mod rma;
pub mod rma_fake;

pub use fake::{Act, Fake, Record, record};
pub use net::Net;
pub use rig::Rig;

/// Returns the number of the fake plugin of a test: its file, its line and the version of the table.
/// Numbers that a
/// test names itself are below 1000, and each file has a hundred of them.
pub const fn id(file: &str, line: u32, version: u32) -> u32 {
    let (bytes, mut hash, mut i) = (file.as_bytes(), 0_u32, 0);
    while i < bytes.len() {
        hash = hash.wrapping_mul(31).wrapping_add(bytes[i] as u32);
        i += 1;
    }
    (hash % 40_000 + 1) * 100_000 + (line * 20 + version) % 100_000
}

/// Makes a test for each version from one body. Each one receives a [`Rig`] with a separate plugin.
macro_rules! every_version {
    ($(#[$meta:meta])* fn $name:ident($rig:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(#[$meta])*
            fn body<const ID: u32>($rig: common::Rig<ID>) $body

            #[test]
            fn v6() { common::Rig::<{ common::id(file!(), line!(), 6) }>::new(6).run(body); }
            #[test]
            fn v7() { common::Rig::<{ common::id(file!(), line!(), 7) }>::new(7).run(body); }
            #[test]
            fn v8() { common::Rig::<{ common::id(file!(), line!(), 8) }>::new(8).run(body); }
            #[test]
            fn v9() { common::Rig::<{ common::id(file!(), line!(), 9) }>::new(9).run(body); }
            #[test]
            fn v10() { common::Rig::<{ common::id(file!(), line!(), 10) }>::new(10).run(body); }
            #[test]
            fn v11() { common::Rig::<{ common::id(file!(), line!(), 11) }>::new(11).run(body); }
            #[test]
            fn v12() { common::Rig::<{ common::id(file!(), line!(), 12) }>::new(12).run(body); }
        }
    };
}

/// Like `every_version`, for the tables of one-sided transfers.
macro_rules! every_rma_version {
    ($(#[$meta:meta])* fn $name:ident($rig:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(#[$meta])*
            fn body<const ID: u32>($rig: common::rma::Rig<ID>) $body

            #[test]
            fn v13() { body(common::rma::Rig::<{ common::id(file!(), line!(), 13) }>::new(13)); }
            #[test]
            fn v14() { body(common::rma::Rig::<{ common::id(file!(), line!(), 14) }>::new(14)); }
            #[test]
            fn v15() { body(common::rma::Rig::<{ common::id(file!(), line!(), 15) }>::new(15)); }
            #[test]
            fn v16() { body(common::rma::Rig::<{ common::id(file!(), line!(), 16) }>::new(16)); }
        }
    };
}
