//! Shared by the tests: a plugin that records its calls, and one interface to all seven tables.
#![allow(dead_code, unreachable_pub, unused_macros, unused_imports, missing_docs)]

pub mod fake;
pub mod least;
pub mod net;
pub mod rig;

pub use fake::{Act, Fake, Record, record};
pub use net::Net;
pub use rig::Rig;

/// Makes a test for each version from one body. Each one receives a [`Rig`] with a separate plugin.
macro_rules! every_version {
    ($(#[$meta:meta])* fn $name:ident($rig:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(#[$meta])*
            fn body<const ID: u32>($rig: common::Rig<ID>) $body

            #[test]
            fn v6() { common::Rig::<{ line!() * 100 + 6 }>::new(6).run(body); }
            #[test]
            fn v7() { common::Rig::<{ line!() * 100 + 7 }>::new(7).run(body); }
            #[test]
            fn v8() { common::Rig::<{ line!() * 100 + 8 }>::new(8).run(body); }
            #[test]
            fn v9() { common::Rig::<{ line!() * 100 + 9 }>::new(9).run(body); }
            #[test]
            fn v10() { common::Rig::<{ line!() * 100 + 10 }>::new(10).run(body); }
            #[test]
            fn v11() { common::Rig::<{ line!() * 100 + 11 }>::new(11).run(body); }
            #[test]
            fn v12() { common::Rig::<{ line!() * 100 + 12 }>::new(12).run(body); }
        }
    };
}
