//! Descriptions of the Rust types in C's terms.
//!
//! For checkers outside the Rust compiler: a C compiler that reads the headers, or a reader of the
//! debug information in a released library.

use core::ffi::{c_char, c_int, c_ulong, c_void};

use crate::{
    ncclDebugLogLevel, ncclNetDeviceType, ncclResult_t, profiler_v1, profiler_v2, profiler_v3, profiler_v4,
    profiler_v5, profiler_v6, profiler_v7, rma_v13, rma_v14, rma_v15, rma_v16, v6, v7, v8, v9, v10, v11, v12,
};

/// The layout of one structure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Struct {
    /// Name of the type in C.
    pub c_name: &'static str,
    /// Size in bytes.
    pub size: usize,
    /// Alignment in bytes.
    pub align: usize,
    /// Fields in memory order.
    pub fields: Vec<Field>,
}

/// The layout of one field.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Name in C.
    pub name: &'static str,
    /// Offset in bytes from the start of the structure.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
    /// Type in C's notation, without a name: `int`, `void *`, `ncclResult_t (*)(void *, int *)`.
    pub c_type: String,
}

/// Returns every structure and table. An alias of an earlier version's structure is not repeated.
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
        rma_v13::Config::describe(),
        rma_v13::Rma::describe(),
        rma_v14::Config::describe(),
        rma_v14::Rma::describe(),
        rma_v15::Rma::describe(),
        rma_v16::Properties::describe(),
        rma_v16::Rma::describe(),
        profiler_v1::Coll::describe(),
        profiler_v1::P2p::describe(),
        profiler_v1::ProxyOp::describe(),
        profiler_v1::ProxyStep::describe(),
        profiler_v2::Coll::describe(),
        profiler_v2::P2p::describe(),
        profiler_v3::Coll::describe(),
        profiler_v3::KernelCh::describe(),
        profiler_v3::NetPlugin::describe(),
        profiler_v4::Coll::describe(),
        profiler_v4::P2p::describe(),
        profiler_v4::KernelCh::describe(),
        profiler_v5::Coll::describe(),
        profiler_v5::P2p::describe(),
        profiler_v5::GroupApi::describe(),
        profiler_v5::CollApi::describe(),
        profiler_v5::P2pApi::describe(),
        profiler_v5::KernelLaunch::describe(),
        profiler_v6::CeColl::describe(),
        profiler_v6::CeCollSync::describe(),
        profiler_v6::CeCollBatch::describe(),
        profiler_v7::Coll::describe(),
        profiler_v7::P2p::describe(),
        profiler_v7::CollApi::describe(),
        profiler_v7::P2pApi::describe(),
        profiler_v7::CeColl::describe(),
        profiler_v7::KernelPhase::describe(),
    ]
}

/// Returns the C name and the C type of each named function type.
pub fn callbacks() -> [(&'static str, String); 2] {
    [
        ("ncclDebugLogger_t", crate::ncclDebugLogger_t::c_type()),
        ("ncclProfilerCallback_t", crate::ncclProfilerCallback_t::c_type()),
    ]
}

/// Returns the C name and the value of each constant.
pub fn constants() -> &'static [(&'static str, i64)] {
    crate::constants::all()
}

/// A Rust type with an equivalent in C.
pub(crate) trait CType {
    /// Returns the type in C's notation, without a name.
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
    bool => "bool",
    c_int => "int",
    c_void => "void",
    f32 => "float",
    i16 => "int16_t",
    i64 => "int64_t",
    u8 => "uint8_t",
    u32 => "uint32_t",
    u64 => "uint64_t",
    usize => "size_t",
    // `c_char` alone has no entry: its sign depends on the machine, and only strings occur.
    *const c_char => "const char *",
    *const c_void => "const void *",
    *mut c_char => "char *",
    ncclResult_t => "ncclResult_t",
    ncclDebugLogLevel => "ncclDebugLogLevel",
    ncclNetDeviceType => "ncclNetDeviceType",
}

// `unsigned long` and `uint64_t` are the same type only on an LP64 platform.
const _: () = assert!(size_of::<c_ulong>() == size_of::<u64>(), "an LP64 platform");

/// A type with a pointer type in C. `c_char` is not one: its pointers have entries above.
pub(crate) trait Pointee: CType {}
impl Pointee for bool {}
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
function!(A B C D E F G H I);
function!(A B C D E F G H I J);
function!(A B C D E F G H I J K L M);
function!(A B C D E F G H I J K L M N);
function!(A B C D E F G H I J K L M N O);
