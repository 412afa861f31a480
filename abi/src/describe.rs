//! What the Rust types look like in C, for checkers that a Rust compiler cannot be: a C compiler reading the
//! headers, or the debug information inside a released library.

use core::ffi::{c_char, c_int, c_ulong, c_void};

use crate::{ncclDebugLogLevel, ncclNetDeviceType, ncclResult_t, v6, v7, v8, v9, v10, v11, v12};

/// One structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struct {
    /// Name in C.
    pub c_name: &'static str,
    /// Bytes.
    pub size: usize,
    /// Bytes.
    pub align: usize,
    /// In memory order.
    pub fields: Vec<Field>,
}

/// One field of a structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name, the same in C and Rust.
    pub name: &'static str,
    /// Bytes from the start.
    pub offset: usize,
    /// Bytes.
    pub size: usize,
    /// Type as C writes it, without a name: `int`, `void *`, `ncclResult_t (*)(void *, int *)`.
    pub c_type: String,
}

/// Every structure that has a layout of its own; versions that only rename another's are left out.
pub fn structs() -> Vec<Struct> {
    vec![
        crate::ncclProfilerNetIbQpDescr_v1_t::describe(),
        crate::ncclProfilerNetIbDescr_v1_t::describe(),
        v6::Props::describe(),
        v6::Net::describe(),
        v7::DeviceHandle::describe(),
        v7::Props::describe(),
        v7::Net::describe(),
        v8::Props::describe(),
        v8::Net::describe(),
        v9::VDeviceProps::describe(),
        v9::Props::describe(),
        v9::Net::describe(),
        v10::CommConfig::describe(),
        v10::Props::describe(),
        v10::Net::describe(),
        v11::CommAttr::describe(),
        v11::NetAttr::describe(),
        v11::Props::describe(),
        v11::Net::describe(),
        v12::VDeviceProps::describe(),
        v12::Props::describe(),
        v12::Net::describe(),
    ]
}

/// C name and C type of each function type that has a name.
pub fn callbacks() -> [(&'static str, String); 2] {
    [
        ("ncclDebugLogger_t", crate::ncclDebugLogger_t::c_type()),
        ("ncclProfilerCallback_t", crate::ncclProfilerCallback_t::c_type()),
    ]
}

/// C name and value of each constant.
pub fn constants() -> &'static [(&'static str, i64)] {
    crate::constants::all()
}

/// Size of the field that `field` points to.
pub(crate) const fn size_of_field<S, F>(_field: fn(&S) -> *const F) -> usize {
    size_of::<F>()
}

/// A Rust type that C can write down.
pub(crate) trait CType {
    /// The type in C, without a name.
    fn c_type() -> String;
}

macro_rules! plain {
    ($($ty:ty => $c:literal,)+) => {$(
        impl CType for $ty {
            fn c_type() -> String {
                $c.to_owned()
            }
        }
    )+};
}

plain! {
    c_int => "int",
    c_void => "void",
    f32 => "float",
    i16 => "int16_t",
    i64 => "int64_t",
    u8 => "uint8_t",
    u32 => "uint32_t",
    u64 => "uint64_t",
    usize => "size_t",
    // By itself `c_char` is a signed or an unsigned byte, whichever the machine has; only strings occur.
    *const c_char => "const char *",
    *mut c_char => "char *",
    ncclResult_t => "ncclResult_t",
    ncclDebugLogLevel => "ncclDebugLogLevel",
    ncclNetDeviceType => "ncclNetDeviceType",
}

// On Linux `c_ulong` is `u64` or `usize` wide but never `u32`, and C takes the two for the same type.
const _: () = assert!(size_of::<c_ulong>() == size_of::<u64>(), "an LP64 platform");

/// What a pointer may point to; not every type, since pointers to `c_char` are named above.
pub(crate) trait Pointee: CType {}
impl Pointee for c_int {}
impl Pointee for c_void {}
impl Pointee for usize {}
impl<T: Pointee> Pointee for *mut T {}

impl<T: Pointee> CType for *mut T {
    fn c_type() -> String {
        format!("{} *", T::c_type())
    }
}

impl<T: CType, const N: usize> CType for [T; N] {
    fn c_type() -> String {
        format!("{} [{N}]", T::c_type())
    }
}

impl CType for crate::ncclDebugLogger_t {
    fn c_type() -> String {
        "void (*)(ncclDebugLogLevel, unsigned long, const char *, int, const char *, ...)".to_owned()
    }
}

macro_rules! function {
    ($($arg:ident)+) => {
        impl<R: CType, $($arg: CType),+> CType for Option<unsafe extern "C" fn($($arg),+) -> R> {
            fn c_type() -> String {
                format!("{} (*)({})", R::c_type(), [$($arg::c_type()),+].join(", "))
            }
        }
    };
}

function!(A);
function!(A B);
function!(A B C);
function!(A B C D);
function!(A B C D E);
function!(A B C D E F);
function!(A B C D E F G);
function!(A B C D E F G H);
