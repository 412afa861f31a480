//! What the tests share: a plugin that records its calls, and one way to call all seven tables.
#![allow(dead_code, unreachable_pub, unused_macros, unused_imports, missing_docs)]

pub mod fake;
pub mod least;
pub mod net;

pub use fake::{Act, Fake, Record, record};
pub use net::{Net, Rig};

/// Makes a test for each version from one body. The body gets a [`Rig`] with a plugin of its own.
macro_rules! every_version {
    ($(#[$meta:meta])* fn $name:ident($rig:ident) $body:block) => {
        mod $name {
            #[allow(unused_imports)]
            use super::*;

            $(#[$meta])*
            fn body<const ID: u32>($rig: common::Rig<ID>) $body

            #[test]
            fn v6() { body::<{ line!() * 100 + 6 }>(common::Rig::new(6)); }
            #[test]
            fn v7() { body::<{ line!() * 100 + 7 }>(common::Rig::new(7)); }
            #[test]
            fn v8() { body::<{ line!() * 100 + 8 }>(common::Rig::new(8)); }
            #[test]
            fn v9() { body::<{ line!() * 100 + 9 }>(common::Rig::new(9)); }
            #[test]
            fn v10() { body::<{ line!() * 100 + 10 }>(common::Rig::new(10)); }
            #[test]
            fn v11() { body::<{ line!() * 100 + 11 }>(common::Rig::new(11)); }
            #[test]
            fn v12() { body::<{ line!() * 100 + 12 }>(common::Rig::new(12)); }
        }
    };
}
