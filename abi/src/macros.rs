//! One list of fields makes a structure, its layout assertions and its description.

/// A `repr(C)` structure and the proof that its layout is the header's.
macro_rules! c_struct {
    ($(#[$meta:meta])+ $c:ident as $name:ident { $($field:ident: $ty:ty,)+ }) => {
        $(#[$meta])+
        #[doc = concat!("\n\n`", stringify!($c), "`; what each field means stands in the header.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            $(#[doc = concat!("`", stringify!($field), "`")] pub $field: $ty,)+
        }

        same_layout!($c as $name { $($field,)+ });
        described!($c as $name { $($field: $ty,)+ });
    };
}

/// A table of functions: `slot(argument types);` after the name, in the header's order.
macro_rules! c_table {
    ($(#[$meta:meta])+ $c:ident as $name:ident { $($slot:ident($($arg:ty),+);)+ }) => {
        $(#[$meta])+
        #[doc = concat!("\n\n`", stringify!($c), "`; what each call means stands in the header.")]
        #[repr(C)]
        #[derive(Debug, Clone, Copy)]
        pub struct $name {
            /// What `NCCL_NET` selects by. A NUL-terminated string that lives as long as the table.
            pub name: *const core::ffi::c_char,
            $(
                #[doc = concat!("`", stringify!($slot), "`")]
                pub $slot: Option<unsafe extern "C" fn($($arg),+) -> $crate::ncclResult_t>,
            )+
        }

        // SAFETY: a table is never written once it exists, and its string is as constant as the table.
        unsafe impl Sync for $name {}
        // SAFETY: as above.
        unsafe impl Send for $name {}

        same_layout!($c as $name { name, $($slot,)+ });
        described!($c as $name {
            name: *const core::ffi::c_char,
            $($slot: Option<unsafe extern "C" fn($($arg),+) -> $crate::ncclResult_t>,)+
        });

        // Sizes prove little for tables (v9 and v10, v11 and v12 are equally large), so every slot's type must
        // be the header's: this does not compile otherwise.
        const _: fn($crate::header::tables::$c) -> $name =
            |c| $name { name: c.name, $($slot: c.$slot,)+ };
    };
}

/// Fails the build unless size, alignment and every field's offset and size are the header's, and the header
/// has no field that the list lacks.
macro_rules! same_layout {
    ($c:ident as $name:ident { $($field:ident,)+ }) => {
        const _: () = {
            use $crate::header::structs::$c as Header;
            static_assertions::const_assert_eq!(size_of::<$name>(), size_of::<Header>());
            static_assertions::const_assert_eq!(align_of::<$name>(), align_of::<Header>());
            $(
                static_assertions::const_assert_eq!(
                    memoffset::offset_of!($name, $field),
                    memoffset::offset_of!(Header, $field)
                );
                static_assertions::const_assert_eq!(
                    $crate::describe::size_of_field(|s: &$name| &raw const s.$field),
                    $crate::describe::size_of_field(|s: &Header| &raw const s.$field)
                );
            )+
            let _: fn(Header) = |Header { $($field: _,)+ }| {};
        };
    };
}

/// Makes the description that checkers outside the compiler use.
macro_rules! described {
    ($c:ident as $name:ident { $($field:ident: $ty:ty,)+ }) => {
        impl $crate::describe::CType for $name {
            fn c_type() -> String {
                stringify!($c).to_owned()
            }
        }

        impl $crate::describe::Pointee for $name {}

        impl $name {
            /// Name, size, offsets and C types, as Rust sees them.
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
