//! Macros that turn one list of fields into a structure, its layout check and its description.

/// Declares a `repr(C)` structure.
macro_rules! c_struct {
    ($(#[$meta:meta])+ $c:ident as $name:ident { $($field:ident: $ty:ty,)+ }) => {
        $(#[$meta])+
        #[doc = concat!("\n\n`", stringify!($c), "` in C.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            $(#[doc = field_meaning!($field)] pub $field: $ty,)+
        }

        same_layout!(structs::$c as $name { $($field,)+ });
        described!($c as $name { $($field: $ty,)+ });
    };
}

/// Declares a `repr(C)` union of structures.
macro_rules! c_union {
    ($(#[$meta:meta])+ $c:ident as $name:ident { $($field:ident: $ty:ty,)+ }) => {
        $(#[$meta])+
        #[doc = concat!("\n\n`", stringify!($c), "` in C.")]
        #[repr(C)]
        #[derive(Clone, Copy)]
        pub union $name {
            $(#[doc = field_meaning!($field)] pub $field: $ty,)+
        }

        impl core::fmt::Debug for $name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str(stringify!($c))
            }
        }

        #[cfg(test)]
        const _: () = {
            use $crate::header::structs::$c as Header;
            static_assertions::const_assert_eq!(size_of::<$name>(), size_of::<Header>());
            static_assertions::const_assert_eq!(align_of::<$name>(), align_of::<Header>());
            $(
                static_assertions::const_assert_eq!(
                    $crate::header::size_of_field(|s: &$name| &raw const s.$field),
                    $crate::header::size_of_field(|s: &Header| &raw const s.$field)
                );
            )+
        };

        impl $crate::describe::CType for $name {
            fn c_type() -> String {
                stringify!($c).to_owned()
            }
        }
    };
}

/// Declares a table of functions: `slot(arguments);` in the header's order, after the name.
macro_rules! c_table {
    (
        $(#[$meta:meta])+
        $c:ident as $name:ident { $($slot:ident($($arg:ident: $ty:ty),+ $(,)?);)+ }
    ) => {
        $(#[$meta])+
        #[doc = concat!("\n\n`", stringify!($c), "` in C.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            /// The network's name, which `NCCL_NET` selects by. NUL-terminated; lives as long as
            /// the table.
            pub name: *const core::ffi::c_char,
            $(
                #[doc = slot_meaning!($name $slot)]
                pub $slot: Option<unsafe extern "C" fn($($arg: $ty),+) -> $crate::ncclResult_t>,
            )+
        }

        // SAFETY: a table is never written after its creation, and its string is as constant.
        unsafe impl Sync for $name {}
        // SAFETY: as for `Sync`.
        unsafe impl Send for $name {}

        same_layout!(tables::$c as $name { name, $($slot,)+ });
        described!($c as $name {
            name: *const core::ffi::c_char,
            $($slot: Option<unsafe extern "C" fn($($ty),+) -> $crate::ncclResult_t>,)+
        });

        // Sizes prove little for tables: v9 and v10 are equally large, and v11 and v12 are. This
        // function compiles only if the type of every slot is the header's.
        #[cfg(test)]
        const _: fn($crate::header::tables::$c) -> $name =
            |c| $name { name: c.name, $($slot: c.$slot,)+ };
    };
}

/// Compiles only if the size, the alignment and the offset and size of every field are the
/// header's, and if the header has no field that the list lacks.
macro_rules! same_layout {
    ($module:ident::$c:ident as $name:ident { $($field:ident,)+ }) => {
        #[cfg(test)]
        const _: () = {
            use $crate::header::$module::$c as Header;
            static_assertions::const_assert_eq!(size_of::<$name>(), size_of::<Header>());
            static_assertions::const_assert_eq!(align_of::<$name>(), align_of::<Header>());
            $(
                static_assertions::const_assert_eq!(
                    memoffset::offset_of!($name, $field),
                    memoffset::offset_of!(Header, $field)
                );
                static_assertions::const_assert_eq!(
                    $crate::header::size_of_field(|s: &$name| &raw const s.$field),
                    $crate::header::size_of_field(|s: &Header| &raw const s.$field)
                );
            )+
            let _: fn(Header) = |Header { $($field: _,)+ }| {};
        };
    };
}

/// Implements the description that checkers outside the Rust compiler use.
macro_rules! described {
    ($c:ident as $name:ident { $($field:ident: $ty:ty,)+ }) => {
        impl $crate::describe::CType for $name {
            fn c_type() -> String {
                stringify!($c).to_owned()
            }
        }

        impl $crate::describe::Pointee for $name {}

        impl $name {
            /// Returns the C name, the size, the alignment and every field, as Rust lays them out.
            pub fn describe() -> $crate::describe::Struct {
                $crate::describe::Struct {
                    c_name: stringify!($c),
                    size: size_of::<Self>(),
                    align: align_of::<Self>(),
                    fields: vec![$($crate::describe::Field {
                        name: stringify!($field).trim_end_matches('_'),
                        offset: memoffset::offset_of!(Self, $field),
                        size: size_of::<$ty>(),
                        c_type: <$ty as $crate::describe::CType>::c_type(),
                    },)+],
                }
            }
        }
    };
}
