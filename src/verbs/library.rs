//! The functions of libibverbs, which the first init looks up: the plugin's file loads on any host, and
//! init says what is missing.

use std::error::Error as _;
use std::ffi::{c_int, c_uint, c_void};
use std::mem::ManuallyDrop;
use std::sync::OnceLock;

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use mpib_proto::Ece;
use rdma_sys as sys;

use crate::error::{Error, Result};

/// Makes [`Verbs`] of the functions, each with its name in C.
macro_rules! functions {
    (
        required { $($required:ident($($in:ident: $of:ty),*) $(-> $out:ty)?;)* }
        newer { $($newer:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)* }
    ) => {
        /// The functions.
        #[derive(Debug)]
        pub(super) struct Verbs {
            $(pub(super) $required: unsafe extern "C" fn($($in: $of),*) $(-> $out)?,)*
            $(pub(super) $newer: Option<unsafe extern "C" fn($($arg: $type),*) $(-> $result)?>,)*
        }

        // As verbs.h declares them. The newer ones are not in every header.
        $(const _: unsafe extern "C" fn($($in: $of),*) $(-> $out)? = sys::$required;)*

        impl Verbs {
            /// Looks up the functions. Fails with the reason if a required one is missing.
            fn of(library: &Library) -> Result<Self, String> {
                Ok(Self {
                    // SAFETY: verbs.h declares the function so.
                    $($required: unsafe { lookup(library, stringify!($required)) }?,)*
                    // SAFETY: as above, in newer releases.
                    $($newer: unsafe { lookup(library, stringify!($newer)) }.ok(),)*
                })
            }
        }
    };
}

// The version of the required ones is IBVERBS_1.1, which every release has (since 2006). Those that post
// and poll are in the tables of a context.
functions! {
    required {
        ibv_fork_init() -> c_int;
        ibv_get_device_list(count: *mut c_int) -> *mut *mut sys::ibv_device;
        ibv_free_device_list(list: *mut *mut sys::ibv_device);
        ibv_get_device_guid(device: *mut sys::ibv_device) -> u64;
        ibv_open_device(device: *mut sys::ibv_device) -> *mut sys::ibv_context;
        ibv_close_device(context: *mut sys::ibv_context) -> c_int;
        ibv_query_device(context: *mut sys::ibv_context, attr: *mut sys::ibv_device_attr) -> c_int;
        ibv_query_port(context: *mut sys::ibv_context, port: u8, attr: *mut sys::_compat_ibv_port_attr) -> c_int;
        ibv_query_gid(context: *mut sys::ibv_context, port: u8, index: c_int, gid: *mut sys::ibv_gid) -> c_int;
        ibv_query_pkey(context: *mut sys::ibv_context, port: u8, index: c_int, key: *mut u16) -> c_int;
        ibv_get_async_event(context: *mut sys::ibv_context, event: *mut sys::ibv_async_event) -> c_int;
        ibv_ack_async_event(event: *mut sys::ibv_async_event);
        ibv_alloc_pd(context: *mut sys::ibv_context) -> *mut sys::ibv_pd;
        ibv_dealloc_pd(pd: *mut sys::ibv_pd) -> c_int;
        ibv_reg_mr(pd: *mut sys::ibv_pd, data: *mut c_void, len: usize, access: c_int) -> *mut sys::ibv_mr;
        ibv_dereg_mr(mr: *mut sys::ibv_mr) -> c_int;
        ibv_create_cq(
            context: *mut sys::ibv_context, entries: c_int, cookie: *mut c_void,
            channel: *mut sys::ibv_comp_channel, vector: c_int
        ) -> *mut sys::ibv_cq;
        ibv_destroy_cq(cq: *mut sys::ibv_cq) -> c_int;
        ibv_create_srq(pd: *mut sys::ibv_pd, init: *mut sys::ibv_srq_init_attr) -> *mut sys::ibv_srq;
        ibv_destroy_srq(srq: *mut sys::ibv_srq) -> c_int;
        ibv_create_qp(pd: *mut sys::ibv_pd, init: *mut sys::ibv_qp_init_attr) -> *mut sys::ibv_qp;
        ibv_modify_qp(qp: *mut sys::ibv_qp, attr: *mut sys::ibv_qp_attr, mask: c_int) -> c_int;
        ibv_destroy_qp(qp: *mut sys::ibv_qp) -> c_int;
    }
    newer {
        // IBVERBS_1.8
        ibv_reg_mr_iova2(pd: *mut sys::ibv_pd, data: *mut c_void, len: usize, iova: u64, access: c_uint)
            -> *mut sys::ibv_mr;
        // IBVERBS_1.10
        ibv_query_ece(qp: *mut sys::ibv_qp, ece: *mut Ece) -> c_int;
        ibv_set_ece(qp: *mut sys::ibv_qp, ece: *mut Ece) -> c_int;
        // IBVERBS_1.11, behind the header's ibv_query_gid_table and ibv_query_gid_ex
        _ibv_query_gid_table(
            context: *mut sys::ibv_context, entries: *mut sys::ibv_gid_entry, room: usize, flags: u32, size: usize
        ) -> isize;
        _ibv_query_gid_ex(
            context: *mut sys::ibv_context, port: u32, index: u32, entry: *mut sys::ibv_gid_entry, flags: u32,
            size: usize
        ) -> c_int;
        // IBVERBS_1.12
        ibv_reg_dmabuf_mr(pd: *mut sys::ibv_pd, offset: u64, len: usize, iova: u64, fd: c_int, access: c_int)
            -> *mut sys::ibv_mr;
        // IBVERBS_1.13. The result is an enum in C.
        ibv_is_fork_initialized() -> c_int;
    }
}

impl Verbs {
    /// Returns the functions. The first call decides for the process.
    ///
    /// # Errors
    /// There is no libibverbs, or it lacks a required function.
    pub(super) fn get() -> Result<&'static Self> {
        static FOUND: OnceLock<Result<Verbs, String>> = OnceLock::new();
        FOUND.get_or_init(find).as_ref().map_err(|why| Error::Library(why.clone()))
    }
}

/// The file, by the name that its interface has had since 2005.
const FILE: &str = "libibverbs.so.1";

/// Finds the library where the dynamic linker would for a file that is linked to it: the functions of
/// the program come first, for example those of a stand-in that is linked into it or preloaded.
fn find() -> Result<Verbs, String> {
    let program = Library::this();
    // SAFETY: only whether there is one is of interest.
    let library = match unsafe { lookup::<unsafe extern "C" fn()>(&program, "ibv_get_device_list") } {
        Ok(_) => program,
        // SAFETY: libibverbs may be loaded at any time.
        Err(_) => unsafe { Library::open(Some(FILE), RTLD_NOW | RTLD_LOCAL) }.map_err(|e| {
            format!(
                "{}. Install libibverbs1 and ibverbs-providers (Debian, Ubuntu) or libibverbs (RHEL), in the container \
                 as well",
                words(&e)
            )
        })?,
    };
    // Never closed: the functions may be called until the process ends.
    Verbs::of(&ManuallyDrop::new(library)).map_err(|why| {
        format!(
            "{why}. Every libibverbs of rdma-core has the function: is another file first in LD_LIBRARY_PATH?"
        )
    })
}

/// Looks up one function, without a version: that gives the default one, and finds it in a stand-in that
/// has no versions.
///
/// # Safety
/// `F` is the pointer to a function, and is the type of the function with this name.
unsafe fn lookup<F: Copy>(library: &Library, name: &str) -> Result<F, String> {
    // SAFETY: the caller's promise, and NULL is `None`.
    let found = unsafe { library.get::<Option<F>>(name) }.map_err(|e| words(&e))?;
    (*found).ok_or_else(|| format!("{name} is NULL"))
}

/// Returns the linker's words, without those of libloading.
fn words(e: &libloading::Error) -> String {
    e.source().map_or_else(|| e.to_string(), ToString::to_string)
}
